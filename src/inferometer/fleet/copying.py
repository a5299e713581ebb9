"""Copies what a shard records in its own folder to its parent's spool folder, for transports that share no folder.

The shard's end reads what is new, in rounds: pieces of files first, and then the numbers of the control file as they were when
the round began. So the parent's folder is always a consistent, slightly older copy, in which no number is ahead of its file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from inferometer.records import ROW
from inferometer.store.spool import CONTROL, FROM_PARENT, Control
from inferometer.timing.clock import now

_COLUMNS = {"rows": (ROW.itemsize, "rows"), "arrivals": (8, "chunks"), "tokens": (2, "chunks")}
"""Files that grow with a number in the control file: bytes per entry, and the name of the number."""
_APPENDED = ("failures", "replicas", "samples", "bodies")
"""Files that are only appended to."""
_FROM_SHARD = tuple(name for name in CONTROL if name not in FROM_PARENT)


class Piece(NamedTuple):
    """Bytes of one of the shard's files."""

    name: str
    offset: int
    data: bytes


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
        self._sent = dict.fromkeys((*_COLUMNS, *_APPENDED), 0)

    def round(self, is_last: bool = False) -> Iterator[Piece | Numbers]:
        """Yield what is new since the round before. `is_last`: the shard has ended, and rows that were changed after they had
        been copied are copied again."""
        if is_last and self._control["recounted"]:
            self._sent["rows"] = 0
        numbers = tuple(self._control[name] for name in _FROM_SHARD)
        counts = dict(zip(_FROM_SHARD, numbers, strict=True))
        for name, (size, number) in _COLUMNS.items():
            yield from self._new(name, counts[number] * size)
        for name in _APPENDED:
            path = self._path(name)
            yield from self._new(name, path.stat().st_size if path.exists() else 0)
        peek = self._path("peek")
        if peek.exists():
            yield Piece("peek", 0, peek.read_bytes())
        yield Numbers(numbers, self._control["t0"])

    def _new(self, name: str, end: int) -> Iterator[Piece]:
        if self._sent[name] >= end:
            return
        with self._path(name).open("rb") as file:
            file.seek(self._sent[name])
            while (at := self._sent[name]) < end and (data := file.read(min(self._piece, end - at))):
                self._sent[name] = at + len(data)
                yield Piece(name, at, data)

    def _path(self, name: str) -> Path:
        return self._folder / f"{self._shard}.{name}"


class FolderCopy:
    """The parent's end: writes into the spool folder of the job."""

    def __init__(self, folder: Path, shard: int) -> None:
        self._folder, self._shard = folder, shard
        self.control = Control(folder / f"{shard}.control", create=False)
        self._alive_at, self._heartbeat = now(), 0

    def put(self, piece: Piece) -> None:
        path = self._folder / f"{self._shard}.{piece.name}"
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.seek(piece.offset)
            file.write(piece.data)

    def put_numbers(self, numbers: Numbers) -> None:
        for name, value in zip(_FROM_SHARD, numbers.values, strict=True):
            self.control[name] = value
        self.control["t0"] = numbers.t0
        self.beat(self.control["heartbeat"])

    def beat(self, heartbeat: int) -> None:
        """Take note of the shard's latest heartbeat, which is by its own clock."""
        if heartbeat != self._heartbeat:
            self._heartbeat, self._alive_at = heartbeat, now()

    def silence(self) -> int:
        """Return the nanoseconds since the heartbeat last changed."""
        return now() - self._alive_at
