"""Exact binomial tests and bounds, against sums of the binomial probabilities."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.analysis import binomial


def probability(k: int, n: int, p: float) -> float:
    return math.comb(n, k) * p**k * (1 - p) ** (n - k)


@settings(max_examples=40)
@given(st.integers(1, 300), st.data(), st.floats(0.001, 0.999))
def test_tails_are_sums_of_probabilities(n: int, data: st.DataObject, p: float) -> None:
    k = data.draw(st.integers(0, n))
    below = math.fsum(probability(i, n, p) for i in range(k + 1))
    above = math.fsum(probability(i, n, p) for i in range(k, n + 1))
    assert binomial.at_most(k, n, p) == pytest.approx(below, rel=1e-9, abs=1e-12)
    assert binomial.at_least(k, n, p) == pytest.approx(above, rel=1e-9, abs=1e-12)


@settings(max_examples=40)
@given(st.just(0.0) | st.floats(0.001, 1), st.floats(1, 3000))
def test_bounds_agree_with_the_tests(share: float, n: float) -> None:
    k = share * n
    low, high = binomial.bounds(k, n)
    assert 0 <= low <= high <= 1
    assert low <= share * (1 + 1e-6)
    assert high >= share * (1 - 1e-6)
    if high < 0.99:
        assert binomial.is_below(k, n, high * (1 + 1e-6))
        assert not binomial.is_below(k, n, high * (1 - 1e-6))
    if low > 1e-9:
        assert binomial.is_above(k, n, low * (1 - 1e-6))
        assert not binomial.is_above(k, n, low * (1 + 1e-6))


def test_bounds_of_a_textbook_example() -> None:
    """10 of 100, 90 % interval: from the quantiles of the beta distribution."""
    assert binomial.bounds(10, 100) == pytest.approx((0.05526, 0.16372), abs=5e-5)


@pytest.mark.parametrize(("p", "expected"), [(0.01, 299), (0.05, 59), (0.1, 29), (0.001, 2995)])
def test_how_many_requests_without_a_violation_are_needed(p: float, expected: int) -> None:
    """log 5 % / log(1 - p)."""
    assert binomial.needed(0.0, p) == pytest.approx(expected, abs=1 + 1e-3 * expected)


@given(st.floats(0, 0.2), st.floats(0.001, 0.1))
def test_the_number_needed_decides_and_half_of_it_does_not(share: float, p: float) -> None:
    n = binomial.needed(share, p)
    if n is None:
        assert share == pytest.approx(p, rel=0.2)
        return
    decides = binomial.is_below if share <= p else binomial.is_above
    assert decides(share * n, n, p)
    assert n <= 2 or not decides(share * n / 2, n / 2, p)


def test_nothing_decides_a_share_that_is_the_limit() -> None:
    assert binomial.needed(0.01, 0.01) is None
