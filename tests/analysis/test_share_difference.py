"""Differences of failure rates: their intervals and p-values, also if nothing failed, and if failures come together."""

import numpy as np
import pytest
import synthetic_run as made
from hypothesis import given
from hypothesis import strategies as st

from inferometer.analysis.share_difference import Share, ShareDifference, failure_rates
from inferometer.records import CANCELLED, Failure, Run

sizes = st.integers(1, 10_000)


@st.composite
def shares(draw: st.DrawFn) -> Share:
    count = draw(sizes)
    return Share(draw(st.integers(0, count)), count, float(draw(st.integers(1, count))))


@given(shares(), shares())
def test_the_interval_contains_the_difference_and_mirrors_when_sides_are_swapped(a: Share, b: Share) -> None:
    found, swapped = ShareDifference(a, b), ShareDifference(b, a)
    low, high = found.interval()
    assert -1 - 1e-9 <= low <= found.value + 1e-12 and found.value - 1e-12 <= high <= 1 + 1e-9
    assert swapped.interval() == pytest.approx((-high, -low))
    assert (found.p() <= 0.05) == (not low <= 0 <= high) or min(abs(low), abs(high)) < 1e-4


@given(shares(), shares(), st.floats(-0.5, 0.5))
def test_p_values_agree_with_the_interval(a: Share, b: Share, limit: float) -> None:
    found = ShareDifference(a, b)
    low, _ = found.interval()
    if abs(low - limit) > 1e-4:
        assert (found.p_above(limit) < 0.025) == (low > limit)
    assert found.p_above(limit) + found.p_below(limit) == pytest.approx(1)


def failing(count: int, which: np.ndarray | list[int], code: str = "http_503") -> Run:
    rows, _ = made.closed_rows(count)
    made.fail(rows, list(which))
    return made.run(rows, failures=(Failure(code, ""),))


def test_no_failures_on_either_side_leave_an_interval_that_shrinks_with_the_requests() -> None:
    few, many = (failure_rates([failing(count, [])], [failing(count, [])], None) for count in (100, 2000))
    assert few is not None and many is not None and few.value == many.value == 0
    assert few.interval()[1] > 0.03 > many.interval()[1] > 0.001
    assert few.more_requests(0.01) > 0 and many.more_requests(0.05) == 0


def test_requests_that_fail_together_say_less_than_the_same_number_spread_out() -> None:
    rng = np.random.default_rng(0)
    spread = failure_rates([failing(2000, [])], [failing(2000, rng.choice(2000, 60, replace=False))], None)
    together = failure_rates([failing(2000, [])], [failing(2000, list(range(500, 560)))], None)
    assert spread is not None and together is not None and spread.value == together.value == 0.03
    assert spread.p() < 0.001 < together.p()


def test_one_bad_run_of_several_is_not_taken_for_a_bad_server() -> None:
    rng = np.random.default_rng(0)
    fine = [failing(1000, []) for _ in range(4)]
    one_bad = [failing(1000, rng.choice(1000, 100, replace=False)), *fine[1:]]
    all_bad = [failing(1000, rng.choice(1000, 25, replace=False)) for _ in range(4)]
    unsure, sure = failure_rates(fine, one_bad, None), failure_rates(fine, all_bad, None)
    assert unsure is not None and sure is not None and unsure.value == sure.value == 0.025
    assert sure.p() < 0.001 < unsure.p()


def test_requests_that_the_client_cancelled_do_not_count() -> None:
    found = failure_rates([failing(500, [])], [failing(500, list(range(100)), CANCELLED)], None)
    assert found is not None and found.b == Share(0, 400, 400.0)
    assert failure_rates([failing(0, [])], [failing(5, [])], None) is None


def test_equal_servers_rarely_seem_to_differ() -> None:
    """Independent failures of 1 % on both sides: a 95 % interval excludes 0 in about 5 % of the comparisons."""
    rng = np.random.default_rng(1)
    sides = rng.binomial(2000, 0.01, (1000, 2))
    found = [ShareDifference(*(Share(int(k), 2000, 2000.0) for k in pair)) for pair in sides]
    assert np.mean([each.p() <= 0.05 for each in found]) < 0.07
