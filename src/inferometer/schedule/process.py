"""Point processes of rate 1: how arrivals lie around a rate, whatever that rate is.

Each is a function (gaps wanted, generator) -> gaps with mean 1. The generator is read in order, so that a longer
process starts with the shorter one.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from inferometer.errors import UserError

Floats = NDArray[np.float64]
Gaps = Callable[[int, np.random.Generator], Floats]

LIMIT = 200_000_000
"""Requests in one stage: more would not fit into memory as a plan."""


def poisson(n: int, rng: np.random.Generator) -> Floats:
    return rng.standard_exponential(n)


def gamma(burstiness: float) -> Gaps:
    """Gaps with mean 1 and variance 1/burstiness: a gamma distribution of that shape has mean and variance `shape`."""
    return lambda n, rng: rng.standard_gamma(burstiness, n) / burstiness


def evenly(last: float, most: int) -> Floats:
    """0, 1, 2 ... below `last`, and at most the first `most`: counted, not summed, so nothing accumulates."""
    return np.arange(min(np.ceil(last), most), dtype=np.float64)


def scattered(gaps: Gaps, last: float, most: int, rng: np.random.Generator) -> Floats:
    """The process's points below `last`, and at most the first `most` of them (`last` may then be infinite)."""
    points = np.empty(0)
    end = 0.0
    while end < last and len(points) < most:
        check(len(points))
        wanted = min(last - end, most - len(points))
        # Usually enough at once: six standard deviations of a Poisson count above the mean.
        more = end + np.cumsum(gaps(int(min(wanted + 6 * np.sqrt(wanted) + 16, 2**24)), rng))
        points = np.concatenate((points, more))
        end = float(points[-1])
    return points[: np.searchsorted(points[:most], last)]


def check(requests: float) -> None:
    if requests > LIMIT:
        raise UserError(
            f"a stage of the load has {requests:.2g} requests, and a plan holds {LIMIT:.0e}",
            "lower its rate, duration or requests, or raise a gamma load's burstiness",
        )
