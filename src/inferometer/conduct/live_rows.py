"""The rows of a run in progress, as the analysis reads those of a stored run."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferometer.records import CANCELLED, DROPPED, LOST, MISSING, TIMES, Columns, Failure
from inferometer.store.spool import failures_of

Rows = np.ndarray[tuple[int], np.dtype[np.void]]
_BY_CLIENT = (CANCELLED, DROPPED, LOST)


class _SinceStart:
    """Columns of rows from the spool, with times since t=0; one is converted when it is read."""

    def __init__(self, rows: Rows, t0: int) -> None:
        self._rows, self._t0 = rows, t0

    def __getitem__(self, name: str, /) -> NDArray[Any]:
        column = self._rows[name]
        return np.where(column == 0, MISSING, column - self._t0) if name in TIMES else column


def since_start(rows: Rows, t0: int) -> Columns:
    """The rows of a snapshot with times since t=0, MISSING for what did not happen."""
    return Columns(len(rows), _SinceStart(rows, t0))


class ServerRows:
    """Leaves out the rows of requests that the client itself cancelled or dropped: they say nothing about the server."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._by_client: dict[int, list[bool]] = {}  # by shard: whether each of its failures is the client's doing

    def of(self, rows: Rows) -> Rows:
        failed = rows["failure"] > 0
        if not failed.any():
            return rows
        keep = np.ones(len(rows), np.bool_)
        for shard in np.unique(rows["shard"][failed]).tolist():
            own = failed & (rows["shard"] == shard)
            keep[own] = ~self._is_by_client(shard, rows["failure"][own])
        return rows if keep.all() else rows[keep]

    def _is_by_client(self, shard: int, numbers: NDArray[np.int32]) -> NDArray[np.bool_]:
        known = self._by_client.get(shard, [])
        if int(numbers.max()) > len(known):
            known = [failure.code in _BY_CLIENT for failure in failures_of(self._spool, shard)]
            self._by_client[shard] = known
        table = np.array([False, *known], np.bool_)
        return table[np.minimum(numbers, len(table) - 1)]


class LiveFailures:
    """The failures of rows, read from the spool when there are new ones."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._known: dict[int, list[Failure]] = {}  # by shard

    def of(self, rows: Rows) -> list[Failure | None]:
        """The failure of each row; None: it succeeded."""
        return [
            self._failure(shard, number) if number else None
            for shard, number in zip(rows["shard"].tolist(), rows["failure"].tolist(), strict=True)
        ]

    def _failure(self, shard: int, number: int) -> Failure:
        if number > len(self._known.get(shard, [])):
            self._known[shard] = failures_of(self._spool, shard)
        return self._known[shard][number - 1]
