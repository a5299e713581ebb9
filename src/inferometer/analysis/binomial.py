"""Exact tests and bounds for a share, from the binomial distribution.

If each of n independent requests violates a limit with probability p, P(at most k violations) = I_(1-p)(n - k, k + 1), with the
regularised incomplete beta function I. That also has a value if k and n are not whole numbers, as after division by a design
effect. Clopper and Pearson's one-sided 95 % bounds of p are the values at which the observed k is just as unlikely as 5 %:
upper, P(at most k) = 5 %; lower, P(at least k) = 5 %.

Only the math module is used, so the results do not depend on the processor's vector width.
"""

import math
from collections.abc import Callable

CONFIDENCE = 0.95
TAIL = 1 - CONFIDENCE
"""How often a test may be wrong. Someone who tests several times, and stops at the first success, has to divide it."""
_MOST = 1e7
"""The largest number of requests that `needed` considers; more than that is never worth waiting for."""
_TINY = 1e-300


def at_most(k: float, n: float, p: float) -> float:
    """The probability of at most k violations among n requests."""
    return 1.0 if k >= n else _beta(1 - p, n - k, k + 1)


def at_least(k: float, n: float, p: float) -> float:
    """The probability of at least k violations among n requests."""
    return 1.0 if k <= 0 else _beta(p, k, n - k + 1)


def is_below(k: float, n: float, p: float, tail: float = TAIL) -> bool:
    """Whether k violations among n requests show, with 95 % confidence or 1 - `tail`, that their share is at most p."""
    return at_most(k, n, p) <= tail


def is_above(k: float, n: float, p: float, tail: float = TAIL) -> bool:
    """Whether k violations among n requests show, with 95 % confidence or 1 - `tail`, that their share is more than p."""
    return at_least(k, n, p) < tail


def bounds(k: float, n: float) -> tuple[float, float]:
    """The one-sided 95 % bounds of the share of violations; together they are a 90 % interval."""
    low = 0.0 if k <= 0 else _root(lambda p: at_least(k, n, p) - TAIL)
    high = 1.0 if k >= n else _root(lambda p: TAIL - at_most(k, n, p))
    return low, high


def needed(share: float, p: float) -> float | None:
    """How many independent requests, of which `share` violate, it takes to show that their share is at most p, or more.

    None if it would take more than anybody would send: the share is too close to p.
    """

    def decides(n: float) -> bool:
        return is_below(share * n, n, p) if share <= p else is_above(share * n, n, p)

    high = 1.0
    while not decides(high):
        high *= 2
        if high > _MOST:
            return None
    low = high / 2
    while high - low > max(1e-3 * high, 0.5):
        middle = (low + high) / 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return float(math.ceil(high))


def _root(rising: Callable[[float], float]) -> float:
    """Where a function that rises with p is 0, between 0 and 1, to about nine digits."""
    low, high = 0.0, 1.0
    while high - low > max(1e-9 * high, 1e-15):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return high


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method. It takes about sqrt(a + b) steps."""
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away(1 + term * d)
            c = _away(1 + term / c)
            result *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return result


def _away(value: float) -> float:
    """Keep a divisor away from 0."""
    return value if abs(value) > _TINY else _TINY
