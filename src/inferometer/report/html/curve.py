"""The latency-throughput curve over the stages, the table of stages, and goodput."""

from collections.abc import Sequence

from inferometer.analysis.knee import level_of
from inferometer.analysis.slo import Goodput
from inferometer.analysis.summary import Summary
from inferometer.analysis.sweep import describe_knee
from inferometer.records import Run
from inferometer.report import formatting, tables
from inferometer.report.html import page
from inferometer.report.html.page import Block, Section
from inferometer.report.html.parts import TITLES, Part, is_token_run, latencies, limits

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
    names = [name for name in latencies(stages) if name not in ("queue", "compute", "network")]
    panes: dict[str, Sequence[Block]] = {
        f"{name}|{rate}": [_curve(summary, stages, name, rate, label)]
        for name in names
        for rate, label in rates.items()
    }
    switches = [[(name, TITLES[name]) for name in names], list(rates.items())]
    blocks: list[Block] = [page.tabs(switches, panes)] if panes else []
    return Section(
        "curve",
        "Load curve",
        [*blocks, _stages(run, stages, names)],
        f"One point per stage. {_bend(summary)}",
    )


def _bend(summary: Summary) -> str:
    """Where the curve bends, if its stages are levels of one load."""
    if found := summary.knee or summary.no_knee:
        sentence = describe_knee(found)
        return f"{sentence[0].upper()}{sentence[1:]}."
    return "Throughput grows to the right until the server is saturated; from there on only latency grows."


def _curve(summary: Summary, stages: list[Part], name: str, rate: str, label: str) -> Block:
    points = [
        (x, stage)
        for stage in stages
        if (x := getattr(stage.throughput, rate)) is not None and stage.metrics and stage.metrics[name].count
    ]
    points.sort(key=lambda pair: (pair[0], pair[1].number))
    series = []
    for colour, column in enumerate(_PERCENTILES):
        found = [(stage.metrics[name], x, stage) for x, stage in points]
        ends = [each.ci.get(column, (None, None)) for each, _, _ in found]
        series.append(
            {
                "name": column,
                "colour": colour,
                "x": page.rounded(x for _, x, _ in found),
                "y": page.rounded(_milli(each.value(column)) for each, _, _ in found),
                "lo": page.rounded(_milli(low) for low, _ in ends),
                "hi": page.rounded(_milli(high) for _, high in ends),
                "ex": [page.rounded(stage.throughput.ci.get(rate, (None, None))) for _, _, stage in found],
                "hollow": [stage.is_overloaded or column in each.unsupported for each, _, stage in found],
                "labels": [f"{stage.name}{' (overloaded)' if stage.is_overloaded else ''}" for _, _, stage in found],
                "points": True,
            }
        )
    return page.chart(
        f"{TITLES[name]} against {label}.",
        "Bars are 95 % confidence intervals. Hollow: too few values, or the stage is overloaded and has no steady latency.",
        {
            "kind": "xy",
            "height": 320,
            "x": {"label": label, "min": 0, "pad": True},
            "y": {"label": "ms (logarithmic)", "scale": "log"},
            "series": series,
            "hlines": limits(summary, name),
            "vlines": [{"at": x, "label": "knee"} for x, stage in points if _is_knee(summary, stage)],
        },
    )


def _is_knee(summary: Summary, stage: Part) -> bool:
    return summary.knee is not None and level_of(stage.plan) == (summary.knee.by, summary.knee.level)


def _milli(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _stages(run: Run, stages: list[Part], names: list[str]) -> Block:
    columns = [(name, column) for name in names if name != "tpot" for column in ("p50", "p99")]
    has_tokens = is_token_run(run, stages)
    rows = []
    for stage in stages:
        rate = stage.throughput
        cells = [
            "–"
            if stage.is_overloaded or not stage.metrics or not stage.metrics[name].count
            else _cell(stage, name, column)
            for name, column in columns
        ]
        tokens = [formatting.number(rate.output_tokens)] if has_tokens else []
        failed: object = page.tinted(f"{stage.failed:,}", "bad") if stage.failed else "0"
        rows.append(
            [
                f"{stage.name}{' (overloaded)' if stage.is_overloaded else ''}",
                f"{stage.ok:,}",
                failed,
                formatting.number(rate.offered),
                formatting.number(rate.requests),
                *tokens,
                formatting.number(rate.in_flight),
                *cells,
            ]
        )
    titles = ["offered/s", "completed/s", *(["tokens/s"] if has_tokens else []), "in flight"]
    return page.table(
        ["latencies in ms", "ok", "failed", *titles, *(f"{TITLES[name]} {column}" for name, column in columns)], rows
    )


def _cell(stage: Part, name: str, column: str) -> str:
    found = stage.metrics[name]
    return formatting.milliseconds(found.value(column)) + (tables.MARK if column in found.unsupported else "")


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
            page.bar(found.attainment),
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
