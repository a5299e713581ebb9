"""Converts ModelInferRequest to an Inference, and outputs to a ModelInferResponse.

Raw contents of large messages are cut out of the request's bytes, and those of responses are sent as they are: protobuf
would copy each of them twice. Errors of the request itself are reported here, in Triton's words; `Models.submit` reports
mismatches with the model.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from inferometer.errors import UserError
from inferometer.serve.kserve.messages import Message, ModelInferRequest, ModelInferResponse
from inferometer.serve.models.registry import Models
from inferometer.serve.models.shared_memory import Regions
from inferometer.serve.models.types import (
    Inference,
    Output,
    Parameter,
    Parameters,
    Placed,
    Refused,
    Tensors,
    Unread,
    Wanted,
)
from inferometer.tensors import DATATYPES, Tensor, from_numpy
from inferometer.wire.failures import bounded

Data = bytes | memoryview
Raw = Sequence[Data]

_RAW_INPUT = 0x3A  # field 7, length-delimited
_CUT = 16 << 10
"""Message size from which cutting is faster than protobuf's copies."""
_MAX_FIELDS = 10_000
"""Maximum fields of a message that is cut, which takes some milliseconds."""
_MAX_TYPED = 64 << 20
"""Maximum size of everything except raw contents: protobuf needs many times as much memory for some of it."""


# --- the request's bytes ---------------------------------------------------------------------------------------------


def cut(data: Data) -> tuple[Data, Raw]:
    """Return the message without its raw contents, and those contents; a small message remains whole."""
    if len(data) < _CUT:
        return data, ()
    view = memoryview(data)
    raw: list[memoryview] = []
    rest: list[memoryview] = []
    at, end, begin = 0, len(data), 0
    try:
        for _ in range(_MAX_FIELDS):
            if at >= end:
                break
            field = at
            tag, at = _varint(data, at)
            size, start = _varint(data, at) if tag & 7 in (0, 2) else (_FIXED[tag & 7], at)
            at = start + size if tag & 7 != 0 else start
            if at > end or not tag >> 3:
                raise IndexError
            if tag == _RAW_INPUT:
                raw.append(view[start:at])
                rest.append(view[begin:field])
                begin = at
        else:
            raise _invalid(f"the message has more than {_MAX_FIELDS} fields")
    except (IndexError, KeyError):
        raise _not_valid("truncated or unsupported field") from None
    rest.append(view[begin:])
    size = sum(map(len, rest))
    if size > _MAX_TYPED:
        raise Refused(
            "RESOURCE_EXHAUSTED",
            f"the request has {size} bytes besides raw_input_contents; the server accepts at most {_MAX_TYPED}",
        )
    return b"".join(rest), raw


_FIXED = {1: 8, 5: 4}
"""Sizes of fields by wire type. (The obsolete groups are not supported.)"""


def _varint(data: Data, at: int) -> tuple[int, int]:
    """Return a number, and where it ends; raises IndexError if the data ends before it."""
    value = shift = 0
    while data[at] >= 0x80 and shift < 63:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | data[at] << shift, at + 1


def _not_valid(why: str) -> Refused:
    return Refused("INTERNAL", f"the message is not a valid ModelInferRequest: {bounded(why)}")


def parse(data: Data) -> Message:
    try:
        return ModelInferRequest.FromString(data)
    except DecodeError as error:
        raise _not_valid(str(error)) from None


def decode(models: Models, request: Message, raw: Raw, is_stream: bool) -> Inference:
    """Return the inference that a message requests; its callbacks and times are still to be set. `raw` are the contents
    that were cut out of it."""
    name, version = request.model_name, request.model_version
    if models.find(name, version).decoupled and not is_stream:
        raise Refused("UNIMPLEMENTED", "ModelInfer RPC doesn't support models with decoupled transaction policy")
    inputs, unread = _inputs(request, raw or request.raw_input_contents, models.regions)
    return Inference(
        name,
        inputs,
        answer=_ignore,
        ended=_ignore,
        arrived=0,
        version=version,
        id=request.id,
        wanted=_wanted(request.outputs) if request.outputs else (),
        parameters=_parameters(request.parameters) if request.parameters else _NO_PARAMETERS,
        unread=unread,
    )


def _ignore(_: object) -> None:
    pass


# --- requests that differ only in their ids and raw contents ----------------------------------------------------------

_Head = tuple[str, str, tuple[tuple[str, str, tuple[int, ...]], ...], tuple[Wanted, ...]]
"""The model, its version, the names, datatypes and shapes of the inputs, and the requested outputs."""
_MAX_CACHED, _MAX_HEAD = 1024, 1024
_requests: dict[bytes, _Head] = {}
"""By the encoded fields except the id and raw contents."""


def quick(models: Models, data: Data) -> Inference | None:
    """Return the same as `parse` and `decode` for a unary request that differs from an earlier one only in its id and raw
    contents; None for any other. Clients send the same head again and again, and comparing it is faster than parsing."""
    split = _split(data)
    head = _requests.get(split[0]) if split is not None else None
    if split is None or head is None:
        return None
    _, id, raw = split
    name, version, inputs, wanted = head
    if len(raw) != len(inputs) or models.find(name, version).decoupled:
        return None
    tensors = {}
    for i, (input, datatype, shape) in enumerate(inputs):
        tensors[input] = Tensor(input, datatype, shape, raw[i])
    try:
        text = id.decode() if id else ""
    except UnicodeDecodeError:
        return None
    return Inference(
        name, tensors, answer=_ignore, ended=_ignore, arrived=0, version=version, id=text, wanted=wanted,
        parameters=_NO_PARAMETERS, unread=_NOTHING_UNREAD,
    )  # fmt: skip


_NOTHING_UNREAD: dict[str, Unread] = {}


def remember(data: Data, one: Inference) -> None:
    """Let `quick` find the head of a request that was decoded, if it is simple."""
    split = None if one.parameters or one.unread else _split(data)
    if split is not None and len(split[0]) <= _MAX_HEAD and len(split[2]) == len(one.inputs):
        if len(_requests) >= _MAX_CACHED:
            _requests.clear()
        inputs = tuple((tensor.name, tensor.datatype, tensor.shape) for tensor in one.inputs.values())
        _requests[split[0]] = one.model, one.version, inputs, one.wanted


def _split(data: Data) -> tuple[bytes, bytes, list[bytes]] | None:  # noqa: PLR0911  (each is a reason)
    """Return the encoded fields in front of the raw contents, except the id; the id; and the raw contents. None unless
    the fields are in the order of their numbers, as all clients write them, and small."""
    if type(data) is not bytes or len(data) >= _CUT:
        return None
    at = before = after = head_end = 0
    end, id, raw = len(data), b"", []
    try:
        while at < end:
            tag, size, start = data[at], data[at + 1], at + 2
            if size >= 0x80:
                if data[start] >= 0x80:
                    return None
                size, start = size & 0x7F | data[start] << 7, start + 1
            stop = start + size
            if tag == _RAW_INPUT:
                raw.append(data[start:stop])
            elif raw or tag not in _SIZED:
                return None
            elif tag == _ID:
                if id or after > before:
                    return None
                id, before, after = data[start:stop], at, stop
            at = stop
            if not raw:
                head_end = stop
    except IndexError:
        return None
    if at != end or not raw:
        return None
    return data[:before] + data[after:head_end] if id else data[:head_end], id, raw


_ID = 0x1A
_SIZED = frozenset((0x0A, 0x12, _ID, 0x22, 0x2A, 0x32))


# --- inputs ----------------------------------------------------------------------------------------------------------


def _inputs(request: Message, raw: Raw, regions: Regions) -> tuple[Tensors, dict[str, Unread]]:
    """Return the inputs (raw, typed, or in shared memory), and those whose data is still to be read. Raw contents are
    in the order of the inputs that are not in shared memory."""
    tensors: Tensors = {}
    unread: dict[str, Unread] = {}
    used, count, model = 0, len(raw), request.model_name
    for one in request.inputs:
        name, datatype, shape = one.name, one.datatype, tuple(one.shape)
        placed = _placed(one.parameters, name) if one.parameters else None
        data: Data = b""
        if placed is not None:
            region = regions.find(placed.region, placed.byte_size, placed.offset)
            unread[name] = Unread(region.read, region.byte_size)
        elif count:
            if used == count:
                raise _invalid(
                    "expected raw_input_contents for each input that is not in shared memory of model "
                    f"'{model}', but there are {count}: none for '{name}'"
                )
            if one.HasField("contents"):
                raise _invalid(
                    f"contents field must not be specified when using raw_input_contents for '{name}' for model '{model}'"
                )
            data, used = raw[used], used + 1
        elif contents := one.contents.ListFields():
            data = _typed(name, datatype, contents, model)
        elif 0 not in shape:
            raise _invalid(f"unable to find data for input tensor '{name}' for model '{model}' in request.")
        if name in tensors:
            raise _invalid(f"[request id: {request.id or '<id_unknown>'}] input '{name}' already exists in request")
        tensors[name] = Tensor(name, datatype, shape, data)
    if used < count:
        raise _invalid(
            f"there are {count} raw_input_contents, but model '{model}' is given {used} inputs that are not in shared memory"
        )
    return tensors, unread


_TYPES = {
    "bool_contents": ("BOOL",),
    "int_contents": ("INT32", "INT16", "INT8"),
    "int64_contents": ("INT64",),
    "uint_contents": ("UINT32", "UINT16", "UINT8"),
    "uint64_contents": ("UINT64",),
    "fp32_contents": ("FP32",),
    "fp64_contents": ("FP64",),
    "bytes_contents": ("BYTES",),
}


def _typed(name: str, datatype: str, contents: Sequence[tuple[Any, Sequence[Any]]], model: str) -> Data:
    """Return typed contents, the non-empty fields of an InferTensorContents, as raw ones."""
    for field, _ in contents:
        if datatype not in _TYPES[field.name]:
            raise _invalid(
                f"unexpected explicit tensor data for input tensor '{name}' for model '{model}' of type "
                f"'{_TYPES[field.name][0]}', expected datatype '{datatype}'"
            )
    field, values = contents[0]
    dtype = DATATYPES[datatype].dtype
    try:
        if dtype is not None:
            wide = np.int64 if field.name in ("int_contents", "uint_contents") else dtype
            return from_numpy(name, np.array(values, wide), datatype).data
        strings = np.empty(len(values), object)
        strings[:] = values
        return from_numpy(name, strings, "BYTES").data
    except UserError as error:
        raise _invalid(f"{error.what}, the datatype of input '{name}' for model '{model}'") from None


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


def _parameters(field: Any) -> Parameters:
    return {name: _parameter(name, one) for name, one in field.items()}


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
    """Return a tensor's location in shared memory, or None."""
    if "shared_memory_region" not in parameters:
        return None
    if "shared_memory_byte_size" not in parameters:
        raise _invalid(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
            f"'{tensor}'"
        )
    region = _of_kind(parameters, "shared_memory_region", "string_param", tensor)
    size = _of_kind(parameters, "shared_memory_byte_size", "int64_param", tensor)
    has_offset = "shared_memory_offset" in parameters
    return Placed(
        region, size, _of_kind(parameters, "shared_memory_offset", "int64_param", tensor) if has_offset else 0
    )


def _of_kind(parameters: Any, name: str, kind: str, tensor: str) -> Any:
    if parameters[name].WhichOneof("parameter_choice") != kind:
        raise _invalid(f"invalid value type for '{name}' parameter for tensor '{tensor}', expected {kind}.")
    return getattr(parameters[name], kind)


def _wanted(field: Iterable[Message]) -> tuple[Wanted, ...]:
    """Return the requested outputs, each once."""
    outputs: dict[str, Wanted] = {}
    for one in field:
        outputs.setdefault(one.name, _output(one))
    return tuple(outputs.values())


def _output(one: Message) -> Wanted:
    if not one.parameters:
        return Wanted(one.name)
    placed, classes = _placed(one.parameters, one.name), 0
    if "classification" in one.parameters:
        count = one.parameters["classification"]
        if count.WhichOneof("parameter_choice") != "int64_param":
            raise _invalid("invalid value type for 'classification' parameter, expected int64_param")
        classes = count.int64_param
        if classes < 0:
            raise _invalid("invalid value for 'classification' parameter, expected >= 0")
        if classes and placed is not None:
            raise _invalid(
                f"output '{one.name}': classes cannot be written to shared memory; request only one of the two"
            )
    return Wanted(one.name, classes, placed)


def _invalid(message: str) -> Refused:
    return Refused("INVALID_ARGUMENT", message)


# --- responses -------------------------------------------------------------------------------------------------------

_RAW_OUTPUT, _STREAMED = b"\x32", b"\x12"  # field 6 of ModelInferResponse, field 2 of ModelStreamInferResponse
_heads: dict[tuple[Any, ...], tuple[bytes, bytes]] = {}
"""The encoded model and version, and the encoded outputs, by what they depend on."""


def response(one: Inference, outputs: Sequence[Output], final: bool | None = None) -> tuple[Data, ...]:
    """Return the parts of a ModelInferResponse; `final` is the stream's final-response flag."""
    key = (
        one.model,
        one.version,
        final,
        *[(output.tensor.name, output.tensor.datatype, output.tensor.shape) for output in outputs],
    )
    head = _heads.get(key)
    if head is None:
        if len(_heads) >= _MAX_CACHED:
            _heads.clear()
        head = _heads[key] = _encode(one, outputs, final)
    before, after = head
    id = one.id.encode() if one.id else b""
    if len(outputs) == 1:
        data = flat(outputs[0].tensor.data)
        middle = (
            b"\x1a%b%b%b\x32%b" % (length(len(id)), id, after, length(len(data)))
            if id
            else after + _RAW_OUTPUT + length(len(data))
        )
        return before + middle, data
    parts: list[Data] = [before, b"\x1a" + length(len(id)) + id if id else b"", after]
    for output in outputs:
        data = flat(output.tensor.data)
        parts += (_RAW_OUTPUT + length(len(data)), data)
    return tuple(parts)


def _encode(one: Inference, outputs: Sequence[Output], final: bool | None) -> tuple[bytes, bytes]:
    model, rest = ModelInferResponse(model_name=one.model, model_version=one.version), ModelInferResponse()
    if final is not None:
        rest.parameters[FINAL].bool_param = final
    for output in outputs:
        tensor = output.tensor
        rest.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    return model.SerializeToString(), rest.SerializeToString()


def in_stream(parts: tuple[Data, ...]) -> tuple[Data, ...]:
    """Return the parts of a ModelStreamInferResponse with this ModelInferResponse."""
    return _STREAMED + length(sum(map(len, parts))), *parts


def length(size: int) -> bytes:
    """Encode a varint."""
    if size < 0x80:
        return _ONE_BYTE[size]
    encoded = bytearray()
    while size >= 0x80:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    encoded.append(size)
    return bytes(encoded)


_ONE_BYTE = [bytes((size,)) for size in range(0x80)]


def flat(data: Data) -> Data:
    """Return a view whose length is its size in bytes."""
    if isinstance(data, memoryview) and (data.itemsize != 1 or data.ndim != 1):
        return data.cast("B")
    return data
