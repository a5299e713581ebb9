"""The ratio of a figure between two sides, B / A, with its uncertainty: on the log scale, where ratios are differences.

paired    several pairs of runs, each pair with one seed and measured one after the other: a t interval of the pairs' log ratios.
          The exact sign-flip test is a cross-check that needs no normal distribution: if A and B were the same, each pair's
          ratio could as well have the opposite sign.
unpaired  several runs per side: Welch's interval of the difference of the mean logs. If one side has a single run, the
          run-to-run variation of the other stands for both.
single    one run per side: each has a standard error from within the run. That does not cover run-to-run variation.

`holm` adjusts p-values of several metrics that are judged together.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np

from inferometer.analysis import student
from inferometer.analysis.blocks import BLOCKS, NORMAL

CONFIDENCE = 0.95
_MOST_PAIRS = 16
"""The sign-flip test lists 2^R combinations of signs; with more pairs than this it is left out."""
_NORMAL_80 = 0.8416
"""80 % quantile of the normal distribution: projections are for a power of 80 %."""
_SPARE = 1.15
"""Projections count with a standard error larger by this factor: it is an estimate from 20 blocks or a few runs, and half of all
estimates are too small. (bench/comparison: without it, differences are found in 63 to 86 % of the comparisons, not in 80 %.)"""
_MOST_RUNS = 500
_NEARLY_NORMAL = 50
"""With as many runs, t is the normal distribution."""
_LARGEST = 300.0

Method = Literal["paired", "unpaired", "single"]


class LogRatio(msgspec.Struct, frozen=True):
    """Estimate, standard error and degrees of freedom of log(B / A)."""

    value: float
    error: float
    freedom: float
    method: Method
    sign_flip: float | None = None
    """p-value of the exact sign-flip test; None if the runs are not paired, or if there are too many pairs."""

    def interval(self) -> tuple[float, float]:
        half = student.quantile(CONFIDENCE, self.freedom) * self.error
        return self.value - half, self.value + half

    def p_above(self, limit: float) -> float:
        """One-sided p-value of "it is at most `limit`": small if the ratio is shown to be larger."""
        return student.tail(_statistic(self.value - limit, self.error), self.freedom)

    def p_below(self, limit: float) -> float:
        return student.tail(_statistic(limit - self.value, self.error), self.freedom)

    def p(self) -> float:
        """Two-sided p-value of "there is no difference"."""
        return min(2 * min(self.p_above(0.0), self.p_below(0.0)), 1.0)


def exp(value: float) -> float:
    """The ratio of a log ratio; a number of any size, for intervals from two runs."""
    return math.exp(max(min(value, _LARGEST), -_LARGEST))


def _statistic(difference: float, error: float) -> float:
    if error:
        return difference / error
    return math.copysign(math.inf, difference) if difference else 0.0


def paired(a: Sequence[float], b: Sequence[float]) -> LogRatio:
    """From the values of at least two pairs of runs."""
    logs = np.array([math.log(two / one) for one, two in zip(a, b, strict=True)])
    error = _deviation(logs) / math.sqrt(len(logs))
    return LogRatio(math.fsum(logs) / len(logs), error, len(logs) - 1, "paired", sign_flip(logs.tolist()))


def unpaired(a: Sequence[float], b: Sequence[float]) -> LogRatio:
    """From the values of several runs per side; one side may have a single run."""
    logs = [np.array([math.log(value) for value in side]) for side in (a, b)]
    value = math.fsum(logs[1]) / len(logs[1]) - math.fsum(logs[0]) / len(logs[0])
    if min(len(a), len(b)) == 1:
        many = max(logs, key=len)
        error = _deviation(many) * math.sqrt(1 / len(a) + 1 / len(b))
        return LogRatio(value, error, len(many) - 1, "unpaired")
    parts = [_deviation(side) ** 2 / len(side) for side in logs]
    total = math.fsum(parts)
    spread = math.fsum(part**2 / (len(side) - 1) for part, side in zip(parts, logs, strict=True))
    freedom = total**2 / spread if spread else len(a) + len(b) - 2
    return LogRatio(value, math.sqrt(total), freedom, "unpaired")


def single(a: float, b: float, errors: tuple[float, float]) -> LogRatio:
    """From one run per side, with the standard errors of the logs: each is itself an estimate from BLOCKS blocks of time."""
    return LogRatio(math.log(b / a), math.hypot(*errors), BLOCKS - 1, "single")


def _deviation(logs: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float:
    mean = math.fsum(logs) / len(logs)
    return math.sqrt(math.fsum((logs - mean) ** 2) / (len(logs) - 1))


def sign_flip(logs: Sequence[float]) -> float | None:
    """The share of all combinations of signs whose sum is at least as far from 0 as the sum of the values."""
    if len(logs) > _MOST_PAIRS:
        return None
    sums = np.zeros(1)
    for value in logs:
        sums = np.concatenate([sums + value, sums - value])
    observed = abs(math.fsum(logs))
    return float(np.count_nonzero(np.abs(sums) >= observed * (1 - 1e-12)) / len(sums))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjust p-values for how many there are: the smallest counts as many times, the next once less, and so on."""
    adjusted, largest = {}, 0.0
    for position, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        largest = max(largest, min(p * (len(p_values) - position), 1.0))
        adjusted[name] = largest
    return adjusted


# --- how much more to measure ----------------------------------------------------------------------------------------


def more_values(found: LogRatio, count: int, log_effect: float) -> int:
    """How many more requests per side it takes to show a difference of `log_effect` with a power of 80 %; 0: none."""
    width = student.quantile(CONFIDENCE, found.freedom) + _NORMAL_80
    return rounded_up(count * ((_SPARE * found.error * width / log_effect) ** 2 - 1))


def more_runs(found: LogRatio, count: int, log_effect: float) -> int | None:
    """The same as more runs per side, or more pairs; None: more than anybody would measure."""
    deviation = _SPARE * found.error * math.sqrt(count)
    for more in range(_NEARLY_NORMAL):
        freedom = round(found.freedom) + more * (1 if found.method == "paired" else 2)
        width = student.quantile(CONFIDENCE, max(freedom, 1)) + _NORMAL_80
        if deviation / math.sqrt(count + more) * width <= log_effect:
            return more
    more = rounded_up((deviation * (NORMAL + _NORMAL_80) / log_effect) ** 2 - count)
    return more if more <= _MOST_RUNS else None


def rounded_up(more: float) -> int:
    """Two significant digits: it is a projection."""
    if more <= 0:
        return 0
    step = 10.0 ** max(math.floor(math.log10(more)) - 1, 0)
    return round(math.ceil(more / step) * step)
