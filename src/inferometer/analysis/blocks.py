"""How much values that were measured one after the other say: variances from blocks of time.

Requests that are in flight together wait in the same queue and share the same batch, so their latencies resemble each other.
A thousand of them say less about the server than a thousand independent ones would, and an interval that takes them for
independent is several times too narrow. So the window is cut into BLOCKS equal stretches of time, long enough for the
stretches to be nearly independent, and the variance of an estimate comes from how much it differs between them.

With k_b of the n_b values of block b above a threshold, N values in total and a share of s = sum k_b / N above it,

    var(s) = B/(B-1) * sum (k_b - s n_b)^2 / N^2

The design effect is how many times this exceeds s(1-s)/N, the variance for independent values; it is taken as at least 1. The
effective size, N / design effect, is the number of independent values that would say as much.

Counts are integers and sums are exact, so no digit depends on the order of the values or on the processor (see exact.py).
"""

import math
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

BLOCKS = 20
T = 2.093
"""The 97.5 % quantile of Student's t for BLOCKS - 1 degrees of freedom: the variance is itself an estimate from 20 blocks."""

Times = NDArray[np.int64]


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


def index(at: Times, start: int, end: int) -> NDArray[np.intp]:
    """The block of each instant. Instants outside of the window count to its first or last block."""
    length = max(end - start, 1)
    return np.clip((at - start) * BLOCKS // length, 0, BLOCKS - 1).astype(np.intp)


def sizes(at: Times, start: int, end: int) -> NDArray[np.intp]:
    """How many of the instants lie in each block."""
    return np.bincount(index(at, start, end), minlength=BLOCKS)


def proportion(hit: NDArray[np.bool_], at: Times, start: int, end: int, least_effect: float = 1.0) -> Proportion:
    """The share of requests for which `hit` is true, in a window from `start` to `end`; `at` are their intended instants.

    The interval is Wilson's for the effective size, with the t quantile: unlike share +- t * error it stays within 0 and 1,
    and is not empty if nobody or everybody was hit. Then the blocks show no design effect either; `least_effect` is for a
    caller who knows one from the same requests' latencies.
    """
    count = len(hit)
    if not count:
        return Proportion(0)
    block = index(at, start, end)
    values = np.bincount(block, minlength=BLOCKS)
    above = np.bincount(block[hit], minlength=BLOCKS)
    share = int(above.sum()) / count
    effect = max(design_effect(above, values), least_effect)
    effective = count / effect
    low, high = _wilson(share, effective)
    return Proportion(count, share, low, high, effect, effective)


def rate(at: Times, weight: NDArray[Any] | None, start: int, end: int) -> tuple[float, float | None, float | None]:
    """Events per second between `start` and `end`, and the ends of the 95 % confidence interval; None if it has none.

    `at` are the instants of the events, all within the window, and `weight` is what each counts for (1 if None): whole
    numbers, such as tokens.
    """
    span = (end - start) / 1_000_000_000
    if span <= 0:
        return 0.0, None, None
    block = index(at, start, end)
    totals = [int(each) for each in np.bincount(block, weight, minlength=BLOCKS)]  # exact: integers below 2**53
    total = sum(totals)
    if np.count_nonzero(totals) < 2:
        return total / span, None, None
    squares = sum(Fraction(BLOCKS * each - total) ** 2 for each in totals) / BLOCKS**2
    error = T * math.sqrt(squares * BLOCKS / (BLOCKS - 1))
    return total / span, max(total - error, 0.0) / span, (total + error) / span


def design_effect(above: NDArray[np.integer[Any]], values: NDArray[np.integer[Any]]) -> float:
    """The design effect, from the number of values above the threshold and of all values in each block; at least 1."""
    k, n = [int(each) for each in above], [int(each) for each in values]
    hits, count = sum(k), sum(n)
    if not 0 < hits < count or sum(each > 0 for each in n) < 2:
        return 1.0
    squares = sum((count * each - hits * size) ** 2 for each, size in zip(k, n, strict=True))  # count^2 times the sum
    return max(float(Fraction(BLOCKS * squares, (BLOCKS - 1) * count * hits * (count - hits))), 1.0)


def _wilson(share: float, size: float) -> tuple[float, float]:
    square = T * T / size
    centre = share + square / 2
    half = T * math.sqrt(share * (1 - share) / size + square / (4 * size))
    return max((centre - half) / (1 + square), 0.0), min((centre + half) / (1 + square), 1.0)
