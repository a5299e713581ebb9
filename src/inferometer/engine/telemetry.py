"""Publishes to the parent, during the run, a shard's counts, samples of its own health, and a look at requests in flight."""

import asyncio
from collections import deque
from itertools import islice

from inferometer.engine.dispatcher import Dispatcher
from inferometer.engine.recorder import Recorder
from inferometer.engine.run_state import RunState
from inferometer.engine.self_monitor import SelfMonitor
from inferometer.store.spool import AGES, PEEKS, Spool
from inferometer.timing.clock import now

_MARKS = 4
"""Marks kept. Each mark is made in a loop iteration of its own. Data that arrived before a mark is read, decoded and recorded in the
next iteration or, without epoll, in the one after that (poller.py): that is certain once this many marks follow, and not before."""


class Telemetry:
    def __init__(
        self,
        spool: Spool,
        recorder: Recorder,
        dispatcher: Dispatcher,
        state: RunState,
        stages: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._spool = spool
        self._recorder = recorder
        self._dispatcher = dispatcher
        self._state = state
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
        control, state = self._spool.control, self._state
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
