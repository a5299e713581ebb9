"""Publishes to the parent, during the run, a shard's counts, samples of its own health, and a look at requests in flight."""

import asyncio
import time
from collections import deque
from itertools import islice

import psutil

from inferometer.engine.dispatcher import Dispatcher
from inferometer.engine.reader import StampClock
from inferometer.engine.recorder import Recorder
from inferometer.engine.run_state import RunState
from inferometer.records import Sample
from inferometer.store.spool import AGES, PEEKS, Spool
from inferometer.timing.clock import now, wall_offset

TICK = 5_000_000
_SAMPLE_EVERY = 100  # ticks
_STALL = 10_000_000
_MARKS = 4
"""Marks kept. Each mark is made in a loop iteration of its own. Data that arrived before a mark is read, decoded and recorded in the
next iteration or, without epoll, in the one after that (poller.py): that is certain once this many marks follow, and not before."""


class SelfMonitor:
    """Monitors this process while it measures: its CPU, memory, stalls of its event loop, and steps of the wall clock.

    A tick every 5 ms is late by as long as the loop stalled. A tick may also run in the middle of the reader's work, which then
    continues for a while: that time is a stall too, because no socket is read. Every half second, the longest stall goes into a
    sample.
    """

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


class Telemetry:
    def __init__(
        self,
        spool: Spool,
        recorder: Recorder,
        dispatcher: Dispatcher,
        stages: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._spool = spool
        self._recorder = recorder
        self._dispatcher = dispatcher
        self._last_stage = stages - 1
        self._loop = loop
        self._marks = deque([0] * _MARKS, _MARKS)  # instants; everything that arrived before the first is recorded
        self._is_marking = False
        self._ticked = 0

    def tick(self, monitor: SelfMonitor, due: int) -> None:
        ticked = now()
        sample = monitor.tick(due)
        if sample is not None:
            self._spool.peek(*self._peek())
            self._recorder.sample(sample)
        self._recorder.flush()
        self.publish()
        self._spool.control["recorded"] = self._marks[0]
        if not self._is_marking:
            self._is_marking = True
            self._ticked = ticked
            self._loop.call_soon(self._mark, monitor)

    def publish(self) -> None:
        self._spool.publish()
        control, state = self._spool.control, self._dispatcher.state
        control["heartbeat"] = now()
        control["sent"] = state.sent
        control["ok"] = state.ok
        control["failed"] = state.failed
        control["in_flight"] = state.in_flight
        control["queued"] = self._dispatcher.queued
        control["stage"] = min(max(state.stage, 0), self._last_stage)

    def _mark(self, monitor: SelfMonitor) -> None:
        """Make a mark, at most once per loop iteration and never in the middle of the reader's work: several ticks may come there
        while bytes that were read before the first of them are still not decoded. No socket was read since that tick."""
        self._is_marking = False
        monitor.blocked_since(self._ticked)
        self._marks.append(now())

    def _peek(self) -> tuple[list[int], list[int]]:
        """Return pairs of numbers about some requests in flight: the time to first token and the latest gap; and the age and whether
        the first token has arrived. Also sample the round-trip times of their connections."""
        pairs: list[int] = []
        ages: list[int] = []
        at = now()
        for pool in self._dispatcher.pools:
            for connection, flight in islice(pool.flights(), AGES):
                connection.transport.sample_rtt()
                arrivals = flight.arrivals
                start = flight.sent if flight.user >= 0 else flight.intended
                if start and len(ages) < 2 * AGES:
                    ages += (max(at - start, 1), int(bool(arrivals)))
                if arrivals and len(pairs) < 2 * PEEKS:
                    latest = (*arrivals[-2:], *connection.waiting)
                    pairs += (max(arrivals[0] - start, 1), latest[-1] - latest[-2] if len(latest) > 1 else 0)
        return pairs, ages
