"""From an inference to its HTTP response: one class each for /infer, /generate and /generate_stream.

An `UnderWay` receives the responses and the end of its inference, and writes to its connection. It ends exactly once,
whether the client is still connected or not.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from inferometer.errors import UserError
from inferometer.serve.http import answers
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.http.reply import reply
from inferometer.serve.kserve import backpressure, generate, http_codec
from inferometer.serve.kserve.http_codec import InferRequestBody
from inferometer.serve.kserve.offload import LARGE, Aside
from inferometer.serve.models.types import HTTP_STATUS, Inference, Output, Refused

if TYPE_CHECKING:
    from inferometer.serve.kserve.routes import Kserve

_BINARY = b"application/octet-stream"


class ResponseBody(msgspec.Struct, frozen=True):
    """A response body with its headers."""

    parts: list[bytes | memoryview]
    headers: bytes
    content_type: bytes = b"application/json"


def _body(made: http_codec.InferReply, headers: bytes, how: str) -> ResponseBody:
    parts: list[bytes | memoryview] = [made.head, *made.parts]
    content_type = b"application/json"
    if made.parts:
        headers += b"Inference-Header-Content-Length: %d\r\n" % len(made.head)
        content_type = _BINARY
    if how:
        parts = [http_codec.packed(parts, how)]
        headers += b"Content-Encoding: %b\r\n" % how.encode()
    return ResponseBody(parts, headers, content_type)


class UnderWay:
    """An inference in progress with its connection."""

    __slots__ = ("_asked", "_connection", "_outputs", "_request", "_web", "inference")

    inference: Inference

    def __init__(self, web: "Kserve", connection: Connection, request: Request, asked: InferRequestBody) -> None:
        self._web = web
        self._connection = connection
        self._request = request
        self._asked = asked
        self._outputs: list[tuple[Output, ...]] = []

    def answer(self, outputs: tuple[Output, ...]) -> None:
        self._outputs.append(outputs)

    def ended(self, refused: Refused | None) -> None:
        try:
            self._finish(refused)
        except BaseException:
            self._connection.hang_up()  # otherwise the client, and the server's shutdown, would wait forever
            raise
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Break the reference cycle with the inference, so that its tensors are freed at once."""
        del self.inference, self._outputs, self._asked

    def _finish(self, refused: Refused | None) -> None:
        if self._connection.closed:
            self._connection.finish(keep_alive=False)
            return
        if refused is not None:
            self._web.refuse(self._connection, self._request, refused)
            return
        try:
            make, size = self._made()
            if size > LARGE:
                Aside(self._web, self._connection, self._request, self._reply).begin(make)
            else:
                self._reply(make())
        except Exception as why:
            self._web.refuse_for(self._connection, self._request, why)

    def _made(self) -> tuple[Callable[[], ResponseBody], int]:
        """Return a function that builds the response body in any thread, and roughly how many bytes it has to convert."""
        raise NotImplementedError

    def _reply(self, body: ResponseBody) -> None:
        close = self._web.draining
        reply(
            self._connection,
            self._request,
            200,
            *body.parts,
            content_type=body.content_type,
            extra=body.headers,
            close=close,
        )

    def _timing(self) -> bytes:
        return http_codec.timing(self.inference.queue_ns, self.inference.compute_ns)


class Infer(UnderWay):
    """/infer: the tensors of one response."""

    __slots__ = ()

    def _made(self) -> tuple[Callable[[], ResponseBody], int]:
        inference, headers, binary = self.inference, self._timing(), self._asked.binary
        model, version, id_ = inference.model, inference.version, inference.id
        said = {"queue_ns": inference.queue_ns, "compute_ns": inference.compute_ns}
        outputs = self._outputs[0] if self._outputs else ()
        how = http_codec.packing(self._request.headers.get(b"accept-encoding", b""))

        def make() -> ResponseBody:
            made = http_codec.answer(model, version, id_, outputs, binary, said)
            return _body(made, headers, how)

        return make, sum(http_codec.turned(output, binary, bool(how)) for output in outputs)


class Generate(UnderWay):
    """/generate: one response as JSON. A second one is an error, reported at once: the model may never end."""

    __slots__ = ()

    def answer(self, outputs: tuple[Output, ...]) -> None:
        super().answer(outputs)
        if len(self._outputs) > 1:
            self._web.models.cancel(self.inference)

    def _finish(self, refused: Refused | None) -> None:
        is_too_much = len(self._outputs) > 1
        super()._finish(Refused("INVALID_ARGUMENT", generate.NOT_ONE) if is_too_much else refused)

    def _made(self) -> tuple[Callable[[], ResponseBody], int]:
        inference, headers = self.inference, self._timing()
        if len(self._outputs) != 1:
            raise Refused("INVALID_ARGUMENT", generate.NOT_ONE)
        model, version, id_, outputs = inference.model, inference.version, inference.id, self._outputs[0]

        def make() -> ResponseBody:
            return ResponseBody([generate.answer(model, version, id_, outputs)], headers)

        return make, sum(http_codec.turned(output, False, False) for output in outputs)


class GenerateStream(UnderWay):
    """/generate_stream: an event per response."""

    __slots__ = ("_has_begun", "_is_unread")

    def __init__(self, web: "Kserve", connection: Connection, request: Request, asked: InferRequestBody) -> None:
        super().__init__(web, connection, request, asked)
        self._has_begun = False
        self._is_unread = False

    def answer(self, outputs: tuple[Output, ...]) -> None:
        inference = self.inference
        try:
            body = generate.answer(inference.model, inference.version, inference.id, outputs)
        except (Refused, UserError) as why:
            body = http_codec.error(str(why))
        self._event(body)
        if self._connection.unsent > backpressure.GIVEN_UP:
            self._is_unread = True
            self._web.models.cancel(inference)

    def _finish(self, refused: Refused | None) -> None:
        keep = self._request.keep_alive and not self._web.draining
        if self._is_unread:
            refused = backpressure.not_read()
        if refused is not None:
            self._event(http_codec.error(refused.message), HTTP_STATUS[refused.code])
        if self._has_begun:
            self._connection.write(answers.LAST_CHUNK)
        else:
            self._connection.write(self._head(200) + answers.LAST_CHUNK)
        self._connection.finish(keep)

    def _event(self, body: bytes, status: int = 200) -> None:
        if self._connection.closed:
            return
        data = answers.chunk(b"data: %b\n\n" % body)
        if not self._has_begun:
            self._has_begun = True
            data = self._head(status) + data
            self._connection.between = answers.NO_EVENT
        self._connection.write(data)

    def _head(self, status: int) -> bytes:
        """Return the headers; of the server's times, only the queue time is known by now."""
        extra = b"Server-Timing: queue;dur=%.6f\r\n" % (self.inference.queue_ns / 1e6)
        return answers.events_head(status, keep_alive=self._request.keep_alive, extra=extra)


def unexpected(error: BaseException) -> Refused:
    """Describe an internal error in one line."""
    line = f"{type(error).__name__}: {error}".splitlines()[0]
    return Refused("INTERNAL", f"internal server error: {line:.300}")
