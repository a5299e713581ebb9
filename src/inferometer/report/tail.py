"""The section of the report about slow requests: which cause explains how much of the tail, and the timeline of one request."""

from collections.abc import Mapping

from inferometer.analysis.summary import Summary
from inferometer.analysis.tail import SlowRequest, Tail, TailMetric
from inferometer.analysis.tail_parts import CAUSES, TYPICAL
from inferometer.report import formatting
from inferometer.report.document import GAP, Block, Note, Section, Table
from inferometer.units import format_seconds

_LEADING = 0.5
"""The share from which on a cause is worth a note in every report."""
_LONG_TAIL = 1.5
"""The p99, in medians, from which on it is."""
_NOT_NAMED = ("queue_or_prefill", "unexplained")
_OPTIONAL = ("ttft, ms", "e2e, ms")
"""Columns that a narrow table leaves out, the first of them first."""


def tail_notes(summary: Summary) -> list[str]:
    """One sentence for each long tail of which one cause explains more than half."""
    return [
        f"{f'{name}: ' if name else ''}{metric.sentence} (--why has more)"
        for name, tail in tails(summary)
        for metric in tail.metrics.values()
        if _has_leading_cause(metric)
    ]


def why_slow(summary: Summary) -> Section:
    """The causes of each tail, and the slowest requests."""
    blocks: list[Block] = []
    for name, tail in tails(summary):
        title = f"why the tail is slow{f', {formatting.one_line(name, 40)}' if name else ''}"
        blocks += [*([GAP] if blocks else []), Note(title, "strong"), *_tail(tail)]
    unknown = Note((("why the tail is slow", "strong"), ("   not known: nothing was measured", "")), "")
    return Section("slowest", "Slowest", blocks or [unknown])


def timeline(request: SlowRequest) -> Section:
    """Where the time of one request went, beside that of the requests in the middle."""
    figures = {"TTFT": request.ttft, "end to end": request.e2e}
    about = [f"{label} {format_seconds(value)}" for label, value in figures.items() if value is not None]
    counts = {"input": request.input_tokens, "output": request.output_tokens}
    about += [f"{count:,} {label} tokens" for label, count in counts.items() if count is not None]
    about += [f"failed: {request.failure}"] if request.failure else []
    rows, strong = [], []
    for number, step in enumerate(request.steps):
        strong += [number] if step.cause == request.main_cause and step.above > 0 else []
        label = "first token, usual" if step.cause == TYPICAL else CAUSES[step.cause].label
        rows.append((label, *map(_milliseconds, (step.seconds, step.seconds - step.above, step.above))))
    title = f"request {request.id}, {format_seconds(request.start)} after the start"
    took = Table("where its time went, ms", ["took", "usually", "more"], rows, strong=strong)
    blocks: list[Block] = [Note(title, "strong"), Note(", ".join(about), ""), took]
    if request.stalls:
        blocks.append(_stalls(request))
    usual = Note("usually: the mean of the requests between p40 and p60 of the end-to-end time")
    return Section("request", "Request", [*blocks, usual])


def tails(summary: Summary) -> list[tuple[str, Tail]]:
    """The tail of the run, or those of its stages with their names."""
    if summary.tail is not None:
        return [("", summary.tail)]
    return [(stage.name, stage.tail) for stage in summary.stages if stage.tail is not None]


def _has_leading_cause(metric: TailMetric) -> bool:
    return (
        metric.p99 >= _LONG_TAIL * metric.p50
        and bool(metric.causes)
        and metric.causes[0].share > _LEADING
        and metric.causes[0].cause not in _NOT_NAMED
    )


def _tail(tail: Tail) -> list[Block]:
    if not tail.metrics:
        return [Note(f"not known: {tail.reason or 'no request has a latency'}", "")]
    blocks: list[Block] = [Note(metric.sentence, "") for metric in tail.metrics.values()]
    if any(metric.causes for metric in tail.metrics.values()):
        blocks.append(_causes(tail.metrics))
    return [*blocks, *([_slowest(tail.slowest)] if tail.slowest else [])]


def _causes(metrics: Mapping[str, TailMetric]) -> Table:
    """One row per cause, with its share of each tail."""
    shown = {name: metric for name, metric in metrics.items() if metric.causes}
    columns = [column for name in shown for column in (f"{name}, ms", f"{name}, %")]
    by_cause = {name: {each.cause: each for each in metric.causes} for name, metric in shown.items()}
    rows = []
    for cause in CAUSES:
        found = {name: each[cause] for name, each in by_cause.items() if cause in each}
        if not any(each.share >= 0.005 for each in found.values()):
            continue
        pairs = [
            (_milliseconds(found[name].seconds), f"{100 * found[name].share:.0f}") if name in found else ("-", "-")
            for name in shown
        ]
        rows.append((CAUSES[cause].label, *(cell for pair in pairs for cell in pair)))
    return Table("p99 - p50", columns, rows, _OPTIONAL)


def _slowest(requests: tuple[SlowRequest, ...]) -> Table:
    rows = [
        (
            str(each.id),
            formatting.number(each.start),
            _milliseconds(each.ttft),
            _milliseconds(each.e2e),
            *_tokens(each),
            CAUSES[each.main_cause].label,
        )
        for each in requests
    ]
    columns = ["at, s", "ttft, ms", "e2e, ms", "in", "out", "main cause"]
    more = "--why ID shows where the time of a request went"
    return Table("slowest requests", columns, rows, ("out", "in", "at, s"), notes=[more])


def _tokens(request: SlowRequest) -> tuple[str, str]:
    counts = (request.input_tokens, request.output_tokens)
    first, second = ("-" if count is None else f"{count:,}" for count in counts)
    return first, second


def _stalls(request: SlowRequest) -> Table:
    rows = [
        (
            str(number),
            _milliseconds(stall.at),
            _milliseconds(stall.seconds),
            f"{100 * stall.shared:.0f}",
            CAUSES[stall.cause].label,
        )
        for number, stall in enumerate(request.stalls, 1)
    ]
    return Table("stalls", ["at, ms", "took, ms", "shared, %", "cause"], rows)


def _milliseconds(seconds: float | None) -> str:
    return formatting.milliseconds(seconds, 1)
