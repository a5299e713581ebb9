"""Where the capacity probably is, given the closed loops and the trials so far.

The model chooses the first levels, estimates the capacity within the interval, stands in for an end that no trial has shown, and overrules
verdicts that are only likely; what holds or fails is for the test of each trial to say (judgement.py). It is a logistic curve: logit(share of violations) = logit(share allowed) +
slope * ln(level / capacity). Both the slope and the capacity are unknown, so they have a distribution on a grid: a prior (wide for the
slope; the guess of the closed loops for the capacity), times the binomial likelihood of each trial's violations.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.capacity_search.explore import Guess
from inferometer.capacity_search.trials import Goal, Trial

Floats = NDArray[np.float64]

_SLOPES = np.geomspace(4.0, 60.0, 12)
_SLOPE_SPREAD = 0.5
"""Standard deviation of the slope's logarithm around that of the guess."""
_POINTS = 240
_FARTHEST = 1.2
"""How far the capacity may be from the levels tried, on the log scale."""
_MOST = 60.0
"""A trial counts as at most this many independent requests: the curve is not exactly logistic."""
_TRUST = 0.8
"""Weight of a trial: its requests depend on each other for longer than its design effect shows, and its queue was empty at first."""
_OVERLOADED = 10.0
"""An overloaded trial counts as this many independent requests, all of which violate."""
_UNCOUNTED, _STEEP = 15.0, 3.0
"""A trial judged by the value of a mean or a rate counts as this many requests; the share that would violate is taken to grow with this
power of value / limit."""


class Belief(msgspec.Struct, frozen=True):
    """A distribution of the capacity (its logarithm, `at`) and of the slope, on a grid."""

    at: Floats
    weights: Floats
    """One row for each slope, one column for each capacity; their sum is 1."""
    allowed: float

    def shares(self, level: float) -> Floats:
        """The share of violations at a level, for each slope and capacity."""
        logits = math.log(self.allowed / (1 - self.allowed)) + np.outer(_SLOPES, math.log(level) - self.at)
        return 1 / (1 + np.exp(-np.clip(logits, -50, 50)))

    def quantile(self, part: float) -> float:
        """The level below which the capacity is with this probability."""
        total = np.cumsum(self.weights.sum(0))
        return float(np.exp(self.at[min(int(np.searchsorted(total, part)), len(self.at) - 1)]))


def believe(goal: Goal, trials: Sequence[Trial], guess: Guess | None) -> Belief | None:
    """What the guess and the trials say about the capacity; None if there is neither."""
    levels = [trial.level for trial in trials] + ([guess.level] if guess else [])
    if not levels:
        return None
    allowed = next((trial.allowed for trial in trials if trial.allowed), goal.allowed)
    at = np.linspace(math.log(min(levels)) - _FARTHEST, math.log(max(levels)) + _FARTHEST, _POINTS)
    usual = guess.slope if guess else Guess(0, 0).slope
    slopes = -0.5 * (np.log(_SLOPES / usual) / _SLOPE_SPREAD) ** 2
    log = np.repeat(slopes[:, None], len(at), 1) + _prior(at, guess)[None, :]
    flat = Belief(at, log, allowed)
    for trial in trials:
        violating, count = _violations(trial, allowed)
        share = flat.shares(trial.level) * _visible(at, trial, guess)[None, :]
        share = np.clip(share, 1e-9, 1 - 1e-9)
        log = log + _TRUST * count * (violating * np.log(share) + (1 - violating) * np.log1p(-share))
    weights = np.exp(log - log.max())
    return Belief(at, weights / weights.sum(), allowed)


def _prior(at: Floats, guess: Guess | None) -> Floats:
    if guess is None:
        return np.zeros(len(at))
    prior = -0.5 * ((at - math.log(guess.level)) / guess.spread) ** 2
    # Tails as wide as Student's t: the closed loops may mislead, and then the trials must be able to say so.
    prior = -1.5 * np.log1p(-prior)
    if guess.ceiling:
        prior = prior - 0.5 * (np.maximum(at - math.log(guess.ceiling), 0) / guess.ceiling_spread) ** 2
    return prior


def _visible(at: Floats, trial: Trial, guess: Guess | None) -> Floats:
    """The part of the violations that a trial above the capacity has seen, for each capacity. An overload by a share x makes requests
    wait for x seconds longer every second, from 0: the limit is exceeded only after slack / x."""
    if guess is None or not guess.slack:
        return np.ones(len(at))
    beyond = trial.level / np.exp(at) - 1
    reached = 1 - guess.slack / (np.maximum(beyond, 1e-9) * trial.seconds)
    return np.where(beyond > 0, np.clip(reached, 0.0, 1.0), 1.0)


def _violations(trial: Trial, allowed: float) -> tuple[float, float]:
    """The share of violations, and how many independent requests it is from. An overload has no share: sooner or later, all do."""
    if trial.is_overloaded:
        return 1.0, _OVERLOADED
    if trial.excess is None:
        return 0.0, 0.0
    if trial.allowed is None:
        return min(allowed * trial.excess**_STEEP, 1.0), _UNCOUNTED
    return min(trial.excess * allowed, 1.0), min(trial.independent or 0.0, _MOST)
