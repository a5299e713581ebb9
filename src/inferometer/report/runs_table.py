"""The table of `inferometer runs`."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from rich.table import Table
from rich.text import Text

from inferometer.report import formatting
from inferometer.report.document import MARK
from inferometer.report.safe_console import SafeConsole
from inferometer.report.width import fitted

_STYLES = {"complete": "", "running": "cyan", "incomplete": "yellow", "not uploaded": "yellow", "damaged": "red"}
_WIDEST_SERVER, _WIDEST_MODEL, _WIDEST_LOAD = 40, 32, 44
_OPTIONAL = ("server", "started", "tok/s", "p99")
"""Columns that are left out if there is too little space, the first of them first."""


class Percentiles(Protocol):
    @property
    def p50(self) -> float | str | None: ...
    @property
    def p99(self) -> float | str | None: ...
    @property
    def supported(self) -> Mapping[str, bool]: ...


class Listed(Protocol):
    """What the table shows of an entry (conduct/catalog.py)."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def started(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def server(self) -> str: ...
    @property
    def load(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def runs(self) -> int: ...
    @property
    def rate(self) -> float | None: ...
    @property
    def output_tokens(self) -> float | None: ...
    @property
    def ttft(self) -> Percentiles: ...
    @property
    def e2e(self) -> Percentiles: ...


def render(entries: Sequence[Listed], width: int, color: bool) -> str:
    """The entries as a table of that width, one line each."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("name", "started", "state", "verdict", "model", "load"):
        table.add_column(title, no_wrap=title != "load")
    for title in ("req/s", "tok/s", "ttft p50", "p99", "e2e p50", "p99"):
        table.add_column(title, no_wrap=True, justify="right")
    table.add_column("server", no_wrap=True)
    for each in entries:
        several = "" if each.kind == "run" else f"{each.kind} of {each.runs} runs" if each.runs != 1 else each.kind
        table.add_row(
            Text(each.name),
            Text(each.started[:19].replace("T", " ")),
            Text(each.state, _STYLES.get(each.state, "")),
            Text(each.verdict, "red" if "INVALID" in each.verdict else "green"),
            Text(each.model[:_WIDEST_MODEL]),
            Text(": ".join(filter(None, (several, each.load)))[:_WIDEST_LOAD]),
            *(Text(formatting.rate(number, 4) if number else "") for number in (each.rate, each.output_tokens)),
            *(Text(time) for found in (each.ttft, each.e2e) for time in _times(found)),
            Text(each.server[:_WIDEST_SERVER]),
        )
    console = SafeConsole(width=width, force_terminal=color, no_color=not color, highlight=False, legacy_windows=False)
    with console.capture() as captured:
        console.print(_shortened(fitted(table, width, _OPTIONAL)))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _shortened(table: Table) -> Table:
    """The table with loads that end in an ellipsis, rather than going on in the next line, if there is too little space."""
    for column in table.columns:
        for cell in column.cells:
            if isinstance(cell, Text):
                cell.no_wrap, cell.overflow = True, "ellipsis"
    return table


def _times(found: Percentiles) -> list[str]:
    values = {"p50": found.p50, "p99": found.p99}
    return [_time(value) + ("" if found.supported.get(name, True) else MARK) for name, value in values.items()]


def _time(seconds: float | str | None) -> str:
    """The time with its unit; "inf" stays as it is."""
    if seconds is None or isinstance(seconds, str):
        return seconds or ""
    return f"{seconds * 1e3:,.1f} ms" if seconds < 10 else f"{seconds:,.1f} s"
