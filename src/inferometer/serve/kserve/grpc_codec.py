"""Converts ModelInferRequest to an Inference, and outputs to a ModelInferResponse.

Raw contents are cut out of the request's bytes, and those of responses are sent as they are: protobuf would copy each of
them twice. Errors of the request itself are reported here, in Triton's words; `Models.submit` reports
mismatches with the model.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from inferometer.errors import UserError
from inferometer.serve.grpc.call import parse
from inferometer.serve.kserve import parameters
from inferometer.serve.kserve.messages import Message, ModelInferRequest, ModelInferResponse
from inferometer.serve.kserve.parameters import FINAL, TensorParameters, invalid
from inferometer.serve.models.shared_memory import Regions
from inferometer.serve.models.types import Inference, Output, Refused, Tensors, Unread, Wanted
from inferometer.tensors import Tensor
from inferometer.wire import varint
from inferometer.wire.kserve.grpc import CONTENTS, from_contents, parameters_of

Data = bytes | memoryview
Raw = Sequence[Data]

Cut = tuple[bytes, str, Raw]
"""A request without its id and raw contents; the id; the raw contents."""

_ID, _RAW_INPUT = 0x1A, 0x3A  # fields 3 and 7, length-delimited
_COMMON = frozenset((0x0A, 0x12, _ID, 0x22, 0x2A, 0x32, _RAW_INPUT))
_VIEWED = 16 << 10
"""Message size from which views are cheaper than copies."""
_MAX_FIELDS = 10_000
"""Maximum fields of a message, which take some milliseconds."""
_MAX_TYPED = 64 << 20
"""Maximum size of everything except raw contents: protobuf needs many times as much memory for some of it."""


# --- the request's bytes ---------------------------------------------------------------------------------------------


def cut(data: Data) -> Cut:  # noqa: PLR0912  (one loop, for speed)
    """Separate the id and the raw contents, which are views of a large message, from the rest."""
    view = data if len(data) < _VIEWED else memoryview(data)
    at = begin = 0
    end, id, raw, rest = len(data), b"", [], []
    try:
        for _ in range(_MAX_FIELDS):
            if at >= end:
                break
            tag, size, field = view[at], view[at + 1], at
            if size > 0x7F or tag not in _COMMON:
                tag, size, start = _long_field(view, field)
            else:
                start = at + 2
            at = start + size
            if tag == _RAW_INPUT:
                raw.append(view[start:at])
            elif tag == _ID:
                id = bytes(view[start:at])
            else:
                continue
            if begin < field:
                rest.append(view[begin:field])
            begin = at
        else:
            raise invalid(f"the message has more than {_MAX_FIELDS} fields")
        if at > end:
            raise IndexError
        if begin < end:
            rest.append(view[begin:])
        if end > _MAX_TYPED and (size := end - sum(map(len, raw))) > _MAX_TYPED:
            what = f"{size} bytes besides raw_input_contents; the server accepts at most {_MAX_TYPED}"
            raise Refused("RESOURCE_EXHAUSTED", f"the request has {what}")
        return b"".join(rest), id.decode() if id else "", raw
    except (IndexError, KeyError, UnicodeDecodeError):
        why = "the message is not a valid ModelInferRequest: truncated or unsupported field"
        raise Refused("INTERNAL", why) from None


def _long_field(data: Data, at: int) -> tuple[int, int, int]:
    """Return the tag of any field, its size, and where its value starts. (The obsolete groups are not supported.)"""
    tag, at = varint.read(data, at)
    value, start = varint.read(data, at) if tag & 7 in (0, 2) else (0, at)
    if not tag >> 3:
        raise IndexError
    return tag, {0: 0, 1: 8, 2: value, 5: 4}[tag & 7], start


# --- from a request to an inference -----------------------------------------------------------------------------------

_MAX_CACHED, _MAX_HEAD = 1024, 1024
_known: dict[bytes, tuple[str, str, tuple[tuple[str, str, tuple[int, ...], int], ...], tuple[Wanted, ...]]] = {}
"""The model, its version, the names, datatypes, shapes and sizes of the inputs, and the requested outputs of a request
without its id and raw contents. Clients send the same again and again, and comparing it is faster than parsing."""


def decode(parts: Cut, regions: Regions) -> Inference:
    """Return the inference that a message requests; its callbacks and times are still to be set."""
    head, id, raw = parts
    known = _known.get(head)
    if known is None or len(known[2]) != len(raw):
        return _parse(head, id, raw, regions)
    name, version, signature, wanted = known
    inputs = {}
    for i, (input, datatype, shape, size) in enumerate(signature):
        if len(raw[i]) != size:
            return _parse(head, id, raw, regions)
        inputs[input] = Tensor(input, datatype, shape, raw[i])
    return Inference(name, inputs, version=version, id=id, wanted=wanted, signature=signature)


def _parse(head: bytes, id: str, raw: Raw, regions: Regions) -> Inference:
    request = parse(ModelInferRequest, head)
    name, version = request.model_name, request.model_version
    inputs, unread = _inputs(request, id, raw, regions)
    wanted = _wanted(request.outputs) if request.outputs else ()
    given = parameters.check(parameters_of(request.parameters))
    if len(head) <= _MAX_HEAD and not unread and not given and len(raw) == len(inputs):
        if len(_known) >= _MAX_CACHED:
            _known.clear()
        signature = tuple((one.name, one.datatype, one.shape, len(one.data)) for one in inputs.values())
        _known[head] = name, version, signature, wanted
    return Inference(name, inputs, version=version, id=id, wanted=wanted, parameters=given, unread=unread)


# --- inputs and parameters -------------------------------------------------------------------------------------------


def _inputs(request: Message, id: str, raw: Raw, regions: Regions) -> tuple[Tensors, dict[str, Unread]]:
    """Return the inputs (raw, typed, or in shared memory), and those whose data is still to be read. Raw contents are
    in the order of the inputs that are not in shared memory."""
    tensors: Tensors = {}
    unread: dict[str, Unread] = {}
    used, count, model = 0, len(raw), request.model_name
    for one in request.inputs:
        name, datatype, shape = one.name, one.datatype, tuple(one.shape)
        placed = _of_tensor(one).placed if one.parameters else None
        data: Data = b""
        if placed is not None:
            region = regions.find(placed.region, placed.byte_size, placed.offset)
            unread[name] = Unread(region.read, region.byte_size)
        elif count:
            if used == count:
                what = f"each input that is not in shared memory of model '{model}'"
                raise invalid(f"expected raw_input_contents for {what}, but there are {count}: none for '{name}'")
            if one.HasField("contents"):
                why = "contents field must not be specified when using raw_input_contents"
                raise invalid(f"{why} for '{name}' for model '{model}'")
            data, used = raw[used], used + 1
        elif contents := one.contents.ListFields():
            data = _typed(name, datatype, contents, model)
        elif 0 not in shape:
            raise invalid(f"unable to find data for input tensor '{name}' for model '{model}' in request.")
        if name in tensors:
            raise invalid(f"[request id: {id or '<id_unknown>'}] input '{name}' already exists in request")
        tensors[name] = Tensor(name, datatype, shape, data)
    if used < count:
        but = f"model '{model}' is given {used} inputs that are not in shared memory"
        raise invalid(f"there are {count} raw_input_contents, but {but}")
    return tensors, unread


_TYPES = {field: datatype for datatype, field in CONTENTS.items()}
"""The largest datatype of each field."""


def _typed(name: str, datatype: str, contents: Sequence[tuple[Any, Sequence[Any]]], model: str) -> Data:
    """Return typed contents, the non-empty fields of an InferTensorContents, as raw ones."""
    for field, _ in contents:
        if CONTENTS.get(datatype) != field.name:
            types = f"of type '{_TYPES[field.name]}', expected datatype '{datatype}'"
            raise invalid(f"unexpected explicit tensor data for input tensor '{name}' for model '{model}' {types}")
    try:
        return from_contents(name, datatype, contents[0][1])
    except UserError as error:
        raise invalid(f"{error.what}, the datatype of input '{name}' for model '{model}'") from None


def _of_tensor(one: Message) -> TensorParameters:
    try:
        return msgspec.convert(parameters_of(one.parameters), TensorParameters)
    except msgspec.ValidationError as error:
        raise invalid(f"invalid parameters for tensor '{one.name}': {error}") from None


def _wanted(field: Iterable[Message]) -> tuple[Wanted, ...]:
    """Return the requested outputs, each once."""
    outputs: dict[str, Wanted] = {}
    for one in field:
        made = parameters.wanted(one.name, _of_tensor(one)) if one.parameters else Wanted(one.name)
        outputs.setdefault(one.name, made)
    return tuple(outputs.values())


# --- responses -------------------------------------------------------------------------------------------------------

_RAW_OUTPUT, _STREAMED = b"\x32", b"\x12"  # field 6 of ModelInferResponse, field 2 of ModelStreamInferResponse
_heads: dict[tuple[Any, ...], tuple[bytes, bytes]] = {}
"""The encoded model and version, and the encoded outputs, by what they depend on."""


def response(one: Inference, outputs: Sequence[Output], final: bool | None = None) -> tuple[Data, ...]:
    """Return the parts of a ModelInferResponse; `final` is the stream's final-response flag."""
    tensors = [(output.tensor.name, output.tensor.datatype, output.tensor.shape) for output in outputs]
    key = one.model, one.version, final, *tensors
    head = _heads.get(key)
    if head is None:
        if len(_heads) >= _MAX_CACHED:
            _heads.clear()
        head = _heads[key] = _encode(one, outputs, final)
    before, after = head
    id = one.id.encode() if one.id else b""
    if len(outputs) == 1:
        data = flat(outputs[0].tensor.data)
        named = b"\x1a" + varint.encode(len(id)) + id if id else b""
        return before + named + after + _RAW_OUTPUT + varint.encode(len(data)), data
    parts: list[Data] = [before, b"\x1a" + varint.encode(len(id)) + id if id else b"", after]
    for output in outputs:
        data = flat(output.tensor.data)
        parts += (_RAW_OUTPUT + varint.encode(len(data)), data)
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
    return _STREAMED + varint.encode(sum(map(len, parts))), *parts


def flat(data: Data) -> Data:
    """Return a view whose length is its size in bytes."""
    if isinstance(data, memoryview) and (data.itemsize != 1 or data.ndim != 1):
        return data.cast("B")
    return data
