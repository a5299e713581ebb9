"""The tables of traffic classes and of replicas: one row for each, with its rates and latencies."""

from collections.abc import Sequence

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.text import Text

from inferometer.analysis import settings
from inferometer.analysis.groups import Group
from inferometer.analysis.percentiles import label_of
from inferometer.analysis.summary import Summary
from inferometer.records import Run
from inferometer.report import formatting, tables
from inferometer.report.width import fitted

_STREAMED = (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("tpot", "p99"), ("e2e", "p99"))
_NOT_STREAMED = tuple(("e2e", column) for column in ("mean", "p50", "p90", "p95", "p99"))
_OPTIONAL = ("tpot p50", "e2e p90", "e2e mean", "ttft p50", "e2e p95", "tpot p99")
"""Columns that a narrow table leaves out, the first of them first."""
_MAX_ROWS = 32


def classes(run: Run, summary: Summary, width: int) -> RenderableType:
    """One row per traffic class; with several stages, one per class and stage."""
    if not summary.stages:
        return _table("classes, ms", [(group.name, group) for group in summary.classes], run, width)
    rows = [(f"{group.name}, {stage.name}", group) for stage in summary.stages for group in stage.classes]
    return _table("classes, ms", rows, run, width)


def replicas(run: Run, summary: Summary, width: int) -> RenderableType:
    """One row per replica. Stages with different loads have no common latencies."""
    return _table("replicas, ms", [(group.name, group) for group in summary.replicas], run, width)


def _table(title: str, rows: Sequence[tuple[str, Group]], run: Run, width: int) -> RenderableType:
    streamed = any(group.metrics["ttft"].count for _, group in rows if group.metrics)
    has_text = streamed or settings.receives_text(run.manifest)
    metrics = ("ttft", "tpot", "e2e") if has_text else ("e2e",)
    columns = tables.by_metric(run.manifest, metrics, _STREAMED if has_text else _NOT_STREAMED)
    columns = columns if any(group.metrics for _, group in rows) else []
    titles = [f"{name} {label_of(column)}" for name, column in columns]
    table = tables.table(title, ["ok", "failed", "req/s", *titles])
    for label, group in rows[:_MAX_ROWS]:
        cells = [
            f"{group.counts.ok:,} ",
            f"{group.counts.failed + group.counts.dropped:,} ",
            f"{formatting.number(group.throughput.requests)} ",
            *(_cell(group, name, column) for name, column in columns),
        ]
        table.add_row(formatting.one_line(label, 40), *cells)
    shown = fitted(table, width, (*_OPTIONAL, *titles[:0:-1]))
    if len(rows) <= _MAX_ROWS:
        return shown
    return Lines(shown, Text(f"and {len(rows) - _MAX_ROWS:,} more, which are in summary.json", style="dim"))


def _cell(group: Group, name: str, column: str) -> str:
    if name not in group.metrics:
        return "- "
    found = group.metrics[name]
    return formatting.milliseconds(found.value(column)) + (tables.MARK if column in found.unsupported else " ")
