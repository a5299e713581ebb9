"""Variances from blocks of time: against plain formulas, and against what must not make a difference."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.analysis.blocks import BLOCKS, T, design_effect, edge, index, place, proportion, rate
from inferometer.analysis.percentiles import PERCENTILES, distribution

SECOND = 1_000_000_000
requests = st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1e3)), min_size=1, max_size=200)


@given(st.lists(st.integers(-50, 1100)), st.integers(0, 500), st.integers(1, 500))
def test_blocks_begin_at_their_edges(instants: list[int], start: int, length: int) -> None:
    end = start + length
    found = index(np.array(instants, np.int64), start, end)
    edges = [edge(block, start, end) for block in range(1, BLOCKS)]
    assert found.tolist() == [sum(each >= one for one in edges) for each in instants]


def test_design_effect_is_the_variance_between_blocks_relative_to_independent_values() -> None:
    above, values = np.arange(BLOCKS) % 2 * 6 + 1, np.arange(BLOCKS) + 20
    share, total = above.sum() / values.sum(), values.sum()
    variance = BLOCKS / (BLOCKS - 1) * ((above - share * values) ** 2).sum() / total**2
    expected = variance / (share * (1 - share) / total)
    assert expected > 1 and design_effect(above, values) == pytest.approx(expected)
    assert design_effect(np.full(BLOCKS, 3), np.full(BLOCKS, 10)) == 1.0
    assert design_effect(np.zeros(BLOCKS, int), np.full(BLOCKS, 10)) == 1.0


def test_values_that_come_in_copies_say_as_much_as_one() -> None:
    """32 slots of a batch share each step: the effective size is about the number of steps."""
    rng = np.random.default_rng(0)
    steps, at = rng.exponential(1, 2000), np.sort(rng.integers(0, 60 * SECOND, 2000))
    placed = place(np.repeat(at, 32), at[:0])
    found = distribution(np.repeat(steps, 32), "s", placed=placed)
    assert found.count == 64_000 and found.effective is not None and 700 < found.effective <= 2400


@given(requests, st.randoms())
def test_order_of_rows_makes_no_difference(rows: list[tuple[int, float]], random: object) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert _described(rows) == _described(shuffled)


def _described(rows: list[tuple[int, float]]) -> object:
    at = np.array([at for at, _ in rows], np.int64)
    return distribution(np.array([value for _, value in rows]), "s", placed=place(at, at[:0]))


@given(requests, st.lists(st.integers(0, 10**6), max_size=20))
def test_intervals_contain_their_estimates(rows: list[tuple[int, float]], failed: list[int]) -> None:
    at, failed_at = np.array([at for at, _ in rows], np.int64), np.array(failed, np.int64)
    values = np.array([value for _, value in rows])
    found = distribution(values.copy(), "s", len(failed), placed=place(at, failed_at))
    for name in PERCENTILES:
        low, high = found.ci[name]
        value = found.value(name)
        assert value is not None
        assert (low is None or low <= value) and (high is None or value <= high)
    if len(rows) > 1:
        low, high = found.ci["mean"]
        assert low <= found.mean * (1 + 1e-12) and found.mean <= high * (1 + 1e-12)  # type: ignore[operator]


@given(requests)
def test_intervals_are_at_least_as_wide_as_for_independent_values(rows: list[tuple[int, float]]) -> None:
    values = np.array([value for _, value in rows])
    free, placed = distribution(values.copy(), "s"), _described(rows)
    for name in PERCENTILES:
        for narrow, wide, sign in zip(free.ci[name], placed.ci[name], (1, -1), strict=True):  # type: ignore[attr-defined]
            assert wide is None or (narrow is not None and sign * (narrow - wide) >= 0)


def test_intervals_of_independent_values_are_little_wider_than_binomial_ones() -> None:
    rng = np.random.default_rng(1)
    ratios = []
    for _ in range(50):
        values, at = rng.exponential(1, 2000), rng.integers(0, SECOND, 2000)
        free, placed = distribution(values.copy(), "s"), distribution(values, "s", placed=place(at, at[:0]))
        ratios.append([(placed.ci[p][1] - placed.ci[p][0]) / (free.ci[p][1] - free.ci[p][0]) for p in ("p50", "p90")])  # type: ignore[operator]
    assert (np.mean(ratios, 0) > 1).all() and (np.mean(ratios, 0) < 1.25).all()


def test_interval_of_the_mean_comes_from_the_blocks() -> None:
    rng = np.random.default_rng(2)
    block = rng.permutation(np.repeat(np.arange(BLOCKS), 50))
    values = rng.normal(10, 0.1, 1000) + block % 2
    at = block * SECOND + 1
    found = distribution(values, "s", placed=place(at, at[:0]))
    sums = np.array([values[block == each].sum() for each in range(BLOCKS)])
    error = T[-1] * math.sqrt(BLOCKS / (BLOCKS - 1) * ((sums - values.mean() * 50) ** 2).sum()) / 1000
    low, high = found.ci["mean"]
    assert low == pytest.approx(values.mean() - error) and high == pytest.approx(values.mean() + error)


# --- shares ----------------------------------------------------------------------------------------------------------


def test_share_with_its_interval() -> None:
    at = np.arange(1000) * SECOND
    found = proportion(np.arange(1000) % 10 == 0, at, 0, 1000 * SECOND)
    assert (found.count, found.share, found.design_effect, found.effective) == (1000, 0.1, 1.0, 1000.0)
    assert found.low == pytest.approx(0.0818, abs=1e-4) and found.high == pytest.approx(0.1217, abs=1e-4)
    found = proportion(np.zeros(459, np.bool_), np.arange(459), 0, 459)  # no hits still leave room
    assert found.low == 0 and 0.005 < (found.high or 0) < 0.011
    assert proportion(np.zeros(0, np.bool_), np.zeros(0, np.int64), 0, 1).share is None


def test_hits_in_one_stretch_of_time_say_less() -> None:
    at = np.arange(1000) * SECOND
    found = proportion(at < 100 * SECOND, at, 0, 1000 * SECOND)
    assert found.share == 0.1 and (found.design_effect or 0) > 30 and (found.high or 0) > 0.3


@given(st.lists(st.booleans(), min_size=1, max_size=100), st.floats(1, 50))
def test_interval_of_a_share_contains_it(hits: list[bool], least: float) -> None:
    at = np.arange(len(hits), dtype=np.int64)
    found = proportion(np.array(hits), at, 0, len(hits), least)
    assert found.low is not None and found.share is not None and found.high is not None
    assert 0 <= found.low <= found.share + 1e-12 and found.share - 1e-12 <= found.high <= 1
    assert (found.design_effect or 0) >= least


# --- rates -----------------------------------------------------------------------------------------------------------


def test_rate_with_its_interval() -> None:
    at = np.arange(1000) * SECOND // 100 + 1
    assert rate(at, None, 0, 10 * SECOND) == (100.0, 100.0, 100.0)
    assert rate(at, np.full(1000, 7), 0, 10 * SECOND)[0] == 700.0
    for end in (0, SECOND):
        assert rate(at[:0], None, 0, end) == (0.0, None, None)


def test_uneven_rates_have_wide_intervals() -> None:
    at = np.concatenate([np.arange(100), np.arange(900) + 5_000]) * (SECOND // 1000)
    found, low, high = rate(at, None, 0, 10 * SECOND)
    assert found == 100.0 and low is not None and high is not None and low < 70 and high > 130
