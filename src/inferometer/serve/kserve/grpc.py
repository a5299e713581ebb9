"""KServe over gRPC: all services on one port, ModelInfer and ModelStreamInfer.

As in Triton, responses of ordinary models on a stream are sent in the order of their requests, those of decoupled models
as soon as they are available, and an error is a message of its own, after which the stream continues. What waits is
bounded: the server stops reading from a stream with too many requests in progress, or too many responses that wait for
their turn.
"""

import socket
from collections import deque
from functools import partial
from typing import Any

from inferometer.serve.grpc.call import Call, Data, Method, parse, timed, trailers
from inferometer.serve.grpc.server import GrpcServer
from inferometer.serve.grpc.standard_services import Health, Reflection
from inferometer.serve.kserve import control, grpc_codec
from inferometer.serve.kserve.grpc_codec import FINAL
from inferometer.serve.kserve.messages import KSERVE_SERVICE, Message, ModelStreamInferResponse
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Inference, Refused, ignore, reason
from inferometer.serve.offload import LARGE
from inferometer.serve.settings import Settings
from inferometer.tensors import Tensor
from inferometer.timing.clock import now
from inferometer.wire.grpc_framing import one_line

_MAX_PENDING, _MAX_HELD = 1024, 64 << 20
"""Requests in progress, and bytes of responses that wait for earlier ones, from which on the stream is not read."""
_OPEN = ("ServerLive", "ServerReady", "ModelReady")
"""Methods that require no token."""
_SHUTTING_DOWN = Refused("UNAVAILABLE", "the server is shutting down and does not accept new requests")

Parts = tuple[Data, ...]


class KserveGrpc(GrpcServer):
    """The running server. `health` holds the state that health checks report."""

    def __init__(self, models: Models, settings: Settings, sock: socket.socket) -> None:
        self.models = models
        self.health = Health(KSERVE_SERVICE, models.is_ready, models.is_known)
        methods = {
            "ModelInfer": Method(self._infer),
            "ModelStreamInfer": Method(partial(Stream, models), is_stream=True),
        }
        for name, method in control.methods(models, settings).items():
            methods[name] = Method(partial(_control, method), is_open=name in _OPEN)
        paths = {f"/{KSERVE_SERVICE}/{name}": method for name, method in methods.items()}
        paths |= self.health.methods() | Reflection().methods()
        super().__init__(sock, paths, settings, models.offload)

    def _infer(self, call: Call, data: Data) -> None:
        """ModelInfer: one request, one response."""
        parts = grpc_codec.cut(data)
        size, find = len(parts[0]), self.models.regions.find
        if size <= LARGE:
            self._submit(call, grpc_codec.decode(parts, find))
        else:
            call.offload(size, partial(grpc_codec.decode, parts, find), partial(self._submit, call))

    def _submit(self, call: Call, one: Inference) -> None:
        model = self.models.find(one.model, one.version)
        if model.decoupled:
            raise Refused("UNIMPLEMENTED", "ModelInfer RPC doesn't support models with decoupled transaction policy")
        one.ended, one.arrived, one.deadline = partial(_ended, call, one), call.arrived, call.deadline
        self.models.submit(one, False, model)
        if not one.is_over:
            call.on_over = partial(self.models.cancel, one)


def _ended(call: Call, one: Inference, refused: Refused | None) -> None:
    if refused is not None:
        call.refuse(refused)
    else:
        parts = grpc_codec.response(one, one.outputs)
        call.reply(parts, timed(one.queue_ns, one.compute_ns, now() - one.arrived))


def _control(method: control.Method, call: Call, data: Data) -> None:
    """Respond with what a method of control.py returns."""

    def reply(made: Message) -> None:
        call.reply((made.SerializeToString(),))

    kind, start = method
    start(parse(kind, data), reply, lambda error: call.refuse(reason(error)))


class Stream:
    """One call of ModelStreamInfer."""

    def __init__(self, models: Models, call: Call) -> None:
        self._models, self._call = models, call
        self._pending: set[Inference] = set()
        self._in_order: deque[list[Parts]] = deque()
        """For each request to an ordinary model, its response, once there is one, until it is sent."""
        self._held = 0
        """Bytes of these responses."""
        self._is_full = self._is_read = self._is_drained = False
        self._times = [0, 0, 0]
        """Queue, compute and total time of all requests together."""
        call.on_message, call.on_ended = self._message, self._all_read
        call.on_over, call.on_drained = self._cancel, self._drain

    def _message(self, call: Call, data: Data) -> None:
        try:
            parts = grpc_codec.cut(data)
        except Refused as refused:
            call.send(_without_outputs(Inference("", {}), None, refused))
            return
        size = len(parts[0])
        if is_large := size > LARGE:
            call.pause()  # until it is submitted, so that requests keep their order
        work = partial(grpc_codec.decode, parts, self._models.regions.find)
        self._models.offload.run(size, work, partial(self._decoded, parts[1], is_large))

    def _decoded(self, id: str, is_large: bool, one: Inference | None, error: BaseException | None) -> None:
        if self._call.is_over:
            return
        turn: list[Parts] = []
        try:
            if one is None:
                raise error or MemoryError()
            model = self._models.find(one.model, one.version)
        except Exception as why:
            self._in_order.append(turn)
            self._respond(turn, (_without_outputs(Inference("", {}, id=id), None, reason(why)),))
        else:
            if model.decoupled:
                one.responded, one.ended = partial(self._send, one), partial(self._ended, one, None)
            else:
                self._in_order.append(turn)
                one.ended = partial(self._ended, one, turn)
            one.arrived, one.deadline = self._call.arrived, self._call.deadline
            self._pending.add(one)
            self._models.submit(one, False, model)
        self._go_on()
        if is_large:
            self._call.resume()

    def _send(self, one: Inference, outputs: tuple[Tensor, ...]) -> None:
        """Send a response of a decoupled model."""
        self._call.send(*grpc_codec.in_stream(grpc_codec.response(one, outputs, final=False)))

    def _ended(self, one: Inference, turn: list[Parts] | None, refused: Refused | None) -> None:
        """Send the response of an ordinary model in its turn, or the end of a decoupled one's."""
        self._pending.discard(one)
        if one.started >= 0:
            self._times[0] += one.queue_ns
            self._times[1] += one.finished - one.started
        self._times[2] += now() - one.arrived
        if turn is not None and refused is None:
            self._respond(turn, grpc_codec.in_stream(grpc_codec.response(one, one.outputs, final=True)))
        elif turn is not None:
            self._respond(turn, (_without_outputs(one, True, refused),))
        else:
            if refused is not None:
                self._call.send(_without_outputs(one, False, refused))
            if one.parameters.get("triton_enable_empty_final_response", False):
                self._call.send(_without_outputs(one, True, None))
        self._go_on()

    def _respond(self, turn: list[Parts], parts: Parts) -> None:
        """Send a response of an ordinary model after those to earlier requests."""
        turn.append(parts)
        self._held += sum(map(len, parts))
        while self._in_order and self._in_order[0]:
            (first,) = self._in_order.popleft()
            self._held -= sum(map(len, first))
            self._call.send(*first)

    def _all_read(self, call: Call) -> None:
        self._is_read = True
        self._go_on()

    def _drain(self) -> None:
        """Accept no more requests, and refuse the call when those in progress have their responses."""
        if not self._is_read:
            self._is_drained, self._call.on_message = True, ignore
            self._all_read(self._call)

    def _cancel(self) -> None:
        for one in list(self._pending):
            self._models.cancel(one)

    def _go_on(self) -> None:
        """End the call if it is complete; otherwise, read it unless too much is in progress."""
        if self._call.is_over:
            return
        if self._is_read and not self._pending:
            if self._is_drained:
                self._call.finish(trailers(_SHUTTING_DOWN), _SHUTTING_DOWN.code)
            else:
                self._call.finish(timed(*self._times))
            return
        is_full = max(len(self._pending), len(self._in_order)) >= _MAX_PENDING or self._held > _MAX_HELD
        if is_full != self._is_full:
            self._is_full = is_full
            (self._call.pause if is_full else self._call.resume)()


def _without_outputs(one: Inference, final: bool | None, refused: Refused | None) -> bytes:
    """Return an error, or the empty response at the end."""
    response: dict[str, Any] = {"model_name": one.model, "id": one.id}
    if final is not None:
        response["parameters"] = {FINAL: {"bool_param": final}}
    error = "" if refused is None else one_line(refused.message)
    return bytes(ModelStreamInferResponse(error_message=error, infer_response=response).SerializeToString())
