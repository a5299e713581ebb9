"""Limits of abort.on against made-up requests and clocks."""

import math
from typing import Any

import numpy as np
import pytest
import synthetic_run as made
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.analysis.abort_expression import parse_limit, parse_limits
from inferometer.analysis.binomial import is_above
from inferometer.conduct.breakers import FEWEST, Breakers
from inferometer.conduct.live_rows import since_start
from inferometer.errors import UserError
from inferometer.records import MISSING, Columns, Trip

SECOND = made.SECOND


def ended(done: Any, failed: Any = 0, e2e: Any = 0.1, stage: int = 0) -> Columns:
    """Requests that ended at these instants in seconds."""
    done = np.atleast_1d(np.asarray(done, float))
    rows = made.blank(len(done))
    rows["done"] = np.rint(done * SECOND)
    rows["sent"] = rows["intended"] = rows["done"] - np.rint(np.asarray(e2e) * SECOND).astype(np.int64)
    rows["first_token"] = rows["done"]
    rows["failure"], rows["stage"] = failed, stage
    return Columns.of(rows)


def breakers(*limits: str, window: float = 10.0, grace: float = 0.0, ends: str = "run") -> Breakers:
    return Breakers(parse_limits(limits), window, grace, ends)


NOTHING = ended([])


# --- expressions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["failure_rate > 20%", "consecutive_failures >= 50", "ttft.p99 > 30s", "e2e > 60s", "e2e.p99.9 > 500ms"]
)
def test_limit_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_limit(text)) == text
    assert parse_limit(str(parse_limit(text.replace(" ", "")))) == parse_limit(text)


@pytest.mark.parametrize(
    ("text", "what", "remedy"),
    [
        ("failure_rat > 20%", "no metric 'failure_rat' (column 1", "failure_rate"),
        ("failure_rate < 20%", "above a limit, got '<' (column 14", "did you mean >?"),
        ("failure_rate > 20", "less than 100%", "20%"),
        ("e2e > 60", "needs a unit (column 9", "ms"),
        ("ttft.p98 > 1s", "no statistic 'p98' (column 6", "p9"),
        ("itl > 1s", "itl cannot end a run (column 1", "e2e"),
        ("consecutive_failures > 5s", "'s' is not a unit here", "100"),
        ("", "expected a metric, got nothing", "failure_rate"),
    ],
)
def test_error_points_at_the_column(text: str, what: str, remedy: str) -> None:
    with pytest.raises(UserError) as error:
        parse_limit(text)
    assert what in error.value.what and remedy in error.value.remedy and error.value.key == "abort.on"


# --- limits ----------------------------------------------------------------------------------------------------------


def test_failure_rate_over_the_window() -> None:
    watching = breakers("failure_rate > 20%")
    assert watching.look(NOTHING, 0.0, 0) is None
    assert watching.look(ended(np.linspace(0, 5, 100)), 5.0, 0) is None
    assert watching.look(ended(np.linspace(5, 9, 25), failed=1), 10.0, 0) is None, "exactly 20 %"
    trip = watching.look(ended([10.1], failed=1), 10.25, 0)
    assert trip == Trip(
        "failure_rate > 20%", "run", 0, 10.25, 26 / 126,
        "failure_rate 20.6 % > 20 % over the last 10 s (26 of 126 requests)",
    )  # fmt: skip
    assert watching.look(ended([11.0] * 99, failed=1), 11.0, 0) is None, "it trips once"


def test_before_the_window_is_full_chance_does_not_end_a_run() -> None:
    for failed, trips in ((7, False), (14, True)):
        watching = breakers("failure_rate > 20%")
        assert watching.look(NOTHING, 0.0, 0) is None
        trip = watching.look(ended([1.0] * 27, failed=np.arange(27) < failed), 1.15, 0)
        assert (trip is not None) == trips


def test_failures_before_the_window_are_forgotten() -> None:
    watching = breakers("failure_rate > 20%", window=2.0)
    assert watching.look(NOTHING, 0.0, 0) is None
    assert watching.look(ended([0.5] * 100), 0.5, 0) is None
    assert watching.look(ended([1.0] * 20, failed=1), 1.0, 0) is None
    assert watching.look(ended([2.9] * 85), 2.9, 0) is None, "20 of 105"
    assert watching.look(ended([3.1] * 20, failed=1), 3.1, 0) is None, "20 of 105 again: the first 20 are forgotten"
    assert watching.look(ended([3.2] * 2, failed=1), 3.2, 0) is not None


def test_few_requests_extend_the_window() -> None:
    watching = breakers("failure_rate > 50%", window=1.0)
    for number in range(FEWEST - 1):
        assert watching.look(ended([2.0 * number], failed=1), 2.0 * number, 0) is None
    trip = watching.look(ended([2.0 * FEWEST], failed=1), 2.0 * FEWEST, 0)
    assert trip is not None and f"({FEWEST} of {FEWEST} requests)" in trip.reason


def test_requests_that_end_in_the_grace_time_do_not_count() -> None:
    watching = breakers("failure_rate > 20%", "consecutive_failures > 5", grace=10.0)
    assert watching.look(ended(np.linspace(0, 9, 100), failed=1), 9.9, 0) is None
    assert watching.look(ended([9.95] * 50, failed=1), 10.1, 0) is None
    trip = watching.look(ended([10.2] * 6, failed=1), 10.3, 0)
    assert trip is not None and trip.reason == "consecutive_failures 6 > 5"


def test_statistic_of_a_latency() -> None:
    watching = breakers("e2e.p90 > 2s", "ttft.mean > 100s")
    assert watching.look(NOTHING, 0.0, 0) is None
    assert watching.look(ended([8.0] * 90, e2e=0.5), 8.0, 0) is None
    assert watching.look(ended([10.0] * 10, e2e=3.0), 10.0, 0) is None, "the 90th of 100 is 500 ms"
    trip = watching.look(ended([10.1], e2e=3.0), 10.25, 0)
    assert trip is not None
    assert trip.reason == "e2e.p90 3 s > 2 s over the last 10 s (11 of 101 requests are above)"


def test_mean_of_a_latency() -> None:
    watching = breakers("e2e.mean > 2s", window=2.0)
    assert watching.look(ended([4.0] * 40, e2e=[1.0, 3.5] * 20), 4.0, 0) is None, "the window is not full yet"
    trip = watching.look(NOTHING, 6.0, 0)
    assert trip is not None and trip.value == pytest.approx(2.25)


def test_failed_requests_have_no_latency() -> None:
    assert breakers("e2e.p50 > 2s", "e2e > 2s").look(ended([5.0] * 50, failed=1, e2e=5.0), 5.0, 0) is None


def test_single_request() -> None:
    watching = breakers("e2e > 60s")
    assert watching.look(ended([61.0], e2e=60.0), 61.0, 0) is None
    trip = watching.look(ended([62.0, 62.0], e2e=[60.5, 1.0]), 62.0, 0)
    assert trip is not None and trip.reason == "e2e 60.5 s > 60 s in one request"


def test_requests_in_flight_that_are_over_the_limit_count() -> None:
    ages = np.array([[3 * SECOND, 1], [2 * SECOND, 0]])
    assert breakers("e2e > 4s").look(NOTHING, 5.0, 0, ages) is None, "the stage is seen for the first time"
    for limit, at, value in (("e2e > 2.5s", 5.0, 3.0), ("ttft > 1.5s", 5.0, 2.0)):
        watching = breakers(limit)
        assert watching.look(NOTHING, 0.0, 0) is None
        trip = watching.look(NOTHING, at, 0, ages)
        assert trip is not None and trip.value == value and "still in flight" in trip.reason
    silent = breakers("ttft > 2.5s")
    assert silent.look(NOTHING, 0.0, 0) is None
    assert silent.look(NOTHING, 5.0, 0, ages) is None, "the oldest already has its first token"


def test_server_that_hangs_exceeds_a_percentile() -> None:
    watching = breakers("e2e.p99 > 5s")
    assert watching.look(ended([1.0] * 200), 1.0, 0) is None
    trip = watching.look(NOTHING, 8.0, 0, np.array([[6 * SECOND, 0]] * 16))
    assert trip is not None and "(16 of 216 requests are above, 16 of them still in flight)" in trip.reason


def test_each_stage_starts_afresh_and_can_be_ended() -> None:
    watching = breakers("consecutive_failures > 5", "e2e > 4s", ends="stage")
    first = watching.look(ended([1.0] * 6, failed=1), 1.0, 0)
    assert first is not None and (first.stage, first.ended) == (0, "stage")
    assert watching.look(ended([1.5] * 9, failed=1), 1.5, 0) is None, "it has been ended"
    stale = np.array([[5 * SECOND, 0]])
    assert watching.look(ended([7.0] * 9, failed=1, stage=0), 7.0, 1, stale) is None, "those are of the stage before"
    second = watching.look(ended([7.5] * 6, failed=1, stage=1), 7.5, 1, stale)
    assert second is not None and second.stage == 1


def test_times_that_are_missing_in_the_spool_have_no_latency() -> None:
    rows = made.blank(2)
    rows["intended"], rows["sent"], rows["done"] = 100, [110, 0], 200
    rows["first_token"] = 0
    converted = since_start(rows, 50)
    assert converted["sent"].tolist() == [60, MISSING] and converted["first_token"].tolist() == [MISSING] * 2


# --- against the obvious ---------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.booleans(), max_size=30), max_size=20), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_consecutive_failures_are_those_of_the_whole_series(looks: list[list[bool]], limit: int) -> None:
    watching = breakers(f"consecutive_failures > {limit}")
    run = 0
    for number, failed in enumerate(looks, 1):
        longest = 0
        for one in failed:
            run = run + 1 if one else 0
            longest = max(longest, run)
        times = number + np.linspace(0.1, 0.9, len(failed))
        trip = watching.look(ended(times, np.array(failed, int)), number + 1.0, 0)
        assert (trip is not None) == (longest > limit)
        if trip is not None:
            assert trip.value == longest
            return


@given(
    st.lists(st.tuples(st.floats(0.05, 3.0), st.lists(st.floats(0.001, 10.0), max_size=15)), max_size=25),
    st.sampled_from([("p50", 0.5), ("p90", 0.9), ("p99", 0.99)]),
)
@settings(max_examples=60, deadline=None)
def test_percentile_is_that_of_the_window(looks: list[tuple[float, list[float]]], statistic: tuple[str, float]) -> None:
    watching = breakers(f"e2e.{statistic[0]} > 5s", window=4.0)
    assert watching.look(NOTHING, 0.0, 0) is None
    elapsed, seen = 0.0, list[tuple[float, list[float]]]()
    for gap, latencies in looks:
        elapsed += gap
        trip = watching.look(ended([elapsed] * len(latencies), e2e=np.array(latencies)), elapsed, 0)
        seen += [(elapsed, latencies)] if latencies else []
        while seen and seen[0][0] <= elapsed - 4.0 and sum(len(one) for _, one in seen[1:]) >= FEWEST:
            seen.pop(0)
        values = sorted(round(value, 9) for _, own in seen for value in own)
        rank = math.ceil(round(statistic[1] * len(values), 6))
        exceeded = len(values) >= FEWEST and values[rank - 1] > 5
        if exceeded and elapsed < 4.0:
            exceeded = is_above(sum(value > 5 for value in values), len(values), 1 - statistic[1], 0.001)
        assert (trip is not None) == exceeded
        if trip is not None:
            assert trip.value == pytest.approx(values[rank - 1], abs=1e-8)
            return


def test_what_is_kept_of_a_flood_of_failures_is_bounded() -> None:
    """100,000 failures per second for longer than the window, below the limit."""
    watching = breakers("failure_rate > 99%", "consecutive_failures > 1000000", "e2e.p99 > 30s", window=2.0)
    failed = np.ones(25_000, int)
    failed[:500] = 0
    for number in range(1, 40):
        assert watching.look(ended(np.full(25_000, number / 4), failed), number / 4, 0) is None
    kept = [len(gauge._window._looks) for _, gauge in watching._gauges if hasattr(gauge, "_window")]
    assert max(kept) <= 2 * 4 + 1
