"""Energy from samples of power, against closed forms."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.analysis.energy import growth, longest_power_gap, power_interval, trapezoid
from inferometer.units import NS

SECOND = NS
WINDOW = st.tuples(st.integers(0, 20 * SECOND), st.integers(1, 20 * SECOND)).map(lambda pair: (pair[0], sum(pair)))


def samples(until: float, every: float, power) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[no-untyped-def]
    at = (np.arange(-1.0, until + 1.0, every) * SECOND).astype(np.int64)
    return at, power(at / SECOND)


@given(WINDOW, st.floats(0, 700), st.floats(-10, 10), st.sampled_from([0.05, 0.1, 0.37]))
def test_power_that_changes_linearly_is_integrated_exactly_over_any_window(
    window: tuple[int, int], base: float, slope: float, every: float
) -> None:
    start, end = window
    at, watts = samples(41, every, lambda seconds: base + slope * seconds)
    first, last = start / SECOND, end / SECOND
    exactly = base * (last - first) + slope * (last**2 - first**2) / 2
    assert trapezoid(at, watts, start, end, 1.0) == pytest.approx(exactly, rel=1e-9, abs=1e-5)


@given(WINDOW)
def test_a_sine_is_integrated_within_the_error_of_the_trapezoid(window: tuple[int, int]) -> None:
    start, end = window
    at, watts = samples(41, 0.1, lambda seconds: 400 + 200 * np.sin(seconds))
    first, last = start / SECOND, end / SECOND
    exactly = 400 * (last - first) + 200 * (math.cos(first) - math.cos(last))
    assert trapezoid(at, watts, start, end, 1.0) == pytest.approx(exactly, abs=(last - first) * 200 * 0.1**2 / 8 + 1e-6)


@given(st.lists(st.integers(0, 40 * SECOND), min_size=1, max_size=6))
def test_parts_of_a_window_add_up_to_the_whole(cuts: list[int]) -> None:
    at, watts = samples(41, 0.1, lambda seconds: 300 + 100 * np.sin(7 * seconds))
    edges = sorted({0, 40 * SECOND, *cuts})
    parts = [trapezoid(at, watts, *pair, 1.0) for pair in pairwise(edges)]
    assert math.fsum(parts) == pytest.approx(trapezoid(at, watts, 0, 40 * SECOND, 1.0))  # type: ignore[arg-type]


def test_a_jump_between_samples_counts_from_the_edge_of_the_window() -> None:
    at, watts = np.array([0, 1, 2]) * SECOND, np.array([0.0, 100.0, 100.0])
    assert trapezoid(at, watts, SECOND // 2, 2 * SECOND, 1.0) == 0.5 * 75 + 100
    assert trapezoid(at, watts, 0, SECOND, 1.0) == 50, "samples exactly at the edges"
    assert trapezoid(at, watts, SECOND // 4, SECOND // 2, 1.0) == 0.25 * 37.5, "a window between two samples"


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        ([], "no sample was taken"),
        ([1.5, 2, 3, 4, 5], "the first sample was taken 500 ms after the start"),
        ([0, 1, 2, 3], "the last sample was taken 1 s before the end"),
        ([0, 1, 3.5, 4, 5], "no sample was taken for 2.5 s"),
        ([0, 2, 3, 3.9, 6], "no sample was taken for 2.1 s"),
    ],
)
def test_energy_is_missing_when_samples_are_missing(at: list[float], reason: str) -> None:
    instants = (np.array(at) * SECOND).astype(np.int64)
    assert trapezoid(instants, np.full(len(at), 100.0), SECOND, 4 * SECOND, 2.0) == reason


def test_an_empty_window_has_no_energy() -> None:
    at, watts = samples(5, 1.0, np.ones_like)
    assert trapezoid(at, watts, SECOND, SECOND, 2.0) == "nothing was measured"


def test_a_counter_is_interpolated_at_the_edges_and_may_lack_samples_within() -> None:
    at = (np.array([0.0, 1, 2, 9, 10]) * SECOND).astype(np.int64)
    value = np.array([0.0, 10, 20, 90, 110])
    assert growth(at, value, SECOND // 2, round(9.5 * SECOND), 1.0) == 95
    assert growth(at, value, SECOND // 2, 8 * SECOND, 1.0) == "no sample was taken for 7 s"
    assert growth(at, value[[0, 1, 2, 0, 1]], 0, 10 * SECOND, 1.0) == "the counter was reset"
    assert growth(at, np.full(5, 7.0), 0, 10 * SECOND, 1.0) == 0


@pytest.mark.parametrize(
    ("interval", "every", "gap"), [(1.0, 0.1, 1.0), (10.0, 1.0, 10.0), (0.2, 0.1, 0.3), (0.05, 0.05, 0.15)]
)
def test_power_is_sampled_more_often_than_other_values(interval: float, every: float, gap: float) -> None:
    assert power_interval(interval) == pytest.approx(every)
    assert longest_power_gap(interval) == pytest.approx(gap)
