"""From an inference to its HTTP response: one class each for /infer, /generate and /generate_stream.

A responder submits its inference, receives the responses and the end, and writes to its connection. It ends exactly
once, whether the client is still connected or not. A client that disconnects cancels its inference.

Large bodies are processed in a thread, so that other requests are served meanwhile. The connection stays busy, so that
responses keep their order and the server's shutdown waits for it. If the client goes away or the server stops before
the thread is done, its result is dropped.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from inferometer.errors import UserError
from inferometer.serve import compression
from inferometer.serve.http import answers
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.http.reply import JOINED, reply
from inferometer.serve.kserve import backpressure, generate, http_codec
from inferometer.serve.kserve.http_codec import InferRequestBody, invalid
from inferometer.serve.models.types import HTTP_STATUS, Inference, Output, Refused
from inferometer.serve.offload import LARGE
from inferometer.timing.clock import now

if TYPE_CHECKING:
    from inferometer.serve.kserve.routes import Kserve

T = TypeVar("T")


class Responder:
    """A request with its connection, and then with its inference."""

    __slots__ = ("_binary", "_connection", "_kserve", "_name", "_outputs", "_request", "_version", "inference")

    inference: Inference

    def __init__(self, kserve: "Kserve", connection: Connection, request: Request, name: str, version: str) -> None:
        self._kserve = kserve
        self._connection = connection
        self._request = request
        self._name, self._version = name, version
        self._outputs: list[tuple[Output, ...]] = []

    def submit(self, asked: InferRequestBody, was_let_in: bool) -> None:
        self._binary = asked.binary
        self.inference = inference = Inference(
            self._name, asked.inputs, answer=self.answer, ended=self.ended, arrived=self._request.arrived,
            version=self._version, id=asked.id, wanted=asked.wanted, parameters=asked.parameters, unread=asked.unread,
        )  # fmt: skip
        self._connection.gone = self.gone
        try:
            self._kserve.models.submit(inference, was_let_in)
        except BaseException:
            self._connection.gone = None
            del self.inference
            raise

    def gone(self) -> None:
        self._kserve.models.cancel(self.inference)

    def answer(self, outputs: tuple[Output, ...]) -> None:
        self._outputs.append(outputs)

    def ended(self, refused: Refused | None) -> None:
        try:
            if self._connection.transport.closed:
                self._connection.finish(keep_alive=False)
            else:
                self._finish(refused)
        except BaseException:
            self._connection.hang_up()  # otherwise the client, and the server's shutdown, would wait forever
            raise
        finally:
            del self.inference, self._outputs  # break the reference cycle, so that the tensors are freed at once

    def _finish(self, refused: Refused | None) -> None:
        if refused is not None:
            self._kserve.refuse(self._connection, self._request, refused)
            return
        try:
            self._respond()
        except Exception as why:
            self._kserve.refuse_for(self._connection, self._request, why)

    def _respond(self) -> None:
        raise NotImplementedError

    def _reply(self, inference: Inference, body: http_codec.InferReply) -> None:
        extra = body.headers + answers.timing(inference.queue_ns, inference.compute_ns, now() - inference.arrived)
        kind, close = body.content_type, self._kserve.draining
        reply(self._connection, self._request, 200, *body.parts, content_type=kind, extra=extra, close=close)

    # --- in a thread ---

    def offload(self, size: int, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Continue with the result of `work` on `size` bytes."""
        if size <= LARGE:
            then(work())
            return
        waiting = self._kserve.offloaded
        waiting.add(self)
        self._connection.gone = self._drop
        do = partial(self._worked, then)
        self._kserve.models.offload.run(size, lambda: work() if self in waiting else None, do)

    def _worked(self, then: Callable[[Any], None], made: Any, error: BaseException | None) -> None:
        if not self._leave():
            return
        if error is not None:
            self._kserve.refuse_for(self._connection, self._request, error)
            return
        try:
            then(made)
        except Exception as why:
            self._kserve.refuse_for(self._connection, self._request, why)

    def refuse(self, why: Refused) -> None:
        """Stop waiting for the thread, and refuse the request."""
        if self._leave():
            self._kserve.refuse(self._connection, self._request, why)

    def _drop(self) -> None:
        if self._leave():
            self._connection.finish(keep_alive=False)

    def _leave(self) -> bool:
        """Stop waiting for the thread; return False if that was done already."""
        if self not in self._kserve.offloaded:
            return False
        self._kserve.offloaded.discard(self)
        self._connection.gone = None
        return True


class Infer(Responder):
    """/infer: the tensors of one response."""

    __slots__ = ()

    def _respond(self) -> None:
        inference, request, binary = self.inference, self._request, self._binary
        outputs = self._outputs[0] if self._outputs else ()
        how = compression.choose(request.headers.get(b"accept-encoding", b""))
        if not how and request.keep_alive and not request.http10 and not self._kserve.draining:
            found = http_codec.binary_answer(inference, outputs, binary)
            if found is not None:
                self._send(inference, *found)
                return
        model, version, id_ = inference.model, inference.version, inference.id

        def make() -> http_codec.InferReply:
            return http_codec.answer(model, version, id_, outputs, binary, how)

        size = sum([http_codec.turned(output, binary, bool(how)) for output in outputs])
        self.offload(size, make, partial(self._reply, inference))

    def _send(self, inference: Inference, head: bytes, json: bytes, data: list[http_codec.Data], size: int) -> None:
        """Send a response whose head and JSON are known already: the short path of `_reply`."""
        connection = self._connection
        timing = answers.timing(inference.queue_ns, inference.compute_ns, now() - inference.arrived)
        if size <= JOINED:
            connection.write(b"".join((head, timing, b"\r\n", json, *data)))
        else:
            connection.write(b"".join((head, timing, b"\r\n", json)), *data)
        connection.finish()


class Generate(Responder):
    """/generate: one response as JSON. A second one is an error, reported at once: the model may never end."""

    __slots__ = ()

    def answer(self, outputs: tuple[Output, ...]) -> None:
        self._outputs.append(outputs)
        if len(self._outputs) > 1:
            self._kserve.models.cancel(self.inference)

    def _finish(self, refused: Refused | None) -> None:
        is_too_much = len(self._outputs) > 1
        super()._finish(invalid(generate.NOT_ONE) if is_too_much else refused)

    def _respond(self) -> None:
        inference = self.inference
        if len(self._outputs) != 1:
            raise invalid(generate.NOT_ONE)
        model, version, id_, outputs = inference.model, inference.version, inference.id, self._outputs[0]

        def make() -> http_codec.InferReply:
            return http_codec.InferReply([generate.answer(model, version, id_, outputs)])

        size = sum([http_codec.turned(output, False, False) for output in outputs])
        self.offload(size, make, partial(self._reply, inference))


class GenerateStream(Responder):
    """/generate_stream: an event per response."""

    __slots__ = ("_has_begun", "_is_unread")

    def __init__(self, kserve: "Kserve", connection: Connection, request: Request, name: str, version: str) -> None:
        super().__init__(kserve, connection, request, name, version)
        self._has_begun = self._is_unread = False

    def answer(self, outputs: tuple[Output, ...]) -> None:
        inference = self.inference
        try:
            body = generate.answer(inference.model, inference.version, inference.id, outputs)
        except (Refused, UserError) as why:
            body = http_codec.error(str(why))
        self._event(body)
        if self._connection.unsent > backpressure.GIVEN_UP:
            self._is_unread = True
            self._kserve.models.cancel(inference)

    def _finish(self, refused: Refused | None) -> None:
        if self._is_unread:
            refused = backpressure.not_read()
        if refused is not None:
            self._event(http_codec.error(refused.message), HTTP_STATUS[refused.code])
        self._connection.write((b"" if self._has_begun else self._head(200)) + answers.LAST_CHUNK)
        self._connection.finish(self._request.keep_alive and not self._kserve.draining)

    def _event(self, body: bytes, status: int = 200) -> None:
        if self._connection.closed:
            return
        data = answers.chunk(b"data: %b\n\n" % body)
        if not self._has_begun:
            self._has_begun = True
            data = self._head(status) + data
        self._connection.write(data)

    def _head(self, status: int) -> bytes:
        """Return the headers; of the server's times, only the queue time is known by now."""
        extra = b"Server-Timing: queue;dur=%.6f\r\n" % (self.inference.queue_ns / 1e6)
        return answers.stream_head(self._request.keep_alive, False, status, extra)
