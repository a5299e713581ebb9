"""Reads and stamps bytes as soon as they arrive, and decodes them after that.

The work is done in phases: first all sockets that have bytes are read, then what was read is decoded, then everything that may
follow what ended is sent, then what ended is recorded (shard.py). The code and data of each phase stay in the processor's cache while
it lasts, which is cheaper than doing all four for one socket after the other (four paired runs, 64 connections, responses in one
piece: 18 to 38 % less CPU per request). Bytes that cannot end a response wait to be decoded with those that may.

Nothing is measured late because of it. The stamps are the kernel's, taken before; but the kernel merges what it keeps for too long and
stamps it once, so long phases are interrupted to read again. And nothing is sent late because of it: what has come due is sent in
between (`catch_up`), after any read or response.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from inferometer.engine.poller import new_poller
from inferometer.timing.clock import CMSG_SPACE, now, unpack_stamp
from inferometer.timing.deadlines import Deadlines

if TYPE_CHECKING:
    from inferometer.engine.transport import Transport

FIRST_READ_SIZE, _READ_SIZE = 8_192, 65_536
"""Maximum bytes of a read: the second from the first read on that had as many as the first. Memory for 64 KiB takes Python and the C
library 0.3 to 1.7 us more per read."""


_SHORT, _LONG, _MOST_WAITING = 3, 4_096, 32
"""Reads of at most `_SHORT` bytes may be the rest of an ending. Longer ones than `_LONG` do not wait for others, and neither do more than
`_MOST_WAITING` reads, which bounds the memory of many streams."""
_SLICE = 1_000_000
"""How long to decode before reading again, in ns; or as long as reading took, so that a busy client gets both done."""


class StampClock:
    """The wall clock's offset to the monotonic clock, kept up to date by telemetry.py, whether the kernel takes stamps, how many
    reads returned bytes with and without a stamp, and when sockets were last looked at in the middle of decoding."""

    __slots__ = ("kernel_stamps", "looked", "offset", "reads", "unstamped")

    def __init__(self, offset: int, kernel_stamps: bool) -> None:
        self.offset = offset
        self.kernel_stamps = kernel_stamps
        self.looked = 0
        self.reads = 0
        self.unstamped = 0


class Reader:
    """Calls `on_decoded` when everything that was read is decoded, and does in between what has come due. Sends make up for about 40 us of
    lateness (open_loop.py), so nothing may run for longer than that without looking at the deadlines."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: StampClock,
        on_decoded: Callable[[], None],
        deadlines: Deadlines,
    ) -> None:
        self.clock = clock
        self._loop = loop
        self._on_decoded = on_decoded
        self._deadlines = deadlines
        self.catch_up = deadlines.catch_up
        self._sources: dict[int, Transport] = {}
        self._queue: deque[Transport] = deque()
        self._poller = new_poller(loop, self._readable)
        self.is_decoding = False

    def watch(self, descriptor: int, source: "Transport") -> None:
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

    def read_remaining(self, descriptor: int, error: OSError) -> None:
        """Read everything that a broken socket still has and decode it, followed by the error that broke it."""
        source = self._sources[descriptor]
        source.ending = b""
        while self._read([descriptor]) and not _has_ended(source):
            pass
        source.error = error
        source.pieces.append(b"")
        source.stamps.append(now())
        self._decode([source])

    def read_until(self, descriptor: int, instant: int) -> None:
        """Read now what one socket received by an instant, and decode it. Must not be called from within `catch_up`: something else
        may be decoding."""
        source = self._sources.get(descriptor)
        if source is None:
            return
        while self._read([descriptor]) and not _has_ended(source):
            if source.stamps and source.stamps[-1] > instant:
                break
        if source.pieces:
            self._decode([source])

    def _readable(self, ready: Sequence[int]) -> None:
        self._read(ready)
        if not self.is_decoding:
            self._decode_queued()

    def _read(self, ready: Sequence[int]) -> int:
        """Read once from each of these sockets, and return how many had something."""
        sources, clock, deadlines = self._sources, self.clock, self._deadlines
        offset = clock.offset
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
            pieces = source.pieces
            pieces.append(data)
            source.stamps.append(at)
            if delay > source.delay:
                source.delay = delay
            if data.endswith(source.ending) or not _SHORT < len(data) < _LONG or len(pieces) >= _MOST_WAITING:
                if not source.is_queued:
                    source.is_queued = True
                    self._queue.append(source)
                if len(data) >= FIRST_READ_SIZE:
                    source.read_size = _READ_SIZE
            if read >= deadlines.due:
                deadlines.catch_up()
        clock.reads += count
        return count

    def _decode_queued(self) -> None:
        """Decode what is in the queue now, and leave what is read in the meantime to the next iteration of the loop: it has other work."""
        queue = self._queue
        self._decode([queue.popleft() for _ in range(len(queue))])
        if queue:
            self._loop.call_soon(self._decode_queued)

    def _decode(self, sources: "Sequence[Transport]") -> None:
        if not sources:
            return
        deadlines, last = self._deadlines, sources[-1]
        deadlines.catch_up()
        self.is_decoding = True
        try:
            read_again = now() + _SLICE
            for source in sources:
                source.is_queued = False
                if source.is_open:
                    source.deliver()
                at = now()
                if at >= deadlines.due:
                    deadlines.catch_up()
                if at >= read_again and source is not last:
                    self._on_decoded()
                    started = now()
                    self._poller.poll()
                    self.clock.looked = looked = now()
                    read_again = looked + max(_SLICE, looked - started)
        finally:
            self.is_decoding = False
        self._on_decoded()


def _has_ended(source: "Transport") -> bool:
    return bool(source.pieces) and not source.pieces[-1]
