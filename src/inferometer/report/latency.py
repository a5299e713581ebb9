"""The table of latencies, with their confidence intervals, and what has to be said about it."""

from collections.abc import Iterable, Mapping, Sequence

from inferometer.analysis.percentiles import Distribution, label_of
from inferometer.analysis.summary import Summary
from inferometer.analysis.throughput import Throughput
from inferometer.records import Run
from inferometer.report import formatting, tables
from inferometer.report.document import Note, Section, Table

LATENCIES = ("ttft", "itl", "tpot", "e2e")
SERVICE = ("ttft_service", "e2e_service")
SERVER_PARTS = ("queue", "compute", "protocol", "network")
"""Parts of the end-to-end time that a server reports for each request."""
_RATES = {
    "offered": "requests/s offered",
    "requests": "requests/s",
    "output_tokens": "output tokens/s",
    "inferences": "inferences/s",
    "in_flight": "in flight",
}
_OPTIONAL = ("p99.9", "p90", "p95", "mean")
"""Columns that a narrow table leaves out, the first of them first."""


def latency(run: Run, summary: Summary) -> Section:
    """Latencies in ms, then the lag, which tells how much of them is due to late sends."""
    is_open = run.manifest.plan[0].open  # stages with different loads have no common table
    names = [name for name in LATENCIES if summary.metrics[name].count]
    if summary.metrics["reasoning_tokens"].max or 0:
        names.insert(names.index("ttft") + 1, "ttft_content")
    service = [name for name in SERVICE if is_open and summary.metrics[name].count]
    rows = [(name.replace("_", " "), summary.metrics[name]) for name in [*names, *service, "lag"]]
    counts_requests = summary.sessions is not None and run.manifest.plan[0].unit == "requests"
    legend = _legend(names, is_open, "a turn that was due" if counts_requests else "a free user")
    columns = tables.columns_of(run.manifest)
    table = percentiles("latency, ms", [row for row in rows if row[1].count], columns, range(len(names)), legend)
    failed = max((found.infinite for _, found in rows), default=0)
    return Section("latency", "Latency", [table, *failures_note(failed)])


def percentiles(
    title: str,
    rows: Sequence[tuple[str, Distribution]],
    columns: Mapping[str, str],
    strong: Sequence[int] = (),
    *notes: str,
) -> Table:
    """A row for each distribution, in ms, with its confidence interval."""
    confidence = f"{label_of(tables.interval_of(columns))}, 95 % CI"
    needs = {columns.get(name, ""): one.needs for _, found in rows for name, one in found.unsupported.items()}
    return Table(
        title,
        [*columns.values(), confidence],
        [(label, *_cells(found, columns)) for label, found in rows],
        (confidence, *_optional(columns)),
        strong,
        flush=True,
        notes=notes,
        needs={name: needs[name] for name in columns.values() if name in needs},
    )


def failures_note(failed: int) -> list[Note]:
    """How failed requests are counted."""
    text = f"{failed:,} failed requests count as infinitely slow (measure.failures_as_inf)"
    return [Note(text)] if failed else []


def details(run: Run, summary: Summary) -> Section:
    """Percentiles that a terminal has no room for: of the server's own times and, if there are several stages, of each stage."""
    columns = tables.columns_of(run.manifest)
    blocks = by_part([(stage.name, stage.metrics, stage.throughput) for stage in summary.stages], columns)
    if not summary.stages and (rows := _rows(summary.metrics, SERVER_PARTS)):
        blocks.append(percentiles("server, ms", rows, columns))
    return Section("details", "Details", blocks)


def by_part(
    parts: Iterable[tuple[str, Mapping[str, Distribution], Throughput]], columns: Mapping[str, str]
) -> list[Table]:
    """A table for each part that has latencies, with all of its latencies and rates."""
    found = []
    for name, metrics, throughput in parts:
        rates = {unit: getattr(throughput, rate) for rate, unit in _RATES.items()}
        note = ", ".join(f"{formatting.number(rate)} {unit}" for unit, rate in rates.items() if rate is not None)
        if rows := _rows(metrics, (*LATENCIES, *SERVER_PARTS)):
            found.append(percentiles(f"{formatting.one_line(name, 60)}, ms", rows, columns, (), note))
    return found


def _rows(metrics: Mapping[str, Distribution], names: Sequence[str]) -> list[tuple[str, Distribution]]:
    return [(name, metrics[name]) for name in names if name in metrics and metrics[name].count]


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


def _cells(found: Distribution, columns: Mapping[str, str]) -> list[str]:
    """Milliseconds, all with the decimals that suit the median."""
    decimals = formatting.decimals_for(1e3 * (found.value("p50") or 0))
    ends = found.ci.get(tables.interval_of(columns), (None, None))
    interval = " .. ".join(formatting.milliseconds(end, decimals) for end in ends)
    return [*(tables.marked(found, name, decimals) for name in columns), interval]
