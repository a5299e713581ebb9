"""The report of a capacity search in the terminal: the answer, the closed loops as bars, the interval on a scale, and the probes."""

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from inferometer.capacity_search.result import Capacity, Probe
from inferometer.capacity_search.trials import Bracket, By
from inferometer.report import formatting
from inferometer.report.capacity import (
    PURPOSES,
    UNITS,
    amount,
    basis,
    chatting,
    notes,
    reason,
    required,
    verdict,
    words,
)
from inferometer.report.console import new_console
from inferometer.report.width import bare, columns
from inferometer.units import format_seconds

COLOURS = {"good": "green", "bad": "red", "warn": "yellow"}
_BAR, _SCALE, _SHORTEST = 18, 56, 20
_EIGHTHS = " ▏▎▍▌▋▊▉"


def render(found: Capacity, color: bool = False, width: int | None = None) -> str:
    """Render the report for `width` columns; by default, for the width of standard output."""
    width = columns() if width is None else width
    console = new_console(color, width)
    with console.capture() as capture:
        for part in (_answer(found), *_picture(found, width), Text(f"probes in {found.folder}", style="dim")):
            console.print(Padding(part, (0, 0, 1, 1)))
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join(lines).rstrip("\n") + "\n"


def _answer(found: Capacity) -> RenderableType:
    lines = [
        Text(formatting.one_line(f"{found.url} · {found.model}", 200), style="dim"),
        Text(words(found), style="bold"),
    ]
    if found.at_least is not None:
        sign, style = {"met": ("✓", "green"), "missed": ("✗", "red"), "undecided": ("?", "yellow")}[found.outcome]
        lines.append(Text(f"{sign} {required(found)}", style=style))
    lines += [Text(text, style="dim") for text in (basis(found), chatting(found)) if text]
    return Group(*lines, *(Text(note, style="yellow") for note in notes(found)))


def _picture(found: Capacity, width: int) -> list[RenderableType]:
    """The closed loops and the probes, without those of which there are none."""
    parts: list[RenderableType] = [closed_loops(found.curve)] if found.curve else []
    if found.levels or found.bracket.low is not None:
        line = scale(found.by, found.levels, found.bracket, width)
        parts.append(Group(line, Text(), _probes(found)) if found.levels else line)
    return parts


def closed_loops(probes: Sequence[Probe], in_progress: float | None = None) -> Table:
    """The throughput of each closed loop as a bar: the curve."""
    table = bare()
    table.add_column("in flight", justify="right")
    table.add_column("requests/s")
    for name in ("verdict", "evidence", "time"):
        table.add_column(name)
    most = max((probe.throughput or 0.0 for probe in probes), default=0.0)
    for probe in probes:
        sign, word, tone = verdict(probe)
        table.add_row(
            f"{probe.level:,.0f} ",
            Text.assemble((_bar((probe.throughput or 0.0) / most if most else 0.0), "cyan"), f" {formatting.number(probe.throughput)} "),
            Text(f"{sign} {word} ", style=COLOURS[tone]),
            Text(f"{reason(probe)} ", style="dim"),
            Text(format_seconds(probe.seconds), style="dim"),
        )  # fmt: skip
    if in_progress is not None:
        table.add_row(f"{in_progress:,.0f} ", Text("●", style="bold cyan"))
    return table


def _bar(share: float) -> str:
    eighths = round(share * _BAR * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def scale(by: By, probes: Sequence[Probe], found: Bracket, width: int, in_progress: float | None = None) -> Text:
    """A log scale of the levels: what holds, what fails, each probe with its verdict, and the one in progress. A dotted line is an estimate."""
    levels = [probe.level for probe in probes] + [one for one in (found.low, found.high, in_progress) if one]
    first, last = min(levels) / 1.06, max(levels) * 1.06
    text = f" {amount(last)} {UNITS[by]}   "
    long = max(min(width - len(f" {amount(first)} {text}{interval(found)}"), _SCALE), _SHORTEST)
    marks = [("─", "dim")] * long

    def at(level: float) -> int:
        return min(int(math.log(level / first) / math.log(last / first) * long), long - 1)

    for index in range(long):
        if found.low is not None and index <= at(found.low):
            marks[index] = ("┄" if found.low_basis == "estimated" else "━", "green")
        elif found.high is not None and index >= at(found.high):
            marks[index] = ("┄" if found.high_basis == "estimated" else "━", "red")
    for probe in probes:
        sign, _, tone = verdict(probe)
        marks[at(probe.level)] = (sign, f"{'bold ' if probe.is_sure else ''}{COLOURS[tone]}")
    if in_progress is not None:
        marks[at(in_progress)] = ("●", "bold cyan")
    return Text.assemble(f"{amount(first)} ", *marks, text, (interval(found), "bold"))


def interval(found: Bracket) -> str:
    """The interval so far: `17.4 to 22.9`; an end that no probe has shown is `~22.9`."""
    ends = ((found.low, found.low_basis), (found.high, found.high_basis))
    texts = ["?" if end is None else f"{'~' if base == 'estimated' else ''}{amount(end)}" for end, base in ends]
    return " to ".join(texts)


def _probes(found: Capacity) -> RenderableType:
    table = bare()
    for name in (UNITS[found.by], "verdict", "evidence", "time", "purpose"):
        table.add_column(f"{name} ", justify="right" if name == UNITS[found.by] else "left")
    for probe in found.levels:
        sign, word, tone = verdict(probe)
        table.add_row(
            f"{amount(probe.level)} ",
            Text(f"{sign} {word} ", style=COLOURS[tone]),
            Text(f"{reason(probe)} ", style="dim"),
            Text(f"{format_seconds(probe.seconds)} ", style="dim"),
            Text(PURPOSES[probe.purpose], style="dim"),
        )
    return table
