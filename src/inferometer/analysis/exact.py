"""Sums, means and deviations whose every digit is the same on any machine.

`numpy.sum` adds in an order that depends on the processor's vector width, and `numpy.partition` leaves the values it does
not select in an order that depends on it too, so the last digits of a float sum differ from machine to machine. The sums
here are exact and are rounded once, at the end: neither the order of the values nor the processor makes a difference.
Element-wise arithmetic (+, -, *, / and the square root) is rounded correctly by every processor and needs no such care.

numpy adds whole numbers exactly as long as they fit, so floats are first turned into whole numbers: each is written as a
sum of digits of 40 bits on a scale that is common to all values.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64] | NDArray[np.integer[Any]]
_BLOCK = 1 << 16
"""Values per block: small enough for the cache, and for the sum of a block's digits to fit into 64 bits."""
_DIGIT = 40
"""Bits per digit. A block's digits add up to less than 2**56."""


def total(values: Numbers) -> Fraction:
    """The exact sum of finite values."""
    if values.dtype.kind == "f":
        return sum(map(_float_total, _blocks(values)), Fraction(0))
    return Fraction(sum(map(_int_total, _blocks(values))))


def mean(values: Numbers) -> float:
    """The arithmetic mean, correctly rounded; NaN if a value is not finite. There must be at least one value."""
    if not np.isfinite(values).all():
        return math.nan
    return float(total(values) / len(values))


def deviation(values: Numbers, mean: float) -> float:
    """The standard deviation of a sample (n - 1) around its `mean`. There must be at least two values."""
    if math.isnan(mean):
        return math.nan
    if values.dtype == np.uint32:  # gaps between chunks: there may be a hundred million
        squares = sum(map(_uint32_squares, _blocks(values))) - total(values) ** 2 / len(values)
    else:
        squares = Fraction(0)
        for block in _blocks(values):
            with np.errstate(over="ignore"):
                squared = np.square(block - mean)
            if not np.isfinite(squared).all():
                return math.inf
            squares += _float_total(squared)
    return math.sqrt(squares / (len(values) - 1))


def _blocks(values: Numbers) -> Iterator[Any]:
    return (values[at : at + _BLOCK] for at in range(0, len(values), _BLOCK))


def _int_total(block: NDArray[np.integer[Any]]) -> int:
    if block.dtype.itemsize < 8:
        return int(block.sum(dtype=np.int64))
    # 65,536 values of 64 bits may not fit into 64 bits: add up their halves.
    return (int((block >> 32).sum()) << 32) + int((block & 0xFFFFFFFF).sum())


def _uint32_squares(block: NDArray[np.uint32]) -> int:
    """The sum of the squares, from those of the halves: (2**16 high + low)**2."""
    high, low = block >> 16, block & 0xFFFF
    products = (high * high, high * low, low * low)
    first, middle, last = (int(product.sum(dtype=np.uint64)) for product in products)
    return (first << 32) + (middle << 17) + last


def _float_total(block: NDArray[np.float64]) -> Fraction:
    largest = max(float(block.max()), -float(block.min()))
    exponent = math.frexp(largest)[1]  # every value is less than 2**exponent
    rest = np.ldexp(block, _DIGIT - exponent)
    digits, count = 0, 0
    while True:
        whole = np.trunc(rest)
        digits, count = (digits << _DIGIT) + int(whole.astype(np.int64).sum()), count + 1
        rest -= whole
        if not rest.any():
            return digits * Fraction(2) ** (exponent - _DIGIT * count)
        rest *= 2.0**_DIGIT
