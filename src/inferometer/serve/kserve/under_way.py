"""An inference over HTTP from its submission to its answer: one for /infer, one for /generate, one for /generate_stream.

An `UnderWay` hears the answers and the end of its inference, and writes to the connection that it is for. It ends exactly
once, whether the client is still there or not.
"""

from typing import TYPE_CHECKING

from inferometer.errors import UserError
from inferometer.serve.http import answers
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.http.reply import reply
from inferometer.serve.kserve import generate, http, unread
from inferometer.serve.kserve.http import Asked
from inferometer.serve.models.types import HTTP_STATUS, Inference, Output, Refused

if TYPE_CHECKING:
    from inferometer.serve.kserve.web import Kserve

_BINARY = b"application/octet-stream"


class UnderWay:
    """An inference and whom it is for."""

    __slots__ = ("_asked", "_connection", "_outputs", "_request", "_web", "inference")

    inference: Inference

    def __init__(self, web: "Kserve", connection: Connection, request: Request, asked: Asked) -> None:
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
        finally:
            self.let_go()

    def let_go(self) -> None:
        """The inference knows this one, and this one the inference: without the circle, tensors are freed at once."""
        del self.inference, self._outputs, self._asked

    def _finish(self, refused: Refused | None) -> None:
        if self._connection.closed:
            self._connection.finish(keep_alive=False)
            return
        if refused is not None:
            self._web.refuse(self._connection, self._request, refused)
            return
        try:
            self._send()
        except Refused as why:
            self._web.refuse(self._connection, self._request, why)
        except UserError as error:  # an output that is not what it says
            self._web.refuse(self._connection, self._request, Refused("INTERNAL", error.what))
        except Exception as error:  # the server goes on
            self._web.refuse(self._connection, self._request, unexpected(error))

    def _send(self) -> None:
        raise NotImplementedError

    def _timing(self) -> bytes:
        return http.timing(self.inference.queue_ns, self.inference.compute_ns)


class Infer(UnderWay):
    """infer: the tensors of one answer."""

    __slots__ = ()

    def _send(self) -> None:
        inference, request = self.inference, self._request
        said = {"queue_ns": inference.queue_ns, "compute_ns": inference.compute_ns}
        outputs = self._outputs[0] if self._outputs else ()
        made = http.answer(inference.model, inference.version, inference.id, outputs, self._asked.binary, said)
        extra, content_type = self._timing(), b"application/json"
        if made.parts:
            extra += b"Inference-Header-Content-Length: %d\r\n" % len(made.head)
            content_type = _BINARY
        body: list[bytes | memoryview] = [made.head, *made.parts]
        how = http.packing(request.headers.get(b"accept-encoding", b""))
        if how:
            body = [http.packed(body, how)]
            extra += b"Content-Encoding: %b\r\n" % how.encode()
        close = self._web.draining
        reply(self._connection, request, 200, *body, content_type=content_type, extra=extra, close=close)


class Generate(UnderWay):
    """generate: one answer, as JSON."""

    __slots__ = ()

    def answer(self, outputs: tuple[Output, ...]) -> None:
        if len(self._outputs) < 2:  # one too many is all that there is to know of the others
            self._outputs.append(outputs)

    def _send(self) -> None:
        inference = self.inference
        if len(self._outputs) != 1:
            raise Refused("INVALID_ARGUMENT", generate.NOT_ONE)
        body = generate.answer(inference.model, inference.version, inference.id, self._outputs[0])
        reply(self._connection, self._request, 200, body, extra=self._timing(), close=self._web.draining)


class GenerateStream(UnderWay):
    """generate_stream: an event for each answer."""

    __slots__ = ("_has_begun", "_is_unread")

    def __init__(self, web: "Kserve", connection: Connection, request: Request, asked: Asked) -> None:
        super().__init__(web, connection, request, asked)
        self._has_begun = False
        self._is_unread = False

    def answer(self, outputs: tuple[Output, ...]) -> None:
        inference = self.inference
        try:
            body = generate.answer(inference.model, inference.version, inference.id, outputs)
        except (Refused, UserError) as why:
            body = http.error(str(why))
        self._event(body)
        if self._connection.unsent > unread.GIVEN_UP:
            self._is_unread = True
            self._web.models.cancel(inference)

    def _finish(self, refused: Refused | None) -> None:
        keep = self._request.keep_alive and not self._web.draining
        if self._is_unread:
            refused = unread.not_read()
        if refused is not None:
            self._event(http.error(refused.message), HTTP_STATUS[refused.code])
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
        self._connection.write(data)

    def _head(self, status: int) -> bytes:
        """Of the server's times, only the queue's is known by now."""
        extra = b"Server-Timing: queue;dur=%.6f\r\n" % (self.inference.queue_ns / 1e6)
        return answers.events_head(status, keep_alive=self._request.keep_alive, extra=extra)


def unexpected(error: BaseException) -> Refused:
    """An error of ours, in one line."""
    line = f"{type(error).__name__}: {error}".splitlines()[0]
    return Refused("INTERNAL", f"the server failed here: {line:.300}")
