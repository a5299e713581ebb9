"""The sequential test of a probe, and the whole search against the simulator's timing engine in virtual time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.capacity import SERVERS, Probes, goal, simulate, unloaded
from inferometer.analysis.binomial import TAIL
from inferometer.analysis.slo_expression import parse_all
from inferometer.capacity_search.sequential import (
    ClassObjectives,
    Sequential,
    is_counted,
    judge,
    looks,
    needed_requests,
    spending,
    with_in_flight,
)
from inferometer.records import ROW, Columns, StagePlan
from inferometer.units import NS

SERVER = SERVERS[0]
TRUTH = 17.3
"""The rate that SERVER holds; bench/capacity.py measures it with 10^6 requests."""


def rows_at(rate: float, seconds: float, seed: int = 1) -> np.ndarray:
    return simulate(SERVER, rate, round(rate * seconds), seed)


def plan(rate: float, seconds: float) -> StagePlan:
    return StagePlan(type="poisson", open=True, rate=rate, duration=seconds)


def sequential(rate: float, longest: float, **more: object) -> Sequential:
    values: dict[str, object] = {"telling": 10.0, "level": rate, "unloaded": unloaded(SERVER)}
    return Sequential(plan(rate, longest), SERVER.objectives, longest, **(values | more))  # type: ignore[arg-type]


def run_until_decided(test: Sequential, rows: np.ndarray, longest: float) -> float:
    for now in np.arange(0.25, longest, 0.25):
        if test.is_due(now):
            test.look(rows[rows["done"] <= now * NS], int(np.searchsorted(rows["intended"], now * NS)), float(now))
        if test.decision is not None:
            return float(now)
    return longest


@given(st.floats(0.1, 100), st.floats(0.1, 1000), st.floats(0.1, 100))
def test_looks_are_few_and_end_with_the_probe(first: float, longest: float, telling: float) -> None:
    times = looks(min(first, longest), longest, telling)
    assert times == sorted(times) and times[-1] == longest
    assert len(times) <= 4 + 2 * math.log2(max(longest / min(first, longest, telling), 1) + 1)


@given(st.floats(0.1, 100), st.floats(0.1, 1000), st.floats(0.1, 100))
def test_the_looks_together_are_wrong_as_often_as_one_may_be(first: float, longest: float, telling: float) -> None:
    times = looks(min(first, longest), longest, telling)
    spent = spending(times)
    assert all(one > 0 for one in spent.values())
    assert sum(spent.values()) == pytest.approx(TAIL)
    assert sum(spending([time for time in times if time >= telling]).values()) <= TAIL * 1.000001


@pytest.mark.slow
def test_verdicts_at_exactly_the_limit_are_wrong_in_five_percent_at_most() -> None:
    """Independent requests, exactly 10 % of which violate the limit: neither verdict is right, and each may come in 5 % of probes."""
    rng = np.random.default_rng(5)
    verdicts = []
    for _ in range(40):
        rows = untroubled(10, 40)
        violates = rng.random(len(rows)) < 0.1
        for name in ("first_token", "last_token", "done"):
            rows[name] += np.where(violates, NS, 0)
        test = sequential(10.0, 40.0)
        run_until_decided(test, rows, 40.0)
        verdicts.append(test.judge_all(Columns.of(rows)).status)
    assert verdicts.count("fails") <= 6  # 2 expected at most; more than 6 in 1 % of such sets
    assert verdicts.count("holds") <= 6


def test_needed_requests_are_those_of_the_binomial() -> None:
    assert needed_requests(parse_all(["ttft.p99 < 1s"]), 0.01) == pytest.approx(458.2, abs=0.1)
    assert needed_requests(parse_all(["ttft.p90 < 1s", "tpot.p50 < 1s"])) == pytest.approx(
        math.log(TAIL) / math.log(0.9)
    )


def test_a_comfortable_rate_holds_before_its_time_is_up() -> None:
    test = sequential(8.0, 60.0)
    ended = run_until_decided(test, rows_at(8.0, 60.0), 60.0)
    assert test.decision is not None and test.decision.status == "holds"
    assert 10.0 <= ended < 60.0


def test_an_overload_fails_early() -> None:
    test = sequential(40.0, 60.0)
    ended = run_until_decided(test, rows_at(40.0, 60.0), 60.0)
    assert test.decision is not None and test.decision.status == "fails"
    assert ended <= 12.0
    assert test.decision.overload.capacity == pytest.approx(20, rel=0.4)  # 8 slots of 0.4 s


def untroubled(rate: int, seconds: int) -> np.ndarray:
    """Requests at equal intervals that take 200 ms each."""
    rows = np.zeros(rate * seconds, ROW)
    rows["id"], rows["open_loop"], rows["turn"] = np.arange(len(rows)), 1, -1
    rows["intended"] = rows["sent"] = np.arange(len(rows)) * NS // rate
    rows["first_token"] = rows["last_token"] = rows["done"] = rows["intended"] + NS // 5
    return rows


def test_a_probe_that_is_too_short_does_not_hold() -> None:
    """The queue of an overloaded server takes a while to grow, so a short probe looks good at any rate."""
    rows = Columns.of(untroubled(20, 5))
    assert judge(rows, plan(20.0, 5.0), SERVER.objectives).status == "holds"
    assert sequential(20.0, 5.0).judge_all(rows).status == "undecided"


def test_a_scout_moves_on_when_the_server_does_not_notice_the_load() -> None:
    test = Sequential(plan(20, 9), SERVER.objectives, 9.0, telling=100.0, level=20, unloaded=0.2, purpose="ramp")
    ended = run_until_decided(test, untroubled(20, 9), 9.0)
    assert test.decision is not None and test.is_calm(test.decision)
    assert ended < 9.0


def test_requests_in_flight_are_found_by_their_ids() -> None:
    rows = rows_at(10.0, 10.0)
    known = rows[[0, 1, 3, 4]]
    everything, until = with_in_flight(known, 6, 2 * NS)
    assert len(everything) == 6
    assert until == rows["intended"][1] + 1
    filled = np.asarray(everything["intended"])[np.argsort(everything["id"])]
    assert (np.diff(filled) >= 0).all()


def test_means_and_gaps_wait_for_the_end() -> None:
    counted = [
        is_counted(one) for one in parse_all(["ttft.p90<1s", "goodput(ttft<1s)>90%", "e2e.mean<1s", "itl.p99<1s"])
    ]
    assert counted == [True, True, False, False]


def test_the_search_brackets_the_truth() -> None:
    """The quick version of bench/capacity.py: 5 seeds, of which at least 4 bracket the truth."""
    found = [Probes(SERVER, seed).search(goal(SERVER))[0] for seed in range(5)]
    hits = [(one.low or 0.0) <= TRUTH * 1.01 and (one.high or math.inf) >= TRUTH * 0.99 for one in found]
    assert sum(hits) >= 4, found
    assert any(one.low is not None and one.high is not None for one in found)


def test_the_objectives_of_a_class_are_judged_by_its_requests_alone() -> None:
    rows = rows_at(8.0, 60.0)
    rows["class"] = rows["id"] % 2
    rows["first_token"][rows["class"] == 1] += 10 * NS  # slow enough to violate any limit
    slow = [ClassObjectives(index, name, tuple(parse_all(["ttft.p90 < 5s"]))) for index, name in enumerate("ab")]
    found = judge(Columns.of(rows), plan(8.0, 60.0), (), classes=slow)
    assert [(one.slo, one.class_, one.status) for one in found.results] == [
        ("a: ttft.p90 < 5s", "a", "met"),
        ("b: ttft.p90 < 5s", "b", "missed"),
    ]
    assert found.status == "fails"
    test = sequential(8.0, 60.0, classes=slow)
    assert run_until_decided(test, rows, 60.0) < 60.0
    assert test.decision is not None and test.decision.status == "fails"


def test_conversations_are_judged_while_the_probe_runs() -> None:
    rows = rows_at(8.0, 60.0)
    rows["turn"], rows["session"] = rows["id"] % 2, rows["id"] // 2
    test = sequential(8.0, 60.0)
    assert run_until_decided(test, rows, 60.0) < 60.0
    assert test.decision is not None and test.decision.status == "holds"
