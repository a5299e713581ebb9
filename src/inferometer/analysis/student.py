"""Student's t distribution: tail probabilities and quantiles, with any positive number of degrees of freedom."""

import math
from functools import lru_cache

from inferometer.analysis import binomial

_WIDEST = 1e6


def tail(t: float, freedom: float) -> float:
    """The probability of a value of at least `t`."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    half = freedom / 2
    # P(|T| > t) = I_x(freedom / 2, 1 / 2), which is the binomial's P(at least half among half - 1/2).
    beyond = binomial.at_least(half, half - 0.5, freedom / (freedom + t * t)) / 2 if t else 0.5
    return beyond if t >= 0 else 1 - beyond


@lru_cache(maxsize=4096)
def quantile(confidence: float, freedom: float) -> float:
    """How many standard errors a two-sided interval with this confidence extends to each side."""
    beyond, low, high = (1 - confidence) / 2, 0.0, 1.0
    while tail(high, freedom) > beyond and high < _WIDEST:
        high *= 2
    while high - low > 1e-8 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, freedom) > beyond else (low, middle)
    return high
