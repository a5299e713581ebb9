"""Time series recorded beside the requests: what observers saw of a server, and how the client's own processes fared.

An observer produces rows; `series.parquet` holds them; a run gives them back as one `TimeSeries` per source, name and labels.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray


class SeriesRow(NamedTuple):
    """One value of one series at one time."""

    source: str
    """Where the value comes from: `client`, `kserve` ..."""
    name: str
    labels: dict[str, str]
    at: int
    """ns: CLOCK_MONOTONIC as long as the run lasts, since t=0 in what is stored (negative before the start)."""
    value: float


class TimeSeries(msgspec.Struct, frozen=True):
    """All values that share a source, a name and labels, ordered by time."""

    source: str
    name: str
    labels: dict[str, str]
    at: NDArray[np.int64]
    """ns since t=0."""
    value: NDArray[np.float64]


def group(rows: Iterable[SeriesRow]) -> tuple[TimeSeries, ...]:
    """Collect rows into series, in the order in which the series first occur."""
    found: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[SeriesRow]] = {}
    for row in rows:
        found.setdefault((row.source, row.name, tuple(sorted(row.labels.items()))), []).append(row)
    return tuple(_series(source, name, dict(labels), rows) for (source, name, labels), rows in found.items())


def _series(source: str, name: str, labels: dict[str, str], rows: list[SeriesRow]) -> TimeSeries:
    rows = sorted(rows, key=lambda row: row.at)
    at = np.array([row.at for row in rows], np.int64)
    return TimeSeries(source, name, labels, at, np.array([row.value for row in rows], np.float64))
