"""Closed loop with sequences: a sequence that was begun is ended, by its END, whatever fails or stops."""

import pytest
from fake_launcher import MS, T0, FakeLauncher, complete, fail, started

from inferometer.engine.closed_loop import ClosedLoop
from inferometer.engine.sequences import Sequences
from inferometer.types import ClosedStage


def run_rounds(launcher: FakeLauncher, loop: ClosedLoop, rounds: int) -> None:
    """Complete each request 1 ms after it was sent."""
    done = 0
    for _ in range(rounds):
        launcher.run_until(launcher.now + MS)
        fresh = launcher.sent[done:]
        done = len(launcher.sent)
        complete(launcher, loop, *fresh)


def test_only_whole_sequences_are_sent_in_a_stage_by_count(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = FakeLauncher(monkeypatch, *[3] * 8)
    loop = started(launcher, ClosedStage(concurrency=2, requests=14))
    run_rounds(launcher, loop, 20)
    by_user = [sum(flight.user == user for flight in launcher.sent) for user in (0, 1)]
    assert by_user == [6, 6]  # 14 requests are 4 sequences, and too few are left for another
    assert [flight.id for flight in launcher.sent] == list(range(12))
    assert len(launcher.handed_over_at) == 1


def test_sequences_of_different_lengths_are_begun_only_if_the_count_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = FakeLauncher(monkeypatch, 2, 3, 4)
    loop = started(launcher, ClosedStage(concurrency=1, requests=12))
    run_rounds(launcher, loop, 30)
    assert launcher.indexes == [
        *range(9),
        0,
        1,
    ]  # lengths 2, 3, 4 and 2 again; the next has 3, and only one request is left
    assert len(launcher.handed_over_at) == 1


def test_sequence_is_closed_with_its_last_request_when_the_stage_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = FakeLauncher(monkeypatch, 5, 5, 5, 5)
    loop = started(launcher, ClosedStage(concurrency=1, duration=7 * MS))
    run_rounds(launcher, loop, 30)
    assert launcher.indexes == [0, 1, 2, 3, 4, 5, 6, 9]
    assert launcher.handed_over_at == [T0 + 7 * MS]


def test_user_who_thinks_within_a_sequence_closes_it_when_the_stage_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = FakeLauncher(monkeypatch, 3, 3)
    loop = started(launcher, ClosedStage(concurrency=1, duration=3 * MS, think=50 * MS))
    launcher.run_until(T0 + MS)
    complete(launcher, loop, launcher.sent[0])
    launcher.run_until(T0 + 4 * MS)
    assert launcher.indexes == [0, 2]
    assert launcher.sent_at == [T0, T0 + 3 * MS]
    complete(launcher, loop, launcher.sent[1])
    launcher.run_until(T0 + 200 * MS)
    assert len(launcher.sent) == 2


def test_closing_request_is_sent_before_the_next_stage_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last stage, the run ends as soon as nothing is in flight."""
    launcher = FakeLauncher(monkeypatch, 3, 3)
    sent: list[int] = []
    loop = started(
        launcher,
        ClosedStage(concurrency=1, duration=3 * MS, think=50 * MS),
        on_over=lambda at: sent.append(len(launcher.sent)),
    )
    launcher.run_until(T0 + MS)
    complete(launcher, loop, launcher.sent[0])
    launcher.run_until(T0 + 4 * MS)
    assert sent == [2]


def test_each_open_sequence_is_closed_and_none_begun_when_the_run_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = FakeLauncher(monkeypatch, *[4] * 12)
    loop = started(launcher, ClosedStage(concurrency=3, requests=1000, think=50 * MS))
    complete(launcher, loop, launcher.sent[0])
    launcher.run_until(T0 + 60 * MS)  # in flight: the second request of the first user, the first of the others
    complete(launcher, loop, launcher.sent[1])
    launcher.state.stopping = True
    loop.close_sequences()
    assert launcher.indexes == [0, 4, 8, 1, 7]  # users who pause close theirs immediately
    complete(launcher, loop, launcher.sent[2], launcher.sent[3])
    assert launcher.indexes[5:] == [11, 3]  # the others when their responses have arrived
    complete(launcher, loop, *launcher.sent[4:])
    launcher.run_until(launcher.now + 1_000 * MS)
    assert len(launcher.sent) == 7
    assert launcher.handed_over_at


def test_no_sequence_is_closed_when_the_run_is_halted(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = FakeLauncher(monkeypatch, *[4] * 8)
    loop = started(launcher, ClosedStage(concurrency=2, requests=1000, think=50 * MS))
    complete(launcher, loop, launcher.sent[0])
    launcher.state.stopping = launcher.state.halted = True
    loop.close_sequences()
    fail(launcher, loop, launcher.sent[1])
    launcher.run_until(launcher.now + 1_000 * MS)
    assert launcher.indexes == [0, 4]


def run_with(
    launcher: FakeLauncher, loop: ClosedLoop, failing: set[int], rounds: int = 40, code: str = "reset"
) -> None:
    """Run one request after the other; those whose numbers are in `failing` fail."""
    done = 0
    for _ in range(rounds):
        launcher.run_until(launcher.now + 20 * MS)
        if len(launcher.sent) > done:
            if done in failing:
                fail(launcher, loop, launcher.sent[done], code=code)
            else:
                complete(launcher, loop, launcher.sent[done])
            done += 1


@pytest.mark.parametrize("code", ["http_503", "grpc_UNAVAILABLE", "error_body"])
def test_sequence_whose_start_was_refused_is_abandoned(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    launcher = FakeLauncher(monkeypatch, 3, 3, 3, 3)
    loop = started(launcher, ClosedStage(concurrency=1, requests=8))
    run_with(launcher, loop, failing={0}, code=code)
    assert launcher.indexes == [
        0,
        3,
        4,
        5,
        6,
        7,
        8,
    ]  # of 8 requests: the one that failed and two sequences; one is left
    assert len(launcher.handed_over_at) == 1


def test_sequence_with_a_failed_later_request_is_ended_and_another_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = FakeLauncher(monkeypatch, 5, 5, 5, 5)
    loop = started(launcher, ClosedStage(concurrency=1, requests=8))
    run_with(launcher, loop, failing={1})
    assert launcher.indexes == [
        0,
        1,
        4,
        5,
        6,
        7,
        8,
        9,
    ]  # the requests left out of the first are available for the second
    assert len(launcher.handed_over_at) == 1


def test_sequence_whose_end_failed_is_not_ended_again(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = FakeLauncher(monkeypatch, 3, 3, 3, 3)
    loop = started(launcher, ClosedStage(concurrency=1, requests=6))
    run_with(launcher, loop, failing={1, 2})
    assert launcher.indexes == [0, 1, 2, 3, 4, 5]


def test_sequence_with_a_failure_is_ended_immediately_when_the_run_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = FakeLauncher(monkeypatch, 4, 4, 4, 4)
    loop = started(launcher, ClosedStage(concurrency=1, requests=400))
    complete(launcher, loop, launcher.sent[0])
    launcher.state.stopping = True
    fail(launcher, loop, launcher.sent[1])
    assert launcher.indexes == [0, 1, 3]


def test_sequence_whose_start_was_not_sent_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = FakeLauncher(monkeypatch, 3, 3, 3, 3)
    loop = started(launcher, ClosedStage(concurrency=1, requests=6))
    launcher.sent[0].sent = 0
    run_with(launcher, loop, failing={0}, code="connect_failed")
    assert launcher.indexes == [0, 3, 4, 5]


OUTCOME_UNKNOWN = [
    *("total_timeout", "first_token_timeout", "closed", "reset", "cut_short", "stream_reset"),
    *("connect_failed", "grpc_DEADLINE_EXCEEDED", "grpc_CANCELLED", "http_502", "http_504"),
]


@pytest.mark.parametrize("code", OUTCOME_UNKNOWN)
def test_sequence_whose_start_may_have_reached_the_server_is_ended(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    launcher = FakeLauncher(monkeypatch, 4, 4, 4, 4)
    loop = started(launcher, ClosedStage(concurrency=1, requests=8))
    run_with(launcher, loop, failing={0}, code=code)
    assert launcher.indexes == [
        0,
        3,
        4,
        5,
        6,
        7,
    ]  # of 8 requests: two for the first and four for the second; two are left
    assert len(launcher.handed_over_at) == 1


def test_shared_sequence_is_returned_only_once() -> None:
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


def test_stage_that_is_given_up_sends_the_end_of_its_sequences_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the stage has handed over, the run ends as soon as nothing is in flight."""
    launcher = FakeLauncher(monkeypatch, *[4] * 8)
    sent: list[int] = []
    think = 31_000 * MS
    loop = started(
        launcher,
        ClosedStage(concurrency=2, requests=1000, think=think),
        on_over=lambda at: sent.append(len(launcher.sent)),
    )
    complete(launcher, loop, launcher.sent[0])
    fail(launcher, loop, launcher.sent[1], code="connect_refused")
    launcher.run_until(T0 + think)
    fail(launcher, loop, launcher.sent[2], code="connect_refused")
    assert launcher.state.given_up == [0]
    assert sent == [len(launcher.sent)]
    assert launcher.indexes[-1] == 3  # the END of the first user's sequence, whose second request failed
