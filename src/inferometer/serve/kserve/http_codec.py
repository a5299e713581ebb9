"""Inference over HTTP: parses request bodies and builds response bodies. Sans-IO.

A body is a JSON object and, with the binary extension, raw tensors behind it, in the JSON's order; the header
Inference-Header-Content-Length says where the JSON ends. Binary tensors are views of the body, and those of a response
are sent without a copy. Invalid requests raise Refused, in Triton's words wherever Triton has any.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from inferometer.errors import UserError
from inferometer.serve import compression
from inferometer.serve.http import responses
from inferometer.serve.kserve import parameters
from inferometer.serve.kserve.parameters import Size, TensorParameters, invalid
from inferometer.serve.models.shared_memory import RegionSlice
from inferometer.serve.models.types import Inference, Output, Parameter, Tensors, Unread, Wanted
from inferometer.tensors import DATATYPES, Tensor, elements, from_json, from_numpy, to_numpy

Data = bytes | memoryview
Find = Callable[[str, int, int], RegionSlice]
"""find(region, byte_size, offset): returns the location in a registered shared memory region."""

_NOT_IN_JSON = ("FP16", "BF16")
_NO_JSON = "data via JSON is not supported. Please use the binary data format"
_GROWTH = 4
"""Approximate bytes of JSON per byte of a tensor."""


class _Input(msgspec.Struct):
    name: str
    datatype: str = ""
    shape: tuple[Size, ...] = ()
    parameters: TensorParameters = msgspec.field(default_factory=TensorParameters)
    data: list[Any] | msgspec.UnsetType = msgspec.UNSET


class _Output(msgspec.Struct):
    name: str
    parameters: TensorParameters = msgspec.field(default_factory=TensorParameters)


class _InferJson(msgspec.Struct):
    inputs: list[_Input]
    id: str = ""
    outputs: list[_Output] = []
    parameters: dict[str, Any] = {}


_decode = msgspec.json.Decoder(_InferJson).decode
_encode = msgspec.json.encode


# --- requests --------------------------------------------------------------------------------------------------------


_Sizes = tuple[tuple[str, str, tuple[int, ...], int], ...]
_known: dict[bytes, tuple[int, _Sizes, str, tuple[Wanted, ...], dict[str, Parameter], bool]] = {}
"""JSON that was parsed before, all of whose inputs are binary: their size; their names, datatypes, shapes and sizes; and
the id, the requested outputs, the parameters, and whether outputs are binary."""
_REMEMBERED, _MOST_KNOWN = 4096, 256
"""Maximum size of a JSON that is remembered, and how many are: clients send the same again and again."""


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
    asked = _parsed(memoryview(body)[:end])
    inputs: Tensors = {}
    unread: dict[str, Unread] = {}
    sizes: list[tuple[str, str, tuple[int, ...], int]] = []
    place = end
    for given in asked.inputs:
        if given.name in inputs:
            raise invalid(f"[request id: {asked.id or '<id_unknown>'}] input '{given.name}' already exists in request")
        size = _binary_size(given)
        if place + size > len(body):
            what = f"expecting {place + size - len(body)} additional bytes for model '{model}'"
            raise invalid(f"unexpected size for input '{given.name}', {what}")
        inputs[given.name] = _tensor(given, memoryview(body)[place : place + size], find, unread)
        sizes.append((given.name, given.datatype, given.shape, size))
        place += size
    if place != len(body):
        raise invalid(f"unexpected additional input data for model '{model}'")
    wanted = tuple(parameters.wanted(one.name, one.parameters) for one in asked.outputs)
    binary = asked.parameters.pop("binary_data_output", None) is True
    checked = parameters.check(asked.parameters)
    if text and all(isinstance(given.parameters.binary_data_size, int) for given in asked.inputs):
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[text] = place - end, tuple(sizes), asked.id, wanted, dict(checked), binary
    return Inference(
        model, inputs, version=version, id=asked.id, wanted=wanted, parameters=checked, unread=unread, binary=binary
    )


def json_length(header: bytes, size: int) -> int:
    """Return the bytes of JSON at the start of a body of `size` bytes."""
    if not header:
        return size
    length = int(header) if header.isdigit() and len(header) <= 18 else 0
    if not 0 < length <= size:
        shown = header.decode("latin-1")
        raise invalid(f"inference header size should be in range (0, {size}), got: {shown:.40}")
    return length


def parse_json(data: Data) -> dict[str, Any]:
    """Parse a body that is a JSON object."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"failed to parse the request JSON buffer: {error}") from None


def _parsed(data: memoryview) -> _InferJson:
    try:
        return _decode(data)
    except msgspec.ValidationError as error:
        raise invalid(f"Unable to parse the request: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = f"failed to parse the request JSON buffer: {error}"
    try:  # JSON has no NaN and Infinity, but Triton and Python's json write and read them
        text = bytes(data)
        return msgspec.convert(json.loads(text if b"NaN" in text or b"Infinity" in text else b""), _InferJson)
    except msgspec.ValidationError as mismatch:
        raise invalid(f"Unable to parse the request: {mismatch}") from None
    except (ValueError, RecursionError):
        raise invalid(why) from None


def _binary_size(given: _Input) -> int:
    """Return the size of the input's binary data; raises Refused unless the request says exactly once where it is."""
    size, region = given.parameters.binary_data_size, given.parameters.shared_memory_region
    sources = {"data": given.data, "binary_data_size": size, "shared_memory_region": region or msgspec.UNSET}
    named = [name for name, value in sources.items() if value is not msgspec.UNSET]
    if len(named) != 1:
        but = "set " + " ".join(f"'{name}'" for name in named) if named else "no field is set"
        fields = "'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'"
        raise invalid(f"Input must set only one of the following fields: {fields}. But {but}")
    return size if isinstance(size, int) else 0


def _tensor(given: _Input, raw: Data, find: Find, unread: dict[str, Unread]) -> Tensor:
    if given.datatype not in DATATYPES:
        why = f"expected one of {', '.join(DATATYPES)}, got {given.datatype!r:.40}"
        raise invalid(f"invalid datatype for input {given.name}: {why}")
    if isinstance(given.data, list):
        return from_values(given.name, given.datatype, given.shape, given.data)
    if placed := given.parameters.placed:
        place = find(placed.region, placed.byte_size, placed.offset)
        unread[given.name] = Unread(place.read, place.byte_size)
        raw = b""
    return Tensor(given.name, given.datatype, given.shape, raw)


def from_values(name: str, datatype: str, shape: tuple[int, ...], values: list[Any]) -> Tensor:
    """Build a tensor from JSON values, flat or nested."""
    if datatype in _NOT_IN_JSON:
        raise invalid(f"receiving {datatype} {_NO_JSON} for input {name}")
    try:
        if datatype == "BOOL" and int in map(type, leaves(values)):
            raise UserError(f"tensor {name}: BOOL data must be true or false (got a number)")
        if datatype in ("FP32", "FP64") and set(map(type, values)) == {float} and len(values) == elements(shape):
            floats = from_numpy(name, np.array(values, np.float64), datatype)  # like from_json, without its loops
            return Tensor(name, datatype, shape, floats.data)
        return from_json(name, datatype, shape, values)
    except UserError as error:
        raise invalid(f"Unable to parse 'data': {error.what}") from None


def leaves(values: list[Any]) -> Iterator[Any]:
    """Yield the elements of nested lists, in any order."""
    stack = [values]
    while stack:
        for value in stack.pop():
            if isinstance(value, list):
                stack.append(value)
            else:
                yield value


# --- responses -------------------------------------------------------------------------------------------------------

_BINARY = b"application/octet-stream"


class InferReply(msgspec.Struct, frozen=True):
    """A response body with its headers."""

    parts: list[Data]
    headers: bytes = b""
    content_type: bytes = b"application/json"


def response_body(
    model: str, version: str, id: str, outputs: Sequence[Output], binary: bool = False, how: str = ""
) -> InferReply:
    """Build the response body, compressed if `how` says so. Raises Refused if an output is requested as JSON but cannot
    be expressed in it."""
    data: list[Data] = []
    trees = [_output(output, binary, data) for output in outputs]
    tree: dict[str, Any] = {"id": id} if id else {}
    text = _encode(tree | {"model_name": model, "model_version": version, "outputs": trees})
    parts: list[Data] = [text, *data]
    headers = b"Inference-Header-Content-Length: %d\r\n" % len(text) if data else b""
    if how:
        parts, headers = [compression.compress(how, parts)], headers + b"Content-Encoding: %b\r\n" % how.encode()
    return InferReply(parts, headers, _BINARY if data else b"application/json")


_heads: dict[Any, tuple[bytes, bytes]] = {}


def binary_response(inference: Inference, outputs: tuple[Output, ...]) -> tuple[bytes, bytes, list[Data], int] | None:
    """Return the HTTP head without its last empty line, the JSON, the tensors and their size, if all outputs are sent as
    binary data; None otherwise. Responses with the same outputs share the head and the JSON."""
    key: list[Any] = [inference.model, inference.version, inference.id]
    data: list[Data] = []
    total, binary = 0, inference.binary
    for output in outputs:
        wanted, tensor = output.wanted, output.tensor
        part = tensor.data
        size = len(part)
        is_binary = binary if wanted is None else wanted.binary and wanted.placed is None  # _is_binary, without a call
        if not (is_binary and size) or (part.__class__ is memoryview and part.itemsize != 1):
            return None
        key += (tensor.name, tensor.datatype, tensor.shape, size)
        data.append(part)
        total += size
    if (known := _heads.get(named := tuple(key))) is None and data:
        made = response_body(inference.model, inference.version, inference.id, outputs, binary)
        text = bytes(made.parts[0])
        known = responses.head(200, len(text) + total, content_type=_BINARY, extra=made.headers)[:-2], text
        if len(_heads) >= _MOST_KNOWN:
            _heads.clear()
        _heads[named] = known
    return known and (*known, data, total)


def _is_binary(output: Output, binary: bool) -> bool:
    """Whether the output is sent as binary data; `binary` is the default for all outputs of a request."""
    wanted = output.wanted
    return binary if wanted is None else bool(wanted.binary) and wanted.placed is None


def _output(output: Output, binary: bool, parts: list[Data]) -> dict[str, Any]:
    tensor, wanted = output.tensor, output.wanted
    tree: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
    if _is_binary(output, binary):
        data = tensor.data
        if isinstance(data, memoryview) and data.itemsize != 1:
            data = data.cast("B")
        tree["parameters"] = {"binary_data_size": len(data)}
        if len(data):
            parts.append(data)
    elif wanted is None or wanted.placed is None:
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


def turned(outputs: Sequence[Output], binary: bool = False, is_packed: bool = False) -> int:
    """Return roughly how many bytes have to be converted to JSON or compressed."""
    return sum(
        memoryview(output.tensor.data).nbytes * (is_packed if _is_binary(output, binary) else _GROWTH)
        for output in outputs
    )


def error(message: str) -> bytes:
    return _encode({"error": message})
