"""ONNX models, run by ONNX Runtime.

The file declares inputs and outputs; a symbolic dimension is -1, and if the first dimension of every input and output
is symbolic, it is the batch dimension. Parameters: `threads` (per operation), `default_max_batch_size`. On a GPU, the
CUDA provider computes what it supports and the CPU the rest.
"""

import contextlib
import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as runtime
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from inferometer.serve.backends import configured
from inferometer.serve.models.types import Loaded, Loading, Parameters, Refused, Tensors, reason
from inferometer.tensors import DATATYPES, Tensor, TensorSpec, from_numpy, to_numpy

_TYPES = {f"tensor({name.lower()})": name for name in DATATYPES} | {
    "tensor(string)": "BYTES", "tensor(float16)": "FP16", "tensor(float)": "FP32", "tensor(double)": "FP64",
}  # fmt: skip
_CUDA, _CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
_SILENT = 4  # errors are raised


def load(loading: Loading) -> Loaded:
    session = _session(loading, configured.model_file(loading, "model.onnx"))
    inputs, outputs = ([_spec(loading, one) for one in part] for part in (session.get_inputs(), session.get_outputs()))
    configured.complete(loading, inputs, outputs)
    wanted = {spec.name: spec.datatype for spec in configured.specs(loading.config.output)}

    def run(inputs: Tensors, parameters: Parameters) -> Tensors:
        try:
            made = session.run(list(wanted), {name: _array(tensor) for name, tensor in inputs.items()})
        except InvalidArgument as error:  # a bad request rather than a bad model
            raise Refused("INVALID_ARGUMENT", f"model '{loading.name}': {reason(error).message}") from None
        return {name: _tensor(name, wanted[name], np.asarray(array)) for name, array in zip(wanted, made, strict=True)}

    return Loaded(run=run)


def _session(loading: Loading, path: Path) -> Any:
    """Return the session, on a GPU if requested or if there is one. ONNX Runtime itself would silently fall back to CPUs."""
    kind, _, number = loading.device.partition(":")
    options = runtime.SessionOptions()
    options.log_severity_level = _SILENT
    options.intra_op_num_threads = configured.whole(loading, "threads", 0)
    opened = partial(runtime.InferenceSession, str(path), options, enable_fallback=0)
    why = f"this ONNX Runtime supports only {', '.join(runtime.get_available_providers())}"
    if kind != "cpu" and _CUDA in runtime.get_available_providers():
        runtime.set_default_logger_severity(_SILENT)
        with contextlib.redirect_stdout(io.StringIO()):
            runtime.preload_dlls()  # CUDA's libraries installed by pip
        try:
            session = opened(providers=[(_CUDA, {"device_id": int(number or 0)}), _CPU])
            if _CUDA in session.get_providers():
                return session
            why = "the CUDA libraries failed to load"
        except Exception as error:
            why = reason(error).message
    if kind not in ("auto", "cpu"):
        remedy = "install onnxruntime-gpu with the CUDA and cuDNN that it needs, or use --device cpu"
        raise loading.error(f"ONNX Runtime cannot use the device {loading.device}: {why}", remedy)
    remedy = "export it again; onnx.checker.check_model shows details"
    return configured.attempt(loading, path, remedy, partial(opened, providers=[_CPU]))


def _spec(loading: Loading, one: Any) -> TensorSpec:
    if one.type not in _TYPES:
        raise loading.error(f"{one.name} has the ONNX type {one.type}, which is not supported", "export it as float32")
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in one.shape)
    return TensorSpec(one.name, _TYPES[one.type], shape)


def _array(tensor: Tensor) -> Any:
    if tensor.datatype == "BYTES":
        return np.array(configured.texts(tensor.name, tensor), object).reshape(tensor.shape)
    array = to_numpy(tensor)
    return array if array.flags.aligned else array.copy()


def _tensor(name: str, datatype: str, array: Any) -> Tensor:
    if datatype == "BYTES":
        return from_numpy(name, array, "BYTES")
    return Tensor(name, datatype, array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
