"""The encoded requests of a run in files that every shard maps into memory, so that a run may have millions of them, stored once.

They are written before t=0 (prepare/requests.py). The files have no names: they take their space on the disk of the spool folder, and
are gone with the processes that have them open, however those end. A shard inherits them; on another machine it opens copies.

During the run, the pages of the next requests are mapped before they are due, and those far behind are released: a request is made
without a page fault, and a process holds only some megabytes of a large file in memory.
"""

import mmap
import os
import tempfile
from array import array
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Literal, NamedTuple, overload

import msgspec
import numpy as np

_PAGE = mmap.PAGESIZE
_POPULATE_READ = 22
"""MADV_POPULATE_READ of Linux, which Python's mmap does not name: map pages now, and read them from the disk if necessary."""

_IOV_MAX = 1_024
"""Byte strings that are written in one call; the kernel takes no more."""
_WHOLE = 32 << 20
"""A file up to this size is mapped completely."""
_AHEAD = 16 << 20
"""Bytes mapped ahead of the request that was made last."""
_STEP = 256 << 10
"""Bytes mapped in one call, which takes some 10 microseconds; more if more were used since the last call."""
_READ_AHEAD = 64 << 20
"""How far ahead the kernel is asked to read what is no longer in its cache."""
_BEHIND = 8 << 20
"""Bytes kept behind the request that was made last."""


NONE, KNOWN, LIVE = b"", b"k", b"l"
"""What the later turns of a session start with: there are none; they are encoded (known_turns.py); they depend on the responses, and the
session is a pickled Request."""


class MappedBytes(Sequence[bytes]):
    """A sequence of byte strings, read from a mapped file. Entry n is view[offsets[n] : offsets[n + 1]]."""

    def __init__(self, data: mmap.mmap | bytes, offsets: Sequence[int]) -> None:
        self.view = memoryview(data)
        self.offsets = offsets
        self._window = _Window(data) if isinstance(data, mmap.mmap) else None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        return self.view[self.offsets[index] : self.offsets[index + 1]].tobytes()

    def prefault(self, index: int) -> None:
        """Make the pages of the entries from `index` on ready to be read, as far as a few microseconds allow."""
        if self._window is not None:
            self._window.move_to(self.offsets[index])


def in_memory(entries: Sequence[bytes]) -> MappedBytes:
    """Return the same for a few entries that need no file."""
    return MappedBytes(b"".join(entries), array("q", accumulate(map(len, entries), initial=0)))


class _Window:
    """The part of a mapped file that the process holds in memory: from `_first` up to `_end`."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self._map = mapped
        self._size = len(mapped)
        self._first = self._end = 0
        self._position = 0
        self._populate(self._size if self._size <= _WHOLE else _AHEAD)

    def move_to(self, position: int) -> None:
        """Follow the position of the request that was made last."""
        if self._first == 0 and self._end == self._size:
            return
        if not self._first <= position <= self._end:  # another stage, or from the start again
            self._release(self._end)
            self._first = self._end = position - position % _PAGE
        step = max(_STEP, 2 * (position - self._position))
        self._position = position
        target = min(position + _AHEAD, self._size)
        if self._end < target and (target == self._size or target - self._end >= _STEP):
            self._populate(min(target - self._end, step))
        if position - self._first >= 2 * _BEHIND:
            self._release(position - _BEHIND)

    def _populate(self, size: int) -> None:
        start = self._end
        self._end = min(-(-(start + size) // _PAGE) * _PAGE, self._size)
        further = self._end + _READ_AHEAD
        if _populate(self._map, start, self._end) and further < self._size:
            self._map.madvise(mmap.MADV_WILLNEED, further, min(2 * (self._end - start), self._size - further))

    def _release(self, end: int) -> None:
        end -= end % _PAGE
        if end > self._first and hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED, self._first, end - self._first)
            self._first = end


def _populate(mapped: mmap.mmap, start: int, end: int) -> bool:
    """Map these pages now. Returns whether the kernel can do that at once."""
    try:
        mapped.madvise(_POPULATE_READ, start, end - start)
    except (OSError, AttributeError, ValueError):  # not Linux 5.14 or later: read a byte of each page
        memoryview(mapped)[start:end:_PAGE].tobytes()
        return False
    return True


class Block(msgspec.Struct, frozen=True, tag=True):
    """Some encoded requests, one after the other: the tails of Calls, and the later turns if they are the first turns of sessions.

    The numbers of each request are columns, as bytes: int32, but for the classes, which are int16. Without classes there are none.
    """

    tails: Sequence[bytes]
    sessions: Sequence[bytes]
    tail_sizes: bytes
    session_sizes: bytes
    n_in: bytes
    n_out: bytes
    classes: bytes
    has_live_sessions: bool

    @property
    def count(self) -> int:
        return len(self.n_in) // 4


def block(
    tails: Sequence[bytes],
    n_in: Sequence[int],
    n_out: Sequence[int],
    classes: Sequence[int] = (),
    sessions: Sequence[bytes] = (),
) -> Block:
    """Return the block of these requests."""

    def column(numbers: Sequence[int], code: str = "i") -> bytes:
        return array(code, numbers).tobytes()

    sizes, session_sizes = column(list(map(len, tails))), column(list(map(len, sessions)))
    columns = (sizes, session_sizes, column(n_in), column(n_out), column(classes, "h"))
    return Block(tails, sessions, *columns, any(entry[:1] == LIVE for entry in sessions))


class MappedRequests(NamedTuple):
    tails: MappedBytes
    sessions: MappedBytes
    """As many as there are tails; none if there are no sessions."""
    n_in: Sequence[int]
    n_out: Sequence[int]
    classes: Sequence[int]


class RequestFiles(msgspec.Struct, frozen=True):
    """Where the encoded requests are: a file each for their tails, their later turns, and the numbers of each request.

    A file is a descriptor, which a process must inherit, or a path.
    """

    tails: int | str
    sessions: int | str
    numbers: int | str
    count: int
    has_sessions: bool
    has_classes: bool
    has_live_sessions: bool

    @property
    def files(self) -> tuple[int | str, ...]:
        return self.tails, self.sessions, self.numbers

    def mapped(self) -> MappedRequests:
        mapped = _mapped(self.numbers)
        if isinstance(mapped, mmap.mmap):
            _populate(mapped, 0, len(mapped))
        numbers, at = memoryview(mapped), 0

        def column(code: Literal["h", "i", "q"], count: int) -> "memoryview[int]":
            nonlocal at
            start, at = at, at + count * array(code).itemsize
            return numbers[start:at].cast(code)

        ends = self.count + 1
        tails = MappedBytes(_mapped(self.tails), column("q", ends))
        sessions = MappedBytes(_mapped(self.sessions), column("q", ends) if self.has_sessions else (0,))
        n_in, n_out = column("i", self.count), column("i", self.count)
        return MappedRequests(tails, sessions, n_in, n_out, column("h", self.count if self.has_classes else 0))


def _mapped(file: int | str) -> mmap.mmap | bytes:
    opened = os.open(file, os.O_RDONLY) if isinstance(file, str) else os.dup(file)
    try:
        return mmap.mmap(opened, 0, access=mmap.ACCESS_READ) if os.fstat(opened).st_size else b""
    finally:
        os.close(opened)


def write_at(file: int, entries: Sequence[bytes], at: int) -> None:
    """Write byte strings into a file, one after the other. Raises OSError when the disk is full."""
    for first in range(0, len(entries), _IOV_MAX):
        some = entries[first : first + _IOV_MAX]
        size, written = sum(map(len, some)), os.pwritev(file, some, at)
        while written < size:
            written += os.pwrite(file, b"".join(some)[written:], at + written)
        at += size


class RequestWriter:
    """Appends blocks to the files, which are in the file system of `folder`."""

    def __init__(self, folder: Path) -> None:
        self._files = [tempfile.TemporaryFile(dir=folder, buffering=0) for _ in range(3)]  # noqa: SIM115 - closed by `close`
        self._ends = (array("q", [0]), array("q", [0]))
        self._columns = (array("i"), array("i"), array("h"))
        self._has_live_sessions = False

    @property
    def descriptors(self) -> tuple[int, int]:
        """The files that blocks are written to: of tails, and of sessions."""
        return self._files[0].fileno(), self._files[1].fileno()

    @property
    def count(self) -> int:
        return len(self._columns[0])

    @property
    def size(self) -> int:
        return self._ends[0][-1] + self._ends[1][-1]

    def reserve(self, block: Block) -> tuple[int, int]:
        """Take the numbers of the block that comes next; return where its bytes are to be written, in both files."""
        at = self._ends[0][-1], self._ends[1][-1]
        for ends, start, sizes in zip(self._ends, at, (block.tail_sizes, block.session_sizes), strict=True):
            ends.frombytes((np.frombuffer(sizes, np.int32).cumsum(dtype=np.int64) + start).tobytes())
        for column, more in zip(self._columns, (block.n_in, block.n_out, block.classes), strict=True):
            column.frombytes(more)
        self._has_live_sessions |= block.has_live_sessions
        return at

    def append(self, block: Block) -> None:
        """Write the block that comes next. Raises OSError when the disk is full."""
        for file, data, at in zip(self.descriptors, (block.tails, block.sessions), self.reserve(block), strict=True):
            write_at(file, data, at)

    def finish(self) -> RequestFiles:
        """Write the numbers. The files are there until `close`."""
        tail_ends, session_ends = self._ends
        has_sessions, (*_, classes) = len(session_ends) > 1, self._columns
        numbers, at = self._files[2].fileno(), 0
        for column in (tail_ends, *((session_ends,) if has_sessions else ()), *self._columns):
            data = column.tobytes()
            write_at(numbers, [data], at)
            at += len(data)
        return RequestFiles(
            *self.descriptors, numbers, self.count, has_sessions, bool(classes), self._has_live_sessions
        )

    def close(self) -> None:
        for file in self._files:
            file.close()
