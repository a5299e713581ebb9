"""Which levels an adaptive sweep measures, on servers whose knee is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.analysis.adaptive_levels import MOST, choose_next
from inferometer.analysis.knee import Knee, Level, find_knee
from inferometer.config.ranges import Adaptive


def mm1(rate: float, capacity: float, error: float = 0.0) -> Level:
    if rate >= capacity:
        return Level(by="rate", value=rate, throughput=capacity, latency=None, is_saturated=True)
    return Level(by="rate", value=rate, throughput=rate, latency=1 / (capacity - rate), error=error)


def batching(users: float, knee: float) -> Level:
    """A closed loop whose latency grows linearly with the number in flight: doubled at the knee."""
    latency = 1 + users / knee
    return Level(by="concurrency", value=users, throughput=users / latency, latency=latency)


def sweep(bounds: Adaptive, of: object) -> list[Level]:
    levels: list[Level] = []
    while (level := choose_next(levels, bounds)) is not None:
        assert level not in [each.value for each in levels], "measured twice"
        assert bounds.start <= level <= bounds.end
        assert len(levels) < MOST
        levels.append(of(level))  # type: ignore[operator]
    return levels


@given(capacity=st.floats(5, 100))
def test_rates_close_in_on_the_knee(capacity: float) -> None:
    levels = sweep(Adaptive("rate", 1.0, 200.0), lambda rate: mm1(rate, capacity))
    knee = find_knee(levels)
    assert isinstance(knee, Knee)
    assert knee.level == pytest.approx(capacity / 2, rel=0.16)


@given(at=st.integers(4, 100))
def test_whole_concurrencies_close_in_on_the_knee(at: int) -> None:
    levels = sweep(Adaptive("concurrency", 1, 512), lambda users: batching(users, at))
    assert all(level.value == int(level.value) for level in levels)
    knee = find_knee(levels)
    assert isinstance(knee, Knee)
    assert knee.level == pytest.approx(at, rel=0.25, abs=1)


def test_first_levels_double_until_the_knee_is_passed() -> None:
    levels = sweep(Adaptive("rate", 1.0, 200.0), lambda rate: mm1(rate, 40.0))
    assert [level.value for level in levels][:6] == [1, 2, 4, 8, 16, 32]
    assert (
        max(level.value for level in levels) == 32
    )  # it is past the knee at 20: there is no need to overload the server


def test_range_without_a_knee_ends_at_its_end() -> None:
    levels = sweep(Adaptive("rate", 1.0, 10.0), lambda rate: mm1(rate, 1000.0))
    assert [level.value for level in levels] == [1, 2, 4, 8, 10]


def test_range_above_the_capacity_ends_after_one_level() -> None:
    assert len(sweep(Adaptive("rate", 50.0, 400.0), lambda rate: mm1(rate, 40.0))) == 1


def test_noise_ends_the_refinement_early() -> None:
    exact = sweep(Adaptive("rate", 1.0, 200.0), lambda rate: mm1(rate, 40.0))
    noisy = sweep(Adaptive("rate", 1.0, 200.0), lambda rate: mm1(rate, 40.0, error=0.05))
    assert len(noisy) <= len(exact) < MOST


def test_levels_without_a_latency_do_not_stop_the_sweep() -> None:
    def some(rate: float) -> Level:
        return mm1(rate, 40.0) if rate != 4 else Level(by="rate", value=rate, throughput=None, latency=None)

    knee = find_knee(sweep(Adaptive("rate", 1.0, 200.0), some))
    assert isinstance(knee, Knee)
    assert knee.level == pytest.approx(20, rel=0.16)
