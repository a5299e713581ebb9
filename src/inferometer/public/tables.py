"""The records of a run as Arrow tables."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from inferometer.analysis.metrics import METRICS
from inferometer.records import Run
from inferometer.store import arrow
from inferometer.store.folder import CHUNKS, REQUESTS, SERIES, files_of

_FILES = {"chunks": CHUNKS, "series": SERIES, "requests": REQUESTS}


def stored(folder: Path, name: str) -> pa.Table:
    """Read one of the run's tables. Raises UserError when its file is missing or damaged."""
    tables = []
    for path in files_of(folder, _FILES[name]) or [folder / _FILES[name]]:
        with arrow.open_parquet(path, []) as file:
            try:
                tables.append(file.read())
            except (OSError, pa.ArrowException) as error:
                raise arrow.damaged(path, error) from None
    return pa.concat_tables(tables)


def requests(run: Run) -> pa.Table:
    """requests.parquet with a column for each latency, in seconds; null if a request does not have it."""
    table = stored(run.folder, "requests")
    for metric in METRICS.values():
        if metric.unit == "s" and metric.values is not None:
            values = metric.values(run.records.rows)
            table = table.append_column(f"{metric.name}_s", arrow.numbers(values, np.isnan(values)))
    return table
