"""The table of sessions: their length, tokens and cache hits, and the time to first token by turn."""

from collections.abc import Sequence

from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.sessions import SessionSummary
from inferometer.analysis.summary import Summary
from inferometer.report import formatting, tables
from inferometer.report.document import MARK, Block, Note, Section, Table

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


def section(summary: Summary) -> Section:
    """The sessions of the run; of stages with different loads, a row each."""
    by_stage = [(stage.name, stage.sessions) for stage in summary.stages if stage.sessions is not None]
    blocks: list[Block] = []
    if summary.sessions is not None:
        blocks = sessions(summary.sessions)
    elif by_stage:
        blocks = [_by_stage(by_stage)]
    return Section("sessions", "Sessions", blocks)


def sessions(found: SessionSummary) -> list[Block]:
    """Their figures, the time to first token by turn, and how many there were."""
    rows = [
        (label, *_cells(found.metrics[name], 100.0 if name == "cached_share" else 1.0))
        for name, label in _ROWS.items()
        if found.metrics[name].count
    ]
    rows += [
        (f"ttft, turn {turn}, ms", *_cells(found.ttft_by_turn[turn], 1e3)) for turn in _shown(list(found.ttft_by_turn))
    ]
    counts = f"{found.ok:,} ok, {found.failed:,} failed"
    if found.cut:
        counts += f", {found.cut:,} cut off by the end of the load"
    return [Table("sessions", list(tables.COLUMNS.values()), rows, _OPTIONAL), Note(counts)]


def _by_stage(found: Sequence[tuple[str, SessionSummary]]) -> Table:
    """One row per stage, with its name. The other figures are in summary.json."""
    columns = ["ok", "failed", "cut off", "turns", "duration p50", "duration p99", "cached, %", "ttft 1st", "ttft last"]
    rows = []
    for name, each in found:
        turns = list(each.ttft_by_turn.values())
        cells = [
            formatting.one_line(name, 24),
            *(f"{count:,}" for count in (each.ok, each.failed, each.cut)),
            _cell(each.metrics["turns"], "mean"),
            _cell(each.metrics["duration"], "p50"),
            _cell(each.metrics["duration"], "p99"),
            _cell(each.metrics["cached_share"], "mean", 100.0),
            *(_cell(turn, "p50", 1e3) for turn in (turns[:1] + turns[-1:])),
        ]
        rows.append(cells + [""] * (len(columns) + 1 - len(cells)))
    note = "durations in s; ttft: p50 of the first and of the last turn, in ms; turns and cached: means"
    return Table("sessions", columns, rows, _OPTIONAL_BY_STAGE, notes=[note])


def _shown(turns: list[str]) -> list[str]:
    return turns if len(turns) <= _MOST_TURNS else [*turns[: _MOST_TURNS - 1], turns[-1]]


def _cells(found: Distribution, scale: float) -> list[str]:
    return [_cell(found, column, scale) for column in tables.COLUMNS]


def _cell(found: Distribution, column: str, scale: float = 1.0) -> str:
    value = found.value(column)
    mark = MARK if column in found.unsupported else ""
    return formatting.count(None if value is None else value * scale) + mark
