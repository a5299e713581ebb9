"""The model that places the capacity: from the violations of made-up trials."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.capacity_search.explore import Guess
from inferometer.capacity_search.model import Belief, believe
from inferometer.capacity_search.trials import Goal, Trial

GOAL = Goal(budget=120.0, unloaded=1.0)


def trial(level: float, capacity: float, slope: float) -> Trial:
    """A trial with exactly the violations that the model expects."""
    share = 1 / (1 + math.exp(math.log(9) - slope * math.log(level / capacity)))
    return Trial(
        level=level, purpose="narrow", status="undecided", seconds=20.0, excess=share / 0.1, allowed=0.1, independent=60.0
    )  # fmt: skip


def believed(trials: list[Trial], guess: Guess | None = None) -> Belief:
    found = believe(GOAL, trials, guess)
    assert found is not None and found.weights.sum() == pytest.approx(1)
    return found


@given(st.floats(0.01, 1e4), st.floats(8, 30))
def test_the_capacity_is_found_from_violations_on_both_sides(capacity: float, slope: float) -> None:
    found = believed([trial(capacity * one, capacity, slope) for one in (0.8, 0.95, 1.1, 1.3)])
    assert found.quantile(0.5) == pytest.approx(capacity, rel=0.06)


@given(st.floats(0.1, 1000))
def test_trials_overrule_a_guess_that_was_wrong(capacity: float) -> None:
    guess = Guess(level=1.6 * capacity, spread=0.18)
    before, after = (
        believed([], guess),
        believed([trial(capacity * one, capacity, 14.0) for one in (0.8, 1.0, 1.2)], guess),
    )
    assert before.quantile(0.5) == pytest.approx(1.6 * capacity, rel=0.03)
    assert after.quantile(0.5) == pytest.approx(capacity, rel=0.12)


def test_the_capacity_is_not_above_the_highest_throughput() -> None:
    free, bounded = (believed([], Guess(level=12.0, spread=0.3, ceiling=ceiling)) for ceiling in (None, 13.0))
    assert bounded.quantile(0.9) < 15 < free.quantile(0.9)


def test_an_overload_says_that_the_capacity_is_lower() -> None:
    over = Trial(level=20.0, purpose="narrow", status="fails", seconds=20.0, is_overloaded=True)
    guess = Guess(level=20.0, spread=0.3)
    assert believed([over], guess).quantile(0.5) < 0.9 * believed([], guess).quantile(0.5)


def test_a_mean_near_its_limit_counts_although_no_request_is_counted() -> None:
    near, far = (
        believed([Trial(level=10.0, purpose="narrow", status="holds", seconds=20.0, excess=excess)])
        for excess in (0.95, 0.2)
    )
    assert near.quantile(0.5) < far.quantile(0.5)


def test_without_anything_there_is_no_model() -> None:
    assert believe(GOAL, [], None) is None
