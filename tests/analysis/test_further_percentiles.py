"""Percentiles on request (`report.percentiles`): the same values, intervals and rule about too few values as for the usual ones."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.analysis import blocks
from inferometer.analysis.percentiles import (
    PERCENTILES,
    distribution,
    interval,
    label_of,
    name_of,
    needed,
    rank,
    thousandths_of,
)


@pytest.mark.parametrize(
    ("percent", "name", "label"),
    [
        (50, "p50", "p50"),
        (99.9, "p999", "p99.9"),
        (75.0, "p75", "p75"),
        (99.99, "p9999", "p99.99"),
        (99.5, "p995", "p99.5"),
        (5, "p05", "p5"),
        (10, "p10", "p10"),
        (2.5, "p025", "p2.5"),
        (0.1, "p001", "p0.1"),
    ],
)
def test_name_has_the_digits_of_the_quantile(percent: float, name: str, label: str) -> None:
    assert name_of(percent) == name
    assert label_of(name) == label
    assert math.isclose(float(thousandths_of(name)), 10 * percent)


@given(st.integers(1, 999_999))
def test_every_percentile_has_its_own_name(millionths: int) -> None:
    assert thousandths_of(name_of(millionths / 10_000)) * 1000 == millionths
    assert needed(thousandths_of("p01")) == needed(PERCENTILES["p99"])  # low ones need values below them


@given(st.integers(1, 500), st.sampled_from([5, 25, 33.3, 75, 99.5, 99.99]))
def test_value_and_interval_are_those_of_the_order_statistics(count: int, percent: float) -> None:
    values = np.random.default_rng(count).permutation(count).astype(np.float64)
    name = name_of(percent)
    found = distribution(values, "s", further=[name])
    p = thousandths_of(name)
    assert found.value(name) == rank(p, count) - 1 == max(math.ceil(round(percent * count / 100, 9)), 1) - 1
    low, high = interval(p, count)
    assert found.ci[name] == (None if low is None else low - 1, None if high is None else high - 1)
    assert (name in found.unsupported) == (count < needed(p))
    assert found.supported[name] == (count >= needed(p))


def test_requested_percentile_changes_nothing_else() -> None:
    values = np.random.default_rng(1).exponential(size=5000)
    placed = blocks.Placed(np.arange(5000) * blocks.BLOCKS // 5000, np.zeros(0, np.int64), 10.0)
    usual = distribution(values.copy(), "s", placed=placed)
    more = distribution(values.copy(), "s", placed=placed, further=["p75", "p05", "p9999", "p99"])
    assert set(more.percentiles) == {"p75", "p05", "p9999"} and not more.supported["p9999"]
    assert more.unsupported["p9999"].needs == 46_050
    for name in PERCENTILES:
        assert (usual.value(name), usual.ci[name]) == (more.value(name), more.ci[name])
        assert usual.design_effect[name] == more.design_effect[name]


def test_tail_has_at_least_the_design_effect_of_p90() -> None:
    """Values that rise over time: every block has other ones."""
    values = np.sort(np.random.default_rng(2).exponential(size=20_000))
    placed = blocks.Placed(np.arange(20_000) * blocks.BLOCKS // 20_000, np.zeros(0, np.int64), 10.0)
    found = distribution(values, "s", placed=placed, further=["p75", "p97", "p995", "p02", "p25"]).design_effect
    assert found["p97"] >= found["p90"]
    assert found["p995"] == max(found["p90"], found["p99"])
    assert found["p02"] >= found["p50"]
    assert min(found.values()) > 10  # of its own as well: p75, p25
