"""InferChunked: one request and its responses in chunks, for tensors too large for a message (proto/inferometer.proto).

The request's tensors are filled as their chunks arrive, and responses are cut into chunks as they are sent: besides the
tensors themselves, at most one chunk is in memory.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Sequence

import grpc  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError

from inferometer.serve.kserve import backpressure, grpc_codec
from inferometer.serve.kserve.grpc_calls import anew, deadline, inference, let_go, prepare, say_times
from inferometer.serve.kserve.grpc_fields import fields
from inferometer.serve.kserve.handlers import Context
from inferometer.serve.kserve.messages import Chunk, Message
from inferometer.serve.memory import untouched
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Output, Refused
from inferometer.wire.failures import bounded

PIECE = 1 << 20
_MAX_TENSORS = 1000
_DATA = 0x12  # field 2 of Chunk


async def infer_chunked(models: Models, limit: int, receiving: set[Context], context: Context) -> None:
    """Handle one call. `limit` is the maximum size of all tensors of the request. `receiving` holds the calls whose
    requests are incomplete; together with the inferences in progress they count toward the server's maximum. A
    request whose head has arrived is admitted: it is served once complete, even if new ones are refused by then.
    """
    await prepare(context)
    try:
        request, raw = await _received(models, context, limit, receiving)
    finally:
        receiving.discard(context)
    now = time.monotonic_ns()  # a request arrives with its last bytes, from which its remaining time is counted
    answers: deque[tuple[Output, ...]] = deque()
    changed = asyncio.Event()
    end: list[Refused | None] = []
    waiting = 0

    def answer(outputs: tuple[Output, ...]) -> None:
        nonlocal waiting
        answers.append(outputs)
        waiting += _size(outputs)
        changed.set()
        if waiting > backpressure.GIVEN_UP and len(answers) > 1:
            end.append(backpressure.not_read())
            answers.clear()
            models.cancel(one)

    def ended(refused: Refused | None) -> None:
        end.append(refused)
        changed.set()

    one = inference(models, request, raw, {}, answer=answer, ended=ended, deadline=deadline(context, now), arrived=now)
    del request, raw
    try:
        models.submit(one, was_let_in=True)
        while answers or not end:
            if answers:
                outputs = answers.popleft()
                waiting -= _size(outputs)
                head = grpc_codec.head(one.model, one.version, one.id, outputs, (one.queue_ns, one.compute_ns))
                for piece in pieces(head, outputs):
                    await context.write(piece)
                del outputs
            else:
                changed.clear()
                await changed.wait()
        say_times(context, one.queue_ns, one.compute_ns)
    finally:
        models.cancel(one)
        let_go(one)
    if end[0] is not None:
        raise anew(end[0])


def _size(outputs: Sequence[Output]) -> int:
    return sum(len(output.tensor.data) for output in outputs)


# --- the request -----------------------------------------------------------------------------------------------------


async def _received(
    models: Models, context: Context, limit: int, receiving: set[Context]
) -> tuple[Message, list[memoryview]]:
    head = await _head(context)
    if head.WhichOneof("message") != "request":
        raise _invalid("the head of a request must contain a ModelInferRequest")
    if head.request.raw_input_contents:
        raise _invalid("raw contents must be sent in the chunks after the head, not in the head")
    models.check_open()  # check this before allocating anything large
    models.find(head.request.model_name, head.request.model_version)
    sizes = _checked(head.sizes, limit)
    models.check_room(len(receiving))
    receiving.add(context)
    buffer, place = untouched(sum(sizes)), 0
    while (data := await _data(context)) is not None:
        if place + len(data) > len(buffer):
            raise _invalid(
                f"the head announced {len(buffer)} bytes of raw contents, but at least {place + len(data)} arrived"
            )
        buffer[place : place + len(data)] = data
        place += len(data)
    if place < len(buffer):
        raise _invalid(f"the head announced {len(buffer)} bytes of raw contents, but {place} arrived")
    return head.request, _split(buffer, sizes)


def _checked(sizes: Sequence[int], limit: int) -> list[int]:
    if len(sizes) > _MAX_TENSORS:
        raise _invalid(f"the head announced {len(sizes)} raw contents; the maximum is {_MAX_TENSORS}")
    if sum(sizes) > limit:
        raise Refused(
            "RESOURCE_EXHAUSTED", f"the request's tensors have {sum(sizes)} bytes; the server accepts at most {limit}"
        )
    return list(sizes)


def _split(buffer: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    found, place = [], 0
    for size in sizes:
        found.append(buffer[place : place + size])
        place += size
    return found


async def _head(context: Context) -> Message:
    chunk = await _chunk(context)
    if chunk is None or chunk.WhichOneof("piece") != "head":
        raise _invalid("the first chunk must be the head")
    return chunk.head


async def _data(context: Context) -> bytes | None:
    """Return the next piece of data, or None at the end."""
    chunk = await _chunk(context)
    if chunk is None:
        return None
    if chunk.WhichOneof("piece") != "data":
        raise _invalid("the chunks after the head must contain only data")
    data: bytes = chunk.data
    return data


async def _chunk(context: Context) -> Message | None:
    message = await context.read()
    if message is grpc.aio.EOF:
        return None
    try:
        if len(message) > grpc_codec.LARGE and not _is_data(message):
            raise Refused(
                "RESOURCE_EXHAUSTED",
                f"the head has {len(message)} bytes, the server accepts at most {grpc_codec.LARGE}; send contents in the chunks after it",
            )
        return Chunk.FromString(message)
    except DecodeError as error:
        raise Refused("INTERNAL", f"the message is not a valid Chunk: {bounded(str(error))}") from None


def _is_data(message: bytes) -> bool:
    """Whether the message contains data and nothing else, checked without a copy."""
    tag, _, _, end = next(fields(message, 1))
    return tag == _DATA and end == len(message)


def _invalid(message: str) -> Refused:
    return Refused("INVALID_ARGUMENT", message)


# --- an answer -------------------------------------------------------------------------------------------------------


def pieces(head: Message, outputs: Sequence[Output]) -> Iterator[bytes]:
    """Yield the chunks of a response, the head first."""
    contents = [grpc_codec.flat(output.tensor.data) for output in outputs]
    first = Chunk()
    first.head.response.CopyFrom(head)
    first.head.sizes.extend(map(len, contents))
    yield first.SerializeToString()
    for data in contents:
        view = memoryview(data)
        for place in range(0, len(view), PIECE):
            yield Chunk(data=bytes(view[place : place + PIECE])).SerializeToString()
