"""From an inference to its HTTP response: one class each for /infer, /generate and /generate_stream.

A responder submits its inference, receives the responses and the end, and writes to its connection. It ends exactly
once, whether the client is still connected or not. A client that disconnects cancels its inference.

Large bodies are processed in a thread, so that other requests are served meanwhile. The connection stays busy, so that
responses keep their order and the server's shutdown waits for it. If the client goes away or the server stops before
the thread is done, its result is dropped.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from inferometer.serve import compression
from inferometer.serve.http import answers
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.http.reply import JOINED, reply
from inferometer.serve.kserve import generate, http_codec
from inferometer.serve.kserve.http_codec import InferReply, InferRequestBody
from inferometer.serve.kserve.parameters import invalid
from inferometer.serve.models.types import HTTP_STATUS, Inference, Output, Refused, reason
from inferometer.serve.offload import LARGE, UNREAD, not_read
from inferometer.timing.clock import now

if TYPE_CHECKING:
    from inferometer.serve.kserve.routes import Kserve

T = TypeVar("T")


class Responder:
    """A request with its connection, and then with its inference."""

    __slots__ = ("_binary", "_connection", "_kserve", "_name", "_outputs", "_request", "_version", "inference")

    inference: Inference

    def __init__(self, kserve: "Kserve", connection: Connection, request: Request, name: str, version: str) -> None:
        self._kserve, self._connection, self._request = kserve, connection, request
        self._name, self._version = name, version
        self._outputs: list[tuple[Output, ...]] = []

    def submit(self, asked: InferRequestBody) -> None:
        self._binary = asked.binary
        self.inference = inference = Inference(
            self._name, asked.inputs, answer=self.answer, ended=self.ended, arrived=self._request.arrived,
            version=self._version, id=asked.id, wanted=asked.wanted, parameters=asked.parameters, unread=asked.unread,
        )  # fmt: skip
        self._connection.gone = self._cancel
        try:
            self._kserve.models.submit(inference, True)
        except BaseException:
            self._connection.gone = None
            del self.inference
            raise

    def _cancel(self) -> None:
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
            self.refuse(refused)
            return
        try:
            self._respond()
        except Exception as error:
            self.refuse(error)

    def _respond(self) -> None:
        raise NotImplementedError

    def _reply(self, inference: Inference, body: InferReply) -> None:
        extra = body.headers + answers.timing(inference.queue_ns, inference.compute_ns, now() - inference.arrived)
        kind, close = body.content_type, self._kserve.is_draining
        reply(self._connection, self._request, 200, *body.parts, content_type=kind, extra=extra, close=close)

    def refuse(self, error: BaseException) -> None:
        self._kserve.refuse(self._connection, self._request, error)

    # --- in a thread ---

    def offload(self, size: int, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Continue with the result of `work` on `size` bytes."""
        if size <= LARGE:
            then(work())
            return
        waiting = self._kserve.offloaded
        waiting.add(self)
        self._connection.gone = self._drop

        def worked(made: T | None, error: BaseException | None) -> None:
            if self not in waiting:
                return
            self.leave()
            if error is not None:
                self.refuse(error)
                return
            try:
                then(made)  # type: ignore[arg-type]
            except Exception as why:
                self.refuse(why)

        self._kserve.models.offload.run(size, lambda: work() if self in waiting else None, worked)

    def leave(self) -> None:
        """Stop waiting for the thread."""
        self._kserve.offloaded.discard(self)
        self._connection.gone = None

    def _drop(self) -> None:
        self.leave()
        self._connection.finish(keep_alive=False)


class Infer(Responder):
    """/infer: the tensors of one response."""

    __slots__ = ()

    def _respond(self) -> None:
        inference, request, binary = self.inference, self._request, self._binary
        outputs = self._outputs[0] if self._outputs else ()
        how = compression.choose(request.headers.get(b"accept-encoding", b""))
        if not how and request.keep_alive and not self._kserve.is_draining:
            found = http_codec.binary_answer(inference, outputs, binary)
            if found is not None:
                self._send(inference, *found)
                return
        model, version, id_ = inference.model, inference.version, inference.id

        def make() -> InferReply:
            return http_codec.answer(model, version, id_, outputs, binary, how)

        self.offload(http_codec.turned(outputs, binary, bool(how)), make, partial(self._reply, inference))

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
            self._cancel()

    def _finish(self, refused: Refused | None) -> None:
        super()._finish(invalid(generate.NOT_ONE) if len(self._outputs) > 1 else refused)

    def _respond(self) -> None:
        inference = self.inference
        if len(self._outputs) != 1:
            raise invalid(generate.NOT_ONE)
        model, version, id_, outputs = inference.model, inference.version, inference.id, self._outputs[0]

        def make() -> InferReply:
            return InferReply([generate.answer(model, version, id_, outputs)])

        self.offload(http_codec.turned(outputs), make, partial(self._reply, inference))


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
        except Exception as error:
            body = http_codec.error(reason(error).message)
        self._event(body)
        if self._connection.unsent > UNREAD:
            self._is_unread = True
            self._cancel()

    def _finish(self, refused: Refused | None) -> None:
        if self._is_unread:
            refused = not_read()
        if refused is not None:
            self._event(http_codec.error(refused.message), HTTP_STATUS[refused.code])
        self._connection.write((b"" if self._has_begun else self._head(200)) + answers.LAST_CHUNK)
        self._connection.finish(self._request.keep_alive and not self._kserve.is_draining)

    def _event(self, body: bytes, status: int = 200) -> None:
        data = answers.chunk(b"data: %b\n\n" % body)
        if not self._has_begun:
            self._has_begun = True
            data = self._head(status) + data
        if not self._connection.closed:
            self._connection.write(data)

    def _head(self, status: int) -> bytes:
        """Return the headers; of the server's times, only the queue time is known by now."""
        extra = b"Server-Timing: queue;dur=%.6f\r\n" % (self.inference.queue_ns / 1e6)
        return answers.stream_head(self._request.keep_alive, False, status, extra)
