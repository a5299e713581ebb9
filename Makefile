# Two commands do everything on a fresh machine: `make demo` and `make test`.

VENV := .venv
BIN := $(VENV)/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup backends demo test lint docs bench clean

help:
	@echo "make demo    set up, start the embedded simulator, measure it, print the result"
	@echo "make test    set up, run the tests"
	@echo "make lint    ruff and mypy"
	@echo "make backends  PyTorch, ONNX Runtime and transformers, for the models and tests that want them"
	@echo "make docs    write docs/reference/config.md and docs/reference/metrics.md anew from the code"
	@echo "make bench   the benchmarks behind the claims (wants wrk and a C compiler)"

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml setup.py constraints.txt $(wildcard src/inferometer/proto/*.proto)
	python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

backends: setup
	$(BIN)/python -m pip install --quiet torch==2.13.0 onnx onnxruntime pillow safetensors transformers

demo: setup
	@$(BIN)/python tools/demo.py

test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: setup
	$(BIN)/python tools/write_docs.py

bench: setup
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
