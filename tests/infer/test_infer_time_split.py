"""A server's statistics of one request: awaited for a limited time, and reported as unknown after that."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from inferometer.errors import UserError
from inferometer.infer import export, show, time_split
from inferometer.infer.result import Result, ServerSide
from inferometer.infer.time_split import StatisticsDelta
from inferometer.probe import kserve
from inferometer.probe.roundtrip import Instants
from inferometer.records import Spent
from inferometer.wire.kserve.control import ModelStatistics

INSTANTS = Instants(
    connect_from=0, connected=1_000_000, written=2_000_000, first_byte=5_000_000, done=6_000_000,
    bytes_out=10, bytes_in=10, by_kernel=True,
)  # fmt: skip


class Server:
    """Counts a request at `counts_at` s; each query takes `takes` s, and sleeping takes no time."""

    def __init__(self, counts_at: float, takes: float = 0.0) -> None:
        self.now, self.counts_at, self.takes, self.reads, self.before = 0.0, counts_at, takes, 0, 5

    def statistics(self, *_: object) -> tuple[ModelStatistics, ...]:
        self.reads += 1
        self.now += self.takes
        count = self.before + (self.now >= self.counts_at)
        each = Spent(count, count * 1000)
        kinds = ("success", "queue", "compute_input", "compute_infer", "compute_output")
        return (ModelStatistics("m", "1", count, count, **dict.fromkeys(kinds, each)),)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def taken(server: Server, monkeypatch: pytest.MonkeyPatch) -> StatisticsDelta:
    monkeypatch.setattr(kserve, "statistics", server.statistics)
    monkeypatch.setattr(time_split, "time", server)
    endpoint: Any = SimpleNamespace(
        peer=None, headers={}, reached=SimpleNamespace(facts=None, model="m"), server=SimpleNamespace(version="")
    )
    return StatisticsDelta(endpoint)


@pytest.mark.parametrize("counts_at", [0.0001, 0.12, 0.49])
def test_statistics_that_count_late_are_awaited(counts_at: float, monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = taken(Server(counts_at), monkeypatch)
    assert statistics.since() == ServerSide(1000, 3000, "its statistics", 1)


def test_statistics_are_awaited_for_half_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(counts_at=60)
    assert taken(server, monkeypatch).since() == "its statistics did not count the request in time"
    assert 0.5 <= server.now < 0.6


def test_after_a_long_pause_statistics_are_fetched_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(counts_at=0.9)
    statistics = taken(server, monkeypatch)
    server.takes = 0.6
    assert isinstance(statistics.since(), ServerSide)


def test_a_restarted_server_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(counts_at=60)
    statistics = taken(server, monkeypatch)
    server.before = 2
    reason = statistics.since()
    assert isinstance(reason, str) and "restarted" in reason
    assert server.reads == 2


def test_a_server_without_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise UserError("not offered")

    server = Server(0)
    monkeypatch.setattr(server, "statistics", refuse)
    assert taken(server, monkeypatch).since() is None


def test_text_and_json_show_that_the_request_was_not_counted() -> None:
    result = Result("tensors", "grpc://x:1", "KServe v2 over gRPC", "m", "2", INSTANTS, time_split.NOT_COUNTED)
    (line,) = [line for line in show.render(result).splitlines() if "server" in line]
    assert line == " of that in the server, unknown: its statistics did not count the request in time"
    timing = json.loads(export.to_json(result))["timing"]
    assert timing["no_server"] == "its statistics did not count the request in time" and "server" not in timing
    silent = json.loads(export.to_json(msgspec.structs.replace(result, server=None)))["timing"]
    assert not {"server", "no_server"} & set(silent)
