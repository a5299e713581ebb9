"""CSV with one row per request, for spreadsheets: times in seconds since t=0, and latencies; empty where missing."""

from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from inferometer.analysis.metrics import METRICS
from inferometer.records import COUNTED_BY, MISSING, NAMED, PHASES, TIMES, Run
from inferometer.report.formatting import csv_cell
from inferometer.units import NS

_COPIED = ("id", "stage", "shard", "url")
_COUNTS = ("n_in", "n_out", "cached", "reasoning")
_ROWS_AT_ONCE = 100_000


def write(run: Run, file: IO[bytes]) -> None:
    """Write all requests, in pieces of bounded size."""
    for at in range(0, max(len(run.records.rows), 1), _ROWS_AT_ONCE):
        options = pa.csv.WriteOptions(include_header=at == 0, quoting_style="needed")
        pa.csv.write_csv(_table(run, slice(at, at + _ROWS_AT_ONCE)), file, options)


def _table(run: Run, part: slice) -> pa.Table:
    rows, phase, failures = run.records.rows[part], run.records.phase[part], run.records.failures
    columns: dict[str, Any] = {name: rows[name] for name in _COPIED}
    columns |= {name: _or_empty(rows[name], rows[name] < 0) for name in ("session", "turn")}
    for name, names in NAMED.items():
        columns[name] = np.array([*map(csv_cell, getattr(run.records, names)), ""])[
            rows[name]
        ]  # -1 is the last, which is empty
    columns["phase"] = np.array(PHASES)[phase]
    columns["loop"] = np.where(rows["open_loop"] != 0, "open", "closed")
    columns |= {f"{name}_s": _or_empty(rows[name] / NS, rows[name] == MISSING) for name in TIMES}
    for metric in METRICS.values():
        if metric.unit == "s" and metric.values is not None:
            values = metric.values(rows)
            columns[f"{metric.name}_s"] = _or_empty(values, np.isnan(values))
    columns |= {name: _or_empty(rows[name], rows[name] < 0) for name in _COUNTS}
    columns["tokens_counted_by"] = np.array(COUNTED_BY)[rows["counted_by"]]
    columns["input_tokens_counted_by"] = np.array(COUNTED_BY)[rows["in_counted_by"]]
    columns["chunks"] = rows["chunk_count"]
    columns |= {name: rows[name] for name in ("bytes_out", "bytes_in", "status")}
    columns["failure"] = np.array(["", *(failure.code for failure in failures)])[rows["failure"]]
    columns["message"] = np.array(["", *(csv_cell(failure.message) for failure in failures)])[rows["failure"]]
    return pa.table(columns)


def _or_empty(values: Any, missing: Any) -> pa.Array:
    return pa.array(values, mask=missing)
