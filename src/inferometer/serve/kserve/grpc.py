"""KServe over gRPC: all services on one port, ModelInfer and ModelStreamInfer.

As in Triton, responses of ordinary models on a stream are sent in the order of their requests, those of decoupled models
as soon as they are available, and an error is a message of its own, after which the stream continues. What waits is
bounded: the server stops reading from a stream with too many requests in progress, or too many responses that wait for
their turn.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable
from functools import partial

from inferometer.serve.grpc import headers
from inferometer.serve.grpc.call import Call, parse
from inferometer.serve.grpc.headers import Data, Method, Unary
from inferometer.serve.grpc.server import GrpcServer
from inferometer.serve.grpc.standard_services import Health, Reflection
from inferometer.serve.kserve import control, grpc_codec
from inferometer.serve.kserve.messages import KSERVE_SERVICE, Message, ModelInferResponse, ModelStreamInferResponse
from inferometer.serve.kserve.parameters import EMPTY_FINAL, FINAL
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Inference, Output, Refused, reason
from inferometer.serve.offload import LARGE, UNREAD, not_read, run_to_end
from inferometer.serve.ports import explained
from inferometer.serve.settings import Settings
from inferometer.timing.clock import now
from inferometer.wire.grpc_framing import one_line

_MAX_PENDING = 1024
_MAX_HELD = 64 << 20
"""Requests in progress, and bytes of responses that wait for those of earlier requests, from which on the stream is not
read."""
_OPEN = ("ServerLive", "ServerReady", "ModelReady")
"""Methods that require no token."""


class KserveGrpc(GrpcServer):
    """The running server. `port` is where it listens; `health` holds the state that health checks report."""

    def __init__(self, models: Models, settings: Settings, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self.health = Health(loop, KSERVE_SERVICE, models.is_ready, models.is_known)
        infer = GrpcInfer(models)
        methods = {"ModelInfer": Method(infer.infer), "ModelStreamInfer": Method(infer.stream, is_unary=False)}
        for name, method in control.methods(models, settings).items():
            methods[name] = Method(_unary(method), is_open=name in _OPEN)
        paths = {f"/{KSERVE_SERVICE}/{name}": method for name, method in methods.items()}
        paths |= self.health.methods() | Reflection((KSERVE_SERVICE, Health.NAME)).methods()
        super().__init__(loop, sock, paths, (infer.close, self.health.close), settings, models.offload)


async def start(models: Models, settings: Settings, sock: socket.socket) -> KserveGrpc:
    """Listen on the bound socket; raises UserError if that fails."""
    host, port = sock.getsockname()[:2]
    with explained(host, port, "--grpc"):
        return KserveGrpc(models, settings, sock)


def _unary(method: control.Method) -> Unary:
    kind, run = method

    def respond(call: Call, data: Data) -> None:
        run_to_end(_respond(call, run(parse(kind, data))))

    return respond


async def _respond(call: Call, work: Awaitable[Message]) -> None:
    try:
        made = await work
    except Exception as error:
        call.refuse(reason(error))
    else:
        call.reply((made.SerializeToString(),))


# --- ModelInfer ----------------------------------------------------------------------------------------------------------


class GrpcInfer:
    """ModelInfer (one request, one response) and ModelStreamInfer, with all of its streams."""

    def __init__(self, models: Models) -> None:
        self.models = models
        self.streams: set[Stream] = set()

    def infer(self, call: Call, data: Data) -> None:
        models, parts = self.models, grpc_codec.cut(data)
        size = len(parts[0])
        if size <= LARGE:
            _Responder(models, call, grpc_codec.decode(parts, models.regions))
        else:
            work = partial(grpc_codec.decode, parts, models.regions)
            models.offload.run(size, work, partial(self._decoded, call))

    def _decoded(self, call: Call, one: Inference | None, error: BaseException | None) -> None:
        if call.is_over:
            return
        try:
            if one is None:
                raise error or MemoryError()
            _Responder(self.models, call, one)
        except Exception as why:
            call.refuse(reason(why))

    def stream(self, call: Call) -> None:
        self.streams.add(Stream(self, call))

    def close(self) -> None:
        """Accept no more requests; the streams end when those in progress have their responses."""
        for stream in list(self.streams):
            stream.end(Refused("UNAVAILABLE", "the server is shutting down and does not accept new requests"))


class _Responder:
    """Submits an inference, waits for its single response, and sends it."""

    __slots__ = ("_call", "_inference", "_outputs")

    def __init__(self, models: Models, call: Call, one: Inference) -> None:
        model = models.find(one.model, one.version)
        if model.decoupled:
            raise Refused("UNIMPLEMENTED", "ModelInfer RPC doesn't support models with decoupled transaction policy")
        self._call, self._inference = call, one
        self._outputs: tuple[Output, ...] = ()
        one.responded, one.ended, one.arrived, one.deadline = self._responded, self._ended, call.arrived, call.deadline
        try:
            models.submit(one, False, model)
        except BaseException:
            del self._inference  # break the reference cycle, so that the tensors are freed at once
            raise
        if not one.is_over:
            call.on_cancelled = partial(models.cancel, one)

    def _responded(self, outputs: tuple[Output, ...]) -> None:
        self._outputs = outputs

    def _ended(self, refused: Refused | None) -> None:
        one = self._inference
        del self._inference
        if refused is not None:
            self._call.refuse(refused)
        else:
            parts = grpc_codec.response(one, self._outputs)
            self._call.reply(parts, headers.timed(one.queue_ns, one.compute_ns, now() - one.arrived))


# --- ModelStreamInfer ---------------------------------------------------------------------------------------------------------


class _Request:
    """One request of a stream."""

    __slots__ = ("arrived", "empty_final", "id", "inference", "is_decoupled", "is_over", "ready")

    def __init__(self, id: str, arrived: int) -> None:
        self.id, self.arrived = id, arrived
        self.is_decoupled = self.empty_final = self.is_over = False
        self.inference: Inference | None = None
        self.ready: list[tuple[Data, ...]] = []
        """Responses that wait for their turn."""

    @property
    def size(self) -> int:
        return sum(len(part) for parts in self.ready for part in parts)


class Stream:
    """One call of ModelStreamInfer."""

    def __init__(self, service: GrpcInfer, call: Call) -> None:
        self._models, self._streams, self._call = service.models, service.streams, call
        self._in_order: deque[_Request] = deque()
        """Requests whose responses are not sent yet, except those to decoupled models."""
        self._held = 0
        """Bytes of responses that wait for those of an earlier request."""
        self._pending: set[_Request] = set()
        self._is_full = self._is_read = False
        self._refused: Refused | None = None
        self._times = [0, 0, 0]
        """Queue, compute and total time of all requests together."""
        call.on_message, call.on_ended, call.on_cancelled = self._message, self._all_read, self._cancel

    def end(self, refused: Refused) -> None:
        """Accept no more requests, and refuse the call when those in progress have their responses."""
        if not self._is_read:
            self._refused = refused
            self._call.on_message = lambda *_: None
            self._all_read(self._call)

    def _all_read(self, call: Call) -> None:
        self._is_read = True
        self._complete()

    def _cancel(self) -> None:
        self._streams.discard(self)
        for request in list(self._pending):
            if request.inference is not None:
                self._models.cancel(request.inference)

    def _message(self, call: Call, data: Data) -> None:
        try:
            parts = grpc_codec.cut(data)
        except Refused as refused:
            call.send(_error(refused.message, ModelInferResponse()))
            return
        if is_large := len(parts[0]) > LARGE:
            call.pause()  # until it is submitted, so that requests keep their order
        work = partial(grpc_codec.decode, parts, self._models.regions)
        self._models.offload.run(len(parts[0]), work, partial(self._decoded, parts[1], is_large))

    def _decoded(self, id: str, is_large: bool, one: Inference | None, error: BaseException | None) -> None:
        if not self._call.is_over:
            self._submit(_Request(id, self._call.arrived), one, error)
            self._check_room()
            if is_large:
                self._call.resume()

    def _submit(self, request: _Request, one: Inference | None, error: BaseException | None) -> None:
        self._pending.add(request)
        try:
            if one is None:
                raise error or MemoryError()
            model = self._models.find(one.model, one.version)
            request.inference, request.is_decoupled = one, model.decoupled
            request.empty_final = model.decoupled and bool(one.parameters.get(EMPTY_FINAL, False))
            if not request.is_decoupled:
                self._in_order.append(request)
            one.responded, one.ended = partial(self._responded, request), partial(self._ended, request)
            one.arrived, one.deadline = request.arrived, self._call.deadline
            self._models.submit(one, False, model)
        except Exception as why:
            if not request.is_decoupled and (not self._in_order or self._in_order[-1] is not request):
                self._in_order.append(request)
            request.ready.append((_error(reason(why).message, ModelInferResponse(id=request.id)),))
            self._done(request)

    def _check_room(self) -> None:
        in_progress = max(len(self._pending), len(self._in_order))
        is_full = in_progress >= _MAX_PENDING or self._held > _MAX_HELD
        if is_full != self._is_full and not self._call.is_over:
            self._is_full = is_full
            (self._call.pause if is_full else self._call.resume)()

    def _responded(self, request: _Request, outputs: tuple[Output, ...]) -> None:
        one = request.inference
        assert one is not None
        parts = grpc_codec.in_stream(grpc_codec.response(one, outputs, final=not request.is_decoupled))
        if not request.is_decoupled:
            request.ready.append(parts)
            return
        self._call.send(*parts)
        if self._call.unsent > UNREAD:
            self._call.abort(not_read())

    def _ended(self, request: _Request, refused: Refused | None) -> None:
        one = request.inference
        assert one is not None
        if one.started >= 0:
            self._times[0] += one.queue_ns
            self._times[1] += one.finished - one.started if request.is_decoupled else one.compute_ns
        if refused is not None:
            request.ready.append((_error(refused.message, _empty(one, final=not request.is_decoupled)),))
        if request.empty_final:
            message = ModelStreamInferResponse(infer_response=_empty(one, final=True))
            request.ready.append((message.SerializeToString(),))
        self._done(request)

    def _done(self, request: _Request) -> None:
        """Send the last messages of a request, or hold them until the requests before it are done."""
        request.is_over = True
        request.inference = None  # break the reference cycle, so that its tensors are freed at once
        self._pending.discard(request)
        if request.is_decoupled:
            self._send(request)
        else:
            self._held += request.size
        while self._in_order and self._in_order[0].is_over:
            first = self._in_order.popleft()
            self._held -= first.size
            self._send(first)
        self._check_room()
        self._complete()

    def _send(self, request: _Request) -> None:
        for parts in request.ready:
            self._call.send(*parts)
        self._times[2] += now() - request.arrived

    def _complete(self) -> None:
        if self._is_read and not self._pending and not self._call.is_over:
            self._streams.discard(self)
            if self._refused is not None:
                self._call.finish(headers.trailers(self._refused), self._refused.code)
            else:
                self._call.finish(headers.timed(*self._times))


def _empty(one: Inference, final: bool) -> Message:
    empty = ModelInferResponse(model_name=one.model, id=one.id)
    empty.parameters[FINAL].bool_param = final
    return empty


def _error(message: str, response: Message) -> bytes:
    made = ModelStreamInferResponse(error_message=one_line(message), infer_response=response)
    return bytes(made.SerializeToString())
