"""The knee of a latency-throughput curve, for queues whose curves are known in closed form."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.analysis.counts import Counts
from inferometer.analysis.knee import Knee, Level, find_knee, measured_level
from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.throughput import Throughput
from inferometer.records import StagePlan

CAPACITY = 40.0


def mm1(rate: float) -> float:
    """Mean latency of an M/M/1 queue."""
    return 1 / (CAPACITY - rate)


def md1(rate: float) -> float:
    """Mean latency of an M/D/1 queue (Pollaczek-Khinchine)."""
    share = rate / CAPACITY
    return (1 + share / (2 * (1 - share))) / CAPACITY


def open_levels(latency: Callable[[float], float], rates: list[float], error: float = 0.0) -> list[Level]:
    return [
        Level(by="rate", value=rate, throughput=rate, latency=latency(rate), error=error)
        if rate < CAPACITY
        else Level(by="rate", value=rate, throughput=CAPACITY, latency=None, is_saturated=True)
        for rate in rates
    ]


def batching(users: int, alone: float = 0.5, each: float = 0.05) -> Level:
    """A closed loop whose latency grows linearly with the number in flight."""
    latency = alone + each * users
    return Level(by="concurrency", value=users, throughput=users / latency, latency=latency)


@pytest.mark.parametrize(("latency", "share"), [(mm1, 0.5), (md1, 2 - math.sqrt(2))])
def test_knee_of_a_queue_is_where_theory_puts_it(latency: Callable[[float], float], share: float) -> None:
    rates = [CAPACITY * step / 50 for step in range(1, 60)]
    knee = find_knee(open_levels(latency, rates))
    assert isinstance(knee, Knee)
    assert knee.level == pytest.approx(share * CAPACITY, abs=CAPACITY / 50)
    low, high = knee.between
    assert low is not None
    assert high is not None
    assert low < share * CAPACITY < high


def test_knee_of_a_batching_server_is_where_latency_has_doubled() -> None:
    knee = find_knee([batching(users) for users in (1, 2, 4, 8, 10, 12, 16, 32, 64)])
    assert isinstance(knee, Knee)
    assert (knee.by, knee.level) == ("concurrency", 10)
    assert knee.reason == "from 10 to 16 in flight, throughput grows by 23 % and mean latency by 30 %"


@given(
    rates=st.lists(st.floats(1.0, 60.0), min_size=3, max_size=12, unique=True),
    scale=st.floats(0.01, 1000.0),
    order=st.randoms(use_true_random=False),
)
def test_knee_does_not_depend_on_the_order_or_the_unit_of_latency(
    rates: list[float], scale: float, order: random.Random
) -> None:
    levels = open_levels(mm1, rates)
    scaled = open_levels(lambda rate: scale * mm1(rate), rates)
    order.shuffle(scaled)
    one, other = find_knee(levels), find_knee(scaled)
    if isinstance(one, Knee):
        assert isinstance(other, Knee)
        assert other.level == pytest.approx(one.level)
        assert min(rates) < one.level < max(rates)
    else:
        assert isinstance(other, str)


def test_levels_far_above_the_knee_do_not_move_it() -> None:
    few = find_knee(open_levels(mm1, [5.0, 10.0, 20.0, 35.0]))
    many = find_knee(open_levels(mm1, [5.0, 10.0, 20.0, 35.0, 39.0, 50.0, 100.0, 1000.0]))
    assert isinstance(few, Knee)
    assert isinstance(many, Knee)
    assert few.level == many.level == 20.0


@pytest.mark.parametrize(
    ("levels", "why"),
    [
        (open_levels(mm1, [2.0, 4.0, 8.0]), "no knee up to 8 requests/s"),
        (open_levels(mm1, [30.0, 35.0, 39.0]), "the knee is at or below 30 requests/s"),
        (open_levels(mm1, [50.0, 60.0]), "overloaded at every level, from 50 requests/s on"),
        (
            open_levels(mm1, [5.0, 20.0, 35.0], error=0.8),
            "no knee is shown up to 35 requests/s: above 20, the intervals",
        ),
        (
            [*open_levels(mm1, [5.0, 10.0]), Level(by="rate", value=15.0, throughput=None, latency=None)],
            "no knee is shown up to 15 requests/s: levels above 10 have no steady latency",
        ),
        ([], "no levels"),
        ([Level(by="rate", value=3.0, throughput=None, latency=None)], "steady latency"),
    ],
)
def test_there_may_be_no_knee_within_the_levels(levels: list[Level], why: str) -> None:
    found = find_knee(levels)
    assert isinstance(found, str)
    assert why in found


def test_saturated_level_is_past_the_knee() -> None:
    knee = find_knee(open_levels(lambda rate: 0.01, [5.0, 10.0, 20.0, 50.0]))
    assert isinstance(knee, Knee)
    assert (knee.level, knee.between[1]) == (20.0, 50.0)
    assert knee.reason == "the server does not keep up with 50 requests/s"
    knee = find_knee(open_levels(mm1, [5.0, 20.0, 35.0, 50.0]))
    assert isinstance(knee, Knee)
    assert knee.reason == (
        "from 20 to 35 requests/s, throughput grows by 75 % and mean latency by 300 %; the server does not keep up with 50 requests/s"
    )


def test_levels_without_intervals_show_no_knee() -> None:
    """A level of one request has a latency, but no interval: it is no evidence."""
    found = find_knee(open_levels(mm1, [10.0, 20.0, 30.0], error=math.inf))
    assert isinstance(found, str) and "the intervals are too wide to tell" in found
    plan = StagePlan(type="closed", open=False, concurrency=1, requests=1)
    rate, counts = Throughput(requests=2.0), Counts(ok=1, failed=0, dropped=0, by_failure={})
    level = measured_level(plan, rate, Distribution(unit="s", count=1, mean=0.5), None, counts)
    assert level is not None and level.error == math.inf


@pytest.mark.parametrize(("ok", "failed", "is_saturated"), [(5, 0, False), (60, 0, False), (80, 20, True)])
def test_a_server_that_refuses_requests_does_not_keep_up(ok: int, failed: int, is_saturated: bool) -> None:
    """The rate of the completed requests is lower than the offered one because of the wait for the last of them."""
    plan = StagePlan(type="poisson", open=True, rate=4.0, requests=ok + failed)
    rate, counts = Throughput(offered=4.0, requests=2.0), Counts(ok=ok, failed=failed, dropped=0, by_failure={})
    level = measured_level(plan, rate, Distribution(unit="s", count=ok, mean=1.0), None, counts)
    assert level is not None and level.is_saturated == is_saturated
