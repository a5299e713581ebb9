"""The charts and tables of a sweep: how latency and throughput change with the load, one line per combination of settings."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from inferometer.analysis.knee import Knee
from inferometer.analysis.pareto import pareto_of
from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.settings import settings_label, short_value
from inferometer.analysis.slo_expression import Slo, parse
from inferometer.analysis.slo_result import SloResult
from inferometer.analysis.summary import Summary
from inferometer.analysis.sweep import Point, Sweep
from inferometer.records import Run
from inferometer.report import formatting, tables
from inferometer.report.cost import sweep_cost
from inferometer.report.document import MARK, Section
from inferometer.report.html import cost, curve, page
from inferometer.report.html.latency import cdf, request_line
from inferometer.report.html.page import Block
from inferometer.report.html.parts import TITLES, limits_of
from inferometer.report.latency import by_part
from inferometer.report.sweep import levels

_PERCENTILES = ("p50", "p90", "p99")
_WIDE = 10.0
"""Largest value of a grid / smallest from which on its colours follow the logarithm."""
_MOST_DISTRIBUTIONS = 100
"""Points whose distributions are drawn at most: each takes about 2 kB per latency."""
LEVELS = {"rate": "offered requests/s", "concurrency": "requests in flight, as configured", "": "level"}
"""The names of an axis with levels."""


class Curve(NamedTuple):
    """The points of one combination of settings, by level."""

    label: str
    settings: dict[str, Any]
    points: tuple[Point, ...]
    knee: Knee | None
    answer: str
    """Where its knee is, or why there is none; empty if that is not known."""
    number: int

    @property
    def look(self) -> dict[str, Any]:
        """Name and colour of its lines; from the ninth on, the colours come again with dashed lines."""
        return {"name": self.label, "colour": self.number % page.COLOURS, "dash": self.number // page.COLOURS % 2 == 1}


class Rates(NamedTuple):
    """The rates that a sweep has, and what it is about."""

    titles: dict[str, str]
    main: str
    """The rate that says how much the server does: tokens, inferences, or requests."""


def curves(sweep: Sweep) -> list[Curve]:
    """One for each combination of settings, in the order of the sweep."""
    short = {key: key.rpartition(".")[2] for key in sweep.keys}
    names = {key: name if list(short.values()).count(name) == 1 else key for key, name in short.items()}
    groups: list[tuple[dict[str, Any], list[Point]]] = []
    for point in sweep.points:
        own = next((points for settings, points in groups if settings == point.settings), None)
        if own is None:
            groups.append((point.settings, own := []))
        own.append(point)
    return [
        Curve(
            formatting.one_line(", ".join(f"{names.get(k, k)} {short_value(v)}" for k, v in settings.items()), 60)
            or "all levels",
            settings,
            tuple(sorted(points, key=lambda point: (point.level or 0.0, point.stage))),
            next((knee for knee in sweep.knees if knee.settings == settings), None),
            sweep.answers[number].removeprefix(f"{settings_label(settings)}: ") if sweep.answers else "",
            number,
        )
        for number, (settings, points) in enumerate(groups)
    ]


def rates_of(sweep: Sweep) -> Rates:
    """Tokens for text, inferences for tensors, requests for both."""
    titles = {"requests": "completed requests/s"}
    if any(point.metrics and point.metrics["ttft"].count for point in sweep.points):
        titles["output_tokens"] = "output tokens/s"
    elif any(point.throughput.inferences is not None for point in sweep.points):
        titles["inferences"] = "inferences/s"
    return Rates(titles, list(titles)[-1])


def latency_names(sweep: Sweep) -> list[str]:
    """The latencies that any point has; tensors' queue and compute times are among them."""
    return [name for name in TITLES if any(_metric(point, name) for point in sweep.points)]


def _metric(point: Point, name: str) -> Distribution | None:
    found = point.metrics.get(name) if point.metrics else None
    return found if found is not None and found.count else None


# --- latency against throughput --------------------------------------------------------------------------------------


def load_curve(sweep: Sweep, each: Sequence[Curve], rates: Rates) -> Section:
    """The latency-throughput curve: a line per combination of settings; of a single one, a line per percentile."""
    names = latency_names(sweep)
    axes = {**rates.titles, "in_flight": "mean requests in flight"}
    percentiles = _by_support(sweep, names) if len(each) > 1 else ["all"]
    for wanted in _objectives(sweep)[:1]:  # the page opens on what decides
        names.sort(key=lambda name: name != wanted.name)
        percentiles = sorted(percentiles, key=lambda column: column != wanted.statistic)
    panes: dict[str, Sequence[Block]] = {
        f"{name}|{column}|{rate}": [_curve_chart(sweep, each, name, column, rate, label)]
        for name in names
        for column in percentiles
        for rate, label in axes.items()
    }
    switches = [[(name, TITLES[name]) for name in names], [(c, c) for c in percentiles], list(axes.items())]
    return Section(
        "curve",
        "Load curve",
        [page.tabs(switches, panes)] if panes else [],
        "One point per level. With more load, a line runs to the right until the server is saturated; from there on only latency "
        "grows, and the line turns up. The knee, with a ring, is where one more percent of throughput starts to cost more than one "
        "percent of latency."
        if sweep.knees
        else "One point per level. With more load, a line runs to the right until the server is saturated; from there on only "
        "latency grows, and the line turns up.",
    )


def _objectives(sweep: Sweep) -> list[Slo]:
    """The objectives that are about a latency."""
    found = dict.fromkeys(result.expression for point in sweep.points for result in point.slos)
    return [slo for slo in map(parse, found) if slo.name in TITLES]


def _by_support(sweep: Sweep, names: Sequence[str]) -> list[str]:
    """The percentiles by their distance from the highest that at least half of the points support."""
    found = [metric for point in sweep.points for name in names[:1] if (metric := _metric(point, name))]
    first = next(
        (
            column
            for column in _PERCENTILES[::-1]
            if 2 * sum(column in metric.unsupported for metric in found) <= len(found)
        ),
        "p50",
    )
    return sorted(_PERCENTILES, key=lambda column: abs(_PERCENTILES.index(column) - _PERCENTILES.index(first)))


def _curve_chart(sweep: Sweep, each: Sequence[Curve], name: str, column: str, rate: str, label: str) -> Block:
    shown = [(own, column) for own in each] if column != "all" else [(each[0], wanted) for wanted in _PERCENTILES]
    series, marks = [], []
    for index, (own, wanted) in enumerate(shown):
        look = own.look if column != "all" else {"name": wanted, "colour": index}
        line = {**look, **curve.line(own.points, name, wanted, rate)}
        if len(each) > 1:
            line["labels"] = [f"{own.label}, {text}" for text in line["labels"]]
        series.append(line)
        if own.knee is not None and (column != "all" or wanted == "p50"):
            marks += _knee_mark(own, own.knee, index, line["colour"], name, wanted, rate)
    expressions = [result for point in sweep.points for result in point.slos]
    return curve.curve_chart(
        name, label, series, limits_of(expressions, name), marks, column if column != "all" else ""
    )


def _knee_mark(
    own: Curve, knee: Knee, index: int, colour: int, name: str, column: str, rate: str
) -> list[dict[str, object]]:
    point = next((point for point in own.points if point.level == knee.level), None)
    found = None if point is None else _metric(point, name)
    value = None if found is None else found.value(column)
    x = None if point is None else getattr(point.throughput, rate)
    if value is None or x is None:
        return []
    x, y = page.rounded((x, 1e3 * value))
    return [{"series": index, "x": x, "y": y, "colour": colour, "label": f"knee {level_text(knee.by, knee.level)}"}]


def level_text(by: str, level: float | None) -> str:
    """`14/s`, or `8 in flight`."""
    if level is None:
        return ""
    return f"{formatting.rate(level)}/s" if by == "rate" else f"{formatting.rate(level)} in flight"


# --- throughput and goodput against the level ------------------------------------------------------------------------


def throughput(sweep: Sweep, each: Sequence[Curve], rates: Rates) -> Section:
    """How much was done at each level, and how much of that met the objectives."""
    by = next((point.by for point in sweep.points), "")
    reads: dict[str, tuple[str, Callable[[Point], tuple[float | None, Any]]]] = {
        rate: (title, _rate_reader(rate)) for rate, title in reversed(rates.titles.items())
    }
    if any(point.goodput is not None and point.goodput.rate is not None for point in sweep.points):
        reads["goodput"] = ("goodput: requests/s within the limits", _goodput)
    panes: dict[str, Sequence[Block]] = {}
    for key, (title, read) in reads.items():
        series = [line for own in each if (line := _level_line(own, read))]
        ideal = _diagonal(sweep) if by == "rate" and key in ("requests", "goodput") else []
        if series:
            panes[key] = [_level_chart(title, by, [*ideal, *series])]
    switch = [(key, title.partition(":")[0]) for key, (title, _) in reads.items() if key in panes]
    return Section(
        "throughput",
        "Throughput",
        [page.tabs([switch], panes)] if panes else [],
        "How much was done at each level. A line that becomes flat is the server's limit."
        + (" Goodput counts only requests that met every limit: it falls where users stop being served well." if "goodput" in panes else ""),
    )  # fmt: skip


def _rate_reader(rate: str) -> Callable[[Point], tuple[float | None, Any]]:
    return lambda point: (getattr(point.throughput, rate), point.throughput.ci.get(rate, (None, None)))


def _goodput(point: Point) -> tuple[float | None, Any]:
    return (None, (None, None)) if point.goodput is None else (point.goodput.rate, point.goodput.ci["rate"])


def _level_line(own: Curve, read: Callable[[Point], tuple[float | None, Any]]) -> dict[str, Any] | None:
    known = [(point, *read(point)) for point in own.points if point.level is not None]
    known = [(point, value, ends) for point, value, ends in known if value is not None]
    if not known:
        return None
    return {
        **own.look,
        "x": page.rounded(point.level for point, _, _ in known),
        "y": page.rounded(value for _, value, _ in known),
        "lo": page.rounded(ends[0] for _, _, ends in known),
        "hi": page.rounded(ends[1] for _, _, ends in known),
        "hollow": [point.is_overloaded for point, _, _ in known],
        "labels": [f"{own.label}, {point.name}{' (overloaded)' if point.is_overloaded else ''}" for point, _, _ in known],
        "points": True,
    }  # fmt: skip


def _diagonal(sweep: Sweep) -> list[dict[str, Any]]:
    levels = page.rounded(sorted({point.level for point in sweep.points if point.level is not None}))
    return [{"name": "offered", "colour": 7, "faint": True, "dash": True, "x": levels, "y": levels}]


def _level_chart(title: str, by: str, series: Sequence[dict[str, Any]]) -> Block:
    name, _, rest = title.partition(": ")
    return page.chart(
        f"{name[:1].upper()}{name[1:]} against the load.",
        "Bars are 95 % confidence intervals. Hollow: overloaded.",
        {
            "kind": "xy",
            "height": 300,
            "x": {"label": LEVELS[by], "min": 0, "pad": True},
            "y": {"label": rest or name, "min": 0},
            "series": series,
        },
    )


# --- what a user sees against what the hardware delivers -------------------------------------------------------------


def pareto(sweep: Sweep, each: Sequence[Curve]) -> Section:
    """Output tokens per second and GPU, or of all servers, against output tokens per second and user; the cheapest load, if asked for."""
    found = sweep.pareto or pareto_of(sweep.points)
    looks = {settings_label(own.settings): own.look for own in each}
    chart = [cost.pareto_chart(found, looks)] if found is not None and found.points else []
    blocks = [*chart, *sweep_cost(sweep.pareto).blocks]
    return Section("pareto", "Pareto", blocks, "What one user sees against what the hardware delivers, at each level.")


# --- tables ----------------------------------------------------------------------------------------------------------


def heat_table(sweep: Sweep, each: Sequence[Curve], rates: Rates) -> Section:
    """Settings by levels, the stronger the colour the larger the figure. Empty for a single combination."""
    levels = sorted({(point.level, point.by) for point in sweep.points if point.level is not None})
    if len(each) < 2 or not 2 <= len(levels) <= 24:
        return Section("grid", "Grid", [])
    reads: dict[str, tuple[str, _Reader]] = {
        f"{name}.p99": (f"{TITLES[name]} p99, ms", _latency_reader(name))
        for name in latency_names(sweep)
        if name != "tpot"
    }
    reads |= {rate: (title, _plain_reader(rate)) for rate, title in reversed(rates.titles.items())}
    panes: dict[str, Sequence[Block]] = {}
    for key, (_, read) in reads.items():
        known = [found[0] for point in sweep.points if (found := read(point))]
        rows: list[list[object]] = []
        for own in each:
            at = {point.level: point for point in own.points}
            rows.append([own.label, *(_heat_cell(at.get(level), read, known) for level, _ in levels)])
        panes[key] = [page.table(["", *(level_text(by, level) for level, by in levels)], rows)]
    switch = [(key, title) for key, (title, _) in reads.items()]
    signs = "✗ an objective is missed; ? too short to decide; " if any(point.slos for point in sweep.points) else ""
    return Section(
        "grid",
        "Grid",
        [
            page.tabs([switch], panes),
            page.note(f"{signs}{MARK} too few independent values; – not measured, or overloaded."),
        ],
        "Settings by levels: the stronger the colour, the larger the figure.",
    )


_Reader = Callable[[Point], tuple[float, str] | None]
"""The figure of a point, and what follows it; None if it has none."""


def _latency_reader(name: str) -> _Reader:
    def read(point: Point) -> tuple[float, str] | None:
        found = None if point.is_overloaded else _metric(point, name)
        value = None if found is None else found.value("p99")
        if found is None or value is None:
            return None
        return 1e3 * value, MARK if "p99" in found.unsupported else ""

    return read


def _plain_reader(rate: str) -> _Reader:
    def read(point: Point) -> tuple[float, str] | None:
        value: float | None = getattr(point.throughput, rate)
        return None if value is None else (value, "")

    return read


def _heat_cell(point: Point | None, read: _Reader, known: Sequence[float]) -> object:
    found = None if point is None else read(point)
    if point is None or found is None:
        return "–"
    value, mark = found
    low, high = min(known), max(known)
    is_wide = low > 0 and high / low > _WIDE  # such as latencies, which span orders of magnitude
    ends = [math.log(each) if is_wide else each for each in (value, low, high)]
    share = (ends[0] - ends[1]) / ((ends[2] - ends[1]) or 1.0)
    return page.shaded(formatting.number(value) + mark, share, SIGNS.get(outcome(point.slos), ""))


SIGNS = {"missed": "✗", "undecided": "?"}


def outcome(results: Sequence[SloResult]) -> str:
    """The worst status of all objectives: missed, undecided, met; empty without any."""
    found = {result.status for result in results}
    return next((status for status in ("missed", "undecided", "met") if status in found), "")


def points_table(sweep: Sweep, each: Sequence[Curve]) -> Section:
    """Every measured level."""
    parts = [
        (f"{own.label}, {_level_name(point)}" if len(each) > 1 else _level_name(point), point.metrics, point.throughput)
        for own in each
        for point in own.points
        if not point.is_overloaded
    ]
    folded = page.details("All percentiles of each level", by_part(parts, tables.COLUMNS))
    return Section("points", "All levels", [*levels(sweep).blocks, folded])


def _level_name(point: Point) -> str:
    return level_text(point.by, point.level) or formatting.one_line(point.name, 40)


# --- distributions ---------------------------------------------------------------------------------------------------


def distributions(
    sweep: Sweep, each: Sequence[Curve], measured: Sequence[tuple[dict[str, Any], Run, Summary]]
) -> Section:
    """The CDFs of each combination's levels, for the latencies of whole requests. Left out if there are very many."""
    runs = {run.folder.name: run for _, run, _ in measured}
    names = [name for name in latency_names(sweep) if name in ("ttft", "e2e")]
    panes: dict[str, Sequence[Block]] = {}
    for name in names if len(sweep.points) <= _MOST_DISTRIBUTIONS else ():
        for own in each:
            lines = [
                line
                for point in own.points
                if point.run in runs
                and (line := request_line(runs[point.run], point.stage, name, _level_name(point), point.is_overloaded))
            ]
            limits = limits_of((result for point in own.points for result in point.slos), name)
            empty = page.note("There are no values for this choice.")
            chart = cdf(name, lines, limits)
            if len(each) > 1:
                chart["title"] += f", {own.label}"
            panes[f"{name}|s{own.number}"] = [chart if lines else empty]
    switches = [[(name, TITLES[name]) for name in names], [(f"s{own.number}", own.label) for own in each]]
    return Section(
        "latency",
        "Distributions",
        [page.tabs(switches, panes)] if panes else [],
        "The share of requests that took at most that long, one line per level.",
    )
