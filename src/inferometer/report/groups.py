"""The tables of traffic classes and of replicas: one row for each, with its rates and latencies."""

from collections.abc import Sequence

from inferometer.analysis import settings
from inferometer.analysis.groups import Group
from inferometer.analysis.percentiles import label_of
from inferometer.analysis.summary import Summary
from inferometer.records import Run
from inferometer.report import formatting, tables
from inferometer.report.document import Block, Note, Section, Table

_STREAMED = (("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("tpot", "p99"), ("e2e", "p99"))
_NOT_STREAMED = tuple(("e2e", column) for column in ("mean", "p50", "p90", "p95", "p99"))
_OPTIONAL = ("tpot p50", "e2e p90", "e2e mean", "ttft p50", "e2e p95", "tpot p99")
"""Columns that a narrow table leaves out, the first of them first."""
_MAX_ROWS = 32


def classes(run: Run, summary: Summary) -> Section:
    """One row per traffic class; with several stages, one per class and stage."""
    rows = [(group.name, group) for group in summary.classes]
    if summary.stages:
        rows = [(f"{group.name}, {stage.name}", group) for stage in summary.stages for group in stage.classes]
    return Section("classes", "Classes", _table("classes, ms", rows, run))


def replicas(run: Run, summary: Summary) -> Section:
    """One row per replica. Stages with different loads have no common latencies."""
    rows = [(group.name, group) for group in summary.replicas]
    return Section("replicas", "Replicas", _table("replicas, ms", rows, run))


def _table(title: str, rows: Sequence[tuple[str, Group]], run: Run) -> list[Block]:
    streamed = any(group.metrics["ttft"].count for _, group in rows if group.metrics)
    has_text = streamed or settings.receives_text(run.manifest)
    metrics = ("ttft", "tpot", "e2e") if has_text else ("e2e",)
    columns = tables.by_metric(run.manifest, metrics, _STREAMED if has_text else _NOT_STREAMED)
    columns = columns if any(group.metrics for _, group in rows) else []
    titles = [f"{name} {label_of(column)}" for name, column in columns]
    cells = [
        (
            formatting.one_line(label, 40),
            f"{group.counts.ok:,}",
            f"{group.counts.failed + group.counts.dropped:,}",
            formatting.number(group.throughput.requests),
            *(tables.marked(group.metrics[name], column) if name in group.metrics else "-" for name, column in columns),
        )
        for label, group in rows[:_MAX_ROWS]
    ]
    more = len(rows) - _MAX_ROWS
    return [
        Table(title, ["ok", "failed", "req/s", *titles], cells, (*_OPTIONAL, *titles[:0:-1])),
        *([Note(f"and {more:,} more, which are in summary.json")] if more > 0 else []),
    ]
