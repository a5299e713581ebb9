"""The section of the report about slow requests: which cause explains how much of the tail, and the timeline of one request."""

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from inferometer.analysis.summary import Summary
from inferometer.analysis.tail import SlowRequest, Tail, TailMetric
from inferometer.analysis.tail_parts import CAUSES, TYPICAL
from inferometer.report import formatting, tables
from inferometer.report.width import fitted
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


def why_slow(summary: Summary, width: int) -> RenderableType:
    """The causes of each tail, and the slowest requests."""
    parts: list[RenderableType] = []
    for name, tail in tails(summary):
        title = f"why the tail is slow{f', {formatting.one_line(name, 40)}' if name else ''}"
        parts.append(Group(Text(title, style="bold"), *_tail(tail, width)))
    if not parts:
        return Text.assemble(("why the tail is slow", "bold"), "   not known: nothing was measured")
    spaced = [part if index == 0 else Padding(part, (1, 0, 0, 0)) for index, part in enumerate(parts)]
    return Group(*spaced)


def timeline(request: SlowRequest, width: int) -> RenderableType:
    """Where the time of one request went, beside that of the requests in the middle."""
    figures = {"TTFT": request.ttft, "end to end": request.e2e}
    about = [f"{label} {format_seconds(value)}" for label, value in figures.items() if value is not None]
    counts = {"input": request.input_tokens, "output": request.output_tokens}
    about += [f"{count:,} {label} tokens" for label, count in counts.items() if count is not None]
    about += [f"failed: {request.failure}"] if request.failure else []
    table = tables.table("where its time went, ms", ["took", "usually", "more"])
    for step in request.steps:
        is_main = step.cause == request.main_cause and step.above > 0
        label = "first token, usual" if step.cause == TYPICAL else CAUSES[step.cause].label
        cells = (step.seconds, step.seconds - step.above, step.above)
        table.add_row(label, *(f"{_milliseconds(cell)} " for cell in cells), style="bold" if is_main else "")
    title = f"request {request.id}, {format_seconds(request.start)} after the start"
    parts: list[RenderableType] = [Text(title, style="bold"), Text(", ".join(about)), table]
    if request.stalls:
        parts.append(_stalls(request))
    parts.append(Text("usually: the mean of the requests between p40 and p60 of the end-to-end time", style="dim"))
    return Group(*parts)


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


def _tail(tail: Tail, width: int) -> list[RenderableType]:
    if not tail.metrics:
        return [Text(f"not known: {tail.reason or 'no request has a latency'}")]
    parts: list[RenderableType] = [Text(metric.sentence) for metric in tail.metrics.values()]
    if any(metric.causes for metric in tail.metrics.values()):
        parts.append(_causes(tail.metrics, width))
    if tail.slowest:
        parts += [_slowest(tail.slowest, width), Text("--why ID shows where the time of a request went", style="dim")]
    return parts


def _causes(metrics: Mapping[str, TailMetric], width: int) -> RenderableType:
    """One row per cause, with its share of each tail."""
    shown = {name: metric for name, metric in metrics.items() if metric.causes}
    columns = [column for name in shown for column in (f"{name}, ms", f"{name}, %")]
    table = tables.table("p99 - p50", columns)
    by_cause = {name: {each.cause: each for each in metric.causes} for name, metric in shown.items()}
    for cause in CAUSES:
        found = {name: each[cause] for name, each in by_cause.items() if cause in each}
        if not any(each.share >= 0.005 for each in found.values()):
            continue
        cells = [
            cell
            for name in shown
            for cell in (
                (_milliseconds(found[name].seconds), f"{100 * found[name].share:.0f}") if name in found else ("-", "-")
            )
        ]
        table.add_row(CAUSES[cause].label, *(f"{cell} " for cell in cells))
    return fitted(table, width, _OPTIONAL)


def _slowest(requests: tuple[SlowRequest, ...], width: int) -> RenderableType:
    table = tables.table("slowest requests", ["at, s", "ttft, ms", "e2e, ms", "in", "out", "main cause"])
    for each in requests:
        cause = CAUSES[each.main_cause].label
        cells = (
            formatting.number(each.start),
            _milliseconds(each.ttft),
            _milliseconds(each.e2e),
            *_tokens(each),
            cause,
        )
        table.add_row(str(each.id), *(f"{cell} " for cell in cells))
    return fitted(table, width, ("out", "in", "at, s"))


def _tokens(request: SlowRequest) -> tuple[str, str]:
    counts = (request.input_tokens, request.output_tokens)
    first, second = ("-" if count is None else f"{count:,}" for count in counts)
    return first, second


def _stalls(request: SlowRequest) -> RenderableType:
    table = tables.table("stalls", ["at, ms", "took, ms", "shared, %", "cause"])
    for number, stall in enumerate(request.stalls, 1):
        cells = (
            _milliseconds(stall.at),
            _milliseconds(stall.seconds),
            f"{100 * stall.shared:.0f}",
            CAUSES[stall.cause].label,
        )
        table.add_row(str(number), *(f"{cell} " for cell in cells))
    return table


def _milliseconds(seconds: float | None) -> str:
    return formatting.milliseconds(seconds, 1)
