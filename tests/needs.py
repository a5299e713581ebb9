"""What some tests need that `make setup` does not install: one marker for each, with where to get it.

A test that is marked with a need is skipped, with the reason, if the need is missing. conftest.py also gives it the marker
`extra`, so that CI can install everything and then run only the tests that were waiting for it.
"""

import importlib.util
import os
from pathlib import Path

BACKENDS = {
    "torch": ("torch",),
    "onnx": ("onnx", "onnxruntime"),
    "transformers": ("torch", "transformers", "safetensors"),
    "tokenizers": ("tiktoken", "sentencepiece"),
}
"""Markers and the Python packages that they stand for (`make backends`)."""

INSTALLED = Path(os.environ.get("INFEROMETER_REAL") or Path.home() / ".cache/inferometer/real")
REAL = {
    "llama_cpp": "llama_cpp",
    "triton": "triton",
    "mlserver": "mlserver",
    "perf_analyzer": "perf_analyzer",
    "transformers_server": "transformers",
}
"""Markers and the servers and clients by other people that they stand for (tools/real_servers/install.sh)."""


def missing(need: str) -> str | None:
    """Why a test with this marker cannot run here; None if it can, or if the marker is not a need."""
    if need in BACKENDS:
        absent = [package for package in BACKENDS[need] if importlib.util.find_spec(package) is None]
        return f"{' and '.join(absent)} not installed: make backends" if absent else None
    if need in REAL and not (INSTALLED / REAL[need] / "installed.txt").exists():
        return f"{INSTALLED / REAL[need]} does not exist: tools/real_servers/install.sh {REAL[need]}"
    return None
