"""From an inference to its HTTP response: the base of all responders, and the one for /infer.

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
from inferometer.serve.http import responses
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.http.responses import JOINED, reply
from inferometer.serve.kserve import http_codec
from inferometer.serve.kserve.http_codec import InferReply
from inferometer.serve.models.model import Model
from inferometer.serve.models.types import Inference, Output, Refused
from inferometer.serve.offload import LARGE
from inferometer.timing.clock import now

if TYPE_CHECKING:
    from inferometer.serve.kserve.routes import Kserve

T = TypeVar("T")


class Responder:
    """A request with its connection, and then with its inference."""

    __slots__ = ("connection", "inference", "kserve", "outputs", "request")

    inference: Inference

    def __init__(self, kserve: "Kserve", connection: Connection, request: Request) -> None:
        self.kserve, self.connection, self.request = kserve, connection, request
        self.outputs: tuple[Output, ...] = ()

    def submit(self, inference: Inference, model: Model | None = None) -> None:
        """Submit the inference; `model` is its model, if it has just been found."""
        self.inference = inference
        inference.responded, inference.ended, inference.arrived = self.responded, self.ended, self.request.arrived
        try:
            self.kserve.models.submit(inference, True, model)
        except BaseException:
            del self.inference
            raise
        if not inference.is_over:
            self.connection.gone = self.cancel

    def cancel(self) -> None:
        self.kserve.models.cancel(self.inference)

    def responded(self, outputs: tuple[Output, ...]) -> None:
        self.outputs = outputs

    def ended(self, refused: Refused | None) -> None:
        connection = self.connection
        try:
            if connection.transport.closed:
                connection.finish(keep_alive=False)
            elif refused is not None:
                self.fail(refused)
            else:
                try:
                    self.respond(self.inference)
                except Exception as error:
                    self.refuse(error)
        except BaseException:
            connection.hang_up()  # otherwise the client, and the server's shutdown, would wait forever
            raise
        finally:
            del self.inference, self.outputs  # break the reference cycle, so that the tensors are freed at once

    def respond(self, inference: Inference) -> None:
        """Send the response of an inference that succeeded."""
        raise NotImplementedError

    def fail(self, refused: Refused) -> None:
        """Send the error of an inference that failed."""
        self.refuse(refused)

    def refuse(self, error: BaseException) -> None:
        self.kserve.refuse(self.connection, self.request, error)

    def reply(self, inference: Inference, body: InferReply) -> None:
        extra = body.headers + responses.timing(inference.queue_ns, inference.compute_ns, now() - inference.arrived)
        kind, close = body.content_type, self.kserve.models.refuses
        reply(self.connection, self.request, 200, *body.parts, content_type=kind, extra=extra, close=close)

    # --- in a thread ---

    def offload(self, size: int, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Continue with the result of `work` on `size` bytes."""
        if size <= LARGE:
            then(work())
            return
        waiting = self.kserve.offloaded
        waiting.add(self)
        self.connection.gone = self._drop

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

        self.kserve.models.offload.run(size, lambda: work() if self in waiting else None, worked)

    def leave(self) -> None:
        """Stop waiting for the thread."""
        self.kserve.offloaded.discard(self)
        self.connection.gone = None

    def _drop(self) -> None:
        self.leave()
        self.connection.finish(keep_alive=False)


class Infer(Responder):
    """/infer: the tensors of one response."""

    __slots__ = ()

    def respond(self, inference: Inference) -> None:
        request, outputs, connection = self.request, self.outputs, self.connection
        accepted = request.headers.get(b"accept-encoding")
        how = compression.choose(accepted) if accepted else ""
        if how or not request.keep_alive or self.kserve.models.refuses:
            known = None
        else:
            known = http_codec.binary_response(inference, outputs)
        if known is None:
            binary = inference.binary
            make = partial(
                http_codec.response_body, inference.model, inference.version, inference.id, outputs, binary, how
            )
            self.offload(http_codec.turned(outputs, binary, bool(how)), make, partial(self.reply, inference))
            return
        head, json, data, size = known  # the short path of `reply`
        timing = responses.timing(inference.queue_ns, inference.compute_ns, now() - inference.arrived)
        if size <= JOINED:
            connection.write(b"".join((head, timing, b"\r\n", json, *data)))
        else:
            connection.write(b"".join((head, timing, b"\r\n", json)), *data)
        connection.finish()
