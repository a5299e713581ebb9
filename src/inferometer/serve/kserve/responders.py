"""From the body of an HTTP request to an inference, and from there to the response.

A client that disconnects cancels its inference. Large bodies are processed in a thread, so that other requests are served
meanwhile. The connection stays busy, so that responses keep their order and the server's shutdown waits for it. If it is
closed before the thread is done, the result is dropped.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from inferometer.serve import compression
from inferometer.serve.http import responses
from inferometer.serve.http.connection import Connection
from inferometer.serve.kserve import http_codec
from inferometer.serve.kserve.requests import Data, check_parameters, invalid
from inferometer.serve.models.model import Model
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Inference, Refused, Tensors, reason
from inferometer.serve.offload import LARGE, UNREAD, not_read
from inferometer.tensors import Tensor, TensorSpec
from inferometer.timing.clock import now
from inferometer.wire.http1_requests import Request

_JSON_LENGTH = b"inference-header-content-length"
_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of "
    "responses"
)


class Infer:
    """A request to /infer, from its arrival to its response: the tensors of one response."""

    __slots__ = ("connection", "model", "models", "request", "version")

    def __init__(
        self, models: Models, limit: int, name: str, version: str, connection: Connection, request: Request
    ) -> None:
        if models.refuses:
            models.check_open(request.began < models.refused_from)
        self.models, self.connection, self.request = models, connection, request
        self.model, self.version = models.find(name, version), version
        body, encoding = request.body, request.headers.get(b"content-encoding")
        if encoding and (how := compression.named(encoding)):
            work = partial(compression.decompress, how, body, limit, "body", "INVALID_ARGUMENT")
            self.offload(compression.EXPANSION * len(body), work, self.read)
        else:
            self.read(body)

    def read(self, body: Data) -> None:
        """Submit the inference in the body. After a thread has parsed it, the model may be another one."""
        model, find = self.model, self.models.regions.find
        if model.decoupled:
            raise Refused("UNIMPLEMENTED", "HTTP end point doesn't support models with decoupled transaction policy")
        end = http_codec.json_length(self.request.headers.get(_JSON_LENGTH, b""), len(body))
        if end > LARGE:
            self.offload(end, partial(http_codec.request, body, end, model.name, self.version, find), self.submit)
        else:
            self.submit(http_codec.request(body, end, model.name, self.version, find), model)

    def submit(self, inference: Inference, model: Model | None = None) -> None:
        inference.ended, inference.arrived = partial(self.done, self.respond, inference), self.request.arrived
        self.models.submit(inference, True, model)
        if not inference.is_over:
            self.connection.gone = partial(self.models.cancel, inference)

    def respond(self, inference: Inference) -> None:
        """Send the response of an inference that succeeded."""
        accepted = self.request.headers.get(b"accept-encoding")
        how = compression.choose(accepted) if accepted else ""
        made = http_codec.response(inference, how, LARGE)
        if made is None:
            self.offload(LARGE + 1, partial(http_codec.response, inference, how), partial(self.send, inference))
        else:
            self.send(inference, made)

    def send(self, inference: Inference, made: Any) -> None:
        start, body, size = made
        keep = self.request.keep_alive and not self.models.refuses
        timing = responses.timing(inference.queue_ns, inference.compute_ns, now() - inference.arrived)
        responses.send(self.connection, (start, timing, responses.END[keep], *body), size, keep)

    def offload(self, size: int, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Continue with the result of work on `size` bytes."""
        self.models.offload.run(size, work, partial(self.done, then))

    def done(self, then: Callable[[Any], None], result: Any, error: BaseException | None) -> None:
        """Continue with a result, or refuse the request, unless the client is gone by now."""
        if self.connection.transport.closed:
            return
        try:
            if error is None:
                then(result)
            else:
                self.refuse(error)
        except Exception as why:
            self.refuse(why)

    def refuse(self, error: BaseException) -> None:
        responses.refuse(self.connection, self.request, reason(error), close=self.models.refuses)


# --- generate --------------------------------------------------------------------------------------------------------
#
# The keys of a JSON object are inputs by name, and outputs are the keys of another. A value is a scalar or a flat list;
# the model determines its datatype and shape. Keys that are not inputs are parameters, as are the keys in `parameters`. An
# output with one element is a scalar, otherwise a list.


class Generate(Infer):
    """/generate: one response as JSON. A second one is an error, reported at once: the model may never end."""

    def read(self, body: Data) -> None:
        self.offload(len(body), partial(generate_request, body, self.model, self.version), self.submit)

    def submit(self, inference: Inference, model: Model | None = None) -> None:
        inference.responded = partial(self.responded, inference)
        super().submit(inference, model)

    def responded(self, inference: Inference, outputs: tuple[Tensor, ...]) -> None:
        if inference.outputs:
            self.models.cancel(inference, invalid(_NOT_ONE))
        inference.outputs = outputs

    def respond(self, inference: Inference) -> None:
        if not inference.outputs:
            raise invalid(_NOT_ONE)
        size = http_codec.GROWTH * sum(len(tensor.data) for tensor in inference.outputs)
        self.offload(size, partial(self._whole, inference), partial(self.send, inference))

    def _whole(self, inference: Inference) -> tuple[bytes, list[Data], int]:
        body = _generate_response(inference, inference.outputs)
        return responses.start(200, len(body)), [body], len(body)


class GenerateStream(Generate):
    """/generate_stream: an event per response, and for an error after the first one."""

    _has_begun = False

    def read(self, body: Data) -> None:
        if self.request.http10:
            raise invalid("streaming requires HTTP/1.1")
        super().read(body)

    def responded(self, inference: Inference, outputs: tuple[Tensor, ...]) -> None:
        try:
            body = _generate_response(inference, outputs)
        except Exception as error:
            self.models.cancel(inference, reason(error))
            return
        self._begin(inference)
        self._event(body)
        if self.connection.transport.unsent > UNREAD:
            self.models.cancel(inference, not_read())

    def respond(self, inference: Inference) -> None:
        self._begin(inference)
        self._end()

    def refuse(self, error: BaseException) -> None:
        if not self._has_begun:
            super().refuse(error)
            return
        self._event(msgspec.json.encode({"error": reason(error).message}))
        self._end()

    def _begin(self, inference: Inference) -> None:
        """Send the headers; of the server's times, only the queue time is known by now."""
        if not self._has_begun:
            self._has_begun = True
            timing = b"Server-Timing: queue;dur=%.6f\r\n" % (inference.queue_ns / 1e6)
            self.connection.write(responses.stream_head(self.request.keep_alive, extra=timing))

    def _event(self, body: bytes) -> None:
        self.connection.write(responses.chunk(b"data: %b\n\n" % body))

    def _end(self) -> None:
        self.connection.write(responses.LAST_CHUNK)
        self.connection.finish(self.request.keep_alive and not self.models.refuses)


def generate_request(body: Data, model: Model, version: str) -> Inference:
    tree = http_codec.parse_json(body, http_codec.OBJECT)
    specs = {spec.name: spec for spec in model.facts.inputs}
    has_batch = model.config.max_batch_size > 0
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
            inputs[name] = http_codec.from_values(name, specs[name].datatype, shape, values)
        else:
            others[name] = value
    return Inference(model.name, inputs, version=version, id=id_, parameters=check_parameters(others))


def _shape(spec: TensorSpec, count: int, has_batch: bool) -> tuple[int, ...]:
    """Return the model's shape with a batch of one and the last free dimension as large as required."""
    dims = [1, *spec.shape[1:]] if has_batch else list(spec.shape)
    free = [i for i, size in enumerate(dims) if size < 0]
    for i in free:
        dims[i] = 1
    if free:
        dims[free[-1]] = count // (math.prod(dims) or 1)
    return tuple(dims)


def _generate_response(inference: Inference, outputs: tuple[Tensor, ...]) -> bytes:
    """Encode a response as JSON."""
    tree: dict[str, Any] = {"model_name": inference.model, "model_version": inference.version}
    if inference.id:
        tree["id"] = inference.id
    for tensor in outputs:
        values = http_codec.to_values(tensor)
        if math.prod(tensor.shape) == 1:
            values = msgspec.Raw(bytes(values)[1:-1])
        tree[tensor.name] = values
    return msgspec.json.encode(dict(sorted(tree.items())))
