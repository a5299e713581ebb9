"""Inference over HTTP: parses request bodies and builds response bodies, also of the generate extension. Sans-IO.

A body is a JSON object and, with the binary extension, raw tensors behind it, in the JSON's order; the header
Inference-Header-Content-Length says where the JSON ends. Binary tensors are views of the body, and those of a response
are sent without a copy. Invalid requests raise Refused.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import numpy as np

from inferometer.errors import UserError
from inferometer.serve import compression
from inferometer.serve.bounded_cache import BoundedCache
from inferometer.serve.http import responses
from inferometer.serve.json_limits import check_values
from inferometer.serve.kserve import requests
from inferometer.serve.kserve.requests import Data, Find, Signature, Size, TensorParameters, invalid
from inferometer.serve.models.model import Model
from inferometer.serve.models.types import Inference, Parameters, Tensors, Wanted
from inferometer.tensors import Tensor, TensorSpec, elements, from_json, from_numpy, to_numpy

T = TypeVar("T")

_NOT_IN_JSON = ("FP16", "BF16")
_NO_JSON = "data via JSON is not supported. Please use the binary data format"
_NO_DATA = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But no field is set"
)
GROWTH = 4
"""Approximate bytes of JSON per byte of a tensor."""


class _Output(msgspec.Struct):
    name: str
    parameters: TensorParameters = msgspec.field(default_factory=TensorParameters)


class _Input(_Output):
    datatype: str = ""
    shape: tuple[Size, ...] = ()
    data: list[Any] | None = None


class _InferJson(msgspec.Struct):
    inputs: list[_Input]
    id: str = ""
    outputs: list[_Output] = []
    parameters: dict[str, Any] = {}


_INFER = msgspec.json.Decoder(_InferJson)
OBJECT = msgspec.json.Decoder(dict[str, Any])
"""Decodes any JSON object."""

_known: BoundedCache[bytes, tuple[Signature, str, tuple[Wanted, ...], Parameters, bool]] = BoundedCache(256)
"""JSON that was parsed before, all of whose inputs are binary: these inputs, the id, the requested outputs, the parameters,
and whether outputs are binary."""
_REMEMBERED = 4096
"""Maximum size of a JSON that is remembered: clients send the same again and again."""


def request(body: Data, end: int, model: str, version: str, find: Find) -> Inference:
    """Parse a request body, whose JSON ends at `end` (see `json_length`). The callbacks and times of the inference are
    still to be set."""
    text = bytes(body[:end]) if end <= _REMEMBERED else b""
    if (known := _known.get(text)) is not None:
        signature, id_, wanted, parameters, binary = known
        inputs, at = {}, end
        for name, datatype, shape, size in signature:  # a slice of a short body is a copy: it costs less than a view
            inputs[name] = Tensor(name, datatype, shape, body[at : at + size])
            at += size
        if at == len(body):
            return Inference(
                model, inputs, version=version, id=id_, wanted=wanted, parameters={**parameters}, binary=binary,
                signature=signature,
            )  # fmt: skip
    return _parse(body, end, text, model, version, find)


def _parse(body: Data, end: int, text: bytes, model: str, version: str, find: Find) -> Inference:
    view = memoryview(body)
    asked = parse_json(view[:end], _INFER)
    binary = asked.parameters.pop("binary_data_output", None) is True
    outputs = [(one.name, one.parameters) for one in asked.outputs]
    made = requests.inference(model, version, asked.id, _inputs(asked, view[end:]), outputs, asked.parameters, find)
    made.binary = binary
    signature, is_binary = requests.signature(made), all(one.data is None for one in asked.inputs)
    if text and is_binary and signature is not None:
        _known.keep(text, (signature, made.id, made.wanted, dict(made.parameters), binary))
    return made


def _inputs(asked: _InferJson, data: memoryview) -> Iterator[tuple[Tensor, TensorParameters | None]]:
    at = 0
    for one in asked.inputs:
        name, datatype, shape, parameters = one.name, one.datatype, one.shape, one.parameters
        if (size := parameters.binary_data_size) is not None:
            yield Tensor(name, datatype, shape, data[at : at + size]), None
            at += size
        elif parameters.shared_memory_region:
            yield Tensor(name, datatype, shape, b""), parameters
        elif one.data is not None:
            yield from_values(name, datatype, shape, one.data, parameters.content_type), None
        else:
            raise invalid(_NO_DATA)
    if at != len(data):
        raise invalid(f"unexpected size of the binary inputs: expected {at} bytes, got {len(data)}")


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
    check_values(data)
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text, why = bytes(data), str(error)
    if b"NaN" in text or b"Infinity" in text:  # not in JSON, but Triton and Python's json write and read them
        with suppress(msgspec.ValidationError, ValueError, RecursionError):
            return msgspec.convert(json.loads(text), decoder.type)
    raise invalid(f"failed to parse the request JSON buffer: {why}")


def from_values(
    name: str, datatype: str, shape: tuple[int, ...], values: list[Any], content_type: str | None = None
) -> Tensor:
    """Build a tensor from JSON values, flat or nested."""
    if datatype in _NOT_IN_JSON:
        raise invalid(f"receiving {datatype} {_NO_JSON} for input {name}")
    try:
        if datatype in ("FP32", "FP64") and set(map(type, values)) == {float} and len(values) == elements(shape):
            floats = from_numpy(name, np.array(values, np.float64), datatype)  # like from_json, without its loops
            return Tensor(name, datatype, shape, floats.data)
        return from_json(name, datatype, shape, values, content_type)
    except UserError as error:
        raise invalid(f"Unable to parse 'data': {error.what}") from None


def response(inference: Inference, how: str = "", most: int = sys.maxsize) -> tuple[bytes, list[Data], int] | None:
    """Return the headers without their end, the body and its size; compressed if `how` says so. None if roughly more than
    `most` bytes have to be compressed or converted to JSON. Raises Refused if JSON cannot express an output."""
    outputs: list[Any] = [inference.id, inference.model, inference.version]
    data: list[Data] = []
    encode: Callable[..., tuple[bytes, bytes, int]] = _encode_known
    work, wanted = 0, inference.wanted
    for i, tensor in enumerate(inference.outputs):
        contents: Any = len(tensor.data)
        is_binary = wanted[i].binary if wanted else inference.binary
        if wanted and wanted[i].placed is not None:
            contents = None
        elif not is_binary:
            work += GROWTH * contents
            contents, encode = tensor, _encode
        elif contents:
            data.append(tensor.data)
            if how:
                work += contents
        outputs.append((tensor.name, tensor.datatype, tensor.shape, contents))
    if work > most:
        return None
    start, text, size = encode(*outputs)
    body = [text, *data]
    if how:
        body = [compression.compress(how, body)]
        size = len(body[0])
        start = _start(size, len(text) if data else 0, how)
    return start, body, size


def _encode(
    id_: str, model: str, version: str, *described: tuple[str, str, tuple[int, ...], Tensor | int | None]
) -> tuple[bytes, bytes, int]:
    """Return the headers, the JSON, and the size of the body. An output is sent as JSON (its last element is the tensor),
    as binary data (the size), or it is in shared memory (None)."""
    outputs, data_size = [], 0
    for name, datatype, shape, contents in described:
        one: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
        outputs.append(one)
        if isinstance(contents, Tensor):
            one["data"] = to_values(contents)
        elif contents is not None:
            one["parameters"] = {"binary_data_size": contents}
            data_size += contents
    tree = {"model_name": model, "model_version": version, "outputs": outputs}
    text = msgspec.json.encode({"id": id_} | tree if id_ else tree)
    size = len(text) + data_size
    return _start(size, len(text) if data_size else 0), text, size


_encode_known = lru_cache(256)(_encode)  # clients request the same outputs again and again


def _start(size: int, json_length: int, how: str = "") -> bytes:
    kind = b"application/octet-stream" if json_length else b"application/json"
    extra = b"Inference-Header-Content-Length: %d\r\n" % json_length if json_length else b""
    if how:
        extra += b"Content-Encoding: %b\r\n" % how.encode()
    return responses.start(200, size, kind, extra)


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
    return msgspec.Raw(msgspec.json.encode(values))


def generate_request(body: Data, model: Model, version: str) -> Inference:
    """Parse a request of the generate extension. Inputs are keys of a JSON object, with a scalar or a flat list; the model
    determines the datatype and shape. Other keys are parameters, as are the keys in `parameters`."""
    tree = parse_json(body, OBJECT)
    specs, has_batch = model.signature.inputs, model.config.max_batch_size > 0
    id_ = str(tree.pop("id", "")) if "id" not in specs else ""
    nested = tree.pop("parameters", {}) if "parameters" not in specs else {}
    if not isinstance(nested, dict):
        raise invalid(f"'parameters' must be an object, got {nested!r:.60}")
    inputs: Tensors = {}
    others: dict[str, Any] = {}
    for name, value in (tree | nested).items():
        if name in specs:
            values = value if isinstance(value, list) else [value]
            shape = _shape(specs[name], len(values), has_batch)
            inputs[name] = from_values(name, specs[name].datatype, shape, values)
        else:
            others[name] = value
    return Inference(model.name, inputs, version=version, id=id_, parameters=requests.check_parameters(others))


def _shape(spec: TensorSpec, count: int, has_batch: bool) -> tuple[int, ...]:
    """Return the model's shape with a batch of one and the last free dimension as large as required."""
    dims = [1, *spec.shape[1:]] if has_batch else list(spec.shape)
    free = [i for i, size in enumerate(dims) if size < 0]
    for i in free:
        dims[i] = 1
    if free:
        dims[free[-1]] = count // (math.prod(dims) or 1)
    return tuple(dims)


def generate_response(inference: Inference, outputs: tuple[Tensor, ...]) -> bytes:
    """Return the JSON object with the outputs as keys; one with a single element is a scalar, otherwise a flat list."""
    tree: dict[str, Any] = {"model_name": inference.model, "model_version": inference.version}
    if inference.id:
        tree["id"] = inference.id
    for tensor in outputs:
        values = to_values(tensor)
        if math.prod(tensor.shape) == 1:
            values = msgspec.Raw(bytes(values)[1:-1])
        tree[tensor.name] = values
    return msgspec.json.encode(dict(sorted(tree.items())))
