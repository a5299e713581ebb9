"""Bytes: read and stamped as soon as they are there, and decoded after that.

Work is done in phases: all sockets that have bytes are read; then all of that is decoded; then all that ended is recorded; then
all that may follow is sent (shard.py). Each phase's code and data stay in the processor's cache while it lasts, which is
cheaper than doing it all for one and then for the next (four paired tries, 64 connections, answers in one piece: 18 to 38 %
less CPU a request). Nothing is measured late by it: the stamps are taken before. And nothing is sent late by it: every few
items, and between the phases, `between` looks whether a request is due.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from inferometer.engine.poller import watcher
from inferometer.timing.clock import CMSG_SPACE, now, unpack_stamp

_READ = 65_536
_EVERY = 2
"""Items, each of some ten microseconds, after which `between` is called: it makes up for what is due within 40 us or so
(drivers.py), so that nothing longer than that may go on without it."""


class ReadSource(Protocol):
    """Where bytes come from (transport.py)."""

    is_open: bool
    error: OSError | None
    """What ended the reading, where it was not the server's close."""

    @property
    def receive(self) -> Callable[[int, int], tuple[bytes, list[tuple[int, int, bytes]], int, Any]]:
        """The socket's recvmsg."""

    @property
    def deliver(self) -> Callable[[bytes, int, int], None]:
        """Takes bytes that arrived at an instant and lay unread for so long (-1: not known); none: the end, or an error."""


_Item = tuple[ReadSource, bytes, int, int]
"""What was read: where, the bytes, when they arrived, how long they lay unread."""


class StampClock:
    """The wall clock's offset to the monotonic one, kept up to date by self_monitor.py; stamps: whether the kernel takes them."""

    __slots__ = ("kernel_stamps", "offset")

    def __init__(self, offset: int, kernel_stamps: bool) -> None:
        self.offset = offset
        self.kernel_stamps = kernel_stamps


class Reader:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: StampClock, then: Callable[[], None], between: Callable[[], None]
    ) -> None:
        self.clock = clock
        self._then = then  # called when all that had come is decoded
        self._between = between
        self._sources: dict[int, ReadSource] = {}
        self._watcher = watcher(loop, self._ready)
        self.is_decoding = False

    def watch(self, descriptor: int, source: ReadSource) -> None:
        """Read it whenever it has bytes."""
        self._sources[descriptor] = source
        self._watcher.watch(descriptor)

    def forget(self, descriptor: int) -> None:
        """It is about to be closed."""
        if self._sources.pop(descriptor, None) is not None:
            self._watcher.forget(descriptor)

    def close(self) -> None:
        self._watcher.close()

    def read_out(self, descriptor: int, error: OSError) -> None:
        """Read one to its end, which is this error, and decode all of that."""
        source = self._sources[descriptor]
        items: list[_Item] = []
        while (more := self._read([(descriptor, 0)])) and more[0][1]:
            items += more
        source.error = error
        self._decode([*items, (source, b"", now(), -1)])

    def read_until(self, descriptor: int, instant: int) -> None:
        """Read one now, as far as what it has came by an instant, and decode all of that. Not from within `between`: what was
        read before it may not be decoded yet."""
        items: list[_Item] = []
        while more := self._read([(descriptor, 0)]):
            items += more
            _, data, at, _ = more[0]
            if not data or at > instant:
                break
        if items:
            self._decode(items)

    def _ready(self, ready: Sequence[tuple[int, int]]) -> None:
        self._decode(self._read(ready))

    def _read(self, ready: Sequence[tuple[int, int]]) -> list[_Item]:
        sources, offset, between = self._sources, self.clock.offset, self._between
        items: list[_Item] = []
        for number, (descriptor, _) in enumerate(ready, 1):
            source = sources.get(descriptor)
            if source is None:  # closed by what was due meanwhile
                continue
            try:
                data, ancillary, _, _ = source.receive(_READ, CMSG_SPACE)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError as error:
                source.error = error
                data, ancillary = b"", []
            at = now()
            delay = -1
            if ancillary:
                seconds, nanoseconds = unpack_stamp(ancillary[0][2])
                stamp = seconds * 1_000_000_000 + nanoseconds - offset
                if stamp <= at:
                    delay = at - stamp
                    at = stamp
            items.append((source, data, at, delay))
            if not number % _EVERY:
                between()
        return items

    def _decode(self, items: list[_Item]) -> None:
        between = self._between
        between()
        self.is_decoding = True
        try:
            for number, (source, data, at, delay) in enumerate(items, 1):
                if source.is_open:
                    source.deliver(data, at, delay)
                if not number % _EVERY:
                    between()
        finally:
            self.is_decoding = False
        between()
        self._then()
