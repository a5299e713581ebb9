"""Triton's generate extension: the keys of a JSON object are inputs by name, and outputs are the keys of another.

A value is a scalar or a list; the model determines its datatype and shape. Keys that are not inputs are parameters, as
are the keys in `parameters`. An output with one element is a scalar, otherwise a list.
"""

import math
from functools import partial
from typing import Any

import msgspec

from inferometer.serve.http import responses
from inferometer.serve.kserve import http_codec, parameters
from inferometer.serve.kserve.http_codec import InferReply
from inferometer.serve.kserve.parameters import invalid
from inferometer.serve.kserve.responders import Responder
from inferometer.serve.models.model import Model
from inferometer.serve.models.types import HTTP_STATUS, Inference, Output, Refused, Tensors, reason
from inferometer.serve.offload import UNREAD, not_read
from inferometer.tensors import Tensor, TensorSpec

_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of "
    "responses"
)

# --- requests --------------------------------------------------------------------------------------------------------


def request(body: bytes | memoryview, model: Model, version: str) -> Inference:
    tree = http_codec.parse_json(body)
    specs = {spec.name: spec for spec in model.facts.inputs}
    has_batch = model.config.max_batch_size > 0
    inputs: Tensors = {}
    others: dict[str, Any] = {}
    id_ = tree.pop("id", "") if "id" not in specs else ""
    nested = tree.pop("parameters") if "parameters" not in specs and isinstance(tree.get("parameters"), dict) else {}
    for name, value in (*tree.items(), *nested.items()):
        if name not in specs:
            others[name] = value
        elif name in inputs:
            raise invalid(f"[request id: <id_unknown>] input '{name}' already exists in request")
        else:
            inputs[name] = _tensor(specs[name], value, has_batch)
    if not isinstance(id_, str | int):
        raise invalid(f"Unable to parse 'id': expected a text, got {id_!r:.60}")
    return Inference(model.name, inputs, version=version, id=str(id_), parameters=parameters.check(others))


def _tensor(spec: TensorSpec, value: Any, has_batch: bool) -> Tensor:
    values = value if isinstance(value, list) else [value]
    shape = _shape(spec, sum(1 for _ in http_codec.leaves(values)), has_batch)
    return http_codec.from_values(spec.name, spec.datatype, shape, values)


def _shape(spec: TensorSpec, count: int, has_batch: bool) -> tuple[int, ...]:
    """Return the model's shape with a batch of one and the free dimension as large as required."""
    dims = list(spec.shape[1:] if has_batch else spec.shape)
    free = [i for i, size in enumerate(dims) if size < 0]
    fixed = math.prod(size for size in dims if size >= 0)
    for i in free[:-1]:
        dims[i] = 1
    if free:
        dims[free[-1]] = count // fixed if fixed else 0
    if math.prod(dims) != count:
        what = f"expected {list(spec.shape)}, got {count} values"
        raise invalid(f"The schema can not convert input '{spec.name}' to tensor with proper shape: {what}")
    return (1, *dims) if has_batch else tuple(dims)


# --- responses -------------------------------------------------------------------------------------------------------


def response_body(model: str, version: str, id: str, outputs: tuple[Output, ...]) -> bytes:
    """Encode a response as JSON, preserving the order of its keys."""
    tree: dict[str, Any] = {"model_name": model, "model_version": version}
    if id:
        tree["id"] = id
    for output in outputs:
        values = http_codec.to_values(output.tensor)
        if math.prod(output.tensor.shape) == 1:
            values = msgspec.Raw(bytes(values)[1:-1])
        tree[output.tensor.name] = values
    return msgspec.json.encode(dict(sorted(tree.items())))


class Generate(Responder):
    """/generate: one response as JSON. A second one is an error, reported at once: the model may never end."""

    _count = 0

    def responded(self, outputs: tuple[Output, ...]) -> None:
        self.outputs = outputs
        self._count += 1
        if self._count > 1:
            self.cancel()

    def fail(self, refused: Refused) -> None:
        self.refuse(invalid(_NOT_ONE) if self._count > 1 else refused)

    def respond(self, inference: Inference) -> None:
        if self._count != 1:
            raise invalid(_NOT_ONE)
        work = partial(response_body, inference.model, inference.version, inference.id, self.outputs)
        self.offload(http_codec.turned(self.outputs), work, lambda body: self.reply(inference, InferReply([body])))


class GenerateStream(Responder):
    """/generate_stream: an event per response."""

    _has_begun = _is_unread = False

    def responded(self, outputs: tuple[Output, ...]) -> None:
        inference = self.inference
        try:
            body = response_body(inference.model, inference.version, inference.id, outputs)
        except Exception as error:
            body = http_codec.error(reason(error).message)
        self._event(body)
        if self.connection.transport.unsent > UNREAD:
            self._is_unread = True
            self.cancel()

    def fail(self, refused: Refused) -> None:
        refused = not_read() if self._is_unread else refused
        self._event(http_codec.error(refused.message), HTTP_STATUS[refused.code])
        self.respond(self.inference)

    def respond(self, inference: Inference) -> None:
        self.connection.write((b"" if self._has_begun else self._head(200)) + responses.LAST_CHUNK)
        self.connection.finish(self.request.keep_alive and not self.kserve.models.refuses)

    def _event(self, body: bytes, status: int = 200) -> None:
        data = responses.chunk(b"data: %b\n\n" % body)
        if not self._has_begun:
            self._has_begun = True
            data = self._head(status) + data
        if not self.connection.transport.closed:
            self.connection.write(data)

    def _head(self, status: int) -> bytes:
        """Return the headers; of the server's times, only the queue time is known by now."""
        extra = b"Server-Timing: queue;dur=%.6f\r\n" % (self.inference.queue_ns / 1e6)
        return responses.stream_head(self.request.keep_alive, False, status, extra)
