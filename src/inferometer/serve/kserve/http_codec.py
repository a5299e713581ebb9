"""Inference over HTTP: parses request bodies and builds response bodies. Sans-IO.

A body is a JSON object and, with the binary extension, raw tensors behind it, in the JSON's order; the header
Inference-Header-Content-Length says where the JSON ends. Binary tensors are views of the body, and those of a response
are sent without a copy. Invalid requests raise Refused.
"""

import json
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import numpy as np

from inferometer.errors import UserError
from inferometer.serve import compression
from inferometer.serve.bounded_cache import BoundedCache
from inferometer.serve.http import responses
from inferometer.serve.kserve import parameters
from inferometer.serve.kserve.parameters import Data, Find, Inputs, Size, TensorParameters, invalid
from inferometer.serve.models.types import Inference, Parameter, Wanted
from inferometer.tensors import Tensor, elements, from_json, from_numpy, to_numpy

T = TypeVar("T")

_NOT_IN_JSON = ("FP16", "BF16")
_NO_JSON = "data via JSON is not supported. Please use the binary data format"
_NO_DATA = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But no field is set"
)
_GROWTH = 4
"""Approximate bytes of JSON per byte of a tensor."""


class _Input(msgspec.Struct):
    name: str
    datatype: str = ""
    shape: tuple[Size, ...] = ()
    parameters: TensorParameters = msgspec.field(default_factory=TensorParameters)
    data: list[Any] | None = None


class _Output(msgspec.Struct):
    name: str
    parameters: TensorParameters = msgspec.field(default_factory=TensorParameters)


class _InferJson(msgspec.Struct):
    inputs: list[_Input]
    id: str = ""
    outputs: list[_Output] = []
    parameters: dict[str, Any] = {}


_INFER = msgspec.json.Decoder(_InferJson)
OBJECT = msgspec.json.Decoder(dict[str, Any])
"""Decodes any JSON object."""
_encode = msgspec.json.encode


# --- requests --------------------------------------------------------------------------------------------------------


_Sizes = tuple[tuple[str, str, tuple[int, ...], int], ...]
_known: BoundedCache[bytes, tuple[int, _Sizes, str, tuple[Wanted, ...], dict[str, Parameter], bool]] = BoundedCache(256)
"""JSON that was parsed before, all of whose inputs are binary: their size; their names, datatypes, shapes and sizes; and
the id, the requested outputs, the parameters, and whether outputs are binary."""
_REMEMBERED = 4096
"""Maximum size of a JSON that is remembered: clients send the same again and again."""


def request(body: Data, end: int, model: str, version: str, find: Find) -> Inference:
    """Parse a request body, whose JSON ends at `end` (see `json_length`). The callbacks and times of the inference are
    still to be set."""
    text = bytes(body[:end]) if end <= _REMEMBERED else b""
    known = _known.get(text)
    if known is None or known[0] != len(body) - end:
        return _parse(body, end, text, model, version, find)
    _, sizes, id_, wanted, given, binary = known
    inputs = {}
    for name, datatype, shape, size in sizes:  # a slice of a short body is a copy, which costs less than a view
        inputs[name] = Tensor(name, datatype, shape, body[end : end + size])
        end += size
    return Inference(
        model, inputs, version=version, id=id_, wanted=wanted, parameters=dict(given) if given else given,
        binary=binary, signature=sizes,
    )  # fmt: skip


def _parse(body: Data, end: int, text: bytes, model: str, version: str, find: Find) -> Inference:
    view, at = memoryview(body), end
    asked = parse_json(view[:end], _INFER)
    inputs = Inputs(find, asked.id)
    sizes: list[tuple[str, str, tuple[int, ...], int]] = []
    for given in asked.inputs:
        name, datatype, shape = given.name, given.datatype, given.shape
        if (size := given.parameters.binary_data_size) is not None:
            inputs.add(Tensor(name, datatype, shape, view[at : at + size]))
            sizes.append((name, datatype, shape, size))
            at += size
        elif given.parameters.shared_memory_region:
            inputs.add_shared(name, datatype, shape, given.parameters)
        elif given.data is not None:
            inputs.add(from_values(name, datatype, shape, given.data))
        else:
            raise invalid(_NO_DATA)
    if at != len(body):
        raise invalid(f"unexpected size of the binary inputs: expected {at - end} bytes, got {len(body) - end}")
    wanted = tuple(parameters.wanted(one.name, one.parameters, find) for one in asked.outputs)
    binary = asked.parameters.pop("binary_data_output", None) is True
    checked = parameters.of_request(asked.parameters)
    if text and len(sizes) == len(asked.inputs) and not any(one.placed for one in wanted):
        _known.keep(text, (at - end, tuple(sizes), asked.id, wanted, dict(checked), binary))
    return Inference(
        model, inputs.tensors, version=version, id=asked.id, wanted=wanted, parameters=checked, unread=inputs.unread,
        binary=binary,
    )  # fmt: skip


def json_length(header: bytes, size: int) -> int:
    """Return the bytes of JSON at the start of a body of `size` bytes."""
    if not header:
        return size
    length = int(header) if header.isdigit() and len(header) <= 18 else 0
    if not 0 < length <= size:
        shown = header.decode("latin-1")
        raise invalid(f"inference header size should be in range (0, {size}), got: {shown:.40}")
    return length


def parse_json(data: Data, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text, why = bytes(data), str(error)
    if b"NaN" in text or b"Infinity" in text:  # not in JSON, but Triton and Python's json write and read them
        with suppress(msgspec.ValidationError, ValueError, RecursionError):
            return msgspec.convert(json.loads(text), decoder.type)
    raise invalid(f"failed to parse the request JSON buffer: {why}")


def from_values(name: str, datatype: str, shape: tuple[int, ...], values: list[Any]) -> Tensor:
    """Build a tensor from JSON values, flat or nested."""
    if datatype in _NOT_IN_JSON:
        raise invalid(f"receiving {datatype} {_NO_JSON} for input {name}")
    try:
        if datatype in ("FP32", "FP64") and set(map(type, values)) == {float} and len(values) == elements(shape):
            floats = from_numpy(name, np.array(values, np.float64), datatype)  # like from_json, without its loops
            return Tensor(name, datatype, shape, floats.data)
        return from_json(name, datatype, shape, values)
    except UserError as error:
        raise invalid(f"Unable to parse 'data': {error.what}") from None


# --- responses -------------------------------------------------------------------------------------------------------

_BINARY = b"application/octet-stream"


class InferReply(msgspec.Struct, frozen=True):
    """A response body with its headers."""

    parts: list[Data]
    headers: bytes = b""
    content_type: bytes = b"application/json"


def response_body(inference: Inference, how: str = "") -> InferReply:
    """Build the response body, compressed if `how` says so. Raises Refused if an output is requested as JSON but cannot
    be expressed in it."""
    data: list[Data] = []
    tree: dict[str, Any] = {"id": inference.id} if inference.id else {}
    tree |= {"model_name": inference.model, "model_version": inference.version}
    tree["outputs"] = [_output(inference, i, data) for i in range(len(inference.outputs))]
    text = _encode(tree)
    parts: list[Data] = [text, *data]
    headers = b"Inference-Header-Content-Length: %d\r\n" % len(text) if data else b""
    if how:
        parts, headers = [compression.compress(how, parts)], headers + b"Content-Encoding: %b\r\n" % how.encode()
    return InferReply(parts, headers, _BINARY if data else b"application/json")


_heads: BoundedCache[Any, tuple[bytes, bytes]] = BoundedCache(256)


def binary_response(inference: Inference) -> tuple[bytes, bytes, list[Data], int] | None:
    """Return the HTTP head without its last empty line, the JSON, the tensors and their size, if all outputs are sent as
    binary data; None otherwise. Responses with the same outputs share the head and the JSON."""
    key: list[Any] = [inference.model, inference.version, inference.id]
    data: list[Data] = []
    total, wanted, is_binary = 0, inference.wanted, inference.binary
    for i, tensor in enumerate(inference.outputs):
        part = tensor.data
        size = len(part)
        if wanted:  # like `_is_binary`, without a call
            is_binary = wanted[i].binary and wanted[i].placed is None
        if not (is_binary and size):
            return None
        key += (tensor.name, tensor.datatype, tensor.shape, size)
        data.append(part)
        total += size
    if (known := _heads.get(named := tuple(key))) is None and data:
        made = response_body(inference)
        text = bytes(made.parts[0])
        head = responses.head(200, len(text) + total, content_type=_BINARY, extra=made.headers)[:-2]
        known = _heads.keep(named, (head, text))
    return known and (*known, data, total)


def _is_binary(inference: Inference, i: int) -> bool:
    """Whether an output is sent as binary data."""
    if not inference.wanted:
        return inference.binary
    wanted = inference.wanted[i]
    return wanted.binary and wanted.placed is None


def _output(inference: Inference, i: int, parts: list[Data]) -> dict[str, Any]:
    tensor = inference.outputs[i]
    tree: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
    if _is_binary(inference, i):
        tree["parameters"] = {"binary_data_size": len(tensor.data)}
        if len(tensor.data):
            parts.append(tensor.data)
    elif not inference.wanted or inference.wanted[i].placed is None:
        tree["data"] = to_values(tensor)
    return tree


def to_values(tensor: Tensor) -> msgspec.Raw:
    """Return the elements as a flat JSON array."""
    if tensor.datatype in _NOT_IN_JSON:
        raise invalid(f"sending {tensor.datatype} {_NO_JSON} for output '{tensor.name}'")
    array = to_numpy(tensor).reshape(-1)
    values = array.tolist()
    if tensor.datatype == "BYTES":
        try:
            values = [raw.decode() for raw in values]
        except UnicodeDecodeError:
            why = "is not valid UTF-8 and cannot be sent as JSON. Please use the binary data format"
            raise invalid(f"output '{tensor.name}' {why}") from None
    elif array.dtype.kind == "f" and not np.isfinite(array).all():  # NaN, Infinity: as Triton writes them
        return msgspec.Raw(json.dumps(values, separators=(",", ":")).encode())
    return msgspec.Raw(_encode(values))


def work(inference: Inference, is_packed: bool = False) -> int:
    """Return roughly how many bytes of the outputs have to be converted to JSON or compressed."""
    return sum(
        len(tensor.data) * (is_packed if _is_binary(inference, i) else _GROWTH)
        for i, tensor in enumerate(inference.outputs)
    )
