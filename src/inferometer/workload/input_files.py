"""One input of a model from a file: an array of numpy, or raw bytes. Used by `data.fill` by input and by `infer --input`.

a.npy    an array; a batch dimension of 1 is added if that is all it lacks
other    its bytes: one element of BYTES, or the raw data of another datatype in the byte order of the protocol
"""

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer import tensors
from inferometer.errors import UserError
from inferometer.tensors import Tensor, TensorSpec, shown

_NUMPY = b"\x93NUMPY"


def read_bytes(path: str, key: str) -> bytes:
    """Read a file. Raises UserError about the setting `key`."""
    try:
        return Path(path).expanduser().read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path!r:.200}: {reason}", "give a readable file", key) from None


def from_file(path: str, data: bytes, spec: TensorSpec, shape: tuple[int, ...] | None) -> Tensor:
    """The input from the file's content, with `shape` if it is given, else with the file's own or the one that fits."""
    if data.startswith(_NUMPY) or path.endswith(".npy"):
        return _from_array(_loaded(path, data), spec, shape)
    if spec.datatype == "BYTES":
        return shaped(np.array([data], object), spec, shape)
    size = tensors.datatype_of(spec.name, spec.datatype).size
    if len(data) % size:
        raise UserError(
            f"tensor {spec.name}: {path} has {len(data)} bytes, which is not a whole number of {spec.datatype} elements",
            "give an .npy file, or the raw data",
        )
    full = shape or fitting(spec, len(data) // size)
    made = Tensor(spec.name, spec.datatype, full, data)
    tensors.check(made)
    return made


def _loaded(path: str, data: bytes) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path} cannot be read: {error}", "save it with numpy.save, without objects") from None
    return array


def _from_array(array: NDArray[Any], spec: TensorSpec, shape: tuple[int, ...] | None) -> Tensor:
    """An array keeps its shape; a batch dimension of 1 is added if that is all it lacks."""
    if shape is not None:
        return shaped(array, spec, shape)
    lacks_batch = array.ndim == len(spec.shape) - 1 and spec.shape[0] in (-1, 1)
    return _typed(array[np.newaxis] if lacks_batch else array, spec)


def shaped(array: NDArray[Any], spec: TensorSpec, shape: tuple[int, ...] | None) -> Tensor:
    """The array as a tensor with this shape, or with the one that fits."""
    full = shape if shape is not None else fitting(spec, array.size)
    if math.prod(full) != array.size:
        raise UserError(
            f"tensor {spec.name}: the shape {shown(full)} is {math.prod(full)} elements; {array.size} were given",
            "give that many, or another {data.shape}",
        )
    return _typed(array.reshape(full), spec)


def _typed(array: NDArray[Any], spec: TensorSpec) -> Tensor:
    try:
        return tensors.from_numpy(spec.name, array, spec.datatype)
    except UserError as error:
        raise UserError(error.what, f"the model expects {spec.datatype} {shown(spec.shape)}") from None


def fitting(spec: TensorSpec, count: int) -> tuple[int, ...]:
    """The shape in which the model takes `count` elements: the last open dimension takes them all, the others are 1."""
    open_dimensions = [index for index, size in enumerate(spec.shape) if size < 0]
    shape = [1 if size < 0 else size for size in spec.shape]
    known = math.prod(shape)
    if open_dimensions and known and count % known == 0:
        shape[open_dimensions[-1]] = count // known
    if math.prod(shape) != count:
        raise UserError(
            f"tensor {spec.name}: the model expects the shape {shown(spec.shape)}; {count} elements were given",
            "give a number that fits, or {data.shape} for " + spec.name,
        )
    return tuple(shape)
