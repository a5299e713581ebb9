"""Ratios with intervals: Student's t, pairs, Welch, the sign-flip test, Holm's adjustment, and projections."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.analysis import log_ratio, student
from inferometer.analysis.blocks import T

values = st.lists(st.floats(0.1, 10), min_size=2, max_size=8)


@pytest.mark.parametrize("freedom", [1, 2, 7, 19])
def test_t_quantiles_are_those_of_the_table(freedom: int) -> None:
    assert student.quantile(0.95, freedom) == pytest.approx(T[freedom - 1], abs=6e-4)


def test_t_tail_is_symmetric_and_has_its_limits() -> None:
    assert student.tail(0.0, 5) == 0.5
    assert student.tail(2.0, 5) + student.tail(-2.0, 5) == pytest.approx(1.0)
    assert student.tail(math.inf, 5) == 0.0
    assert student.tail(1.959964, 1e7) == pytest.approx(0.025, rel=1e-4)


def test_pairs_remove_what_their_runs_share() -> None:
    """Runs that differ by a factor of ten from pair to pair, and B 10 % slower in each of them."""
    a = [1.0, 10.0, 2.0, 5.0]
    b = [1.1, 11.01, 2.199, 5.5]
    found = log_ratio.paired(a, b)
    low, high = found.interval()
    assert low < math.log(1.1) < high and high - low < 0.01 and found.freedom == 3
    wide = log_ratio.unpaired(a, b).interval()
    assert wide[0] < 0 < wide[1]


def test_welch_is_the_textbook_example_on_the_log_scale() -> None:
    a, b = np.exp([27.5, 21.0, 19.0, 23.6, 17.0]), np.exp([27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8])
    found = log_ratio.unpaired(a.tolist(), b.tolist())
    va, vb = np.var(np.log(a), ddof=1) / 5, np.var(np.log(b), ddof=1) / 7
    assert found.value == pytest.approx(np.log(b).mean() - np.log(a).mean())
    assert found.error == pytest.approx(math.sqrt(va + vb))
    assert found.freedom == pytest.approx((va + vb) ** 2 / (va**2 / 4 + vb**2 / 6))


def test_one_run_against_several_uses_their_variation() -> None:
    found = log_ratio.unpaired([1.0, 1.1, 0.9], [2.0])
    assert found.freedom == 2 and found.error > np.log([1.0, 1.1, 0.9]).std(ddof=1)


def test_the_smallest_p_of_six_pairs_is_0_031() -> None:
    assert log_ratio.sign_flip([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == 2 / 64
    assert log_ratio.sign_flip([1.0, -1.0]) == 1.0
    assert log_ratio.sign_flip([1.0] * 17) is None


@given(values)
def test_swapping_the_sides_inverts_the_ratio(a: list[float]) -> None:
    b = [value * 1.3 for value in reversed(a)]
    for method in (log_ratio.paired, log_ratio.unpaired):
        one, other = method(a, b), method(b, a)
        assert one.value == pytest.approx(-other.value, abs=1e-12)
        assert one.interval()[0] == pytest.approx(-other.interval()[1], abs=1e-9)
        assert one.p() == pytest.approx(other.p(), abs=1e-9)


def test_equal_runs_show_no_difference_and_no_division_by_zero() -> None:
    found = log_ratio.paired([2.0, 2.0], [2.0, 2.0])
    assert found.interval() == (0.0, 0.0) and found.p() == 1.0
    assert log_ratio.paired([1.0, 1.0], [2.0, 2.0]).p() == 0.0


def test_holm_multiplies_by_how_many_are_left() -> None:
    assert log_ratio.holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert log_ratio.holm({}) == {}


def test_projections_shrink_with_the_square_of_the_effect() -> None:
    found = log_ratio.single(1.0, 1.0, (0.1, 0.1))
    few, many = (log_ratio.more_values(found, 1000, math.log(1 + effect)) for effect in (0.2, 0.1))
    assert 3.2 * few < many < 5.5 * few
    assert log_ratio.more_values(found, 1000, math.log(3)) == 0
    pairs = log_ratio.paired([1.0, 1.0, 1.0], [1.1, 1.0, 0.9])
    assert 5 < (log_ratio.more_runs(pairs, 3, math.log(1.1)) or 0) < 20
