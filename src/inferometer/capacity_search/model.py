"""Where the capacity probably is, given the closed loops and the trials so far.

The model chooses the first levels, estimates the capacity within the interval, stands in for an end that no trial has shown, moves ends that
all trials together dispute, and overrules verdicts that are only likely; what holds or fails is for the test of each trial to say
(judgement.py). There are two models of the share of requests that violate an objective:

- A queue limits the server (`Guess.slack`): it is a Brownian motion that is empty at first and is reflected there. A trial close to
  saturation ends before its queue is as long as it gets, so it says little, and the model knows how little.
- Anything else: a logistic curve, logit(share of violations) = logit(share allowed) + slope * ln(level / capacity).

The capacity and one more number (the capacity as a share of the highest throughput; the slope) are unknown, so they have a distribution on
a grid: a prior (the guess of the closed loops), times the binomial likelihood of each trial's violations.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.capacity_search.explore import Guess
from inferometer.capacity_search.trials import Goal, Trial
from inferometer.portable_math import normal_cdf

Floats = NDArray[np.float64]

_SHARES = np.linspace(0.45, 0.99, 13)
"""The capacity of a server that a queue limits, as a share of the highest throughput."""
_INSTANTS = np.linspace(0.2, 1.0, 6)
"""Parts of a trial at which the queue is looked at. The first part of a trial is not judged."""
_SLOPES = np.geomspace(4.0, 60.0, 12)
_SLOPE_SPREAD = 0.5
"""Standard deviation of the slope's logarithm around that of the guess."""
_POINTS = 240
_FARTHEST = 1.2
"""How far the capacity may be from the levels tried, on the log scale."""
_MOST = 60.0
"""A trial counts as at most this many independent requests: the curve is not exactly logistic."""
_TRUST = 0.8
"""Weight of a trial: its requests depend on each other for longer than its design effect shows."""
_FREEDOM = 4
"""The guess and the highest throughput are distributed like Student's t with this many degrees of freedom, on the log scale: the closed loops
may mislead, and then the trials must be able to say so."""
_OVERLOADED = 10.0
"""An overloaded trial counts as this many independent requests, all of which violate."""
_UNCOUNTED, _STEEP = 15.0, 3.0
"""A trial judged by the value of a mean or a rate counts as this many requests; the share that would violate is taken to grow with this
power of value / limit."""


class Belief(msgspec.Struct, frozen=True):
    """A distribution of the capacity (its logarithm, `at`), and of how violations grow around it, on a grid."""

    at: Floats
    weights: Floats
    """One row for each way in which violations grow, one column for each capacity; their sum is 1."""

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
    log = _prior(at, guess)
    for trial in trials:
        violating, count = _violations(trial, allowed)
        expected, most = (
            _in_queue(at, trial, guess.slack, allowed) if guess and guess.slack else _logistic(at, trial, allowed)
        )
        log = log - _TRUST * np.minimum(count, most) * _divergence(violating, np.clip(expected, 1e-9, 1 - 1e-9))
    weights = np.exp(log - log.max())
    return Belief(at, weights / weights.sum())


def _divergence(seen: float, expected: Floats) -> Floats:
    """How far the share of violations that was seen is from those expected: -1 x the binomial log-likelihood ratio of a request."""
    parts = [(seen, np.log(expected)), (1 - seen, np.log1p(-expected))]
    return sum((share * (math.log(share) - log) for share, log in parts if share > 0), np.zeros_like(expected))


def _prior(at: Floats, guess: Guess | None) -> Floats:
    if guess is None:
        return _slopes(Guess(0, 0).slope)[:, None] + np.zeros(len(at))
    prior = _student(at - math.log(guess.level), guess.spread)
    if guess.slack:
        served = at - np.log(_SHARES)[:, None]
        return prior + (
            _student(served - math.log(guess.ceiling), guess.ceiling_spread) if guess.ceiling else 0 * served
        )
    if guess.ceiling:
        prior = prior - 0.5 * (np.maximum(at - math.log(guess.ceiling), 0) / guess.ceiling_spread) ** 2
    return _slopes(guess.slope)[:, None] + prior


def _student(apart: Floats, spread: float) -> Floats:
    return -(_FREEDOM + 1) / 2 * np.log1p((apart / spread) ** 2 / _FREEDOM)


def _slopes(usual: float) -> Floats:
    return -0.5 * (np.log(_SLOPES / usual) / _SLOPE_SPREAD) ** 2


def _logistic(at: Floats, trial: Trial, allowed: float) -> tuple[Floats, float]:
    """The share of violations in a trial, for each slope and capacity; and how many independent requests it is worth at most."""
    logits = math.log(allowed / (1 - allowed)) + np.outer(_SLOPES, math.log(trial.level) - at)
    return 1 / (1 + np.exp(-np.clip(logits, -50, 50))), math.inf


def _in_queue(at: Floats, trial: Trial, slack: float, allowed: float) -> tuple[Floats, Floats]:
    """The same if requests wait in a queue, for each share of the highest throughput and each capacity.

    The drift of the queue is what arrives less what is served. Its variance is such that in the long run, at the capacity, the share of requests
    that wait for more than `slack` is `allowed`: exp(-2 (served - capacity) x limit / variance). The share at an instant is that of
    a Brownian motion which is reflected at 0. It forgets where it was within variance / drift^2.
    """
    served = np.exp(at) / _SHARES[:, None]
    limit = served * slack
    variance = 2 * (served - np.exp(at)) * limit / math.log(1 / allowed)
    drift = trial.level - served
    share = np.zeros_like(served)
    for instant in _INSTANTS * trial.seconds:
        spread = np.sqrt(variance * instant)
        reflected = np.exp(np.clip(2 * drift * limit / variance, -500, 30)) * normal_cdf(
            -(limit + drift * instant) / spread
        )
        share += np.minimum(normal_cdf((drift * instant - limit) / spread) + reflected, 1.0)
    return share / len(_INSTANTS), 1 + trial.seconds * drift**2 / variance


def _violations(trial: Trial, allowed: float) -> tuple[float, float]:
    """The share of violations, and how many independent requests it is from. An overload has no share: sooner or later, all do."""
    if trial.is_overloaded:
        return 1.0, _OVERLOADED
    if trial.excess is None:
        return 0.0, 0.0
    if trial.allowed is None:
        return min(allowed * trial.excess**_STEEP, 1.0), _UNCOUNTED
    return min(trial.excess * allowed, 1.0), min(trial.independent or 0.0, _MOST)
