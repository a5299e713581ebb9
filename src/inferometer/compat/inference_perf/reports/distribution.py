"""Their distributions: mean, minimum, maximum and the configured percentiles of a list of values."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.tool_definitions import interpolated

Distribution = dict[str, float]


def distribution(values: NDArray[Any], percentiles: Sequence[float], scale: float = 1.0) -> Distribution | None:
    """Summarise the values that are not NaN, times `scale`; None if there are none."""
    if values.dtype.kind == "f":
        values = values[~np.isnan(values)]
    if not len(values):
        return None
    mean = float(values.mean(dtype=np.float64))
    found = {"mean": mean, "min": float(values.min()), "max": float(values.max())}
    for percentile, value in zip(percentiles, interpolated(values, [each / 100 for each in percentiles]), strict=True):
        found["median" if percentile == 50 else f"p{percentile:g}"] = value
    return {name: value * scale for name, value in found.items()}


def known_sum(values: NDArray[np.float64]) -> float:
    """The sum of the values that are not NaN."""
    return float(np.nansum(values))


def per(amount: float, seconds: float) -> float:
    """A rate; 0.0 if no time passed."""
    return amount / seconds if seconds > 0 else 0.0
