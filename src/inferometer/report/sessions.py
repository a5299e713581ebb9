"""The table of sessions: their length, tokens and cache hits, and the time to first token by turn."""

from collections.abc import Sequence

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

_OPTIONAL_BY_STAGE = ("cached, %", "cut off", "ttft last", "duration p99")


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


def sessions_by_stage(found: Sequence[tuple[str, SessionSummary]], width: int) -> RenderableType:
    """One row per stage, with its name. The other figures are in summary.json."""
    columns = ["ok", "failed", "cut off", "turns", "duration p50", "duration p99", "cached, %", "ttft 1st", "ttft last"]
    table = tables.table("sessions", columns)
    for name, each in found:
        turns = list(each.ttft_by_turn.values())
        table.add_row(
            formatting.one_line(name, 24),
            *(f"{count:,} " for count in (each.ok, each.failed, each.cut)),
            _cell(each.metrics["turns"], "mean"),
            _cell(each.metrics["duration"], "p50"),
            _cell(each.metrics["duration"], "p99"),
            _cell(each.metrics["cached_share"], "mean", 100.0),
            *(_cell(turn, "p50", 1e3) for turn in (turns[:1] + turns[-1:])),
        )
    note = "durations in s; ttft: p50 of the first and of the last turn, in ms; turns and cached: means"
    return Group(fitted(table, width, _OPTIONAL_BY_STAGE), Text(note, style="dim"))


def _shown(turns: list[str]) -> list[str]:
    return turns if len(turns) <= _MOST_TURNS else [*turns[: _MOST_TURNS - 1], turns[-1]]


def _cells(found: Distribution, scale: float) -> list[str]:
    return [_cell(found, column, scale) for column in tables.COLUMNS]


def _cell(found: Distribution, column: str, scale: float = 1.0) -> str:
    value = found.value(column)
    mark = tables.MARK if column in found.unsupported else " "
    return formatting.count(None if value is None else value * scale) + mark
