"""The encoded requests of a shard in a file that is mapped into memory, so that a run may have millions of them.

They are appended before t=0. The file has no name: it takes its space on the disk of the spool folder, and is gone with the process,
however that ends. During the run, the pages of the next requests are mapped before they are due, and those far behind are released:
a request is made without a page fault, and a process holds only some megabytes of a large file in memory.
"""

import mmap
import os
import tempfile
from array import array
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import overload

import msgspec

_PAGE = mmap.PAGESIZE
_POPULATE_READ = 22
"""MADV_POPULATE_READ of Linux, which Python's mmap does not name: map pages now, and read them from the disk if necessary."""

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


class MappedBytes(Sequence[bytes]):
    """A sequence of byte strings, read from a mapped file. Entry n is view[offsets[n] : offsets[n + 1]]."""

    def __init__(self, data: mmap.mmap | bytes, offsets: "array[int]") -> None:
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


class Packed(msgspec.Struct, frozen=True):
    """Byte strings one after the other."""

    data: bytes = b""
    sizes: Sequence[int] = ()


def packed(entries: Sequence[bytes]) -> Packed:
    return Packed(b"".join(entries), list(map(len, entries)))


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
        try:
            self._map.madvise(_POPULATE_READ, start, self._end - start)
            further = self._end + _READ_AHEAD
            if further < self._size:
                self._map.madvise(mmap.MADV_WILLNEED, further, min(2 * (self._end - start), self._size - further))
        except (OSError, AttributeError, ValueError):  # not Linux 5.14 or later: read a byte of each page
            memoryview(self._map)[start : self._end : _PAGE].tobytes()

    def _release(self, end: int) -> None:
        end -= end % _PAGE
        if end > self._first and hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED, self._first, end - self._first)
            self._first = end


class RequestFile:
    """Byte strings that are appended to a file without a name, in the file system of `folder`."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed by `close`
        self._offsets = array("q", [0])
        self.size = 0

    def append(self, entries: Packed) -> None:
        """Append entries. Raises OSError when the disk is full."""
        view = memoryview(entries.data)
        while view:
            view = view[os.write(self._file.fileno(), view) :]
        ends = accumulate(entries.sizes, initial=self.size)
        next(ends)
        self._offsets.extend(ends)
        self.size += len(entries.data)

    def mapped(self) -> MappedBytes:
        """Close the file, and return its entries."""
        with self._file:
            if not self.size:
                return MappedBytes(b"", self._offsets)
            return MappedBytes(mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_READ), self._offsets)

    def close(self) -> None:
        self._file.close()
