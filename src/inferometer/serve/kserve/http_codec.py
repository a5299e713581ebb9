"""Inference over HTTP: parses request bodies and builds response bodies. Sans-IO.

A body is a JSON object and, with the binary extension, raw tensors behind it, in the JSON's order; the header
Inference-Header-Content-Length says where the JSON ends. Binary tensors are views of the body, and those of a response
are sent without a copy. Invalid requests raise Refused, in Triton's words wherever Triton has any.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.errors import UserError
from inferometer.serve import compression
from inferometer.serve.http import answers
from inferometer.serve.models.shared_memory import RegionSlice
from inferometer.serve.models.types import Inference, Output, Parameters, Placed, Refused, Tensors, Unread, Wanted
from inferometer.tensors import DATATYPES, Tensor, TensorSpec, elements, from_json, from_numpy, shown, to_numpy

Data = bytes | memoryview
Find = Callable[[str, int, int], RegionSlice]
"""find(region, byte_size, offset): returns the location in a registered shared memory region."""

_OWN = "binary_data_output"
_INT64 = 2**63 - 1
_NOT_IN_JSON = ("FP16", "BF16")
_NO_JSON = "data via JSON is not supported. Please use the binary data format"
_FLOATS = ("FP32", "FP64")
_RESERVED = "triton_"
_GROWTH = 4
"""Approximate bytes of JSON per byte of a tensor."""
_Size = Annotated[int, msgspec.Meta(ge=0, le=_INT64)]


class InferRequestBody(msgspec.Struct, frozen=True):
    """The contents of a request body."""

    inputs: Tensors
    id: str = ""
    wanted: tuple[Wanted, ...] = ()
    parameters: Parameters = {}
    binary: bool = False
    """Whether outputs are sent as binary data if no outputs are named."""
    unread: dict[str, Unread] = {}
    """Inputs in shared memory."""


class _InputParameters(msgspec.Struct):
    binary_data_size: _Size | msgspec.UnsetType = msgspec.UNSET
    shared_memory_region: str | msgspec.UnsetType = msgspec.UNSET
    shared_memory_byte_size: _Size = 0
    shared_memory_offset: _Size = 0


class _Input(msgspec.Struct):
    name: str
    datatype: str = ""
    shape: tuple[_Size, ...] = ()
    parameters: _InputParameters = msgspec.field(default_factory=_InputParameters)
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _OutputParameters(msgspec.Struct):
    binary_data: bool = False
    classification: _Size = 0
    shared_memory_region: str = ""
    shared_memory_byte_size: _Size = 0
    shared_memory_offset: _Size = 0


class _Output(msgspec.Struct):
    name: str
    parameters: _OutputParameters = msgspec.field(default_factory=_OutputParameters)


class _InferJson(msgspec.Struct):
    inputs: list[_Input]
    id: str = ""
    outputs: list[_Output] = []
    parameters: dict[str, Any] = {}


_decode = msgspec.json.Decoder(_InferJson).decode
_values = msgspec.json.Decoder(Any).decode
_PIECE = 32 * 1024
"""Bytes of JSON parsed at a time."""
_PIECE_OUT = 4096
"""Elements written at a time."""
_FLATTENED = bytes.maketrans(b"[]", b"  ")
_encode = msgspec.json.encode


def invalid(message: str) -> Refused:
    return Refused("INVALID_ARGUMENT", message)


# --- requests --------------------------------------------------------------------------------------------------------


def request(body: Data, end: int, model: str, find: Find, specs: Sequence[TensorSpec] = ()) -> InferRequestBody:
    """Parse a request body, whose JSON ends at `end` (see `json_length`), for a model with these inputs."""
    if not end:
        return _raw(body, model, specs)
    text = bytes(body[:end]) if end <= _REMEMBERED else b""
    known = _known.get(text)
    if known is not None and known[0] == len(body) - end:
        return _again(body, end, known[1], known[2])
    asked = _parsed(memoryview(body)[:end])
    inputs: Tensors = {}
    unread: dict[str, Unread] = {}
    place = end
    for given in asked.inputs:
        if given.name in inputs:
            raise invalid(f"[request id: {asked.id or '<id_unknown>'}] input '{given.name}' already exists in request")
        size = _binary_size(given)
        if place + size > len(body):
            what = f"expecting {place + size - len(body)} additional bytes for model '{model}'"
            raise invalid(f"unexpected size for input '{given.name}', {what}")
        inputs[given.name] = _tensor(given, memoryview(body)[place : place + size], find, unread)
        place += size
    if place != len(body):
        raise invalid(f"unexpected additional input data for model '{model}'")
    wanted, binary = tuple(map(_wanted, asked.outputs)), asked.parameters.pop(_OWN, None) is True
    made = InferRequestBody(inputs, asked.id, wanted, parameters(asked.parameters), binary, unread)
    if text and all(isinstance(given.parameters.binary_data_size, int) for given in asked.inputs):
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        sizes = tuple((one.name, one.datatype, one.shape, _binary_size(one)) for one in asked.inputs)
        rest = InferRequestBody({}, made.id, wanted, dict(made.parameters), binary)
        _known[text] = place - end, sizes, rest
    return made


_Sizes = tuple[tuple[str, str, tuple[int, ...], int], ...]
_known: dict[bytes, tuple[int, _Sizes, InferRequestBody]] = {}
"""JSON that was parsed before, all of whose inputs are binary: their size; their names, datatypes, shapes and sizes;
everything else."""
_REMEMBERED, _MOST_KNOWN = 4096, 256
"""Maximum size of a JSON that is remembered, and how many are: clients send the same again and again."""


def _again(body: Data, place: int, sizes: _Sizes, rest: InferRequestBody) -> InferRequestBody:
    """Return a known request with the inputs in this body, which start at `place`. (A slice of a short body is a copy,
    which costs less than a view.)"""
    inputs = {}
    for name, datatype, shape, size in sizes:
        inputs[name] = Tensor(name, datatype, shape, body[place : place + size])
        place += size
    return InferRequestBody(inputs, rest.id, rest.wanted, dict(rest.parameters), rest.binary)


def parse_json(data: Data) -> Any:
    """Parse a JSON body of any kind."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"failed to parse the request JSON buffer: {error}") from None


def parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request, checked for valid names and types."""
    if not given:
        return {}
    for name, value in given.items():
        if not isinstance(value, bool | int | float | str):
            raise invalid(f"parameter '{name:.60}' has invalid type. It should be either 'int', 'bool', or 'string'.")
        if name.startswith(_RESERVED):
            what = f"parameter keys starting with '{_RESERVED}'"
            raise invalid(f"{what} are reserved for Triton usage and should not be specified.")
        if isinstance(value, int) and not -_INT64 - 1 <= value <= _INT64:
            raise invalid(f"parameter '{name:.60}' does not fit into 64 bits")
    for name in _KNOWN.keys() & given.keys():
        kind, value = _KNOWN[name], given[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise invalid(f"Unable to parse '{name}': expected {_WORDS[kind]}, got {value!r:.60}")
    return dict(given)


_KNOWN: dict[str, Any] = {
    "sequence_id": int | str, "sequence_start": bool, "sequence_end": bool, "priority": int, "timeout": int,
}  # fmt: skip
_WORDS = {int | str: "a number or a text", bool: "true or false", int: "a whole number"}


def json_length(header: bytes, size: int) -> int:
    """Return the bytes of JSON at the start of a body of `size` bytes."""
    if not header:
        return size
    if not header.isdigit():
        raise invalid(f"Inference-Header-Content-Length is {header.decode('latin-1')!r:.40}, which is not a number")
    if len(header) > 18 or (length := int(header)) > size:
        raise invalid(f"inference header size should be in range (0, {size}), got: {header.decode():.40}")
    return length


def _parsed(data: memoryview) -> _InferJson:
    try:
        return _decode(data)
    except msgspec.ValidationError as error:
        raise invalid(f"Unable to parse the request: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _with_nan(data, error)


def _with_nan(data: memoryview, error: Exception) -> _InferJson:
    """Parse JSON with NaN and Infinity: JSON lacks them, but Triton and Python's json write and read them."""
    why = f"failed to parse the request JSON buffer: {error}"
    text = bytes(data)
    if b"NaN" not in text and b"Infinity" not in text:
        raise invalid(why)
    try:
        tree = json.loads(text, parse_float=_float)
        for given in tree["inputs"]:
            if "data" in given:
                given["data"] = msgspec.Raw(json.dumps(given["data"]).encode())
        return msgspec.convert(tree, _InferJson)
    except msgspec.ValidationError as mismatch:
        raise invalid(f"Unable to parse the request: {mismatch}") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise invalid(why) from None


def _float(text: str) -> float:
    """Refuse numbers beyond all floats: Python's json would make Infinity of them."""
    if math.isinf(value := float(text)):
        raise invalid(f"Unable to parse the request: {text:.40} does not fit into FP64")
    return value


def _binary_size(given: _Input) -> int:
    places = given.parameters
    size = places.binary_data_size
    if isinstance(size, int) and given.data is msgspec.UNSET and places.shared_memory_region is msgspec.UNSET:
        return size  # the common case
    sources = {"data": given.data, "binary_data_size": size, "shared_memory_region": places.shared_memory_region}
    set_ = [name for name, value in sources.items() if value is not msgspec.UNSET]
    if len(set_) != 1:
        but = "set " + " ".join(f"'{name}'" for name in set_) if set_ else "no field is set"
        fields = "'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'"
        raise invalid(f"Input must set only one of the following fields: {fields}. But {but}")
    return 0


def _tensor(given: _Input, raw: Data, find: Find, unread: dict[str, Unread]) -> Tensor:
    if given.datatype not in DATATYPES:
        why = f"expected one of {', '.join(DATATYPES)}, got {given.datatype!r:.40}"
        raise invalid(f"invalid datatype for input {given.name}: {why}")
    places = given.parameters
    if isinstance(given.data, msgspec.Raw):
        return _from_json(given.name, given.datatype, given.shape, given.data)
    if isinstance(places.shared_memory_region, str):
        place = find(places.shared_memory_region, places.shared_memory_byte_size, places.shared_memory_offset)
        unread[given.name] = Unread(place.read, place.byte_size)
        raw = b""
    return Tensor(given.name, given.datatype, given.shape, raw)


def _from_json(name: str, datatype: str, shape: tuple[int, ...], data: msgspec.Raw) -> Tensor:
    if len(memoryview(data)) > 2 * _PIECE and datatype != "BYTES":
        tensor = _from_pieces(name, datatype, shape, bytes(data))
        if tensor is not None:
            return tensor
    try:
        values = _values(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        try:
            values = json.loads(bytes(data), parse_float=_float)
        except (ValueError, RecursionError):
            raise invalid(f"Unable to parse 'data' of input '{name}': {error}") from None
    if not isinstance(values, list):
        raise invalid(f"Unable to parse 'data' of input '{name}': expected an array")
    return from_values(name, datatype, shape, values)


def _from_pieces(name: str, datatype: str, shape: tuple[int, ...], text: bytes) -> Tensor | None:
    """Parse a long array of numbers, a piece at a time: Python blocks all other threads while it parses a piece. Return
    None if it cannot be split at its commas."""
    if b'"' in text:
        return None
    parts: list[Data] = []
    count = start = 0
    while start < len(text):
        end = text.find(b",", start + _PIECE)
        end = len(text) if end < 0 else end
        try:
            values: Any = _values(b"[%b]" % text[start:end].translate(_FLATTENED))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        parts.append(from_values(name, datatype, (len(values),), values).data)
        count += len(values)
        start = end + 1
    if count != elements(shape):
        return None
    return Tensor(name, datatype, shape, b"".join(parts))


def from_values(name: str, datatype: str, shape: tuple[int, ...], values: list[Any]) -> Tensor:
    """Build a tensor from JSON values, flat or nested."""
    if datatype in _NOT_IN_JSON:
        raise invalid(f"receiving {datatype} {_NO_JSON} for input {name}")
    try:
        if datatype == "BOOL" and int in map(type, leaves(values)):
            raise UserError(f"tensor {name}: BOOL data must be true or false (got a number)")
        if datatype in _FLOATS and set(map(type, values)) == {float} and len(values) == elements(shape):
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


def _wanted(given: _Output) -> Wanted:
    asked = given.parameters
    if not asked.shared_memory_region:
        return Wanted(given.name, asked.classification, None, asked.binary_data)
    if asked.classification:
        raise invalid("Output can't set both 'shared_memory_region' and 'classification'")
    placed = Placed(asked.shared_memory_region, asked.shared_memory_byte_size, asked.shared_memory_offset)
    return Wanted(given.name, 0, placed, asked.binary_data)


def _raw(body: Data, model: str, specs: Sequence[TensorSpec]) -> InferRequestBody:
    """Parse Triton's raw binary request: no JSON; the body is the data of the only input, whose shape follows from its
    size."""
    if len(specs) != 1:
        but = f"but got {len(specs)} inputs in '{model}' model configuration"
        raise invalid(f"Raw request must only have 1 input (found 1) to be deduced {but}")
    spec = specs[0]
    if spec.datatype == "BYTES":
        data: Data = len(body).to_bytes(4, "little") + bytes(body)
        return InferRequestBody({spec.name: Tensor(spec.name, "BYTES", (1,) * len(spec.shape), data)}, binary=True)
    free = [i for i, size in enumerate(spec.shape) if size < 0]
    known = elements([size for size in spec.shape if size >= 0]) * DATATYPES[spec.datatype].size
    shape = [max(size, 1) for size in spec.shape]
    if free:
        shape[free[-1]] = len(body) // known if known else 0
    if elements(shape) * DATATYPES[spec.datatype].size != len(body):
        expected = f"{spec.datatype} {shown(spec.shape)} of input '{spec.name}'"
        raise invalid(f"the {len(body)} bytes of the raw request do not match {expected}")
    return InferRequestBody({spec.name: Tensor(spec.name, spec.datatype, tuple(shape), memoryview(body))}, binary=True)


# --- responses -------------------------------------------------------------------------------------------------------

_BINARY = b"application/octet-stream"


class InferReply(msgspec.Struct, frozen=True):
    """A response body with its headers."""

    parts: list[Data]
    headers: bytes = b""
    content_type: bytes = b"application/json"


def answer(
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


def binary_answer(
    inference: Inference, outputs: tuple[Output, ...], binary: bool
) -> tuple[bytes, bytes, list[Data], int] | None:
    """Return the HTTP head without its last empty line, the JSON, the tensors and their size, if all outputs are sent as
    binary data; None otherwise. Responses with the same outputs share the head and the JSON."""
    key: list[Any] = [inference.model, inference.version, inference.id]
    data: list[Data] = []
    total = 0
    for output in outputs:
        wanted, tensor = output.wanted, output.tensor
        part = tensor.data
        size = len(part)
        is_binary = binary if wanted is None else wanted.binary and wanted.placed is None
        if not (is_binary and size) or (part.__class__ is memoryview and part.itemsize != 1):
            return None
        key += (tensor.name, tensor.datatype, tensor.shape, size)
        data.append(part)
        total += size
    if (known := _heads.get(named := tuple(key))) is None and data:
        made = answer(inference.model, inference.version, inference.id, outputs, binary)
        text = bytes(made.parts[0])
        known = answers.head(200, len(text) + total, content_type=_BINARY, extra=made.headers)[:-2], text
        if len(_heads) >= _MOST_KNOWN:
            _heads.clear()
        _heads[named] = known
    return known and (*known, data, total)


def _output(output: Output, binary: bool, parts: list[Data]) -> dict[str, Any]:
    tensor, wanted = output.tensor, output.wanted
    tree: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
    if wanted is not None and wanted.placed is not None:
        return tree
    if not (binary if wanted is None else wanted.binary):
        tree["data"] = to_values(tensor)
        return tree
    data = tensor.data
    if isinstance(data, memoryview) and data.itemsize != 1:
        data = data.cast("B")
    tree["parameters"] = {"binary_data_size": len(data)}
    if len(data):
        parts.append(data)
    return tree


def to_values(tensor: Tensor) -> msgspec.Raw:
    """Return the elements as a flat JSON array."""
    if tensor.datatype in _NOT_IN_JSON:
        raise invalid(f"sending {tensor.datatype} {_NO_JSON} for output '{tensor.name}'")
    array = to_numpy(tensor).reshape(-1)
    if tensor.datatype == "BYTES":
        try:
            return _joined(array, lambda values: _encode([raw.decode() for raw in values]))
        except UnicodeDecodeError:
            why = "is not valid UTF-8 and cannot be sent as JSON. Please use the binary data format"
            raise invalid(f"output '{tensor.name}' {why}") from None
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        # NaN, Infinity: as Triton writes them
        return _joined(array, lambda values: json.dumps(values, separators=(",", ":")).encode())
    return _joined(array, _encode)


def _joined(array: NDArray[Any], encode: Callable[[list[Any]], bytes]) -> msgspec.Raw:
    """Build a JSON array in pieces, for the same reason as it is parsed in pieces."""
    if len(array) <= _PIECE_OUT:
        return msgspec.Raw(encode(array.tolist()))
    pieces = [encode(array[at : at + _PIECE_OUT].tolist())[1:-1] for at in range(0, len(array), _PIECE_OUT)]
    return msgspec.Raw(b"[%b]" % b",".join(pieces))


def turned(output: Output, binary: bool, is_packed: bool) -> int:
    """Return roughly how many bytes have to be converted to JSON or compressed."""
    if (wanted := output.wanted) is not None and wanted.placed is not None:
        return 0
    is_binary = binary if wanted is None else wanted.binary
    return memoryview(output.tensor.data).nbytes * (is_packed if is_binary else _GROWTH)


def error(message: str) -> bytes:
    return _encode({"error": message})
