"""A sweep in the terminal and in files: where the knees are, and one row per measured level."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import msgspec

from inferometer.analysis.settings import short_value
from inferometer.analysis.slo_result import SloResult
from inferometer.analysis.sweep import Cell, Point, Sweep, problems
from inferometer.errors import UserError
from inferometer.report import console, cost, formatting, junit, markdown
from inferometer.report.document import MARK, Document, Note, Section, Table
from inferometer.report.json import encode
from inferometer.report.output import wants_color, write_file
from inferometer.report.width import columns
from inferometer.units import format_seconds

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


def check_sweep_exports(exports: Mapping[str, str]) -> None:
    """Raise UserError for exports that are about a single run."""
    for name in exports:
        if name not in _WRITERS:
            raise UserError(
                f"--{name} is about a single run, and a sweep has several",
                f"export each run with inferometer report RUN_DIR --{name} PATH",
            )


def deliver_sweep(sweep: Sweep, measured: Sequence[Cell], exports: Mapping[str, str], strict: bool) -> int:
    """Print the sweep, write the exports, and return the exit status: 1 if it has problems (analysis/sweep.py says which)."""
    found = problems(sweep, measured, strict)
    if "-" not in exports.values():
        click.echo(render(sweep, found, wants_color(), columns()), nl=False, color=True)
    for name, path in exports.items():
        encoded = _WRITERS[name](sweep, measured, found)
        write_file(path, lambda file, encoded=encoded: file.write(encoded))  # type: ignore[misc]
    return 1 if found else 0


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


def _json(sweep: Sweep, measured: Sequence[Cell], found: Sequence[str]) -> bytes:
    return encode(sweep)


def _html(sweep: Sweep, measured: Sequence[Cell], found: Sequence[str]) -> bytes:
    from inferometer.report.html import sweep_page  # noqa: PLC0415 (the other formats do without it)

    return sweep_page.encode(sweep, measured)


def _csv(sweep: Sweep, measured: Sequence[Cell], found: Sequence[str]) -> bytes:
    """One row per point. Times are in seconds; those of an overloaded level are empty, because they have no steady value."""
    return formatting.csv_table([_csv_row(point, sweep.keys) for point in sweep.points])


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


def _markdown(sweep: Sweep, measured: Sequence[Cell], found: Sequence[str]) -> bytes:
    title = "Sweep with problems" if found else "Sweep"
    return markdown.text(msgspec.structs.replace(document(sweep, found), title=[title])).encode()


def _junit(sweep: Sweep, measured: Sequence[Cell], found: Sequence[str]) -> bytes:
    """One case that passes per answer, and one that fails per problem."""
    cases = [junit.Case("sweep", f"knee {number}", "passed", answer) for number, answer in enumerate(sweep.answers, 1)]
    cases += [junit.Case("sweep", f"problem {number}", "failed", problem) for number, problem in enumerate(found, 1)]
    return junit.encode(f"sweep of {', '.join(sweep.keys) or 'the load'}", cases)


_WRITERS: dict[str, Callable[[Sweep, Sequence[Cell], Sequence[str]], bytes]] = {
    "json": _json,
    "html": _html,
    "csv": _csv,
    "markdown": _markdown,
    "junit": _junit,
}
EXPORTS = tuple(_WRITERS)
"""How to write each export, by its name (report/exporters.py)."""


def describe_plan(settings: Sequence[Mapping[str, Any]], runs: int, seconds: float | None) -> str:
    """What a sweep is going to measure: `4 runs: data.input [1024, 8192] x data.output [64, 128]; about 2m10s`."""
    axes = {key: list(dict.fromkeys(short_value(each[key]) for each in settings)) for key in settings[0]}
    grid = " x ".join(f"{key} [{', '.join(values)}]" for key, values in axes.items())
    count = f"{runs} {'run' if runs == 1 else 'runs'}" if runs == len(settings) else f"at most {runs} runs"
    time = "" if seconds is None else f"; {'about' if runs == len(settings) else 'at most'} {format_seconds(seconds)}"
    return f"sweep of {count}{f': {grid}' if grid else ''}{time}"
