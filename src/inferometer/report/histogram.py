"""Histograms of the time to first token and the end-to-end time, for the report in the terminal."""

import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.metrics import METRICS
from inferometer.analysis.window import STEADY
from inferometer.records import Run
from inferometer.report import blocks, formatting
from inferometer.report.document import Bars

_METRICS = ("ttft", "e2e")
_BINS = 12


def histograms(run: Run) -> list[Bars]:
    """Histograms of successful requests, for the latencies that there are."""
    rows = run.records.rows[(run.records.phase == STEADY) & (run.records.rows["failure"] == 0)]
    found = []
    for name in _METRICS:
        values_of = METRICS[name].values
        values = values_of(rows) if values_of is not None else np.zeros(0)
        if not np.isnan(values).all():
            found.append(_histogram(name, values))
    return found


def _histogram(name: str, values: NDArray[np.float64]) -> Bars:
    bins = blocks.histogram(values, _BINS)
    largest = max((count for _, _, count in bins), default=0)
    bars = []
    for *ends, count in bins:
        low, high = map(formatting.milliseconds, ends)
        bars.append(((f"{low:>12}", "..", high, f"{count:,}" if count else ""), count / largest))
    return Bars(f"{name}, ms: requests per bin (bins are equally wide on a log scale)", bars)
