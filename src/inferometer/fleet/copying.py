"""Copies what a shard records in its own folder to its parent's spool folder, if they share no folder: on Ray.

The shard's end reads what is new, in rounds: Arrow columns first (store/spool_columns.py), and then the numbers of the control file
as they were when the round began. So the parent's folder is always a consistent, slightly older copy, in which no number is ahead
of its columns. Chunks and texts may stay with the shard, if it stores them elsewhere (shard_store.py).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from inferometer.store.spool import CONTROL, FROM_PARENT, Control
from inferometer.store.spool_columns import SCHEMAS, Piece, pieces_of, put
from inferometer.timing.clock import now

BULKY = frozenset({"chunks", "bodies"})
"""Tables that the parent does not need while the run is in progress."""
_COUNTED = ("rows", "chunks")
"""Tables whose length is a number in the control file. The others grow at their end; peek is written again and again."""
_FROM_SHARD = tuple(name for name in CONTROL if name not in FROM_PARENT)


class Numbers(NamedTuple):
    """The shard's numbers in its control file, at the beginning of a round that is complete."""

    values: tuple[int, ...]
    t0: int
    """By the shard's own clock."""


class FolderReader:
    """The shard's end. One thread at a time may read."""

    def __init__(self, folder: Path, shard: int, control: Control, piece: int) -> None:
        self._folder, self._shard, self._control = folder, shard, control
        self._piece = piece
        self._sent = dict.fromkeys(SCHEMAS, 0)
        self.left_out: frozenset[str] = frozenset()
        """Tables that are not read."""

    def round(self, is_last: bool = False) -> Iterator[Piece | Numbers]:
        """Yield what is new since the round before. `is_last`: the shard has ended, and rows that were changed after they had
        been copied are copied again."""
        if is_last and self._control["recounted"]:
            self._sent["rows"] = 0
        numbers = tuple(self._control[name] for name in _FROM_SHARD)
        counts = dict(zip(_FROM_SHARD, numbers, strict=True))
        for table in SCHEMAS:
            if table in self.left_out:
                continue
            first = 0 if table == "peek" else self._sent[table]
            for piece, after in pieces_of(
                self._folder, self._shard, table, first, self._end(table, counts), self._piece
            ):
                self._sent[table] = after
                yield piece
        yield Numbers(numbers, self._control["t0"])

    def _end(self, table: str, counts: dict[str, int]) -> int:
        """Return how far the table can be read (spool_columns.py)."""
        if table in _COUNTED:
            return counts[table]
        path = self._folder / f"{self._shard}.{table}"
        if table == "peek":
            return int(path.exists())
        return path.stat().st_size if path.exists() else 0


class FolderCopy:
    """The parent's end: writes into the spool folder of the job."""

    def __init__(self, folder: Path, shard: int) -> None:
        self._folder, self._shard = folder, shard
        self.control = Control(folder / f"{shard}.control", create=False)
        self._alive_at, self._heartbeat = now(), 0

    def put(self, piece: Piece) -> None:
        put(self._folder, self._shard, piece)

    def put_numbers(self, numbers: Numbers) -> None:
        for name, value in zip(_FROM_SHARD, numbers.values, strict=True):
            self.control[name] = value
        self.control["t0"] = numbers.t0

    def beat(self, heartbeat: int) -> None:
        """Take note of the shard's latest heartbeat, which is by its own clock."""
        if heartbeat != self._heartbeat:
            self._heartbeat, self._alive_at = heartbeat, now()

    def silence(self) -> int:
        """Return the nanoseconds since the heartbeat last changed."""
        return now() - self._alive_at
