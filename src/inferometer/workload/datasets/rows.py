"""Rows of a dataset, which are read when they are needed: a file of a million rows must not become a million Python objects.

A row is a dict of its columns, or a ValueError that says why it cannot be read. Readers keep the file mapped into memory, and
where each row starts.
"""

import mmap
from collections.abc import Callable, Sequence
from typing import IO, Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

Row = dict[str, Any]
Buffer = Any
"""bytes, or a file that is mapped into memory."""

_BLOCK = 1 << 26


class Rows(Protocol):
    """The rows of a file."""

    columns: tuple[str, ...] | None
    """The columns of all rows; None if every row has its own, as in JSON."""
    lost: int
    """Rows that could not be separated from the others, and have no index."""
    first_lost: str
    """Why, and where, the first of them."""

    def __len__(self) -> int: ...

    def take(self, indices: Sequence[int]) -> list[Row | ValueError]:
        """The rows with these indices."""
        ...

    def raw(self, indices: range) -> Sequence[Any] | None:
        """The JSON of these rows, before it is decoded; None: they are not JSON."""
        ...

    def where(self, index: int) -> str:
        """Where a row is in its file: `line 5`."""
        ...

    def release(self) -> None:
        """Give back the memory of what has been read; it is read again when it is needed."""
        ...


class LineRows:
    """One row per line that is not blank."""

    columns: tuple[str, ...] | None = None
    lost = 0
    first_lost = ""

    def __init__(self, data: Buffer, decode: Callable[[bytes], Row]) -> None:
        self._data = data
        self._decode = decode
        self._starts, self._ends, self._lines = _lines(data)

    def __len__(self) -> int:
        return len(self._starts)

    def take(self, indices: Sequence[int]) -> list[Row | ValueError]:
        starts, ends = self._starts[indices].tolist(), self._ends[indices].tolist()
        return [self._row(self._data[start:end]) for start, end in zip(starts, ends, strict=True)]

    def raw(self, indices: range) -> Sequence[Any] | None:
        if self._decode is not json_row:
            return None
        starts, ends = self._starts[indices].tolist(), self._ends[indices].tolist()
        return [self._data[start:end] for start, end in zip(starts, ends, strict=True)]

    def _row(self, line: bytes) -> Row | ValueError:
        try:
            return self._decode(line)
        except ValueError as error:
            return error

    def where(self, index: int) -> str:
        return f"line {self._lines[index]}"

    def release(self) -> None:
        release(self._data)


class JsonRows:
    """The entries of a JSON array."""

    columns: tuple[str, ...] | None = None
    lost = 0
    first_lost = ""

    def __init__(self, entries: list[msgspec.Raw], data: Buffer) -> None:
        self._entries = entries
        self._data = data

    def __len__(self) -> int:
        return len(self._entries)

    def take(self, indices: Sequence[int]) -> list[Row | ValueError]:
        return [self._row(self._entries[index]) for index in indices]

    def raw(self, indices: range) -> Sequence[Any] | None:
        return self._entries[indices.start : indices.stop]

    def _row(self, entry: msgspec.Raw) -> Row | ValueError:
        try:
            return json_row(entry)
        except ValueError as error:
            return error

    def where(self, index: int) -> str:
        return f"entry {index + 1}"

    def release(self) -> None:
        release(self._data)


def map_file(file: IO[bytes]) -> Buffer:
    """The content of an open file; it remains when the file is closed, or has no name."""
    file.flush()
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.seek(0, 2) else b""


def release(data: Buffer) -> None:
    """Give back the memory of a large mapped file. Its pages count as the process's own, although they are only cached."""
    if isinstance(data, mmap.mmap) and len(data) > _BLOCK and hasattr(mmap, "MADV_DONTNEED"):
        data.madvise(mmap.MADV_DONTNEED)


def json_row(text: bytes | msgspec.Raw) -> Row:
    """Decode a JSON object; ValueError says what is wrong with it."""
    try:
        row = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"not JSON: {str(error).removeprefix('JSON is malformed: ')}") from None
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, got {kind_of(row)}")
    return row


def text_row(line: bytes) -> Row:
    """A line of text, which is a prompt."""
    try:
        return {"prompt": line.decode().rstrip("\r")}
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None


def kind_of(value: object) -> str:
    """What a JSON value is, for messages."""
    names = {str: "a string", dict: "an object", list: "a list", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _lines(data: Buffer) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Where each line that is not blank starts and ends, and its number from 1 on."""
    size = len(data)
    first = 3 if data[:3] == b"\xef\xbb\xbf" else 0
    breaks = []
    for at in range(0, size, _BLOCK):
        breaks.append(np.flatnonzero(np.frombuffer(data, np.uint8, min(_BLOCK, size - at), at) == ord("\n")) + at)
        release(data)
    ends = np.concatenate([*breaks, [size]]).astype(np.int64)
    starts = np.concatenate([[first], ends[:-1] + 1]).astype(np.int64)
    numbers = np.arange(1, len(ends) + 1)
    short = np.flatnonzero(ends - starts < 64)  # only these may be blank
    blank = [i for i in short.tolist() if not data[starts[i] : ends[i]].strip()]
    keep = np.ones(len(ends), dtype=bool)
    keep[blank] = False
    return starts[keep], ends[keep], numbers[keep]
