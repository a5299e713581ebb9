"""The table of what another tool would report, beside our figures and the reasons for the differences."""

from rich.console import Group, RenderableType
from rich.text import Text

from inferometer.analysis.other_tools import Figure, ReportAs, StageAs
from inferometer.report import formatting, tables
from inferometer.report.width import fitted

_OPTIONAL = ("our name", "difference")
"""Columns that a narrow table leaves out, the first of them first."""


def other_tools_table(found: ReportAs, width: int) -> RenderableType:
    """Latencies in ms, rates per second; each reason once, below the table."""
    parts: list[RenderableType] = []
    for stage in found.stages:
        name = f", {formatting.one_line(stage.stage, 40)}" if stage.stage else ""
        parts.append(Text(f"what {found.tool} would report{name}", style="bold"))
        counts = f"{stage.completed:,} completed, {stage.failed:,} failed, in {formatting.number(stage.duration)} s"
        parts += [Text(counts), Text(), *_stage(stage, width), Text()]
    parts += [Text(note, style="dim") for note in found.notes]
    parts.append(Text("latencies in ms, rates per second; `inferometer docs metrics` has the definitions", style="dim"))
    return Group(*parts)


def _stage(stage: StageAs, width: int) -> list[RenderableType]:
    reasons = list(dict.fromkeys(figure.reason for figure in stage.figures if figure.reason))
    table = tables.table("figure", ["theirs", "ours", "difference", "why", "our name"])
    for figure in stage.figures:
        number = f"({reasons.index(figure.reason) + 1})" if figure.reason else ""
        cells = (
            *(_cell(figure, value) for value in (figure.theirs, figure.ours)),
            _difference(figure),
            number,
            figure.our_name,
        )
        table.add_row(f"{figure.statistic} {figure.figure}".strip(), *(f"{cell} " for cell in cells))
    return [
        fitted(table, width, _OPTIONAL),
        *(Text(f"({number}) {reason}") for number, reason in enumerate(reasons, 1)),
    ]


def _cell(figure: Figure, value: float | None) -> str:
    return formatting.milliseconds(value) if figure.statistic else formatting.number(value)


def _difference(figure: Figure) -> str:
    if figure.theirs is None or not figure.ours:
        return "-"
    return f"{100 * (figure.theirs / figure.ours - 1):+.1f} %"
