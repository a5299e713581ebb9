"""Reads a trace file, CSV or JSON lines, into columns of text: how a value is written decides what it means exactly.

Files may be compressed with gzip. Blank lines are ignored. A file is read in blocks, and only the columns that are asked for are
kept, because a trace may have millions of rows. Rows that cannot be read are left out, and counted.
"""

import gzip
import hashlib
import zlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from inferometer.config.data.trace_formats import graph_of, split_header
from inferometer.errors import UserError

KINDS = "an Azure, BurstGPT, Mooncake, Bailian, Vidur, TraceLab or AIPerf trace, or a CSV or JSONL file with times and lengths"
_BLOCK = 4096
"""Rows of JSON that are kept as objects at a time."""


class RawColumns(msgspec.Struct, frozen=True):
    """The columns of a file by name: each value as text, or None."""

    path: str
    names: list[str]
    """The names of all columns of the file."""
    columns: dict[str, "pa.ChunkedArray"]
    """The wanted ones."""
    hash_ids: tuple[NDArray[np.uint64], NDArray[np.int64]] | None
    """JSON lines: the hash ids of all rows one after the other, and where those of each row start, and those of the last end."""
    lines: NDArray[np.int64] | None
    """The line of each row; None: row 0 is on line 2, and so on."""
    count: int
    lost: int = 0
    """Rows that cannot be read."""
    first_lost: str = ""
    """Where the first of them is, and why it cannot be read."""

    def where(self, row: int) -> str:
        return f"{self.path}, line {row + 2 if self.lines is None else self.lines[row]}"


class Wanted(msgspec.Struct, frozen=True):
    """Names of columns to keep, in lower case."""

    texts: frozenset[str]
    hash_ids: str


def digest(path: str) -> bytes:
    """A hash of the content of the file."""
    try:
        with Path(path).expanduser().open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise _unreadable(path, error) from None


def read(path: str, wanted: Wanted, most: int = 0) -> RawColumns:
    """Read at most `most` rows (0: all)."""
    try:
        with _opened(path) as file:
            lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
            first = next(lines, None)
            if first is None or not (start := first[1].removeprefix(b"\xef\xbb\xbf").strip()):
                raise UserError(f"{path} is empty", f"give {KINDS}", "data.path")
            if start[:1] not in b"{[":
                return _read_csv(path, file, first[0], start, wanted, most)
            return _JsonRows(path, wanted, most).read(_with_first((first[0], start), lines))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is not a complete gzip file: {error}", "download it again", "data.path") from None
    except OSError as error:
        raise _unreadable(path, error) from None


@contextmanager
def _opened(path: str) -> Iterator["IO[bytes] | gzip.GzipFile"]:
    with Path(path).expanduser().open("rb") as file:
        if file.peek(2)[:2] == b"\x1f\x8b":
            with gzip.open(file) as unpacked:
                yield unpacked
        else:
            yield file


def _unreadable(path: str, error: OSError) -> UserError:
    return UserError(f"{path} cannot be read: {error.strerror or error}", f"give {KINDS}", "data.path")


def _with_first(first: tuple[int, bytes], others: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    yield first
    yield from others


# --- CSV -------------------------------------------------------------------------------------------------------------


def _read_csv(
    path: str, file: "IO[bytes] | gzip.GzipFile", line: int, header: bytes, wanted: Wanted, most: int
) -> RawColumns:
    """Read what follows the header, which is on this line."""
    names, delimiter = split_header(header)
    unique = [name if names.index(name) == i else f"{name} ({i + 1})" for i, name in enumerate(names)]
    chosen = [name for name in unique if name.lower() in wanted.texts]
    broken: list[tuple[int, str]] = []

    def skip(row: "pyarrow.csv.InvalidRow") -> str:
        number = 0 if row.number is None else row.number
        broken.append((number, f"there are {row.actual_columns} columns instead of {row.expected_columns}"))
        return "skip"

    batches: list[pa.RecordBatch] = []
    schema = pa.schema([(name, pa.string()) for name in chosen])
    try:
        reader = pyarrow.csv.open_csv(
            pa.PythonFile(file, "r"),
            read_options=pyarrow.csv.ReadOptions(column_names=unique, use_threads=False),  # numbers of broken rows
            parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter, invalid_row_handler=skip),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(unique, pa.string()),
                strings_can_be_null=True,
                null_values=[""],
                include_columns=chosen or unique[:1],
            ),
        )
        count = 0
        for batch in reader:
            batches.append(batch.select(chosen))
            count += batch.num_rows
            if most and count >= most:
                break
    except pa.ArrowInvalid as error:
        if "Empty CSV file" not in str(error):
            raise UserError(f"{path}: {str(error).splitlines()[0][:200]}", f"give {KINDS}", "data.path") from None
        count = 0
    table = pa.Table.from_batches(batches, schema)
    if most and count > most:
        table, count = table.slice(0, most), most
    columns = {name: pc.utf8_trim_whitespace(table.column(name)) for name in chosen}
    broken = [(row, reason) for row, reason in broken if not most or row <= count + len(broken)]
    first = f"{path}, line {line + broken[0][0]}: {broken[0][1]}" if broken else ""
    return RawColumns(path, names, columns, None, _csv_lines(line, count, broken), count, len(broken), first)


def _csv_lines(header: int, count: int, broken: list[tuple[int, str]]) -> NDArray[np.int64]:
    """The line of each row that was read. Rows are counted from 1."""
    numbers = np.arange(1, count + len(broken) + 1)
    is_read = ~np.isin(numbers, [row for row, _ in broken])
    return header + numbers[is_read][:count]


# --- JSON lines ------------------------------------------------------------------------------------------------------


class _BrokenRowError(ValueError):
    """A row that cannot be used; its text is the reason."""


class _JsonRows:
    """Collects rows in compact form."""

    def __init__(self, path: str, wanted: Wanted, most: int) -> None:
        self._path = path
        self._wanted = wanted
        self._most = most
        self._kinds: dict[str, str] = {}
        """For the name of each column, whether it is a text, the hash ids, or not wanted (empty)."""
        self._pending: list[dict[str, Any]] = []
        self._parts: list[tuple[int, dict[str, pa.Array]]] = []
        self._ids, self._starts, self._lines = array("Q"), array("q", [0]), array("q")

    def read(self, lines: Iterator[tuple[int, bytes]]) -> RawColumns:
        decoder = msgspec.json.Decoder(float_hook=str)
        lost, first_lost = 0, ""
        for number, text in lines:
            try:
                self._add(number, self._rows(number, text, decoder))
            except _BrokenRowError as error:
                lost += 1
                first_lost = first_lost or f"{self._path}, line {number}: {error}"
            if self._most and len(self._lines) >= self._most:
                break
        self._flush()
        texts = [name for name, kind in self._kinds.items() if kind == "text"]
        columns = {
            name: pa.chunked_array([part.get(name, pa.nulls(n, pa.string())) for n, part in self._parts], pa.string())
            for name in texts
        }
        ids = (np.array(self._ids, np.uint64), np.array(self._starts, np.int64)) if len(self._ids) else None
        names = list(self._kinds)
        return RawColumns(
            self._path, names, columns, ids, np.array(self._lines, np.int64), len(self._lines), lost, first_lost
        )

    def _rows(self, number: int, text: bytes, decoder: "msgspec.json.Decoder[Any]") -> list[dict[str, Any]]:
        """The rows of a line: one, or the turns of a session."""
        try:
            row = decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if not self._lines:
                _check_document(self._path)
            raise _BrokenRowError("not JSON; write one JSON object per line") from None
        if not isinstance(row, dict):
            raise _BrokenRowError("not a JSON object")
        if what := graph_of(row):
            raise _graph(self._path, what)
        return _turns(row, number) if isinstance(row.get("turns"), list) else [row]

    def _add(self, line: int, rows: list[dict[str, Any]]) -> None:
        hash_ids = [self._checked(row) for row in rows]
        room = self._most - len(self._lines) if self._most else None
        for row, ids in islice(zip(rows, hash_ids, strict=True), room):
            self._pending.append(row)
            self._ids.extend(ids)
            self._starts.append(len(self._ids))
            self._lines.append(line)
        if len(self._pending) >= _BLOCK:
            self._flush()

    def _checked(self, row: dict[str, Any]) -> "array[int]":
        """Take the hash ids out of a row; raises _BrokenRowError if it has a value that is neither a number nor a text."""
        hash_ids = array("Q")
        for name, value in row.items():
            kind = self._kinds.get(name)
            if kind is None:
                lower = name.lower()
                kind = "ids" if lower == self._wanted.hash_ids else "text" if lower in self._wanted.texts else ""
                self._kinds[name] = kind
            if kind == "text" and isinstance(value, list | dict):
                raise _BrokenRowError(f"{name} is {'a list' if isinstance(value, list) else 'an object'}")
            if kind == "ids" and value is not None:
                try:
                    hash_ids = array("Q", value)
                except (TypeError, ValueError, OverflowError):
                    raise _BrokenRowError("hash_ids are not whole numbers") from None
        return hash_ids

    def _flush(self) -> None:
        names = [name for name, kind in self._kinds.items() if kind == "text"]
        part = {name: pa.array([_text(row.get(name)) for row in self._pending], pa.string()) for name in names}
        self._parts.append((len(self._pending), part))
        self._pending = []


def _turns(session: dict[str, Any], line: int) -> list[dict[str, Any]]:
    """The turns of a session that is written in one row (AIPerf) as rows."""
    label = session.get("session_id")
    rows = []
    for turn in session["turns"]:
        if not isinstance(turn, dict):
            raise _BrokenRowError("a turn is not a JSON object")
        texts = turn.get("texts")
        if isinstance(texts, list) and len(texts) == 1 and isinstance(texts[0], str):
            turn = turn | {"text": texts[0]}  # noqa: PLW2901
        if not isinstance(turn.get("text"), str) and "input_length" not in turn:
            raise _BrokenRowError("a turn does not have a text")
        rows.append({"turns": None, "session_id": f"line {line}" if label is None else label} | turn)
    return rows


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


def _check_document(path: str) -> None:
    """Say what a JSON document over several lines is, if it is one."""
    with _opened(path) as file:
        try:
            document = msgspec.json.decode(file.read())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
    if isinstance(document, dict) and (what := graph_of(document)):
        raise _graph(path, what)


def _graph(path: str, what: str) -> UserError:
    return UserError(f"{path} is {what}: agentic graphs are not supported yet", f"give {KINDS}", "data.path")
