"""What gRPC takes for a batch of operations is given back, however the batch ends.

A batch is what grpcio asks of its core at once: await a message, send one, send the status. It takes memory for that and gives
it back when the batch succeeded and somebody still waits for it. Where a client cancels, or a deadline does, neither is so: 80
bytes and more stayed for good, and after a read that we gave up the whole message if it still came
(https://github.com/grpc/grpc/issues/43360).

So grpcio's own function for it is carried on by the core's answer, not by who waits. It is none of grpcio's public ones, hence
only in the version that this was tried with; others are left as they are, and keep what they keep.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import grpc  # type: ignore[import-untyped]
from grpc._cython import cygrpc  # type: ignore[import-untyped]

KNOWN = (1, 85)
_ONCE = (None,)

Execute = Callable[[Any, tuple[Any, ...], Any], Coroutine[Any, Any, None]]


def free_always() -> None:
    """From now on, in this process; it may be called again."""
    if _version() == KNOWN and not hasattr(cygrpc.execute_batch, "frees_always"):
        cygrpc.execute_batch = freeing(cygrpc.execute_batch)


def _version() -> tuple[int, int]:
    major, minor = grpc.__version__.split(".")[:2]
    return int(major), int(minor)


def freeing(execute: Execute) -> Callable[..., "asyncio.Future[None]"]:
    """As grpcio's `execute_batch`, but that it comes to its end, where it frees, even if nobody waits any more."""

    def execute_batch(
        call: Any, operations: tuple[Any, ...], loop: asyncio.AbstractEventLoop
    ) -> "asyncio.Future[None]":
        batch = _Batch(loop)
        batch.running = running = execute(call, operations, batch)
        running.send(None)  # it has begun, and waits for the core
        return batch.over

    execute_batch.frees_always = execute  # type: ignore[attr-defined]
    return execute_batch


class _Batch:
    """To grpcio it is the loop, of which it wants a future, and that future, which it waits for and which the core's answer sets."""

    __slots__ = ("_loop", "over", "running")

    running: Coroutine[Any, Any, None] | None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.over: asyncio.Future[None] = loop.create_future()
        """For who really waits, and may stop doing so."""

    def create_future(self) -> "_Batch":
        return self

    def call_soon_threadsafe(self, tell: Callable[..., None], *told: Any) -> None:
        """The core has answered, and some loop has seen it: this one mostly, and then it is told at once."""
        if asyncio._get_running_loop() is self._loop:
            tell(*told)
        else:
            self._loop.call_soon_threadsafe(tell, *told)

    def cancelled(self) -> bool:
        return False

    def __await__(self) -> Iterator[None]:
        return iter(_ONCE)

    def set_exception(self, error: Exception) -> None:
        self.set_result(None, error)

    def set_result(self, _: None, error: Exception | None = None) -> None:
        running, self.running = self.running, None
        assert running is not None
        try:
            running.send(None)
        except StopIteration:
            pass
        except Exception as why:  # a message for which there is no memory
            error = why
        if self.over.done():
            return
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)
