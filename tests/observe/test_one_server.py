"""Statistics of several URLs: servers are summed up, and a server behind two URLs counts once if that can be seen."""

import random
from collections.abc import Iterator

import pytest

from inferometer.errors import UserError
from inferometer.observe import statistics
from inferometer.observe.statistics import StatisticsWatch
from inferometer.probe import kserve
from inferometer.probe.connect import Peer
from inferometer.records import Spent
from inferometer.wire.kserve.control import ModelStatistics
from inferometer.wire.target import parse


class Server:
    """Counts requests, each of which took `took` ns; other clients send `busy` requests between any two readings."""

    def __init__(self, count: int = 0, took: int = 1_000_003, busy: int = 0) -> None:
        self.count, self.ns, self.took, self.busy = count, count * took, took, busy

    def serve(self, requests: int) -> None:
        self.count += requests
        self.ns += requests * self.took

    def report(self) -> tuple[ModelStatistics, ...]:
        self.serve(self.busy)
        each = Spent(self.count, self.ns)
        return (ModelStatistics("m", "1", self.count, self.count, success=each, queue=each, compute_infer=each),)


class Clock:
    """Sleeping takes no time."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def by_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, Server]]:
    found: dict[int, Server] = {}
    monkeypatch.setattr(kserve, "statistics", lambda peer, *_: found[peer.target.port].report())
    monkeypatch.setattr(statistics, "time", Clock())
    yield found


def watch(by_port: dict[int, Server], *servers: Server) -> StatisticsWatch:
    by_port |= dict(enumerate(servers, 8000))
    started = StatisticsWatch([Peer(parse(f"http://127.0.0.1:{port}")) for port in by_port], {}, "m", "")
    started.start()
    return started


def counted(found: StatisticsWatch) -> list[int]:
    """Requests per stage."""
    return [stage.success.count for stage in found.by_stage()[0] if stage is not None]


def test_servers_are_summed_up(by_port: dict[int, Server]) -> None:
    one, two = Server(30), Server(7, took=2_000_011)
    found = watch(by_port, one, two)
    one.serve(10)
    two.serve(11)
    found.mark(1)
    one.serve(100)
    found.end()
    assert counted(found) == [21, 100]


def test_new_servers_with_equal_counts_are_two(by_port: dict[int, Server]) -> None:
    one, two = Server(), Server(took=1_000_004)
    found = watch(by_port, one, two)
    one.serve(40)
    two.serve(40)
    found.end()
    assert counted(found) == [80]


@pytest.mark.parametrize("before", [0, 123])
def test_one_server_behind_two_urls_counts_once(by_port: dict[int, Server], before: int) -> None:
    one = Server(before)
    found = watch(by_port, one, one)
    one.serve(10)
    found.mark(1)
    one.serve(5)
    found.end()
    assert counted(found) == [10, 5]


def test_two_of_three_urls_may_be_one_server(by_port: dict[int, Server]) -> None:
    one, two = Server(9), Server(9, took=1_000_004)
    found = watch(by_port, one, two, one)
    one.serve(10)
    two.serve(10)
    found.end()
    assert counted(found) == [20]


def test_a_server_that_is_always_busy_counts_per_url_and_its_means_stay_right(by_port: dict[int, Server]) -> None:
    """It never reports the same twice, just like two similar servers."""
    one = Server(1000, busy=1)
    found, start = watch(by_port, one, one), one.count
    one.serve(50)
    found.end()
    (stage,) = found.by_stage()[0]
    assert stage is not None
    assert stage.queue.count == pytest.approx(2 * (one.count - start), abs=4)
    assert stage.queue.ns / stage.queue.count == one.took


def test_one_server_that_is_idle_at_the_start_or_the_end_counts_once(by_port: dict[int, Server]) -> None:
    one = Server(1001)
    found = watch(by_port, one, one)
    one.busy = 1
    one.serve(50)
    start = one.count
    found.end()
    (total,) = counted(found)
    assert 50 < total <= 50 + one.count - start


def test_another_busy_server_does_not_matter(by_port: dict[int, Server]) -> None:
    one, busy = Server(9), Server(1000, busy=1)
    found, start = watch(by_port, one, busy, one), busy.count
    one.serve(50)
    found.end()
    assert counted(found) == [50 + busy.count - start]


def test_two_busy_servers_are_two(by_port: dict[int, Server]) -> None:
    one, two = Server(1000, busy=1), Server(1000, took=1_300_000, busy=1)
    found, start = watch(by_port, one, two), one.count
    one.serve(50)
    two.serve(50)
    found.end()
    (total,) = counted(found)
    assert total > 1.5 * (one.count - start)


def test_two_servers_with_close_counts_are_two(by_port: dict[int, Server]) -> None:
    """One reports what the other reported a moment ago."""
    one, two = Server(1000, busy=1), Server(1005, busy=1)
    found, start = watch(by_port, one, two), one.count
    one.serve(50)
    two.serve(50)
    found.end()
    (total,) = counted(found)
    assert total > 1.5 * (one.count - start)


@pytest.mark.parametrize("unit", [0, 1_000, 2_000_000])
def test_servers_that_count_in_coarse_units_are_not_taken_for_one(by_port: dict[int, Server], unit: int) -> None:
    """Their counts may well be equal, and so may sums of whole milliseconds."""
    one, two = Server(took=unit), Server(took=unit)
    found = watch(by_port, one, two)
    one.serve(10)
    two.serve(10)
    found.end()
    assert counted(found) == [20]


def test_a_server_that_is_gone_at_the_end_is_identified_by_its_start(
    by_port: dict[int, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Server(10)
    found = watch(by_port, one, one)
    one.serve(10)
    found.mark(1)
    monkeypatch.setattr(kserve, "statistics", refuse)
    found.end()
    assert counted(found) == [10]
    assert found.by_stage()[1] == ("", "the server's statistics could not be read: connection refused")


def refuse(*_: object) -> None:
    raise UserError("connection refused")


class Replica(Server):
    """One of several servers behind a load balancer; many requests arrive during each reading."""

    others: list["Replica"]

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = random.Random(seed)

    def serve(self, requests: int) -> None:
        self.count += requests
        self.ns += sum(int(self.generator.gauss(2e6, 2e5)) for _ in range(requests))

    def report(self) -> tuple[ModelStatistics, ...]:
        for replica in self.others:
            replica.serve(100)
        reading = super().report()
        for replica in self.others:
            replica.serve(100)
        return reading


def test_evenly_loaded_replicas_are_not_taken_for_one(by_port: dict[int, Server]) -> None:
    """In some of these pairs one reports values between two readings of the other, at the start and at the end."""
    for seed in range(20):
        by_port.clear()
        pair = [Replica(2 * seed), Replica(2 * seed + 1)]
        for replica in pair:
            replica.others = pair
            replica.serve(2_000)
        found, start = watch(by_port, *pair), pair[0].count
        found.end()
        (total,) = counted(found)
        assert total > 1.5 * (pair[0].count - start), seed
