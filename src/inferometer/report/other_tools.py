"""The table of what another tool would report, beside our figures and the reasons for the differences."""

from inferometer.analysis.other_tools import Figure, ReportAs, StageAs
from inferometer.report import formatting
from inferometer.report.document import GAP, Block, Note, Section, Table

_OPTIONAL = ("our name", "difference")
"""Columns that a narrow table leaves out, the first of them first."""


def other_tools_table(found: ReportAs) -> Section:
    """Latencies in ms, rates per second; each reason once, below the table."""
    blocks: list[Block] = []
    for stage in found.stages:
        name = f", {formatting.one_line(stage.stage, 40)}" if stage.stage else ""
        blocks.append(Note(f"what {found.tool} would report{name}", "strong"))
        counts = f"{stage.completed:,} completed, {stage.failed:,} failed, in {formatting.number(stage.duration)} s"
        blocks += [Note(counts, ""), GAP, *_stage(stage), GAP]
    blocks += map(Note, found.notes)
    definitions = Note("latencies in ms, rates per second; `inferometer docs metrics` has the definitions")
    return Section("as", f"What {found.tool} would report", [*blocks, definitions])


def _stage(stage: StageAs) -> list[Block]:
    reasons = list(dict.fromkeys(figure.reason for figure in stage.figures if figure.reason))
    rows = [
        (
            f"{figure.statistic} {figure.figure}".strip(),
            *(_cell(figure, value) for value in (figure.theirs, figure.ours)),
            _difference(figure),
            f"({reasons.index(figure.reason) + 1})" if figure.reason else "",
            figure.our_name,
        )
        for figure in stage.figures
    ]
    table = Table("figure", ["theirs", "ours", "difference", "why", "our name"], rows, _OPTIONAL)
    return [table, *(Note(f"({number}) {reason}", "") for number, reason in enumerate(reasons, 1))]


def _cell(figure: Figure, value: float | None) -> str:
    return formatting.milliseconds(value) if figure.statistic else formatting.number(value)


def _difference(figure: Figure) -> str:
    if figure.theirs is None or not figure.ours:
        return "-"
    return f"{100 * (figure.theirs / figure.ours - 1):+.1f} %"
