"""The charts of a comparison of engines: one line per engine over its levels."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inferometer.analysis.efficiency import Estimate
from inferometer.analysis.engine_figures import EngineLevel, Latency
from inferometer.analysis.engine_results import EngineResult, EngineResults
from inferometer.analysis.pareto import Pareto, ParetoPoint, frontier
from inferometer.analysis.slo_expression import parse
from inferometer.report import formatting
from inferometer.report.document import Section
from inferometer.report.engine_rows import level_text, start_kind
from inferometer.report.html import cost, page
from inferometer.report.html.page import Block
from inferometer.report.html.parts import TITLES
from inferometer.units import format_seconds

_LATENCIES = ("ttft", "tpot", "e2e")
_STATISTICS = ("p50", "p95", "p99")
_MIB = float(1 << 20)
_GIB = float(1 << 30)
BETWEEN = 1.25
"""Room beside the lowest and the highest level on a logarithmic axis."""
Look = Mapping[str, Any]
Read = Callable[[EngineLevel], tuple[float | None, tuple[float | None, float | None]]]


def looks(found: EngineResults) -> dict[str, Look]:
    """Name and colour of each engine's lines, the same in every chart; from the ninth on, the colours come again with dashed lines."""
    return {
        engine.name: {
            "name": formatting.one_line(engine.name, 40),
            "colour": number % page.COLOURS,
            "dash": number // page.COLOURS % 2 == 1,
        }
        for number, engine in enumerate(found.engines)
    }


def shown(found: EngineResults) -> list[tuple[EngineResult, list[EngineLevel]]]:
    """The engines that have levels with figures."""
    each = [
        (engine, [level for level in engine.levels if level.repeats]) for engine in found.engines if not engine.encoder
    ]
    return [(engine, levels) for engine, levels in each if levels]


def _label(engine: EngineResult, level: EngineLevel) -> str:
    words = [formatting.one_line(engine.name, 40), level_text(level)]
    words += ["overloaded"] if level.overloaded else [] if level.valid else ["not valid"]
    return ", ".join(words)


# --- against the level -----------------------------------------------------------------------------------------------


def by_level(found: EngineResults, title: str, reading: str, label: str, read: Read, **y: Any) -> Block | None:
    """A figure against the level, a line per engine; None if no level has it."""
    series = []
    for engine, levels in shown(found):
        known = [(level, *read(level)) for level in levels]
        known = [(level, value, ends) for level, value, ends in known if value is not None]
        if known:
            series.append(
                {
                    **looks(found)[engine.name],
                    "x": page.rounded(level.level for level, _, _ in known),
                    "y": page.rounded(value for _, value, _ in known),
                    "lo": page.rounded(ends[0] for _, _, ends in known),
                    "hi": page.rounded(ends[1] for _, _, ends in known),
                    "hollow": [not level.valid for level, _, _ in known],
                    "labels": [_label(engine, level) for level, _, _ in known],
                    "points": True,
                }
            )
    if not series:
        return None
    data = {"kind": "xy", "height": 300, "x": _level_axis(found), "y": {"label": label, **y}, "series": series}
    return page.chart(title, reading, data)


def _level_axis(found: EngineResults) -> dict[str, Any]:
    levels = sorted({level.level for _, own in shown(found) for level in own})
    kinds = {level.by for _, own in shown(found) for level in own}
    label = "offered requests/s" if kinds == {"rate"} else "batch size" if kinds == {"batch"} else "requests in flight"
    label += ", or batch size" if kinds == {"concurrency", "batch"} else ""
    return {
        "label": label,
        "scale": "log",
        "ticks": levels,
        "min": levels[0] / BETWEEN,
        "max": levels[-1] * BETWEEN,
    }


def _estimated(estimate: Estimate | None) -> tuple[float | None, tuple[float | None, float | None]]:
    return (None, (None, None)) if estimate is None else (estimate.value, estimate.ci)


def _plain(value: float | None) -> tuple[float | None, tuple[float | None, float | None]]:
    return value, (None, None)


def throughput(found: EngineResults) -> Section:
    """Tokens and requests per second at each level, and how well that scales."""
    reading = "Bars are 95 % confidence intervals. Hollow: not valid."
    tokens = by_level(
        found,
        "Output tokens/s against the load.",
        reading,
        "output tokens/s",
        lambda level: _estimated(level.throughput.output_tokens),
        min=0,
    )
    requests = by_level(
        found,
        "Requests/s against the load.",
        reading,
        "requests/s",
        lambda level: _estimated(level.throughput.requests),
        min=0,
    )
    goodput = by_level(
        found,
        "Goodput against the load.",
        "Requests/s that met every limit for a single request.",
        "requests/s",
        lambda level: _estimated(level.goodput),
        min=0,
    )
    scaling = by_level(
        found, "Scaling efficiency.", "1: twice the load gives twice the throughput. It falls where an engine is saturated.",
        "share of linear scaling", lambda level: _estimated(level.scaling), min=0,
    )  # fmt: skip
    panes = {
        "tokens": ("output tokens/s", tokens),
        "requests": ("requests/s", requests),
        "goodput": ("goodput", goodput),
        "scaling": ("scaling efficiency", scaling),
    }
    return Section(
        "throughput",
        "Throughput",
        tabs(panes),
        "How much each engine does at each level. A line that becomes flat is the engine's limit.",
    )


def tabs(panes: Mapping[str, tuple[str, Block | None]]) -> list[Block]:
    known = {key: [block] for key, (_, block) in panes.items() if block is not None}
    return [page.tabs([[(key, panes[key][0]) for key in known]], known)] if known else []


# --- latency ---------------------------------------------------------------------------------------------------------


def latency(found: EngineResults) -> Section:
    """Latency against throughput: with more load, a line runs to the right until the engine is saturated, then up."""
    panes: dict[str, Sequence[Block]] = {}
    for name in _LATENCIES:
        for statistic in _STATISTICS:
            series = _latency_lines(found, name, statistic)
            if series:
                panes[f"{name}|{statistic}"] = [_latency_chart(found, name, statistic, series)]
    names = [name for name in _LATENCIES if any(key.startswith(f"{name}|") for key in panes)]
    return Section(
        "latency",
        "Latency",
        [page.tabs([[(name, TITLES[name]) for name in names], [(each, each) for each in _STATISTICS]], panes)]
        if panes
        else [],
        "What users wait for, against what the engine does in that time. Lower and further to the right is better. An engine without "
        "token times has no TTFT and no TPOT.",
    )


def _latency_lines(found: EngineResults, name: str, statistic: str) -> list[dict[str, Any]]:
    series = []
    for engine, levels in shown(found):
        known: list[tuple[EngineLevel, Latency, Estimate]] = []
        for level in levels:
            latency, rate = getattr(level, name), level.throughput.output_tokens or level.throughput.requests
            if latency is not None and getattr(latency, statistic) is not None and rate is not None:
                known.append((level, latency, rate))
        if known:
            ends = [latency.ci.get(statistic, (None, None)) for _, latency, _ in known]
            series.append(
                {
                    **looks(found)[engine.name],
                    "x": page.rounded(rate.value for _, _, rate in known),
                    "y": page.rounded(milli(getattr(latency, statistic)) for _, latency, _ in known),
                    "lo": page.rounded(milli(low) for low, _ in ends),
                    "hi": page.rounded(milli(high) for _, high in ends),
                    "ex": [page.rounded(rate.ci) for _, _, rate in known],
                    "hollow": [not level.valid or statistic in latency.unsupported for level, latency, _ in known],
                    "labels": [_label(engine, level) for level, _, _ in known],
                    "points": True,
                }
            )
    return series


def milli(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _latency_chart(found: EngineResults, name: str, statistic: str, series: Sequence[dict[str, Any]]) -> Block:
    lines = []
    for text in found.slos:
        objective = parse(text)
        if objective.kind == "metric" and objective.name == name and objective.statistic == statistic:
            lines.append({"at": 1e3 * objective.threshold.value, "label": formatting.one_line(text, 60)})
    has_tokens = any(level.throughput.output_tokens is not None for _, levels in shown(found) for level in levels)
    rate = "output tokens/s" if has_tokens else "requests/s"
    return page.chart(
        f"{TITLES[name]} {statistic} against {rate}.",
        "A point per level. Bars are 95 % confidence intervals. Hollow: too few values, or not valid.",
        {
            "kind": "xy",
            "height": 320,
            "x": {"label": rate, "min": 0, "pad": True},
            "y": {"label": "ms (logarithmic)", "scale": "log"},
            "series": series,
            "hlines": lines,
        },
    )


# --- users against hardware ------------------------------------------------------------------------------------------


def pareto_of(found: EngineResults) -> Pareto | None:
    """Output tokens per second and GPU, or of the whole engine, against those per second and user; None if no level has both."""
    every = [(engine, level) for engine, levels in shown(found) for level in levels if level.quotable.get("latency")]
    has_gpus = bool(every) and all(level.output_tokens_per_gpu is not None for _, level in every)
    points = []
    for engine, level in every:
        hardware = level.output_tokens_per_gpu if has_gpus else level.throughput.output_tokens
        if level.output_tokens_per_user is not None and hardware is not None:
            points.append(
                ParetoPoint(
                    label=level_text(level),
                    curve=engine.name,
                    level=level.level,
                    user=level.output_tokens_per_user,
                    hardware=hardware,
                    cost=level.cost_per_million,
                )
            )
    if not points:
        return None
    return Pareto(unit="gpu" if has_gpus else "server", currency=found.currency, points=frontier(points))


def pareto(found: EngineResults) -> Section:
    made = pareto_of(found)
    blocks = [cost.pareto_chart(made, looks(found))] if made is not None else []
    return Section(
        "pareto",
        "Users against hardware",
        blocks,
        "What one user sees against what the hardware delivers. Points on the frontier are the ones to choose from; all others are "
        "worse in both. Engines without token times are not in it.",
    )


# --- resources -------------------------------------------------------------------------------------------------------


def resources(found: EngineResults) -> list[Block]:
    """Memory, processor, power and energy against the level."""

    def used(name: str, scale: float = 1.0) -> Read:
        def read(level: EngineLevel) -> tuple[float | None, tuple[float | None, float | None]]:
            value = None if level.resources is None else getattr(level.resources, name)
            return _plain(None if value is None else value / scale)

        return read

    most = max((_memory(level) for _, levels in shown(found) for level in levels), default=0.0)
    unit, scale = ("GiB", _GIB) if most >= _GIB else ("MiB", _MIB)
    panes = {
        "gpu_memory": ("GPU memory", by_level(found, "GPU memory against the load.", "The peak of all GPUs together.", "GiB", used("gpu_memory", _GIB), min=0)),
        "memory": ("memory", by_level(found, "Memory against the load.", "Peak resident memory of the engine's processes.", unit, used("memory", scale), min=0)),
        "cpu": ("CPU", by_level(found, "CPU against the load.", "Cores that the engine's processes kept busy on average.", "cores", used("cpu"), min=0)),
        "gpu_use": ("GPU", by_level(found, "GPU utilisation against the load.", "Share of the time in which a kernel ran.", "share", used("gpu_use"), min=0, max=1)),
        "power": ("power", by_level(found, "Power against the load.", "Mean of all GPUs together.", "W", used("power"), min=0)),
        "energy": ("energy", by_level(found, "Energy per output token against the load.", "Of all GPUs together.", "J (logarithmic)", lambda level: _plain(level.energy_per_token), scale="log")),
    }  # fmt: skip
    return tabs(panes)


def _memory(level: EngineLevel) -> float:
    return (level.resources.memory or 0.0) if level.resources is not None else 0.0


# --- start-up --------------------------------------------------------------------------------------------------------


def startup(found: EngineResults) -> Block | None:
    """A bar per start, divided by its phases."""
    starts = [(engine, start) for engine in found.engines for start in engine.startup]
    names = [*dict.fromkeys(name for _, start in starts for name in start.phases), "ready", "first token"]
    styles = {name: f"c{number % page.COLOURS}" for number, name in enumerate(names)}
    rows: list[dict[str, Any]] = []
    for engine, start in starts:
        ends = [*start.phases.items(), ("ready", start.ready), ("first token", start.first_token)]
        parts, at = [], 0.0
        for name, end in sorted(((name, end) for name, end in ends if end is not None), key=lambda pair: pair[1]):
            if end > at:
                parts.append([*page.rounded((at, end)), styles[name]])
                at = end
        if parts:
            label = f"{formatting.one_line(engine.name, 40)}, {start_kind(start)}: {format_seconds(at)}"
            rows.append({"label": label, "parts": parts, "tokens": [], "numbers": [], "end": page.rounded([at])[0]})
    if not rows:
        return None
    used = {part[2] for row in rows for part in row["parts"]}
    keys = [[f"until {name}", style] for name, style in styles.items() if style in used]
    data = {
        "kind": "rows",
        "keys": keys,
        "x": {"label": "seconds since the process was started", "unit": "s"},
        "rows": rows,
    }
    return page.chart("From the start of the process to the first token.", "", data)
