"""What is due when: order, one timer, and rounds in between which sockets are read."""

from collections.abc import Callable
from typing import Any

import pytest

from inferometer.engine import deadlines as module
from inferometer.engine.deadlines import Deadlines


class FakeTimer:
    """Remembers its deadline; `fire` is what the loop would do."""

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
    """An agenda on a clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = 0
        monkeypatch.setattr(module, "deadline_timer", FakeTimer)
        monkeypatch.setattr(module, "now", lambda: self.at)
        self.deadlines = Deadlines(None)  # type: ignore[arg-type]
        self.timer: Any = self.deadlines._timer
        self.called: list[str] = []

    def note(self, name: str) -> Callable[[], None]:
        return lambda: self.called.append(name)

    def round(self, at: int) -> None:
        self.at = at
        self.timer.callback()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_callbacks_come_in_the_order_of_their_deadlines_and_equal_ones_in_the_order_they_were_asked(
    bench: Bench,
) -> None:
    for deadline, name in ((30, "c"), (10, "a"), (20, "b1"), (20, "b2"), (40, "d")):
        bench.deadlines.at(deadline, bench.note(name))
    bench.round(30)
    assert bench.called == ["a", "b1", "b2", "c"]
    assert bench.timer.armed[-1] == 40


def test_the_timer_is_armed_for_the_earliest_and_left_alone_by_later_ones(bench: Bench) -> None:
    for deadline in (50, 20, 60, 20, 10):
        bench.deadlines.at(deadline, bench.note("x"))
    assert bench.timer.armed == [50, 20, 10]


def test_what_a_callback_adds_waits_for_the_next_round_even_if_it_is_due(bench: Bench) -> None:
    def again() -> None:
        bench.called.append("first")
        bench.deadlines.at(1, bench.note("added"))

    bench.deadlines.at(5, again)
    bench.round(5)
    assert bench.called == ["first"]
    assert bench.timer.armed[-1] == 1
    bench.round(5)
    assert bench.called == ["first", "added"]


def test_a_round_that_comes_too_early_calls_nothing_and_arms_again(bench: Bench) -> None:
    bench.deadlines.at(100, bench.note("late"))
    bench.round(99)
    assert (bench.called, bench.timer.armed) == ([], [100, 100])


def test_a_callback_that_raises_does_not_leave_the_agenda_thinking_it_still_runs(bench: Bench) -> None:
    def broken() -> None:
        raise RuntimeError

    bench.deadlines.at(1, broken)
    with pytest.raises(RuntimeError):
        bench.round(1)
    bench.deadlines.at(7, bench.note("after"))
    assert bench.timer.armed[-1] == 7


def test_closing_forgets_everything(bench: Bench) -> None:
    bench.deadlines.at(1, bench.note("x"))
    bench.deadlines.close()
    bench.round(10)
    assert bench.called == []
    assert bench.timer.closed


def test_long_work_is_interrupted_for_what_has_just_come_due_and_not_for_what_is_late_already(bench: Bench) -> None:
    """A client that falls behind must get to its answers."""
    bench.deadlines.at(1_000, bench.note("first"))
    bench.at = 999
    bench.deadlines.catch_up()
    assert bench.called == []
    bench.at = 1_000
    bench.deadlines.catch_up()
    assert bench.called == ["first"]
    bench.deadlines.at(2_000, bench.note("late"))
    bench.at = 2_000 + module._JUST_DUE + 1
    bench.deadlines.catch_up()
    assert bench.called == ["first"]
    bench.round(bench.at)
    assert bench.called == ["first", "late"]


def test_the_timer_is_set_once_after_long_work_however_much_was_caught_up_on(bench: Bench) -> None:
    for deadline in (10, 20, 30, 99):
        bench.deadlines.at(deadline, bench.note(str(deadline)))
    for bench.at in (10, 20, 30):
        bench.deadlines.catch_up()
    assert (bench.called, bench.timer.armed) == (["10", "20", "30"], [10])
    bench.deadlines.resume()
    bench.deadlines.resume()
    assert bench.timer.armed == [10, 99]


def test_there_is_nothing_to_wait_for_where_nothing_is_left(bench: Bench) -> None:
    bench.deadlines.at(10, bench.note("only"))
    bench.at = 10
    bench.deadlines.catch_up()
    bench.deadlines.resume()
    assert (bench.called, bench.timer.armed) == (["only"], [10])
    bench.deadlines.at(40, bench.note("later"))
    assert bench.timer.armed == [10, 40]
