"""Deadlines: callbacks run in order, on one timer, in rounds between which sockets are read."""

from collections.abc import Callable
from typing import Any

import pytest

from inferometer.timing import deadlines as module
from inferometer.timing.deadlines import Deadlines


class FakeTimer:
    """Records the deadlines that it is armed for."""

    kind = "fake"

    def __init__(self, loop: object, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.armed: list[int] = []
        self.closed = False

    def arm(self, deadline: int) -> None:
        self.armed.append(deadline)

    def close(self) -> None:
        self.closed = True


class Bench:
    """Deadlines on a clock that tests set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = 0
        monkeypatch.setattr(module, "deadline_timer", FakeTimer)
        monkeypatch.setattr(module, "now", lambda: self.at)
        self.deadlines = Deadlines(None)  # type: ignore[arg-type]
        self.timer: Any = self.deadlines._timer
        self.called: list[str] = []

    def record(self, name: str) -> Callable[[], None]:
        return lambda: self.called.append(name)

    def round(self, at: int) -> None:
        self.at = at
        self.timer.callback()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_callbacks_run_in_order_of_deadline_and_then_of_registration(
    bench: Bench,
) -> None:
    for deadline, name in ((30, "c"), (10, "a"), (20, "b1"), (20, "b2"), (40, "d")):
        bench.deadlines.at(deadline, bench.record(name))
    bench.round(30)
    assert bench.called == ["a", "b1", "b2", "c"]
    assert bench.timer.armed[-1] == 40


def test_timer_is_armed_for_the_earliest_deadline_only(bench: Bench) -> None:
    for deadline in (50, 20, 60, 20, 10):
        bench.deadlines.at(deadline, bench.record("x"))
    assert bench.timer.armed == [50, 20, 10]


def test_callback_added_by_a_callback_waits_for_the_next_round_even_if_it_is_due(bench: Bench) -> None:
    def again() -> None:
        bench.called.append("first")
        bench.deadlines.at(1, bench.record("added"))

    bench.deadlines.at(5, again)
    bench.round(5)
    assert bench.called == ["first"]
    assert bench.timer.armed[-1] == 1
    bench.round(5)
    assert bench.called == ["first", "added"]


def test_round_that_comes_too_early_runs_nothing_and_arms_the_timer_again(bench: Bench) -> None:
    bench.deadlines.at(100, bench.record("late"))
    bench.round(99)
    assert (bench.called, bench.timer.armed) == ([], [100, 100])


def test_timer_is_armed_again_after_a_callback_that_raised(bench: Bench) -> None:
    def broken() -> None:
        raise RuntimeError

    bench.deadlines.at(1, broken)
    with pytest.raises(RuntimeError):
        bench.round(1)
    bench.deadlines.at(7, bench.record("after"))
    assert bench.timer.armed[-1] == 7


def test_close_drops_all_callbacks(bench: Bench) -> None:
    bench.deadlines.at(1, bench.record("x"))
    bench.deadlines.close()
    bench.round(10)
    assert bench.called == []
    assert bench.timer.closed


def test_catch_up_runs_callbacks_that_have_just_come_due_but_not_late_ones(bench: Bench) -> None:
    """A client that falls behind must get to reading responses."""
    bench.deadlines.at(1_000, bench.record("first"))
    bench.at = 999
    bench.deadlines.catch_up()
    assert bench.called == []
    bench.at = 1_000
    bench.deadlines.catch_up()
    assert bench.called == ["first"]
    bench.deadlines.at(2_000, bench.record("late"))
    bench.at = 2_000 + module._JUST_DUE + 1
    bench.deadlines.catch_up()
    assert bench.called == ["first"]
    bench.round(bench.at)
    assert bench.called == ["first", "late"]


def test_timer_is_set_once_after_long_work_however_often_it_caught_up(bench: Bench) -> None:
    for deadline in (10, 20, 30, 99):
        bench.deadlines.at(deadline, bench.record(str(deadline)))
    for bench.at in (10, 20, 30):
        bench.deadlines.catch_up()
    assert (bench.called, bench.timer.armed) == (["10", "20", "30"], [10])
    bench.deadlines.resume()
    bench.deadlines.resume()
    assert bench.timer.armed == [10, 99]


def test_resume_does_nothing_if_no_callback_is_left(bench: Bench) -> None:
    bench.deadlines.at(10, bench.record("only"))
    bench.at = 10
    bench.deadlines.catch_up()
    bench.deadlines.resume()
    assert (bench.called, bench.timer.armed) == (["only"], [10])
    bench.deadlines.at(40, bench.record("later"))
    assert bench.timer.armed == [10, 40]
