"""Converts ModelInferRequest to an Inference, and outputs to a ModelInferResponse.

Raw contents are cut out of the request's bytes, and those of responses are sent as they are: protobuf would copy each of
them twice. Errors of the request itself are reported here; `Models.submit` reports mismatches with the model.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from inferometer.errors import UserError
from inferometer.serve.bounded_cache import BoundedCache
from inferometer.serve.grpc.call import parse
from inferometer.serve.kserve import requests
from inferometer.serve.kserve.messages import Message, ModelInferRequest, ModelInferResponse
from inferometer.serve.kserve.requests import Data, Find, Signature, TensorParameters, invalid
from inferometer.serve.models.types import Inference, Refused, Wanted
from inferometer.tensors import Tensor
from inferometer.wire import varint
from inferometer.wire.kserve.grpc import CONTENTS, from_contents, parameters_of

FINAL = "triton_final_response"

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


_known: BoundedCache[bytes, tuple[str, str, Signature, tuple[Wanted, ...]]] = BoundedCache(1024)
"""The model, its version, the inputs and the requested outputs of a request without its id and raw contents. Clients send
the same again and again, and comparing it is faster than parsing."""
_REMEMBERED = 1024
"""Maximum size of what is remembered."""


def decode(parts: Cut, find: Find) -> Inference:
    """Return the inference that a message requests; its callbacks and times are still to be set."""
    head, id, raw = parts
    known = _known.get(head)
    if known is None or len(known[2]) != len(raw):
        return _parse(head, id, raw, find)
    name, version, signature, wanted = known
    inputs = {}
    for i, (input, datatype, shape, size) in enumerate(signature):
        if len(raw[i]) != size:
            return _parse(head, id, raw, find)
        inputs[input] = Tensor(input, datatype, shape, raw[i])
    return Inference(name, inputs, version=version, id=id, wanted=wanted, signature=signature)


def _parse(head: bytes, id: str, raw: Raw, find: Find) -> Inference:
    request = parse(ModelInferRequest, head)
    name, version, parameters = request.model_name, request.model_version, parameters_of(request.parameters)
    outputs = [(one.name, _of_tensor(one)) for one in request.outputs]
    made = requests.inference(name, version, id, _inputs(request, raw), outputs, parameters, find)
    signature = requests.signature(made)
    if len(head) <= _REMEMBERED and len(raw) == len(made.inputs) and not parameters and signature is not None:
        _known.keep(head, (name, version, signature, made.wanted))
    return made


def _inputs(request: Message, raw: Raw) -> Iterator[tuple[Tensor, TensorParameters | None]]:
    """Yield the inputs: raw, typed, or in shared memory. Raw contents are in the order of the inputs that are not in
    shared memory."""
    rest = iter(raw)
    for one in request.inputs:
        name, datatype, shape = one.name, one.datatype, tuple(one.shape)
        if one.parameters and (given := _of_tensor(one)).shared_memory_region:
            yield Tensor(name, datatype, shape, b""), given
            continue
        data = next(rest, None)
        if contents := one.contents.ListFields():
            if raw:
                raise invalid(f"contents field must not be specified when using raw_input_contents for '{name}'")
            data = _typed(name, datatype, contents)
        if data is None and 0 not in shape:
            raise invalid(f"unable to find data for input tensor '{name}' for model '{request.model_name}' in request.")
        yield Tensor(name, datatype, shape, data or b""), None
    if next(rest, None) is not None:
        raise invalid(f"there are {len(raw)} raw_input_contents, more than inputs that are not in shared memory")


def _typed(name: str, datatype: str, contents: Sequence[tuple[Any, Sequence[Any]]]) -> Data:
    """Return typed contents, the non-empty fields of an InferTensorContents, as raw ones."""
    expected = CONTENTS.get(datatype)
    for field, _ in contents:
        if field.name != expected:
            why = f"expected {expected or 'raw_input_contents'} for datatype '{datatype}', got {field.name}"
            raise invalid(f"unexpected explicit tensor data for input tensor '{name}': {why}")
    try:
        return from_contents(name, datatype, contents[0][1])
    except UserError as error:
        raise invalid(f"{error.what}, the datatype of input '{name}'") from None


def _of_tensor(one: Message) -> TensorParameters:
    try:
        return msgspec.convert(parameters_of(one.parameters), TensorParameters)
    except msgspec.ValidationError as error:
        raise invalid(f"invalid parameters for tensor '{one.name}': {error}") from None


_RAW_OUTPUT, _STREAMED = b"\x32", b"\x12"  # field 6 of ModelInferResponse, field 2 of ModelStreamInferResponse


def response(one: Inference, outputs: Sequence[Tensor], final: bool | None = None) -> tuple[Data, ...]:
    """Return the parts of a ModelInferResponse; `final` is the stream's final-response flag."""
    tensors = [(tensor.name, tensor.datatype, tensor.shape) for tensor in outputs]
    start, rest = _encode(one.model, one.version, final, *tensors)
    if one.id:
        id = one.id.encode()
        start += b"\x1a" + varint.encode(len(id)) + id
    start += rest
    parts: tuple[Data, ...] = ()
    for tensor in outputs:
        parts += (start + _RAW_OUTPUT + varint.encode(len(tensor.data)), tensor.data)
        start = b""
    return parts or (start,)


@lru_cache(1024)
def _encode(
    model: str, version: str, final: bool | None, *outputs: tuple[str, str, tuple[int, ...]]
) -> tuple[bytes, bytes]:
    """Return what precedes the id, and what follows it, without the raw contents."""
    rest = ModelInferResponse()
    if final is not None:
        rest.parameters[FINAL].bool_param = final
    for name, datatype, shape in outputs:
        rest.outputs.add(name=name, datatype=datatype, shape=shape)
    start = ModelInferResponse(model_name=model, model_version=version)
    return start.SerializeToString(), rest.SerializeToString()


def in_stream(parts: tuple[Data, ...]) -> tuple[Data, ...]:
    """Return the parts of a ModelStreamInferResponse with this ModelInferResponse."""
    return _STREAMED + varint.encode(sum(map(len, parts))), *parts
