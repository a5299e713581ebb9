"""The table of sessions: their length, tokens and cache hits, and the time to first token by turn."""

from rich.console import Group, RenderableType
from rich.text import Text

from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.sessions import SessionSummary
from inferometer.report import formatting, tables
from inferometer.report.width import fitted

_ROWS = {
    "duration": "duration, s",
    "turns": "turns",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "cached_tokens": "cached tokens",
    "cached_share": "cached, %",
}
_MOST_TURNS = 8
"""Turns with a row of their own. Of longer sessions, the first ones and the last are shown."""
_OPTIONAL = ("p99.9", "p90", "p95", "mean")
"""Columns that a narrow table leaves out, the first of them first."""


def sessions(found: SessionSummary, width: int) -> RenderableType:
    table = tables.table("sessions", list(tables.COLUMNS.values()))
    for name, label in _ROWS.items():
        if found.metrics[name].count:
            table.add_row(label, *_cells(found.metrics[name], 100.0 if name == "cached_share" else 1.0))
    for turn in _shown(list(found.ttft_by_turn)):
        table.add_row(f"ttft, turn {turn}, ms", *_cells(found.ttft_by_turn[turn], 1e3))
    counts = f"{found.ok:,} ok, {found.failed:,} failed"
    if found.cut:
        counts += f", {found.cut:,} cut off by the end of the load"
    return Group(fitted(table, width, _OPTIONAL), Text(counts, style="dim"))


def _shown(turns: list[str]) -> list[str]:
    return turns if len(turns) <= _MOST_TURNS else [*turns[: _MOST_TURNS - 1], turns[-1]]


def _cells(found: Distribution, scale: float) -> list[str]:
    values = ((name, found.value(name)) for name in tables.COLUMNS)
    return [
        formatting.count(None if value is None else value * scale) + (tables.MARK if name in found.unsupported else " ")
        for name, value in values
    ]
