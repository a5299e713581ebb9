"""Which level of load an adaptive sweep measures next: steps of a factor of two until the knee is passed, then closer around it."""

import math
from collections.abc import Sequence

from inferometer.analysis.knee import Level, best_level, is_less
from inferometer.config.ranges import Adaptive

MOST = 12
"""Levels of one sweep at most."""
_FACTOR = 2.0
_NARROW = 1.1
"""Two neighbours that differ by at most this factor need no level between them."""
_FLAT = 2.0
"""If both neighbours of the best level are within this factor of each other and not shown to be worse, more levels would not tell more."""


def choose_next(levels: Sequence[Level], bounds: Adaptive) -> float | None:
    """The next level, given those that were measured; None if the sweep is complete."""
    if not levels:
        return bounds.start
    levels = sorted(levels, key=lambda level: level.value)
    if len(levels) >= MOST:
        return None
    best, highest = best_level(levels), levels[-1]
    is_past = highest.is_saturated or (
        best is not None and any(is_less(level, best) for level in levels if level.value > best.value)
    )
    if not is_past and highest.value < bounds.end:
        return _rounded(min(_FACTOR * highest.value, bounds.end), bounds)
    return None if best is None else _closer(levels, best, bounds)


def _closer(levels: Sequence[Level], best: Level, bounds: Adaptive) -> float | None:
    """The middle, on a logarithmic scale, of the wider gap beside the best level."""
    index = next(number for number, level in enumerate(levels) if level.value == best.value)
    below, above = levels[max(index - 1, 0)], levels[min(index + 1, len(levels) - 1)]
    is_flat = not is_less(below, best) and not is_less(above, best)
    if above is best or (is_flat and above.value <= _FLAT * below.value):
        return None
    gaps = sorted(((below.value, best.value), (best.value, above.value)), key=lambda gap: gap[0] / gap[1])
    for low, high in gaps:
        middle = _rounded(math.sqrt(low * high), bounds)
        if high > _NARROW * low and low < middle < high:
            return middle
    return None


def _rounded(level: float, bounds: Adaptive) -> float:
    """A level that can be read: a whole number of requests in flight, or a rate with three digits."""
    return round(level) if bounds.by == "concurrency" else min(float(f"{level:.3g}"), bounds.end)
