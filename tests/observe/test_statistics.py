"""A server's statistics from mark to mark: each stage has its own, or none where nobody knows when it ended."""

import time

import pytest

from inferometer.engine import kserve
from inferometer.engine.exchange import Place
from inferometer.errors import UserError
from inferometer.observe.statistics import Watch
from inferometer.wire.kserve.control import ModelStatistics
from inferometer.wire.target import parse


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inferences that the server says, one number a question; -1 for a server that does not say."""
    numbers: list[int] = []

    def question(*_: object) -> tuple[ModelStatistics, ...]:
        number = numbers.pop(0)
        if number < 0:
            raise UserError("cut off")
        return (ModelStatistics(name="m", version="1", inference_count=number),)

    monkeypatch.setattr(kserve, "question", question)
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.append(clock.pop() + seconds))
    return numbers


def watch() -> Watch:
    return Watch([Place(parse("http://127.0.0.1:8000"))], {}, "m", "")


def inferences(found: Watch) -> list[int | None]:
    return [None if stage is None else stage.inferences for stage in found.stages()]


def test_a_stage_is_what_came_between_two_marks(counted: list[int]) -> None:
    counted += [100, 100, 110, 150, 150]
    found = watch()
    found.mark()
    found.end()
    assert inferences(found) == [10, 40]


def test_stages_that_ended_unseen_have_none_and_those_after_them_keep_their_place(counted: list[int]) -> None:
    """Stage 0 is seen to end, then 1 and 2 both have ended, then 3."""
    counted += [0, 0, 10, 60, 100, 100]
    found = watch()
    found.mark()
    found.mark(1)
    found.end()
    assert inferences(found) == [10, None, None, 40]


def test_what_is_counted_after_its_answer_is_awaited_before_the_first_stage_and_after_the_last(
    counted: list[int],
) -> None:
    counted += [7, 8, 8, 17, 18, 18]
    found = watch()
    found.end()
    assert inferences(found) == [10]
    assert counted == []


def test_a_server_that_others_use_too_is_not_awaited_for_long(counted: list[int]) -> None:
    counted += range(1000)
    found = watch()
    found.end()
    assert inferences(found) == [pytest.approx(26, abs=1)]  # every 20 ms for half a second


@pytest.mark.parametrize(
    ("said", "told"), [([-1, 10, 10], None), ([0, 0, -1], None), ([0, -1, 10, 10], 10), ([0, 0, 9, 10, -1], 10)]
)
def test_a_server_that_does_not_say_or_says_it_once(counted: list[int], said: list[int], told: int | None) -> None:
    counted += said
    found = watch()
    found.end()
    assert inferences(found) == [told]
