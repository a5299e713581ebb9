"""Conversion between raw bytes and PyTorch tensors, without a copy if that is safe.

Also what every model on PyTorch needs: the package, the device, and the number of threads.
"""

import threading
import warnings
from typing import Any

import numpy as np

from inferometer import tensors
from inferometer.serve.backends import configured
from inferometer.serve.models.types import Loading
from inferometer.tensors import Tensor

DTYPES = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "FP16": "float16", "BF16": "bfloat16", "FP32": "float32", "FP64": "float64",
}  # fmt: skip
"""PyTorch's type names; it has no type for BYTES."""

_UNSIGNED = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}
_DATATYPES = {f"torch.{dtype}": datatype for datatype, dtype in DTYPES.items()}
_set_here = threading.local()
_own: list[int] = []
"""The number of threads that PyTorch chose by default."""


def pytorch(extra: str = "torch") -> Any:
    torch = configured.package("torch", extra)
    if not _own:
        _own.append(torch.get_num_threads())
    # Inputs are read in place and never written to, so PyTorch's warning is not needed.
    warnings.filterwarnings("ignore", message="The given buffer is not writable")
    return torch


def device_of(loading: Loading, torch: Any) -> Any:
    """Return the requested device; `auto` is the GPU if there is one."""
    name = loading.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise loading.error(f"unknown device {name!r:.60}", "use cpu, cuda or cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise loading.error(f"device {name} was requested, but PyTorch sees {count} GPUs", "use --device cpu")
    return device


def use_threads(torch: Any, count: int) -> None:
    """Set the number of threads per operation; 0: PyTorch's own default at startup. PyTorch stores the number per calling
    thread, and a new thread inherits the number that was set last in any thread."""
    wanted = count or _own[0]
    if getattr(_set_here, "threads", 0) != wanted:
        torch.set_num_threads(wanted)
        _set_here.threads = wanted


def to_torch(torch: Any, tensor: Tensor, device: Any, copy: bool = False) -> Any:
    """Convert a tensor. With `copy`, the model may write to it."""
    dtype = getattr(torch, DTYPES[tensor.datatype])
    if not len(tensor.data):
        return torch.empty(tensor.shape, dtype=dtype, device=device)
    array = np.frombuffer(tensor.data, _UNSIGNED[tensors.DATATYPES[tensor.datatype].size])
    if tensor.datatype == "BOOL":
        made = torch.from_numpy(array != 0)  # any byte other than 0 is true
    elif copy or not array.flags.aligned:
        made = torch.from_numpy(array.copy()).view(dtype)
    else:
        made = torch.frombuffer(tensor.data, dtype=dtype)
    return made.reshape(tensor.shape).to(device)


def from_torch(torch: Any, name: str, made: Any) -> Tensor:
    made = made.detach().cpu().contiguous()
    raw = made.reshape(-1).view(torch.uint8).numpy() if made.numel() else np.empty(0, np.uint8)
    return Tensor(name, datatype_of(made), tuple(made.shape), raw.data)


def datatype_of(made: Any) -> str:
    """Return KServe's name for a tensor's type, or PyTorch's own if KServe has none."""
    return _DATATYPES.get(str(made.dtype), str(made.dtype))
