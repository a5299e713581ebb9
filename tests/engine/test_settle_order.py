"""Requests that ended: what may follow is sent first, and requests that come due do not wait until all are recorded."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import jobs_of

from inferometer.config import from_mapping
from inferometer.engine import dispatcher
from inferometer.engine.dispatcher import Dispatcher
from inferometer.engine.http2_connection import Http2Connection
from inferometer.engine.inflight import Ended, Flight
from inferometer.engine.run_state import RunState
from inferometer.engine.shard import Shard
from inferometer.fleet.runner import requests_of
from inferometer.store.spool import Control
from inferometer.timing import deadlines
from inferometer.types import End
from inferometer.wire.http2.events import Data

OK = End(keep_alive=True)


def ended(*done: int, user: int = -1) -> list[Ended]:
    return [(Flight(id=number, intended=0, sent=1, done=at, user=user), OK, None) for number, at in enumerate(done)]


class World:
    """A shard without connections, whose recorder takes 10 us per request, on a clock that only the recorder advances."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: dict[str, object]) -> None:
        config = from_mapping({"server": {"url": "http://x:1", "model": "m", "stream": False}, "load": load})
        Control(tmp_path / "0.control", create=True)
        self.loop = asyncio.new_event_loop()
        with jobs_of(config, tmp_path) as (job,):
            self.shard = Shard(job, requests_of(job), self.loop)
        self.now = 1_000_000
        self.log: list[str] = []
        monkeypatch.setattr(deadlines, "now", lambda: self.now)
        monkeypatch.setattr(self.shard.recorder, "record", self._record)
        monkeypatch.setattr(self.shard._dispatcher, "launch", self._launch)

    def _record(self, ended: Sequence[Ended]) -> None:
        self.now += 10_000 * len(ended)
        self.log += ["record"] * len(ended)

    def _launch(self, flights: Sequence[Flight]) -> None:
        self.log += ["send"] * len(flights)

    def settle(self, *ended: Ended) -> None:
        self.shard.state.in_flight += len(ended)
        self.shard._ended += ended
        self.shard._settle()

    def close(self) -> None:
        self.shard.close()
        self.shard.close_spool()
        self.loop.close()


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def make_world(stack: contextlib.ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **load: object) -> World:
    world = World(tmp_path, monkeypatch, load)
    stack.callback(world.close)
    return world


def test_send_that_comes_due_during_a_burst_of_500_responses_does_not_wait_until_all_are_recorded(
    stack: contextlib.ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(stack, tmp_path, monkeypatch, rate=10, duration=1)
    late: list[int] = []
    for due in (1_000_000, 1_700_000, 3_000_000):
        world.shard.deadlines.at(
            due,
            lambda due=due: (world.log.append("send"), late.append(world.now - due)),  # type: ignore[misc]
        )
    world.settle(*ended(*range(1, 501)))
    assert world.log.count("record") == 500 and world.log.count("send") == 3
    assert world.log[0] == "send" and world.log[-1] == "record"
    assert max(late) <= 80_000


def test_next_request_of_a_user_is_sent_before_the_response_is_recorded(
    stack: contextlib.ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(stack, tmp_path, monkeypatch, concurrency=1, requests=10)
    world.settle(*ended(5, user=0))
    assert world.log == ["send", "record"]


class FakePool:
    """Takes requests and sends nothing."""

    def __init__(self) -> None:
        self.sent: list[Flight] = []

    def send(self, flights: Sequence[Flight]) -> None:
        self.sent += flights

    def flush(self) -> None: ...


class Capped:
    """A dispatcher with a cap of 2, on a clock that tests set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self.pool: Any = FakePool()
        self.state = RunState(given_up=[])
        nothing: Any = type("Requests", (), {"sequences": None, "make": None})
        self.dispatcher = Dispatcher([self.pool], nothing, nothing, nothing, self.state, nothing)
        monkeypatch.setattr(dispatcher, "now", lambda: self.now)

    def release(self, id: int, at: int) -> Flight:
        self.now = at
        flight = Flight(id=id, intended=at)
        self.dispatcher.release(flight, 2, False)
        return flight

    def end(self, at: int, *done: int) -> None:
        """Settle requests at one instant whose responses arrived at others."""
        self.now = at
        self.state.in_flight -= len(done)
        self.dispatcher.release_queued(ended(*done))


def test_request_is_held_until_the_arrival_of_the_response_that_made_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time from the arrival to the send is the client's own lag."""
    capped = Capped(monkeypatch)
    flights = [capped.release(id, 100) for id in range(4)]
    capped.end(950, 400, 300)
    assert capped.pool.sent == flights
    assert [flight.held for flight in flights] == [0, 0, 200, 300]


def test_request_was_not_held_if_the_response_had_arrived_before_it_came_due(monkeypatch: pytest.MonkeyPatch) -> None:
    capped = Capped(monkeypatch)
    *_, flight = [capped.release(id, at) for id, at in enumerate((100, 100, 500))]
    capped.end(900, 450)
    assert capped.pool.sent[-1] is flight and flight.held == 0


def test_requests_that_come_due_are_sent_while_many_responses_of_one_read_are_decoded() -> None:
    """Over HTTP/2, one read may have the responses of hundreds of calls."""
    caught_up: list[int] = []
    nobody: Any = None
    connection = Http2Connection(nobody)
    connection.transport = type("Transport", (), {"catch_up": lambda _: caught_up.append(1)})()  # type: ignore[assignment]
    connection._handle_events([Data(1, b"x", False)] * 800, at=1, delay=0)
    assert len(caught_up) >= 100
