"""Several URLs: servers are added up, and one that two URLs lead to counts once, if it can be seen that it is one."""

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
    """What it has counted, at `took` ns a request; `busy`: others ask it so many times between any two questions."""

    def __init__(self, count: int = 0, took: int = 1_000_003, busy: int = 0) -> None:
        self.count, self.ns, self.took, self.busy = count, count * took, took, busy

    def serve(self, requests: int) -> None:
        self.count += requests
        self.ns += requests * self.took

    def say(self) -> tuple[ModelStatistics, ...]:
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
    monkeypatch.setattr(kserve, "statistics", lambda place, *_: found[place.target.port].say())
    monkeypatch.setattr(statistics, "time", Clock())
    yield found


def watch(by_port: dict[int, Server], *servers: Server) -> StatisticsWatch:
    by_port |= dict(enumerate(servers, 8000))
    return StatisticsWatch([Peer(parse(f"http://127.0.0.1:{port}")) for port in by_port], {}, "m", "")


def counted(found: StatisticsWatch) -> list[int]:
    return [stage.success.count for stage in found.told()[0] if stage is not None]


def test_servers_are_added_up(by_port: dict[int, Server]) -> None:
    one, two = Server(30), Server(7, took=2_000_011)
    found = watch(by_port, one, two)
    one.serve(10)
    two.serve(11)
    found.mark()
    one.serve(100)
    found.end()
    assert counted(found) == [21, 100]


def test_fresh_servers_that_have_served_as_many_requests_are_two(by_port: dict[int, Server]) -> None:
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
    found.mark()
    one.serve(5)
    found.end()
    assert counted(found) == [10, 5]


def test_of_three_urls_two_may_be_one_server(by_port: dict[int, Server]) -> None:
    one, two = Server(9), Server(9, took=1_000_004)
    found = watch(by_port, one, two, one)
    one.serve(10)
    two.serve(10)
    found.end()
    assert counted(found) == [20]


def test_one_server_that_others_never_leave_alone_counts_for_each_url_and_its_means_are_its_own(
    by_port: dict[int, Server],
) -> None:
    """It never says the same twice, as two that are much alike would not."""
    one = Server(1000, busy=1)
    found, start = watch(by_port, one, one), one.count
    one.serve(50)
    found.end()
    (stage,) = found.told()[0]
    assert stage is not None
    assert stage.queue.count == pytest.approx(2 * (one.count - start), abs=4)
    assert stage.queue.ns / stage.queue.count == one.took


def test_one_server_that_others_leave_alone_at_one_end_counts_once(by_port: dict[int, Server]) -> None:
    one = Server(1001)
    found = watch(by_port, one, one)
    one.busy = 1
    one.serve(50)
    start = one.count
    found.end()
    (total,) = counted(found)
    assert 50 < total <= 50 + one.count - start


def test_what_another_server_is_kept_busy_with_does_not_matter(by_port: dict[int, Server]) -> None:
    one, busy = Server(9), Server(1000, busy=1)
    found, start = watch(by_port, one, busy, one), busy.count
    one.serve(50)
    found.end()
    assert counted(found) == [50 + busy.count - start]


def test_two_servers_are_two_while_others_ask_them_all_the_time(by_port: dict[int, Server]) -> None:
    one, two = Server(1000, busy=1), Server(1000, took=1_300_000, busy=1)
    found, start = watch(by_port, one, two), one.count
    one.serve(50)
    two.serve(50)
    found.end()
    (total,) = counted(found)
    assert total > 1.5 * (one.count - start)


def test_two_servers_are_two_however_close_they_are(by_port: dict[int, Server]) -> None:
    """One does what the other did a moment ago."""
    one, two = Server(1000, busy=1), Server(1005, busy=1)
    found, start = watch(by_port, one, two), one.count
    one.serve(50)
    two.serve(50)
    found.end()
    (total,) = counted(found)
    assert total > 1.5 * (one.count - start)


@pytest.mark.parametrize("unit", [0, 1_000, 2_000_000])
def test_servers_that_do_not_say_how_long_to_the_nanosecond_are_not_taken_for_one(
    by_port: dict[int, Server], unit: int
) -> None:
    """Counts alone may well be the same, and so may sums of whole milliseconds."""
    one, two = Server(took=unit), Server(took=unit)
    found = watch(by_port, one, two)
    one.serve(10)
    two.serve(10)
    found.end()
    assert counted(found) == [20]


def test_a_server_that_is_gone_at_the_end_is_judged_by_the_start(
    by_port: dict[int, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Server(10)
    found = watch(by_port, one, one)
    one.serve(10)
    found.mark()
    monkeypatch.setattr(kserve, "statistics", refuse)
    found.end()
    assert counted(found) == [10]
    assert found.told()[1] == ("", "the server's statistics could not be read: connection refused")


def refuse(*_: object) -> None:
    raise UserError("connection refused")


class Replica(Server):
    """One of several that others' requests are dealt out to in turn; a question takes so long that many come meanwhile."""

    others: list["Replica"]

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = random.Random(seed)

    def serve(self, requests: int) -> None:
        self.count += requests
        self.ns += sum(int(self.generator.gauss(2e6, 2e5)) for _ in range(requests))

    def say(self) -> tuple[ModelStatistics, ...]:
        for replica in self.others:
            replica.serve(100)
        said = super().say()
        for replica in self.others:
            replica.serve(100)
        return said


def test_replicas_that_others_load_alike_are_not_taken_for_one(by_port: dict[int, Server]) -> None:
    """What one says lies between two answers of the other in some of these pairs, at both ends."""
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
