"""The comparison of protocols: a table and bars for the terminal, a chart for a file.

The report in the terminal is the same bytes for the same comparison and width. The chart is a Vega-Lite figure that altair
builds and vl-convert draws. Both come with the extra `report` and are imported only for a chart.
"""

import importlib.util
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from inferometer.analysis.breakdown import LEAST_EXCESS, PER_REQUEST, WHY_EXCESS
from inferometer.analysis.percentiles import PERCENTILES, needed
from inferometer.analysis.protocol_comparison import PROTOCOLS, Cell, Comparison
from inferometer.errors import UserError
from inferometer.report import formatting
from inferometer.report.console import new_console
from inferometer.report.document import MARK
from inferometer.report.width import WIDTH, bare, columns, fitted
from inferometer.units import format_seconds

_BESIDE_BARS = 44
"""Columns of a line that are not its bar."""
_PARTS = {
    "server": ("█", "cyan"),
    "protocol": ("▓", "magenta"),
    "network": ("▒", "yellow"),
    "overhead": ("▒", "yellow"),
    "not split": ("░", ""),
}
_BYTES_NOTE = (
    "bytes per request, without TCP and TLS. HTTP: head and body. gRPC: headers and message; for responses only "
    "the messages, as their headers, trailers and frame headers (about 50 bytes) are not recorded"
)
_OPTIONAL = ("mean", "bytes in", "bytes out")
"""Columns that a narrow table leaves out, the first of them first. The mean is beside the bars, too."""


def format_size(size: int) -> str:
    """Format a size exactly: `1 kB`, `100 kB`, `10 MB`, `1,004 B`."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale and size * 100 % scale == 0:
            return f"{size / scale:g} {unit}"
    return f"{size:,} B"


def describe_cell(protocol: str, size: int) -> str:
    """Name a cell of the table: `gRPC unary, 1 kB`."""
    return f"{PROTOCOLS[protocol].label}, {format_size(size)}"


# --- the terminal ----------------------------------------------------------------------------------------------------


def render(found: Comparison, color: bool = False, width: int | None = None) -> str:
    """Render the comparison for `width` columns; by default, for the width of standard output."""
    width = columns() if width is None else width
    console = new_console(color, width)
    with console.capture() as capture:
        for part in (_title(found), _table(found, width), _bars(found, width - _BESIDE_BARS), *_invalid(found)):
            console.print(Padding(part, (0, 0, 1, 1)))
    lines = [line.rstrip() for line in capture.get().splitlines()]
    return "\n".join(lines).rstrip("\n") + "\n"


def _title(found: Comparison) -> RenderableType:
    urls = [url for url in (found.http, found.grpc) if url is not None]
    length = f"{found.requests:,} requests" if found.requests else format_seconds(found.duration or 0)
    rounds = f" in each of {found.rounds} rounds" if found.rounds > 1 else ""
    lines = [
        Text(formatting.one_line(" · ".join([found.model, found.server or "?", *urls]), WIDTH - 2), style="bold"),
        Text(f"closed loop, {found.concurrency:,} in flight, {length} per cell{rounds} · {found.started}", style="dim"),
    ]
    missing = {"http": found.http, "grpc": found.grpc}
    lines += [
        Text(f"{name} was not measured: its URL was not given", style="yellow")
        for name, url in missing.items()
        if url is None
    ]
    lines += [Text(formatting.one_line(reason, 1000), style="yellow") for reason in found.left_out]
    if found.interrupted:
        lines.append(Text("interrupted: not everything was measured", style="bold red"))
    return Group(*lines)


def _table(found: Comparison, width: int) -> RenderableType:
    table = bare()
    table.add_column("times in ms", min_width=12, no_wrap=True)
    outside = _outside(found)
    for name in ("req/s", "e2e p50", "p99", "mean", "server", *outside, "bytes out", "bytes in"):
        table.add_column(f"{name} ", justify="right", no_wrap=True, min_width=8)
    table.add_column("verdict", no_wrap=True)
    for index, size in enumerate(_sizes(found)):
        table.add_row(Text(format_size(size), style="bold"), end_section=False)
        for cell in _of_size(found, size):
            table.add_row(f" {PROTOCOLS[cell.protocol].label}", *_numbers(cell, outside), _verdict(cell))
        if index < len(_sizes(found)) - 1:
            table.add_row()
    table = fitted(table, width, _OPTIONAL)
    notes = _notes(found)
    if any("bytes" in str(column.header) for column in table.columns):
        notes.append(_BYTES_NOTE)
    return Group(table, *(Text(note, style="dim") for note in notes))


def _outside(found: Comparison) -> tuple[str, ...]:
    """The parts of the time outside of the model that all cells have."""
    split = [cell for cell in found.cells if cell.source is not None]
    return ("protocol", "network") if split and all(cell.network is not None for cell in split) else ("overhead",)


_OUTSIDE: dict[str, Callable[[Cell], float | None]] = {
    "overhead": lambda cell: cell.overhead,
    "protocol": lambda cell: cell.protocol_time,
    "network": lambda cell: cell.network,
}


def _numbers(cell: Cell, outside: Sequence[str]) -> list[Text]:
    cells = [f"{formatting.number(cell.throughput)} "]
    for name in ("p50", "p99"):
        mark = MARK if name in cell.e2e.unsupported else " "
        cells.append(formatting.milliseconds(cell.e2e.value(name)) + mark)
    mean = cell.e2e.mean if cell.mean is None else cell.mean
    times = (mean, cell.server, *(_OUTSIDE[name](cell) for name in outside))
    cells += [f"{formatting.milliseconds(value)} " for value in times]
    cells += ["- " if value is None else f"{value:,.0f} " for value in (cell.bytes_out, cell.bytes_in)]
    return [Text(text) for text in cells]


def _verdict(cell: Cell) -> Text:
    return Text(cell.verdict, style="green" if cell.verdict == "VALID" else "bold red")


_EXPLAINED = {
    ("overhead",): "mean = server + overhead; overhead is the network and the server's handling of the protocol",
    ("protocol", "network"): "mean = server + protocol + network; protocol: the server outside of queue and compute",
}


def _notes(found: Comparison) -> list[str]:
    """Explain the figures that these cells have."""
    notes = []
    sources = {cell.source for cell in found.cells if cell.source is not None}
    if sources:
        notes.append(_EXPLAINED[_outside(found)])
    if PER_REQUEST in sources:
        notes.append("server: queue and compute, as the server reported them for each request")
    if sources - {PER_REQUEST}:
        notes.append("server: queue and compute, averages of the server's own statistics, warm-up included")
    notes += _excesses(found)
    for why in dict.fromkeys(cell.no_split for cell in found.cells if cell.source is None):
        notes.append(f"-: {formatting.one_line(why or 'the server does not report how long it took', 1000)}")
    if strangers := sum(cell.strangers for cell in found.cells):
        notes.append(f"the server counted {strangers:,} more requests: from other clients, or ones that failed here")
    marked = {name for cell in found.cells for name in ("p50", "p99") if name in cell.e2e.unsupported}
    if marked:
        wanted = ", ".join(f"{needed(PERCENTILES[name]):,} for {name}" for name in sorted(marked))
        notes.append(f"{MARK} too few values: it needs {wanted}")
    return notes


def _excesses(found: Comparison) -> list[str]:
    """Name the cell in which the server's own time exceeds what the client saw by most, and how many others there are."""
    cells = sorted(found.cells, key=lambda cell: -cell.excess)
    cells = [cell for cell in cells if cell.excess >= LEAST_EXCESS]
    if not cells:
        return []
    most, more = cells[0], f" (and less in {_other_cells(len(cells) - 1)})" if len(cells) > 1 else ""
    where = f"{describe_cell(most.protocol, most.size)}{more}"
    more = f"the server reports {formatting.milliseconds(most.excess)} ms more than the client saw"
    return [f"{more}: {where}. Overhead is 0 there: {WHY_EXCESS[most.source or PER_REQUEST]}"]


def _bars(found: Comparison, room: int) -> RenderableType:
    """Bars of the mean end-to-end time and its parts. Each size has its own scale: its longest bar is `room` wide."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=13, no_wrap=True)
    grid.add_column(width=room, no_wrap=True)
    grid.add_column(no_wrap=True)
    shown = {name for cell in found.cells for name, _ in parts(cell)}
    legend = Text("end to end, mean: ")
    for name, (sign, style) in _PARTS.items():
        if name in shown:
            legend.append(sign * 2, style).append(f" {name}  ", "dim")
    for size in _sizes(found):
        cells = _of_size(found, size)
        longest = max((math.fsum(value for _, value in parts(cell)) for cell in cells), default=0.0)
        grid.add_row(Text(format_size(size), style="bold"))
        for cell in cells:
            total = math.fsum(value for _, value in parts(cell))
            label = f"{formatting.milliseconds(total)} ms" if parts(cell) else "no successful response"
            grid.add_row(f" {PROTOCOLS[cell.protocol].label}", _bar(cell, longest, room), label)
    return Group(legend, grid)


def _bar(cell: Cell, longest: float, room: int) -> Text:
    bar, so_far, drawn = Text(), 0.0, 0
    for name, value in parts(cell):
        so_far += value
        end = max(round(room * so_far / longest), drawn + (value > 0)) if longest else 0
        sign, style = _PARTS[name]
        bar.append(sign * (min(end, room) - drawn), style)
        drawn = min(end, room)
    return bar


def parts(cell: Cell) -> list[tuple[str, float]]:
    """The parts of the mean end-to-end time, in seconds; what the server reports beyond it is not drawn."""
    if cell.server is not None and cell.protocol_time is not None and cell.network is not None and not cell.excess:
        return [
            ("server", cell.server),
            ("protocol", max(cell.protocol_time, 0.0)),
            ("network", max(cell.network, 0.0)),
        ]
    if cell.server is not None and cell.overhead is not None:
        return [("server", cell.server - cell.excess), ("overhead", cell.overhead)]
    return [] if cell.e2e.mean is None else [("not split", cell.e2e.mean)]


def _invalid(found: Comparison) -> list[RenderableType]:
    """Why cells are INVALID: for each failed check its first message, and how many other cells failed it."""
    failed: dict[str, dict[str, str]] = {}
    for cell in found.cells:
        for reason in cell.reasons:
            check, _, message = reason.partition(": ")
            failed.setdefault(check, {}).setdefault(describe_cell(cell.protocol, cell.size), message)
    lines = []
    for check, by_cell in failed.items():
        (first, message), *others = by_cell.items()
        more = f" and {_other_cells(len(others))}" if others else ""
        lines.append(
            Text.assemble(("✗ ", "bold red"), (f"{check}: {first}{more}: ", "red"), formatting.one_line(message, 1000))
        )
    return [Group(*lines)] if lines else []


def _other_cells(count: int) -> str:
    return f"{count} other cell{'s' if count > 1 else ''}"


def _sizes(found: Comparison) -> list[int]:
    return list(dict.fromkeys(cell.size for cell in found.cells))


def _of_size(found: Comparison, size: int) -> list[Cell]:
    return [cell for cell in found.cells if cell.size == size]


# --- the chart -------------------------------------------------------------------------------------------------------

FORMATS = (".svg", ".png", ".html")
_COLORS = {
    "server": "#2f6f9f",
    "protocol": "#b2559b",
    "network": "#f0a44b",
    "overhead": "#f0a44b",
    "not split": "#b8b8b8",
}
_INK, _FAINT, _RULE = "#222222", "#666666", "#bbbbbb"
_WIDTH, _STEP = 560, 26


def check_chart(path: str) -> None:
    """Check before a measurement that a chart can be drawn. Raises UserError for unknown suffixes and missing packages."""
    if Path(path).suffix.lower() not in FORMATS:
        raise UserError(f"--chart {path}: unknown file type", f"use one of {', '.join(FORMATS)}")
    absent = [name for name in ("altair", "vl_convert") if importlib.util.find_spec(name) is None]
    if absent:
        raise UserError(f"--chart needs {' and '.join(absent)}", "pip install 'inferometer[report]'")


def draw(found: Comparison, path: str) -> None:
    """Draw the chart into a file, whose suffix sets the format. HTML files need no network."""
    check_chart(path)
    kind = Path(path).suffix.lower().removeprefix(".")
    options: dict[str, dict[str, Any]] = {"html": {"inline": True}, "png": {"scale_factor": 2}}
    try:
        chart(found).save(path, format=kind, **options.get(kind, {}))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}", "give a path that can be written") from None


_IN_CHART = {
    ("overhead",): "overhead: the rest, including the handling of the protocol",
    ("protocol", "network"): "protocol: the rest of the server's time; network: outside of the server",
}


def chart(found: Comparison) -> Any:
    """Build the chart: bars of the mean end-to-end time and its parts, one panel per size, each with its own scale."""
    import altair as alt  # noqa: PLC0415  (heavy, and an extra)

    shown = {name for cell in found.cells for name, _ in parts(cell)}
    known = [name for name in _COLORS if name in shown]
    panels = [_panel(alt, _of_size(found, size), size, known) for size in _sizes(found)]
    length = f"{found.requests:,} requests" if found.requests else format_seconds(found.duration or 0)
    rounds = f" × {found.rounds} rounds" if found.rounds > 1 else ""
    source = {cell.source for cell in found.cells} - {None}
    measured = "per request" if source == {PER_REQUEST} else "averages of its statistics"
    lines = [
        f"model {found.model} on {found.server or 'an unnamed server'}: mean end-to-end time, {found.concurrency:,} in flight, {length} per bar{rounds}; each size has its own scale",
        f"server: queue and compute ({measured}); {_IN_CHART[_outside(found)]}",
    ]
    is_complete = len({cell.protocol for cell in found.cells}) == len(PROTOCOLS)
    title = alt.TitleParams(
        "One model, four protocols" if is_complete else "One model, by protocol",
        subtitle=lines if source else lines[:1],
        anchor="start", fontSize=18, subtitleFontSize=12, color=_INK, subtitleColor=_FAINT, offset=16,
    )  # fmt: skip
    return (
        alt.vconcat(*panels, spacing=18, title=title, padding=16, background="white")
        .resolve_scale(x="independent")
        .configure_view(stroke=None)
        .configure_axis(
            labelFontSize=12, titleFontSize=12, labelColor=_INK, titleColor=_FAINT, titleFontWeight="normal"
        )
        .configure_legend(labelFontSize=12, labelColor=_INK)
    )


def chart_rows(cells: Sequence[Cell]) -> list[dict[str, object]]:
    """The data of a panel: one row per part of a bar, in milliseconds."""
    rows = []
    for cell in cells:
        start = 0.0
        for name, seconds in parts(cell):
            end = start + seconds * 1e3
            rows.append({"protocol": PROTOCOLS[cell.protocol].label, "part": name, "start": start, "end": end})
            start = end
    return rows


def _chart_labels(cells: Sequence[Cell]) -> list[dict[str, object]]:
    labels = []
    for cell in cells:
        total = math.fsum(seconds for _, seconds in parts(cell)) * 1e3
        text = (
            f"{formatting.number(total)} ms · {formatting.number(cell.throughput)} requests/s"
            if total
            else "no successful response"
        )
        invalid = "" if cell.verdict == "VALID" else f" · {cell.verdict}"
        labels.append(
            {"protocol": PROTOCOLS[cell.protocol].label, "end": total, "text": text + invalid, "valid": not invalid}
        )
    return labels


def _panel(alt: Any, cells: Sequence[Cell], size: int, known: Sequence[str]) -> Any:
    labels = _chart_labels(cells)
    longest = max((float(str(label["end"])) for label in labels), default=0.0) or 1.0
    # Leave room for the text after the longest bar.
    scale = alt.Scale(domain=[0, longest * 1.65], nice=False)
    y = alt.Y("protocol:N", sort=None, title=None, axis=alt.Axis(domain=False, ticks=False, labelPadding=8))
    bars = (
        alt.Chart(alt.Data(values=chart_rows(cells)))
        .mark_bar(height=_STEP - 9)
        .encode(
            x=alt.X(
                "start:Q",
                scale=scale,
                title="ms",
                axis=alt.Axis(
                    values=_ticks(longest),
                    format=",~r",
                    grid=False,
                    titleAnchor="start",
                    domainColor=_RULE,
                    tickColor=_RULE,
                ),
            ),
            x2="end:Q",
            y=y,
            color=alt.Color(
                "part:N",
                title=None,
                scale=alt.Scale(domain=known, range=[_COLORS[name] for name in known]),
                legend=alt.Legend(orient="top", direction="horizontal", symbolType="square"),
            ),
        )
    )
    text = (
        alt.Chart(alt.Data(values=labels))
        .mark_text(align="left", dx=6, fontSize=12)
        .encode(
            x="end:Q",
            y=y,
            text="text:N",
            color=alt.condition("datum.valid", alt.value(_INK), alt.value("#b00020")),
        )
    )
    title = alt.TitleParams(f"{format_size(size)} tensor", anchor="start", fontSize=13, color=_INK, offset=6)
    return alt.layer(bars, text).properties(width=_WIDTH, height=alt.Step(_STEP), title=title)


def _ticks(longest: float) -> list[float]:
    """A few round values up to the length of the longest bar."""
    step = 1.0
    while step > longest / 2:
        step /= 10
    while step * 10 <= longest / 2:
        step *= 10
    step *= next(times for times in (5, 2, 1) if longest / (step * times) >= 2)
    return [round(step * number, 12) for number in range(int(longest / step) + 1)]
