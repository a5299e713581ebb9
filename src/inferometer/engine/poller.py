"""Reports which sockets have something to read, all of them at once, so that they can be read in one go.

On Linux, an epoll instance of our own, which the loop watches, makes one call for all sockets that are ready; the loop itself would
make one for each (200 streams: a tenth less CPU per chunk). Without epoll, the calls of the loop's own readers are collected.
"""

import asyncio
import select
import sys
from collections.abc import Callable, Sequence

OnReadable = Callable[[Sequence[tuple[int, int]]], None]
"""Called with the descriptors that can be read, failed ones included, and epoll's event mask for each, which does not matter."""


class EpollPoller:
    def __init__(self, loop: asyncio.AbstractEventLoop, on_readable: OnReadable) -> None:
        assert sys.platform == "linux"
        self._loop = loop
        self._on_readable = on_readable
        self._epoll = select.epoll()
        self._events = select.EPOLLIN
        loop.add_reader(self._epoll.fileno(), self.poll)

    def watch(self, descriptor: int) -> None:
        self._epoll.register(descriptor, self._events)

    def forget(self, descriptor: int) -> None:
        self._epoll.unregister(descriptor)

    def close(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def poll(self) -> bool:
        """Report the sockets that can be read now, and return whether there are any."""
        ready = self._epoll.poll(0)
        if ready:
            self._on_readable(ready)
        return bool(ready)


class LoopPoller:
    """Does the same with the loop's readers, for platforms without epoll."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_readable: OnReadable) -> None:
        self._loop = loop
        self._on_readable = on_readable
        self._collected: list[tuple[int, int]] = []

    def watch(self, descriptor: int) -> None:
        self._loop.add_reader(descriptor, self._collect, descriptor)

    def forget(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)

    def close(self) -> None:
        self._collected.clear()

    def poll(self) -> bool:
        """Return False: only the loop can tell which sockets can be read."""
        return False

    def _collect(self, descriptor: int) -> None:
        if not self._collected:
            self._loop.call_soon(self._report)  # after the loop has called the other readers
        self._collected.append((descriptor, 0))

    def _report(self) -> None:
        collected, self._collected = self._collected, []
        if collected:  # it may have been closed in the meantime
            self._on_readable(collected)


Poller = EpollPoller | LoopPoller


def new_poller(loop: asyncio.AbstractEventLoop, on_readable: OnReadable) -> Poller:
    """Return the best poller that this platform has."""
    return EpollPoller(loop, on_readable) if sys.platform == "linux" else LoopPoller(loop, on_readable)
