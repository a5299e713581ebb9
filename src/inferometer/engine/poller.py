"""Reports which sockets have something to read, all of them at once, so that they can be read in one go.

On Linux, the shard has a loop of its own (`EngineLoop`), which does that while it waits for events. As long as nothing else has happened,
it waits again at once: an iteration of a loop costs more than keeping a few bytes and their stamps. With other loops, the calls of their
readers are collected.
"""

import asyncio
import os
import select
import selectors
import sys
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any, TypeVarTuple

OnReadable = Callable[[Sequence[int]], object]
"""Called with the descriptors that can be read, failed ones included."""

_Args = TypeVarTuple("_Args")
_READABLE = 1
"""EPOLLIN alone."""

_Ready = list[tuple[selectors.SelectorKey, int]]


def run_loop() -> asyncio.AbstractEventLoop:
    """Make the best loop for a shard that this platform has."""
    return EngineLoop() if sys.platform == "linux" else asyncio.new_event_loop()


if sys.platform == "linux":

    class _Selector(selectors.EpollSelector):
        """Calls back for what can be read while it waits, and returns only what is left for the loop."""

        def __init__(self) -> None:
            super().__init__()
            self._epoll = select.epoll.fromfd(
                os.dup(self.fileno())
            )  # the same instance, without the selector's work per event
            self.sockets: set[int] = set()
            self.on_readable: OnReadable = lambda ready: None
            self.callbacks: dict[int, Callable[[], object]] = {}
            """What to call when other descriptors can be read: timers."""
            self.on_error: Callable[[Exception], None]
            self.is_awaited = False
            """The loop has something to do."""
            self._has_others = False

        def select(self, timeout: float | None = None) -> _Ready:
            """Wait for events until the loop has something to do."""
            self.is_awaited = timeout is not None
            self.handle(timeout)
            while not self.is_awaited:
                self.handle(None)
            return super().select(0) if self._has_others else []

        def handle(self, timeout: float | None) -> bool:
            """Wait for events once, call back for those that are ours, and return whether there were any."""
            ready = self._epoll.poll(timeout)
            sockets = self.sockets
            readable = [descriptor for descriptor, event in ready if event == _READABLE and descriptor in sockets]
            self._has_others = False
            try:
                if len(readable) < len(ready):
                    self._sort(ready, readable)
                if readable:
                    self.on_readable(readable)
            except Exception as error:  # as the loop does it for callbacks
                self.on_error(error)
            return bool(ready)

        def _sort(self, ready: list[tuple[int, int]], readable: list[int]) -> None:
            """Call back for timers, add sockets that have failed to the readable ones, and note whether the loop has to see the rest."""
            for descriptor, event in ready:
                is_socket = descriptor in self.sockets
                if is_socket and event != _READABLE and event & ~select.EPOLLOUT:
                    readable.append(descriptor)
                if not is_socket and descriptor in self.callbacks:
                    self.callbacks[descriptor]()
                elif not is_socket or event & select.EPOLLOUT:
                    self._has_others = self.is_awaited = True

        def close(self) -> None:
            self._epoll.close()
            super().close()

    class EngineLoop(asyncio.SelectorEventLoop):
        """asyncio's loop, without its iterations for what has been added with `add_reader`, which is called while it waits."""

        def __init__(self) -> None:
            self.selector = _Selector()
            self.selector.on_error = lambda error: self.call_exception_handler(
                {"message": "an error in a callback", "exception": error}
            )
            super().__init__(self.selector)

        def watch(self, descriptor: int) -> None:
            """Report the socket when it can be read."""
            self.add_reader(descriptor, _nothing)
            self.selector.sockets.add(descriptor)

        def forget(self, descriptor: int) -> None:
            self.selector.sockets.discard(descriptor)
            self.remove_reader(descriptor)

        def poll(self) -> bool:
            """Report the sockets that can be read now, and return whether there are any."""
            return self.selector.handle(0)

        def add_reader(self, fd: Any, callback: Callable[[*_Args], object], *args: *_Args) -> None:
            self.selector.callbacks[_descriptor(fd)] = (lambda: callback(*args)) if args else callback
            super().add_reader(fd, _nothing)

        def remove_reader(self, fd: Any) -> bool:
            self.selector.callbacks.pop(_descriptor(fd), None)
            return super().remove_reader(fd)

        def call_soon(
            self, callback: Callable[[*_Args], object], *args: *_Args, context: Context | None = None
        ) -> asyncio.Handle:
            self.selector.is_awaited = True
            return super().call_soon(callback, *args, context=context)

        def call_at(
            self, when: float, callback: Callable[[*_Args], object], *args: *_Args, context: Context | None = None
        ) -> asyncio.TimerHandle:
            self.selector.is_awaited = True
            return super().call_at(when, callback, *args, context=context)


def _descriptor(fd: Any) -> int:
    return fd if isinstance(fd, int) else int(fd.fileno())


def _nothing() -> None:
    """Called by the loop for a descriptor that has been handled."""


class LoopPoller:
    """Does what EngineLoop does (`watch`, `forget`, `poll`) with the readers of any loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_readable: OnReadable) -> None:
        self._loop = loop
        self._on_readable = on_readable
        self._collected: list[int] = []

    def watch(self, descriptor: int) -> None:
        self._loop.add_reader(descriptor, self._collect, descriptor)

    def forget(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)

    def poll(self) -> bool:
        """Return False: only the loop can tell which sockets can be read."""
        return False

    def _collect(self, descriptor: int) -> None:
        if not self._collected:
            self._loop.call_soon(self._report)  # after the loop has called the other readers
        self._collected.append(descriptor)

    def _report(self) -> None:
        collected, self._collected = self._collected, []
        self._on_readable(collected)


def new_poller(loop: asyncio.AbstractEventLoop, on_readable: OnReadable) -> "EngineLoop | LoopPoller":
    """Return the best poller for this loop."""
    if sys.platform == "linux" and isinstance(loop, EngineLoop):
        loop.selector.on_readable = on_readable
        return loop
    return LoopPoller(loop, on_readable)
