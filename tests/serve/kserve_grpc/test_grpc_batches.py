"""grpcio's batches are freed when they succeed, when they fail, and when they are abandoned.

First with a fake core that completes on command; then with grpcio's own, whose batches are counted: every batch that
started must reach the point where it is freed.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import grpc
import pytest
from grpc._cython import cygrpc
from grpc_peer import PATIENCE_S, a_request, serving
from waiting import until

from inferometer.serve.kserve import grpc_batches, messages
from inferometer.serve.kserve.grpc_batches import freeing

STREAM_INFER = f"/{messages.KSERVE_SERVICE}/ModelStreamInfer"
MODEL_INFER = f"/{messages.KSERVE_SERVICE}/ModelInfer"


class FailedError(Exception):
    pass


class Core:
    """One batch, started and freed as in grpcio, and completed as by its poller."""

    def __init__(self, freeing_fails: Exception | None = None) -> None:
        self.freed = False
        self._freeing_fails = freeing_fails
        self._loop: Any = None
        self._future: Any = None

    async def execute(self, call: Any, operations: tuple[Any, ...], loop: Any) -> None:
        if call == "refused":
            raise FailedError("not begun")
        self._loop, self._future = loop, loop.create_future()
        await self._future
        if self._freeing_fails is not None:
            raise self._freeing_fails
        self.freed = True

    def complete(self, success: bool) -> None:
        self._loop.call_soon_threadsafe(self._set_result, self._future, success)

    @staticmethod
    def _set_result(future: Any, success: bool) -> None:
        if future.cancelled():
            return
        if success:
            future.set_result(None)
        else:
            future.set_exception(FailedError("the call is over"))


def waiting_for(core: Core, test: Callable[["asyncio.Task[None]"], Coroutine[Any, Any, None]]) -> None:
    """Run the test with a task that waits for the batch."""

    async def wait() -> None:
        await freeing(core.execute)("call", (), asyncio.get_running_loop())

    async def main() -> None:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            await test(task)

    asyncio.run(main())


def test_a_batch_that_succeeds_is_freed() -> None:
    core = Core()

    async def test(task: "asyncio.Task[None]") -> None:
        assert not core.freed
        core.complete(True)
        assert core.freed
        await task

    waiting_for(core, test)


def test_a_failed_batch_is_freed_and_the_error_reported() -> None:
    core = Core()

    async def test(task: "asyncio.Task[None]") -> None:
        core.complete(False)
        assert core.freed
        with pytest.raises(FailedError, match="the call is over"):
            await task

    waiting_for(core, test)


@pytest.mark.parametrize("success", [True, False])
def test_an_abandoned_batch_is_freed_when_the_core_completes(success: bool) -> None:
    core = Core()

    async def test(task: "asyncio.Task[None]") -> None:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not core.freed  # the core still writes to it
        core.complete(success)
        assert core.freed

    waiting_for(core, test)


def test_a_completion_from_another_thread_resumes_in_the_loop() -> None:
    core = Core()

    async def test(task: "asyncio.Task[None]") -> None:
        thread = threading.Thread(target=core.complete, args=(True,))
        thread.start()
        thread.join()
        assert not core.freed
        await task
        assert core.freed

    waiting_for(core, test)


def test_errors_while_freeing_are_reported() -> None:
    core = Core(MemoryError("a message too large"))

    async def test(task: "asyncio.Task[None]") -> None:
        core.complete(True)
        with pytest.raises(MemoryError, match="too large"):
            await task

    waiting_for(core, test)


def test_a_batch_that_cannot_start_raises() -> None:
    async def main() -> None:
        with pytest.raises(FailedError, match="not begun"):
            await freeing(Core().execute)("refused", (), asyncio.get_running_loop())

    asyncio.run(main())


# --- grpcio's ----------------------------------------------------------------------------------------------------------


class Counted:
    """Counts grpcio's batches that started and that were freed."""

    def __init__(self, execute: grpc_batches.Execute) -> None:
        self._execute = execute
        self.begun = self.freed = 0

    async def execute(self, call: Any, operations: tuple[Any, ...], loop: Any) -> None:
        self.begun += 1
        await self._execute(call, operations, loop)
        self.freed += 1


@pytest.fixture(scope="module")
def original() -> grpc_batches.Execute:
    """grpcio's own function, which earlier tests may have replaced."""
    found = cygrpc.execute_batch
    return getattr(found, "frees_always", None) or found


@pytest.fixture
def counted(original: grpc_batches.Execute, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    made = Counted(original)
    monkeypatch.setattr(cygrpc, "execute_batch", freeing(made.execute))
    yield made


def all_freed(counted: Counted) -> None:
    until(lambda: 0 < counted.freed == counted.begun, "every batch that started has ended")


def test_a_stream_cancelled_by_the_client_leaks_nothing(counted: Counted) -> None:
    message = a_request(values=bytes(1 << 24)).SerializeToString()
    with serving() as served, grpc.insecure_channel(served.grpc_address) as channel:
        call = channel.stream_stream(STREAM_INFER)(iter([message]))
        call.initial_metadata()  # the response has begun, and does not fit into what is sent before the client reads
        call.cancel()
        all_freed(counted)


@pytest.mark.parametrize("milliseconds", [1, 20, 38, 40, 42])
def test_calls_past_their_deadline_leak_nothing(counted: Counted, milliseconds: int) -> None:
    message = a_request("late").SerializeToString()
    with serving() as served, grpc.insecure_channel(served.grpc_address) as channel:
        infer = channel.unary_unary(MODEL_INFER)
        infer(message, timeout=PATIENCE_S)  # of the others, none may get there in time
        calls = [infer.future(message, timeout=milliseconds / 1000) for _ in range(20)]
        for call in calls:
            call.exception(PATIENCE_S)
        all_freed(counted)


def test_a_stream_ended_by_the_server_leaks_nothing(counted: Counted) -> None:
    with serving() as served, grpc.insecure_channel(served.grpc_address) as channel:
        over = threading.Event()

        def sent() -> Iterator[bytes]:
            yield a_request().SerializeToString()
            over.wait(PATIENCE_S)

        call = channel.stream_stream(STREAM_INFER)(sent())
        next(call)
        served.run(served.server.stop, 1)
        with pytest.raises(grpc.RpcError):
            next(call)
        over.set()
        all_freed(counted)


def test_starting_a_server_enables_freeing_once(
    original: grpc_batches.Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cygrpc, "execute_batch", original)
    with serving():
        first = cygrpc.execute_batch
        assert first.frees_always is original
    with serving():
        assert cygrpc.execute_batch is first


@pytest.mark.parametrize("step", [-1, 1])
def test_other_grpcio_versions_are_left_unchanged(
    original: grpc_batches.Execute, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(cygrpc, "execute_batch", original)
    major, minor = grpc_batches.KNOWN
    monkeypatch.setattr(grpc, "__version__", f"{major}.{minor + step}.0")
    grpc_batches.free_always()
    assert cygrpc.execute_batch is original


def test_the_installed_grpcio_is_the_tested_version() -> None:
    """With another grpcio, check whether its `execute_batch` still works as we assume, or frees by itself."""
    assert tuple(map(int, grpc.__version__.split(".")[:2])) == grpc_batches.KNOWN
