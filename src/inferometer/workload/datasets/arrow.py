"""Rows of tables: CSV and TSV, Parquet, Arrow, and folders of these. All become Arrow batches that are mapped into memory.

CSV and Parquet are converted to a temporary Arrow file, in pieces. So neither needs more memory than the rows that are used.
"""

import csv
import io
import tempfile
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from inferometer.errors import UserError
from inferometer.workload.datasets.rows import Buffer, Row, map_file, release

_BATCH = 4096
_BLOCK = 1 << 24
"""Bytes of a CSV file that are parsed at a time; a row must fit into it."""


class ArrowRows:
    """The rows of record batches. Cells that are bytes are text that may not be UTF-8."""

    def __init__(
        self, schema: Any, parts: Sequence[tuple[Buffer, list[Any]]], lost: Sequence[int] = (), first_lost: str = ""
    ) -> None:
        """`parts`: mapped files, and the batches of each."""
        batches = [batch for _, own in parts for batch in own]
        self.columns: tuple[str, ...] | None = tuple(schema.names)
        self.lost = len(lost)
        self.first_lost = first_lost
        self._files = [data for data, _ in parts]
        self._batches = batches
        self._starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
        self._lost = lost

    def __len__(self) -> int:
        return int(self._starts[-1])

    def raw(self, indices: range) -> None:
        """None: the rows are not JSON."""

    def take(self, indices: Sequence[int]) -> list[Row | ValueError]:
        wanted = np.asarray(indices, dtype=np.int64)
        numbers = np.searchsorted(self._starts, wanted, side="right") - 1
        rows: list[Row | ValueError] = [{}] * len(wanted)
        for number in np.unique(numbers).tolist():
            positions = np.flatnonzero(numbers == number)
            batch = self._batches[number].take(pa.array(wanted[positions] - self._starts[number]))
            for position, row in zip(positions.tolist(), batch.to_pylist(), strict=True):
                rows[position] = _decoded(row)
        return rows

    def where(self, index: int) -> str:
        number = index + 1
        for lost in self._lost:
            number += lost <= number
        return f"row {number}"

    def release(self) -> None:
        for data in self._files:
            release(data)


def _decoded(row: Row) -> Row | ValueError:
    try:
        return {name: cell.decode() if isinstance(cell, bytes) else without_nulls(cell) for name, cell in row.items()}
    except UnicodeDecodeError:
        return ValueError("not UTF-8")


def without_nulls(cell: Any) -> Any:
    """A cell without the nulls in its structs: Arrow gives all structs of a column all fields that any of them has."""
    if isinstance(cell, dict):
        return {name: without_nulls(value) for name, value in cell.items() if value is not None}
    return [without_nulls(value) for value in cell] if isinstance(cell, list) else cell


# --- formats ---------------------------------------------------------------------------------------------------------


def read_parquet(path: str, _data: Any = None) -> ArrowRows:
    """A Parquet file, or a folder of Parquet or Arrow files."""
    folder = Path(path)
    if folder.is_dir():
        return _read_folder(folder)
    return _read_parquet_files([folder])


def read_arrow(path: str, _data: Any = None) -> ArrowRows:
    """An Arrow file: the file format, or the stream format that the `datasets` library writes."""
    schema, part = _arrow_batches(Path(path))
    return ArrowRows(schema, [part])


def read_csv(path: str, data: Any) -> ArrowRows:
    """A CSV or TSV file with a header. Rows with another number of cells are lost."""
    head = bytes(data[: 1 << 20])
    delimiter, names = _header(path, head)
    lost: list[int] = []
    reasons: list[str] = []

    def skip(row: Any) -> str:
        lost.append(row.number - 1 if row.number else 0)  # without the header
        reasons.append(f"row {lost[-1]}: {row.actual_columns} cells instead of {row.expected_columns}")
        return "skip"

    has_quotes = delimiter != "\t"
    try:
        reader = pa.csv.open_csv(
            pa.BufferReader(data),
            pa.csv.ReadOptions(use_threads=False, block_size=_BLOCK),
            pa.csv.ParseOptions(
                delimiter=delimiter,
                quote_char='"' if has_quotes else False,
                newlines_in_values=has_quotes,
                invalid_row_handler=skip,
            ),
            pa.csv.ConvertOptions(
                check_utf8=False, column_types=dict.fromkeys(names, pa.binary()), strings_can_be_null=False
            ),
        )
        part = _spooled(reader.schema, reader)
    except pa.ArrowInvalid as error:
        raise UserError(f"{path} is not CSV: {str(error)[:200]}", "check the quotes and the delimiter") from None
    return ArrowRows(reader.schema, [part], lost, next(iter(reasons), ""))


def _header(path: str, head: bytes) -> tuple[str, list[str]]:
    """The delimiter and the names of the columns."""
    text = head.decode("utf-8-sig", errors="replace")
    first = text.partition("\n")[0]
    is_tsv = path.lower().removesuffix(".gz").endswith((".tsv", ".tab"))
    delimiter = "\t" if is_tsv else max(",\t;", key=first.count)
    if delimiter == "\t":
        return delimiter, first.rstrip("\r").split("\t")
    return delimiter, next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])


def _read_folder(folder: Path) -> ArrowRows:
    if (folder / "dataset_dict.json").exists():
        splits = ", ".join(sorted(child.name for child in folder.iterdir() if child.is_dir()))
        raise UserError(f"{folder} has several splits: {splits}", "give the folder of one of them", key="data.path")
    if arrow := sorted(folder.glob("*.arrow")):
        read = [_arrow_batches(file) for file in arrow]
        return ArrowRows(read[0][0], [part for _, part in read])
    if files := sorted(folder.glob("*.parquet")):
        return _read_parquet_files(files)
    raise UserError(
        f"{folder} has no .parquet and no .arrow files", "give a file, or a folder of such files", "data.path"
    )


def _arrow_batches(path: Path) -> tuple[Any, tuple[Buffer, list[Any]]]:
    with path.open("rb") as file:
        data = map_file(file)
    try:
        if data[:6] == b"ARROW1":
            schema, batches = _file_batches(data)
        else:
            stream = pa.ipc.open_stream(pa.BufferReader(data))
            schema, batches = stream.schema, list(stream)
    except (pa.ArrowInvalid, OSError) as error:
        raise _unreadable(path, "Arrow", error) from None
    return schema, (data, batches)


def _file_batches(data: Buffer) -> tuple[Any, list[Any]]:
    file = pa.ipc.open_file(pa.BufferReader(data))
    return file.schema, [file.get_batch(number) for number in range(file.num_record_batches)]


def _read_parquet_files(files: Sequence[Path]) -> ArrowRows:
    try:
        opened = [pa.parquet.ParquetFile(file) for file in files]
        schema = opened[0].schema_arrow
        return ArrowRows(schema, [_spooled(schema, chain.from_iterable(file.iter_batches(_BATCH) for file in opened))])
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(files[0], "Parquet", error) from None


def _spooled(schema: Any, batches: Iterable[Any]) -> tuple[Buffer, list[Any]]:
    """Write the batches to a file without a name, and map it."""
    try:
        with tempfile.TemporaryFile() as file:
            with pa.ipc.new_file(pa.PythonFile(file, "w"), schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            data = map_file(file)
    except OSError as error:
        if error.errno is None:  # Arrow's own
            raise
        raise UserError(
            f"{tempfile.gettempdir()}: {error.strerror}", "make room there, or set TMPDIR to another folder"
        ) from None
    return data, _file_batches(data)[1]


def _unreadable(path: Path, kind: str, error: Exception) -> UserError:
    return UserError(f"{path} is not a readable {kind} file: {str(error)[:200]}", "check the file", key="data.path")
