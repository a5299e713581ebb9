"""Lengths by a number or a distribution: a pure function of (spec, seed, id, purpose).

Every distribution is sampled by its quantile function, from one random number per id. So two lengths can be correlated through
their random numbers, whatever their distributions are; and with portable_math, the same seed gives the same lengths on every
machine. Values are rounded to whole numbers and then clamped.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.config.lengths import (
    Empirical,
    Exponential,
    Histogram,
    Length,
    LengthPairs,
    LogNormal,
    Mixture,
    Normal,
    PoissonLength,
    Ratio,
    SkewNormal,
    Uniform,
)
from inferometer.portable_math import exp, log, normal_cdf, normal_quantile
from inferometer.random_numbers import uniforms
from inferometer.workload import number_files

Ids = Sequence[int] | NDArray[np.uint64]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_LARGEST = 2.0**40
"""A limit for distributions without one, so that the number fits into 64 bits."""
_STRATA = 4096
"""Quantiles that a mean is computed from."""


def sample(spec: Length, seed: int, ids: Ids, purpose: str) -> Integers:
    """One length for each id. `purpose` tells apart lengths that are independent of one another."""
    if isinstance(spec, int):
        return np.full(len(ids), spec, dtype=np.int64)
    return quantiles(spec, _uniforms(seed, ids, purpose))


def pairs(
    input: Length,
    output: Length,
    seed: int,
    ids: Ids,
    *,
    correlation: float = 0.0,
    joint: LengthPairs | None = None,
) -> tuple[Integers, Integers]:
    """One input and one output length for each id: independent, correlated, or drawn together from observed pairs."""
    if joint is not None:
        inputs, outputs, edges = _observed_pairs(joint)
        drawn, _ = _drawn(edges, _uniforms(seed, ids, "input"))
        return inputs[drawn], outputs[drawn]
    inputs = sample(input, seed, ids, "input")
    if not correlation or isinstance(input, int) or isinstance(output, int):
        return inputs, sample(output, seed, ids, "output")
    first, own = (normal_quantile(_uniforms(seed, ids, purpose)) for purpose in ("input", "output"))
    both = correlation * first + math.sqrt(1 - correlation * correlation) * own
    return inputs, quantiles(output, np.clip(normal_cdf(both), 2.0**-53, 1 - 2.0**-53))


def quantiles(spec: Length, u: Floats) -> Integers:
    """The lengths below which these shares of all lengths lie; each share is strictly between 0 and 1."""
    if isinstance(spec, int):
        return np.full(len(u), spec, dtype=np.int64)
    if isinstance(spec, Uniform):
        return _whole_numbers(u, spec.min, spec.max)
    if isinstance(spec, Ratio):
        return _whole_numbers(u, *_ratio_range(spec))
    values = np.floor(np.minimum(_QUANTILES[type(spec)](spec, u), _LARGEST) + 0.5)
    return np.clip(values, spec.min, spec.max or None).astype(np.int64)


def mean(spec: Length) -> float:
    """The mean length, after rounding and clamping."""
    return math.fsum(quantiles(spec, (np.arange(_STRATA) + 0.5) / _STRATA).tolist()) / _STRATA


def _uniforms(seed: int, ids: Ids, purpose: str) -> Floats:
    return uniforms(seed, np.asarray(ids, dtype=np.uint64), f"length {purpose}")


# --- quantile functions: (spec, shares) -> values before rounding ------------------------------------------------------


def _whole_numbers(u: Floats, low: int, high: int) -> Integers:
    return low + np.floor(u * float(high - low + 1)).astype(np.int64)


def _ratio_range(spec: Ratio) -> tuple[int, int]:
    """The bounds are rounded to 9 digits first: 100 * (1 + 0.1) is a little more than 110 in floating point."""
    low, high = round(spec.mean * (1 - spec.ratio), 9), round(spec.mean * (1 + spec.ratio), 9)
    return max(1, math.floor(low)), math.ceil(high)


def _normal(spec: Normal, u: Floats) -> Floats:
    return spec.mean + spec.std * normal_quantile(u)


def _lognormal(spec: LogNormal, u: Floats) -> Floats:
    """The logarithms are normal, with the mean and the variance that give the lengths theirs."""
    variation = spec.std / spec.mean
    log_mean, variance = log(np.array([spec.mean, 1 + variation * variation])).tolist()
    return exp(log_mean - variance / 2 + math.sqrt(variance) * normal_quantile(u))


def _exponential(spec: Exponential, u: Floats) -> Floats:
    return -spec.mean * log(1 - u)


def _skew_normal(spec: SkewNormal, u: Floats) -> Floats:
    """Location and scale are chosen for the mean and the standard deviation."""
    delta = spec.skew / math.sqrt(1 + spec.skew * spec.skew)
    offset = delta * math.sqrt(2 / math.pi)
    scale = spec.std / math.sqrt(1 - offset * offset)
    return spec.mean + scale * (_standard_skew_normal(spec.skew, u) - offset)


def _standard_skew_normal(skew: float, u: Floats) -> Floats:
    points, edges = _skew_normal_table(skew)
    cell, within = _drawn(edges, u)
    return points[cell] + within * (points[cell + 1] - points[cell])


@lru_cache(maxsize=8)
def _skew_normal_table(skew: float) -> tuple[Floats, Floats]:
    """Points, and the cumulative probability at each: the integral of the density 2 pdf(x) cdf(skew x), by Simpson's rule.

    A strong skew makes the density rise steeply at 0, over a range of 1/skew, which has as many points as the whole.
    """
    coarse = (np.arange(4097) - 2048) * 2.0**-8
    points = np.unique(np.concatenate((coarse, coarse / skew))) if abs(skew) > 1 else coarse
    points = points[np.abs(points) <= 8.5]

    def density(x: Floats) -> Floats:
        return exp(-x * x / 2) * normal_cdf(skew * x)

    low, high = points[:-1], points[1:]
    cells = (high - low) * (density(low) + 4 * density((low + high) / 2) + density(high))
    return points, np.concatenate((np.zeros(1), np.cumsum(cells)))


def _poisson(spec: PoissonLength, u: Floats) -> Floats:
    first, edges = _poisson_table(spec.mean)
    return first + _drawn(edges, u)[0].astype(np.float64)


@lru_cache(maxsize=8)
def _poisson_table(mean: float) -> tuple[int, Floats]:
    """The first number with a probability worth counting, and the cumulative probabilities from there on."""
    middle, reach = math.floor(mean), math.ceil(10 * math.sqrt(mean)) + 20
    above = np.cumprod(mean / (middle + np.arange(1.0, reach + 1)))
    below = np.cumprod((middle - np.arange(0.0, min(reach, middle))) / mean)
    probabilities = np.concatenate((below[::-1], np.ones(1), above))
    return middle - len(below), np.concatenate((np.zeros(1), np.cumsum(probabilities)))


def _empirical(spec: Empirical, u: Floats) -> Floats:
    values, edges = _observed(spec)
    return values[_drawn(edges, u)[0]]


def _histogram(spec: Histogram, u: Floats) -> Floats:
    bins = np.array(spec.bins, dtype=np.float64)
    chosen, within = _drawn(_edges(np.array(spec.weights, dtype=np.float64)), u)
    return bins[chosen] + np.floor(within * (bins[chosen + 1] - bins[chosen]))


def _mixture(spec: Mixture, u: Floats) -> Floats:
    """The share chooses the part, and its position within the part's range is the share within the part."""
    chosen, within = _drawn(_edges(np.array([part.weight for part in spec.parts])), u)
    within = np.clip(within, 2.0**-53, 1 - 2.0**-53)
    values = np.zeros(len(u))
    for index, part in enumerate(spec.parts):
        of_part = chosen == index
        values[of_part] = quantiles(part.length, within[of_part])
    return values


_QUANTILES: dict[type, Callable[[Any, Floats], Floats]] = {
    Normal: _normal,
    LogNormal: _lognormal,
    SkewNormal: _skew_normal,
    Exponential: _exponential,
    PoissonLength: _poisson,
    Empirical: _empirical,
    Histogram: _histogram,
    Mixture: _mixture,
}


def _edges(weights: Floats) -> Floats:
    """Cumulative weights, from 0. Summed one by one: np.sum's order of additions may differ between machines."""
    return np.concatenate((np.zeros(1), np.cumsum(weights)))


def _drawn(edges: Floats, u: Floats) -> tuple[Integers, Floats]:
    """The cell that each share lies in, by cumulative weights, and its position within the cell, from 0 to 1."""
    at = u * edges[-1]
    last = int(np.searchsorted(edges, edges[-1]))  # cells without weight at the end are never drawn
    cell = np.minimum(np.searchsorted(edges, at, side="right"), last) - 1
    return cell, (at - edges[cell]) / (edges[cell + 1] - edges[cell])


# --- observed lengths ---------------------------------------------------------------------------------------------------


def _observed(spec: Empirical) -> tuple[Floats, Floats]:
    """The values of an empirical distribution, ascending, and their cumulative weights."""
    if spec.path is None:
        values, weights = np.array(spec.values, dtype=np.float64), np.array(spec.weights, dtype=np.float64)
    else:
        names = (spec.column, spec.weight_column) if spec.weight_column else (spec.column,)
        values, *rest = number_files.columns(spec.path, names)
        weights = rest[0] if rest else np.zeros(0)
    order = np.argsort(values, kind="stable")
    return values[order], _edges(weights[order] if len(weights) else np.ones(len(values)))


def _observed_pairs(joint: LengthPairs) -> tuple[Integers, Integers, Floats]:
    """The inputs and the outputs, and the cumulative weights of the pairs."""
    if joint.path is None:
        inputs, outputs = np.array(joint.pairs, dtype=np.int64).T
        return inputs, outputs, _edges(np.array(joint.weights or np.ones(len(inputs)), dtype=np.float64))
    read = number_files.columns(joint.path, (joint.input, joint.output))
    inputs, outputs = (np.maximum(np.floor(column + 0.5), 1).astype(np.int64) for column in read)
    return inputs, outputs, _edges(np.ones(len(inputs)))


def files(spec: object) -> Iterator[str]:
    """The paths of the files that the lengths in a section come from."""
    if isinstance(spec, list):
        for entry in spec:
            yield from files(entry)
    elif isinstance(spec, msgspec.Struct):
        if isinstance(spec, Empirical | LengthPairs) and spec.path is not None:
            yield spec.path
        for name in spec.__struct_fields__:
            yield from files(getattr(spec, name))


def without_paths(spec: Any) -> Any:
    """The section without the paths of such files, for a digest that does not depend on where they are."""
    if isinstance(spec, list):
        return [without_paths(entry) for entry in spec]
    if not isinstance(spec, msgspec.Struct):
        return spec
    own = {name: without_paths(getattr(spec, name)) for name in spec.__struct_fields__}
    return msgspec.structs.replace(spec, **own | ({"path": None} if isinstance(spec, Empirical | LengthPairs) else {}))
