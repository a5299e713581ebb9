"""The test of a probe, on requests of the simulator's timing engine in virtual time and on made-up ones."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.capacity import SERVERS
from bench.virtual_server import Load
from inferometer.analysis.slo_expression import parse_all
from inferometer.capacity_search.judgement import Look, judge
from inferometer.capacity_search.objectives import ClassObjectives, Objectives, is_counted
from inferometer.capacity_search.probe_requests import with_in_flight
from inferometer.capacity_search.probe_verdict import ProbeTest, plan_of
from inferometer.capacity_search.served import Lengths, served_rate
from inferometer.capacity_search.trials import Goal, Purpose, Request
from inferometer.records import CANCELLED, MISSING, ROW, Columns, Failure
from inferometer.units import NS

SERVER = SERVERS[0]
OBJECTIVES = SERVER.objectives
RATE = Goal(budget=120.0, unloaded=0.4)


def rows_at(rate: float, seconds: float, seed: int = 1) -> np.ndarray:
    return SERVER.virtual.run(Load(rate=rate), seconds, seed)[0]


def probe_test(
    level: float, seconds: float, purpose: Purpose = "narrow", objectives: Objectives = OBJECTIVES
) -> ProbeTest:
    request = Request(level, seconds, purpose)
    return ProbeTest(request, plan_of(RATE, request), objectives, 0.4)


def run_until_decided(test: ProbeTest, rows: np.ndarray, longest: float) -> float:
    for now in np.arange(0.25, longest, 0.25):
        if test.is_due(now):
            test.look(rows[rows["done"] <= now * NS], int(np.searchsorted(rows["intended"], now * NS)), float(now))
        if test.decision is not None:
            return float(now)
    return longest


def verdict(level: float, rows: np.ndarray, seconds: float) -> Look:
    return probe_test(level, seconds).verdict(Columns.of(rows))


def made(rate: float, seconds: float, takes: float = 0.2) -> np.ndarray:
    """Requests at equal intervals that take equally long."""
    rows = np.zeros(round(rate * seconds), ROW)
    rows["id"], rows["open_loop"], rows["turn"] = np.arange(len(rows)), 1, -1
    rows["intended"] = rows["sent"] = (np.arange(len(rows)) * NS / rate).astype(np.int64)
    rows["first_token"] = rows["last_token"] = rows["done"] = rows["intended"] + round(takes * NS)
    return rows


def test_a_calm_probe_holds_and_says_so_with_confidence() -> None:
    found = verdict(8.0, rows_at(8.0, 25.0), 25.0)
    assert (found.status, found.is_sure) == ("holds", True)
    assert found.excess is not None and found.excess < 0.5


def test_a_few_clean_requests_probably_hold() -> None:
    found = verdict(1.5, made(1.5, 16.0), 16.0)
    assert found.requests < OBJECTIVES.needed and (found.status, found.is_sure) == ("holds", False)


def test_a_probe_whose_requests_fail_ends_early() -> None:
    rows = made(10.0, 60.0)
    rows["failure"] = rows["id"] % 4  # for several reasons
    test = probe_test(10.0, 60.0)
    assert run_until_decided(test, rows, 60.0) <= 30.0
    assert test.decision is not None and test.decision.status == "fails"


def test_an_overload_fails_early() -> None:
    test = probe_test(40.0, 60.0)
    assert run_until_decided(test, rows_at(40.0, 60.0), 60.0) <= 15.0
    assert test.decision is not None and test.decision.status == "fails"


def test_a_probe_beyond_the_capacity_fails_and_never_holds() -> None:
    statuses = [verdict(21.0, rows_at(21.0, 30.0, seed), 30.0).status for seed in range(5)]  # it holds 17.3
    assert statuses.count("fails") >= 4 and "holds" not in statuses


def test_waves_of_a_batch_are_no_growth() -> None:
    """Responses that complete eight at a time make the number in flight jump."""
    rows = made(20, 20)
    done = np.ceil((rows["done"] - rows["done"][0] + 1) / (0.4 * NS)) * 0.4 * NS
    rows["first_token"] = rows["last_token"] = rows["done"] = done.astype(np.int64) + rows["done"][0]
    found = verdict(20.0, rows, 20.0)
    assert found.status == "holds" and not found.is_growing and not found.is_overloaded


@pytest.mark.slow
def test_verdicts_at_exactly_the_limit_are_wrong_in_five_percent_at_most() -> None:
    """Independent requests, exactly 10 % of which violate the limit: neither verdict is right, and each may come in 5 % of probes."""
    rng = np.random.default_rng(5)
    looks = []
    for _ in range(40):
        rows = made(10, 40)
        violates = rng.random(len(rows)) < 0.1
        for name in ("first_token", "last_token", "done"):
            rows[name] += np.where(violates, NS, 0)
        test = probe_test(10.0, 40.0)
        run_until_decided(test, rows, 40.0)
        looks.append(test.verdict(Columns.of(rows)))
    sure = [look.status for look in looks if look.is_sure]
    assert sure.count("fails") <= 6  # 2 expected at most; more than 6 in 1 % of such sets
    assert sure.count("holds") <= 6


def test_a_closed_loop_that_explores_is_judged_by_what_was_measured() -> None:
    test = probe_test(4, 5.0, "explore")
    assert not test.is_due(4.0)
    assert (test.verdict(Columns.of(made(4, 5))).status, test.verdict(Columns.of(made(4, 5, 1.5))).status) == (
        "holds",
        "fails",
    )


@pytest.mark.parametrize(("takes", "status"), [(0.05, "holds"), (1.5, "fails")])
def test_an_objective_that_is_not_counted_ends_the_exploration(takes: float, status: str) -> None:
    """A mean is decided by the whole run's summary; the ramp must stop at it all the same."""
    objectives = Objectives(parse_all(["ttft.mean < 200ms"]))
    other = judged_mean(takes)
    found = probe_test(4, 5.0, "explore", objectives).verdict(Columns.of(made(4, 5, takes)), (), [other])
    assert found.status == status


def judged_mean(value: float) -> object:
    from inferometer.analysis.slo_result import SloResult  # noqa: PLC0415

    return SloResult(slo="ttft.mean < 200ms", status="undecided", reason="", value=value, limit=0.2)


@pytest.mark.parametrize(("takes", "status"), [(0.05, "holds"), (0.6, "fails"), (0.2, "undecided")])
def test_a_mean_that_is_far_from_its_limit_probably_decides(takes: float, status: str) -> None:
    objectives = Objectives(parse_all(["ttft.mean < 200ms"]))
    found = probe_test(4, 20.0, "narrow", objectives).verdict(Columns.of(made(4, 20, takes)), (), [judged_mean(takes)])
    assert (found.status, found.is_sure) == (status, False)


def test_responses_in_progress_count_by_their_first_tokens() -> None:
    rows = made(5, 20)
    rows["failure"], rows["chunk_count"] = 1, 20
    rows["done"] = 21 * NS
    found = probe_test(5.0, 20.0).verdict(Columns.of(rows), (Failure(code=CANCELLED, message=""),))
    assert found.status == "holds"
    rows["first_token"] = MISSING
    rows["sent"] = 0
    found = probe_test(5.0, 20.0).verdict(Columns.of(rows), (Failure(code=CANCELLED, message=""),))
    assert found.status == "fails"  # they wait for longer than the limit


def test_a_server_that_was_still_warming_up_is_noticed() -> None:
    rows = made(5, 20)
    slow = rows["intended"] < 8 * NS
    rows["first_token"] += np.where(slow, NS, 0)
    assert verdict(5.0, rows, 20.0).is_warming and not verdict(5.0, made(5, 20), 20.0).is_warming


def test_requests_in_flight_are_found_by_their_ids() -> None:
    rows = rows_at(10.0, 10.0)
    known = rows[[0, 1, 3, 4]]
    everything, until = with_in_flight(known, 6, 2 * NS)
    assert len(everything) == 6
    assert until == rows["intended"][1] + 1
    filled = np.asarray(everything["intended"])[np.argsort(everything["id"])]
    assert (np.diff(filled) >= 0).all()


def test_means_and_gaps_wait_for_the_end() -> None:
    slos = parse_all(["ttft.p90<1s", "goodput(ttft<1s)>90%", "e2e.mean<1s", "itl.p99<1s"])
    assert [is_counted(one) for one in slos] == [True, True, False, False]


def test_what_an_objective_needs_is_that_of_the_binomial() -> None:
    objectives = Objectives(parse_all(["ttft.p99 < 1s", "tpot.p50 < 1s"]))
    assert objectives.allowed == pytest.approx(0.01) and objectives.needed == pytest.approx(
        math.log(0.05) / math.log(0.99)
    )


def test_the_objectives_of_a_class_are_judged_by_its_requests_alone() -> None:
    rows = rows_at(8.0, 30.0)
    rows["class"] = rows["id"] % 2
    rows["first_token"][rows["class"] == 1] += 10 * NS  # slow enough to violate any limit
    classes = tuple(
        ClassObjectives(index, name, tuple(parse_all(["ttft.p90 < 5s"]))) for index, name in enumerate("ab")
    )
    request = Request(8.0, 30.0, "narrow")
    found = judge(Columns.of(rows), plan_of(RATE, request), Objectives((), classes))
    assert [(one.slo, one.class_, one.status) for one in found.results] == [
        ("a: ttft.p90 < 5s", "a", "met"),
        ("b: ttft.p90 < 5s", "b", "missed"),
    ]
    assert found.status == "fails"


@given(st.integers(1, 20), st.integers(2, 40))
def test_the_rate_served_counts_responses_in_progress(rate: int, seconds: int) -> None:
    rows = made(rate, seconds, takes=1.0)
    rows["first_token"] = rows["intended"]
    rows["chunk_count"] = rows["n_want"] = 10
    lengths = Lengths()
    lengths.add(Columns.of(rows))
    assert lengths.tokens == 10
    served, error = served_rate(Columns.of(rows), lengths.tokens, seconds)
    assert served == pytest.approx(rate, rel=0.25, abs=1.0) and error < 1


def test_lengths_are_not_those_of_the_short_responses_that_complete_first() -> None:
    rows = made(5, 20)
    rows["n_want"] = rows["chunk_count"] = np.where(rows["id"] % 2, 10, 190)
    rows["failure"] = rows["chunk_count"] == 190
    lengths = Lengths()
    lengths.add(Columns.of(rows))
    assert lengths.tokens == 100
