"""The table of stages: one row for each load, with its rates and latencies."""

from inferometer.analysis import settings
from inferometer.analysis.overload import Overload
from inferometer.analysis.percentiles import label_of
from inferometer.analysis.summary import StageSummary, Summary
from inferometer.analysis.sweep import describe_knee
from inferometer.records import Run
from inferometer.report import formatting, tables
from inferometer.report.document import Note, Section, Table
from inferometer.units import format_seconds

_STREAMED = (("ttft", "p50"), ("ttft", "p99"), ("itl", "p50"), ("itl", "p99"), ("e2e", "p99"))
_NOT_STREAMED = tuple(("e2e", column) for column in ("mean", "p50", "p90", "p95", "p99"))
_OPTIONAL = ("offered/s", "itl p50", "e2e p90", "itl p99", "e2e mean", "ttft p50", "e2e p95")
"""Columns that a narrow table leaves out, the first of them first."""


def stages(run: Run, summary: Summary) -> Section:
    """One row per stage; an overloaded stage has no latencies, and a note that says why."""
    streamed = any(stage.metrics["ttft"].count for stage in summary.stages)
    has_text = streamed or settings.receives_text(run.manifest)
    metrics = ("ttft", "itl", "e2e") if has_text else ("e2e",)
    columns = tables.by_metric(run.manifest, metrics, _STREAMED if has_text else _NOT_STREAMED)
    is_open = any(plan.open for plan in run.manifest.plan)
    rates = ["offered/s", "req/s"] if is_open else ["req/s"]
    titles = [f"{name} {label_of(column)}" for name, column in columns]
    rows = []
    for stage in summary.stages:
        counts = (f"{stage.counts.ok:,}", f"{stage.counts.failed + stage.counts.dropped:,}")
        shown = [stage.throughput.offered, stage.throughput.requests][-len(rates) :]
        is_overloaded = stage.overload.status == "overloaded"
        cells = ["-" if is_overloaded else tables.marked(stage.metrics[name], column) for name, column in columns]
        rows.append((_label(stage), *counts, *map(formatting.number, shown), *cells))
    notes = [
        Note(f"{_label(stage)}: {describe(stage.overload)}", "bad")
        for stage in summary.stages
        if stage.overload.status == "overloaded"
    ]
    knee = [Note(describe_knee(found), "strong")] if (found := summary.knee or summary.no_knee) else []
    table = Table("stages, ms", ["ok", "failed", *rates, *titles], rows, (*_OPTIONAL, *titles[:0:-1]))
    return Section("stages", "Stages", [table, *notes, *knee])


def describe(overload: Overload) -> str:
    """What an overloaded stage has instead of latencies."""
    cut = overload.cut_short
    until = f"; cut short after {format_seconds(cut.after)} of {format_seconds(cut.planned)}" if cut else ""
    return (
        f"overloaded{until}: requests in flight grew by {formatting.number(overload.growth)} per second, so latencies have no steady value; "
        f"the server completes about {formatting.number(overload.capacity)} requests/s"
    )


def _label(stage: StageSummary) -> str:
    return formatting.one_line(stage.name, 24)
