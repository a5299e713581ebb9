"""Sweeps for deadlines and timeouts have a bounded cost; and the instant up to which everything is recorded is right."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from grpc_peers import GrpcPeer, one, run, scripted_grpc
from waiting import until

from inferometer.engine import http2_connection, timeouts
from inferometer.engine.connector import NEVER
from inferometer.engine.http2_connection import Http2Connection, StreamCall
from inferometer.engine.http2_pool import Http2Pool
from inferometer.engine.inflight import Flight
from inferometer.engine.reader import Reader
from inferometer.engine.shard import Shard
from inferometer.engine.timeouts import Timeouts
from inferometer.timing.clock import now
from inferometer.types import Calls
from inferometer.units import NS
from inferometer.wire.grpc import deadline_passed

MS = 1_000_000
NO_TIMEOUT_NEAR = {"connect": "60s", "first_token": "60s", "idle": "60s", "total": "60s"}


def running_shards(monkeypatch: pytest.MonkeyPatch) -> list[Shard]:
    """Return a list to which every shard is added when it starts to run."""
    shards: list[Shard] = []
    start = Shard.run

    async def run(shard: Shard) -> None:
        shards.append(shard)
        await start(shard)

    monkeypatch.setattr(Shard, "run", run)
    return shards


# --- deadlines -------------------------------------------------------------------------------------------------------


class CountedCalls(dict[int, StreamCall]):
    """Calls, and how many of them were visited."""

    visits = 0

    def _counted(self, these: Iterable[Any]) -> Iterator[Any]:
        for each in these:
            self.visits += 1
            yield each

    def items(self) -> Any:
        return self._counted(super().items())

    def values(self) -> Any:
        return self._counted(super().values())


class FakeTransport:
    """A transport that accepts everything, and has nothing to read."""

    is_open = is_ready = True
    is_writing = False
    replica = rtt = -1

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.read: list[int] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def read_until(self, instant: int) -> None:
        self.read.append(instant)


class World:
    """Two connections with calls that were sent alternately, one per millisecond, with a deadline of 1 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.ended: list[tuple[int, str]] = []
        self.time = 0
        monkeypatch.setattr(http2_connection, "now", lambda: self.time)
        connector = cast("Any", SimpleNamespace(loop=None))
        self.pool = Http2Pool(
            connector, Calls((b"head",), (), (), (), response=lambda: cast("Any", None)), 0, self._ended, 1.0
        )
        self.pair = [self._open(), self._open()]
        for number in range(count):
            self.time = (number + 1) * MS
            self.pair[number % 2].start(Flight(id=number, intended=0), b"head", lambda: cast("Any", None))
            self.pair[number % 2].flush()
        for transport, calls in zip(self.transports, self.calls, strict=True):
            transport.written.clear()
            calls.visits = 0

    def _open(self) -> Http2Connection:
        connection = Http2Connection(self.pool)
        connection.transport = cast("Any", FakeTransport())
        connection.calls = CountedCalls()
        self.pool._ready.append(connection)
        return connection

    def _ended(self, flight: Flight, at: int, event: Any, response: object) -> None:
        self.ended.append((flight.id, event.code))

    def expire(self, at: int) -> int:
        self.time = at
        return self.pool.expire(at)

    @property
    def transports(self) -> list[FakeTransport]:
        return [cast("Any", each.transport) for each in self.pair]

    @property
    def calls(self) -> list[CountedCalls]:
        return [cast("Any", each.calls) for each in self.pair]


def test_deadline_sweep_visits_no_call_behind_one_that_is_not_due(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 1000)
    assert world.expire(NS) == NS + MS
    assert [calls.visits for calls in world.calls] == [2, 2]
    assert world.ended == []
    assert [transport.read for transport in world.transports] == [[], []]


def test_calls_past_their_deadline_end_together_and_the_next_deadline_is_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, late = World(monkeypatch, 1000), deadline_passed(1.0).code
    assert world.expire(NS + 5 * MS) == NS + 6 * MS
    assert world.ended == [(0, late), (2, late), (4, late), (1, late), (3, late)]
    assert [transport.read for transport in world.transports] == [[NS + 5 * MS]] * 2
    assert [len(transport.written) for transport in world.transports] == [1, 1]
    assert max(calls.visits for calls in world.calls) <= 6


def test_without_calls_the_next_sweep_is_one_deadline_later(monkeypatch: pytest.MonkeyPatch) -> None:
    assert World(monkeypatch, 0).expire(7 * NS) == 8 * NS


def test_deadline_sweeps_do_not_sweep_for_timeouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visited: list[int] = []
    real = Timeouts._expiry

    def expiry(self: Timeouts, connection: Any, flight: Flight) -> tuple[int, str]:
        visited.append(flight.id)
        return real(self, connection, flight)

    monkeypatch.setattr(Timeouts, "_expiry", expiry)
    server = {"deadline": "20ms", "timeouts": NO_TIMEOUT_NEAR}
    load = {"type": "closed", "concurrency": 4, "requests": 12}
    _, summary = run(
        tmp_path, scripted_grpc(lambda peer: list(peer.requests())), server=server, client={"connections": 1}, load=load
    )
    assert summary.counts.by_failure == {"grpc_DEADLINE_EXCEEDED": 12}
    assert visited == []


# --- timeouts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", [0, 3])
def test_timeout_sweeps_are_further_apart_the_longer_they_take(monkeypatch: pytest.MonkeyPatch, over: int) -> None:
    """On the fake clock, visiting a request takes 10 us, and giving one up takes 1 s, which does not count."""
    time, given_up, begun = 100 * NS, list[int](), 100 * NS

    def advance(span: int) -> None:
        nonlocal time
        time += span

    def expiry(connection: object, flight: Flight) -> tuple[int, str]:
        advance(10_000)
        return begun + (0 if flight.id < over else 1), "total_timeout"

    def give_up(flight: Flight, code: str) -> None:
        advance(NS)
        given_up.append(flight.id)

    monkeypatch.setattr(timeouts, "now", lambda: time)
    connection = SimpleNamespace(give_up=give_up, decode_waiting=lambda: None)
    flights = [(connection, Flight(id=number, intended=0)) for number in range(1000)]
    dispatcher = SimpleNamespace(flights=lambda: iter(flights))
    of = cast("Any", SimpleNamespace(_limits=(NEVER, NEVER, NEVER, NS), _dispatcher=dispatcher, _expiry=expiry))
    assert Timeouts._sweep_timeouts(of, begun) == begun + 20 * 1000 * 10_000
    assert given_up == list(range(over))


# --- the instant up to which everything is recorded -------------------------------------------------------------------


def test_bytes_read_but_not_decoded_are_not_reported_as_recorded_however_many_ticks_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards, decode = running_shards(monkeypatch), Reader._decode
    seen: list[tuple[int, int]] = []

    def decode_slowly(reader: Reader, sources: Any) -> None:
        if not seen and shards and shards[0].state.sent and sources:
            for _ in range(10):
                shards[0]._tick(now())
            seen.append((shards[0]._spool.control["recorded"], sources[0].stamps[0]))
        decode(reader, sources)

    monkeypatch.setattr(Reader, "_decode", decode_slowly)
    with scripted_grpc(lambda peer: peer.polite()) as url:
        run(tmp_path, url, client={"connections": 1}, load=one())
    ((recorded, arrived),) = seen
    assert recorded < arrived


def test_everything_is_soon_reported_as_recorded_when_there_is_nothing_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards, waited = running_shards(monkeypatch), list[int]()

    def script(peer: GrpcPeer) -> None:
        for stream in peer.requests():
            received = now()
            until(lambda received=received: shards[0]._spool.control["recorded"] > received)
            waited.append(stream)
            peer.respond(stream)

    _, summary = run(tmp_path, scripted_grpc(script), client={"connections": 1}, load=one(requests=2))
    assert summary.counts.ok == len(waited) == 2
