"""Reads the requests that have ended from the spools of all shards, each of them once."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from inferometer.records import ROW, Failure
from inferometer.store.spool import Control, failures_of, rows_of

Rows = np.ndarray[tuple[int], np.dtype[np.void]]
_MOST = 100_000
"""Maximum number of rows in one piece."""


class NewRows:
    """The rows that are new since the last call. The shards need not have started yet."""

    def __init__(self, spool: Path, shards: int) -> None:
        self._spool = spool
        self._controls: list[Control | None] = [None] * shards
        self._read = [0] * shards
        self._failures: list[list[Failure]] = [[] for _ in range(shards)]

    def pieces(self) -> Iterator[tuple[int, Rows]]:
        """Yield (shard, rows) for what has been recorded since. Times are CLOCK_MONOTONIC; `control(shard)["t0"]` is the start."""
        for shard in range(len(self._controls)):
            control = self.control(shard)
            count = control["rows"] if control is not None else 0
            while self._read[shard] < count:
                first = self._read[shard]
                upto = min(count, first + _MOST)
                self._read[shard] = upto
                rows = rows_of(self._spool, shard, upto, first)
                assert rows.dtype == ROW
                yield shard, rows

    def control(self, shard: int) -> Control | None:
        """Return the control file of a shard; None if it does not exist yet."""
        if self._controls[shard] is None:
            with contextlib.suppress(FileNotFoundError, ValueError):  # ValueError: it is being written
                self._controls[shard] = Control(self._spool / f"{shard}.control", create=False)
        return self._controls[shard]

    def failure(self, shard: int, number: int) -> Failure:
        """Return the failure that `number`, the column `failure` of one of its rows, stands for (not 0)."""
        if number > len(self._failures[shard]):
            self._failures[shard] = failures_of(self._spool, shard)
        return self._failures[shard][number - 1]
