"""ONNX models, run by ONNX Runtime.

The file declares inputs and outputs; a symbolic dimension is -1, and if the first dimension of every input and output
is symbolic, it is the batch dimension. Parameters: `threads` (per operation), `default_max_batch_size`. On a GPU, the
CUDA provider computes what it supports and the CPU the rest.
"""

import contextlib
import ctypes
import io
import threading
from pathlib import Path
from typing import Any

import numpy as np

from inferometer import tensors
from inferometer.serve.backends import configured
from inferometer.serve.models.types import Loaded, Loading, Parameters, Refused, Tensors
from inferometer.tensors import Tensor, TensorSpec, to_numpy

_TYPES = {
    "tensor(bool)": "BOOL", "tensor(string)": "BYTES",
    "tensor(uint8)": "UINT8", "tensor(uint16)": "UINT16", "tensor(uint32)": "UINT32", "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8", "tensor(int16)": "INT16", "tensor(int32)": "INT32", "tensor(int64)": "INT64",
    "tensor(float16)": "FP16", "tensor(bfloat16)": "BF16", "tensor(float)": "FP32", "tensor(double)": "FP64",
}  # fmt: skip
_BFLOAT16 = 16  # ONNX's number
_CUDA, _CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
_SILENT = 4  # errors are raised
_PRELOADING = threading.Lock()  # two at a time would not restore standard output
_REASON = 120
"""Maximum length of an error about a GPU. The reason is at its end, after source locations."""
_EXTRA = "onnx"


def load(loading: Loading) -> Loaded:
    runtime = configured.package("onnxruntime", _EXTRA)
    path = configured.model_file(loading, "model.onnx")
    session = _session(loading, runtime, path)
    inputs, outputs = ([_spec(loading, one) for one in part] for part in (session.get_inputs(), session.get_outputs()))
    configured.complete(loading, inputs, outputs)
    datatypes, value = {spec.name: spec.datatype for spec in outputs}, runtime.OrtValue
    wanted = {spec.name: datatypes[spec.name] for spec in configured.specs(loading.config.output)}
    has_bfloat16 = any(spec.datatype == "BF16" for spec in (*inputs, *outputs))
    # What ONNX Runtime raises for a bad request rather than a bad model.
    refusal = configured.package("onnxruntime.capi.onnxruntime_pybind11_state", _EXTRA).InvalidArgument

    def run(inputs: Tensors, parameters: Parameters) -> Tensors:
        try:
            return _run_values(value, session, inputs, wanted) if has_bfloat16 else _run_arrays(session, inputs, wanted)
        except refusal as error:
            raise Refused("INVALID_ARGUMENT", f"model '{loading.name}': {configured.one_line(error)}") from None

    return Loaded(run=run)


def _session(loading: Loading, runtime: Any, path: Path) -> Any:
    gpu, why = _gpu(loading, runtime), ""
    if gpu is not None:
        made, why = _on_gpu(loading, runtime, path, gpu)
        if made is not None:
            return made
    remedy = "export it again; onnx.checker.check_model shows details"
    # Report errors of the file itself first.
    made = configured.attempt(loading, path, remedy, lambda: _made(loading, runtime, path, [_CPU]))
    if why and loading.device != "auto":
        remedy = "check nvidia-smi and the CUDA and cuDNN versions that onnxruntime-gpu needs, or use --device cpu"
        raise loading.error(f"ONNX Runtime cannot use the device {loading.device}: {why}", remedy)
    return made


def _gpu(loading: Loading, runtime: Any) -> int | None:
    """Return the number of the GPU to try, or None for the CPU (requested, or the only device)."""
    known, device = runtime.get_available_providers(), loading.device
    kind, _, number = device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (number and not number.isdecimal()):
        raise loading.error(f"unknown device {device!r:.60}", "use cpu, cuda or cuda:N")
    if kind == "cuda" and _CUDA not in known:
        what = f"device {device} was requested, but this ONNX Runtime supports only {', '.join(known)}"
        raise loading.error(what, "pip install onnxruntime-gpu, or use --device cpu")
    return None if kind == "cpu" or _CUDA not in known else int(number or 0)


def _on_gpu(loading: Loading, runtime: Any, path: Path, number: int) -> tuple[Any, str]:
    """Return the session, or the reason why there is none. By itself, ONNX Runtime would silently fall back to the CPU."""
    runtime.set_default_logger_severity(_SILENT)
    if hasattr(runtime, "preload_dlls"):
        with _PRELOADING, contextlib.redirect_stdout(io.StringIO()):
            runtime.preload_dlls()  # CUDA's libraries installed by pip
    try:
        made = _made(loading, runtime, path, [(_CUDA, {"device_id": number}), _CPU])
    except Exception as error:
        return None, " ".join(str(error).split())[-_REASON:]
    return (made, "") if _CUDA in made.get_providers() else (None, "the CUDA libraries failed to load")


def _made(loading: Loading, runtime: Any, path: Path, providers: list[Any]) -> Any:
    options = runtime.SessionOptions()
    options.log_severity_level = _SILENT
    options.intra_op_num_threads = configured.whole(loading, "threads", 0)
    return runtime.InferenceSession(str(path), options, providers=providers, enable_fallback=0)


def _spec(loading: Loading, one: Any) -> TensorSpec:
    datatype = _TYPES.get(one.type)
    if datatype is None:
        what = f"{one.name} has the ONNX type {one.type}, which the KServe protocol does not support"
        raise loading.error(what, f"supported types: {', '.join(_TYPES.values())}")
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in one.shape)
    return TensorSpec(one.name, datatype, shape)


# --- requests --------------------------------------------------------------------------------------------------------


def _run_arrays(session: Any, inputs: Tensors, wanted: dict[str, str]) -> Tensors:
    """`wanted`: the datatypes of the outputs, by name."""
    made = session.run(list(wanted), {name: _array(tensor) for name, tensor in inputs.items()})
    pairs = zip(wanted.items(), made, strict=True)
    return {name: _tensor(name, datatype, np.asarray(array)) for (name, datatype), array in pairs}


def _array(tensor: Tensor) -> Any:
    if tensor.datatype == "BYTES":
        return np.array([*configured.texts(tensor.name, tensor), None], object)[:-1].reshape(tensor.shape)
    array = to_numpy(tensor)
    return array if array.flags.aligned else array.copy()


def _tensor(name: str, datatype: str, array: Any) -> Tensor:
    if datatype == "BYTES":
        return tensors.from_numpy(name, array, "BYTES")
    flat = np.ascontiguousarray(array).reshape(-1)
    return Tensor(name, datatype, tuple(array.shape), flat.view(np.uint8).data)


def _run_values(value: Any, session: Any, inputs: Tensors, wanted: dict[str, str]) -> Tensors:
    """Run with ONNX Runtime's own values, because numpy has no bfloat16."""
    kept = []  # the values reference the arrays' memory
    feeds = {}
    for name, tensor in inputs.items():
        if tensor.datatype == "BF16":
            array = np.frombuffer(tensor.data, "<u2").reshape(tensor.shape).copy()
            feeds[name] = value.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16)
        else:
            array = _array(tensor)
            feeds[name] = value.ortvalue_from_numpy(array)
        kept.append(array)
    made = session.run_with_ort_values(list(wanted), feeds)
    return {name: _from_value(name, datatype, one) for (name, datatype), one in zip(wanted.items(), made, strict=True)}


def _from_value(name: str, datatype: str, value: Any) -> Tensor:
    if datatype != "BF16":
        return _tensor(name, datatype, np.asarray(value.numpy()))
    shape = tuple(value.shape())
    return Tensor(name, datatype, shape, ctypes.string_at(value.data_ptr(), 2 * tensors.elements(shape)))
