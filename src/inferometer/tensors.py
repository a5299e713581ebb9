"""Tensors of KServe v2: a name, a datatype, a shape, and raw bytes.

The bytes have the same format in the binary tensor data extension (HTTP) and in gRPC's raw contents: little-endian,
row-major, without padding. An element of BYTES is its length in 4 bytes, followed by its bytes. Functions here convert them
to and from numpy arrays and JSON. They raise UserError with what was expected and what was given when a value does not fit.
"""

import base64
import math
import struct
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer import memory
from inferometer.errors import SEND_LESS, UserError
from inferometer.units import format_bytes


class Tensor(msgspec.Struct, frozen=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview
    """A view if the tensor is part of a larger buffer (the reference server reads tensors from a request without copying)."""


class TensorSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model's metadata about one of its tensors; -1 is a dimension of any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False
    """Requests may omit it."""


class Datatype(msgspec.Struct, frozen=True):
    size: int
    """Bytes per element; 0 if it varies (BYTES)."""
    dtype: np.dtype[Any] | None
    """The numpy type; None if there is none (BF16, BYTES)."""


DATATYPES = {
    "BOOL": Datatype(1, np.dtype("?")),
    "UINT8": Datatype(1, np.dtype("u1")),
    "UINT16": Datatype(2, np.dtype("<u2")),
    "UINT32": Datatype(4, np.dtype("<u4")),
    "UINT64": Datatype(8, np.dtype("<u8")),
    "INT8": Datatype(1, np.dtype("i1")),
    "INT16": Datatype(2, np.dtype("<i2")),
    "INT32": Datatype(4, np.dtype("<i4")),
    "INT64": Datatype(8, np.dtype("<i8")),
    "FP16": Datatype(2, np.dtype("<f2")),
    "BF16": Datatype(2, None),
    "FP32": Datatype(4, np.dtype("<f4")),
    "FP64": Datatype(8, np.dtype("<f8")),
    "BYTES": Datatype(0, None),
}

_BY_DTYPE = {kind.dtype: name for name, kind in DATATYPES.items() if kind.dtype is not None}
_NOT_IN_JSON = ("FP16", "BF16")
BASE64 = "base64"
"""The `content_type` of BYTES whose elements in JSON are base64."""
_LENGTH = struct.Struct("<I")
_FLOAT = np.dtype("<f4")  # what BF16 is widened to


# --- shapes and sizes ------------------------------------------------------------------------------------------------


def elements(shape: Sequence[int]) -> int:
    """Number of elements of a tensor with this shape; the shape of a scalar is ()."""
    if any(size < 0 for size in shape):
        raise UserError(f"the shape {shown(shape)} has a dimension of any size", "give a size for every dimension")
    return math.prod(shape)


def shown(shape: Sequence[int]) -> str:
    """Format a shape for a message, truncated if it is long."""
    sizes = [f"{size:.20}" for size in map(str, shape[:12])]
    return f"[{', '.join(sizes)}{', ...' if len(shape) > 12 else ''}]"


def datatype_of(name: str, datatype: str) -> Datatype:
    """Look up a datatype. `name` is the tensor that the error message is about."""
    if datatype not in DATATYPES:
        raise UserError(
            f"tensor {name}: the datatype {datatype!r:.60} is not known", f"use one of {', '.join(DATATYPES)}"
        )
    return DATATYPES[datatype]


GRPC_MESSAGE = 2**31 - 1
"""Maximum size in bytes of a message, for protobuf and most servers."""
_COPIES = 4
"""Approximate number of copies of a tensor in memory while it is encoded."""
_WHILE_GENERATED = {"BYTES": 370, "BF16": 28, "FP16": 20, "BOOL": 8, "UINT8": 6, "INT8": 6}
"""Approximate bytes per element while random tensors are generated, for the datatypes for which this is more: strings are
Python objects at that point, and narrow numbers are converted from wider ones."""
_WHILE_JSON = {"FP32": 70, "FP64": 80}
_INTEGER_WHILE_JSON = 18
"""The same while JSON is encoded, when numbers are Python objects: one per float, but small integers share theirs."""
_BYTES_ELEMENT = 12
"""Approximate size of a generated string."""
_LARGEST_SIZE = 2**63 - 1


def size_of(spec: TensorSpec) -> int:
    """Size in bytes of a tensor with this full shape; an estimate for BYTES."""
    return elements(spec.shape) * (datatype_of(spec.name, spec.datatype).size or _BYTES_ELEMENT)


def check_room(
    specs: Sequence[TensorSpec], where: str, in_grpc_message: bool, as_json: bool = False, zeros: bool = False
) -> None:
    """Raise UserError when a request with tensors of these full shapes would not fit into memory, or into a gRPC message.

    This is checked before anything is allocated.
    """
    sizes = [size_of(spec) for spec in specs]
    needs = [_need(spec, as_json, zeros) for spec in specs]
    too_long = next((spec for spec in specs if max(spec.shape, default=0) > _LARGEST_SIZE), None)
    if too_long is not None:
        raise UserError(
            f"{where}: {too_long.name}: {shown(too_long.shape)} has a size that does not fit into 64 bits", "lower it"
        )
    total, need, available = sum(sizes), sum(needs), memory.limit()
    is_too_long = in_grpc_message and total > GRPC_MESSAGE
    if need <= available and not is_too_long:
        return
    size, _, largest = max(zip(sizes, needs, specs, strict=True), key=lambda one: one[0] if is_too_long else one[1])
    with_others = f", {_format_size(total)} with the other inputs" if total > size else ""
    limit = (
        "a gRPC message holds at most 2 GiB"
        if is_too_long
        else f"building the request needs about {_format_size(need)} of memory, but only {format_bytes(available)} is available"
    )
    raise UserError(
        f"{where}: {largest.name}: {largest.datatype} {shown(largest.shape)} is {_format_size(size)}{with_others}; {limit}",
        SEND_LESS if need <= available else "use a smaller shape or a smaller batch",
    )


def _need(spec: TensorSpec, as_json: bool, zeros: bool) -> int:
    """Approximate peak of the memory that a tensor takes while it is generated and encoded, in bytes."""
    generated = 0 if zeros else _WHILE_GENERATED.get(spec.datatype, 0)
    encoded = _WHILE_JSON.get(spec.datatype, _INTEGER_WHILE_JSON) if as_json else 0
    return max(_COPIES * size_of(spec), elements(spec.shape) * max(generated, encoded))


def _format_size(size: int) -> str:
    return format_bytes(size) if size < 2**60 else "more than 2^60 bytes"


def to_send(specs: Sequence[TensorSpec], wanted: Collection[str]) -> list[TensorSpec]:
    """The inputs that a request sends: those whose names are in `wanted`.

    If there are none, every input is optional: the inputs are alternatives, such as an image as a file or as pixels. Then
    one of them is sent, a numeric one if possible.
    """
    return [one for one in specs if one.name in wanted] or sorted(specs, key=lambda one: one.datatype == "BYTES")[:1]


def check(tensor: Tensor) -> None:
    """Raise UserError when the size of the data does not match the datatype and the shape."""
    kind, count = datatype_of(tensor.name, tensor.datatype), elements(tensor.shape)
    if tensor.datatype == "BYTES":
        _split(tensor, count)
    elif len(tensor.data) != count * kind.size:
        raise UserError(
            f"tensor {tensor.name}: {tensor.datatype} {shown(tensor.shape)} is {count * kind.size} bytes, "
            f"but {len(tensor.data)} were given"
        )


def misfit(tensor: Tensor, spec: TensorSpec) -> str:
    """Why `tensor` does not match `spec`; "" if it does."""
    if tensor.name != spec.name:
        return f"the model expects a tensor called {spec.name}; {tensor.name} was given"
    if tensor.datatype != spec.datatype:
        return f"tensor {spec.name}: the model expects {spec.datatype}; {tensor.datatype} was given"
    same_rank = len(tensor.shape) == len(spec.shape)
    if not same_rank or any(want not in (-1, size) for want, size in zip(spec.shape, tensor.shape, strict=True)):
        return f"tensor {spec.name}: the model expects the shape {shown(spec.shape)}; {shown(tensor.shape)} was given"
    return ""


# --- numpy -----------------------------------------------------------------------------------------------------------


def from_numpy(name: str, array: NDArray[Any], datatype: str | None = None) -> Tensor:
    """Convert `array` to a tensor of `datatype`, by default the array's own type.

    Raises UserError when a value does not fit. Floats may be rounded to a narrower type; integers must stay exact.
    """
    array = np.asarray(array)
    if datatype is None:
        datatype = _datatype_for(name, array)
    kind, shape = datatype_of(name, datatype), array.shape
    if datatype == "BYTES":
        return Tensor(name, datatype, shape, _join(name, array.reshape(-1).tolist()))
    if datatype == "BF16":
        tensor = Tensor(name, datatype, shape, _bfloat16(name, _cast(name, array, _FLOAT, datatype)))
    else:
        assert kind.dtype is not None
        tensor = Tensor(name, datatype, shape, _cast(name, array, kind.dtype, datatype).tobytes())
    if array.dtype.kind in "iu" and (kind.dtype or _FLOAT).kind == "f":
        _check_exact(array.reshape(-1), to_numpy(tensor).reshape(-1), tensor)
    return tensor


def to_numpy(tensor: Tensor) -> NDArray[Any]:
    """Convert to a numpy array: BF16 becomes float32, BYTES becomes objects of type bytes."""
    check(tensor)
    array: NDArray[Any]
    if tensor.datatype == "BYTES":
        array = np.empty(elements(tensor.shape), dtype=object)
        array[:] = _split(tensor, array.size)
    elif tensor.datatype == "BF16":
        array = (np.frombuffer(tensor.data, "<u2").astype("<u4") << 16).view(_FLOAT)
    elif tensor.datatype == "BOOL":  # any byte other than 0 is true
        array = np.frombuffer(tensor.data, np.uint8) != 0
    else:
        array = np.frombuffer(tensor.data, DATATYPES[tensor.datatype].dtype)
    try:
        return array.reshape(tensor.shape)
    except (ValueError, OverflowError) as error:  # too many dimensions, or no elements but absurd sizes
        raise UserError(
            f"tensor {tensor.name}: numpy has no arrays of the shape {shown(tensor.shape)}: {error}"
        ) from None


def _datatype_for(name: str, array: NDArray[Any]) -> str:
    if array.dtype.kind in "OSU":
        return "BYTES"
    datatype = _BY_DTYPE.get(array.dtype.newbyteorder("<"))
    if datatype is None:
        raise UserError(f"tensor {name}: numpy's {array.dtype} has no equivalent in KServe v2", "give the datatype")
    return datatype


def _cast(name: str, array: NDArray[Any], dtype: np.dtype[Any], datatype: str) -> NDArray[Any]:
    """Convert `array` to another type. Raises UserError when a value would change, except by rounding of floats."""
    if array.dtype.kind not in "?buif":
        raise UserError(f"tensor {name}: {array.dtype} values cannot become {datatype}")
    if dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            cast = array.astype(dtype)
        lost = np.isfinite(array) & ~np.isfinite(cast)
    elif array.dtype.kind == "f":
        raise UserError(f"tensor {name}: {array.dtype} values cannot become {datatype}", "give integers")
    else:
        cast = array.astype(dtype)
        lost = (cast != array) | ((cast < 0) != (array < 0))
    if lost.any():
        raise UserError(f"tensor {name}: {array[lost].flat[0]} does not fit into {datatype}")
    return cast


def _check_exact(integers: NDArray[Any], floats: NDArray[Any], tensor: Tensor) -> None:
    """Raise UserError when an integer was rounded in its conversion to floats."""
    floats = floats.astype(np.float64)
    # A float that was rounded up to this is too large to convert back.
    too_large = 2.0 ** (8 * integers.dtype.itemsize - (integers.dtype.kind == "i"))
    convertible = floats < too_large
    lost = ~convertible | (np.where(convertible, floats, 0).astype(integers.dtype) != integers)
    if lost.any():
        raise UserError(
            f"tensor {tensor.name}: {integers[lost][0]} does not fit into {tensor.datatype}: the nearest is {floats[lost][0]:.0f}",
            "give floats if rounding is acceptable",
        )


def _bfloat16(name: str, array: NDArray[Any]) -> bytes:
    """Round float32 to the nearest bfloat16, ties to even; NaN stays NaN."""
    flat = array.reshape(-1)
    bits = flat.view("<u4")
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16
    lost = np.isfinite(flat) & (rounded & 0x7F80 == 0x7F80)
    if lost.any():
        raise UserError(f"tensor {name}: {flat[lost][0]} does not fit into BF16")
    quiet = (bits >> 16) | 0x40
    return np.where(np.isnan(flat), quiet, rounded).astype("<u2").tobytes()


# --- BYTES -----------------------------------------------------------------------------------------------------------


def _join(name: str, values: Iterable[Any]) -> bytes:
    parts: list[bytes] = []
    for value in values:
        try:
            raw = value.encode() if isinstance(value, str) else value
        except UnicodeEncodeError:
            raise UserError(
                f"tensor {name}: {value!r:.60} has half a surrogate pair, which is not valid text"
            ) from None
        if not isinstance(raw, bytes):
            raise UserError(f"tensor {name}: {value!r:.60} is neither text nor bytes, which BYTES requires")
        parts += (_LENGTH.pack(len(raw)), raw)
    return b"".join(parts)


def _split(tensor: Tensor, count: int) -> list[bytes]:
    data, position = tensor.data, 0
    values: list[bytes] = []
    while position + 4 <= len(data) and len(values) < count:
        end = position + 4 + _LENGTH.unpack_from(data, position)[0]
        if end > len(data):
            break
        values.append(bytes(data[position + 4 : end]))
        position = end
    if len(values) != count or position != len(data):
        raise UserError(
            f"tensor {tensor.name}: BYTES {shown(tensor.shape)} is {count} elements, but the {len(data)} bytes given "
            f"contain {len(values)} complete elements and {len(data) - position} more bytes"
        )
    return values


def count_bytes(data: bytes) -> int:
    """The number of elements in the data of a BYTES tensor."""
    count = position = 0
    while position + 4 <= len(data):
        position += 4 + _LENGTH.unpack_from(data, position)[0]
        count += 1
    return count


# --- JSON ------------------------------------------------------------------------------------------------------------


def to_json(tensor: Tensor) -> list[Any]:
    """Convert to a flat list of the elements, row-major, for a JSON request."""
    if tensor.datatype in _NOT_IN_JSON:
        raise UserError(
            f"tensor {tensor.name}: {tensor.datatype} cannot be sent as JSON: the protocol does not define it, and Triton "
            "rejects it",
            "send binary tensors (api: kserve) or use gRPC",
        )
    array = to_numpy(tensor)
    if tensor.datatype == "BYTES":
        try:
            return [raw.decode() for raw in array.reshape(-1)]
        except UnicodeDecodeError:
            raise UserError(
                f"tensor {tensor.name}: an element is not UTF-8 text, which JSON requires for BYTES",
                "send binary tensors (api: kserve) or use gRPC",
            ) from None
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise UserError(
            f"tensor {tensor.name}: JSON has neither infinite numbers nor NaN",
            "send binary tensors (api: kserve) or use gRPC",
        )
    values: list[Any] = array.reshape(-1).tolist()
    return values


def json_fields(tensor: Tensor) -> dict[str, Any]:
    """The `data` of a tensor in JSON. BYTES that are not text, such as images, are base64, which its `parameters` say."""
    if tensor.datatype == "BYTES":
        elements = to_numpy(tensor).reshape(-1)
        with suppress(UnicodeDecodeError):
            return {"data": [raw.decode() for raw in elements]}
        return {"parameters": {"content_type": BASE64}, "data": [base64.b64encode(raw).decode() for raw in elements]}
    return {"data": to_json(tensor)}


def from_json(name: str, datatype: str, shape: Sequence[int], data: Any, content_type: object = "") -> Tensor:
    """Create a tensor from a flat or a nested list. A null among floats is NaN, because some servers write it so."""
    kind, count = datatype_of(name, datatype), elements(shape)
    flat = _flat(data) if isinstance(data, list | tuple) else [data]
    if len(flat) != count:
        raise UserError(f"tensor {name}: the shape {shown(shape)} is {count} elements, but {len(flat)} were given")
    if datatype == "BYTES":
        return Tensor(
            name, datatype, tuple(shape), _join(name, _decoded(name, flat) if content_type == BASE64 else flat)
        )
    dtype = kind.dtype or _FLOAT
    array = (_floats if dtype.kind == "f" else _integers)(name, datatype, flat)
    return Tensor(name, datatype, tuple(shape), from_numpy(name, array, datatype).data)


def _decoded(name: str, flat: list[Any]) -> list[bytes]:
    try:
        return [base64.b64decode(value, validate=True) for value in flat]
    except (TypeError, ValueError):
        raise UserError(f"tensor {name}: its content_type is {BASE64}, but an element is not base64") from None


def _flat(data: Sequence[Any]) -> list[Any]:
    """The elements of nested lists, in order. Without recursion, because the depth comes from the network."""
    flat: list[Any] = []
    stack = [iter(data)]
    while stack:
        for item in stack[-1]:
            if isinstance(item, list | tuple):
                stack.append(iter(item))
                break
            flat.append(item)
        else:
            stack.pop()
    return flat


def _floats(name: str, datatype: str, flat: list[Any]) -> NDArray[Any]:
    for value in flat:
        if value is not None and type(value) not in (int, float):
            raise UserError(f"tensor {name}: {value!r:.60} is not a number, which {datatype} requires")
    try:
        return np.array([math.nan if value is None else value for value in flat], dtype=np.float64)
    except OverflowError:
        raise UserError(f"tensor {name}: a number does not fit into {datatype}") from None


def _integers(name: str, datatype: str, flat: list[Any]) -> NDArray[Any]:
    """Integers and booleans as a type that holds them all, so that from_numpy can report the one that does not fit."""
    allowed = (bool, int) if datatype == "BOOL" else (int,)
    for value in flat:
        if type(value) not in allowed:
            raise UserError(f"tensor {name}: {value!r:.60} is not a value of {datatype}")
        if not -(2**63) <= value < 2**64:
            raise UserError(f"tensor {name}: {value!r:.60} does not fit into {datatype}")
    if any(value >= 2**63 for value in flat):
        negative = next((value for value in flat if value < 0), None)
        if negative is not None:
            raise UserError(f"tensor {name}: {negative} and {max(flat)} do not both fit into {datatype}")
        return np.array(flat, dtype=np.uint64)
    return np.array(flat, dtype=np.int64)


# --- generated -------------------------------------------------------------------------------------------------------


def zeros(name: str, datatype: str, shape: Sequence[int]) -> Tensor:
    """A tensor of zeros, false, or empty strings."""
    size = datatype_of(name, datatype).size or _LENGTH.size
    return Tensor(name, datatype, tuple(shape), bytes(elements(shape) * size))


def filled(name: str, datatype: str, shape: Sequence[int], value: bool | int | float | str) -> Tensor:
    """A tensor of which every element is `value`."""
    one = from_json(name, datatype, (1,), [value])
    return Tensor(name, datatype, tuple(shape), bytes(one.data) * elements(shape))


def from_bytes(name: str, shape: Sequence[int], words: Iterable[bytes]) -> Tensor:
    """A tensor of BYTES."""
    return Tensor(name, "BYTES", tuple(shape), _join(name, words))
