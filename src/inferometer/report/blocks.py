"""Small charts of Unicode blocks: horizontal bars for histograms, and sparklines."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_LEVELS = "▁▂▃▄▅▆▇█"
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


def sparkline(values: Sequence[float | None]) -> str:
    """One block per value, scaled from 0 to the largest value; a space where there is no value."""
    top = max((value for value in values if value is not None), default=0.0)
    return "".join(" " if value is None else _level(value / top if top > 0 else 0.0) for value in values)


def _level(share: float) -> str:
    return _LEVELS[min(int(max(share, 0.0) * len(_LEVELS)), len(_LEVELS) - 1)]


def bar(share: float, width: int) -> str:
    """A bar of `share` of the width, to an eighth of a column; never empty unless the share is 0."""
    eighths = max(round(8 * width * share), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]


def histogram(values: NDArray[np.float64], bins: int) -> list[tuple[float, float, int]]:
    """Count positive values in `bins` bins of equal width on the log scale: (from, to, count) each, in ascending order."""
    values = values[np.isfinite(values) & (values > 0)]
    if not len(values):
        return []
    low, high = float(values.min()), float(values.max())
    if low == high:
        return [(low, high, len(values))]
    edges = np.geomspace(low, high, bins + 1)
    edges[0], edges[-1] = low, high  # geomspace may round them inwards
    counts, _ = np.histogram(values, edges)
    return [(float(edges[index]), float(edges[index + 1]), int(count)) for index, count in enumerate(counts)]
