"""Where the capacity probably is, given the trials so far, and which level is worth the next one.

The model is only used to choose levels, and to estimate the capacity within the interval: what holds or fails is for the test of each
trial alone to say (sequential.py). It is a logistic curve: logit(share of violations) = logit(share allowed) + slope * ln(level / capacity). Both the slope and the capacity are
unknown, so they have a distribution on a grid: a wide prior, times the binomial likelihood of each trial's violations.

A trial at the capacity itself stays undecided however long it lasts, and one far from it decides but tells little. So the search wants
the levels closest to the capacity at which a trial will probably decide.
"""

import math
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SLOPES = np.geomspace(3.0, 60.0, 12)
_USUAL_SLOPE, _SLOPE_SPREAD = 14.0, 0.7
"""Queues that saturate have slopes between 10 and 25. The spread is the standard deviation of the slope's logarithm."""
_POINTS = 240
_FARTHEST = 1.2
"""How far the capacity may be from the levels tried, on the log scale."""
_MOST = 60
"""A trial counts as at most this many independent requests: the curve is not exactly logistic."""
_COMPLETED, _COMPLETED_SPREAD = 0.9, 0.15
"""An overloaded server completes a little more than it can do within its limits; the standard deviation is of the logarithm."""
_TRUST = 0.8
"""Weight of a trial: its requests depend on each other for longer than its design effect shows, and its queue was empty at first."""
_OVERLOADED = 10.0
"""An overloaded trial counts as this many independent requests, all of which violate."""
_CANDIDATES = 80
_Z = 2
"""Standard errors between a share and the limit for a test with several looks to decide."""


class Observation(Protocol):
    """A trial (search.Trial)."""

    @property
    def level(self) -> float: ...
    @property
    def excess(self) -> float | None: ...
    @property
    def allowed(self) -> float | None: ...
    @property
    def independent(self) -> float | None: ...
    @property
    def completed(self) -> float | None: ...


class Belief(msgspec.Struct, frozen=True):
    """A distribution of the capacity (its logarithm, `at`) and of the slope, on a grid."""

    at: Floats
    weights: Floats
    """One row for each slope, one column for each capacity; their sum is 1."""
    allowed: float

    def shares(self, level: float | Floats) -> Floats:
        """The share of violations at a level, for each slope and capacity; levels are the last axis."""
        distance = np.log(np.asarray(level, float)) - self.at[None, :, None]
        return _logistic(_logit(self.allowed) + _SLOPES[:, None, None] * distance)

    def decides(self, levels: Floats, requests: float) -> tuple[Floats, Floats]:
        """The probabilities that so many independent requests show that a level holds, and that it fails."""
        share = self.shares(levels)
        error = np.sqrt(np.maximum(share * (1 - share), 1e-4) / requests)
        limit = _Z * math.sqrt(self.allowed * (1 - self.allowed) / requests)
        holds = _normal((self.allowed - limit - share) / error)
        fails = _normal((share - self.allowed - limit) / error)
        weights = self.weights[:, :, None]
        return (holds * weights).sum((0, 1)), (fails * weights).sum((0, 1))

    @property
    def median(self) -> float:
        """The capacity that is as probably too high as too low."""
        total = np.cumsum(self.weights.sum(0))
        return float(np.exp(self.at[np.searchsorted(total, 0.5)]))


def believe(trials: Sequence[Observation]) -> Belief | None:
    """What the trials say about the capacity; None if none of them counted violations."""
    allowed = next((one.allowed for one in trials if one.allowed), None)
    if allowed is None:
        return None
    levels = [one.level for one in trials]
    at = np.linspace(math.log(min(levels)) - _FARTHEST, math.log(max(levels)) + _FARTHEST, _POINTS)
    prior = -0.5 * (np.log(_SLOPES / _USUAL_SLOPE) / _SLOPE_SPREAD) ** 2
    flat = Belief(at, np.repeat(prior[:, None], len(at), 1), allowed)
    log = flat.weights.copy()
    for one in trials:
        violating, n = _violations(one, allowed)
        share = np.clip(flat.shares(one.level)[:, :, 0], 1e-9, 1 - 1e-9)
        log += _TRUST * n * (violating * np.log(share) + (1 - violating) * np.log1p(-share))
        if one.completed:
            log += -0.5 * ((at - math.log(one.completed * _COMPLETED)) / _COMPLETED_SPREAD)[None, :] ** 2
    weights = np.exp(log - log.max())
    return Belief(at, weights / weights.sum(), allowed)


def _violations(trial: Observation, allowed: float) -> tuple[float, float]:
    """The share of violations, and how many independent requests it is from. An overload has no share: sooner or later, all do."""
    if trial.completed:
        return 1.0, _OVERLOADED
    if trial.excess is None or not trial.independent:
        return 0.0, 0.0
    return min(trial.excess * allowed, 1.0), min(trial.independent, _MOST)


def highest_to_hold(belief: Belief, low: float, high: float, requests: float, likely: float) -> tuple[float, float]:
    """The highest level between `low` and `high` at which a trial worth so many independent requests probably shows that it holds,
    and by how much that is expected to narrow the interval, on the log scale."""
    logs = _between(low, high)
    holds, _ = belief.decides(np.exp(logs), max(requests, 1.0))
    best = max((index for index, one in enumerate(holds) if one >= likely), default=0)
    return float(np.exp(logs[best])), float(holds[best] * (logs[best] - math.log(low)))


def lowest_to_fail(belief: Belief, low: float, high: float, requests: float, likely: float) -> tuple[float, float]:
    """The lowest level between `low` and `high` at which a trial probably shows that it fails, and what that is expected to gain."""
    logs = _between(low, high)
    _, fails = belief.decides(np.exp(logs), max(requests, 1.0))
    best = min((index for index, one in enumerate(fails) if one >= likely), default=len(logs) - 1)
    return float(np.exp(logs[best])), float(fails[best] * (math.log(high) - logs[best]))


def _between(low: float, high: float) -> Floats:
    return np.linspace(math.log(low), math.log(high), _CANDIDATES + 2)[1:-1]


def _logit(share: float) -> float:
    return math.log(share / (1 - share))


def _logistic(value: Floats) -> Floats:
    return 1 / (1 + np.exp(-np.clip(value, -50, 50)))


def _normal(value: Floats) -> Floats:
    """The normal distribution function, within 0.01."""
    return _logistic(1.702 * value)
