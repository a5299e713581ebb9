"""The report's last section: which service level objectives are met, missed or undecided, and the goodput."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from inferometer.analysis.slo import Goodput
from inferometer.analysis.slo_expression import parse
from inferometer.analysis.slo_result import SloResult
from inferometer.analysis.summary import Summary
from inferometer.report import formatting

_SIGNS = {"missed": ("✗", "red"), "undecided": ("?", "yellow"), "met": ("✓", "green")}
_ROOM = len(" ? undecided  ") + 8
"""Width of the first column and of the space between all of them."""


def objectives(summary: Summary, width: int) -> RenderableType:
    """The section, for a summary that has objectives: a line that sums them up, one for each, and the goodput."""
    statuses = [result.status for result in summary.slos]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in _SIGNS if status in statuses)
    lines: list[RenderableType] = [Text.assemble(("objectives", "bold"), f"   {counts}")]
    lines.append(Padding(_table(summary, width), (0, 0, 0, 1)))
    goodputs = [(stage.name, stage.goodput) for stage in summary.stages] or [("", summary.goodput)]
    lines += [_goodput(name, goodput) for name, goodput in goodputs if goodput is not None]
    return Group(*lines)


def _table(summary: Summary, width: int) -> Table:
    """One row per objective, with the reason at its end, or below it if there is no room."""
    rows = []
    for result in summary.slos:
        value = "" if result.value is None else parse(result.expression).amount(result.value)
        reason = _where(result, summary) + formatting.one_line(result.reason, 1000)
        rows.append((result, value, reason))
    longest = [
        max(map(len, column)) for column in zip(*((one.slo, value, why) for one, value, why in rows), strict=True)
    ]
    is_wide = sum(longest) + _ROOM <= width
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for result, value, reason in rows:
        sign, style = _SIGNS[result.status]
        figures = Text(result.slo.ljust(longest[0] + 2)).append(value.rjust(longest[1]), "bold")
        figures.append(f"  {reason}" if is_wide else f"\n{reason}", "" if is_wide else "dim")
        table.add_row(Text(f"{sign} {result.status}", style=f"bold {style}"), figures)
    return table


def _where(result: SloResult, summary: Summary) -> str:
    """The stages that a result is about, unless it is the same in all of them."""
    if not result.stages or len(result.stages) == len(summary.stages):
        return ""
    names = [stage.name for stage in summary.stages if stage.stage in result.stages]
    return f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''}: "


def _goodput(stage: str, goodput: Goodput) -> Text:
    low, high = (None if end is None else 100 * end for end in goodput.ci["attainment"])
    interval = f"{formatting.number(low, 2)} .. {formatting.number(high, 2)} %"
    return Text.assemble(
        ("goodput", "bold"),
        f"   {stage}: " if stage else "   ",
        (formatting.number(goodput.rate), "bold"),
        " requests/s, ",
        (f"{formatting.number(100 * goodput.attainment, 2)} %", "bold"),
        f" of the requests met {' & '.join(goodput.slos)}",
        (f" (95 % CI {interval})", "dim"),
    )
