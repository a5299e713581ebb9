"""Bounds on what a client can make the server keep in memory, tested with calls that the test controls step by step."""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_peer import PATIENCE_S, a_request, write_repository

from inferometer.serve.kserve import messages
from inferometer.serve.kserve.chunked import infer_chunked
from inferometer.serve.kserve.stream import Stream
from inferometer.serve.models.registry import Models
from inferometer.timing.loop import run

Chunk = messages.Chunk


class Call:
    """A grpc.aio.ServicerContext with a client that sends these messages and reads every response."""

    def __init__(self, sent: Iterator[bytes], left: float | None = None) -> None:
        self._sent, self._left = sent, left
        self.reads = 0
        self.responses: list[bytes] = []

    async def read(self) -> Any:
        await asyncio.sleep(0)
        self.reads += 1
        return next(self._sent, grpc.aio.EOF)

    async def write(self, message: bytes) -> None:
        self.responses.append(message)

    def time_remaining(self) -> float | None:
        return self._left

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def set_trailing_metadata(self, metadata: Any) -> None:
        pass


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
        call = Call(iter([slow, *[quick] * (most + 10)]))
        stream = Stream(models, call)
        running = asyncio.create_task(stream.run())
        for _ in range(4 * most + 100):
            await asyncio.sleep(0)
        assert 10 < call.reads <= most
        for pending in list(stream._pending):  # the slow one is over: all go on
            models.cancel(pending.inference)
        await running
        assert call.reads == most + 12
        assert len(call.responses) == most + 11

    serving(test)


def pieces(sizes: list[int], *data: bytes) -> Iterator[bytes]:
    head = Chunk()
    request = a_request(values=bytes(sum(sizes)))
    del request.raw_input_contents[:]
    head.head.request.CopyFrom(request)
    head.head.sizes.extend(sizes)
    yield head.SerializeToString()
    for one in data:
        yield Chunk(data=one).SerializeToString()


def test_the_deadline_counts_from_the_last_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    real, spent = time.monotonic_ns, [100 * 10**9]

    def sent() -> Iterator[bytes]:
        yield from pieces([4], bytes(4))
        spent[0] = 0  # the pieces took 100 s

    async def test(models: Models) -> None:
        monkeypatch.setattr(time, "monotonic_ns", lambda: real() - spent[0])
        call = Call(sent(), left=20.0)
        await infer_chunked(models, 1 << 20, set(), call)
        assert len(call.responses) == 2

    serving(test)


def test_announced_chunks_take_no_memory() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async def test(models: Models) -> None:
        before, grown = resident(), []

        def sent() -> Iterator[bytes]:
            yield next(announced)
            grown.append(resident() - before)

        announced = pieces([4])
        head = Chunk.FromString(next(announced))
        head.head.sizes[0] = 500_000_000
        announced = iter([head.SerializeToString()])
        with pytest.raises(Exception, match="announced 500000000 bytes of raw contents, but 0 arrived"):
            await infer_chunked(models, 1 << 30, set(), Call(sent()))
        assert grown[0] < 50_000_000

    serving(test)
