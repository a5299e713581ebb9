"""Frees the memory of gRPC operation batches, however they end.

A batch is a set of operations that grpcio starts in its core at once: receive a message, send one, send the status.
grpcio frees its memory when the batch succeeded and the caller still waits for it. If a client cancels or a deadline
expires, neither is the case: 80 bytes and more leaked, and after an abandoned read also the whole message if it still
arrived (https://github.com/grpc/grpc/issues/43360).

So grpcio's internal function is driven to its end by the core's completion, not by the waiting caller. It is not public
API, hence this is only done for the version it was tested with; other versions are left as they are, and leak.
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
    """Enable this for the whole process; may be called repeatedly."""
    if _version() == KNOWN and not hasattr(cygrpc.execute_batch, "frees_always"):
        cygrpc.execute_batch = freeing(cygrpc.execute_batch)


def _version() -> tuple[int, int]:
    major, minor = grpc.__version__.split(".")[:2]
    return int(major), int(minor)


def freeing(execute: Execute) -> Callable[..., "asyncio.Future[None]"]:
    """Like grpcio's `execute_batch`, but runs to its end, where it frees memory, even if the caller stopped waiting."""

    def execute_batch(
        call: Any, operations: tuple[Any, ...], loop: asyncio.AbstractEventLoop
    ) -> "asyncio.Future[None]":
        batch = _Batch(loop)
        batch.running = running = execute(call, operations, batch)
        running.send(None)  # it has started and waits for the core
        return batch.over

    execute_batch.frees_always = execute  # type: ignore[attr-defined]
    return execute_batch


class _Batch:
    """Stands in for both the loop that grpcio asks for a future, and that future, which the core's completion sets."""

    __slots__ = ("_loop", "over", "running")

    running: Coroutine[Any, Any, None] | None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.over: asyncio.Future[None] = loop.create_future()
        """Future for the real caller, who may stop waiting."""

    def create_future(self) -> "_Batch":
        return self

    def call_soon_threadsafe(self, tell: Callable[..., None], *told: Any) -> None:
        """Called when the core has completed and some loop has noticed: usually this one, which then resumes at once."""
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
        except Exception as why:  # for example not enough memory for the message
            error = why
        if self.over.done():
            return
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)
