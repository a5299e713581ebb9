"""Bounds on what a client can make the server keep in memory, tested with calls that the test controls step by step."""

import asyncio
import struct
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from grpc_peer import PATIENCE_S, a_request, write_repository

from inferometer.serve.grpc.messages import Inbox
from inferometer.serve.kserve.grpc_infer import GrpcInfer, Stream
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import NEVER, Refused
from inferometer.timing.loop import run


class Call:
    """A call with a client that sends these messages and reads every response."""

    arrived, deadline = 0, NEVER
    is_over = False
    unsent = 0

    def __init__(self, sent: list[bytes]) -> None:
        self._sent = iter(sent)
        self.pauses = self.reads = 0
        self.responses: list[Any] = []
        self.trailers = b""

    def read(self) -> None:
        while not self.pauses and not self.is_over:
            message = next(self._sent, None)
            if message is None:
                self.on_ended(self)
                return
            self.reads += 1
            self.on_message(self, message)

    def pause(self) -> None:
        self.pauses += 1

    def resume(self) -> None:
        self.pauses -= 1

    def send(self, *parts: Any) -> None:
        self.responses.append(parts)

    def finish(self, trailers: bytes) -> None:
        self.trailers, self.is_over = trailers, True


def serving(test: Callable[[Models], Awaitable[None]]) -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory() as folder:
            write_repository(Path(folder))
            models = Models(asyncio.get_running_loop(), device="cpu")
            models.add("identity")
            models.add(folder)
            await models.start()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await test(models)
            finally:
                await models.close()

    run(main())


@pytest.mark.parametrize(("size", "most"), [(4, 1024), (4 << 20, 20)], ids=["many", "large"])
def test_responses_held_for_an_earlier_one_are_bounded(size: int, most: int) -> None:
    async def test(models: Models) -> None:
        quick = bytes(a_request(values=bytes(size)).SerializeToString())
        slow = bytes(a_request("slow").SerializeToString())
        call = Call([slow, *[quick] * (most + 10)])
        stream = Stream(GrpcInfer(models), call)  # type: ignore[arg-type]
        call.read()
        assert 10 < call.reads <= most
        for pending in list(stream._pending):  # the slow one is over: all go on
            models.cancel(pending.inference)
        call.read()
        assert call.trailers
        assert call.reads == most + 11
        assert len(call.responses) == most + 11

    serving(test)


# --- messages --------------------------------------------------------------------------------------------------------


def framed(message: bytes, is_compressed: int = 0) -> bytes:
    return struct.pack(">BL", is_compressed, len(message)) + message


@pytest.mark.parametrize("step", [1, 3, 1000, 70_000, 1 << 20])
def test_messages_are_assembled_however_they_are_split(step: int) -> None:
    sent = [b"", b"a", bytes(300), b"b" * 70_000, b"", b"c" * 100_000, b"d"]
    data = b"".join(map(framed, sent))
    inbox, received = Inbox(1 << 20), []
    for at in range(0, len(data), step):
        inbox.put(data[at : at + step])
        while (found := inbox.next()) is not None:
            received.append(bytes(found[1]))
    assert received == sent
    assert inbox.is_empty


def test_a_large_message_that_is_only_announced_takes_no_memory() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    inbox = Inbox(1 << 30)
    inbox.put(struct.pack(">BL", 0, 500_000_000) + bytes(100))
    assert inbox.next() is None
    assert not inbox.is_empty
    assert resident() - before < 50_000_000


@pytest.mark.parametrize(
    ("prefix", "code", "words"),
    [
        ((0, 101), "RESOURCE_EXHAUSTED", "has 101 bytes; the server accepts at most 100"),
        ((2, 1), "INTERNAL", "not with 0 or 1"),
    ],
)
def test_invalid_prefixes_are_refused(prefix: tuple[int, int], code: str, words: str) -> None:
    inbox = Inbox(100)
    inbox.put(struct.pack(">BL", *prefix))
    with pytest.raises(Refused, match=words) as refused:
        inbox.next()
    assert refused.value.code == code
