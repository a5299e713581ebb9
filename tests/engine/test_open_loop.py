"""Open loop: requests are sent at the planned instants. The clock is set by the tests; there is no socket and no event loop."""

import pytest
from fake_launcher import MS, T0, FakeLauncher, open_stage, started


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> FakeLauncher:
    return FakeLauncher(monkeypatch)


def test_each_request_is_sent_at_its_instant_whatever_the_server_does(launcher: FakeLauncher) -> None:
    started(launcher, open_stage(0, 5, 5, 30, first_id=10, id_step=2), index=3)
    launcher.run_until(T0 + 200 * MS)
    assert launcher.ids == [10, 12, 14, 16]
    assert [flight.intended - T0 for flight in launcher.sent] == [0, 5 * MS, 5 * MS, 30 * MS]
    assert launcher.sent_at == [flight.intended for flight in launcher.sent]
    assert {flight.stage for flight in launcher.sent} == {3}
    assert launcher.handed_over_at == [T0 + 100 * MS]


def test_processor_is_to_be_awake_when_the_next_request_is_due(launcher: FakeLauncher) -> None:
    started(launcher, open_stage(0, 5, 30))
    launcher.run_until(T0 + 200 * MS)
    assert [at - T0 for at in launcher.expected] == [pytest.approx(at * MS, abs=80_000) for at in (0, 5, 30)]


def test_cap_and_drop_are_passed_on_to_the_launcher(launcher: FakeLauncher) -> None:
    started(launcher, open_stage(0, 1, cap=7, drop=True))
    launcher.run_until(T0 + 10 * MS)
    assert launcher.caps == [(7, True)] * 2


def test_late_requests_are_all_sent_and_keep_their_planned_instants(launcher: FakeLauncher) -> None:
    started(launcher, open_stage(*range(10)))
    launcher.now = T0 + 7 * MS
    launcher.run_due()
    assert launcher.ids == list(range(8))
    assert [flight.intended - T0 for flight in launcher.sent] == [at * MS for at in range(8)]


def test_overloaded_client_reads_responses_after_every_32_requests(launcher: FakeLauncher) -> None:
    started(launcher, open_stage(*([1] * 100)))
    launcher.now = T0 + 50 * MS
    sent = []
    for _ in range(5):
        launcher.run_due()
        sent.append(len(launcher.sent))
    assert sent == [32, 64, 96, 100, 100]


def test_stage_hands_over_only_after_all_its_requests_are_sent(launcher: FakeLauncher) -> None:
    """A client that stalled past the end of the stage still has to send what was due: the end of the last stage would end the run."""
    started(launcher, open_stage(*([1] * 100), duration_ms=20))
    launcher.now = T0 + 50 * MS
    launcher.run_due()
    assert (len(launcher.sent), launcher.handed_over_at) == (32, [])
    for _ in range(4):
        launcher.run_due()
    assert len(launcher.sent) == 100
    assert launcher.handed_over_at == [T0 + 20 * MS]


def test_stage_without_requests_still_lasts_for_its_duration(launcher: FakeLauncher) -> None:
    started(launcher, open_stage(duration_ms=40))
    launcher.run_until(T0 + 39 * MS)
    assert launcher.handed_over_at == []
    launcher.run_until(T0 + 41 * MS)
    assert (launcher.sent, launcher.handed_over_at) == ([], [T0 + 40 * MS])


def test_nothing_more_is_sent_once_the_run_is_stopped(launcher: FakeLauncher) -> None:
    started(launcher, open_stage(0, 10, 20))
    launcher.run_until(T0 + 12 * MS)
    launcher.state.stopping = True
    launcher.run_until(T0 + 50 * MS)
    assert launcher.ids == [0, 1]


def test_stage_that_is_ended_sends_nothing_more_and_hands_over_immediately_and_once(launcher: FakeLauncher) -> None:
    loop = started(launcher, open_stage(0, 10, 20, 30))
    launcher.run_until(T0 + 12 * MS)
    loop.end()
    loop.end()
    assert launcher.handed_over_at == [T0 + 12 * MS]
    launcher.run_until(T0 + 200 * MS)
    assert launcher.ids == [0, 1]
    assert launcher.handed_over_at == [T0 + 12 * MS]


def test_stage_that_is_over_cannot_be_ended_again(launcher: FakeLauncher) -> None:
    loop = started(launcher, open_stage(0, duration_ms=40))
    launcher.run_until(T0 + 50 * MS)
    loop.end()
    assert launcher.handed_over_at == [T0 + 40 * MS]
