"""The gaps between chunks over time, as a heatmap."""

import numpy as np

from inferometer.analysis.summary import Summary
from inferometer.records import Run
from inferometer.report.document import Section
from inferometer.report.html import page
from inferometer.report.html.gap_histogram import Counts, GapHistogram, TimeBins, edge
from inferometer.report.html.parts import Part, limits
from inferometer.report.html.timeline import stage_bands
from inferometer.units import NS

_COLUMNS, _ROWS = 120, 40


def heatmap(run: Run, summary: Summary, stages: list[Part], end: TimeBins, gaps: GapHistogram) -> Section:
    """The gaps between chunks over time, in at most 120 columns and 40 rows; `end` has the end of the time axis."""
    times, totals = gaps.times, gaps.by_time.sum(axis=0)
    if not totals[1:].any():
        return Section("heatmap", "ITL heatmap", [])
    step = -(-times.count // _COLUMNS)
    columns = -(-times.count // step)
    first, last = _shortest(totals), int(np.flatnonzero(totals)[-1]) + 1
    pitch = -(-(last - first) // _ROWS)
    rows = -(-(last - first) // pitch)
    padded = np.zeros((columns * step, rows * pitch), np.int64)
    own = gaps.by_time[:, first : first + rows * pitch]
    padded[: len(own), : own.shape[1]] = own
    padded[: len(own), 0] += gaps.by_time[:, :first].sum(axis=1)
    counts = padded.reshape(columns, step, rows, pitch).sum(axis=(1, 3))
    data = {
        "kind": "heat",
        "group": "time",
        "height": 280,
        "x": {"label": "seconds since the start", "format": "time", "min": 0, "max": end.count * end.seconds},
        "y": {"label": "gap in ms (logarithmic)"},
        "columns": columns,
        "rows": rows,
        "from": times.start / NS,
        "step": step * times.seconds,
        "edges": page.rounded(1e3 * edge(first + pitch * index) for index in range(rows + 1)),
        "counts": counts.reshape(-1).tolist(),
        "hlines": limits(summary, "itl"),
        "bands": stage_bands(run, stages),
        "bandLabels": len(stages) > 1,
    }
    title = "Gaps between the chunks of a response."
    reading = "The stronger the colour, the more gaps. A second band above the first is a stall that repeats, such as prefills of other requests. The lowest row has all shorter gaps."
    return Section("heatmap", "ITL heatmap", [page.chart(title, reading, data)])


def _shortest(totals: Counts) -> int:
    """The bin below which there are five gaps in a thousand, so that a few very short ones do not take up most of the chart."""
    cumulative = np.cumsum(totals)
    at = int(np.searchsorted(cumulative, 5 * cumulative[-1] // 1000, "right"))
    return max(at, int(np.flatnonzero(totals[1:])[0]) + 1)
