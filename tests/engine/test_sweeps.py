"""What is looked at now and then: deadlines and timeouts at a cost that has a bound, and up to when all is recorded."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from grpc_peers import GrpcPeer, following, one, run
from waiting import until

from inferometer.engine import http2_connection, timeouts
from inferometer.engine.http1_pool import NEVER
from inferometer.engine.http2_connection import Http2Connection, StreamCall
from inferometer.engine.http2_pool import Http2Pool
from inferometer.engine.inflight import Flight
from inferometer.engine.reader import Reader
from inferometer.engine.shard import Shard
from inferometer.engine.timeouts import Timeouts
from inferometer.timing.clock import now
from inferometer.units import NS
from inferometer.wire.grpc import deadline_passed

MS = 1_000_000
NO_TIMEOUT_NEAR = {"connect": "60s", "first_token": "60s", "idle": "60s", "total": "60s"}


def noting(monkeypatch: pytest.MonkeyPatch) -> list[Shard]:
    """The shards that have begun to run."""
    shards: list[Shard] = []
    start = Shard.run

    async def noted(of: Shard) -> None:
        shards.append(of)
        await start(of)

    monkeypatch.setattr(Shard, "run", noted)
    return shards


# --- deadlines -------------------------------------------------------------------------------------------------------


class Counted(dict[int, StreamCall]):
    """Calls, and how many of them were looked at."""

    looks = 0

    def _counted(self, these: Iterable[Any]) -> Iterator[Any]:
        for each in these:
            self.looks += 1
            yield each

    def items(self) -> Any:
        return self._counted(super().items())

    def values(self) -> Any:
        return self._counted(super().values())


class Wire:
    """A link that takes all, and has nothing to read."""

    is_open = is_ready = True
    is_writing = False

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.read: list[int] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def read_until(self, instant: int) -> None:
        self.read.append(instant)


class World:
    """Two channels with calls that were sent one a millisecond, in turn; their deadline is a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.ended: list[tuple[int, str]] = []
        self.time = 0
        monkeypatch.setattr(http2_connection, "now", lambda: self.time)
        connector = cast("Any", SimpleNamespace(loop=None))
        self.pool = Http2Pool(connector, b"head", lambda: cast("Any", None), self._ended, 1.0)
        self.pair = [self._open(), self._open()]
        for number in range(count):
            self.time = (number + 1) * MS
            self.pair[number % 2].start(Flight(id=number, intended=0), b"head", cast("Any", None))
            self.pair[number % 2].flush()
        for wire, calls in zip(self.wires, self.calls, strict=True):
            wire.written.clear()
            calls.looks = 0

    def _open(self) -> Http2Connection:
        connection = Http2Connection(self.pool)
        connection.transport = cast("Any", Wire())
        connection.calls = Counted()
        self.pool._ready.append(connection)
        return connection

    def _ended(self, flight: Flight, at: int, event: Any, response: object) -> None:
        self.ended.append((flight.id, event.code))

    def expire(self, at: int) -> int:
        self.time = at
        return self.pool.expire(at)

    @property
    def wires(self) -> list[Wire]:
        return [cast("Any", each.transport) for each in self.pair]

    @property
    def calls(self) -> list[Counted]:
        return [cast("Any", each.calls) for each in self.pair]


def test_for_deadlines_no_call_is_looked_at_that_is_behind_one_that_is_not_due(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 1000)
    assert world.expire(NS) == NS + MS
    assert [calls.looks for calls in world.calls] == [2, 2]
    assert world.ended == []
    assert [wire.read for wire in world.wires] == [[], []]


def test_those_that_are_due_end_together_and_the_next_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    world, late = World(monkeypatch, 1000), deadline_passed(1.0).code
    assert world.expire(NS + 5 * MS) == NS + 6 * MS
    assert world.ended == [(0, late), (2, late), (4, late), (1, late), (3, late)]
    assert [wire.read for wire in world.wires] == [[NS + 5 * MS]] * 2
    assert [len(wire.written) for wire in world.wires] == [1, 1]
    assert max(calls.looks for calls in world.calls) <= 6


def test_with_nothing_under_way_no_deadline_passes_before_one_can_have_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    assert World(monkeypatch, 0).expire(7 * NS) == 8 * NS


def test_deadlines_that_pass_let_nobody_look_for_timeouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    real = Timeouts._expiry

    def looking(of: Timeouts, connection: Any, flight: Flight) -> tuple[int, str]:
        looked.append(flight.id)
        return real(of, connection, flight)

    monkeypatch.setattr(Timeouts, "_expiry", looking)
    server = {"deadline": "20ms", "timeouts": NO_TIMEOUT_NEAR}
    load = {"type": "closed", "concurrency": 4, "requests": 12}
    with following(lambda peer: list(peer.requests())) as url:
        _, summary = run(tmp_path, url, server=server, client={"connections": 1}, load=load)
    assert summary.counts.by_failure == {"grpc_DEADLINE_EXCEEDED": 12}
    assert looked == []


# --- timeouts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", [0, 3])
def test_looks_for_timeouts_are_the_wider_apart_the_longer_they_take(
    monkeypatch: pytest.MonkeyPatch, over: int
) -> None:
    """By a clock on which a look at one request takes 10 us, and giving one up 1 s, which is no part of the look."""
    time, given_up, begun = 100 * NS, list[int](), 100 * NS

    def pass_by(span: int) -> None:
        nonlocal time
        time += span

    def expiry(connection: object, flight: Flight) -> tuple[int, str]:
        pass_by(10_000)
        return begun + (0 if flight.id < over else 1), "total_timeout"

    def give_up(flight: Flight, code: str) -> None:
        pass_by(NS)
        given_up.append(flight.id)

    monkeypatch.setattr(timeouts, "now", lambda: time)
    connection = SimpleNamespace(give_up=give_up)
    flights = [(connection, Flight(id=number, intended=0)) for number in range(1000)]
    dispatcher = SimpleNamespace(flights=lambda: iter(flights))
    of = cast("Any", SimpleNamespace(_limits=(NEVER, NEVER, NEVER, NS), _dispatcher=dispatcher, _expiry=expiry))
    assert Timeouts._sweep_timeouts(of, begun) == begun + 20 * 1000 * 10_000
    assert given_up == list(range(over))


# --- up to when all is recorded --------------------------------------------------------------------------------------


def test_what_is_read_and_not_decoded_is_not_said_to_be_recorded_however_many_ticks_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards, decode = noting(monkeypatch), Reader._decode
    seen: list[tuple[int, int]] = []

    def long(reader: Reader, items: Any) -> None:
        if not seen and shards and shards[0].state.sent:
            for _ in range(10):
                shards[0]._tick(now())
            seen.append((shards[0]._spool.control["recorded"], items[0][2]))
        decode(reader, items)

    monkeypatch.setattr(Reader, "_decode", long)
    with following(lambda peer: peer.polite()) as url:
        run(tmp_path, url, client={"connections": 1}, load=one())
    ((recorded, came),) = seen
    assert recorded < came


def test_with_nothing_more_to_read_all_is_soon_said_to_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards, waited = noting(monkeypatch), list[int]()

    def script(peer: GrpcPeer) -> None:
        for stream in peer.requests():
            asked = now()
            until(lambda asked=asked: shards[0]._spool.control["recorded"] > asked)
            waited.append(stream)
            peer.answer(stream)

    with following(script) as url:
        _, summary = run(tmp_path, url, client={"connections": 1}, load=one(requests=2))
    assert summary.counts.ok == len(waited) == 2
