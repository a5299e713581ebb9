"""Order statistics against numpy, their intervals against scipy's binomial."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from inferometer.analysis.percentiles import PERCENTILES, distribution, interval, needed, rank, select

values = st.lists(st.floats(0, 1e6), min_size=1, max_size=300)


@given(values)
def test_percentiles_are_the_nearest_rank_of_numpy(numbers: list[float]) -> None:
    found = distribution(np.array(numbers), "s")
    for name, p in PERCENTILES.items():
        assert found.value(name) == np.percentile(numbers, p / 10, method="inverted_cdf")
    assert (found.min, found.max, found.count) == (min(numbers), max(numbers), len(numbers))


@given(values)
def test_mean_and_deviation_are_those_of_numpy(numbers: list[float]) -> None:
    found = distribution(np.array(numbers), "s")
    assert found.mean == pytest.approx(np.mean(numbers))
    if len(numbers) > 1:
        assert found.std == pytest.approx(np.std(numbers, ddof=1), abs=1e-6)
    else:
        assert found.std is None


@given(st.integers(1, 20_000), st.sampled_from(list(PERCENTILES.values())))
@settings(deadline=None)
def test_interval_is_the_exact_binomial_interval(count: int, p: int) -> None:
    low, high = interval(p, count)
    quantiles = binom.ppf([0.025, 0.975], count, p / 1000)
    assert (low or 0) == quantiles[0]
    assert (high if high is not None else count + 1) == quantiles[1] + 1


@pytest.mark.parametrize("p", PERCENTILES.values())
@pytest.mark.parametrize("count", [10**6, 10**8])
def test_interval_is_exact_for_many_values(count: int, p: int) -> None:
    assert interval(p, count) == tuple(binom.ppf([0.025, 0.975], count, p / 1000) + np.array([0, 1]))


@given(st.integers(1, 5_000), st.floats(0, 1), st.sampled_from(list(PERCENTILES.values())))
def test_interval_for_fewer_independent_values_is_wider(count: int, share: float, p: int) -> None:
    free_low, free_high = interval(p, count)
    low, high = interval(p, count, share * count)
    assert (low or 0) <= (free_low or 0) <= rank(p, count) <= (free_high or count + 1) <= (high or count + 1)


def test_needed_counts() -> None:
    assert [needed(p) for p in PERCENTILES.values()] == [7, 44, 90, 459, 4603]


@pytest.mark.parametrize(("name", "p"), PERCENTILES.items())
def test_a_percentile_has_its_value_and_is_not_supported_below_its_needed_count(name: str, p: int) -> None:
    few, enough = distribution(np.arange(needed(p) - 1.0), "s"), distribution(np.arange(float(needed(p))), "s")
    assert getattr(few, name) == few.value(name) == rank(p, few.count) - 1
    assert not few.supported[name] and few.unsupported[name].needs == needed(p)
    assert getattr(enough, name) is not None and enough.supported[name] and name not in enough.unsupported


def test_infinite_values_are_above_all_others() -> None:
    found = distribution(np.arange(97.0), "s", infinite=3)
    assert (found.count, found.infinite, found.p50, found.p95) == (100, 3, 49.0, 94.0)
    assert found.value("p99") == math.inf and found.ci["p99"] == (96.0, None)
    finite = distribution(np.arange(97.0), "s")
    assert all(getattr(found, name) == getattr(finite, name) for name in ("mean", "std", "min", "max"))
    alone = distribution(np.zeros(0), "s", infinite=8)
    assert (alone.p50, alone.ci["p50"], alone.mean, alone.std) == (math.inf, (math.inf, math.inf), None, None)
    none = distribution(np.zeros(0), "s")
    assert (none.count, none.mean, none.p50, none.ci, none.supported) == (0, None, None, {}, {})


def test_integers_are_scaled_after_selection() -> None:
    found = distribution(np.arange(1, 11, dtype=np.int64) * 10**9, "s", scale=1e9)
    assert (found.p50, found.mean, found.max) == (5.0, 5.5, 10.0)


@given(st.lists(st.integers(-(10**15), 10**15), min_size=1, max_size=200), st.data())
def test_select_puts_the_values_where_a_sort_would(numbers: list[int], data: st.DataObject) -> None:
    indices = sorted(data.draw(st.sets(st.integers(0, len(numbers) - 1))))
    array = np.array(numbers)
    select(array, indices)
    assert array[indices].tolist() == np.sort(numbers)[indices].tolist()
    assert sorted(array.tolist()) == sorted(numbers)
