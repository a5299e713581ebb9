"""A stage that offers more than the server completes is found, and one that the server keeps up with is not accused."""

import msgspec
import numpy as np
import pytest
import queues
import synthetic_run as made

from inferometer.analysis.checks import Check
from inferometer.analysis.overload import Overload, by_session, overload
from inferometer.analysis.summary import Summary, summarise
from inferometer.records import MISSING, Columns, Failure, Outcome, StagePlan


def drift(rows: np.ndarray, plan: StagePlan) -> Overload:
    return overload(Columns.of(rows), plan)


def check_of(summary: Summary) -> Check:
    return next(check for check in summary.checks if check.name == "overload")


@pytest.mark.parametrize("seconds", [30, 120, 300])
def test_100_per_second_offered_to_a_capacity_of_90_is_overload(seconds: float) -> None:
    """The third row of the table: it was VALID, with a p99 that grew with the length of the run."""
    found = summarise(queues.run(queues.queue_rows(100, 90, seconds), queues.stage(100, seconds)))
    assert found.overload is not None and found.overload.status == "overloaded"
    assert found.overload.growth == pytest.approx(10, abs=2) and found.overload.capacity == pytest.approx(90, abs=2)
    check = check_of(found)
    assert (check.status, check.affects, check.stages) == ("fail", ("latency",), (0,))
    assert found.verdict == "INVALID" and found.quotable == {"latency": False, "throughput": True}
    assert "requests/s; the latency has no steady value at this rate; the server completes about " in check.message


@pytest.mark.parametrize("service", queues.SERVICE)
@pytest.mark.parametrize("kind", ["constant", "poisson"])
@pytest.mark.parametrize("slots", [1, 16])
def test_no_false_alarm_at_95_percent_of_the_capacity(service: str, kind: str, slots: int) -> None:
    plan = queues.stage(95, 30, kind)
    for seed in range(5):
        for rate in (50, 80, 95):
            rows = queues.queue_rows(rate, 100, 30, seed, slots, kind, service)
            assert drift(rows, plan).status == "steady", (rate, seed)


@pytest.mark.parametrize("service", queues.SERVICE)
def test_five_percent_above_the_capacity_is_found_in_two_minutes(service: str) -> None:
    found = [
        drift(queues.queue_rows(105, 100, 120, seed, service=service), queues.stage(105, 120)) for seed in range(5)
    ]
    assert sum(each.status == "overloaded" for each in found) >= 4


@pytest.mark.parametrize("times", [2, 7, 20])
def test_a_flood_is_overload_and_not_too_short(times: int) -> None:
    rows = queues.queue_rows(20 * times, 20, 30)
    found = drift(rows, queues.stage(20 * times, 30))
    assert found.status == "overloaded" and found.capacity == pytest.approx(20, rel=0.15)
    assert summarise(queues.run(rows, queues.stage(20 * times, 30))).throughput.requests == pytest.approx(20, rel=0.15)


@pytest.mark.parametrize(
    ("rate", "seconds", "takes"), [(10, 2, 0.05), (20, 2, 0.05), (50, 2, 0.1), (10, 5, 0.5), (20, 30, 5)]
)
@pytest.mark.parametrize("kind", ["constant", "poisson"])
def test_short_stages_with_a_steady_server_pass(rate: float, seconds: float, takes: float, kind: str) -> None:
    for seed in range(10):
        arrived = queues.arrivals(kind, rate, seconds, np.random.default_rng(seed))
        assert drift(queues.open_rows(arrived, arrived + takes), queues.stage(rate, seconds, kind)).status == "steady"


def test_a_stage_in_which_responses_take_more_than_half_of_it_is_too_short_to_tell() -> None:
    arrived = np.arange(200) / 20
    rows = queues.open_rows(arrived, arrived + 6)
    found = summarise(queues.run(rows, queues.stage(20, 10, "constant")))
    assert found.overload is not None and (found.overload.status, found.overload.needs) == (
        "too_short",
        pytest.approx(24, rel=0.01),
    )
    check = check_of(found)
    assert (check.status, check.affects) == ("fail", ("latency",)) and not found.quotable["latency"]
    assert "Too short to tell" in check.message and "Run for at least 24 s" in check.message


def test_long_tails_that_still_fill_the_pipeline_are_not_called_overload() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        arrived = np.arange(6000) / 200
        rows = queues.open_rows(arrived, arrived + queues.SERVICE["lognormal"](rng, 7, 6000))
        assert drift(rows, queues.stage(200, 30, "constant")).status in ("too_short", "steady")


@pytest.mark.parametrize("kind", ["ramp", "steps", "bursts", "trace"])
def test_rates_that_change_are_not_tested_and_the_check_says_so(kind: str) -> None:
    rows = queues.queue_rows(100, 90, 30)
    found = summarise(queues.run(rows, queues.stage(100, 30, kind)))
    check = check_of(found)
    assert check.status == "pass" and check.message == f"not applicable: the rate of the stage is not constant ({kind})"


def test_closed_loops_have_no_overload() -> None:
    rows, chunks = made.closed_rows()
    found = summarise(made.run(rows, chunks))
    assert found.overload == Overload("not_applicable", "closed loop")
    assert not any(check.name == "overload" for check in found.checks)


def test_the_growth_of_too_few_requests_is_not_tested() -> None:
    arrived = np.arange(19) / 10
    found = drift(queues.open_rows(arrived, arrived + 0.5), queues.stage(10, 1.9, "constant"))
    assert found.status == "not_applicable" and "19 requests are too few" in found.reason


@pytest.mark.parametrize("limits", [{"duration": 1.9}, {"requests": 19}])
def test_a_few_requests_whose_responses_take_longer_than_the_stage_are_too_short(limits: dict[str, float]) -> None:
    arrived = np.arange(19) / 10
    rows = queues.open_rows(arrived, arrived + np.arange(5, 24))
    found = summarise(queues.run(rows, StagePlan(type="constant", open=True, rate=10, **limits)))
    assert found.overload is not None and found.overload.status == "too_short"
    assert found.verdict == "INVALID" and "the stage lasts 1.9 s" in check_of(found).message


@pytest.mark.parametrize(("count", "rate", "takes"), [(1, 1, 5), (1, 5, 0.3), (2, 2, 0.4), (4, 5, 0.3), (5, 5, 0.45)])
def test_a_handful_of_quick_requests_is_valid(count: int, rate: float, takes: float) -> None:
    arrived = np.arange(count) / rate
    rows = queues.open_rows(arrived, arrived + takes)
    found = summarise(queues.run(rows, queues.stage(rate, count / rate, "constant")))
    assert found.overload is not None and found.overload.status == "not_applicable"
    assert check_of(found).status == "pass"


def test_one_slow_response_does_not_make_a_few_requests_too_short() -> None:
    arrived, takes = np.arange(10) / 10, np.full(10, 0.1)
    takes[0] = 0.9
    found = drift(queues.open_rows(arrived, arrived + takes), queues.stage(10, 1, "constant"))
    assert found.status == "not_applicable"


# --- sessions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [6, 8])
def test_more_sessions_than_the_server_completes_are_overload(slots: int) -> None:
    """5 sessions/s with 8 turns are 40 requests/s: the later turns wait for the server, so requests in flight hide it."""
    found = summarise(queues.run(queues.session_rows(5, 60, slots), queues.stage(5, 60)))
    assert found.overload is not None and found.overload.status == "overloaded" and found.verdict == "INVALID"
    assert found.overload.capacity == pytest.approx(slots / 0.3, rel=0.1)
    assert found.throughput.requests == pytest.approx(slots / 0.3, rel=0.1)


@pytest.mark.parametrize("slots", [14, 100])
def test_sessions_that_the_server_keeps_up_with_are_steady(slots: int) -> None:
    for seed in range(5):
        assert drift(queues.session_rows(5, 120, slots, seed=seed), queues.stage(5, 120)).status == "steady", seed


def test_a_stage_of_less_than_twice_the_length_of_a_session_is_too_short() -> None:
    found = drift(queues.session_rows(5, 15, 100), queues.stage(5, 15))
    assert found.status == "too_short" and found.reason.startswith("a session takes 1")
    few = drift(queues.session_rows(1, 15, 100), queues.stage(1, 15))
    assert few.status == "too_short" and few.reason.startswith("a session takes 1")


def test_long_sessions_that_still_fill_the_pipeline_are_not_called_overload() -> None:
    """From 1 to about 60 turns of 1.3 s on a server without a queue: the shortest sessions end early in the stage."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        turns = rng.geometric(1 / 20, 150)
        session = np.repeat(np.arange(150), turns)
        turn = np.concatenate([np.arange(count) for count in turns])
        arrived = np.sort(rng.uniform(0, 30, 150))[session] + 1.3 * turn
        rows = queues.open_rows(arrived, arrived + 0.3)
        rows["turn"], rows["session"] = turn, session
        assert drift(rows, queues.stage(5, 30)).status == "too_short", seed


def test_sessions_in_progress_count_until_their_last_turn_has_ended() -> None:
    rows = queues.session_rows(5, 60, 100)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    single = queues.open_rows(np.arange(60.0), np.arange(60.0) + 0.3)
    single["turn"] = single["session"] = -1
    single["id"] = 10_000 + np.arange(60)
    found = by_session(Columns.of(np.concatenate([rows, single])))
    assert len(found) == 300 + 60
    for index, session in enumerate(rows["session"][rows["turn"] == 0]):
        own = rows[rows["session"] == session]
        assert found["intended"][index] == own["intended"].min() and found["done"][index] == own["done"].max()
    assert (found["done"][300:] == single["done"]).all()


def test_sessions_of_one_turn_are_requests() -> None:
    rows = queues.queue_rows(100, 90, 30)
    without = drift(rows, queues.stage(100, 30))
    rows["session"], rows["turn"] = rows["id"], 0
    assert drift(rows, queues.stage(100, 30)) == without


# --- the records -----------------------------------------------------------------------------------------------------


def test_requests_that_wait_at_the_cap_of_the_client_are_in_flight() -> None:
    """With a cap of 8, the queue is in the client: what was sent is never more than 8 ahead of what is done."""
    rows = queues.queue_rows(100, 90, 30, slots=8, kind="constant", service="constant")
    waited = np.maximum(rows["done"] - rows["intended"] - round(8 / 90 * made.SECOND), 0)
    rows["sent"] += waited
    rows["held"] = waited
    found = drift(rows, queues.stage(100, 30, "constant", concurrency=8))
    assert found.status == "overloaded" and found.growth == pytest.approx(10, rel=0.05)


def test_refused_requests_are_not_in_flight() -> None:
    rows = queues.queue_rows(100, 200, 30)
    refused = np.arange(len(rows)) % 3 == 0
    rows["done"][refused] = rows["sent"][refused] + made.MS
    made.fail(rows, refused)
    found = drift(rows, queues.stage(100, 30))
    assert found.status == "steady"


def test_an_interrupted_stage_is_tested_up_to_the_interruption() -> None:
    rows = queues.queue_rows(100, 90, 60)
    end = 30 * made.SECOND
    rows = rows[rows["intended"] < end]
    cut = rows["done"] > end
    rows["done"][cut], rows["failure"][cut] = end, 1
    found = summarise(
        queues.run(rows, queues.stage(100, 60), failures=(Failure("cancelled", ""),), outcome=Outcome(interrupted=True))
    )
    assert found.overload is not None and found.overload.status == "overloaded"


def test_a_stage_whose_requests_never_ended_or_were_never_sent() -> None:
    rows = queues.queue_rows(100, 200, 30)
    rows["done"] = MISSING
    assert drift(rows, queues.stage(100, 30)).status == "not_applicable"
    rows["sent"] = MISSING
    assert drift(rows, queues.stage(100, 30)).reason == "no request was sent"


def test_the_limit_is_configurable() -> None:
    rows, plan = queues.queue_rows(100, 90, 30), queues.stage(100, 30)
    limits = made.manifest().config | {"limits": {"overload": 0.2}}
    assert check_of(summarise(queues.run(rows, plan, config=limits))).status == "pass"


def test_a_sweep_names_the_first_stage_that_was_too_much() -> None:
    parts = []
    for stage, rate in enumerate((50, 100, 150)):
        part = queues.queue_rows(rate, 90, 30, seed=stage)
        part["stage"] = stage
        for name in ("intended", "sent", "done"):
            part[name] += stage * 100 * made.SECOND
        parts.append(part)
    rows = np.concatenate(parts)
    rows["id"] = np.arange(len(rows))
    plans = tuple(queues.stage(rate, 30, name=f"{rate}/s") for rate in (50, 100, 150))
    found = summarise(made.run(rows, plan=plans))
    check = check_of(found)
    assert check.stages == (1, 2) and "The queue of stage 2 (100/s) grew by" in check.message
    assert "1 more stage was overloaded too" in check.message
    assert [stage.quotable["latency"] for stage in found.stages] == [True, False, False]
    assert all(stage.quotable["throughput"] for stage in found.stages)
    msgspec.json.encode(found)
