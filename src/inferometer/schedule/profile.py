"""Rates over time, and the change of time scale that gives a point process such a rate.

Let u be the points of a process of rate 1 and L(t) the integral of a rate: the number of requests that are due by t. Then
the points t = L^-1(u) have that rate. Every profile here is a list of segments over which the rate is linear, so that one
integral and one inverse serve them all; except for a rate that a formula gives, which curve.py integrates.
"""

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.config.loads import Bursts, Constant, Gamma, Poisson, Ramp, StageSpec, Steps
from inferometer.schedule import curve
from inferometer.schedule.curve import Curve

Floats = NDArray[np.float64]
FOREVER = 1e12
"""Seconds: longer than any run can last."""


class Segments(msgspec.Struct, frozen=True):
    """Segments of `length` seconds over which the rate changes linearly from `first` to `last` (requests per second).

    After the last segment the profile starts again (`repeats`) or keeps its last rate.
    """

    length: Floats
    first: Floats
    last: Floats
    repeats: bool = False


Profile = Segments | Curve


def of(spec: StageSpec) -> Profile:
    """The rate over time of an open-loop stage."""
    return PROFILES[type(spec)](spec)


def _flat(spec: Constant | Poisson | Gamma) -> Profile:
    if isinstance(spec.rate, str):
        return curve.curve(spec.rate, float(spec.duration))
    return _segments([(FOREVER, spec.rate, spec.rate)])


def _ramp(spec: Ramp) -> Profile:
    return _segments([(spec.duration, spec.start, spec.end)])


def _steps(spec: Steps) -> Profile:
    return _segments([(spec.duration / len(spec.rates), rate, rate) for rate in spec.rates])


def _bursts(spec: Bursts) -> Profile:
    return _segments([(spec.on, spec.rate, spec.rate), (spec.off, spec.idle_rate, spec.idle_rate)], repeats=True)


PROFILES: dict[type, Callable[..., Profile]] = {
    Constant: _flat,
    Poisson: _flat,
    Gamma: _flat,
    Ramp: _ramp,
    Steps: _steps,
    Bursts: _bursts,
}


def _segments(rows: list[tuple[float, float, float]], repeats: bool = False) -> Segments:
    length, first, last = np.array([row for row in rows if row[0] > 0], dtype=np.float64).T
    return Segments(length, first, last, repeats)


def rate(profile: Profile, t: float) -> float:
    """The rate at `t` seconds, in requests per second."""
    if isinstance(profile, Curve):
        return curve.rate(profile, t)
    ends = np.cumsum(profile.length)
    if profile.repeats:
        t %= ends[-1]
    at = int(np.searchsorted(ends, t, side="right"))
    if at == len(ends):
        return float(profile.last[-1])
    into = (t - (ends[at] - profile.length[at])) / profile.length[at]
    return float(profile.first[at] + into * (profile.last[at] - profile.first[at]))


def requests(profile: Profile, t: float) -> float:
    """The number of requests that are due by `t` seconds: the integral of the rate."""
    if isinstance(profile, Curve):
        return curve.requests(profile, t)
    starts, total_length = _sums(profile.length)
    masses, total_mass = _sums(_masses(profile))
    whole, t = divmod(t, total_length) if profile.repeats else (0.0, t)
    if t >= total_length:
        return float(total_mass + (t - total_length) * profile.last[-1])
    at = int(np.searchsorted(starts, t, side="right")) - 1
    first, s = profile.first[at], t - starts[at]
    slope = (profile.last[at] - first) / profile.length[at]
    return float(whole * total_mass + masses[at] + s * (first + slope * s / 2))


def instants(profile: Profile, points: Floats) -> Floats:
    """The time in seconds of each point of a process of rate 1: the inverse of `requests`.

    Within a segment, s seconds after its start, the number of requests since its start is

        m = first s + (last - first) / length s^2 / 2

    which is solved by s = 2m / (first + sqrt(first^2 + 2m (last - first) / length)). Written this way there is no
    cancellation, and for a constant rate the result is exactly m / first.
    """
    if isinstance(profile, Curve):
        return curve.instants(profile, points)
    starts, total_length = _sums(profile.length)
    masses, total_mass = _sums(_masses(profile))
    whole, m = np.divmod(points, total_mass) if profile.repeats else (np.zeros(len(points)), points.copy())
    at = np.searchsorted(masses, m, side="right") - 1
    m -= masses[at]
    first, length = profile.first[at], profile.length[at]
    slope = (profile.last[at] - first) / length
    root = first + np.sqrt(np.maximum(first * first + 2 * m * slope, 0))
    s = np.divide(2 * m, root, out=np.zeros(len(points)), where=root > 0)
    if not profile.repeats:  # after the last segment the rate stays where it ended
        beyond = points > total_mass
        s[beyond] = profile.length[-1] + (points[beyond] - total_mass) / profile.last[-1]
    return whole * total_length + starts[at] + s


def _masses(profile: Segments) -> Floats:
    return profile.length * (profile.first + profile.last) / 2


def _sums(values: Floats) -> tuple[Floats, float]:
    """For each value the sum of those before it; and the sum of all."""
    ends = np.cumsum(values)
    return np.concatenate(([0.0], ends[:-1])), float(ends[-1])
