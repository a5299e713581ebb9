"""The simulator's timer with a fake clock: everything due is produced without blocking the readers."""

import asyncio
from typing import cast

import pytest

from inferometer.serve.sim import timing
from inferometer.serve.sim.settings import Fixed, Sim
from inferometer.serve.sim.timing import NEVER, Clockwork, FixedTiming, Job

MS = 1_000_000


class Clock:
    """A clock that only advances by the time that producing a token takes, and by the test."""

    def __init__(self, token: int) -> None:
        self.t = 0
        self.token = token
        self.armed = NEVER
        self.fire = lambda: None

    def timer(self, _: object, fire: object) -> "Clock":
        self.fire = fire  # type: ignore[assignment]
        return self

    def arm(self, deadline: int) -> None:
        self.armed = deadline

    def turn(self) -> int:
        """Run the timer's next call and return how long it took."""
        begin = self.t = max(self.t, self.armed)
        self.fire()
        return self.t - begin


class Made(Job):
    def __init__(self, n: int, n_out: int, clock: Clock, log: list[tuple[int, int]]) -> None:
        super().__init__(n, 1, n_out, 0)
        self.clock, self.log = clock, log

    def emit(self, count: int, due: int) -> None:
        assert due <= self.clock.t
        self.clock.t += self.clock.token
        self.log.append((due, self.n))


def hand(monkeypatch: pytest.MonkeyPatch, token: int) -> tuple[Clock, Clockwork]:
    """Return a clockwork with a token every 1 ms."""
    clock = Clock(token)
    monkeypatch.setattr(timing, "now", lambda: clock.t)
    monkeypatch.setattr(timing, "deadline_timer", clock.timer)
    model = FixedTiming(Fixed(ttft=0.001, itl=0.001), Sim())
    return clock, Clockwork(cast(asyncio.AbstractEventLoop, None), model)


def start(clock: Clock, driven: Clockwork, streams: int, tokens: int) -> list[tuple[int, int]]:
    log: list[tuple[int, int]] = []
    for n in range(1, streams + 1):
        driven.timing.add(Made(n, tokens, clock, log), 0)
        driven.changed()
    return log


@pytest.mark.parametrize("streams", [1, 3, 250])
def test_turns_stay_short_under_overload_and_nothing_is_lost(streams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """250 tokens per millisecond are due, and each takes 20 us."""
    clock, driven = hand(monkeypatch, 20_000 if streams > 1 else 2 * MS)
    log = start(clock, driven, streams, 50)
    longest = 0
    while driven.timing.due != NEVER:
        longest = max(longest, clock.turn())
    assert log == sorted(log) == [(k * MS, n) for k in range(1, 51) for n in range(1, streams + 1)]
    assert longest <= 2 * MS + max(streams * clock.token, 2 * MS)


def test_what_was_due_during_a_pause_is_sent_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, driven = hand(monkeypatch, 1_000)
    log = start(clock, driven, 4, 100)
    clock.t = 50 * MS
    clock.turn()
    assert len(log) == 4 * 50
    assert clock.armed == driven.timing.due == 51 * MS


def test_a_request_during_overload_waits_for_one_slice_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, driven = hand(monkeypatch, 20_000)
    log = start(clock, driven, 10, 100)
    clock.t = 90 * MS
    driven.changed()
    assert len(log) == 10
    assert driven.timing.due == 2 * MS
    assert clock.armed <= clock.t, "the rest comes with the loop's next round"
