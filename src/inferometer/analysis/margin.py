"""Deciding by margin: a limit that is far from everything measured needs fewer requests than one that is close.

Counting cannot show "at most 1 % violate the limit" with 200 requests, even if the slowest took a hundredth of the limit: it does
not look at how far away the limit is. Markov's inequality does. For any server, whatever the distribution of its times X,

    P(X > L) <= E[min(X / L, 1)^3]

because min(X / L, 1)^3 is 1 beyond the limit and at least 0 below it. So a request counts as part of a violation: as one if it
violates the limit, as 1/8 at half of the limit, as 1/1000 at a tenth. A failed one violates it. If the mean of these parts is at
most the allowed share, the objective is met.

The mean is that of the run, and a short run may not have seen the slowest of the server. If requests cluster (a queue, a burst of a
neighbour), only a few clusters are in it. Therefore the largest part is added to the mean, (HORIZON / n)^2 times for n requests: once
with 100 requests, a hundredth of it with 1,000. This is the safety factor: if all requests take equally long, a p99 is met if the
limit is 11 times as long (30 requests), 5.9 times (100) or 5 times (200).

The power 3 and the horizon of 100 requests were chosen by simulation (bench/decisions.py): with a power of 2, far limits stay
undecided; with 4, a run without a burst is believed too easily. A server whose requests cluster over several hundred, such as a queue at
90 % load, needs more than 1,000 of them: in fewer, the run looks better than the server is, and no method can see that.
"""

import math

import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import exact
from inferometer.analysis.slo_expression import Sign

CLEAR = 0.1
"""Instead of an allowed share, for a mean or a rate: with many values, the limit has to be 2.2 times as far."""
HORIZON = 100
"""A run of as many requests may have missed a cluster that counts as much as the slowest request does in all of them."""

Values = NDArray[np.float64]


def closeness(values: Values, sign: Sign, limit: float) -> Values:
    """How close each value is to an upper limit, value / limit, or to a lower one, limit / value. NaN stays far from any limit."""
    with np.errstate(divide="ignore"):
        ratio = values / limit if sign[0] == "<" else limit / np.maximum(values, 0.0)
    return np.nan_to_num(ratio, nan=0.0, posinf=np.inf)


def needed(closeness: Values, allowed: float) -> float:
    """How many requests like these show, by their distance from the limit, that at most the share `allowed` violates it."""
    near = np.minimum(closeness, 1.0)
    parts = near * near * near
    room = allowed - exact.mean(parts)
    return HORIZON * math.sqrt(float(parts.max()) / room) if room > 0 else math.inf


def is_far(closest: float, count: int, allowed: float = CLEAR) -> bool:
    """Whether `count` values are enough if only the closest of them is known: all of them count as much as it does."""
    return closest < 1 and closest**3 * (1 + (HORIZON / count) ** 2) <= allowed
