"""What happened when: charts below each other that share one time axis, from the requests and from what observers recorded."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.metrics import METRICS, lag, start
from inferometer.analysis.summary import Summary
from inferometer.records import MISSING, Run
from inferometer.report.document import Section
from inferometer.report.html import page
from inferometer.report.html.gap_histogram import GapHistogram, TimeBins, value_at
from inferometer.report.html.page import Block
from inferometer.report.html.parts import TITLES, Part, is_token_run, limits
from inferometer.report.html.server_series import Curve, gauge_curves, machine_curves
from inferometer.report.latency import SERVER_PARTS
from inferometer.units import NS

_MOST = 300
"""Intervals at most."""
_FEWEST = 60
REQUESTS_PER_BIN, CHUNKS_PER_BIN = 8, 200
"""As long as there are more than _FEWEST intervals, each should have that many requests or chunks, on average."""
_WIDTHS = [width * scale for scale in (10**6, 10**7, 10**8, 10**9, 10**10, 10**11, 10**12) for width in (1, 2, 5)]
_HEIGHT = 118
_KINDS = 6
"""Kinds of failures with a line of their own."""

Floats = NDArray[np.float64]


def time_bins(run: Run, events: int, per_bin: int) -> TimeBins:
    """Intervals from t=0 to the last response, of a round length and with at least `per_bin` of the events if that leaves enough."""
    rows = run.records.rows
    done = rows["done"][rows["done"] != MISSING]
    length = max(int(done.max(initial=1)), int(rows["intended"].max(initial=0)), 1)
    for width in _WIDTHS:
        count = -(-length // width)
        if count <= _MOST and (count <= _FEWEST or events >= per_bin * count):
            return TimeBins(0, width, count)
    return TimeBins(0, -(-length // _MOST), _MOST)


class _Axis(NamedTuple):
    """What all charts have in common."""

    end: float
    bands: list[dict[str, object]]
    x: dict[str, float]
    """The middles of the intervals."""


def timeline(run: Run, summary: Summary, stages: list[Part], times: TimeBins, gaps: GapHistogram) -> Section:
    """The section, without charts that would have nothing to show."""
    if not len(run.records.rows):
        return Section("time", "Over time", [])
    axis = _Axis(times.count * times.seconds, stage_bands(run, stages), times.middles)
    series = run.series()
    gauges = gauge_curves(run, series, ("running", "waiting", "kv_cache_use"))
    charts = [
        _rates(run, axis, times),
        *(_token_rate(axis, gaps) if is_token_run(run, stages) else []),
        _in_flight(run, axis, times, gauges),
        *_latencies(run, summary, axis, times, gaps),
        *_figures(axis, gauges, machine_curves(run, series)),
        *_failures(run, axis, times),
        *_lags(run, axis, times),
    ]
    if charts:
        charts[0]["data"]["bandLabels"] = len(axis.bands) > 1
        charts[-1]["data"]["x"]["hide"] = False
        charts[-1]["data"]["height"] = _HEIGHT + 30
    finer = f" ({gaps.times.seconds:g} s for chunks)" if gaps.times != times and gaps.by_time.any() else ""
    lead = f"All charts share one time axis, in intervals of {times.seconds:g} s{finer}. Drag in one to zoom into all of them; double-click to return."
    return Section("time", "Over time", charts, lead)


def stage_bands(run: Run, stages: list[Part]) -> list[dict[str, object]]:
    """Each stage, from its first to its last intended instant."""
    rows, found = run.records.rows, []
    for stage in stages:
        intended = rows["intended"][rows["stage"] == stage.number]
        if len(stages) > 1 and len(intended):
            found.append(
                {
                    "from": round(int(intended.min()) / NS, 3),
                    "to": round(int(intended.max()) / NS, 3),
                    "label": stage.name,
                }
            )
    return found


def _chart(
    axis: _Axis,
    title: str,
    reading: str,
    series: Sequence[dict[str, Any]],
    unit: str,
    y: dict[str, object] | None = None,
    lines: Sequence[dict[str, object]] = (),
) -> Block:
    return page.chart(
        title,
        reading,
        {
            "kind": "xy",
            "group": "time",
            "height": _HEIGHT,
            "x": {
                "label": "seconds since the start" if axis.end < 180 else "time since the start",
                "format": "time",
                "unit": "s" if axis.end < 180 else "",
                "short": "at",
                "min": 0,
                "max": axis.end,
                "values": axis.x,
                "hide": True,
            },
            "y": {"label": unit, **(y or {})},
            "series": series,
            "bands": axis.bands,
            "hlines": list(lines),
        },
        tight=True,
    )


def _series(name: str, values: Iterable[float | None], **more: object) -> dict[str, Any]:
    return {"name": name, "y": page.rounded(values), **more}


# --- from the requests -----------------------------------------------------------------------------------------------


def _rates(run: Run, axis: _Axis, times: TimeBins) -> Block:
    rows = run.records.rows
    good = (rows["failure"] == 0) & (rows["done"] != MISSING)
    series = [
        _series("offered", _per_second(rows["intended"], times), colour=7),
        _series("completed", _per_second(rows["done"][good], times), colour=0),
    ]
    return _chart(axis, "Requests per second.", "Where the two part, the server falls behind.", series, "requests/s")


def _per_second(at: NDArray[np.int64], times: TimeBins) -> Floats:
    rate: Floats = np.bincount(times.index(at), minlength=times.count) / times.seconds
    return rate


def _token_rate(axis: _Axis, gaps: GapHistogram) -> list[Block]:
    if not gaps.tokens.any():
        return []
    series = [_series("output tokens/s", gaps.tokens / gaps.times.seconds, colour=2, x=gaps.times.middles)]
    return [
        _chart(
            axis,
            "Output tokens per second.",
            "A plateau while requests pile up is the server's limit.",
            series,
            "tokens/s",
        )
    ]


def _in_flight(run: Run, axis: _Axis, times: TimeBins, gauges: Mapping[str, Curve]) -> Block:
    mean, least, most = in_flight(run, times)
    series = [{**_series("in flight", mean, colour=0), "lo": page.rounded(least), "hi": page.rounded(most)}]
    for name, colour in (("running", 2), ("waiting", 1)):
        if name in gauges:
            series.append(_curve(gauges[name], f"{name} (server)", colour))
    reading = "Steady growth means overload." + (" Waiting is the server's own queue." if len(series) > 1 else "")
    return _chart(axis, "Requests in flight.", reading, series, "requests")


def in_flight(run: Run, times: TimeBins) -> tuple[Floats, Floats, Floats]:
    """The number of requests in flight in each interval: its mean, minimum and maximum."""
    rows = run.records.rows
    sent = rows["sent"][(rows["sent"] != MISSING) & (rows["done"] != MISSING)]
    done = rows["done"][(rows["sent"] != MISSING) & (rows["done"] != MISSING)]
    at = np.concatenate([sent, done])
    change = np.concatenate([np.ones(len(sent), np.int64), -np.ones(len(done), np.int64)])
    order = np.lexsort((change, at))
    at, level = at[order], np.cumsum(change[order])
    edges = times.start + times.width * np.arange(times.count + 1)
    before = np.concatenate([[0], level])[np.searchsorted(at, edges, "left")]
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(at))]) if len(at) else np.zeros(1)
    total = np.interp(edges, at, area) if len(at) else np.zeros(len(edges))
    least, most = before[:-1].astype(np.float64), before[:-1].astype(np.float64)
    index = times.index(at)
    np.minimum.at(least, index, level)
    np.maximum.at(most, index, level)
    return np.diff(total) / times.width, least, most


def _latencies(run: Run, summary: Summary, axis: _Axis, times: TimeBins, gaps: GapHistogram) -> list[Block]:
    """TTFT and ITL of streamed responses; E2E and its parts of others. Requests are placed at their start."""
    rows = run.records.rows
    good = (rows["failure"] == 0) & (rows["sent"] != MISSING)
    own = rows[good]
    at = times.index(start(own))
    known = {name: compute(own) for name in ("ttft", "e2e", *SERVER_PARTS) if (compute := METRICS[name].values)}
    charts = []
    is_streamed = bool(np.isfinite(known["ttft"]).any())
    for name in ("ttft",) if is_streamed else ("e2e",):
        if np.isfinite(known[name]).any():
            charts.append(_percentiles(summary, axis, name, _by_bin(at, known[name], times.count)))
    if is_streamed and gaps.by_time.any():
        values = [[value_at(row, level) for row in gaps.by_time] for level in (500, 990, 1000)]
        charts.append(_percentiles(summary, axis, "itl", values, ("p50", "p99", "max"), gaps.times))
    parts = [(name, known[name]) for name in SERVER_PARTS if np.isfinite(known[name]).any()]
    if parts:
        series = [
            _series(f"{name}, mean", _means(at, values, times.count), colour=colour)
            for (name, values), colour in zip(parts, (1, 2, 3, 0), strict=False)
        ]
        charts.append(
            _chart(
                axis,
                "Queue, compute and the rest." if len(parts) > 2 else "Queue and compute.",
                "As the server reports them: a growing queue means saturation.",
                series,
                "ms",
            )
        )
    return charts


def _percentiles(
    summary: Summary,
    axis: _Axis,
    name: str,
    values: Sequence[Sequence[float | None]],
    labels: tuple[str, str, str] = ("p50", "p90", "max"),
    times: TimeBins | None = None,
) -> Block:
    x = {} if times is None else {"x": times.middles}
    looks: list[dict[str, Any]] = [{"colour": 0, **x}, {"colour": 1, **x}, {"colour": 7, "faint": True, **x}]
    series = [
        _series(label, (None if each is None else 1e3 * each for each in own), **look)
        for label, own, look in zip(labels, values, looks, strict=True)
    ]
    readings = {
        "ttft": "By the time of the request. A rising median is a queue.",
        "itl": "By the time of the chunk. Spikes of p99 are stalls that many streams share.",
        "e2e": "By the time of the request. A rising median is a queue.",
    }
    return _chart(axis, f"{TITLES[name]}, ms.", readings[name], series, "ms", {"scale": "log"}, limits(summary, name))


def _by_bin(at: NDArray[np.int64], values: Floats, count: int) -> list[list[float | None]]:
    """The median, p90 and maximum of the values in each interval, by nearest rank."""
    order = np.lexsort((values, at))
    order = order[~np.isnan(values[order])]
    placed, ordered = at[order], values[order]
    bounds = np.searchsorted(placed, np.arange(count + 1)).tolist()
    result: list[list[float | None]] = [[], [], []]
    for begin, end in itertools.pairwise(bounds):
        for into, percent in zip(result, (50, 90, 100), strict=True):
            size = end - begin
            into.append(float(ordered[begin + max(-(-percent * size // 100), 1) - 1]) if size else None)
    return result


def _means(at: NDArray[np.int64], values: Floats, count: int) -> list[float | None]:
    known = ~np.isnan(values)
    number = np.bincount(at[known], minlength=count)
    total = np.bincount(at[known], values[known], minlength=count)
    return [1e3 * float(sum_) / int(n) if n else None for sum_, n in zip(total, number, strict=True)]


def _failures(run: Run, axis: _Axis, times: TimeBins) -> list[Block]:
    rows, kinds = run.records.rows, [failure.code for failure in run.records.failures]
    codes = list(dict.fromkeys(kinds))
    of_row = np.array([-1, *(codes.index(code) for code in kinds)])[rows["failure"]]
    counts = {code: int(np.count_nonzero(of_row == index)) for index, code in enumerate(codes)}
    shown = sorted((code for code in codes if counts[code]), key=lambda code: (-counts[code], code))[:_KINDS]
    if not shown:
        return []
    at = np.where(rows["done"] == MISSING, rows["intended"], rows["done"])
    series = [
        _series(
            code,
            np.bincount(times.index(at[of_row == codes.index(code)]), minlength=times.count),
            step=True,
            colour=colour,
        )
        for colour, code in enumerate(shown, 1)
    ]
    return [_chart(axis, "Failures", f"per interval of {times.seconds:g} s, by kind.", series, "requests")]


def _lags(run: Run, axis: _Axis, times: TimeBins) -> list[Block]:
    rows = run.records.rows
    own = rows[rows["sent"] != MISSING]
    values = lag(own)
    if not np.isfinite(values).any():
        return []
    median, _, highest = _by_bin(times.index(own["intended"]), values, times.count)
    series = [
        _series("p50", (None if each is None else 1e3 * each for each in median), colour=0),
        _series("max", (None if each is None else 1e3 * each for each in highest), colour=7, faint=True),
    ]
    return [
        _chart(
            axis,
            "Lag, ms.",
            "How late requests were sent: the client's own error, or its concurrency cap.",
            series,
            "ms",
        )
    ]


# --- from observers --------------------------------------------------------------------------------------------------


def _curve(curve: Curve, name: str, colour: int) -> dict[str, Any]:
    return {
        "name": name,
        "x": page.rounded(curve.seconds),
        "y": page.rounded(curve.values),
        "step": curve.is_step,
        "colour": colour,
    }


def _figures(axis: _Axis, gauges: Mapping[str, Curve], machine: Mapping[str, list[Curve]]) -> list[Block]:
    charts = []
    if "kv_cache_use" in gauges and any(gauges["kv_cache_use"].values):
        series = [_curve(gauges["kv_cache_use"], "KV cache in use", 3)]
        charts.append(
            _chart(
                axis,
                "KV cache of the server.",
                "Near 100 %, requests wait or are preempted.",
                series,
                "share",
                {"format": "share", "min": 0, "max": 1},
            )
        )
    if cpu := machine.get("cpu"):
        series = [_curve(curve, curve.name, colour) for curve, colour in zip(cpu, (7, 0), strict=False)]
        charts.append(
            _chart(
                axis,
                "CPU.",
                "A client process near one full core would measure itself.",
                series,
                "share",
                {"format": "share", "min": 0, "max": 1},
            )
        )
    if power := machine.get("power"):
        series = [_curve(curve, curve.name, colour % 8) for colour, curve in enumerate(power)]
        charts.append(
            _chart(axis, "GPU power.", "Idle power under load means that the GPU waits.", series, "W", {"min": 0})
        )
    return charts
