"""The model that chooses levels: it finds the capacity from the violations of made-up trials."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.capacity_search.model import believe, highest_to_hold, lowest_to_fail
from inferometer.capacity_search.search import Trial

ALLOWED = 0.1


def trial(level: float, capacity: float, slope: float, independent: float = 60.0) -> Trial:
    """A trial with exactly the violations that the model expects."""
    logit = math.log(ALLOWED / (1 - ALLOWED)) + slope * math.log(level / capacity)
    share = 1 / (1 + math.exp(-logit))
    return Trial(
        level=level,
        purpose="bisect",
        status="undecided",
        seconds=20.0,
        excess=share / ALLOWED,
        allowed=ALLOWED,
        independent=independent,
    )


@given(st.floats(0.01, 1e4), st.floats(8, 30))
def test_the_capacity_is_found_from_violations_on_both_sides(capacity: float, slope: float) -> None:
    belief = believe([trial(capacity * one, capacity, slope) for one in (0.8, 0.95, 1.1, 1.3)])
    assert belief is not None
    assert belief.median == pytest.approx(capacity, rel=0.05)
    assert belief.weights.sum() == pytest.approx(1)


@settings(max_examples=20)
@given(st.floats(1, 100), st.floats(5, 200))
def test_levels_that_probably_decide_surround_the_capacity(capacity: float, requests: float) -> None:
    belief = believe([trial(capacity * one, capacity, 15.0) for one in (0.8, 0.95, 1.1, 1.3)])
    assert belief is not None
    low, high = capacity / 3, capacity * 3
    holding, gain = highest_to_hold(belief, low, high, requests, 0.8)
    failing, _ = lowest_to_fail(belief, low, high, requests, 0.8)
    assert low < holding < belief.median < failing < high
    assert 0 <= gain <= math.log(high / low)


def test_longer_trials_may_be_closer_to_the_capacity() -> None:
    belief = believe([trial(one, 10.0, 15.0) for one in (8.0, 9.5, 11.0, 13.0)])
    assert belief is not None
    holding = [highest_to_hold(belief, 3.0, 30.0, requests, 0.8)[0] for requests in (20.0, 60.0, 200.0)]
    failing = [lowest_to_fail(belief, 3.0, 30.0, requests, 0.8)[0] for requests in (20.0, 60.0, 200.0)]
    assert holding == sorted(holding) and holding[0] < holding[-1]
    assert failing == sorted(failing, reverse=True)


def test_an_overload_says_what_the_server_can_do() -> None:
    overloaded = Trial(
        level=40.0, purpose="ramp", status="fails", seconds=6.0, allowed=ALLOWED, independent=20.0, completed=20.0
    )
    belief = believe([overloaded])
    assert belief is not None
    assert 12 < belief.median < 20
    assert np.isfinite(belief.weights).all()


def test_without_counted_violations_there_is_no_model() -> None:
    assert believe([Trial(level=4.0, purpose="ramp", status="holds", seconds=6.0, excess=0.5)]) is None
