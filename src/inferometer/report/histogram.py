"""Histograms of the time to first token and the end-to-end time, for the report in the terminal."""

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inferometer.analysis.metrics import METRICS
from inferometer.analysis.window import STEADY
from inferometer.records import Run
from inferometer.report import blocks, formatting

_METRICS = ("ttft", "e2e")
_BINS = 12
_BESIDE_BARS = 42
"""Columns of a line that are not its bar."""


def histograms(run: Run, width: int) -> list[RenderableType]:
    """Histograms of successful requests, for the latencies that there are."""
    rows = run.records.rows[(run.records.phase == STEADY) & (run.records.rows["failure"] == 0)]
    found = []
    for name in _METRICS:
        values_of = METRICS[name].values
        values = values_of(rows) if values_of is not None else np.zeros(0)
        if not np.isnan(values).all():
            found.append(_histogram(name, values, width))
    return found


def _histogram(name: str, values: NDArray[np.float64], width: int) -> RenderableType:
    bins = blocks.histogram(values, _BINS)
    largest = max((count for _, _, count in bins), default=0)
    grid = Table.grid(padding=(0, 1))
    for justify in ("right", "left", "right", "right", "left"):
        grid.add_column(justify=justify, no_wrap=True)
    for low, high, count in bins:
        bar = blocks.bar(count / largest, width - _BESIDE_BARS)
        ends = (formatting.milliseconds(end) for end in (low, high))
        grid.add_row(f"{next(ends):>12}", "..", next(ends), f"{count:,}" if count else "", Text(bar, style="cyan"))
    return Group(Text(f"{name}, ms: requests per bin (bins are equally wide on a log scale)", style="dim"), grid)
