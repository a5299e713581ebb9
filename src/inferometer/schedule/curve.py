"""The integral of a rate that a formula gives, and its inverse, as exactly as floating-point numbers allow.

The stage is divided into panels, in each of which the rate is a polynomial of degree 7 to 12 digits: through its values at the
eight nodes of Gauss's quadrature, which integrate polynomials of up to degree 15 exactly. A panel in which the polynomial misses
the rate is halved, down to a nanosecond where the rate jumps or has a kink. Within a panel, the integral is inverted by Newton's
method, kept between bounds. All sums are made term by term, so that the result is the same on every machine.
"""

from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.config import rate_expression
from inferometer.errors import UserError
from inferometer.schedule.expression import evaluate
from inferometer.units import format_seconds

Floats = NDArray[np.float64]

_NODES = (
    -0.9602898564975363, -0.7966664774136267, -0.525532409916329, -0.18343464249564980,
    0.18343464249564980, 0.525532409916329, 0.7966664774136267, 0.9602898564975363,
)  # fmt: skip
_WEIGHTS = (
    0.10122853629037626, 0.22238103445337448, 0.31370664587788727, 0.36268378337836199,
    0.36268378337836199, 0.31370664587788727, 0.22238103445337448, 0.10122853629037626,
)  # fmt: skip
_ACCURACY = 1e-12
"""Relative to the highest rate: relative to the rate itself, no panel next to a zero would be accurate enough."""
_SMALLEST = 1e-9
"""Seconds: panels of this length are not halved."""
_FEWEST, _MOST = 1024, 1 << 16
"""Panels to begin with: one per second within these bounds."""
_LIMIT = 1 << 21
"""Maximum number of panels."""
_PRECISION = 1e-12
"""Seconds: when Newton's method stops."""
_BLOCK = 1 << 18
"""Points that are inverted at a time: each needs the coefficients of its panel."""
_STEPS = 80
"""Maximum number of steps of Newton's method; it needs about five, and bisection alone fewer than this."""


class Curve(msgspec.Struct, frozen=True):
    """A rate over the duration of a stage, panel by panel."""

    text: str
    """The formula."""
    starts: Floats
    """Where each panel starts, in seconds; and the end of the stage."""
    before: Floats
    """Requests that are due before each panel; and all of them."""
    coefficients: Floats
    """For each panel, the rate as a sum of Legendre polynomials."""


@lru_cache(maxsize=8)
def curve(text: str, duration: float, key: str = "load.rate") -> Curve:
    """The curve of a formula; raises UserError if it is negative or not a number somewhere."""
    formula = rate_expression.parse(text, key)
    count = int(min(max(duration, _FEWEST), _MOST))
    edges = np.arange(count + 1) * duration / count
    starts, ends = edges[:-1], edges[1:]
    done: list[tuple[Floats, Floats]] = []
    panels, highest = 0, 0.0
    while len(starts):
        middle, half = (starts + ends) / 2, (ends - starts) / 2
        # At the ends, the polynomial is least accurate. They are taken just inside the panel: the rate may jump there.
        times = [middle + half * node for node in _NODES] + [np.nextafter(starts, ends), np.nextafter(ends, starts)]
        values = [evaluate(formula, each) for each in times]
        _check(text, key, times, values)
        values = [np.maximum(each, 0.0) for each in values]
        coefficients = _fitted(values[: len(_NODES)])
        highest = max(highest, float(np.max(values[: len(_NODES)])))
        misses = [np.abs(_sum(coefficients, x) - value) for x, value in zip((-1.0, 1.0), values[-2:], strict=True)]
        accurate = (np.maximum(*misses) <= _ACCURACY * highest) | (2 * half <= _SMALLEST)
        done.append((starts[accurate], coefficients[accurate]))
        panels += len(starts)
        if panels > _LIMIT:
            raise UserError(f"{text!r} changes too often", "use a smoother formula, or a shorter duration", key)
        split = ~accurate
        starts = np.stack((starts[split], middle[split]), axis=1).ravel()
        ends = np.stack((middle[split], ends[split]), axis=1).ravel()
    return _assembled(text, duration, done)


def _check(text: str, key: str, times: list[Floats], values: list[Floats]) -> None:
    all_times, all_values = np.concatenate(times), np.concatenate(values)
    is_number = np.isfinite(all_values)
    rounding = _ACCURACY * np.max(np.abs(all_values), initial=0.0, where=is_number)
    wrong = np.flatnonzero(~is_number | (all_values < -rounding))
    if len(wrong):
        first = wrong[np.argmin(all_times[wrong])]
        at = format_seconds(float(all_times[first]))
        what = f"negative ({all_values[first]:.4g})" if is_number[first] else "not a number"
        raise UserError(
            f"{text!r} is {what} at t = {at}",
            "keep the rate at or above 0 everywhere, such as max(0, ...)",
            key,
        )


def _fitted(values: list[Floats]) -> Floats:
    """Coefficients of the Legendre polynomials P0 to P7 whose sum has these values at the nodes."""
    columns = []
    for degree in range(len(_NODES)):
        column = np.zeros_like(values[0])
        for node, weight, value in zip(_NODES, _WEIGHTS, values, strict=True):
            column = column + value * ((2 * degree + 1) / 2 * weight * _legendre(degree, node))
        columns.append(column)
    return np.stack(columns, axis=1)


def _legendre(degree: int, x: float) -> float:
    previous, current = 0.0, 1.0
    for n in range(degree):
        previous, current = current, ((2 * n + 1) * x * current - n * previous) / (n + 1)
    return current


def _sum(coefficients: Floats, x: "Floats | float") -> Floats:
    """The polynomial at x."""
    previous, current = np.zeros(len(coefficients)), np.ones(len(coefficients))
    total = coefficients[:, 0].copy()
    for n in range(coefficients.shape[1] - 1):
        previous, current = current, ((2 * n + 1) * x * current - n * previous) / (n + 1)
        total += coefficients[:, n + 1] * current
    return total


def _integral(coefficients: Floats, x: "Floats | float") -> Floats:
    """The integral of the polynomial from -1 to x: that of P_n is (P_n+1 - P_n-1) / (2n + 1)."""
    total = coefficients[:, 0] * (x + 1)
    previous = np.ones(len(coefficients))
    current = np.broadcast_to(np.asarray(x, dtype=np.float64), previous.shape)
    for n in range(1, coefficients.shape[1]):
        following = ((2 * n + 1) * x * current - n * previous) / (n + 1)
        total = total + coefficients[:, n] * (following - previous) / (2 * n + 1)
        previous, current = current, following
    return total


def _assembled(text: str, duration: float, done: list[tuple[Floats, Floats]]) -> Curve:
    starts = np.concatenate([each for each, _ in done])
    order = np.argsort(starts, kind="stable")
    starts, coefficients = starts[order], np.concatenate([each for _, each in done])[order]
    edges = np.append(starts, duration)
    masses = coefficients[:, 0] * np.diff(edges)  # the mean of the rate times the length
    return Curve(text, edges, np.concatenate(([0.0], np.cumsum(np.maximum(masses, 0.0)))), coefficients)


# --- what a profile can do (profile.py) ------------------------------------------------------------------------------


def rate(curve: Curve, t: float) -> float:
    """The rate at `t` seconds, within the stage."""
    at = min(max(t, 0.0), float(curve.starts[-1]))
    return float(evaluate(rate_expression.parse(curve.text), np.array([at]))[0])


def requests(curve: Curve, t: float) -> float:
    """The number of requests that are due by `t` seconds, within the stage."""
    if t >= curve.starts[-1]:
        return float(curve.before[-1])
    panel = int(np.searchsorted(curve.starts, t, side="right")) - 1
    half = (curve.starts[panel + 1] - curve.starts[panel]) / 2
    x = (t - curve.starts[panel]) / half - 1
    return float(curve.before[panel] + half * _integral(curve.coefficients[panel : panel + 1], x)[0])


def instants(curve: Curve, points: Floats) -> Floats:
    """The time in seconds at which each number of requests is reached; infinite if the stage does not reach it."""
    blocks = [_instants(curve, points[start : start + _BLOCK]) for start in range(0, len(points), _BLOCK)]
    return np.concatenate(blocks) if blocks else points


def _instants(curve: Curve, points: Floats) -> Floats:
    panel = np.clip(np.searchsorted(curve.before, points, side="right") - 1, 0, len(curve.starts) - 2)
    half = (curve.starts[panel + 1] - curve.starts[panel]) / 2
    x = _inverted(curve.coefficients[panel], (points - curve.before[panel]) / half, _PRECISION / half)
    return np.where(points > curve.before[-1], np.inf, curve.starts[panel] + half * (x + 1))


def _inverted(coefficients: Floats, target: Floats, precision: Floats) -> Floats:
    """Where in its panel, from -1 to 1, each integral reaches its target: Newton's method, by bisection when that leaves the bounds."""
    whole = np.maximum(2 * coefficients[:, 0], np.finfo(np.float64).tiny)
    x = np.clip(2 * target / whole - 1, -1.0, 1.0)
    low, high = np.full(len(x), -1.0), np.ones(len(x))
    left = np.arange(len(x))  # those that are not precise enough yet
    for _ in range(_STEPS):
        own, at = coefficients[left], x[left]
        excess = _integral(own, at) - target[left]
        low[left], high[left] = np.where(excess <= 0, at, low[left]), np.where(excess > 0, at, high[left])
        with np.errstate(all="ignore"):
            newton = at - excess / _sum(own, at)
        inside = (newton >= low[left]) & (newton <= high[left])  # not if it is not a number
        x[left] = np.where(inside, newton, (low[left] + high[left]) / 2)
        left = left[np.abs(x[left] - at) > precision[left]]
        if not len(left):
            break
    return x
