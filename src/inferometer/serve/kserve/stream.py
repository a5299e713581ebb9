"""Inference over gRPC streams: ModelStreamInfer (many requests and their responses) and InferStream (one request).

As in Triton, responses of ordinary models are sent in the order of their requests, those of decoupled models as soon as
they are available, and an error is a message of its own, after which the stream continues. The amount of unsent data is
bounded: the server stops reading from a client that does not read its responses.
"""

import asyncio
import time
from collections import deque

import grpc  # type: ignore[import-untyped]

from inferometer.serve.kserve import backpressure, grpc_codec
from inferometer.serve.kserve.grpc_calls import anew, deadline, inference, is_decoupled, let_go, prepare, say_times
from inferometer.serve.kserve.handlers import Context, refusal, shown
from inferometer.serve.kserve.messages import Message, ModelInferResponse, ModelStreamInferResponse
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Inference, Output, Refused

_MAX_PENDING = 1024
_MAX_WAITING = 64 << 20
"""Requests in progress, and bytes of unsent responses, from which on the stream is not read."""


def _stopping() -> Refused:
    return Refused("UNAVAILABLE", "the server is shutting down and does not accept new requests")


class Outbox:
    """Messages to be sent to a client."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._is_complete = False
        self.has_overflown = False

    def put(self, message: bytes) -> None:
        if self.has_overflown:
            return
        self._waiting.append(message)
        self._bytes += len(message)
        self._changed.set()
        if self._bytes > backpressure.GIVEN_UP and len(self._waiting) > 1:
            self._waiting.clear()
            self.has_overflown = True

    def complete(self) -> None:
        """Note that no more messages will be added."""
        self._is_complete = True
        self._changed.set()

    @property
    def has_room(self) -> bool:
        return self._bytes <= _MAX_WAITING

    async def send(self, sent: asyncio.Event | None = None) -> None:
        """Write until all messages are written; `sent` is set after each one."""
        while True:
            while self._waiting:
                message = self._waiting.popleft()
                await self._context.write(message)
                self._bytes -= len(message)
                del message
                if sent is not None:
                    sent.set()
            if self._is_complete:
                return
            self._changed.clear()
            await self._changed.wait()


# --- one request -----------------------------------------------------------------------------------------------------


async def infer_stream(models: Models, context: Context) -> None:
    data = await context.read()
    if data is grpc.aio.EOF:
        raise Refused("INVALID_ARGUMENT", "the call contains no request")
    now = time.monotonic_ns()
    request, raw, typed = grpc_codec.parse(data)
    outbox, end = Outbox(context), _End()

    def answer(outputs: tuple[Output, ...]) -> None:
        made = grpc_codec.head(one.model, one.version, one.id, outputs, (one.queue_ns, one.compute_ns))
        outbox.put(grpc_codec.joined(made, outputs))
        if outbox.has_overflown:
            end.refused = backpressure.not_read()
            models.cancel(one)

    def ended(refused: Refused | None) -> None:
        end.refused = end.refused or refused
        outbox.complete()

    one = inference(
        models, request, raw, typed, answer=answer, ended=ended, deadline=deadline(context, now), arrived=now
    )
    del request, raw, typed, data
    try:
        await prepare(context)
        models.submit(one)
        await outbox.send()
        say_times(context, one.queue_ns, one.compute_ns)
    finally:
        models.cancel(one)
        let_go(one)
    if end.refused is not None:
        raise anew(end.refused)


class _End:
    refused: Refused | None = None


# --- many requests ---------------------------------------------------------------------------------------------------


class _Request:
    """One request of a stream."""

    __slots__ = ("decoupled", "empty_final", "id", "inference", "model", "over", "ready")

    def __init__(self, request: Message) -> None:
        self.id, self.model = request.id, request.model_name
        self.decoupled = self.empty_final = self.over = False
        self.inference: Inference | None = None
        self.ready: list[bytes] = []
        """Responses that wait for their turn."""


class Stream:
    """One call of ModelStreamInfer."""

    def __init__(self, models: Models, context: Context) -> None:
        self._models, self._context = models, context
        self._outbox = Outbox(context)
        self._in_order: deque[_Request] = deque()
        """Requests whose responses are not sent yet, except those to decoupled models."""
        self._held = 0
        """Bytes of responses that wait for those of an earlier request."""
        self._pending: set[_Request] = set()
        self._moved = asyncio.Event()
        """Set when a request ended or a message was sent."""
        self._reader: asyncio.Task[None] | None = None
        self._is_read = False
        self._refused: Refused | None = None
        self._queue_ns = self._compute_ns = 0
        """Queue time of all requests together; each response has its own."""

    async def run(self) -> None:
        await prepare(self._context)
        self._reader = asyncio.ensure_future(self._read())
        try:
            await self._outbox.send(self._moved)
            say_times(self._context, self._queue_ns, self._compute_ns)
        finally:
            self._reader.cancel()
            for request in list(self._pending):
                if request.inference is not None:
                    self._models.cancel(request.inference)
        if self._refused is not None:
            raise anew(self._refused)

    def end_input(self) -> None:
        """Accept no more requests; the stream ends when those in progress have their responses."""
        if self._reader is not None and not self._is_read:
            self._refused = self._refused or _stopping()
            self._reader.cancel()

    async def _read(self) -> None:
        try:
            while (data := await self._context.read()) is not grpc.aio.EOF:
                self._take(data)
                del data
                while not self._has_room():
                    self._moved.clear()
                    await self._moved.wait()
        except Exception as error:  # refused requests do not end a stream, so this is the connection
            self._refused = refusal(error)
        finally:
            self._is_read = True
            self._complete()

    def _has_room(self) -> bool:
        under_way = max(len(self._pending), len(self._in_order))
        return under_way < _MAX_PENDING and self._held <= _MAX_WAITING and self._outbox.has_room

    def _take(self, data: bytes) -> None:
        now = time.monotonic_ns()
        try:
            request, raw, typed = grpc_codec.parse(data)
        except Refused as refused:
            self._outbox.put(_error(refused.message, ModelInferResponse()))
            return
        one = _Request(request)
        self._pending.add(one)
        try:
            one.decoupled = is_decoupled(self._models, request)
            made = one.inference = inference(
                self._models,
                request,
                raw,
                typed,
                answer=lambda outputs: self._answer(one, outputs),
                ended=lambda refused: self._ended(one, refused),
                deadline=deadline(self._context, now),
                arrived=now,
            )
            one.empty_final = one.decoupled and bool(made.parameters.get(grpc_codec.EMPTY_FINAL, False))
            if not one.decoupled:
                self._in_order.append(one)
            self._models.submit(made)
        except Exception as error:
            if not one.decoupled and (not self._in_order or self._in_order[-1] is not one):
                self._in_order.append(one)
            one.ready.append(_error(refusal(error).message, ModelInferResponse(id=one.id)))
            self._over(one)

    def _answer(self, request: _Request, outputs: tuple[Output, ...]) -> None:
        one = request.inference
        assert one is not None
        times = one.queue_ns, one.compute_ns
        made = grpc_codec.head(one.model, one.version, one.id, outputs, times, final=not request.decoupled)
        message = grpc_codec.in_stream(made, outputs)
        if not request.decoupled:
            request.ready.append(message)
            return
        self._outbox.put(message)
        if self._outbox.has_overflown:
            self._refused = backpressure.not_read()
            self.end_input()
            self._models.cancel(one)

    def _ended(self, request: _Request, refused: Refused | None) -> None:
        one = request.inference
        if one is not None and one.started >= 0:
            self._queue_ns += one.queue_ns
            self._compute_ns += one.finished - one.started if request.decoupled else one.compute_ns
        if refused is not None:
            request.ready.append(_error(refused.message, _empty(request, final=not request.decoupled)))
        if request.empty_final:
            request.ready.append(grpc_codec.in_stream(_empty(request, final=True), ()))
        self._over(request)

    def _over(self, request: _Request) -> None:
        """Send the last messages of a request, or hold them until the requests before it are done."""
        request.over = True
        request.inference = None  # break the reference cycle, so that its tensors are freed at once
        self._pending.discard(request)
        if request.decoupled:
            self._send(request)
        else:
            self._held += _size(request)
        while self._in_order and self._in_order[0].over:
            first = self._in_order.popleft()
            self._held -= _size(first)
            self._send(first)
        self._moved.set()
        self._complete()

    def _send(self, request: _Request) -> None:
        for message in request.ready:
            self._outbox.put(message)

    def _complete(self) -> None:
        if self._is_read and not self._pending:
            self._outbox.complete()


def _size(request: _Request) -> int:
    return sum(map(len, request.ready))


def _empty(request: _Request, final: bool) -> Message:
    made = ModelInferResponse(model_name=request.model, id=request.id)
    made.parameters[grpc_codec.FINAL].bool_param = final
    return made


def _error(message: str, answer: Message) -> bytes:
    made = ModelStreamInferResponse(error_message=shown(message), infer_response=answer)
    data: bytes = made.SerializeToString()
    return data
