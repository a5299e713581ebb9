"""One inference per gRPC call: from the request's bytes to `Models.submit`, and ModelInfer, the simplest method."""

import asyncio
import time
from collections.abc import Callable

import grpc  # type: ignore[import-untyped]

from inferometer.serve.kserve import grpc_codec
from inferometer.serve.kserve.handlers import Context
from inferometer.serve.kserve.messages import Message
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import NEVER, Inference, Output, Refused

Answer = Callable[[tuple[Output, ...]], None]
Ended = Callable[[Refused | None], None]


def is_decoupled(models: Models, request: Message) -> bool:
    """Whether the model may send any number of responses; raises Refused if there is no such model."""
    return models.find(request.model_name, request.model_version).decoupled


def inference(
    models: Models,
    request: Message,
    raw: grpc_codec.Raw,
    typed: grpc_codec.Typed,
    *,
    answer: Answer,
    ended: Ended,
    deadline: int,
    arrived: int,
) -> Inference:
    inputs, unread = grpc_codec.inputs(request, raw, typed, models.regions)
    return Inference(
        request.model_name,
        inputs,
        answer=answer,
        ended=ended,
        arrived=arrived,
        version=request.model_version,
        id=request.id,
        wanted=grpc_codec.wanted(request),
        parameters=grpc_codec.parameters(request),
        deadline=deadline,
        unread=unread,
    )


def let_go(one: Inference) -> None:
    """Break reference cycles after the end, so that the tensors are freed at once."""
    one.answer = one.ended = _ignore


def anew(refused: Refused) -> Refused:
    """Return a copy to raise: an exception references the frames it passes through, which should not reference it."""
    return Refused(refused.code, refused.message)


def _ignore(_: object) -> None:
    pass


def deadline(context: Context, now: int) -> int:
    left = context.time_remaining()
    return NEVER if left is None else now + int(left * 1e9)


async def prepare(context: Context) -> None:
    """Set up the call. A response is compressed if the client requests it with the metadata `accept-encoding`.

    (gRPC does not reveal the request's own compression, and every client claims to accept gzip.)
    """
    for key, value in context.invocation_metadata() or ():
        if key == "accept-encoding":
            names = [name.partition(";")[0].strip() for name in str(value).lower().split(",")]
            chosen = next((name for name in names if name in _COMPRESSIONS), None)
            if chosen is not None:
                context.set_compression(_COMPRESSIONS[chosen])
                await context.send_initial_metadata(())  # otherwise compression is ignored in responses of unary calls
            return


_COMPRESSIONS = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}


def say_times(context: Context, queue_ns: int, compute_ns: int) -> None:
    timing = f"queue;dur={queue_ns / 1e6:.6f}, compute;dur={compute_ns / 1e6:.6f}"
    context.set_trailing_metadata((("server-timing", timing),))


class _Waiting:
    """Waits for the single response of an inference."""

    __slots__ = ("future", "outputs", "over", "refused")

    def __init__(self) -> None:
        self.outputs: tuple[Output, ...] | None = None
        self.refused: Refused | None = None
        self.over = False
        self.future: asyncio.Future[None] | None = None
        """Set only if the end did not come at once."""

    def answer(self, outputs: tuple[Output, ...]) -> None:
        self.outputs = outputs

    def ended(self, refused: Refused | None) -> None:
        self.over, self.refused = True, refused
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


async def model_infer(models: Models, data: bytes, context: Context) -> bytes:
    now = time.monotonic_ns()
    request, raw, typed = grpc_codec.parse(data)
    if is_decoupled(models, request):
        raise Refused("UNIMPLEMENTED", "ModelInfer RPC doesn't support models with decoupled transaction policy")
    waiting = _Waiting()
    one = inference(
        models,
        request,
        raw,
        typed,
        answer=waiting.answer,
        ended=waiting.ended,
        deadline=deadline(context, now),
        arrived=now,
    )
    await prepare(context)
    models.submit(one)
    if not waiting.over:
        waiting.future = asyncio.get_running_loop().create_future()
        try:
            await waiting.future
        except asyncio.CancelledError:
            models.cancel(one)
            raise
    if waiting.refused is not None:
        raise anew(waiting.refused)
    if waiting.outputs is None:
        raise Refused("INTERNAL", f"model '{one.model}' ended without a response")
    say_times(context, one.queue_ns, one.compute_ns)
    made = grpc_codec.head(one.model, one.version, one.id, waiting.outputs, (one.queue_ns, one.compute_ns))
    return grpc_codec.joined(made, waiting.outputs)
