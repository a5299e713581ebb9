"""The table of `inferometer runs`, and its entries."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from rich.table import Table
from rich.text import Text

from inferometer.report import formatting
from inferometer.report.document import MARK
from inferometer.report.safe_console import SafeConsole
from inferometer.report.width import fitted

State = Literal["complete", "incomplete", "running", "not uploaded", "damaged"]
_STYLES = {"complete": "", "running": "cyan", "incomplete": "yellow", "not uploaded": "yellow", "damaged": "red"}
_WIDEST_SERVER, _WIDEST_MODEL, _WIDEST_LOAD = 40, 32, 44
_OPTIONAL = ("server", "started", "tok/s", "p99")
"""Columns that are left out if there is too little space, the first of them first."""


class Latency(msgspec.Struct, frozen=True):
    """Percentiles in seconds: "inf" if too many requests failed, None if there are no values."""

    p50: float | Literal["inf"] | None = None
    p99: float | Literal["inf"] | None = None
    supported: dict[str, bool] = {}
    """Whether there are enough values for them."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A run, or several runs in one folder."""

    name: str
    folder: str
    """Its folder or URL."""
    kind: str = "run"
    """run, or a key of KINDS (kinds.py)."""
    state: State
    started: str = ""
    """ISO 8601, in UTC; "" if it is not known."""
    model: str = ""
    server: str = ""
    load: str = ""
    """The load of a run, or the result of a search for the capacity."""
    verdict: str = ""
    """VALID or INVALID; of several runs: how many are which, such as `3 VALID, 1 INVALID`."""
    runs: int = 1
    requests: int | None = None
    """How many succeeded."""
    failed: int | None = None
    rate: float | None = None
    """Requests completed per second."""
    output_tokens: float | None = None
    """Tokens generated per second."""
    ttft: Latency = Latency()
    e2e: Latency = Latency()


def render(entries: Sequence[Entry], width: int, color: bool) -> str:
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


def _times(found: Latency) -> list[str]:
    values = {"p50": found.p50, "p99": found.p99}
    return [_time(value) + ("" if found.supported.get(name, True) else MARK) for name, value in values.items()]


def _time(seconds: float | str | None) -> str:
    """The time with its unit; "inf" stays as it is."""
    if seconds is None or isinstance(seconds, str):
        return seconds or ""
    return f"{seconds * 1e3:,.1f} ms" if seconds < 10 else f"{seconds:,.1f} s"
