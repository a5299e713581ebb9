"""When the next request goes, on a clock that is set by hand: no socket, no loop, no waiting."""

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from inferometer.engine import drivers
from inferometer.engine.drivers import ClosedLoop, OpenLoop
from inferometer.engine.inflight import Flight
from inferometer.engine.run_state import RunState
from inferometer.engine.sequences import Sequences
from inferometer.types import ClosedStage, End, Fail, OpenStage

MS = 1_000_000
T0 = 1_000 * MS
OK = End(keep_alive=True)


class World:
    """The clock, the agenda and the launcher, all in one: a request that is released is noted, and answered by `answer`."""

    def __init__(self) -> None:
        self.now = T0
        self.state = RunState(given_up=[])
        self.sequences: Sequences | None = None
        self.awaiting = False
        self.places: list[int] = []
        self.deadlines: Any = self
        self.released: list[Flight] = []
        self.sent_at: list[int] = []
        self.caps: list[tuple[int, bool]] = []
        self.next_stage: list[int] = []
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._pushed = 0

    def at(self, deadline: int, callback: Callable[[], None]) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (deadline, self._pushed, callback))

    def make(self, stage: int, ids: Sequence[int], asking: Sequence[tuple[int, int]]) -> list[Flight]:
        if self.sequences is not None:
            self.places += [self.sequences.take((stage, user)) for user, _ in asking]
        return [
            Flight(id=id, intended=intended, stage=stage, user=user)
            for id, (user, intended) in zip(ids, asking, strict=True)
        ]

    def release(self, flight: Flight, cap: int, drop: bool) -> None:
        self.released.append(flight)
        self.sent_at.append(self.now)
        self.caps.append((cap, drop))

    def launch(self, flights: Sequence[Flight]) -> None:
        for flight in flights:
            flight.sent = self.now
        self.released += flights
        self.sent_at += [self.now] * len(flights)

    def is_awaiting(self) -> bool:
        return self.awaiting

    def spin(self, deadline: int) -> None:
        self.now = max(self.now, deadline)

    def then(self, at: int) -> None:
        self.next_stage.append(at)

    def round(self) -> None:
        """One round of the agenda: what is due now, and nothing that it adds."""
        due = []
        while self._heap and self._heap[0][0] <= self.now:
            due.append(heapq.heappop(self._heap)[2])
        for callback in due:
            callback()

    def until(self, at: int) -> None:
        """Let the clock run, deadline by deadline, without ever being late."""
        while self._heap and self._heap[0][0] <= at:
            self.now = max(self.now, self._heap[0][0])
            self.round()
        self.now = at

    @property
    def ids(self) -> list[int]:
        return [flight.id for flight in self.released]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(drivers, "now", lambda: world.now)
    monkeypatch.setattr(drivers, "spin_until", world.spin)
    return world


def open_stage(*instants_ms: float, duration_ms: float = 100, **more: Any) -> OpenStage:
    return OpenStage(np.array([int(at * MS) for at in instants_ms], np.int64), int(duration_ms * MS), **more)


# --- open loop -------------------------------------------------------------------------------------------------------


def test_open_loop_sends_each_at_its_instant_whatever_the_server_does(world: World) -> None:
    loop = OpenLoop(world, 3, open_stage(0, 5, 5, 30, first_id=10, id_step=2))
    loop.start(T0, world.then)
    world.until(T0 + 200 * MS)
    assert world.ids == [10, 12, 14, 16]
    assert [flight.intended - T0 for flight in world.released] == [0, 5 * MS, 5 * MS, 30 * MS]
    assert world.sent_at == [flight.intended for flight in world.released]
    assert {flight.stage for flight in world.released} == {3}
    assert world.next_stage == [T0 + 100 * MS]


def test_open_loop_hands_the_cap_and_what_happens_there_on(world: World) -> None:
    OpenLoop(world, 0, open_stage(0, 1, cap=7, drop=True)).start(T0, world.then)
    world.until(T0 + 10 * MS)
    assert world.caps == [(7, True)] * 2


def test_open_loop_that_is_late_sends_all_of_it_with_the_instants_of_the_plan(world: World) -> None:
    OpenLoop(world, 0, open_stage(*range(10))).start(T0, world.then)
    world.now = T0 + 7 * MS
    world.round()
    assert world.ids == list(range(8))
    assert [flight.intended - T0 for flight in world.released] == [at * MS for at in range(8)]


def test_open_loop_that_is_overloaded_looks_at_answers_after_every_32(world: World) -> None:
    OpenLoop(world, 0, open_stage(*([1] * 100))).start(T0, world.then)
    world.now = T0 + 50 * MS
    sent = []
    for _ in range(5):
        world.round()
        sent.append(len(world.released))
    assert sent == [32, 64, 96, 100, 100]


def test_open_loop_does_not_hand_over_to_the_next_stage_before_all_of_its_own_is_sent(world: World) -> None:
    """A client that was held up past the stage's end still owes what was due: the last stage's end would end the run."""
    OpenLoop(world, 0, open_stage(*([1] * 100), duration_ms=20)).start(T0, world.then)
    world.now = T0 + 50 * MS
    world.round()
    assert (len(world.released), world.next_stage) == (32, [])
    for _ in range(4):
        world.round()
    assert len(world.released) == 100
    assert world.next_stage == [T0 + 20 * MS]


def test_open_loop_without_requests_still_lasts_its_time(world: World) -> None:
    OpenLoop(world, 0, open_stage(duration_ms=40)).start(T0, world.then)
    world.until(T0 + 39 * MS)
    assert world.next_stage == []
    world.until(T0 + 41 * MS)
    assert (world.released, world.next_stage) == ([], [T0 + 40 * MS])


def test_open_loop_sends_nothing_more_once_the_run_is_stopped(world: World) -> None:
    OpenLoop(world, 0, open_stage(0, 10, 20)).start(T0, world.then)
    world.until(T0 + 12 * MS)
    world.state.stopping = True
    world.until(T0 + 50 * MS)
    assert world.ids == [0, 1]


# --- closed loop -----------------------------------------------------------------------------------------------------


def answer(world: World, loop: ClosedLoop, *flights: Flight, failed: bool = False, code: str = "reset") -> None:
    for flight in flights:
        flight.done = world.now
    loop.freed([(flight, Fail(code, "") if failed else OK, None) for flight in flights])


def test_closed_loop_keeps_so_many_in_flight_until_all_are_sent(world: World) -> None:
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=2, requests=5, first_id=4, id_step=3))
    loop.start(T0, world.then)
    world.round()
    assert world.ids == [4, 7]
    for place in range(3):
        world.now += MS
        answer(world, loop, world.released[place])
        assert len(world.released) == min(place + 3, 5)
    assert world.next_stage == []
    answer(world, loop, world.released[3])
    answer(world, loop, world.released[4])
    assert world.ids == [4, 7, 10, 13, 16]
    assert world.next_stage == [world.now]


def test_closed_loop_asks_for_all_that_were_answered_together_but_not_for_more_than_are_left(world: World) -> None:
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=4, requests=9, first_id=1, id_step=2))
    loop.start(T0, world.then)
    world.round()
    world.now += MS
    answer(world, loop, *world.released[1:4])
    assert [(flight.id, flight.user) for flight in world.released[4:]] == [(9, 1), (11, 2), (13, 3)]
    answer(world, loop, *world.released[4:], world.released[0])
    assert [(flight.id, flight.user) for flight in world.released[7:]] == [(15, 1), (17, 2)]
    assert world.next_stage == []
    answer(world, loop, *world.released[7:])
    assert len(world.released) == 9 and world.next_stage == [world.now]


def test_closed_loop_backs_off_only_whose_request_failed_of_those_answered_together(world: World) -> None:
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=3, requests=99))
    loop.start(T0, world.then)
    world.round()
    flights = list(world.released)
    loop.freed([(flights[0], OK, None), (flights[1], Fail("reset", ""), None), (flights[2], OK, None)])
    assert [flight.user for flight in world.released[3:]] == [0, 2]


def test_closed_loop_intends_the_next_request_when_the_answer_came_not_when_we_saw_it(world: World) -> None:
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=1, requests=2))
    loop.start(T0, world.then)
    world.round()
    world.now = T0 + 9 * MS
    world.released[0].done = T0 + 8 * MS
    loop.freed([(world.released[0], OK, None)])
    assert world.released[1].intended == T0 + 8 * MS


def test_closed_loop_with_fewer_requests_than_users_asks_only_those(world: World) -> None:
    ClosedLoop(world, 0, ClosedStage(concurrency=8, requests=3)).start(T0, world.then)
    world.round()
    assert world.ids == [0, 1, 2]


def test_closed_loop_by_time_ends_then_and_lets_what_is_in_flight_finish(world: World) -> None:
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=2, duration=10 * MS))
    loop.start(T0, world.then)
    world.until(T0 + 5 * MS)
    answer(world, loop, world.released[0])
    assert len(world.released) == 3
    world.until(T0 + 11 * MS)
    assert world.next_stage == [T0 + 10 * MS]
    for flight in world.released[1:]:
        answer(world, loop, flight)
    assert len(world.released) == 3
    assert len(world.next_stage) == 1


def test_closed_loop_ramps_up_user_by_user(world: World) -> None:
    stage = ClosedStage(concurrency=4, duration=100 * MS, ramp_up=40 * MS, ramp_offset=1 * MS)
    ClosedLoop(world, 0, stage).start(T0, world.then)
    world.until(T0 + 90 * MS)
    assert [flight.intended - T0 for flight in world.released] == [1 * MS, 11 * MS, 21 * MS, 31 * MS]
    assert world.sent_at == [flight.intended for flight in world.released]


def test_closed_loop_user_thinks_between_an_answer_and_the_next_request(world: World) -> None:
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=1, requests=2, think=20 * MS))
    loop.start(T0, world.then)
    world.round()
    world.now += MS
    answer(world, loop, world.released[0])
    assert len(world.released) == 1
    world.until(T0 + 30 * MS)
    assert world.released[1].intended == T0 + 21 * MS


def test_closed_loop_user_whose_requests_fail_waits_twice_as_long_each_time_up_to_a_second(world: World) -> None:
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=1, duration=1 << 50))
    loop.start(T0, world.then)
    world.round()
    pauses = []
    for place in range(10):
        failed_at = world.now
        answer(world, loop, world.released[place], failed=True)
        assert len(world.released) == place + 1
        world.until(world.now + 2_000 * MS)
        pauses.append((world.released[place + 1].intended - failed_at) // MS)
    assert pauses == [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000]


def test_closed_loop_user_whose_request_succeeds_again_starts_the_backoff_anew(world: World) -> None:
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=1, duration=1 << 50))
    loop.start(T0, world.then)
    world.round()
    for place, failed in enumerate((True, True, False, True)):
        at = world.now
        answer(world, loop, world.released[place], failed=failed)
        world.until(world.now + 100 * MS)
    assert world.released[-1].intended - at == 10 * MS


def test_closed_loop_backoff_of_one_user_does_not_hold_up_the_others(world: World) -> None:
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=2, duration=1 << 50))
    loop.start(T0, world.then)
    world.round()
    answer(world, loop, world.released[0], failed=True)
    answer(world, loop, world.released[1])
    assert [flight.user for flight in world.released] == [0, 1, 1]


def test_closed_loop_sends_nothing_more_once_the_run_is_stopped_and_ends(world: World) -> None:
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=2, requests=50))
    loop.start(T0, world.then)
    world.round()
    world.state.stopping = True
    for flight in list(world.released):
        answer(world, loop, flight)
    assert len(world.released) == 2
    assert world.next_stage == [world.now]


# --- ended early -----------------------------------------------------------------------------------------------------


def test_open_loop_that_is_ended_sends_nothing_more_and_hands_over_at_once_and_once(world: World) -> None:
    loop = OpenLoop(world, 0, open_stage(0, 10, 20, 30))
    loop.start(T0, world.then)
    world.until(T0 + 12 * MS)
    loop.end()
    loop.end()
    assert world.next_stage == [T0 + 12 * MS]
    world.until(T0 + 200 * MS)
    assert world.ids == [0, 1]
    assert world.next_stage == [T0 + 12 * MS]


def test_open_loop_that_is_over_by_itself_cannot_be_ended_again(world: World) -> None:
    loop = OpenLoop(world, 0, open_stage(0, duration_ms=40))
    loop.start(T0, world.then)
    world.until(T0 + 50 * MS)
    loop.end()
    assert world.next_stage == [T0 + 40 * MS]


def test_closed_loop_that_is_ended_asks_no_more_and_hands_over_at_once_and_once(world: World) -> None:
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=2, duration=100 * MS))
    loop.start(T0, world.then)
    world.until(T0 + 5 * MS)
    loop.end()
    loop.end()
    assert world.next_stage == [T0 + 5 * MS]
    for flight in list(world.released):
        answer(world, loop, flight)
    world.until(T0 + 200 * MS)
    assert len(world.released) == 2
    assert world.next_stage == [T0 + 5 * MS]


def test_closed_loop_that_is_ended_before_all_users_began_lets_no_more_begin(world: World) -> None:
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=4, duration=100 * MS, ramp_up=40 * MS))
    loop.start(T0, world.then)
    world.until(T0 + 15 * MS)
    loop.end()
    world.until(T0 + 100 * MS)
    assert len(world.released) == 2


# --- the server is gone ----------------------------------------------------------------------------------------------


def refuse(world: World, loop: ClosedLoop, until: int, code: str = "connect_refused", first: int = 0) -> None:
    """From the `first` request on nothing gets through until then: each that is sent fails at once."""
    while world.now < until and not world.next_stage:
        fresh, first = world.released[first:], len(world.released)
        for flight in fresh:
            flight.done = world.now
        if fresh:
            loop.freed([(flight, Fail(code, ""), None) for flight in fresh])
        world.until(world.now + 5 * MS)


def unreachable(world: World, plan: ClosedStage, code: str = "connect_refused") -> None:
    loop = ClosedLoop(world, 3, plan)
    loop.start(T0, world.then)
    world.round()
    refuse(world, loop, T0 + 60_000 * MS, code)


@pytest.mark.parametrize("code", ["connect_refused", "connect_failed", "connect_timeout", "tls"])
def test_a_stage_by_count_is_given_up_when_nothing_has_reached_the_server_for_30_s(world: World, code: str) -> None:
    unreachable(world, ClosedStage(concurrency=4, requests=100_000), code)
    assert world.state.given_up == [3]
    (ended,) = world.next_stage
    assert 30_000 * MS <= ended - T0 <= 31_100 * MS
    sent = len(world.released)
    world.until(world.now + 60_000 * MS)
    assert len(world.released) == sent


@pytest.mark.parametrize("duration", [0, 1 << 50])
def test_a_stage_that_time_ends_goes_on_whether_the_server_is_there_or_not(world: World, duration: int) -> None:
    """It may be a server's restart that is measured."""
    unreachable(world, ClosedStage(concurrency=2, requests=0 if duration else 100_000, duration=duration))
    assert bool(world.state.given_up) != bool(duration)
    assert bool(world.next_stage) != bool(duration)


def test_a_server_that_refuses_requests_is_reached_and_is_not_given_up(world: World) -> None:
    unreachable(world, ClosedStage(concurrency=2, requests=100_000), "http_503")
    assert (world.state.given_up, world.next_stage) == ([], [])


@pytest.mark.parametrize("event", [OK, Fail("http_503", "")])
def test_one_request_that_gets_through_starts_the_30_s_anew(world: World, event: Any) -> None:
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=1, requests=100_000))
    loop.start(T0, world.then)
    world.round()
    refuse(world, loop, T0 + 20_000 * MS)
    world.until(world.now + 2_000 * MS)  # it has asked again
    back, reached = world.now, len(world.released)
    world.released[-1].done = back
    loop.freed([(world.released[-1], event, None)])
    refuse(world, loop, T0 + 90_000 * MS, first=reached)
    (ended,) = world.next_stage
    assert ended - back >= 30_000 * MS


def test_a_stage_is_not_given_up_while_the_server_works_on_a_request(world: World) -> None:
    world.awaiting = True
    unreachable(world, ClosedStage(concurrency=2, requests=100_000))
    assert (world.state.given_up, world.next_stage) == ([], [])


# --- sequences -------------------------------------------------------------------------------------------------------


def in_sequences(*lengths: int) -> World:
    world = World()
    world.sequences = Sequences(lengths)
    return world


def answered(world: World, loop: ClosedLoop, rounds: int) -> None:
    """Each request is answered 1 ms after it was sent."""
    done = 0
    for _ in range(rounds):
        world.until(world.now + MS)
        fresh = world.released[done:]
        done = len(world.released)
        answer(world, loop, *fresh)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[World], None]:
    return lambda world: monkeypatch.setattr(drivers, "now", lambda: world.now)


Clock = Callable[[World], None]


def test_only_whole_sequences_are_sent_when_a_count_ends_them() -> None:
    world = in_sequences(*[3] * 8)
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=2, requests=14))
    loop.start(world.now, world.then)
    answered(world, loop, 20)
    by_user = [sum(flight.user == user for flight in world.released) for user in (0, 1)]
    assert by_user == [6, 6]  # 14 are 4 sequences and a rest that is none
    assert [flight.id for flight in world.released] == list(range(12))
    assert len(world.next_stage) == 1


def test_sequences_are_of_their_own_lengths_and_no_longer_than_a_count_allows() -> None:
    world = in_sequences(2, 3, 4)
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=1, requests=12))
    loop.start(world.now, world.then)
    answered(world, loop, 30)
    assert world.places == [*range(9), 0, 1]  # 2, 3, 4 and 2 again; the next has 3, and one request is left
    assert len(world.next_stage) == 1


def test_a_sequence_is_closed_by_its_last_request_when_the_stage_is_over() -> None:
    world = in_sequences(5, 5, 5, 5)
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=1, duration=7 * MS))
    loop.start(world.now, world.then)
    answered(world, loop, 30)
    assert world.places == [0, 1, 2, 3, 4, 5, 6, 9]
    assert world.next_stage == [T0 + 7 * MS]


def test_whoever_thinks_within_a_sequence_closes_it_when_the_stage_is_over(clock: Clock) -> None:
    world = in_sequences(3, 3)
    clock(world)
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=1, duration=3 * MS, think=50 * MS))
    loop.start(world.now, world.then)
    world.until(T0 + MS)
    answer(world, loop, world.released[0])
    world.until(T0 + 4 * MS)
    assert world.places == [0, 2]
    assert world.sent_at == [T0, T0 + 3 * MS]
    answer(world, loop, world.released[1])
    world.until(T0 + 200 * MS)
    assert len(world.released) == 2


def test_the_closing_request_is_sent_before_the_next_stage_is_told_to_begin(clock: Clock) -> None:
    """After the last stage the run is over as soon as nothing is in flight."""
    world = in_sequences(3, 3)
    clock(world)
    sent: list[int] = []
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=1, duration=3 * MS, think=50 * MS))
    loop.start(world.now, lambda at: sent.append(len(world.released)))
    world.until(T0 + MS)
    answer(world, loop, world.released[0])
    world.until(T0 + 4 * MS)
    assert sent == [2]


def test_when_the_run_is_stopped_each_open_sequence_is_closed_and_none_begun(clock: Clock) -> None:
    world = in_sequences(*[4] * 12)
    clock(world)
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=3, requests=1000, think=50 * MS))
    loop.start(T0, world.then)
    world.round()
    answer(world, loop, world.released[0])
    world.until(T0 + 60 * MS)  # the first user's second request is on its way, the others' first
    answer(world, loop, world.released[1])
    world.state.stopping = True
    loop.close_sequences()
    assert world.places == [0, 4, 8, 1, 7]  # who pauses closes at once
    answer(world, loop, world.released[2], world.released[3])
    assert world.places[5:] == [11, 3]  # the others when their answers are there
    answer(world, loop, *world.released[4:])
    world.until(world.now + 1_000 * MS)
    assert len(world.released) == 7
    assert world.next_stage


def test_when_the_run_is_halted_no_sequence_is_closed(clock: Clock) -> None:
    world = in_sequences(*[4] * 8)
    clock(world)
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=2, requests=1000, think=50 * MS))
    loop.start(T0, world.then)
    world.round()
    answer(world, loop, world.released[0])
    world.state.stopping = world.state.halted = True
    loop.close_sequences()
    answer(world, loop, world.released[1], failed=True)
    world.until(world.now + 1_000 * MS)
    assert world.places == [0, 4]


def run_with(world: World, loop: ClosedLoop, failing: set[int], rounds: int = 40, code: str = "reset") -> None:
    """One request after the other, of which those fail that are the nth."""
    done = 0
    for _ in range(rounds):
        world.until(world.now + 20 * MS)
        if len(world.released) > done:
            answer(world, loop, world.released[done], failed=done in failing, code=code)
            done += 1


@pytest.mark.parametrize("code", ["http_503", "grpc_UNAVAILABLE", "error_body"])
def test_a_sequence_whose_start_was_refused_is_left_for_another(clock: Clock, code: str) -> None:
    world = in_sequences(3, 3, 3, 3)
    clock(world)
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=1, requests=8))
    loop.start(T0, world.then)
    run_with(world, loop, failing={0}, code=code)
    assert world.places == [0, 3, 4, 5, 6, 7, 8]  # 8 requests: the one that failed, two sequences, and one is left
    assert len(world.next_stage) == 1


def test_a_sequence_whose_later_request_failed_is_ended_and_another_begun(clock: Clock) -> None:
    world = in_sequences(5, 5, 5, 5)
    clock(world)
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=1, requests=8))
    loop.start(T0, world.then)
    run_with(world, loop, failing={1})
    assert world.places == [0, 1, 4, 5, 6, 7, 8, 9]  # what was left out of the first is there for the second
    assert len(world.next_stage) == 1


def test_a_sequence_whose_end_failed_is_not_ended_again(clock: Clock) -> None:
    world = in_sequences(3, 3, 3, 3)
    clock(world)
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=1, requests=6))
    loop.start(T0, world.then)
    run_with(world, loop, failing={1, 2})
    assert world.places == [0, 1, 2, 3, 4, 5]


def test_a_sequence_that_failed_is_ended_at_once_when_the_run_is_stopped(clock: Clock) -> None:
    world = in_sequences(4, 4, 4, 4)
    clock(world)
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=1, requests=400))
    loop.start(T0, world.then)
    world.round()
    answer(world, loop, world.released[0])
    world.state.stopping = True
    answer(world, loop, world.released[1], failed=True)
    assert world.places == [0, 1, 3]


def test_a_sequence_whose_start_was_not_sent_is_left_for_another(clock: Clock) -> None:
    world = in_sequences(3, 3, 3, 3)
    clock(world)
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=1, requests=6))
    loop.start(T0, world.then)
    world.round()
    world.released[0].sent = 0
    run_with(world, loop, failing={0}, code="connect_failed")
    assert world.places == [0, 3, 4, 5]


UNTOLD = [
    *("total_timeout", "first_token_timeout", "closed", "reset", "cut_short", "stream_reset"),
    *("connect_failed", "grpc_DEADLINE_EXCEEDED", "grpc_CANCELLED", "http_502", "http_504"),
]


@pytest.mark.parametrize("code", UNTOLD)
def test_a_sequence_whose_start_may_have_got_to_the_server_is_ended(clock: Clock, code: str) -> None:
    world = in_sequences(4, 4, 4, 4)
    clock(world)
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=1, requests=8))
    loop.start(T0, world.then)
    run_with(world, loop, failing={0}, code=code)
    assert world.places == [0, 3, 4, 5, 6, 7]  # 8 requests: two for the first, four for the second, and two are left
    assert len(world.next_stage) == 1


def test_a_sequence_that_was_shared_is_free_only_once_afterwards() -> None:
    sequences = Sequences((2, 2))
    for user in range(3):
        sequences.begin((0, user))
    for user in range(3):
        sequences.take((0, user))
        sequences.take((0, user))
        sequences.ended((0, user), failed=False, accepted=True)
    for user in range(2):
        sequences.begin((1, user))
    assert {sequences.take((1, user)) for user in range(2)} == {0, 2}


def test_a_stage_that_is_given_up_is_told_so_after_the_last_request_of_its_sequence_was_sent(clock: Clock) -> None:
    """Once it is told, the run is over as soon as nothing is in flight."""
    world = in_sequences(*[4] * 8)
    clock(world)
    sent: list[int] = []
    think = 31_000 * MS
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=2, requests=1000, think=think))
    loop.start(T0, lambda at: sent.append(len(world.released)))
    world.round()
    answer(world, loop, world.released[0])
    answer(world, loop, world.released[1], failed=True, code="connect_refused")
    world.until(T0 + think)
    answer(world, loop, world.released[2], failed=True, code="connect_refused")
    assert world.state.given_up == [0]
    assert sent == [len(world.released)]
    assert world.places[-1] == 3  # the END of the first user's, whose second request failed


# --- the server is gone, over several stages -------------------------------------------------------------------------


def given_up(world: World) -> int:
    """A stage that is given up; when."""
    loop = ClosedLoop(world, 0, ClosedStage(concurrency=2, requests=1000))
    loop.start(T0, world.then)
    world.round()
    refuse(world, loop, T0 + 60_000 * MS)
    (at,) = world.next_stage
    return at


def test_the_stages_after_one_that_was_given_up_are_given_up_at_their_first_failure_to_connect(world: World) -> None:
    at = given_up(world)
    for number in (1, 2):
        first = len(world.released)
        loop = ClosedLoop(world, number, ClosedStage(concurrency=2, requests=1000))
        loop.start(world.now, world.then)
        world.next_stage.clear()
        world.until(world.now + MS)
        refuse(world, loop, world.now + 1_000 * MS, first=first)
    assert world.state.given_up == [0, 1, 2]
    assert world.now - at < 1_000 * MS


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("event", [OK, Fail("http_503", "")])
def test_a_stage_that_reaches_the_server_again_gives_those_after_it_all_the_time(
    world: World, event: Any, is_open: bool
) -> None:
    given_up(world)
    world.next_stage.clear()
    back = world.now
    between = (
        OpenLoop(world, 1, open_stage(0)) if is_open else ClosedLoop(world, 1, ClosedStage(concurrency=1, requests=1))
    )
    between.start(back, lambda at: None)
    world.until(back)
    world.released[-1].done = back
    between.freed([(world.released[-1], event, None)])
    first = len(world.released)
    last = ClosedLoop(world, 2, ClosedStage(concurrency=2, requests=1000))
    last.start(back, world.then)
    world.round()
    refuse(world, last, back + 90_000 * MS, first=first)
    (ended,) = world.next_stage
    assert ended - back >= 30_000 * MS
