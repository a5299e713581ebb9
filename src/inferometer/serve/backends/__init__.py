"""Backends that run models: one loader per backend, imported when a model needs it, and the built-in models."""

import pkgutil
from typing import Any

from inferometer.errors import UserError
from inferometer.serve.models.types import Loader

_HERE = "inferometer.serve.backends"
LOADERS = {
    "identity": f"{_HERE}.identity:load", "sim": f"{_HERE}.identity:load_delay", "python": f"{_HERE}.python:load",
    "torch": f"{_HERE}.torch:load", "classifier": f"{_HERE}.classifier:load", "onnxruntime": f"{_HERE}.onnx:load",
    "transformers": f"{_HERE}.transformers:load",
}  # fmt: skip
"""MODULE:FUNCTION of the loader, by the `backend` name in a configuration."""

ALSO = {
    "delay": "sim", "pytorch": "torch", "pytorch_libtorch": "torch", "libtorch": "torch",
    "onnx": "onnxruntime", "onnxruntime_onnx": "onnxruntime",
}  # fmt: skip
"""Alternative backend names, including Triton's."""

EXTRAS = {"torch": "torch", "classifier": "torch", "onnxruntime": "onnx", "transformers": "transformers"}
"""The pip extra that a backend needs (`pip install 'inferometer[EXTRA]'`)."""

PLATFORMS = {"torch": "pytorch_libtorch", "onnxruntime": "onnxruntime_onnx"}
"""Platform names in model metadata; other backends use their own name."""

BUILTIN = {
    "identity": """
        backend: "identity"
        max_batch_size: 64
        input [{ name: "INPUT0", data_type: TYPE_FP32, dims: [ -1 ] }]
        output [{ name: "OUTPUT0", data_type: TYPE_FP32, dims: [ -1 ] }]
    """,
    "classifier": 'backend: "classifier" max_batch_size: 32 dynamic_batching { }',
}

SIMULATOR = "sim"
"""Command-line name of the simulator, which is not a model backend (the backend `sim` is something else)."""


def backend_of(config: Any) -> str:
    """Return the backend that a configuration names, or ""."""
    named: str = config.backend or config.platform
    backend = ALSO.get(named, named)
    if backend and backend not in LOADERS:
        raise UserError(f"model {config.name}: unknown backend {named!r}", f"use one of {', '.join([*LOADERS, *ALSO])}")
    return backend


def loader(backend: str) -> Loader:
    """Import the backend's loader; raises ImportError if a package is missing."""
    found: Loader = pkgutil.resolve_name(LOADERS[backend])
    return found


def missing(backend: str, error: ImportError) -> UserError:
    remedy = f"pip install 'inferometer[{EXTRAS[backend]}]'" if backend in EXTRAS else "install the package"
    return UserError(f"backend {backend} requires a package that cannot be imported: {error}", remedy)
