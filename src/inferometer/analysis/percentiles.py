"""Exact percentiles, their confidence intervals, and whether the sample is large enough to support them.

Percentiles are by nearest rank: the p-th percentile of n values is the ceil(p n)-th smallest, a value that was measured and
never an interpolation between two.

Confidence intervals: of n independent values, the number B that lie below the true p-quantile is binomial(n, p), whatever the
distribution. So [x_(l), x_(u)] covers the quantile with probability P(l <= B < u). l is the largest rank with
P(B < l) <= 2.5 %, u the smallest with P(B >= u) <= 2.5 %. An end that the sample cannot bound is None.

Values measured under load are not independent. They say as much as n / design effect independent ones (blocks.py), so the ranks
are those for as many values, scaled to n, and never closer than those for n. (For large n this is Woodruff's interval: p -+ t
standard errors, through the order statistics; for few values in the tail it keeps the skewness of the binomial.) The variance
between 20 blocks is uncertain, so the size is reduced further by (normal quantile / t quantile)^2. The design effect of a high
percentile is the noisiest: to trust it would select the runs that happened to meet no long queue. So p95 and p99 have at least
the design effect of p90, and p99.9 that of p99. bench/coverage shows how often the intervals hold.

Support: if n values are to say something about p, at least one of them should lie above it: P(none does) = p^n <= 1 %, so
n >= log 0.01 / log p: 7, 44, 90, 459 and 4603 for p50, p90, p95, p99 and p99.9. n is the effective size. Below p50, at least one
value should lie below it. A percentile that is not supported is still the best estimate, and has its value.

The values of a quiet server differ by a fraction of a per cent, and that fraction drifts. They are as clustered as those of a queue,
but no percentile can be far off. So for the support, differences of at most NEAR do not count. The design effect is estimated
again at 1 + NEAR and 1 - NEAR times each percentile instead of at the percentile itself, and the smaller one is used. The
largest of them counts, with those of the median: above 1 + NEAR times the p99 there are too few values to show clusters, but a
queue that moves the p99 by more than NEAR also moves values across 1 + NEAR times the median. The intervals do not change.

Further percentiles can be requested (`report.percentiles`). Their names have the digits of the quantile after the point, at least two: p75,
p995 (99.5 %), p9999 (99.99 %), p05 (5 %). The same rules hold for them: a percentile above p90 has at least the design effect of p90, one above p99
that of p99, and one below p10 that of p50.
"""

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import blocks, exact
from inferometer.analysis.blocks import Placed, Tally

PERCENTILES = {"p50": 500, "p90": 900, "p95": 950, "p99": 990, "p999": 999}
"""In thousandths, so that ranks are computed in integers."""

EFFECTS = {"p50": ("p50",), "p90": ("p90",), "p95": ("p90", "p95"), "p99": ("p90", "p99"), "p999": ("p90", "p99")}
"""The percentiles whose design effects count for each percentile: the largest is used."""
COUNTED = ("p50", "p90", "p95", "p99")
"""The percentiles whose design effects are estimated."""

_LOWEST_COUNTED, _LOW, _HIGH, _HIGHEST_COUNTED = 10, 100, 900, 990
"""In thousandths: between which percentiles design effects are estimated, and between which each has only its own."""

NEAR = 0.05
"""Differences of at most this share of a percentile do not count when its support is judged."""

Thousandths = int | Fraction
Values = NDArray[np.float64] | NDArray[np.int64] | NDArray[np.uint32]
Ends = tuple[float | None, float | None]


class Unsupported(msgspec.Struct, frozen=True):
    """What a percentile that is not supported needs."""

    needs: int
    """How many independent values."""
    more_seconds: float | None = None
    """How much longer to run, at the same load, to have as many; null if it is not known."""


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one metric. Missing numbers are null in JSON; an infinite one is "inf"."""

    unit: str
    count: int
    infinite: int = 0
    """Failures among `count` that count as +inf in the percentiles. Mean, standard deviation, min and max leave them out."""
    estimated: int = 0
    """Values among `count` that are estimates, such as a TPOT without the tokens of each chunk."""
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    p999: float | None = None
    max: float | None = None
    ci: dict[str, Ends] = {}
    """95 % confidence intervals of the percentiles and of the mean; null for an end that the sample cannot bound."""
    design_effect: dict[str, float] = {}
    """How many times fewer independent values would say as much about each percentile: what the intervals are computed from."""
    effective: float | None = None
    """The number of independent values by which the support of the p99 is judged: differences of at most 5 % do not count."""
    supported: dict[str, bool] = {}
    """Whether the values are enough to know each percentile; one that is not supported is the best estimate there is."""
    unsupported: dict[str, Unsupported] = {}
    """What the percentiles that are not supported need."""
    percentiles: dict[str, float] = {}
    """Further percentiles, on request (`report.percentiles`), by name: p75, p9999."""

    def value(self, name: str) -> float | None:
        """The statistic with this name: mean, p99, or a percentile on request."""
        number: float | None = self.percentiles.get(name, getattr(self, name, None))
        return number


def name_of(percent: float) -> str:
    """The name of a percentile: p50 for 50, p999 for 99.9, p05 for 5."""
    return "p" + f"{Decimal(repr(percent)) / 100:f}".partition(".")[2].rstrip("0").ljust(2, "0")


def label_of(name: str) -> str:
    """The name as tables show it: p99.9 for p999, p5 for p05; other columns, such as `mean`, stay as they are."""
    digits = name.removeprefix("p")
    return f"p{(Decimal(f'0.{digits}') * 100).normalize():f}" if digits.isdecimal() else name


def thousandths_of(name: str) -> Thousandths:
    """The percentile with this name, in thousandths."""
    digits = name.removeprefix("p")
    return PERCENTILES[name] if name in PERCENTILES else Fraction(int(digits) * 1000, 10 ** len(digits))


def needed(thousandths: Thousandths) -> int:
    """The smallest number of values that supports a percentile."""
    return math.ceil(math.log(0.01) / math.log(max(thousandths, 1000 - thousandths) / 1000))


def rank(thousandths: Thousandths, count: int) -> int:
    """The nearest rank, counted from 1."""
    return max(-(-thousandths * count // 1000), 1)


def interval(thousandths: Thousandths, count: int, effective: float | None = None) -> tuple[int | None, int | None]:
    """The ranks, from 1, between which the true percentile lies with 95 % confidence; None if no value bounds it.

    `effective` is the number of independent values that say as much as the `count` values; None if those are independent.
    """
    low, high = _binomial(thousandths, count)
    size = count if effective is None else math.floor(effective)
    if size < 1:
        return None, None
    if size < count:
        fewer = _binomial(thousandths, size)
        scaled_low, scaled_high = ((2 * each * count + size) // (2 * size) for each in fewer)  # rounded
        low, high = min(low, scaled_low), max(high, scaled_high)
    return low or None, high if high <= count else None


@lru_cache(maxsize=1024)
def _binomial(thousandths: Thousandths, count: int) -> tuple[int, int]:
    """The ranks for independent values; 0 and count + 1 if no value bounds the percentile."""
    low, high = _binomial_quantiles(count, float(thousandths / 1000), 0.025, 0.975)
    return low, high + 1


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


class Order:
    """Order statistics of `values` and of `infinite` more that are +inf. Sorts the values in place, as far as it is needed."""

    def __init__(self, values: Values, infinite: int = 0) -> None:
        self.values, self.infinite = values, infinite
        self.count = len(values) + infinite
        self._placed: list[int] = []

    def at(self, ranks: Iterable[int]) -> dict[int, float]:
        """The values with these ranks, counted from 1."""
        wanted = sorted({each - 1 for each in ranks if each <= len(self.values)} - set(self._placed))
        edges = [-1, *self._placed, len(self.values)]
        for before, after in pairwise(edges):
            within = wanted[bisect.bisect(wanted, before) : bisect.bisect_left(wanted, after)]
            select(self.values[before + 1 : after], [each - before - 1 for each in within])
        self._placed = sorted([*self._placed, *wanted])
        return {each: float(self.values[each - 1]) if each <= len(self.values) else math.inf for each in ranks}

    def percentiles(self, further: Iterable[str] = ()) -> dict[str, float]:
        """The percentiles, supported or not, and those with the names `further`."""
        if not self.count:
            return {}
        ranks = {name: rank(thousandths_of(name), self.count) for name in (*PERCENTILES, *further)}
        found = self.at(ranks.values())
        return {name: found[each] for name, each in ranks.items()}


def distribution(
    values: Values,
    unit: str,
    infinite: int = 0,
    scale: float = 1.0,
    placed: Placed | None = None,
    further: Sequence[str] = (),
) -> Distribution:
    """Statistics of `values` / `scale` and of `infinite` more that are +inf. Reorders `values`.

    Values that are not placed in time are taken for independent. `further` are the names of percentiles to compute in addition.
    """
    if placed is None:
        return describe(Order(values, infinite), unit, scale, further=further)
    order = Order(values.copy(), infinite)
    return describe(order, unit, scale, blocks.count(values, placed, thresholds(order, further)), further)


def thresholds(order: Order, further: Sequence[str] = ()) -> dict[str, float]:
    """Above what values have to be counted for a tally: each percentile, and what is `NEAR` above and below it."""
    return {
        name + side: value * factor
        for name, value in order.percentiles(further).items()
        if _is_counted(name)
        for side, factor in {"": 1.0, "+": 1 + NEAR, "-": 1 - NEAR}.items()
    }


def describe(
    order: Order, unit: str, scale: float = 1.0, tally: Tally | None = None, further: Sequence[str] = ()
) -> Distribution:
    """Statistics of the order's values / `scale`. Values without a tally are taken for independent. `further` are the names of
    percentiles to compute in addition."""
    count = order.count
    if not count:
        return Distribution(unit=unit, count=0)
    further = [name for name in dict.fromkeys(further) if name not in PERCENTILES]
    wanted = {name: thousandths_of(name) for name in (*PERCENTILES, *further)}
    effects, coarse = _design_effects(tally, wanted)
    sizes = {name: count / min(effects[name], coarse[name]) for name in wanted}
    t = blocks.t_quantile(tally.all) if tally else blocks.NORMAL
    bounds = {name: interval(p, count, count / effects[name] * (blocks.NORMAL / t) ** 2) for name, p in wanted.items()}
    ends = order.at([each for pair in bounds.values() for each in pair if each is not None])
    percentiles = {name: value / scale for name, value in order.percentiles(further).items()}
    unsupported = {}
    for name, p in wanted.items():
        if sizes[name] < needed(p):
            more = tally.seconds * (needed(p) / sizes[name] - 1) if tally and tally.seconds else None
            unsupported[name] = Unsupported(needed(p), more)
    of_mean, moments = _moments(order.values, scale, tally)
    ci = {name: (_scaled(ends, low, scale), _scaled(ends, high, scale)) for name, (low, high) in bounds.items()}
    return Distribution(
        unit=unit,
        count=count,
        infinite=order.infinite,
        estimated=0,
        ci=ci if of_mean is None else ci | {"mean": of_mean},
        design_effect=effects if tally else {},
        effective=sizes["p99"],
        supported={name: name not in unsupported for name in wanted},
        unsupported=unsupported,
        percentiles={name: percentiles.pop(name) for name in further},
        **moments,
        **percentiles,
    )


def _scaled(ends: Mapping[int, float], nth: int | None, scale: float) -> float | None:
    return None if nth is None else ends[nth] / scale


def _design_effects(tally: Tally | None, wanted: Iterable[str]) -> tuple[dict[str, float], dict[str, float]]:
    """The design effect of each percentile, and that of differences of more than `NEAR`."""
    if tally is None:
        return dict.fromkeys(wanted, 1.0), dict.fromkeys(wanted, 1.0)
    own = {name: blocks.design_effect(above, tally.all) for name, above in tally.above.items()}
    effects = {name: max(own[each] for each in _effects_of(name)) for name in wanted}
    coarse = {name: max(own[each + side] for each in ("p50", *_effects_of(name)) for side in "+-") for name in wanted}
    return effects, coarse


def _is_counted(name: str) -> bool:
    """Whether the design effect of a percentile is estimated."""
    return name in COUNTED or (name not in PERCENTILES and _LOWEST_COUNTED <= thousandths_of(name) <= _HIGHEST_COUNTED)


def _effects_of(name: str) -> tuple[str, ...]:
    """The percentiles whose design effects count for a percentile."""
    if name in EFFECTS:
        return EFFECTS[name]
    p, own = thousandths_of(name), (name,) if _is_counted(name) else ()
    if p > _HIGHEST_COUNTED:
        return "p90", "p99"
    return ("p90", *own) if p > _HIGH else ("p50", *own) if p < _LOW else own


def _moments(values: Values, scale: float, tally: Tally | None) -> tuple[Ends | None, dict[str, float]]:
    """The interval of the mean, and the fields of the distribution that are only about finite values."""
    if not len(values):
        return None, {}
    mean, least = exact.mean(values), float(values.min())
    fields = {"mean": mean / scale, "min": least / scale, "max": float(values.max()) / scale}
    if len(values) < 2:
        return None, fields
    std = exact.deviation(values, mean)
    error = blocks.mean_error(tally, std) if tally else blocks.NORMAL * std / math.sqrt(len(values))
    low = mean - error if least < 0 else max(mean - error, 0.0)
    return (low / scale, (mean + error) / scale), fields | {"std": std / scale}


def select(values: Values, indices: Sequence[int]) -> None:
    """Partially sort `values` in place, so that those at `indices` (ascending) are where a full sort would put them."""
    if not indices:
        return
    middle = len(indices) // 2  # the middle one first, then each side
    index = indices[middle]
    values.partition(index)
    select(values[:index], indices[:middle])
    select(values[index + 1 :], [other - index - 1 for other in indices[middle + 1 :]])
