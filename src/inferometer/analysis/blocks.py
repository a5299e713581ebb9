"""How much values that were measured one after the other say: variances from blocks of time.

Requests that are in flight together wait in the same queue and share the same batch, so their latencies resemble each other.
A thousand of them say less about the server than a thousand independent ones would, and an interval that takes them for
independent is several times too narrow. So the window is cut into BLOCKS equal stretches of time, long enough for the
stretches to be nearly independent, and the variance of an estimate comes from how much it differs between them.

With k_b of the n_b values of block b above a threshold, N values in total and a share of s = sum k_b / N above it,

    var(s) = B/(B-1) * sum (k_b - s n_b)^2 / N^2

The design effect is how many times this exceeds s(1-s)/N, the variance for independent values; it is taken as at least 1. The
effective size, N / design effect, is the number of independent values that would say as much. The same for the mean m, with the
sums x_b of the blocks: var(m) = B/(B-1) * sum (x_b - m n_b)^2 / N^2. B is the number of blocks with values: 20 except in tiny
runs and with long pauses. If neighbouring blocks resemble each other, the variance is larger still (`_neighbours`). Intervals
use Student's t, because a variance from 20 blocks is itself uncertain.

Counts are integers and sums are exact, so no digit depends on the order of the values or on the processor (see exact.py).
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.units import NS

BLOCKS = 20
NORMAL = 1.96
T = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
)
"""97.5 % quantiles of the normal distribution, and of Student's t for 1 to BLOCKS - 1 degrees of freedom."""  # fmt: skip

RESEMBLING, LARGEST = 0.2, 0.8
"""Correlations between neighbouring blocks: below the first they are ignored, above the second not credible."""

Times = NDArray[np.int64]
Counts = NDArray[np.integer[Any]]


class Proportion(msgspec.Struct, frozen=True):
    """A share of requests with its 95 % confidence interval. For no requests at all, everything but `count` is None."""

    count: int
    """How many requests there are."""
    share: float | None = None
    low: float | None = None
    high: float | None = None
    design_effect: float | None = None
    effective: float | None = None
    """How many independent requests would say as much."""


class Placed(msgspec.Struct, frozen=True):
    """In which block of the window each value lies."""

    values: NDArray[np.intp]
    infinite: NDArray[np.intp]
    """The blocks of the failures that count as +inf."""
    seconds: float
    """Length of the window."""


class Tally(msgspec.Struct, frozen=True):
    """What the variances are computed from: counts and sums for each block."""

    seconds: float
    """Length of the window."""
    finite: Counts
    """Number of finite values."""
    infinite: Counts
    """Number of values that are +inf."""
    above: Mapping[str, Counts]
    """Number of values above each percentile, including those that are +inf."""
    sums: list[int]
    """Sums of the finite values, in units of `grain`."""
    grain: float

    @property
    def all(self) -> Counts:
        return self.finite + self.infinite


def index(at: Times, start: int, end: int) -> NDArray[np.intp]:
    """The block of each instant. Instants outside of the window count to its first or last block."""
    length = max(end - start, 1)
    return np.clip((at - start) * BLOCKS // length, 0, BLOCKS - 1).astype(np.intp)


def edge(block: int, start: int, end: int) -> int:
    """The first instant of a block."""
    return start - (-block * max(end - start, 1) // BLOCKS)


def place(at: Times, infinite_at: Times) -> Placed:
    """Cut the time from the first to the last of all instants into blocks."""
    known = [each for each in (at, infinite_at) if len(each)]
    start, end = (
        min((int(each.min()) for each in known), default=0),
        max((int(each.max()) for each in known), default=0),
    )
    return Placed(index(at, start, end), index(infinite_at, start, end), (end - start) / NS)


def count(values: NDArray[Any], placed: Placed, thresholds: Mapping[str, float]) -> Tally:
    """Count the values above each threshold, and sum the values, block by block."""
    failed = np.bincount(placed.infinite, minlength=BLOCKS)
    above = {
        name: np.bincount(placed.values[values > threshold], minlength=BLOCKS) + failed
        for name, threshold in thresholds.items()
    }
    grain = _grain(values)
    weights = np.rint(values / grain)
    sums = [int(each) for each in np.bincount(placed.values, weights, minlength=BLOCKS)]
    return Tally(placed.seconds, np.bincount(placed.values, minlength=BLOCKS), failed, above, sums, grain)


def _grain(values: NDArray[Any]) -> float:
    """A power of two so coarse that the sum of all values, in units of it, is a whole number below 2**53: exact in any order."""
    if not len(values):
        return 1.0
    largest = max(float(values.max()), -float(values.min()))
    return math.ldexp(1.0, max(math.frexp(largest)[1] + len(values).bit_length() - 53, -500))


def t_quantile(values: Counts) -> float:
    """Student's t for the number of blocks that have values."""
    return T[max(int(np.count_nonzero(values)) - 2, 0)]


def design_effect(above: Counts, values: Counts) -> float:
    """The design effect, from the number of values above the threshold and of all values in each block; at least 1."""
    k, n = [int(each) for each in above], [int(each) for each in values]
    hits, size = sum(k), sum(n)
    filled = sum(each > 0 for each in n)
    if not 0 < hits < size or filled < 2:
        return 1.0
    residuals = [size * each - hits * own for each, own in zip(k, n, strict=True)]  # `size` times k_b - s n_b
    squares = sum(each**2 for each in residuals)
    effect = Fraction(filled * squares, (filled - 1) * size * hits * (size - hits))
    return max(float(effect) * _neighbours(residuals), 1.0)


def _neighbours(residuals: list[int]) -> float:
    """How much larger the variance is because neighbouring blocks resemble each other: the run is short for its queues.

    The variance of the mean of a first-order autoregression with correlation r is (1 + r) / (1 - r) times that of independent
    values. Independent blocks have |r| < RESEMBLING in two of three runs, and a smaller r is taken for 0.
    """
    squares = sum(each**2 for each in residuals)
    r = sum(one * next_one for one, next_one in pairwise(residuals)) / squares if squares else 0.0
    r = min(r, LARGEST)
    return (1 + r) / (1 - r) if r > RESEMBLING else 1.0


def mean_error(tally: Tally, deviation: float) -> float:
    """Half of the length of the mean's 95 % interval; `deviation` is the values' standard deviation."""
    n, x = [int(each) for each in tally.finite], tally.sums
    size, total = sum(n), sum(x)
    filled = sum(each > 0 for each in n)
    variance = deviation * deviation / size
    if filled > 1:
        residuals = [size * each - total * own for each, own in zip(x, n, strict=True)]
        between = Fraction(filled * sum(each**2 for each in residuals), (filled - 1) * size**4)
        variance = max(variance, float(between) * _neighbours(residuals) * tally.grain * tally.grain)
    return t_quantile(tally.finite) * math.sqrt(variance)


def proportion(hit: NDArray[np.bool_], at: Times, start: int, end: int, least_effect: float = 1.0) -> Proportion:
    """The share of requests for which `hit` is true, in a window from `start` to `end`; `at` are their intended instants.

    The interval is Wilson's for the effective size, with the t quantile: unlike share +- t * error it stays within 0 and 1,
    and is not empty if `hit` is true for none or for all. Then the blocks show no design effect either; `least_effect` is for
    callers who know one from the latencies of the same requests.
    """
    if not len(hit):
        return Proportion(0)
    block = index(at, start, end)
    values, above = np.bincount(block, minlength=BLOCKS), np.bincount(block[hit], minlength=BLOCKS)
    share = int(above.sum()) / len(hit)
    effect = max(design_effect(above, values), least_effect)
    effective = len(hit) / effect
    low, high = _wilson(share, effective, t_quantile(values))
    return Proportion(len(hit), share, low, high, effect, effective)


def _wilson(share: float, size: float, t: float) -> tuple[float, float]:
    square = t * t / size
    centre = share + square / 2
    half = t * math.sqrt(share * (1 - share) / size + square / (4 * size))
    return max((centre - half) / (1 + square), 0.0), min((centre + half) / (1 + square), 1.0)


def rate(at: Times, weight: NDArray[Any] | None, start: int, end: int) -> tuple[float, float | None, float | None]:
    """Events per second between `start` and `end`, and the ends of the 95 % confidence interval; None if it has none.

    `at` are the instants of the events, all within the window, and `weight` is what each counts for (1 if None): whole
    numbers, such as tokens.
    """
    span = (end - start) / NS
    if span <= 0:
        return 0.0, None, None
    totals = [int(each) for each in np.bincount(index(at, start, end), weight, minlength=BLOCKS)]  # exact below 2**53
    low, high = total_interval(totals)
    return sum(totals) / span, None if low is None else low / span, None if high is None else high / span


def total_interval(totals: Sequence[int]) -> tuple[float | None, float | None]:
    """The ends of the 95 % confidence interval of a total, from its part in each of 2 to BLOCKS blocks; None if it has none."""
    count, total = len(totals), sum(totals)
    if np.count_nonzero(totals) < 2:
        return None, None
    residuals = [count * each - total for each in totals]
    squares = sum(each**2 for each in residuals)  # count^2 times the sum
    error = T[count - 2] * math.sqrt(Fraction(squares, count * (count - 1)) * Fraction(_neighbours(residuals)))
    return max(total - error, 0.0), total + error
