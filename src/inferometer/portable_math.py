"""Logarithm and exponential with the same result, to the last bit, on every processor.

np.log and np.exp differ in the last bit between vector widths and releases of numpy, and math.log between C libraries. One
such bit can move an instant of a plan by a nanosecond, or a length by a token. These functions use only operations that IEEE 754 defines exactly:
add, multiply, divide, and splitting off the exponent. Both are accurate to 14 digits or more.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LN2 = 0.6931471805599453
_SQRT_HALF = 0.7071067811865476
_LOG_TERMS = 11
_EXP_TERMS = 15
_EXP_LOWEST = -800.0
"""exp of anything below is 0 in double precision."""
_EXP_HIGHEST = 709.0
"""exp of anything above is too large for double precision; it gives the exp of this number."""


def log(x: Floats) -> Floats:
    """Natural logarithm of positive numbers.

    x = m 2^e with m between sqrt(1/2) and sqrt(2), and log m = 2 artanh(s) = 2 (s + s^3/3 + s^5/5 ...) with
    s = (m - 1) / (m + 1). As |s| < 0.172, the terms that are left out are below 1e-18.
    """
    mantissa, exponent = np.frexp(x)
    low = mantissa < _SQRT_HALF
    mantissa = np.where(low, 2 * mantissa, mantissa)
    s = (mantissa - 1) / (mantissa + 1)
    square = s * s
    series = np.full_like(s, 1 / (2 * _LOG_TERMS - 1))
    for k in range(_LOG_TERMS - 2, -1, -1):
        series = series * square + 1 / (2 * k + 1)
    result: Floats = 2 * s * series + (exponent - low) * _LN2
    return result


def exp(x: Floats) -> Floats:
    """e^x: 2^k times the Taylor series of e^r, where x = k log 2 + r and |r| < 0.35."""
    x = np.clip(x, _EXP_LOWEST, _EXP_HIGHEST)
    k = np.rint(x / _LN2)
    r = x - k * _LN2
    series = np.ones_like(r)
    for n in range(_EXP_TERMS, 0, -1):
        series = series * r / n + 1
    return np.ldexp(series, k.astype(np.int64))
