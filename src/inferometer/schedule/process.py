"""Point processes of rate 1: how arrivals scatter around a rate, whatever that rate is.

Arrivals are evenly spaced, or the gaps between them are random: exponential (a Poisson process) or gamma distributed. A
process with random gaps has either a fixed number of arrivals or a random one:

    fixed_count    exactly n points over a given length. The gaps are rescaled to fit: for a Poisson process this is its
                   distribution given that it has n points there, n independent uniform points in ascending order.
    free           the gaps as they are, so that the number of points over a given length varies

Gaps are a function of the seed and of their index alone: a longer process starts with the gaps of a shorter one.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from inferometer.errors import UserError
from inferometer.portable_math import exp, log
from inferometer.random_numbers import Counters

Floats = NDArray[np.float64]
Uniforms = Callable[[Counters, str], Floats]
"""(indices, purpose) -> a random number between 0 and 1 for each index."""
Gaps = Callable[[Counters, Uniforms], Floats]
"""(indices, source of randomness) -> the gaps with these indices; their mean is 1."""

LIMIT = 200_000_000
"""Maximum number of requests in one stage: a plan with more would not fit into memory."""
_BLOCK = 1 << 16
"""Gaps that are computed at a time: few enough for the processor's cache."""


def evenly(length: float, most: int) -> Floats:
    """0, 1, 2 ... below `length`, at most `most` of them. They are counted, not summed, so no error accumulates."""
    return np.arange(min(np.ceil(length), most), dtype=np.float64)


def fixed_count(gaps: Gaps, n: int, length: float, random: Uniforms) -> Floats:
    """Exactly n points between 0 and `length`: n + 1 gaps, scaled so that they add up to `length`."""
    points = np.cumsum(_compute(gaps, 0, n + 1, random))
    total = points[-1] or 1.0  # 0 if the process is so bursty that every gap is too small for a float
    return points[:n] / total * length


def free(gaps: Gaps, length: float, most: int, random: Uniforms) -> Floats:
    """The points of the process below `length` (which may be infinite), at most the first `most` of them."""
    points = np.empty(0)
    end = 0.0
    while end < length and len(points) < most:
        check_count(len(points))
        wanted = min(length - end, most - len(points))
        # Usually enough at once: six standard deviations of a Poisson count above the mean.
        more = _compute(gaps, len(points), int(min(wanted + 6 * np.sqrt(wanted) + 16, 2**24)), random)
        more[0] += end
        points = np.concatenate((points, np.cumsum(more)))
        end = float(points[-1])
    return points[: np.searchsorted(points[:most], length)]


def check_count(requests: float) -> None:
    """Raise UserError when a stage has more requests than a plan can hold."""
    if requests > LIMIT:
        raise UserError(
            f"a stage of the load has {requests:.2g} requests, but a plan holds at most {LIMIT:.0e}",
            "lower its rate, duration or requests, or raise the burstiness of a gamma load",
        )


# --- gaps ------------------------------------------------------------------------------------------------------------


def exponential(indices: Counters, random: Uniforms) -> Floats:
    """Gaps of a Poisson process."""
    return -log(random(indices, "gap"))


def gamma(burstiness: float) -> Gaps:
    """Gaps with mean 1 and variance 1/burstiness.

    A gamma distribution of shape k has mean k and variance k. Below shape 1, a gap is that of shape k + 1 times U^(1/k).
    """

    def gaps(indices: Counters, random: Uniforms) -> Floats:
        if burstiness >= 1:
            return _gamma(burstiness, indices, random) / burstiness
        with np.errstate(over="ignore"):  # -inf is fine: its exponential is 0
            shrink = exp(log(random(indices, "shrink")) / burstiness)
        return _gamma(burstiness + 1, indices, random) * shrink / burstiness

    return gaps


def _gamma(shape: float, indices: Counters, random: Uniforms) -> Floats:
    """Gamma variates of a shape of at least 1, by Marsaglia and Tsang's rejection method (2000).

    Each try needs a normal variate, by Marsaglia's polar method, which rejects too: about three tries in four succeed.
    """
    d = shape - 1 / 3
    c = 1 / math.sqrt(9 * d)
    variates = np.empty(len(indices))
    pending, attempt = np.arange(len(indices)), 0
    while len(pending):
        x, y, u = (random(indices[pending], f"{name}{attempt}") for name in "xyu")
        x, y = 2 * x - 1, 2 * y - 1
        square = x * x + y * y
        accepted = square < 1
        square = np.where(accepted, square, 0.5)  # any value that has a logarithm
        normal = x * np.sqrt(-2 * log(square) / square)
        root = 1 + c * normal
        accepted &= root > 0
        v = np.where(accepted, root * root * root, 1.0)
        accepted &= log(u) < normal * normal / 2 + d * (1 - v + log(v))
        variates[pending[accepted]] = d * v[accepted]
        pending, attempt = pending[~accepted], attempt + 1
    return variates


def _compute(gaps: Gaps, first: int, n: int, random: Uniforms) -> Floats:
    """The gaps first, first + 1 ... first + n - 1."""
    out = np.empty(n)
    for start in range(0, n, _BLOCK):
        stop = min(start + _BLOCK, n)
        out[start:stop] = gaps(np.arange(first + start, first + stop, dtype=np.uint64), random)
    return out
