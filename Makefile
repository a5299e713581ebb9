# `make demo` and `make test` work on a fresh machine: they set up everything else themselves.

VENV := .venv
BIN = $(VENV)/bin
PYTHON := python3
PYTEST = $(BIN)/python -m pytest -n 3 --dist worksteal
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Container images often set this. Without bytecode, every process that a test starts compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

# The folders whose tests start no server and no client process.
QUICK := analysis config schedule wire store report workload timing observe infer server_metrics publish

.PHONY: help setup backends demo test test-all test-extra test-quick lint graph docs protos engines bench clean

help:
	@echo "make demo        start the embedded simulator, measure it, find its capacity"
	@echo "make test        run the tests, except those marked slow; skip those whose needs are not installed"
	@echo "make test-all    run all tests, including the slow ones"
	@echo "make test-extra  run only the slow tests and those that need more than 'make setup' installs"
	@echo "make test-quick  run only the tests that start no servers"
	@echo "make lint        check style (ruff) and types (mypy)"
	@echo "make backends    install what the extras need (PyTorch, transformers, matplotlib ...), for the models and tests that need them"
	@echo "make graph       print which folder of the package imports which"
	@echo "make docs        regenerate the pages and JSON Schemas in docs/reference that are made from the code"
	@echo "make protos      compile src/inferometer/proto/*.proto to the descriptor sets (*.binpb) beside them"
	@echo "make engines     compare all engines that run on a CPU with a tiny model (installs vLLM and others, 5 GB)"
	@echo "make bench       run the benchmarks behind the claims (needs wrk and a C compiler)"
	@echo "make clean       delete everything that these targets created, except benchmark results"

setup: $(VENV)/ready

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

backends: setup
	$(BIN)/python -m pip install --quiet torch==2.13.0 datasets matplotlib nvidia-ml-py onnx onnxruntime opentelemetry-api opentelemetry-proto pandas pillow polars ray safetensors sentencepiece tiktoken transformers

demo: setup
	@$(BIN)/python tools/demo.py

test: setup
	$(PYTEST) -m "not slow"

test-all: setup
	$(PYTEST)

test-extra: setup
	$(PYTEST) -m "extra or slow"

test-quick: setup
	$(PYTEST) -m "not slow and not extra" $(QUICK:%=tests/%)

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

graph: setup
	$(BIN)/python tools/import_graph.py

docs: setup
	$(BIN)/python tools/write_docs.py

protos: setup
	$(BIN)/python tools/compile_protos.py

engines: backends
	for server in llama_cpp transformers vllm; do tools/real_servers/install.sh $$server || exit; done
	$(BIN)/python tools/real_servers/tiny_model.py tiny-llama --for llama_cpp
	$(BIN)/inferometer engines examples/engines/cpu.yaml --html engines.html --markdown engines.md

bench: setup
	$(BIN)/python -m bench

clean:
	rm -rf .venv .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
