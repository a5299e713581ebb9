"""Closed loop: users send when their responses have arrived. The clock is set by the tests; there is no socket and no event loop."""

from typing import Any

import pytest
from fake_launcher import MS, OK, T0, FakeLauncher, complete, fail, open_stage, started

from inferometer.engine.closed_loop import ClosedLoop
from inferometer.engine.inflight import Flight
from inferometer.engine.open_loop import OpenLoop
from inferometer.types import TURN_STEP, ClosedStage, Fail


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> FakeLauncher:
    return FakeLauncher(monkeypatch)


def test_closed_loop_keeps_concurrency_requests_in_flight_until_all_are_sent(launcher: FakeLauncher) -> None:
    loop = started(launcher, ClosedStage(concurrency=2, requests=5, first_id=4, id_step=3))
    assert launcher.ids == [4, 7]
    for index in range(3):
        launcher.now += MS
        complete(launcher, loop, launcher.sent[index])
        assert len(launcher.sent) == min(index + 3, 5)
    assert launcher.handed_over_at == []
    complete(launcher, loop, launcher.sent[3])
    complete(launcher, loop, launcher.sent[4])
    assert launcher.ids == [4, 7, 10, 13, 16]
    assert launcher.handed_over_at == [launcher.now]


def test_users_whose_responses_arrive_together_send_together_up_to_the_requests_left(launcher: FakeLauncher) -> None:
    loop = started(launcher, ClosedStage(concurrency=4, requests=9, first_id=1, id_step=2))
    launcher.now += MS
    complete(launcher, loop, *launcher.sent[1:4])
    assert [(flight.id, flight.user) for flight in launcher.sent[4:]] == [(9, 1), (11, 2), (13, 3)]
    complete(launcher, loop, *launcher.sent[4:], launcher.sent[0])
    assert [(flight.id, flight.user) for flight in launcher.sent[7:]] == [(15, 1), (17, 2)]
    assert launcher.handed_over_at == []
    complete(launcher, loop, *launcher.sent[7:])
    assert len(launcher.sent) == 9 and launcher.handed_over_at == [launcher.now]


def test_only_users_whose_requests_failed_back_off(launcher: FakeLauncher) -> None:
    loop = started(launcher, ClosedStage(concurrency=3, requests=99))
    flights = list(launcher.sent)
    loop.freed([(flights[0], OK, None), (flights[1], Fail("reset", ""), None), (flights[2], OK, None)])
    assert [flight.user for flight in launcher.sent[3:]] == [0, 2]


def test_next_request_is_due_when_the_response_arrived_not_when_it_was_read(launcher: FakeLauncher) -> None:
    loop = started(launcher, ClosedStage(concurrency=1, requests=2))
    launcher.now = T0 + 9 * MS
    launcher.sent[0].done = T0 + 8 * MS
    loop.freed([(launcher.sent[0], OK, None)])
    assert launcher.sent[1].intended == T0 + 8 * MS


def test_with_fewer_requests_than_users_each_is_sent_once(launcher: FakeLauncher) -> None:
    started(launcher, ClosedStage(concurrency=8, requests=3))
    assert launcher.ids == [0, 1, 2]


def test_stage_by_duration_ends_then_and_lets_requests_in_flight_finish(launcher: FakeLauncher) -> None:
    loop = started(launcher, ClosedStage(concurrency=2, duration=10 * MS))
    launcher.run_until(T0 + 5 * MS)
    complete(launcher, loop, launcher.sent[0])
    assert len(launcher.sent) == 3
    launcher.run_until(T0 + 11 * MS)
    assert launcher.handed_over_at == [T0 + 10 * MS]
    for flight in launcher.sent[1:]:
        complete(launcher, loop, flight)
    assert len(launcher.sent) == 3
    assert len(launcher.handed_over_at) == 1


def test_ramp_up_starts_one_user_after_the_other(launcher: FakeLauncher) -> None:
    stage = ClosedStage(concurrency=4, duration=100 * MS, ramp_up=40 * MS, ramp_offset=1 * MS)
    started(launcher, stage)
    launcher.run_until(T0 + 90 * MS)
    assert [flight.intended - T0 for flight in launcher.sent] == [1 * MS, 11 * MS, 21 * MS, 31 * MS]
    assert launcher.sent_at == [flight.intended for flight in launcher.sent]


def test_first_request_of_a_user_has_the_users_own_id_even_if_others_have_sent_several(launcher: FakeLauncher) -> None:
    stage = ClosedStage(concurrency=3, requests=6, ramp_up=30 * MS, first_id=4, id_step=2)
    loop = started(launcher, stage)
    launcher.run_until(T0 + 2 * MS)
    complete(launcher, loop, launcher.sent[-1])
    complete(launcher, loop, launcher.sent[-1])
    launcher.run_until(T0 + 40 * MS)
    assert [(flight.user, flight.id) for flight in launcher.sent] == [(0, 4), (0, 10), (0, 12), (1, 6), (2, 8)]
    complete(launcher, loop, *launcher.sent[2:])
    assert sorted(launcher.ids) == [4, 6, 8, 10, 12, 14]
    complete(launcher, loop, launcher.sent[-1])
    assert launcher.handed_over_at == [launcher.now]


def test_first_response_shortens_a_ramp_up_that_is_only_a_limit(launcher: FakeLauncher) -> None:
    loop = started(launcher, ClosedStage(concurrency=4, duration=900 * MS, ramp_up=400 * MS, ramp_is_limit=True))
    launcher.run_until(T0 + 8 * MS)
    complete(launcher, loop, launcher.sent[0])
    launcher.run_until(T0 + 500 * MS)
    firsts = {flight.user: flight.intended - T0 for flight in reversed(launcher.sent)}
    assert firsts == {0: 0, 1: 10 * MS, 2: 12 * MS, 3: 14 * MS}
    assert sorted(launcher.ids) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("is_limit", "after"), [(False, 8), (True, 600)], ids=["given", "slow response"])
def test_ramp_up_is_kept_if_it_was_given_or_responses_take_longer(
    launcher: FakeLauncher, is_limit: bool, after: int
) -> None:
    plan = ClosedStage(concurrency=4, duration=900 * MS, ramp_up=400 * MS, ramp_is_limit=is_limit)
    loop = started(launcher, plan)
    launcher.run_until(T0 + after * MS)
    complete(launcher, loop, launcher.sent[0])
    launcher.run_until(T0 + 800 * MS)
    assert {flight.user: flight.intended - T0 for flight in reversed(launcher.sent)} == {
        user: user * 100 * MS for user in range(4)
    }


def test_failure_does_not_shorten_the_ramp_up(launcher: FakeLauncher) -> None:
    loop = started(launcher, ClosedStage(concurrency=4, duration=900 * MS, ramp_up=400 * MS, ramp_is_limit=True))
    launcher.run_until(T0 + MS)
    fail(launcher, loop, launcher.sent[0])
    launcher.run_until(T0 + 90 * MS)
    assert {flight.user for flight in launcher.sent} == {0}


# --- requests that the parent deals out -------------------------------------------------------------------------------


def dealt(launcher: FakeLauncher) -> ClosedLoop:
    loop = started(launcher, ClosedStage(concurrency=2, requests=9, granted=3, first_id=1, id_step=2))
    return loop


def test_users_wait_until_the_parent_deals_out_more_requests(launcher: FakeLauncher) -> None:
    loop = dealt(launcher)
    assert loop.issued == 2
    complete(launcher, loop, *launcher.sent)
    assert (launcher.ids, loop.issued) == ([1, 3, 5], 3)
    complete(launcher, loop, launcher.sent[-1])
    assert launcher.handed_over_at == []
    launcher.now += MS
    loop.grant(range(20, 23), is_last=False)
    assert launcher.ids == [1, 3, 5, 20, 21]
    assert {flight.intended for flight in launcher.sent[3:]} == {T0}, "the wait is charged to the client"
    assert loop.issued == 5


def test_stage_ends_when_nothing_more_is_dealt_out_and_all_has_ended(launcher: FakeLauncher) -> None:
    loop = dealt(launcher)
    loop.grant(range(20, 21), is_last=False)
    loop.grant(range(0), is_last=True)
    for index in range(4):
        assert launcher.handed_over_at == []
        complete(launcher, loop, launcher.sent[index])
    assert launcher.ids == [1, 3, 5, 20]
    assert launcher.handed_over_at == [launcher.now]
    assert loop.issued is None


def test_last_grant_ends_a_stage_whose_users_all_wait(launcher: FakeLauncher) -> None:
    loop = dealt(launcher)
    complete(launcher, loop, *launcher.sent)
    complete(launcher, loop, launcher.sent[-1])
    loop.grant(range(0), is_last=True)
    assert launcher.handed_over_at == [launcher.now]


def test_users_who_wait_for_the_parent_do_not_send_once_the_run_is_stopped(launcher: FakeLauncher) -> None:
    loop = dealt(launcher)
    complete(launcher, loop, *launcher.sent)
    complete(launcher, loop, launcher.sent[-1])
    launcher.state.stopping = True
    loop.grant(range(20, 30), is_last=True)
    assert launcher.ids == [1, 3, 5]


def test_user_thinks_between_a_response_and_the_next_request(launcher: FakeLauncher) -> None:
    loop = started(launcher, ClosedStage(concurrency=1, requests=2, think=20 * MS))
    launcher.now += MS
    complete(launcher, loop, launcher.sent[0])
    assert len(launcher.sent) == 1
    launcher.run_until(T0 + 30 * MS)
    assert launcher.sent[1].intended == T0 + 21 * MS


def test_user_whose_requests_fail_waits_twice_as_long_each_time_up_to_1_s(launcher: FakeLauncher) -> None:
    loop = started(launcher, ClosedStage(concurrency=1, duration=1 << 50))
    pauses = []
    for index in range(10):
        failed_at = launcher.now
        fail(launcher, loop, launcher.sent[index])
        assert len(launcher.sent) == index + 1
        launcher.run_until(launcher.now + 2_000 * MS)
        pauses.append((launcher.sent[index + 1].intended - failed_at) // MS)
    assert pauses == [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000]


def test_backoff_starts_again_at_10_ms_after_a_success(launcher: FakeLauncher) -> None:
    loop = started(launcher, ClosedStage(concurrency=1, duration=1 << 50))
    for index, failed in enumerate((True, True, False, True)):
        at = launcher.now
        (fail if failed else complete)(launcher, loop, launcher.sent[index])
        launcher.run_until(launcher.now + 100 * MS)
    assert launcher.sent[-1].intended - at == 10 * MS


def test_backoff_of_one_user_does_not_delay_the_others(launcher: FakeLauncher) -> None:
    loop = started(launcher, ClosedStage(concurrency=2, duration=1 << 50))
    fail(launcher, loop, launcher.sent[0])
    complete(launcher, loop, launcher.sent[1])
    assert [flight.user for flight in launcher.sent] == [0, 1, 1]


def test_nothing_more_is_sent_once_the_run_is_stopped(launcher: FakeLauncher) -> None:
    loop = started(launcher, ClosedStage(concurrency=2, requests=50))
    launcher.state.stopping = True
    for flight in list(launcher.sent):
        complete(launcher, loop, flight)
    assert len(launcher.sent) == 2
    assert launcher.handed_over_at == [launcher.now]


# --- ended early ------------------------------------------------------------------------------------------------------


def test_stage_that_is_ended_sends_nothing_more_and_hands_over_immediately_and_once(launcher: FakeLauncher) -> None:
    loop = started(launcher, ClosedStage(concurrency=2, duration=100 * MS))
    launcher.run_until(T0 + 5 * MS)
    loop.end()
    loop.end()
    assert launcher.handed_over_at == [T0 + 5 * MS]
    for flight in list(launcher.sent):
        complete(launcher, loop, flight)
    launcher.run_until(T0 + 200 * MS)
    assert len(launcher.sent) == 2
    assert launcher.handed_over_at == [T0 + 5 * MS]


def test_users_still_to_start_do_not_start_once_the_stage_is_ended(launcher: FakeLauncher) -> None:
    loop = started(launcher, ClosedStage(concurrency=4, duration=100 * MS, ramp_up=40 * MS))
    launcher.run_until(T0 + 15 * MS)
    loop.end()
    launcher.run_until(T0 + 100 * MS)
    assert len(launcher.sent) == 2


# --- the server cannot be reached -------------------------------------------------------------------------------------


def fail_all(
    launcher: FakeLauncher, loop: ClosedLoop, until: int, code: str = "connect_refused", first: int = 0
) -> None:
    """Fail each request from the `first` on as soon as it is sent, until then or until the stage is over."""
    while launcher.now < until and not launcher.handed_over_at:
        fresh, first = launcher.sent[first:], len(launcher.sent)
        for flight in fresh:
            flight.done = launcher.now
        if fresh:
            loop.freed([(flight, Fail(code, ""), None) for flight in fresh])
        launcher.run_until(launcher.now + 5 * MS)


def run_unreachable(launcher: FakeLauncher, plan: ClosedStage, code: str = "connect_refused") -> None:
    loop = started(launcher, plan, index=3)
    fail_all(launcher, loop, T0 + 60_000 * MS, code)


@pytest.mark.parametrize("code", ["connect_refused", "connect_failed", "connect_timeout", "tls"])
def test_stage_by_count_is_given_up_when_no_request_has_reached_the_server_for_30_s(
    launcher: FakeLauncher, code: str
) -> None:
    run_unreachable(launcher, ClosedStage(concurrency=4, requests=100_000), code)
    assert launcher.state.given_up == [3]
    (ended,) = launcher.handed_over_at
    assert 30_000 * MS <= ended - T0 <= 31_100 * MS
    sent = len(launcher.sent)
    launcher.run_until(launcher.now + 60_000 * MS)
    assert len(launcher.sent) == sent


@pytest.mark.parametrize("duration", [0, 1 << 50])
def test_stage_by_duration_continues_even_if_the_server_cannot_be_reached(
    launcher: FakeLauncher, duration: int
) -> None:
    """The run may measure a restart of the server."""
    run_unreachable(launcher, ClosedStage(concurrency=2, requests=0 if duration else 100_000, duration=duration))
    assert bool(launcher.state.given_up) != bool(duration)
    assert bool(launcher.handed_over_at) != bool(duration)


def test_stage_is_not_given_up_if_the_server_refuses_requests(launcher: FakeLauncher) -> None:
    run_unreachable(launcher, ClosedStage(concurrency=2, requests=100_000), "http_503")
    assert (launcher.state.given_up, launcher.handed_over_at) == ([], [])


@pytest.mark.parametrize("event", [OK, Fail("http_503", "")])
def test_30_s_start_again_after_a_request_that_reached_the_server(launcher: FakeLauncher, event: Any) -> None:
    loop = started(launcher, ClosedStage(concurrency=1, requests=100_000))
    fail_all(launcher, loop, T0 + 20_000 * MS)
    launcher.run_until(launcher.now + 2_000 * MS)  # the user has sent again
    back, reached = launcher.now, len(launcher.sent)
    launcher.sent[-1].done = back
    loop.freed([(launcher.sent[-1], event, None)])
    fail_all(launcher, loop, T0 + 90_000 * MS, first=reached)
    (ended,) = launcher.handed_over_at
    assert ended - back >= 30_000 * MS


def test_stage_is_not_given_up_while_a_request_is_in_flight(launcher: FakeLauncher) -> None:
    launcher.awaiting = True
    run_unreachable(launcher, ClosedStage(concurrency=2, requests=100_000))
    assert (launcher.state.given_up, launcher.handed_over_at) == ([], [])


# --- the server cannot be reached, over several stages ----------------------------------------------------------------


def give_up_first_stage(launcher: FakeLauncher) -> int:
    """Run a stage until it is given up; return when."""
    loop = started(launcher, ClosedStage(concurrency=2, requests=1000))
    fail_all(launcher, loop, T0 + 60_000 * MS)
    (at,) = launcher.handed_over_at
    return at


def test_stages_after_one_given_up_are_given_up_at_their_first_failure_to_connect(launcher: FakeLauncher) -> None:
    at = give_up_first_stage(launcher)
    for number in (1, 2):
        first = len(launcher.sent)
        loop = ClosedLoop(launcher, number, ClosedStage(concurrency=2, requests=1000))
        loop.start(launcher.now, launcher.hand_over)
        launcher.handed_over_at.clear()
        launcher.run_until(launcher.now + MS)
        fail_all(launcher, loop, launcher.now + 1_000 * MS, first=first)
    assert launcher.state.given_up == [0, 1, 2]
    assert launcher.now - at < 1_000 * MS


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("event", [OK, Fail("http_503", "")])
def test_stages_wait_30_s_again_after_a_stage_that_reached_the_server(
    launcher: FakeLauncher, event: Any, is_open: bool
) -> None:
    give_up_first_stage(launcher)
    launcher.handed_over_at.clear()
    back = launcher.now
    between = (
        OpenLoop(launcher, 1, open_stage(0))
        if is_open
        else ClosedLoop(launcher, 1, ClosedStage(concurrency=1, requests=1))
    )
    between.start(back, lambda at: None)
    launcher.run_until(back)
    launcher.sent[-1].done = back
    between.freed([(launcher.sent[-1], event, None)])
    first = len(launcher.sent)
    last = ClosedLoop(launcher, 2, ClosedStage(concurrency=2, requests=1000))
    last.start(back, launcher.hand_over)
    launcher.run_due()
    fail_all(launcher, last, back + 90_000 * MS, first=first)
    (ended,) = launcher.handed_over_at
    assert ended - back >= 30_000 * MS


# --- sessions in a loop that counts requests ---


def turn_of(flight: Flight, think: int = 0) -> Flight:
    return Flight(id=flight.id + TURN_STEP, intended=flight.done + think, session=flight.id, turn=1, user=flight.user)


def test_a_free_user_sends_the_turn_that_is_due_for_the_longest_time(launcher: FakeLauncher) -> None:
    loop = started(launcher, ClosedStage(concurrency=2, requests=10, by_request=True))
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
    loop = started(launcher, ClosedStage(concurrency=2, requests=10, by_request=True))
    launcher.now += MS
    complete(launcher, loop, *launcher.sent)
    assert launcher.ids == [0, 1, 2, 3]


def test_turns_count_as_requests(launcher: FakeLauncher) -> None:
    loop = started(launcher, ClosedStage(concurrency=2, requests=4, by_request=True))
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
    loop = started(launcher, ClosedStage(concurrency=2, requests=100, by_request=True))
    loop.send_turn(turn_of(launcher.sent[0]))
    loop.end()
    complete(launcher, loop, *launcher.sent)
    assert launcher.ids == [0, 1] and not loop.may_continue()
