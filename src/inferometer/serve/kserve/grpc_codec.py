"""ModelInferRequest to the pieces of an Inference, and outputs to a ModelInferResponse.

Raw contents are cut out of a request's bytes and put behind an answer's by hand: protobuf would copy each of them twice.
All that a request can do wrong by itself is refused here, in Triton's words; what the model has to say against it is said
by `Models.submit`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from inferometer.errors import UserError
from inferometer.serve.kserve.messages import Message, ModelInferRequest, ModelInferResponse
from inferometer.serve.models.regions import Regions
from inferometer.serve.models.types import Output, Parameter, Parameters, Placed, Refused, Tensors, Wanted
from inferometer.tensors import DATATYPES, Tensor, from_numpy
from inferometer.wire.failures import bounded

Raw = Sequence[bytes | memoryview]

_RAW_INPUT = 0x3A  # field 7, length-delimited
_RAW_OUTPUT = 0x32  # field 6
_INFER_RESPONSE = 0x12  # field 2 of ModelStreamInferResponse
_LARGE = 16 << 10
"""Bytes of a message from which on cutting by hand is faster than protobuf's copies."""


# --- the request's bytes ---------------------------------------------------------------------------------------------


def parse(data: bytes) -> tuple[Message, Raw]:
    """The request, and its raw contents."""
    try:
        if len(data) < _LARGE:
            request = ModelInferRequest.FromString(data)
            return request, request.raw_input_contents
        rest, raw = _cut(data)
        return ModelInferRequest.FromString(rest), raw
    except (DecodeError, IndexError) as error:
        raise Refused("INTERNAL", f"the message is no ModelInferRequest: {bounded(str(error))}") from None


def _cut(data: bytes) -> tuple[bytes, list[memoryview]]:
    """The message without its raw contents, and those. A field of another kind than these messages have ends the cutting."""
    view, place, end = memoryview(data), 0, len(data)
    rest: list[memoryview] = []
    raw: list[memoryview] = []
    while place < end and data[place] & 7 == 2 and data[place] < 0x80:
        size, start = _varint(data, place + 1)
        after = start + size
        if after > end:
            break
        if data[place] == _RAW_INPUT:
            raw.append(view[start:after])
        else:
            rest.append(view[place:after])
        place = after
    if place < end:  # left to protobuf: it knows what is malformed and what is only unknown
        whole = ModelInferRequest.FromString(data)
        return data[:0].join(rest) + data[place:], [memoryview(one) for one in whole.raw_input_contents]
    return b"".join(rest), raw


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise IndexError("a length has no end")


# --- inputs ----------------------------------------------------------------------------------------------------------


def inputs(request: Message, raw: Raw, regions: Regions) -> Tensors:
    """Raw, typed, or in shared memory. The raw ones come in the order of those inputs that are not in shared memory."""
    found: Tensors = {}
    given, count = 0, len(raw)
    for one in request.inputs:
        name, datatype, shape = one.name, one.datatype, tuple(one.shape)
        placed = _placed(one.parameters, name) if one.parameters else None
        data: bytes | memoryview
        if placed is not None:
            data = regions.read(placed.region, placed.byte_size, placed.offset)
        elif count:
            if given == count:
                raise _invalid(
                    f"expected raw_input_contents for each input that is not in shared memory of model "
                    f"'{request.model_name}', but there are {count}: none for '{name}'"
                )
            if one.HasField("contents"):
                raise _invalid(
                    f"contents field must not be specified when using raw_input_contents for '{name}' "
                    f"for model '{request.model_name}'"
                )
            data, given = raw[given], given + 1
        else:
            data = _typed(one, request.model_name)
        if name in found:
            raise _invalid(f"[request id: {request.id or '<id_unknown>'}] input '{name}' already exists in request")
        found[name] = Tensor(name, datatype, shape, data)
    if given < count:
        raise _invalid(
            f"there are {count} raw_input_contents, but model '{request.model_name}' is given {given} inputs that are not "
            "in shared memory"
        )
    return found


_FIELDS = {
    "bool_contents": ("BOOL",),
    "int_contents": ("INT32", "INT16", "INT8"),
    "int64_contents": ("INT64",),
    "uint_contents": ("UINT32", "UINT16", "UINT8"),
    "uint64_contents": ("UINT64",),
    "fp32_contents": ("FP32",),
    "fp64_contents": ("FP64",),
    "bytes_contents": ("BYTES",),
}


def _typed(one: Message, model: str) -> bytes | memoryview:
    """The elements of the one field that is filled, as raw bytes."""
    filled = [field.name for field, _ in one.contents.ListFields()]
    if not filled:
        if 0 in one.shape:
            return b""
        raise _invalid(f"unable to find data for input tensor '{one.name}' for model '{model}' in request.")
    for field in filled:
        if one.datatype not in _FIELDS[field]:
            raise _invalid(
                f"unexpected explicit tensor data for input tensor '{one.name}' for model '{model}' of type "
                f"'{_FIELDS[field][0]}', expected datatype '{one.datatype}'"
            )
    values = getattr(one.contents, filled[0])
    dtype = DATATYPES[one.datatype].dtype
    try:
        if dtype is not None:
            wide = np.int64 if filled[0] in ("int_contents", "uint_contents") else dtype
            return from_numpy(one.name, np.array(values, wide), one.datatype).data
        array = np.empty(len(values), object)
        array[:] = values
        return from_numpy(one.name, array, "BYTES").data
    except UserError as error:
        raise _invalid(f"{error.what}, the datatype of input '{one.name}' for model '{model}'") from None


# --- parameters ------------------------------------------------------------------------------------------------------

_KINDS = {
    "sequence_id": ("int64_param", "uint64_param", "string_param"),
    "sequence_start": ("bool_param",),
    "sequence_end": ("bool_param",),
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param", "uint64_param"),
    "triton_enable_empty_final_response": ("bool_param",),
}
_NOT_NEGATIVE = ("priority", "timeout")
EMPTY_FINAL = "triton_enable_empty_final_response"
FINAL = "triton_final_response"
_NO_PARAMETERS: dict[str, Parameter] = {}


def parameters(request: Message) -> Parameters:
    if not request.parameters:
        return _NO_PARAMETERS
    return {name: _parameter(name, one) for name, one in request.parameters.items()}


def _parameter(name: str, one: Message) -> Parameter:
    kind = one.WhichOneof("parameter_choice")
    if kind is None:
        raise _invalid(
            f"invalid value type for '{name}' parameter, expected int64_param, bool_param, string_param or double_param."
        )
    if name.startswith("triton_") and name != EMPTY_FINAL:
        raise _invalid(
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
            f"'triton_' are allowed: {EMPTY_FINAL}"
        )
    if kind not in _KINDS.get(name, (kind,)):
        raise _invalid(f"invalid value type for '{name}' parameter, expected {_KINDS[name][0]}.")
    value: Parameter = getattr(one, kind)
    if name in _NOT_NEGATIVE and isinstance(value, int) and value < 0:
        raise _invalid(f"invalid value for '{name}', expected value >= 0.")
    return value


def _placed(parameters: Any, tensor: str) -> Placed | None:
    """Where a tensor is to be found in, or to be written to, shared memory; None where it is not."""
    if "shared_memory_region" not in parameters:
        return None
    if "shared_memory_byte_size" not in parameters:
        raise _invalid(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
            f"'{tensor}'"
        )
    region = _of_kind(parameters, "shared_memory_region", "string_param", tensor)
    size = _of_kind(parameters, "shared_memory_byte_size", "int64_param", tensor)
    offset = (
        _of_kind(parameters, "shared_memory_offset", "int64_param", tensor)
        if "shared_memory_offset" in parameters
        else 0
    )
    return Placed(region, size, offset)


def _of_kind(parameters: Any, name: str, kind: str, tensor: str) -> Any:
    if parameters[name].WhichOneof("parameter_choice") != kind:
        raise _invalid(f"invalid value type for '{name}' parameter for tensor '{tensor}', expected {kind}.")
    return getattr(parameters[name], kind)


def wanted(request: Message) -> tuple[Wanted, ...]:
    """The outputs that were asked for, each once."""
    if not request.outputs:
        return ()
    found: dict[str, Wanted] = {}
    for one in request.outputs:
        found.setdefault(one.name, _wanted(one))
    return tuple(found.values())


def _wanted(one: Message) -> Wanted:
    if not one.parameters:
        return Wanted(one.name)
    placed, classes = _placed(one.parameters, one.name), 0
    if "classification" in one.parameters:
        asked = one.parameters["classification"]
        if asked.WhichOneof("parameter_choice") != "int64_param":
            raise _invalid("invalid value type for 'classification' parameter, expected int64_param")
        classes = asked.int64_param
        if classes < 0:
            raise _invalid("invalid value for 'classification' parameter, expected >= 0")
        if classes and placed is not None:
            raise _invalid(f"output '{one.name}': classes cannot be written into shared memory; ask for one of the two")
    return Wanted(one.name, classes, placed)


def _invalid(message: str) -> Refused:
    return Refused("INVALID_ARGUMENT", message)


# --- answers ---------------------------------------------------------------------------------------------------------


def head(
    model: str, version: str, id: str, outputs: Iterable[Output], times: tuple[int, int], final: bool | None = None
) -> Message:
    """A ModelInferResponse without its raw contents. `final`: what a stream says of whether more follow."""
    made = ModelInferResponse(model_name=model, model_version=version, id=id)
    said = made.parameters
    said["queue_ns"].int64_param, said["compute_ns"].int64_param = times
    if final is not None:
        said[FINAL].bool_param = final
    for output in outputs:
        tensor = output.tensor
        made.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    return made


def joined(made: Message, outputs: Iterable[Output]) -> bytes:
    """The whole ModelInferResponse, to the byte as protobuf would write it."""
    return b"".join(_parts(made, outputs))


def in_stream(made: Message, outputs: Iterable[Output]) -> bytes:
    """The same in a ModelStreamInferResponse."""
    parts = _parts(made, outputs)
    return b"".join((bytes((_INFER_RESPONSE,)), _length(sum(map(len, parts))), *parts))


def _parts(made: Message, outputs: Iterable[Output]) -> list[bytes | memoryview]:
    parts: list[bytes | memoryview] = [made.SerializeToString()]
    for output in outputs:
        data = flat(output.tensor.data)
        parts += (_RAW_OUTPUT_TAG, _length(len(data)), data)
    return parts


_RAW_OUTPUT_TAG = bytes((_RAW_OUTPUT,))


def _length(size: int) -> bytes:
    if size < 0x80:
        return _ONE_BYTE[size]
    made = bytearray()
    while size >= 0x80:
        made.append(size & 0x7F | 0x80)
        size >>= 7
    made.append(size)
    return bytes(made)


_ONE_BYTE = [bytes((size,)) for size in range(0x80)]


def flat(data: bytes | memoryview) -> bytes | memoryview:
    """So that its length is its bytes."""
    if isinstance(data, memoryview) and (data.itemsize != 1 or data.ndim != 1):
        return data.cast("B")
    return data
