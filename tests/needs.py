"""What some tests need that `make setup` does not install: one marker for each, with where to get it.

A test that is marked with a need is skipped, with the reason, if the need is missing. conftest.py also gives it the marker
`extra`, so that CI can install everything and then run only the tests that were waiting for it.
"""

import importlib.util
import os
import shutil
from pathlib import Path

BACKENDS = {
    "torch": ("torch",),
    "onnx": ("onnx", "onnxruntime"),
    "transformers": ("torch", "transformers", "safetensors"),
    "tokenizers": ("tiktoken", "sentencepiece"),
    "hub": ("datasets",),
    "otlp": ("opentelemetry.proto",),
    "nvml": ("pynvml",),
    "matplotlib": ("matplotlib",),
    "ray": ("ray", "opentelemetry.metrics"),
}
"""Markers and the Python packages that they stand for (`make backends`)."""

INSTALLED = Path(os.environ.get("INFEROMETER_REAL") or Path.home() / ".cache/inferometer/real")
REAL = {
    "llama_cpp": "llama_cpp",
    "triton": "triton",
    "mlserver": "mlserver",
    "perf_analyzer": "perf_analyzer",
    "transformers_server": "transformers",
    "vllm": "vllm",
    "openvino": "openvino",
    "onnxruntime_genai": "onnxruntime_genai",
    "phoenix": "phoenix",
    "anthropic_client": "anthropic",
    "kubernetes": "kubernetes",
    "moto": "moto",
    "gcs_emulator": "gcs_emulator",
    "s3rver": "s3rver",
    "notebook": "notebook",
}
"""Markers and the servers, clients and tools by other people that they stand for (tools/real_servers/install.sh)."""


PROGRAMS = {
    "chromium": {"chromium": "chromium"},
    "prometheus": {"prometheus": "prometheus", "promtool": "prometheus"},
    "image": {"buildah": "buildah", "debootstrap": "debootstrap"},
}
"""Markers and the programs that they stand for, each with its Debian package."""


def missing(need: str) -> str | None:
    """Why a test with this marker cannot run here; None if it can, or if the marker is not a need."""
    if need in BACKENDS:
        absent = [package for package in BACKENDS[need] if not _is_installed(package)]
        return f"{' and '.join(absent)} not installed: make backends" if absent else None
    if need in PROGRAMS and not all(map(shutil.which, PROGRAMS[need])):
        packages = " ".join(dict.fromkeys(PROGRAMS[need].values()))
        return f"{' and '.join(PROGRAMS[need])} not found: apt-get install {packages}"
    if need in REAL and not (INSTALLED / REAL[need] / "installed.txt").exists():
        return f"{INSTALLED / REAL[need]} does not exist: tools/real_servers/install.sh {REAL[need]}"
    return None


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # the package that it is part of
        return False
