"""Several URLs: servers are added up, and one that two URLs lead to counts once, whoever else asks it."""

from collections.abc import Iterator

import pytest

from inferometer.engine import kserve
from inferometer.engine.exchange import Place
from inferometer.errors import UserError
from inferometer.observe import statistics
from inferometer.observe.statistics import Watch
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
    monkeypatch.setattr(kserve, "question", lambda place, *_: found[place.target.port].say())
    monkeypatch.setattr(statistics, "time", Clock())
    yield found


def watch(by_port: dict[int, Server], *servers: Server) -> Watch:
    by_port |= dict(enumerate(servers, 8000))
    return Watch([Place(parse(f"http://127.0.0.1:{port}")) for port in by_port], {}, "m", "")


def counted(found: Watch) -> list[int]:
    return [stage.success.count for stage in found.stages() if stage is not None]


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


def test_one_server_counts_once_while_others_ask_it_all_the_time(by_port: dict[int, Server]) -> None:
    """It never says the same twice; what one URL says lies between two answers of the other."""
    one = Server(1000, busy=1)
    found, start = watch(by_port, one, one), one.count
    one.serve(50)
    found.end()
    (total,) = counted(found)
    assert 50 < total <= one.count - start + 2


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


def test_servers_that_do_not_say_how_long_are_not_taken_for_one(by_port: dict[int, Server]) -> None:
    """Counts alone may well be the same."""
    one, two = Server(took=0), Server(took=0)
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
    monkeypatch.setattr(kserve, "question", refuse)
    found.end()
    assert counted(found) == [10]
    assert found.reasons() == ("", "the server's statistics could not be read: connection refused")


def refuse(*_: object) -> None:
    raise UserError("connection refused")
