"""Monitors this process while it measures: its CPU, memory, stalls of its event loop, and steps of the wall clock.

A tick every 5 ms is late by as long as the loop stalled. A tick may also run in the middle of the reader's work, which then
continues for a while: that time is a stall too, because no socket is read. Every half second, the longest stall goes into a
sample.
"""

import time

import psutil

from inferometer.engine.reader import StampClock
from inferometer.engine.run_state import RunState
from inferometer.records import Sample
from inferometer.timing.clock import now, wall_offset

TICK = 5_000_000
_SAMPLE_EVERY = 100  # ticks
_STALL = 10_000_000


class SelfMonitor:
    def __init__(self, shard: int, clock: StampClock, state: RunState, t0: int) -> None:
        self._shard = shard
        self._clock = clock
        self._state = state
        self._t0 = t0
        self._offset = clock.offset
        self._process = psutil.Process()
        self._ticks = 0
        self._stall = 0
        self._stalled = 0
        self._since = now()
        self._cpu = time.process_time_ns()
        self._spun = state.spun
        self._reads, self._unstamped = clock.reads, clock.unstamped

    def tick(self, due: int) -> Sample | None:
        """Handle a tick that was due at `due`; return a sample when it is time for one."""
        self.blocked(now() - due)
        self._ticks += 1
        return self.sample() if self._ticks % _SAMPLE_EVERY == 0 else None

    def blocked_since(self, at: int) -> None:
        """Note that the loop was at work since this instant; the reader may have looked at the sockets in between."""
        self.blocked(now() - max(at, self._clock.looked))

    def blocked(self, ns: int) -> None:
        """Note that no socket was read for this many nanoseconds."""
        if ns > self._stall:
            self._stall = ns
        if ns >= _STALL:
            self._stalled += ns

    def sample(self) -> Sample:
        """Return a sample of the time since the last one."""
        at, cpu, spun = now(), time.process_time_ns(), self._state.spun
        reads, unstamped = self._clock.reads, self._clock.unstamped
        wall = max(at - self._since, 1)
        spinning = min(spun - self._spun, cpu - self._cpu)
        if self._clock.kernel_stamps:
            self._clock.offset = wall_offset()
        sample = Sample(
            shard=self._shard,
            at=at - self._t0,
            cpu=(cpu - self._cpu - spinning) / wall,
            rss=self._process.memory_info().rss,
            memory=psutil.virtual_memory().percent / 100,
            stall=self._stall,
            stalled=self._stalled,
            clock_step=(self._clock.offset if self._clock.kernel_stamps else wall_offset()) - self._offset,
            in_flight=self._state.in_flight,
            reads=reads - self._reads,
            unstamped=unstamped - self._unstamped,
            spinning=spinning / wall,
        )
        self._since, self._cpu, self._stall, self._stalled = at, cpu, 0, 0
        self._spun, self._reads, self._unstamped = spun, reads, unstamped
        return sample
