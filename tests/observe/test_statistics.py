"""A server's statistics from mark to mark: each stage has its own, or none where nobody knows when it ended."""

import pytest

from inferometer.errors import UserError
from inferometer.observe import statistics
from inferometer.observe.statistics import StatisticsWatch
from inferometer.probe import kserve
from inferometer.probe.connect import Peer
from inferometer.wire.kserve.control import ModelStatistics, NotOffered
from inferometer.wire.target import parse


class Server:
    """Says the next of `counts` when asked, and the last again and again; -1: it does not answer. Sleeping takes no time.
    (It is the clock of the statistics alone: the threads of other tests go by the real one.)"""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.stalls: list[float] = []
        self.asked = 0
        self.now = 0.0

    def question(self, *_: object) -> tuple[ModelStatistics, ...]:
        self.asked += 1
        self.now += self.stalls.pop(0) if self.stalls else 0.0
        count = self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]
        if count < 0:
            raise UserError("cut off")
        return (ModelStatistics(name="m", version="1", inference_count=count),)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    monkeypatch.setattr(kserve, "statistics", made.question)
    monkeypatch.setattr(statistics, "time", made)
    return made


def watch(server: Server, *counts: int) -> StatisticsWatch:
    server.counts = list(counts)
    return StatisticsWatch([Peer(parse("http://127.0.0.1:8000"))], {}, "m", "")


def mark(server: Server, found: StatisticsWatch, count: int, missed: int = 0) -> None:
    server.counts = [count]
    found.mark(missed)


def end(server: Server, found: StatisticsWatch, *counts: int) -> list[int | None]:
    """What each stage has when this is said at the end."""
    server.counts = list(counts)
    found.end()
    return [None if stage is None else stage.inferences for stage in found.told()[0]]


def test_a_stage_is_what_came_between_two_marks(server: Server) -> None:
    found = watch(server, 100)
    mark(server, found, 110)
    assert end(server, found, 150) == [10, 40]


def test_stages_that_ended_unseen_have_none_and_those_after_them_keep_their_place(server: Server) -> None:
    """Stage 0 is seen to end, then 1 and 2 both have ended, then 3."""
    found = watch(server, 0)
    mark(server, found, 10)
    mark(server, found, 60, missed=1)
    assert end(server, found, 100) == [10, None, None, 40]


def test_what_is_counted_after_its_answer_is_awaited_before_the_first_stage_and_after_the_last(server: Server) -> None:
    found = watch(server, 7, 7, 8)
    assert end(server, found, 16, 17, 17, 18) == [10]
    assert server.now < 1


def test_it_is_asked_for_while_nothing_is_under_way_only(server: Server) -> None:
    found = watch(server, 0)
    asked, at = server.asked, server.now
    mark(server, found, 10)
    assert (server.asked, server.now) == (asked + 1, at)


def test_a_server_that_others_use_too_is_not_awaited_for_long(server: Server) -> None:
    found = watch(server, 0)
    begin = server.now
    (count,) = end(server, found, *range(1000))
    assert count is not None and count > 20, "it is the latest"
    assert server.now - begin == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [([-1], [10], None), ([0], [-1], None), ([0, -1], [10], 10), ([0], [9, 10, -1], 10)],
)
def test_a_server_that_does_not_say_or_says_it_once(
    server: Server, before: list[int], after: list[int], told: int | None
) -> None:
    found = watch(server, *before)
    assert end(server, found, *after) == [told]


@pytest.mark.parametrize("stall", [0.07, 0.7])
def test_an_answer_before_a_standstill_is_not_taken_for_the_last(server: Server, stall: float) -> None:
    """This process is kept from running when the server has answered for the first time, and that goes on counting."""
    found = watch(server, 0)
    asked, server.stalls = server.asked, [stall]
    assert end(server, found, 9, 10) == [10]
    assert server.asked - asked >= 3


def test_why_a_stage_has_none(server: Server) -> None:
    found = watch(server, 5)
    mark(server, found, 10, missed=1)
    mark(server, found, -1)
    mark(server, found, 12)
    mark(server, found, 3)
    end(server, found, 4)
    unsaid = "the server's statistics could not be read: cut off"
    restarted = "the statistics of m went backwards: the server or the model was started anew in between"
    stages, reasons = found.told()
    assert reasons == (statistics.UNSEEN, statistics.UNSEEN, unsaid, unsaid, restarted, "")
    assert [stage is None for stage in stages] == [True] * 5 + [False]


def test_a_server_that_has_no_statistics_offers_none(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NotOffered("http://127.0.0.1:8000: the server does not offer the statistics of m (404)")

    monkeypatch.setattr(kserve, "statistics", refuse)
    found = watch(server, 0)
    found.end()
    assert found.told() == ((None,), ("the server offers no statistics",))
