"""A server's statistics from mark to mark: each stage has its own, or none when the time of its end is not known."""

import pytest

from inferometer.errors import UserError
from inferometer.observe import statistics
from inferometer.observe.statistics import StatisticsWatch
from inferometer.probe import kserve
from inferometer.probe.connect import Peer
from inferometer.wire.kserve.control import ModelStatistics, NotOffered
from inferometer.wire.target import parse

CUT_OFF = "the server's statistics could not be read: cut off"


class Server:
    """Reports the next of `counts` at each reading, and the last one from then on; -1 means that it does not respond.

    It is also the clock, on which sleeping takes no time. (Only of the statistics: threads of other tests use the real one.)
    """

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.stalls: list[float] = []
        self.readings = 0
        self.now = 0.0

    def read(self, *_: object) -> tuple[ModelStatistics, ...]:
        self.readings += 1
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
    monkeypatch.setattr(kserve, "statistics", made.read)
    monkeypatch.setattr(statistics, "time", made)
    return made


def started(server: Server, *counts: int) -> StatisticsWatch:
    server.counts = list(counts)
    watch = StatisticsWatch([Peer(parse("http://127.0.0.1:8000"))], {}, "m", "")
    watch.start()
    return watch


def mark(server: Server, watch: StatisticsWatch, count: int, stage: int) -> None:
    server.counts = [count]
    watch.mark(stage)


def end(server: Server, watch: StatisticsWatch, *counts: int, stages: int | None = None) -> list[int | None]:
    """Inferences per stage when the server reports these counts at the end."""
    server.counts = list(counts)
    watch.end()
    return [None if stage is None else stage.inferences for stage in watch.by_stage(stages)[0]]


def test_a_stage_is_the_difference_of_two_marks(server: Server) -> None:
    watch = started(server, 100)
    mark(server, watch, 110, stage=1)
    assert end(server, watch, 150) == [10, 40]


def test_skipped_stages_have_no_statistics_and_later_ones_keep_their_number(server: Server) -> None:
    """Stage 0 is seen to end, then 1 and 2 have both ended, then 3."""
    watch = started(server, 0)
    mark(server, watch, 10, stage=1)
    mark(server, watch, 60, stage=3)
    assert end(server, watch, 100) == [10, None, None, 40]


def test_last_stages_that_were_never_seen_have_no_statistics(server: Server) -> None:
    watch = started(server, 0)
    mark(server, watch, 10, stage=1)
    assert end(server, watch, 100, stages=4) == [10, None, None, None]
    assert watch.by_stage(4)[1] == ("", *[statistics.UNSEEN] * 3)
    assert [stage is None for stage in watch.by_stage()[0]] == [False, False], "an interrupted run had two"


def test_late_counts_are_awaited_before_the_first_stage_and_after_the_last(server: Server) -> None:
    watch = started(server, 7, 7, 8)
    assert end(server, watch, 16, 17, 17, 18) == [10]
    assert server.now < 1


def test_between_stages_the_statistics_are_read_once(server: Server) -> None:
    watch = started(server, 0)
    readings, at = server.readings, server.now
    mark(server, watch, 10, stage=1)
    assert (server.readings, server.now) == (readings + 1, at)


def test_a_server_that_others_use_is_not_awaited_for_long(server: Server) -> None:
    watch = started(server, 0)
    begin = server.now
    (count,) = end(server, watch, *range(1000))
    assert count is not None and count > 20, "it is the latest"
    assert server.now - begin == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    ("before", "after", "inferences"),
    [([-1], [10], None), ([0], [-1], None), ([0, -1], [10], 10), ([0], [9, 10, -1], 10)],
)
def test_a_server_that_stops_responding(
    server: Server, before: list[int], after: list[int], inferences: int | None
) -> None:
    watch = started(server, *before)
    assert end(server, watch, *after) == [inferences]


@pytest.mark.parametrize("stall", [0.07, 0.7])
def test_a_reading_from_before_a_stall_is_not_the_last(server: Server, stall: float) -> None:
    """This process stalls after the server's first response, and the server goes on counting."""
    watch = started(server, 0)
    readings, server.stalls = server.readings, [stall]
    assert end(server, watch, 9, 10) == [10]
    assert server.readings - readings >= 3


def test_reasons_for_missing_statistics(server: Server) -> None:
    watch = started(server, 5)
    mark(server, watch, 10, stage=2)
    mark(server, watch, -1, stage=3)
    mark(server, watch, 12, stage=4)
    mark(server, watch, 3, stage=5)
    end(server, watch, 4)
    stages, reasons = watch.by_stage()
    assert reasons[:4] == (statistics.UNSEEN, statistics.UNSEEN, CUT_OFF, CUT_OFF)
    assert "the statistics of m went backwards" in reasons[4] and reasons[5] == ""
    assert [stage is None for stage in stages] == [True] * 5 + [False]


def test_a_server_without_statistics(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NotOffered("http://127.0.0.1:8000: the server does not offer the statistics of m (404)")

    monkeypatch.setattr(kserve, "statistics", refuse)
    watch = started(server, 0)
    assert watch.end() == ()
    assert watch.by_stage() == ((None,), ("the server offers no statistics",))


@pytest.mark.parametrize("has_started", [True, False])
def test_statistics_that_did_not_arrive_in_time(server: Server, has_started: bool) -> None:
    watch = StatisticsWatch([Peer(parse("http://127.0.0.1:8000"))], {}, "m", "")
    if has_started:
        server.counts = [0]
        watch.start()
    assert watch.by_stage(1) == ((None,), (statistics.NOT_IN_TIME,))


def test_series_have_every_counter_at_every_mark(server: Server) -> None:
    watch = started(server, 100)
    mark(server, watch, -1, stage=1)
    mark(server, watch, 110, stage=2)
    server.counts = [150]
    series = watch.end()
    (counts,) = [each for each in series if each.name == "inference_count"]
    assert counts.value.tolist() == [100, 110, 150]
    assert counts.at.tolist() == sorted(counts.at.tolist())
    assert counts.source == "kserve"
    assert counts.labels == {"model": "m", "version": "1", "url": "http://127.0.0.1:8000"}
    assert {"queue_count", "queue_ns", "success_ns", "execution_count"} <= {each.name for each in series}
