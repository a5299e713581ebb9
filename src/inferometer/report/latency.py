"""The table of latencies, with their confidence intervals, and what has to be said about it."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inferometer.analysis.percentiles import Distribution, label_of
from inferometer.analysis.summary import Summary
from inferometer.records import Run
from inferometer.report import formatting, tables
from inferometer.report.width import fitted

LATENCIES = ("ttft", "itl", "tpot", "e2e")
SERVICE = ("ttft_service", "e2e_service")
_OPTIONAL = ("p99.9", "p90", "p95", "mean")
"""Columns that a narrow table leaves out, the first of them first."""


def latency(run: Run, summary: Summary, width: int) -> RenderableType:
    """Latencies in ms, then the lag, which tells how much of them is due to late sends."""
    is_open = run.manifest.plan[0].open  # stages with different loads have no common table
    names = [name for name in LATENCIES if summary.metrics[name].count]
    if summary.metrics["reasoning_tokens"].max or 0:
        names.insert(names.index("ttft") + 1, "ttft_content")
    service = [name for name in SERVICE if is_open and summary.metrics[name].count]
    columns = tables.columns_of(run.manifest)
    confidence = f"{label_of(tables.interval_of(columns))}, 95 % CI"
    table = tables.table("latency, ms", [*columns.values(), confidence])
    for name in names:
        _row(table, name.replace("_", " "), summary.metrics[name], columns, style="bold")
    for name in service:
        _row(table, name.replace("_", " "), summary.metrics[name], columns)
    if summary.metrics["lag"].count:
        _row(table, "lag", summary.metrics["lag"], columns)
    table = fitted(table, width, (confidence, *_optional(columns)))
    shown = [summary.metrics[name] for name in [*names, *service, "lag"]]
    counts_requests = summary.sessions is not None and run.manifest.plan[0].unit == "requests"
    waiting = "a turn that was due" if counts_requests else "a free user"
    notes = [
        _legend(names, is_open, waiting),
        *_footnotes(shown, columns, [str(column.header).strip() for column in table.columns]),
    ]
    return Group(table, *(Text(note, style="dim") for note in notes))


def _legend(names: list[str], is_open: bool, waiting: str) -> str:
    """Say from when the rows count: in open loop the intended send time, in closed loop the send, for which something waited."""
    if "e2e" not in names:
        return f"lag: {'from the intended send time to the send' if is_open else f'how long {waiting} waited for the send'}"
    which = "ttft and e2e count" if "ttft" in names else "e2e counts"
    if is_open:
        return f"{which} from the intended send time, service from the actual send; lag is the difference"
    return f"{which} from the send (closed loop); lag: how long {waiting} waited for it"


def _optional(columns: Mapping[str, str]) -> Sequence[str]:
    """Columns that a narrow table leaves out: of requested percentiles, the mean and the maximum come first."""
    return _OPTIONAL if columns is tables.COLUMNS else ("mean", "max", *columns.values())


def _row(table: Table, label: str, found: Distribution, columns: Mapping[str, str], style: str = "") -> None:
    """Add a row in milliseconds, all with the decimals that suit the median."""
    decimals = formatting.decimals_for(1e3 * (found.value("p50") or 0))
    low, high = (
        formatting.milliseconds(end, decimals) for end in found.ci.get(tables.interval_of(columns), (None, None))
    )
    cells = []
    for name in columns:
        mark = tables.MARK if name in found.unsupported else ""
        shown = formatting.milliseconds(found.value(name), decimals)
        cells.append(Text.assemble(shown, (mark or " ", "yellow"), style="dim" if mark else ""))
    table.add_row(Text(label, style=style), *cells, f"{low} .. {high}")


def _footnotes(shown: list[Distribution], titles: Mapping[str, str], columns: list[str]) -> list[str]:
    """Explain the mark for each column of the table that has it, and how failures are counted."""
    needs: dict[str, int] = {}
    for each in shown:
        needs |= {titles.get(name, ""): found.needs for name, found in each.unsupported.items()}
    notes = []
    marked = [name for name in columns if name in needs]
    if marked:
        wanted = ", ".join(f"{needs[name]:,} for {name}" for name in marked)
        notes.append(f"{tables.MARK} too few independent values: it needs {wanted}")
    if failed := max((each.infinite for each in shown), default=0):
        notes.append(f"{failed:,} failed requests count as infinitely slow (measure.failures_as_inf)")
    return notes
