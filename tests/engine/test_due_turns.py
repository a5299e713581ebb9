"""A closed loop that counts requests: its users send whichever turns of sessions are due, and start new sessions otherwise."""

import pytest
from fake_launcher import MS, T0, FakeLauncher, complete

from inferometer.engine.drivers import ClosedLoop
from inferometer.engine.inflight import Flight
from inferometer.types import TURN_STEP, ClosedStage


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> FakeLauncher:
    return FakeLauncher(monkeypatch)


def started(launcher: FakeLauncher, requests: int) -> ClosedLoop:
    loop = ClosedLoop(launcher, 0, ClosedStage(concurrency=2, requests=requests, by_request=True))
    loop.start(T0, launcher.hand_over)
    launcher.run_due()
    return loop


def turn_of(flight: Flight, think: int = 0) -> Flight:
    return Flight(id=flight.id + TURN_STEP, intended=flight.done + think, session=flight.id, turn=1, user=flight.user)


def test_a_free_user_sends_the_turn_that_is_due_for_the_longest_time(launcher: FakeLauncher) -> None:
    loop = started(launcher, 10)
    assert launcher.ids == [0, 1] and not loop.keeps_user
    launcher.now += 5 * MS
    first, second = launcher.sent
    first.done, second.done = T0 + 4 * MS, T0 + 3 * MS
    for flight in (first, second):
        loop.send_turn(turn_of(flight))
    complete(launcher, loop, first)
    assert launcher.ids == [0, 1, 1 + TURN_STEP]
    assert (launcher.sent[2].user, launcher.sent[2].held) == (0, 2 * MS)


def test_a_new_session_starts_when_no_turn_is_due(launcher: FakeLauncher) -> None:
    loop = started(launcher, 10)
    launcher.now += MS
    complete(launcher, loop, *launcher.sent)
    assert launcher.ids == [0, 1, 2, 3]


def test_turns_count_as_requests(launcher: FakeLauncher) -> None:
    loop = started(launcher, 4)
    launcher.now += MS
    for flight in list(launcher.sent):
        flight.done = launcher.now
        loop.send_turn(turn_of(flight))
    complete(launcher, loop, *launcher.sent)
    assert launcher.ids == [0, 1, TURN_STEP, 1 + TURN_STEP]
    assert launcher.handed_over_at == []
    complete(launcher, loop, *launcher.sent[2:])
    assert len(launcher.sent) == 4 and launcher.handed_over_at == [launcher.now]


def test_no_turn_is_sent_after_the_end_of_the_stage(launcher: FakeLauncher) -> None:
    loop = started(launcher, 100)
    loop.send_turn(turn_of(launcher.sent[0]))
    loop.end()
    complete(launcher, loop, *launcher.sent)
    assert launcher.ids == [0, 1] and not loop.may_continue()
