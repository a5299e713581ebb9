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


def normal_quantile(p: Floats) -> Floats:
    """The standard normal's quantiles for probabilities strictly between 0 and 1: Wichura's algorithm AS 241, to 15 digits."""
    q = p - 0.5
    central = np.abs(q) <= 0.425
    r = 0.180625 - q * q
    middle = q * _ratio(_AS241_MIDDLE, r)
    tail = np.minimum(p, 1 - p)
    distance = np.sqrt(-log(np.where(central, 0.5, tail)))
    outer = np.where(
        distance <= 5, _ratio(_AS241_TAIL, distance - 1.6), _ratio(_AS241_FAR_TAIL, np.maximum(distance, 5) - 5)
    )
    return np.where(central, middle, np.where(q < 0, -outer, outer))


def normal_cdf(x: Floats) -> Floats:
    """The probability that a standard normal is at most x: Hart's rational function as given by West, to 14 digits."""
    size = np.abs(x)
    density = exp(-size * size / 2)
    near = density * _ratio(_HART, np.minimum(size, _HART_END))
    far_size = np.maximum(size, _HART_END)
    fraction = far_size + 0.65
    for k in (4, 3, 2, 1):
        fraction = far_size + k / fraction
    upper_tail = np.where(size < _HART_END, near, density / fraction / 2.506628274631)
    return np.where(x > 0, 1 - upper_tail, upper_tail)


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Floats) -> Floats:
    """A rational function: two polynomials, the highest power first."""
    numerator, denominator = coefficients
    return _polynomial(numerator, x) / _polynomial(denominator, x)


def _polynomial(coefficients: tuple[float, ...], x: Floats) -> Floats:
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value *= x
        value += coefficient
    return value


_AS241_MIDDLE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457, 13731.693765509461125,
     1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852545925, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867, 5394.1960214247511077,
     687.1870074920579083, 42.313330701600911252, 1.0),
)  # fmt: skip
_AS241_TAIL = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)  # fmt: skip
_AS241_FAR_TAIL = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
     0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
     0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0),
)  # fmt: skip
_HART = (
    (3.52624965998911e-2, 0.700383064443688, 6.37396220353165, 33.912866078383, 112.079291497871, 221.213596169931,
     220.206867912376),
    (8.83883476483184e-2, 1.75566716318264, 16.064177579207, 86.7807322029461, 296.564248779674, 637.333633378831,
     793.826512519948, 440.413735824752),
)  # fmt: skip
_HART_END = 7.07106781186547
"""Where the continued fraction takes over."""
