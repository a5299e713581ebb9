"""The thread that polls the shards of a fleet on Ray, without a cluster: when shards may store, and when clocks are measured."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import jobs_of

from inferometer.config import from_mapping
from inferometer.fleet.clocks import Reading
from inferometer.fleet.control import ShardReport
from inferometer.fleet.ray_actor import NodeFacts, Update
from inferometer.fleet.ray_fleet import RayFleet
from inferometer.store.spool import Control

RESULT = ShardReport("kernel", "", "", "")


class LostError(Exception):
    """Ray could not deliver a call."""


class FakeActor:
    """An actor that gives these responses to polls: an update, or None for a call that is lost. `log` has them and the readings of the clock.
    If it `is_deaf`, all other calls are lost."""

    def __init__(self, name: str, log: list[str], responses: list[Update | None]) -> None:
        self.name, self.log, self.responses = name, log, responses
        self.is_deaf = False

    def __getattr__(self, method: str) -> Any:
        calls: dict[str, Any] = {"poll": self._poll, "clock": self._clock}
        call = calls.get(method, lambda *_: lambda: None if self.is_deaf else True)
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=call))

    def _poll(self, number: int, wait: float, most: int, may_store: bool) -> Callable[[], Any]:
        self.log.append(f"{self.name} {'store' if may_store else 'poll'}")
        response = self.responses.pop(0)
        return lambda: response

    def _clock(self) -> Callable[[], Any]:
        self.log.append("clock")
        return lambda: Reading(0, 0)


class FakeRay:
    """References are functions that return what they refer to."""

    exceptions = SimpleNamespace(RayError=LostError, ActorUnavailableError=LostError, GetTimeoutError=LostError)

    def wait(self, references: list[Any], num_returns: int = 1, timeout: float = 0) -> tuple[list[Any], list[Any]]:
        return references, []

    def get(self, reference: Callable[[], Any], timeout: float) -> Any:
        found = reference()
        if found is None:
            raise LostError
        return found


@pytest.fixture
def log() -> list[str]:
    return []


def polled(tmp_path: Path, log: list[str], *responses: list[Update | None], is_deaf: bool = False) -> RayFleet:
    """A fleet on one node, which was polled until its shards had given their last responses."""
    config = from_mapping({"server": {"url": "http://127.0.0.1:1", "model": "m"}, "fleet": {"type": "ray"}})
    actors: Any = SimpleNamespace(
        actors=[FakeActor(str(number), log, each) for number, each in enumerate(responses)],
        facts=[NodeFacts("node", "10.0.0.1", "host", "1", 1, 0, "/tmp")] * len(responses),
        ship=lambda files: None,
    )
    actors.actors[0].is_deaf = is_deaf
    thread: Any = SimpleNamespace(start=lambda poll: None)
    fleet = RayFleet(FakeRay(), thread, actors, config.storage)
    for shard in range(len(responses)):
        Control(tmp_path / f"{shard}.control", create=True)
    with jobs_of(config, tmp_path, len(responses)) as jobs:
        list(fleet("", jobs))
    fleet._is_synchronized = True
    fleet._closed.wait = lambda timeout: fleet._closed.set()  # type: ignore[assignment,func-returns-value]  # nothing is left to poll
    fleet._poll()
    return fleet


def test_shards_may_store_when_all_have_ended_even_if_a_call_is_lost(tmp_path: Path, log: list[str]) -> None:
    runs, ended, last = Update([], 0, False), Update([], 0, False, True), Update([], 0, False, True, RESULT)
    polled(tmp_path, log, [ended, ended, None, last], [runs, ended, ended, last])
    calls = [line for line in log if line != "clock"]
    assert calls == [*("0 poll", "1 poll") * 2, *("0 store", "1 store") * 2]


def test_clocks_are_measured_when_the_shards_of_a_node_have_ended_and_not_when_they_have_stored(
    tmp_path: Path, log: list[str]
) -> None:
    ended, last = Update([], 0, False, True), Update([], 0, False, True, RESULT)
    fleet = polled(tmp_path, log, [ended, ended, last])
    assert list(fleet._end_clocks) == ["node"]
    assert log[0] == "0 poll" and log[-2:] == ["0 store", "0 store"] and set(log[1:-2]) == {"clock"}


def test_a_shard_that_a_message_does_not_reach_is_lost(tmp_path: Path, log: list[str]) -> None:
    """It would wait for the start of the run forever, and respond to every poll."""
    runs, last = Update([], 0, False), Update([], 0, False, True, RESULT)
    fleet = polled(tmp_path, log, [runs] * 5, [runs, last], is_deaf=True)
    lost, other = fleet._shards
    assert lost.is_lost and "a message did not reach its Ray node 10.0.0.1" in str(lost.result())
    assert not other.is_lost and other.result() == RESULT
