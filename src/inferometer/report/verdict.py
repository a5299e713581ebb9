"""The verdict, the checks that did not pass, and which of the figures may be quoted."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from inferometer.analysis.checks import Check, in_words
from inferometer.analysis.resources import unreadable
from inferometer.analysis.server_view import unread
from inferometer.analysis.summary import FIGURES, Summary
from inferometer.records import Run
from inferometer.report import formatting

_STYLES = {"VALID": "green", "VALID with warnings": "yellow", "INVALID": "red"}

_MOST_STAGES = 6
"""With more stages, those whose figures may be quoted alike are listed together."""


def verdict(run: Run, summary: Summary, width: int) -> RenderableType:
    """The verdict in words, with the checks that failed or warned."""
    by_status = {status: [c for c in summary.checks if c.status == status] for status in ("fail", "warn", "pass")}
    words = in_words(summary.checks)
    names = {"fail": "failed", "warn": "warned", "pass": "passed"}
    counts = ", ".join(f"{len(by_status[status])} {name}" for status, name in names.items() if by_status[status])
    lines: list[RenderableType] = [
        Text.assemble((f" {words} ", f"bold white on {_STYLES[words]}"), f"  checks: {counts}")
    ]
    lines += [_check(check, "✗", "red", width) for check in by_status["fail"]]
    lines += [_check(check, "!", "yellow", width) for check in by_status["warn"]]
    if by_status["fail"]:
        lines.append(Padding(Text(f"may be quoted: {may_be_quoted(summary)}", style="bold"), (0, 0, 0, 1)))
    elsewhere = unread(run.manifest)  # report/server.py prints them
    if summary.resources is not None:
        elsewhere |= unreadable(run.manifest)  # report/resources.py
    for name, why in run.manifest.observer_errors.items():
        if name not in elsewhere:
            lines.append(Text(formatting.one_line(f"observer {name}: {why}", 1000), style="yellow"))
    return Group(*lines)


def may_be_quoted(summary: Summary) -> str:
    """Say which figures no failed check concerns: of the run or, if they differ, of each stage."""
    if not summary.stages or len({tuple(stage.quotable.items()) for stage in summary.stages}) == 1:
        return _kinds(summary.quotable)
    if len(summary.stages) <= _MOST_STAGES:
        return "; ".join(f"{stage.name}: {_kinds(stage.quotable)}" for stage in summary.stages)
    by_kinds: dict[str, list[int]] = {}
    for index, stage in enumerate(summary.stages):
        by_kinds.setdefault(_kinds(stage.quotable), []).append(index)
    names = [stage.name for stage in summary.stages]
    return "; ".join(f"{formatting.name_ranges(names, own)}: {kinds}" for kinds, own in by_kinds.items())


def _kinds(quotable: dict[str, bool]) -> str:
    kinds = [kind for kind in FIGURES if quotable[kind]]
    missing = [kind for kind in FIGURES if not quotable[kind]]
    return f"{' and '.join(kinds)}, not {missing[0]}" if kinds and missing else " and ".join(kinds) or "nothing"


def _check(check: Check, sign: str, style: str, width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=1, style=f"bold {style}")
    grid.add_column(width=13, style=style)
    grid.add_column(width=width - 19)
    grid.add_row(sign, check.name, Text(formatting.one_line(check.message, 1000)))
    return Padding(grid, (0, 0, 0, 1))
