"""Exact percentiles, their confidence intervals, and whether the sample is large enough to support them.

Percentiles are by nearest rank: the p-th percentile of n values is the ceil(p n)-th smallest, a value that was measured and
never an interpolation between two.

Confidence intervals: of n independent values, the number B that lie below the true p-quantile is binomial(n, p), whatever the
distribution. So [x_(l), x_(u)] covers the quantile with probability P(l <= B < u). l is the largest rank with
P(B < l) <= 2.5 %, u the smallest with P(B >= u) <= 2.5 %. An end that the sample cannot bound is None.

Support: if n values are to say something about p, at least one of them should lie above it: P(none does) = p^n <= 1 %, so
n >= log 0.01 / log p: 7, 44, 90, 459 and 4603 for p50, p90, p95, p99 and p99.9.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import exact

PERCENTILES = {"p50": 500, "p90": 900, "p95": 950, "p99": 990, "p999": 999}
"""In thousandths, so that ranks are computed in integers."""

Values = NDArray[np.float64] | NDArray[np.int64] | NDArray[np.uint32]


class Unsupported(msgspec.Struct, frozen=True):
    """A percentile of too few values: its value, and how many values it needs."""

    value: float
    needs: int


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one metric. Infinite and missing numbers are null in JSON."""

    unit: str
    count: int
    infinite: int = 0
    """Failures among `count` that count as +inf."""
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    p999: float | None = None
    max: float | None = None
    ci: dict[str, tuple[float | None, float | None]] = {}
    """95 % confidence interval of each percentile."""
    unsupported: dict[str, Unsupported] = {}

    def value(self, name: str) -> float | None:
        """The value of a percentile, supported or not."""
        if name in self.unsupported:
            return self.unsupported[name].value
        number: float | None = getattr(self, name)
        return number


def needed(thousandths: int) -> int:
    """The smallest number of values that supports a percentile."""
    return math.ceil(math.log(0.01) / math.log(thousandths / 1000))


def rank(thousandths: int, count: int) -> int:
    """The nearest rank, counted from 1."""
    return max(-(-thousandths * count // 1000), 1)


@lru_cache(maxsize=1024)
def interval(thousandths: int, count: int) -> tuple[int | None, int | None]:
    """The ranks, from 1, between which the true percentile lies with 95 % confidence; None if no value bounds it."""
    low, high = _binomial_quantiles(count, thousandths / 1000, 0.025, 0.975)
    return low or None, high + 1 if high < count else None


def _binomial_quantiles(n: int, p: float, *levels: float) -> list[int]:
    """For each level, the smallest k with P(B <= k) >= level.

    The probabilities follow from the one at the mode by their ratios, P(k+1)/P(k) = (n-k)/(k+1) p/(1-p), and are divided
    by their sum. More than 12 standard deviations away they are less than a double can add to it. Cumulative sums and
    products are computed in order on every processor; numpy's logarithm and exponential are not the same on all of them.
    """
    spread = 12 * math.sqrt(n * p * (1 - p)) + 60
    first, last = max(0, math.floor(n * p - spread)), min(n, math.ceil(n * p + spread))
    mode = min(max(math.floor((n + 1) * p), first), last)
    k = np.arange(first, last, dtype=np.float64)
    ratio = (n - k) / (k + 1) * (p / (1 - p))
    lower, upper = np.cumprod(1 / ratio[: mode - first][::-1])[::-1], np.cumprod(ratio[mode - first :])
    below = np.cumsum(np.concatenate([lower, [1.0], upper]))
    return [first + int(np.searchsorted(below, level * below[-1])) for level in levels]


def distribution(values: Values, unit: str, infinite: int = 0, scale: float = 1.0) -> Distribution:
    """Statistics of `values` / `scale` and of `infinite` more values that are +inf. Reorders `values`."""
    finite = len(values)
    count = finite + infinite
    if count == 0:
        return Distribution(unit=unit, count=0)
    ranks = {name: rank(p, count) for name, p in PERCENTILES.items()}
    bounds = {name: interval(p, count) for name, p in PERCENTILES.items()}
    wanted = {1, count, *ranks.values(), *(r for pair in bounds.values() for r in pair if r is not None)}
    select(values, sorted(r - 1 for r in wanted if r <= finite))

    def at(nth: int) -> float:
        return float(values[nth - 1]) / scale if nth <= finite else math.inf

    mean = math.inf if infinite else exact.mean(values)
    std = exact.deviation(values, mean) if finite > 1 and not infinite else None
    short = {name for name, p in PERCENTILES.items() if count < needed(p)}
    return Distribution(
        unit=unit,
        count=count,
        infinite=infinite,
        mean=mean / scale,
        std=None if std is None else std / scale,
        min=at(1),
        max=at(count),
        ci={name: (at(low) if low else None, at(high) if high else None) for name, (low, high) in bounds.items()},
        unsupported={name: Unsupported(at(ranks[name]), needed(PERCENTILES[name])) for name in ranks if name in short},
        **{name: at(ranks[name]) for name in ranks if name not in short},
    )


def select(values: Values, indices: Sequence[int]) -> None:
    """Partially sort `values` in place, so that those at `indices` (ascending) are where a full sort would put them."""
    if not indices:
        return
    middle = len(indices) // 2  # the middle one first, then each side
    index = indices[middle]
    values.partition(index)
    select(values[:index], indices[:middle])
    select(values[index + 1 :], [other - index - 1 for other in indices[middle + 1 :]])
