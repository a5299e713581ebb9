"""A sweep in the terminal and in files: where the knees are, and one row per measured level."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from inferometer.analysis.settings import short_value
from inferometer.analysis.slo_result import SloResult
from inferometer.analysis.sweep import MeasuredCell, Point, Sweep
from inferometer.report import console, cost, formatting, junit, markdown
from inferometer.report.document import MARK, Document, Note, Section, Table
from inferometer.report.json import encode
from inferometer.report.output import Report, at_once
from inferometer.units import format_seconds

if TYPE_CHECKING:
    from inferometer.report.html.page import Page

_STREAMED = (("ttft", "p50"), ("ttft", "p99"), ("itl", "p50"), ("itl", "p99"), ("e2e", "p50"), ("e2e", "p99"))
_NOT_STREAMED = tuple(("e2e", column) for column in ("mean", "p50", "p90", "p99"))
_RATES = {"output_tokens": "tokens/s", "inferences": "inf/s", "input_tokens": "tokens/s in"}
_OPTIONAL = (
    "ok",
    "failed",
    "itl p50",
    "e2e p90",
    "e2e p50",
    "itl p99",
    "e2e mean",
    "ttft p50",
    "tokens/s in",
    "tokens/s",
    "inf/s",
    "e2e p99",
)
"""Columns that a narrow table leaves out, the first of them first."""
_SETTING_WIDTH = {1: 24, 2: 16}
"""Characters of a setting in the table, by the number of settings; fewer for more of them."""
_SIGNS = {"met": "✓", "missed": "✗", "undecided": "?"}
_IN_CSV = ("ttft", "itl", "tpot", "e2e", "queue", "compute", "protocol", "network")
_MOST_PROBLEMS = 8
_STATISTICS = ("mean", "p50", "p90", "p95", "p99")


class SweepReport(NamedTuple):
    """A sweep with its runs, and why it fails (analysis/sweep.py)."""

    sweep: Sweep
    measured: Sequence[MeasuredCell]
    problems: Sequence[str]


def render(sweep: Sweep, found: Sequence[str], color: bool, width: int) -> str:
    """Render the answers, the problems and the table for `width` columns."""
    return console.text(document(sweep, found, _MOST_PROBLEMS), color, width)


def document(sweep: Sweep, found: Sequence[str], most: int | None = None) -> Document:
    """The answers, at most so many of the problems, the table of levels and the costs."""
    answers = [Note(formatting.one_line(answer, 1000), "strong") for answer in sweep.answers]
    problems = [Note(formatting.one_line(problem, 1000), "warn", "!") for problem in found[:most]]
    more = len(found) - len(problems)
    problems += [Note(f"  and {more} more problems, see --markdown", "")] if more else []
    heads = [Section("answers", "Answers", answers), Section("problems", "Problems", problems)]
    return Document((), [*heads, levels(sweep), cost.sweep_cost(sweep.pareto)], sweep.folder)


def levels(sweep: Sweep) -> Section:
    """One row per measured level."""
    title, *columns = _header(sweep)
    table = Table(title, columns, _rows(sweep), _OPTIONAL)
    return Section("levels", "Levels", [table, *map(Note, _notes(sweep, table))])


def _notes(sweep: Sweep, table: Table) -> list[str]:
    notes = ["latencies in ms"]
    if any(point.is_overloaded for point in sweep.points):
        notes.append("overloaded: the server did not keep up, so latencies have no steady value")
    if any("not quotable" in _mark(point) for point in sweep.points):
        notes.append("not quotable: a check failed, see inferometer report on the run")
    if table.is_marked:
        notes.append(f"{MARK} too few values for this percentile")
    return notes


def _latencies(sweep: Sweep) -> tuple[tuple[str, str], ...]:
    return _STREAMED if any(_count(point, "ttft") for point in sweep.points) else _NOT_STREAMED


def _rate(sweep: Sweep) -> list[str]:
    """Output tokens, else inferences, else input tokens."""
    return [name for name in _RATES if any(getattr(point.throughput, name) is not None for point in sweep.points)][:1]


def _has_objectives(sweep: Sweep) -> bool:
    return any(point.slos for point in sweep.points)


def _header(sweep: Sweep) -> list[str]:
    names = _short_keys(sweep.keys)
    return [
        *(names or ["level"]),
        *(["level"] if names else []),
        "req/s",
        *(_RATES[rate] for rate in _rate(sweep)),
        *(f"{name} {column}" for name, column in _latencies(sweep)),
        "ok",
        "failed",
        *(["SLO"] if _has_objectives(sweep) else []),
        "",
    ]


def _rows(sweep: Sweep) -> list[list[str]]:
    """A row for each point."""
    room = _SETTING_WIDTH.get(len(sweep.keys), 12)
    return [
        [
            *(formatting.one_line(short_value(point.settings.get(key)), room) for key in sweep.keys),
            _level(point),
            formatting.number(point.throughput.requests),
            *(formatting.number(getattr(point.throughput, rate)) for rate in _rate(sweep)),
            *(_latency(point, name, column) for name, column in _latencies(sweep)),
            f"{point.counts.ok:,}",
            f"{point.counts.failed + point.counts.dropped:,}",
            *([_objectives(point.slos)] if _has_objectives(sweep) else []),
            _mark(point),
        ]
        for point in sweep.points
    ]


def _short_keys(keys: Sequence[str]) -> list[str]:
    """The last part of each key, or all of it if two end alike."""
    last = [key.rpartition(".")[2] for key in keys]
    return [name if last.count(name) == 1 else key for name, key in zip(last, keys, strict=True)]


def _level(point: Point) -> str:
    if point.level is None:
        return formatting.one_line(point.name, 24)
    return f"{formatting.rate(point.level)}{'/s' if point.by == 'rate' else ' in flight'}"


def _count(point: Point, name: str) -> int:
    return point.metrics[name].count if name in point.metrics else 0


def _latency(point: Point, name: str, column: str) -> str:
    if point.is_overloaded or not _count(point, name):
        return "-"
    found = point.metrics[name]
    value = found.mean if column == "mean" else found.value(column)
    return formatting.milliseconds(value) + (MARK if column in found.unsupported else "")


def _objectives(slos: Sequence[SloResult]) -> str:
    """The worst status of all objectives."""
    statuses = {result.status for result in slos}
    return next((_SIGNS[status] for status in ("missed", "undecided", "met") if status in statuses), "-")


def _mark(point: Point) -> str:
    words = {
        "knee": point.is_knee,
        "overloaded": point.is_overloaded,
        "not quotable": not point.is_quotable and not point.is_overloaded,
    }
    return ", ".join(word for word, holds in words.items() if holds)


# --- files -----------------------------------------------------------------------------------------------------------


def _page(found: SweepReport) -> "Page":
    from inferometer.report.html import sweep_page  # noqa: PLC0415 (the other formats do without it)

    return sweep_page.sweep_page(found.sweep, found.measured)


def _csv(found: SweepReport) -> bytes:
    """One row per point. Times are in seconds; those of an overloaded level are empty, because they have no steady value."""
    return formatting.csv_table([_csv_row(point, found.sweep.keys) for point in found.sweep.points])


def _csv_row(point: Point, keys: Sequence[str]) -> dict[str, Any]:
    rate = point.throughput
    row: dict[str, Any] = {key: short_value(point.settings.get(key)) for key in keys}
    row |= {"run": point.run, "stage": point.stage, "by": point.by, "level": point.level}
    row |= {"knee": int(point.is_knee), "overloaded": int(point.is_overloaded), "quotable": int(point.is_quotable)}
    row |= {"ok": point.counts.ok, "failed": point.counts.failed, "dropped": point.counts.dropped}
    for name in ("offered", "requests", "output_tokens", "input_tokens", "total_tokens", "inferences"):
        row[f"{name}_per_s"] = getattr(rate, name)
    row["in_flight"] = rate.in_flight
    for name in _IN_CSV:
        is_known = not point.is_overloaded and _count(point, name)
        for column in _STATISTICS:
            metric = point.metrics.get(name)
            value = None if metric is None else metric.mean if column == "mean" else metric.value(column)
            row[f"{name}_{column}_s"] = value if is_known else None
    row["goodput_per_s"] = None if point.goodput is None else point.goodput.rate
    statuses = [result.status for result in point.slos]
    row["objectives"] = next((one for one in ("missed", "undecided", "met") if one in statuses), None)
    return row


def _markdown(report: SweepReport) -> str:
    title = "Sweep with problems" if report.problems else "Sweep"
    return markdown.text(msgspec.structs.replace(document(report.sweep, report.problems), title=[title]))


def _junit(report: SweepReport) -> bytes:
    """One case that passes per answer, and one that fails per problem."""
    sweep, _, found = report
    cases = [junit.Case("sweep", f"knee {number}", "passed", answer) for number, answer in enumerate(sweep.answers, 1)]
    cases += [junit.Case("sweep", f"problem {number}", "failed", problem) for number, problem in enumerate(found, 1)]
    return junit.encode(f"sweep of {', '.join(sweep.keys) or 'the load'}", cases)


SWEEP = Report[SweepReport](
    "a sweep",
    lambda found, color, width: render(found.sweep, found.problems, color, width),
    lambda found: not found.problems,
    _page,
    {
        "json": at_once(lambda found: encode(found.sweep)),
        "csv": at_once(_csv),
        "markdown": at_once(_markdown),
        "junit": at_once(_junit),
    },
)


def describe_plan(settings: Sequence[Mapping[str, Any]], runs: int, seconds: float | None) -> str:
    """What a sweep is going to measure: `4 runs: data.input [1024, 8192] x data.output [64, 128]; about 2m10s`."""
    axes = {key: list(dict.fromkeys(short_value(each[key]) for each in settings)) for key in settings[0]}
    grid = " x ".join(f"{key} [{', '.join(values)}]" for key, values in axes.items())
    count = f"{runs} {'run' if runs == 1 else 'runs'}" if runs == len(settings) else f"at most {runs} runs"
    time = "" if seconds is None else f"; {'about' if runs == len(settings) else 'at most'} {format_seconds(seconds)}"
    return f"sweep of {count}{f': {grid}' if grid else ''}{time}"
