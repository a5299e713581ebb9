"""Prometheus' text format, and histograms of durations.

Written by hand instead of with prometheus_client, which would append `_total` to the counters' names; Triton's have no
suffix.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Family = tuple[str, str, str, Iterable[tuple[dict[str, str], Any]]]
"""Name, kind, description and samples of a metric; a sample is its labels with a number or a histogram."""


class Histogram:
    """Counts durations given in nanoseconds; reports seconds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._bounds_ns = [round(bound * 1e9) for bound in bounds]
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0

    def observe(self, ns: int) -> None:
        self._sum += ns
        self._counts[bisect_left(self._bounds_ns, ns)] += 1

    def observe_all(self, ns: NDArray[Any]) -> None:
        counted = np.bincount(np.searchsorted(self._bounds_ns, ns), minlength=len(self._counts)).tolist()
        self._counts = [before + more for before, more in zip(self._counts, counted, strict=True)]
        self._sum += int(ns.sum())

    def lines(self, name: str, labels: dict[str, str]) -> Iterable[str]:
        bounds = [*map(float, self._bounds), "+Inf"]
        for bound, count in zip(bounds, accumulate(self._counts), strict=True):
            yield f"{name}_bucket{_written({**labels, 'le': str(bound)})} {count}\n"
        yield f"{name}_sum{_written(labels)} {self._sum / 1e9}\n{name}_count{_written(labels)} {sum(self._counts)}\n"


def page(families: Iterable[Family]) -> bytes:
    """Return the metrics in the text format."""
    lines: list[str] = []
    for name, kind, text, samples in families:
        lines.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")
        for labels, value in samples:
            is_histogram = isinstance(value, Histogram)
            lines += value.lines(name, labels) if is_histogram else [f"{name}{_written(labels)} {value}\n"]
    return "".join(lines).encode()


def _written(labels: dict[str, str]) -> str:
    escaped = {k: v.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') for k, v in labels.items()}
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}" if labels else ""
