"""Energy from samples of power, and the growth of counters, over an exact window.

Values between two samples are interpolated, also at both edges of the window. If samples are missing there is no result but a
reason: it would be a guess.
"""

import math

import numpy as np
from numpy.typing import NDArray

from inferometer.units import NS, format_seconds

Instants = NDArray[np.int64]
Values = NDArray[np.float64]

_POWER_EVERY_S = 0.1
"""GPUs measure their power about ten times per second."""


def power_interval(interval: float) -> float:
    """Seconds between two samples of power if other values are sampled every `interval` seconds: power changes quickly."""
    return min(interval, max(interval / 10, _POWER_EVERY_S))


def longest_power_gap(interval: float) -> float:
    """The longest time without a sample of power, in seconds, over which to interpolate."""
    return max(interval, 3 * power_interval(interval))


def trapezoid(at: Instants, watts: Values, start: int, end: int, longest_gap: float) -> float | str:
    """The energy in J from `start` to `end` (ns), or why it is not known."""
    found = _around(at, start, end, longest_gap)
    if isinstance(found, str):
        return found
    at, watts = at[found], watts[found]
    inner = slice(1, -1)
    times = np.concatenate(([start], at[inner], [end]))
    power = np.concatenate(([_value_at(at[:2], watts[:2], start)], watts[inner], [_value_at(at[-2:], watts[-2:], end)]))
    return math.fsum((np.diff(times) * (power[:-1] + power[1:]) / (2 * NS)).tolist())


def growth(at: Instants, counter: Values, start: int, end: int, longest_gap: float) -> float | str:
    """By how much a counter grew from `start` to `end` (ns), or why it is not known. Samples may be missing in between."""
    found = _around(at, start, end, math.inf)
    if isinstance(found, str):
        return found
    at, counter = at[found], counter[found]
    if (np.diff(counter) < 0).any():
        return "the counter was reset"
    if (gap := max(int(at[1] - at[0]), int(at[-1] - at[-2])) / NS) > longest_gap:
        return f"no sample was taken for {format_seconds(gap)}"
    return max(_value_at(at[-2:], counter[-2:], end) - _value_at(at[:2], counter[:2], start), 0.0)


def _around(at: Instants, start: int, end: int, longest_gap: float) -> slice | str:
    """The samples of the window, with the last one before it and the first one after it: at least two."""
    if end <= start:
        return "nothing was measured"
    if not len(at):
        return "no sample was taken"
    first = int(np.searchsorted(at, start, "right")) - 1
    last = int(np.searchsorted(at, end, "left"))
    if first < 0:
        return f"the first sample was taken {format_seconds(int(at[0] - start) / NS)} after the start"
    if last == len(at):
        return f"the last sample was taken {format_seconds(int(end - at[-1]) / NS)} before the end"
    if (gap := int(np.diff(at[first : last + 1]).max()) / NS) > longest_gap:
        return f"no sample was taken for {format_seconds(gap)}"
    return slice(first, last + 1)


def _value_at(at: Instants, value: Values, instant: int) -> float:
    """The value between two samples."""
    length = int(at[1] - at[0])
    share = (instant - int(at[0])) / length if length else 1.0
    return float(value[0]) + share * (float(value[1]) - float(value[0]))
