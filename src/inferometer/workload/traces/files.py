"""Reads a trace file, CSV or JSON lines, into columns of text: how a value is written decides what it means exactly.

Files may be compressed with gzip. Blank lines are ignored.
"""

import gzip
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from inferometer.config.data.trace_formats import graph_of, split_header
from inferometer.errors import UserError

KINDS = "an Azure, BurstGPT, Mooncake, Bailian, Vidur or TraceLab trace, or a CSV or JSONL file with times and lengths"
_UNIT_DIGITS = {"s": 9, "ms": 6, "us": 3, "ns": 0}
"""Decimal places of a time in this unit that are nanoseconds."""


class RawColumns(msgspec.Struct, frozen=True):
    """The columns of a file by name: each value as text, or None."""

    path: str
    columns: dict[str, "pa.Array | pa.ChunkedArray"]
    lists: dict[str, list[object]]
    """JSON lines: the columns whose values are lists."""
    lines: NDArray[np.int64] | None
    """The line of each row; None: row 0 is on line 2, and so on."""
    count: int

    @property
    def names(self) -> list[str]:
        return [*self.columns, *self.lists]

    def where(self, row: int) -> str:
        return f"{self.path}, line {row + 2 if self.lines is None else self.lines[row]}"


def read_bytes(path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}", f"give {KINDS}", "data.path") from None


def read(path: str, most: int = 0) -> RawColumns:
    """Read at most `most` rows (0: all)."""
    data = read_bytes(path)
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError) as error:
            raise UserError(f"{path} is not a complete gzip file: {error}", "download it again", "data.path") from None
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        raise UserError(f"{path} is empty", f"give {KINDS}", "data.path")
    return _read_json(path, data, most) if data.lstrip()[:1] in b"{[" else _read_csv(path, data, most)


# --- CSV -------------------------------------------------------------------------------------------------------------


def _read_csv(path: str, data: bytes, most: int) -> RawColumns:
    names, delimiter = split_header(data.partition(b"\n")[0])
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(data),
            read_options=pyarrow.csv.ReadOptions(column_names=names, skip_rows=1),
            parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
            ),
        )
    except pa.ArrowInvalid as error:
        raise UserError(f"{path}: {str(error).splitlines()[0][:200]}", f"give {KINDS}", "data.path") from None
    if most:
        table = table.slice(0, most)
    columns = {name: pc.utf8_trim_whitespace(table.column(name)) for name in dict.fromkeys(names)}
    return RawColumns(path, columns, {}, None, table.num_rows)


# --- JSON lines ------------------------------------------------------------------------------------------------------


def _read_json(path: str, data: bytes, most: int) -> RawColumns:
    rows, lines = [], []
    decoder = msgspec.json.Decoder(float_hook=Decimal)
    for number, text in _lines(data):
        try:
            row = decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            _check_document(path, data)
            raise UserError(f"{path}, line {number}: not JSON", "write one JSON object per line", "data.path") from None
        if not isinstance(row, dict):
            raise UserError(f"{path}, line {number}: not a JSON object", f"give {KINDS}", "data.path")
        _check_graph(path, row)
        rows.append(row)
        lines.append(number)
        if most and len(rows) == most:
            break
    names = dict.fromkeys(name for row in rows for name in row)
    lists = {
        name: [row.get(name) for row in rows] for name in names if any(isinstance(row.get(name), list) for row in rows)
    }
    columns = {
        name: pa.array([_text(row.get(name)) for row in rows], pa.string()) for name in names if name not in lists
    }
    return RawColumns(path, columns, lists, np.array(lines, np.int64), len(rows))


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    return ((number, line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip())


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


def _check_document(path: str, data: bytes) -> None:
    """Say what a JSON document over several lines is, if it is one."""
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    if isinstance(document, dict):
        _check_graph(path, document)


def _check_graph(path: str, row: dict[str, object]) -> None:
    if what := graph_of(row):
        raise UserError(f"{path} is {what}: agentic graphs are not supported yet", f"give {KINDS}", "data.path")


# --- values ----------------------------------------------------------------------------------------------------------


def tokens(raw: RawColumns, name: str) -> NDArray[np.int64]:
    """The numbers of tokens in a column; -1: none is given."""
    column = raw.columns[name]
    numbers = _converted(raw, name, column, lambda values: pc.cast(values, pa.float64()), "a number of tokens")
    counts = np.asarray(pc.fill_null(numbers, -1.0), dtype=np.float64)
    wrong = np.flatnonzero((counts != np.rint(counts)) | (counts < -1) | (counts > 2**40))
    if len(wrong):
        raise _wrong(raw, name, int(wrong[0]), "a number of tokens")
    return counts.astype(np.int64)


def nanoseconds(raw: RawColumns, name: str, unit: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The times or durations in a column, exactly, and which rows have one: numbers in this unit, or dates."""
    column, digits = raw.columns[name], _UNIT_DIGITS[unit]

    def convert(values: "pa.Array") -> "pa.Array":
        for attempt in (_number(digits), _local_date, _zoned_date):
            try:
                return attempt(values)
            except pa.ArrowInvalid as error:
                last = error
        raise last

    times = _converted(raw, name, column, convert, "a time")
    given = np.asarray(pc.is_valid(times), dtype=bool)
    return np.asarray(pc.fill_null(times, 0), dtype=np.int64), given


def _number(digits: int) -> Callable[["pa.Array"], "pa.Array"]:
    def convert(values: "pa.Array") -> "pa.Array":
        try:
            exact = pc.cast(values, pa.decimal128(20, digits))
        except pa.ArrowInvalid as error:
            if "data loss" not in str(error):
                raise
            exact = pc.cast(pc.round(pc.cast(values, pa.decimal256(60, 30)), digits), pa.decimal128(20, digits))
        scaled = pc.multiply(exact, pa.scalar(Decimal(10) ** digits, pa.decimal128(10, 0)))
        return pc.cast(scaled, pa.int64())

    return convert


def _local_date(values: "pa.Array") -> "pa.Array":
    return pc.cast(pc.cast(values, pa.timestamp("ns")), pa.int64())


def _zoned_date(values: "pa.Array") -> "pa.Array":
    return pc.cast(pc.cast(values, pa.timestamp("ns", tz="UTC")), pa.int64())


def _converted(
    raw: RawColumns, name: str, column: "pa.Array", convert: Callable[["pa.Array"], "pa.Array"], expected: str
) -> "pa.Array":
    try:
        return convert(column)
    except pa.ArrowInvalid:
        for row in range(raw.count):
            try:
                convert(column.slice(row, 1))
            except pa.ArrowInvalid:
                raise _wrong(raw, name, row, expected) from None
        raise


def _wrong(raw: RawColumns, name: str, row: int, expected: str) -> UserError:
    value = str(raw.columns[name][row].as_py())
    return UserError(
        f"{raw.where(row)}: {name} is not {expected}: {value[:40]!r}", "fix the row, or remove it", "data.path"
    )
