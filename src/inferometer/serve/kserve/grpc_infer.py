"""ModelInfer: one request, one response."""

from functools import partial

from inferometer.serve.grpc import status
from inferometer.serve.grpc.call import Call
from inferometer.serve.kserve import grpc_codec
from inferometer.serve.kserve.grpc_codec import Data
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Inference, Output, Refused, reason
from inferometer.serve.offload import LARGE
from inferometer.timing.clock import now


class ModelInfer:
    """The method: from a message to `Models.submit`."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def __call__(self, call: Call, data: Data) -> None:
        models, parts = self._models, grpc_codec.cut(data)
        if len(parts[0]) <= LARGE:
            _Responder(models, call).start(grpc_codec.decode(models, parts, False))
        else:
            work = partial(grpc_codec.decode, models, parts, False)
            models.offload.run(len(parts[0]), work, partial(_decoded, models, call))


def _decoded(models: Models, call: Call, one: Inference | None, error: BaseException | None) -> None:
    if call.is_over:
        return
    try:
        if one is None:
            raise error or MemoryError()
        _Responder(models, call).start(one)
    except Exception as why:
        call.refuse(reason(why))


class _Responder:
    """Waits for the single response of an inference, and sends it."""

    __slots__ = ("_call", "_inference", "_models", "_outputs")

    def __init__(self, models: Models, call: Call) -> None:
        self._models, self._call = models, call
        self._inference: Inference | None = None
        self._outputs: tuple[Output, ...] | None = None

    def start(self, one: Inference) -> None:
        call = self._call
        one.answer, one.ended, one.arrived, one.deadline = self._answer, self._ended, call.arrived, call.deadline
        self._inference = one
        try:
            self._models.submit(one)
        except BaseException:
            self._inference = None  # break the reference cycle, so that the tensors are freed at once
            raise
        if self._inference is not None:
            call.on_cancelled = self._cancel

    def _cancel(self) -> None:
        if self._inference is not None:
            self._models.cancel(self._inference)

    def _answer(self, outputs: tuple[Output, ...]) -> None:
        self._outputs = outputs

    def _ended(self, refused: Refused | None) -> None:
        one, self._inference = self._inference, None
        assert one is not None
        if refused is not None:
            self._call.refuse(refused)
        elif self._outputs is None:
            self._call.refuse(Refused("INTERNAL", f"model '{one.model}' ended without a response"))
        else:
            parts = grpc_codec.response(one, self._outputs)
            self._call.reply(parts, status.timed(one.queue_ns, one.compute_ns, now() - one.arrived))
