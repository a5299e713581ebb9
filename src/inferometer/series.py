"""Time series recorded beside the requests: what observers saw of a server, and how the client's own processes fared.

What is recorded is kept in columns, which become one `TimeSeries` per source, name and labels; `series.parquet` holds them. A run may last
for hours: columns take 16 bytes per value, and nothing is done for each value when it has ended.
"""

import math
from array import array

import msgspec
import numpy as np
from numpy.typing import NDArray


class TimeSeries(msgspec.Struct, frozen=True):
    """All values that share a source, a name and labels, ordered by time."""

    source: str
    """Where the values come from: `client`, `kserve` ..."""
    name: str
    labels: dict[str, str]
    at: NDArray[np.int64]
    """ns: CLOCK_MONOTONIC as long as the run lasts, since t=0 in what is stored (negative before the start)."""
    value: NDArray[np.float64]


class Column:
    """A series that is being recorded, in the order of time."""

    __slots__ = ("_labels", "_name", "_source", "at", "value")

    def __init__(self, source: str, name: str, labels: dict[str, str]) -> None:
        self._source, self._name, self._labels = source, name, labels
        self.at, self.value = array("q"), array("d")

    def append(self, at: int, value: float) -> None:
        self.at.append(at)
        self.value.append(value)

    def append_change(self, at: int, value: float) -> None:
        """Append a value unless it is the same as the one before. NaN, which means that there is no value, is the same as NaN."""
        if self.value:
            before = self.value[-1]
            if before == value or (math.isnan(before) and math.isnan(value)):
                return
        self.append(at, value)

    def series(self) -> TimeSeries:
        """Return the series, which shares the memory of this column: nothing can be appended any more."""
        at, value = np.frombuffer(self.at, np.int64), np.frombuffer(self.value, np.float64)
        return TimeSeries(self._source, self._name, self._labels, at, value)


class Columns:
    """All series of one source that are being recorded."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._columns: dict[tuple[str, tuple[tuple[str, str], ...]], Column] = {}

    def append(self, name: str, labels: dict[str, str], at: int, value: float) -> None:
        key = (name, tuple(labels.items()))
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = Column(self._source, name, labels)
        column.append(at, value)

    def series(self) -> tuple[TimeSeries, ...]:
        """Return all series, in the order in which they first occurred. Nothing can be appended any more."""
        return tuple(column.series() for column in self._columns.values())
