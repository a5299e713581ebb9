"""Reads and stamps bytes as soon as they arrive, and decodes them after that.

The work is done in phases: first all sockets that have bytes are read, then everything read is decoded, then everything that may
follow what ended is sent, then what ended is recorded (shard.py). The code and data of each phase stay in the processor's cache while
it lasts, which is cheaper than doing all four for one socket after the other (four paired runs, 64 connections, responses in one
piece: 18 to 38 % less CPU per request). Nothing is measured late because of it, since the stamps are taken before. And nothing is
sent late because of it: what has come due is sent in between (`catch_up`), after any read or response.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from inferometer.engine.poller import new_poller
from inferometer.timing.clock import CMSG_SPACE, now, unpack_stamp

FIRST_READ_SIZE, _READ_SIZE = 8_192, 65_536
"""Maximum bytes of a read: the second from the first read on that had as many as the first. Memory for 64 KiB takes Python and the C
library 0.3 to 1.7 us more per read."""


class DueWork(Protocol):
    """Work that comes due at instants (timing/deadlines.py). It makes up for about 40 us of lateness (drivers.py), so nothing may run
    for longer than that without looking at it."""

    due: int
    """When the next comes due."""

    def catch_up(self) -> bool:
        """Do what has come due."""


class ReadSource(Protocol):
    """A source of bytes (transport.py)."""

    is_open: bool
    error: OSError | None
    """Why reading ended, if the server did not simply close."""
    ending: bytes
    """Bytes that do not end with this may wait for others, and are then decoded with them. Empty: all are decoded at once."""
    pieces: list[bytes]
    """The reads that wait."""
    stamps: list[int]
    """When they arrived."""
    delay: int
    """How long any of them stayed unread."""
    read_size: int
    """Maximum bytes of the next read."""

    @property
    def receive(self) -> Callable[[int, int], tuple[bytes, list[tuple[int, int, bytes]], int, Any]]:
        """The socket's recvmsg."""

    @property
    def deliver(self) -> Callable[[bytes, int, int], None]:
        """Takes bytes, when they arrived, and how long they stayed unread (-1: not known). Empty bytes are the end, or an error."""


_SHORT, _LONG, _MOST_WAITING = 3, 4_096, 4
"""Reads of at most `_SHORT` bytes may be the rest of an ending. Longer ones than `_LONG` are decoded at once, and so are `_MOST_WAITING`
reads, which bounds the memory of many streams."""

_Item = tuple[ReadSource, bytes, int, int]
"""One read: the source, the bytes, when they arrived, and how long they stayed unread."""


class StampClock:
    """The wall clock's offset to the monotonic clock, kept up to date by self_monitor.py, whether the kernel takes stamps, and how many
    reads returned bytes with and without a stamp."""

    __slots__ = ("kernel_stamps", "offset", "reads", "unstamped")

    def __init__(self, offset: int, kernel_stamps: bool) -> None:
        self.offset = offset
        self.kernel_stamps = kernel_stamps
        self.reads = 0
        self.unstamped = 0


class Reader:
    """Calls `on_decoded` when everything that was read is decoded, and does in between what has come due."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: StampClock,
        on_decoded: Callable[[], None],
        deadlines: DueWork,
    ) -> None:
        self.clock = clock
        self._on_decoded = on_decoded
        self._deadlines = deadlines
        self.catch_up = deadlines.catch_up
        self._sources: dict[int, ReadSource] = {}
        self._poller = new_poller(loop, self._readable)
        self.is_decoding = False

    def watch(self, descriptor: int, source: ReadSource) -> None:
        """Read the source whenever it has bytes."""
        self._sources[descriptor] = source
        self._poller.watch(descriptor)

    def forget(self, descriptor: int) -> None:
        """Stop reading a descriptor that is about to be closed."""
        if self._sources.pop(descriptor, None) is not None:
            self._poller.forget(descriptor)

    def poll(self) -> bool:
        """Read and decode what has arrived, and return whether there was anything."""
        return self._poller.poll()

    def close(self) -> None:
        self._poller.close()

    def read_remaining(self, descriptor: int, error: OSError) -> None:
        """Read everything that a broken socket still has and decode it, followed by the error that broke it."""
        source = self._sources[descriptor]
        source.ending = b""
        items: list[_Item] = []
        while (more := self._read([descriptor])) and more[0][1]:
            items += more
        source.error = error
        self._decode([*items, (source, b"", now(), -1)])

    def read_until(self, descriptor: int, instant: int) -> None:
        """Read now what one socket received by an instant, and decode it. Must not be called from within `catch_up`: bytes that
        were read before may not be decoded yet."""
        items: list[_Item] = []
        while more := self._read([descriptor]):
            items += more
            _, data, at, _ = more[0]
            if not data or at > instant:
                break
        if items:
            self._decode(items)

    def _readable(self, ready: Sequence[int]) -> None:
        items = self._read(ready)
        if items:
            self._decode(items)

    def _read(self, ready: Sequence[int]) -> list[_Item]:
        sources, clock, deadlines = self._sources, self.clock, self._deadlines
        offset = clock.offset
        items: list[_Item] = []
        count = len(ready)
        for descriptor in ready:
            source = sources.get(descriptor)
            if source is None:  # closed by what has come due
                count -= 1
                continue
            try:
                data, ancillary, _, _ = source.receive(source.read_size, CMSG_SPACE)
            except (BlockingIOError, InterruptedError):
                count -= 1
                continue
            except OSError as error:
                source.error = error
                data, ancillary = b"", []
            at = read = now()
            delay = -1
            if ancillary:
                seconds, nanoseconds = unpack_stamp(ancillary[0][2])
                stamp = seconds * 1_000_000_000 + nanoseconds - offset
                if stamp <= at:
                    delay = at - stamp
                    at = stamp
            if delay < 0 and data and clock.kernel_stamps:
                clock.unstamped += 1
            if not data.endswith(source.ending) and _SHORT < len(data) < _LONG and len(source.pieces) < _MOST_WAITING:
                source.pieces.append(data)
                source.stamps.append(at)
                if delay > source.delay:
                    source.delay = delay
            else:
                items.append((source, data, at, delay))
                if len(data) >= FIRST_READ_SIZE:
                    source.read_size = _READ_SIZE
            if read >= deadlines.due:
                deadlines.catch_up()
        clock.reads += count
        return items

    def _decode(self, items: list[_Item]) -> None:
        deadlines = self._deadlines
        deadlines.catch_up()
        self.is_decoding = True
        try:
            for source, data, at, delay in items:
                if source.is_open:
                    source.deliver(data, at, delay)
                if now() >= deadlines.due:
                    deadlines.catch_up()
        finally:
            self.is_decoding = False
        self._on_decoded()
