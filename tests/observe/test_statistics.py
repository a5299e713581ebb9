"""A server's statistics from mark to mark: each stage has its own, or none where nobody knows when it ended."""

import pytest

from inferometer.engine import kserve
from inferometer.engine.exchange import Place
from inferometer.observe.statistics import Watch
from inferometer.wire.kserve.control import ModelStatistics
from inferometer.wire.target import parse


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inferences that the server says, one number a question."""
    numbers: list[int] = []

    def question(*_: object) -> tuple[ModelStatistics, ...]:
        return (ModelStatistics(name="m", version="1", inference_count=numbers.pop(0)),)

    monkeypatch.setattr(kserve, "question", question)
    return numbers


def watch() -> Watch:
    return Watch([Place(parse("http://127.0.0.1:8000"))], {}, "m", "")


def inferences(found: Watch) -> list[int | None]:
    return [None if stage is None else stage.inferences for stage in found.stages()]


def test_a_stage_is_what_came_between_two_marks(counted: list[int]) -> None:
    counted += [100, 110, 150]
    found = watch()
    found.mark()
    found.mark()
    assert inferences(found) == [10, 40]


def test_stages_that_ended_unseen_have_none_and_those_after_them_keep_their_place(counted: list[int]) -> None:
    """Stage 0 is seen to end, then 1 and 2 both have ended, then 3."""
    counted += [0, 10, 60, 100]
    found = watch()
    found.mark()
    found.mark(1)
    found.mark()
    assert inferences(found) == [10, None, None, 40]
