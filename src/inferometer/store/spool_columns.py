"""A shard's spool as Arrow columns: record batches of what is new in it, and a copy of the spool that is made of them.

Each table of SCHEMAS is read from a position on, in pieces of bounded size, as one message of Arrow's IPC format, without the
schema, which both ends have. Appending all pieces to another folder gives the same spool there.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
import pyarrow as pa

from inferometer.records import NAMES, ROW, Failure, Sample
from inferometer.store import arrow
from inferometer.store.body_spool import Entry, append_entries, entries_of
from inferometer.store.spool import complete_lines, rows_of
from inferometer.store.writing import CHUNK_SCHEMA

_TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary()}
_CHUNK_SIZE = 10
_LINES: dict[str, type[msgspec.Struct] | type[str]] = {"failures": Failure, "replicas": str, "samples": Sample}
"""Files of JSON lines, and what is in a line."""


def _schema(types: dict[str, Any]) -> pa.Schema:
    return pa.schema([pa.field(name, _TYPES[kind], nullable=False) for name, kind in types.items()])


def _line_schema(kind: type[msgspec.Struct] | type[str]) -> pa.Schema:
    if kind is str:
        return _schema({"text": str})
    return _schema({field.name: field.type for field in msgspec.structs.fields(cast("type[msgspec.Struct]", kind))})


SCHEMAS: dict[str, pa.Schema] = {
    "rows": pa.schema([pa.field(name, pa.from_numpy_dtype(ROW[name]), nullable=False) for name in NAMES]),
    "chunks": CHUNK_SCHEMA,
    **{name: _line_schema(kind) for name, kind in _LINES.items()},
    "bodies": _schema(Entry.__annotations__),
    "peek": _schema({"number": int}),
}
"""The tables of a spool. Rows and chunks are counted by the control file. The next four are read up to the end of their file; peek is
short, and read as a whole."""


class Piece(NamedTuple):
    """Some rows of a table."""

    table: str
    first: int
    """The position of its first row, for rows and chunks."""
    data: pa.Buffer
    """A record batch as an IPC message. Ray puts it into its object store as it is."""


# --- reading ---------------------------------------------------------------------------------------------------------


def pieces_of(folder: Path, shard: int, table: str, first: int, end: int, most: int) -> Iterator[tuple[Piece, int]]:
    """Yield what a table has from a position up to `end`, in pieces of about `most` bytes, each with the position after it.

    Positions are numbers of rows for rows and chunks, and bytes of the file for the others; peek has the positions 0 and 1.
    """
    while first < end:
        batch, after = _READERS[table](folder, shard, first, end, most)
        if after == first:
            return  # the last line is not complete yet
        yield Piece(table, first, batch.serialize()), after
        first = after


def _read_rows(folder: Path, shard: int, first: int, end: int, most: int) -> tuple[pa.RecordBatch, int]:
    end = min(end, first + max(most // ROW.itemsize, 1))
    rows = rows_of(folder, shard, end, first)
    return _batch("rows", [arrow.numbers(rows[name]) for name in NAMES]), end


def _read_chunks(folder: Path, shard: int, first: int, end: int, most: int) -> tuple[pa.RecordBatch, int]:
    count = min(end - first, max(most // _CHUNK_SIZE, 1))
    arrival = np.fromfile(folder / f"{shard}.arrivals", "<i8", count, offset=first * 8)
    tokens = np.fromfile(folder / f"{shard}.tokens", "<u2", count, offset=first * 2)
    return _batch("chunks", [arrow.numbers(arrival), arrow.numbers(tokens)]), first + count


def _read_lines(table: str) -> Callable[[Path, int, int, int, int], tuple[pa.RecordBatch, int]]:
    kind, names = _LINES[table], SCHEMAS[table].names
    decoder = msgspec.json.Decoder(kind)

    def read(folder: Path, shard: int, first: int, end: int, most: int) -> tuple[pa.RecordBatch, int]:
        data = complete_lines(folder / f"{shard}.{table}", first, most)
        found: Sequence[Any] = decoder.decode_lines(data)
        columns = [found] if kind is str else [[getattr(each, name) for each in found] for name in names]
        return _batch(table, columns), first + len(data)

    return read


def _read_bodies(folder: Path, shard: int, first: int, end: int, most: int) -> tuple[pa.RecordBatch, int]:
    entries, end = entries_of(folder, shard, first, most)
    return _batch("bodies", [[entry[at] for entry in entries] for at in range(len(Entry._fields))]), end


def _read_peek(folder: Path, shard: int, first: int, end: int, most: int) -> tuple[pa.RecordBatch, int]:
    return _batch("peek", [arrow.numbers(np.fromfile(folder / f"{shard}.peek", "<i8"))]), end


def _batch(table: str, columns: Sequence[Any]) -> pa.RecordBatch:
    schema = SCHEMAS[table]
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_READERS: dict[str, Callable[[Path, int, int, int, int], tuple[pa.RecordBatch, int]]] = {
    "rows": _read_rows,
    "chunks": _read_chunks,
    **{name: _read_lines(name) for name in _LINES},
    "bodies": _read_bodies,
    "peek": _read_peek,
}


# --- writing ---------------------------------------------------------------------------------------------------------


def put(folder: Path, shard: int, piece: Piece) -> None:
    """Add a piece to a copy of the spool. Rows that are there already are written again. Raises OSError when the disk is full."""
    table = piece.table
    batch = pa.ipc.read_record_batch(piece.data, SCHEMAS[table])
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    path = folder / f"{shard}.{table}"
    if table == "rows":
        rows = np.empty(len(batch), ROW)
        for name in NAMES:
            rows[name] = columns[name].to_numpy()
        _write_at(path, piece.first * ROW.itemsize, rows.tobytes())
    elif table == "chunks":
        _write_at(folder / f"{shard}.arrivals", piece.first * 8, columns["arrival"].to_numpy().tobytes())
        _write_at(folder / f"{shard}.tokens", piece.first * 2, columns["tokens"].to_numpy().tobytes())
    elif table == "bodies":
        append_entries(folder, shard, (Entry(**each) for each in batch.to_pylist()))
    elif table == "peek":
        path.write_bytes(columns["number"].to_numpy().tobytes())
    else:
        kind, found = _LINES[table], batch.to_pylist()
        entries = [each["text"] for each in found] if kind is str else [msgspec.convert(each, kind) for each in found]
        with path.open("ab") as file:
            file.write(b"".join(msgspec.json.encode(each) + b"\n" for each in entries))


def _write_at(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.seek(offset)
        file.write(data)
