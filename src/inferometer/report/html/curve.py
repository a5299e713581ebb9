"""The latency-throughput curve over the stages, the table of stages, and goodput."""

from collections.abc import Sequence
from typing import Any, Protocol

from inferometer.analysis.knee import level_of
from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.slo import Goodput
from inferometer.analysis.summary import Summary
from inferometer.analysis.sweep import describe_knee
from inferometer.analysis.throughput import Throughput
from inferometer.records import Run
from inferometer.report import formatting
from inferometer.report.document import Block as AnyBlock
from inferometer.report.document import Section
from inferometer.report.html import page
from inferometer.report.html.page import Block
from inferometer.report.html.parts import TITLES, Part, is_token_run, latencies, limits
from inferometer.report.latency import SERVER_PARTS, details
from inferometer.report.stages import stages as stage_table

_PERCENTILES = ("p50", "p90", "p99")


def load_curve(run: Run, summary: Summary, stages: list[Part]) -> Section:
    """How latencies grow with the load: a point per stage. Empty for a run of one stage."""
    if len(stages) < 2:
        return Section("curve", "Load curve", [])
    rates = {"requests": "completed requests/s"}
    if is_token_run(run, stages):
        rates["output_tokens"] = "output tokens/s"
    elif any(stage.throughput.inferences is not None for stage in stages):
        rates["inferences"] = "inferences/s"
    names = [name for name in latencies(stages) if name not in SERVER_PARTS]
    panes: dict[str, Sequence[Block]] = {
        f"{name}|{rate}": [_curve(summary, stages, name, rate, label)]
        for name in names
        for rate, label in rates.items()
    }
    switches = [[(name, TITLES[name]) for name in names], list(rates.items())]
    blocks: list[AnyBlock] = [page.tabs(switches, panes)] if panes else []
    return Section(
        "curve",
        "Load curve",
        [
            *blocks,
            *stage_table(run, summary).blocks,
            page.details("All percentiles of each stage", details(run, summary).blocks),
        ],
        f"One point per stage. {_bend(summary)}",
    )


def _bend(summary: Summary) -> str:
    """Where the curve bends, if its stages are levels of one load."""
    if found := summary.knee or summary.no_knee:
        sentence = describe_knee(found)
        return f"{sentence[0].upper()}{sentence[1:]}."
    return "Throughput grows to the right until the server is saturated; from there on only latency grows."


def _curve(summary: Summary, stages: list[Part], name: str, rate: str, label: str) -> Block:
    found = sorted(stages, key=lambda stage: (getattr(stage.throughput, rate) or 0.0, stage.number))
    series = [
        {"name": column, "colour": colour, **line(found, name, column, rate)}
        for colour, column in enumerate(_PERCENTILES)
    ]
    marks = [_mark(*point) for stage in stages if _is_knee(summary, stage) for point in _points(series, stage.name)]
    return curve_chart(name, label, series, limits(summary, name), marks)


def _points(series: Sequence[dict[str, Any]], stage: str) -> list[tuple[Any, Any]]:
    """Where the first line passes the stage."""
    first = series[0]
    return [(x, y) for x, y, label in zip(first["x"], first["y"], first["labels"], strict=True) if label == stage]


def _mark(x: float, y: float) -> dict[str, object]:
    return {"series": 0, "x": x, "y": y, "colour": 0, "label": "knee"}


class Measured(Protocol):
    """What becomes a point of a curve: a stage of a run, or a point of a sweep."""

    @property
    def name(self) -> str: ...
    @property
    def throughput(self) -> Throughput: ...
    @property
    def metrics(self) -> dict[str, Distribution]: ...
    @property
    def is_overloaded(self) -> bool: ...


def line(points: Sequence[Measured], name: str, column: str, rate: str) -> dict[str, Any]:
    """A percentile of a latency against a rate, with the intervals of both, as a series of a chart."""
    found = [
        (x, each, each.metrics[name])
        for each in points
        if (x := getattr(each.throughput, rate)) is not None and name in each.metrics and each.metrics[name].count
    ]
    none = (None, None)
    ends = [none if each.is_overloaded else metric.ci.get(column, none) for _, each, metric in found]
    return {
        "x": page.rounded(x for x, _, _ in found),
        "y": page.rounded(_milli(metric.value(column)) for _, _, metric in found),
        "lo": page.rounded(_milli(low) for low, _ in ends),
        "hi": page.rounded(_milli(high) for _, high in ends),
        "ex": [page.rounded(each.throughput.ci.get(rate, (None, None))) for _, each, _ in found],
        "hollow": [each.is_overloaded or column in metric.unsupported for _, each, metric in found],
        "labels": [f"{each.name}{' (overloaded)' if each.is_overloaded else ''}" for _, each, _ in found],
        "points": True,
    }


def curve_chart(
    name: str,
    label: str,
    series: Sequence[dict[str, Any]],
    hlines: Sequence[dict[str, object]],
    marks: Sequence[dict[str, object]] = (),
    column: str = "",
) -> Block:
    """The chart of such lines; `column` is the percentile if all of them show the same."""
    return page.chart(
        f"{TITLES[name]}{f' {column}' if column else ''} against {label}.",
        "Bars are 95 % confidence intervals. Hollow: too few values, or the stage is overloaded and has no steady latency.",
        {
            "kind": "xy",
            "height": 320,
            "x": {"label": label, "min": 0, "pad": True},
            "y": {"label": "ms (logarithmic)", "scale": "log"},
            "series": series,
            "hlines": hlines,
            **({"marks": marks} if marks else {}),
        },
    )


def _is_knee(summary: Summary, stage: Part) -> bool:
    return summary.knee is not None and level_of(stage.plan) == (summary.knee.by, summary.knee.level)


def _milli(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


# --- goodput ---------------------------------------------------------------------------------------------------------


def goodput(stages: list[Part]) -> Section:
    """How many requests met every limit for a single request. Empty if no objective has one."""
    known = [(stage, stage.goodput) for stage in stages if stage.goodput is not None]
    if not known:
        return Section("goodput", "Goodput", [])
    rows = [
        [
            stage.name,
            _percent(found.attainment),
            _ends(found, "attainment", 100, " %"),
            formatting.number(found.rate),
            _ends(found, "rate"),
            page.bar(found.attainment, "good"),
        ]
        for stage, found in known
    ]
    blocks = [page.table(["stage", "met the limits", "95 % CI", "goodput/s", "95 % CI", ""], rows, texts=(5,))]
    if len(known) > 1:
        blocks.insert(0, _goodput_chart(known))
    limits_ = " and ".join(known[0][1].slos)
    return Section(
        "goodput", "Goodput", blocks, f"Requests that succeeded and met {limits_}: only these are of use to users."
    )


def _percent(share: float) -> str:
    return f"{formatting.number(100 * share, 2)} %"


def _ends(found: Goodput, name: str, scale: float = 1.0, unit: str = "") -> str:
    low, high = (None if end is None else scale * end for end in found.ci[name])
    return f"{formatting.number(low, 2)} – {formatting.number(high, 2)}{unit}" if low is not None else ""


def _goodput_chart(known: list[tuple[Part, Goodput]]) -> Block:
    points = sorted(
        ((stage.throughput.offered or stage.throughput.requests or 0.0, stage, found) for stage, found in known),
        key=lambda each: (each[0], each[1].number),
    )
    x = page.rounded(offered for offered, _, _ in points)
    labels = [stage.name for _, stage, _ in points]
    ends = [found.ci["rate"] for _, _, found in points]
    series = [
        {"name": "offered", "colour": 7, "dash": True, "x": x, "y": x},
        {
            "name": "goodput",
            "colour": 2,
            "points": True,
            "labels": labels,
            "x": x,
            "y": page.rounded(found.rate for _, _, found in points),
            "lo": page.rounded(low for low, _ in ends),
            "hi": page.rounded(high for _, high in ends),
        },
    ]
    return page.chart(
        "Goodput against the offered load.",
        "It follows the diagonal as long as the server keeps its promises, and collapses beyond.",
        {
            "kind": "xy",
            "height": 280,
            "x": {"label": "offered requests/s", "min": 0, "pad": True},
            "y": {"label": "requests/s"},
            "series": series,
        },
    )
