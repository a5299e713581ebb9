"""Histograms of durations in Prometheus buckets."""

from array import array
from bisect import bisect_left
from itertools import accumulate

import numpy as np


class Histogram:
    """Counts durations given in nanoseconds; reports seconds."""

    __slots__ = ("_bounds", "_bounds_ns", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._bounds_ns = [round(bound * 1e9) for bound in bounds]
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0

    def observe(self, ns: int) -> None:
        self._sum += ns
        self._counts[bisect_left(self._bounds_ns, ns)] += 1

    def observe_gaps(self, stamps: "array[int]") -> None:
        gaps = np.diff(np.frombuffer(stamps, np.int64))
        counted = np.bincount(np.searchsorted(self._bounds_ns, gaps), minlength=len(self._counts)).tolist()
        self._counts = [before + more for before, more in zip(self._counts, counted, strict=True)]
        self._sum += stamps[-1] - stamps[0]

    def buckets(self) -> list[tuple[str, int]]:
        """Return each upper bound with the cumulative count."""
        totals = accumulate(self._counts)
        return list(zip([*(str(float(bound)) for bound in self._bounds), "+Inf"], totals, strict=True))

    @property
    def sum(self) -> float:
        return self._sum / 1e9
