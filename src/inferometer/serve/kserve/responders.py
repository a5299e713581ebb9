"""From the body of an HTTP request to an inference, and from there to the response.

A client that disconnects cancels its inference. Large bodies are processed in a thread, so that other requests are served
meanwhile. The connection stays busy, so that responses keep their order and the server's shutdown waits for it. If it is
closed before the thread is done, the result is dropped.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from inferometer.serve import compression
from inferometer.serve.http import responses
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.responses import JOINED, reply
from inferometer.serve.kserve import http_codec, parameters
from inferometer.serve.kserve.http_codec import InferReply
from inferometer.serve.kserve.parameters import Data, invalid
from inferometer.serve.models.model import Model
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Inference, Refused, Tensors, reason
from inferometer.serve.offload import UNREAD, not_read
from inferometer.tensors import Tensor, TensorSpec
from inferometer.timing.clock import now
from inferometer.wire.http1_requests import Request

T = TypeVar("T")

_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of "
    "responses"
)


def refuse(models: Models, connection: Connection, request: Request, error: BaseException) -> None:
    """Respond with the error that describes an exception."""
    responses.refuse(connection, request, reason(error), close=models.refuses)


class Responder:
    """A request with its connection."""

    __slots__ = ("connection", "models", "request")

    def __init__(self, models: Models, connection: Connection, request: Request) -> None:
        self.models, self.connection, self.request = models, connection, request

    def read(self, parse: Callable[[Data], Inference], limit: int) -> None:
        """Submit the inference in the body, which may be compressed."""

        def parse_plain(plain: Data) -> None:
            self.offload(len(plain), partial(parse, plain), self.submit)

        body = self.request.body
        if how := compression.named(self.request.headers.get(b"content-encoding", b"")):
            work = partial(compression.decompress, how, body, limit, "body", "INVALID_ARGUMENT")
            self.offload(compression.EXPANSION * len(body), work, parse_plain)
        else:
            parse_plain(body)

    def submit(self, inference: Inference, model: Model | None = None) -> None:
        """Submit the inference; `model` is its model, if it has just been found."""
        inference.ended, inference.arrived = partial(self.ended, inference), self.request.arrived
        self.models.submit(inference, True, model)
        if not inference.is_over:
            self.connection.gone = partial(self.models.cancel, inference)

    def ended(self, inference: Inference, refused: Refused | None) -> None:
        if self.connection.transport.closed:
            return
        try:
            if refused is None:
                self.respond(inference)
            else:
                self.refuse(refused)
        except Exception as error:
            self.refuse(error)

    def respond(self, inference: Inference) -> None:
        """Send the response of an inference that succeeded."""
        raise NotImplementedError

    def refuse(self, error: BaseException) -> None:
        refuse(self.models, self.connection, self.request, error)

    def send(self, inference: Inference, size: int, work: Callable[[], InferReply]) -> None:
        """Send the body that `work` makes of `size` bytes."""

        def send(body: InferReply) -> None:
            timing = responses.timing(inference.queue_ns, inference.compute_ns, now() - inference.arrived)
            kind, extra, close = body.content_type, body.headers + timing, self.models.refuses
            reply(self.connection, self.request, 200, *body.parts, content_type=kind, extra=extra, close=close)

        self.offload(size, work, send)

    def offload(self, size: int, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Continue with the result of work on `size` bytes, unless the client is gone by then."""

        def done(result: T, error: BaseException | None) -> None:
            if self.connection.transport.closed:
                return
            if error is not None:
                self.refuse(error)
                return
            try:
                then(result)
            except Exception as why:
                self.refuse(why)

        self.models.offload.run(size, work, done)


class Infer(Responder):
    """/infer: the tensors of one response."""

    __slots__ = ()

    def respond(self, inference: Inference) -> None:
        request, connection = self.request, self.connection
        accepted = request.headers.get(b"accept-encoding")
        how = compression.choose(accepted) if accepted else ""
        known = None
        if not how and request.keep_alive and not self.models.refuses:
            known = http_codec.binary_response(inference)
        if known is None:
            work = partial(http_codec.response_body, inference, how)
            self.send(inference, http_codec.work(inference, bool(how)), work)
            return
        head, json, data, size = known  # the short path of `reply`
        timing = responses.timing(inference.queue_ns, inference.compute_ns, now() - inference.arrived)
        if size <= JOINED:
            connection.write(b"".join((head, timing, b"\r\n", json, *data)))
        else:
            connection.write(b"".join((head, timing, b"\r\n", json)), *data)
        connection.finish()


# --- generate --------------------------------------------------------------------------------------------------------
#
# The keys of a JSON object are inputs by name, and outputs are the keys of another. A value is a scalar or a flat list;
# the model determines its datatype and shape. Keys that are not inputs are parameters, as are the keys in `parameters`. An
# output with one element is a scalar, otherwise a list.


class Generate(Responder):
    """/generate: one response as JSON. A second one is an error, reported at once: the model may never end."""

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
        work = partial(_generate_response, inference, inference.outputs)
        self.send(inference, http_codec.work(inference), lambda: InferReply([work()]))


class GenerateStream(Generate):
    """/generate_stream: an event per response, and for an error after the first one."""

    _has_begun = False

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
            inputs[name] = http_codec.from_values(name, specs[name].datatype, shape, values)
        else:
            others[name] = value
    return Inference(model.name, inputs, version=version, id=id_, parameters=parameters.of_request(others))


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
