"""A dispatcher for the tests of open and closed loops: it records requests instead of sending them, on a clock that tests set."""

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from inferometer.engine import closed_loop, open_loop
from inferometer.engine.closed_loop import ClosedLoop
from inferometer.engine.inflight import Flight
from inferometer.engine.open_loop import OnOver, OpenLoop
from inferometer.engine.run_state import RunState
from inferometer.engine.sequences import Sequences
from inferometer.types import ClosedStage, End, Fail, OpenStage

MS = 1_000_000
T0 = 1_000 * MS
OK = End(keep_alive=True)


class FakeLauncher:
    """The clock, the deadlines and the dispatcher in one. With `lengths`, requests come in sequences of these lengths."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *lengths: int) -> None:
        self.now = T0
        self.state = RunState(given_up=[], unreached_limit=30_000 * MS)
        self.sequences = Sequences(lengths) if lengths else None
        self.indexes: list[int] = []
        """Sequences: the indexes of the requests made, among all encoded requests."""
        self.deadlines: Any = self
        self.awake: Any = self
        self.expected: list[int] = []
        self.awaiting = False
        self.sent: list[Flight] = []
        self.sent_at: list[int] = []
        self.caps: list[tuple[int, bool]] = []
        self.handed_over_at: list[int] = []
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._pushed = 0
        for module in (closed_loop, open_loop):
            monkeypatch.setattr(module, "now", lambda: self.now)
        monkeypatch.setattr(open_loop, "spin_until", self._spin_until)

    # --- what drivers call ---

    def at(self, deadline: int, callback: Callable[[], None]) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (deadline, self._pushed, callback))

    def make(self, stage: int, ids: Sequence[int], due: Sequence[tuple[int, int]]) -> list[Flight]:
        if self.sequences is not None:
            self.indexes += [self.sequences.take((stage, user)) for user, _ in due]
        return [
            Flight(id=id, intended=intended, stage=stage, user=user)
            for id, (user, intended) in zip(ids, due, strict=True)
        ]

    def release(self, flight: Flight, cap: int, drop: bool) -> None:
        self.sent.append(flight)
        self.sent_at.append(self.now)
        self.caps.append((cap, drop))

    def launch(self, flights: Sequence[Flight]) -> None:
        for flight in flights:
            flight.sent = self.now
        self.sent += flights
        self.sent_at += [self.now] * len(flights)

    def is_awaiting(self) -> bool:
        return self.awaiting

    def hand_over(self, at: int) -> None:
        self.handed_over_at.append(at)

    def expect_send(self, at: int) -> None:
        self.expected.append(at)

    def _spin_until(self, deadline: int) -> int:
        before, self.now = self.now, max(self.now, deadline)
        return self.now - before

    # --- what tests call ---

    def run_due(self) -> None:
        """Run the callbacks that are due now, but not those that they add."""
        due = []
        while self._heap and self._heap[0][0] <= self.now:
            due.append(heapq.heappop(self._heap)[2])
        for callback in due:
            callback()

    def run_until(self, at: int) -> None:
        """Advance the clock deadline by deadline, without ever being late."""
        while self._heap and self._heap[0][0] <= at:
            self.now = max(self.now, self._heap[0][0])
            self.run_due()
        self.now = at

    @property
    def ids(self) -> list[int]:
        return [flight.id for flight in self.sent]


def open_stage(*instants_ms: float, duration_ms: float = 100, **more: Any) -> OpenStage:
    return OpenStage(np.array([int(at * MS) for at in instants_ms], np.int64), int(duration_ms * MS), **more)


def started(
    launcher: FakeLauncher, stage: OpenStage | ClosedStage, index: int = 0, on_over: OnOver | None = None
) -> Any:
    """Start a loop now, and run what is due."""
    kind: Any = OpenLoop if isinstance(stage, OpenStage) else ClosedLoop
    loop = kind(launcher, index, stage)
    loop.start(launcher.now, on_over or launcher.hand_over)
    launcher.run_due()
    return loop


def complete(launcher: FakeLauncher, loop: ClosedLoop, *flights: Flight) -> None:
    """End these requests now, with complete responses."""
    _end(launcher, loop, flights, OK)


def fail(launcher: FakeLauncher, loop: ClosedLoop, *flights: Flight, code: str = "reset") -> None:
    """End these requests now, as failures."""
    _end(launcher, loop, flights, Fail(code, ""))


def _end(launcher: FakeLauncher, loop: ClosedLoop, flights: Sequence[Flight], event: End | Fail) -> None:
    for flight in flights:
        flight.done = launcher.now
    loop.freed([(flight, event, None) for flight in flights])
