"""Writes a run's records into its folder. Chunks stream through in row groups of bounded size, so memory does not grow with them.

The encodings of the chunk columns were chosen by measuring (10 M chunks about 10 ms apart with 10 % jitter, one core, reading):
arrival as DELTA_BINARY_PACKED without compression took 32 ms and 38 MB; BYTE_STREAM_SPLIT with lz4 37 ms and 35 MB; PLAIN
without compression 36 ms and 80 MB; any of them with zstd 50 to 190 ms. Token counts repeat and take next to nothing in a
dictionary.

The same holds for the requests (500 k rows, writing and reading): 64-bit columns, which hold times and rising numbers, as
DELTA_BINARY_PACKED, and the others, which repeat, in dictionaries took 80 + 30 ms and 7 MB; all in dictionaries with lz4
220 + 60 ms and 15 MB; all PLAIN 120 + 65 ms and 66 MB.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from inferometer.records import (
    COUNTED_BY,
    MISSING,
    NAMED,
    NAMES,
    PHASES,
    ROW,
    TIMES,
    UNKNOWN,
    Body,
    Chunks,
    Manifest,
    Records,
    Sample,
)
from inferometer.series import TimeSeries
from inferometer.store import arrow
from inferometer.store import bodies as bodies_file
from inferometer.store import series as series_file
from inferometer.store.folder import BODIES, CHUNKS, MANIFEST, REQUESTS, SAMPLES, SERIES, atomic_file

GROUP = 1 << 20
"""Rows per row group: 1 M chunks take 10 MB of memory."""

_NULLABLE = {*TIMES, *UNKNOWN, *NAMED, "failure", "message"}

CHUNK_SCHEMA = pa.schema(
    [pa.field("arrival", pa.int64(), nullable=False), pa.field("tokens", pa.uint16(), nullable=False)]
)


def write(
    folder: Path,
    manifest: Manifest,
    records: Records,
    chunks: Iterable[Chunks] | None,
    series: Sequence[TimeSeries] = (),
    bodies: Iterable[Body] | None = None,
) -> None:
    """Write the run's files, the manifest last. `chunks`: None if they are there already, in files of the shards. `bodies`: the texts
    of requests and responses; None if they were not kept, or are there already."""
    folder = folder.absolute()  # pyarrow takes a relative path with a colon, such as a:b/chunks.parquet, for a URL
    if bodies is not None:
        with atomic_file(folder / BODIES) as partial:
            bodies_file.write(partial, bodies, records.classes)
    if chunks is not None:
        with atomic_file(folder / CHUNKS) as partial:
            write_chunks(partial, chunks)
    with atomic_file(folder / REQUESTS) as partial:
        table = request_table(records)
        with _writer(partial, table.schema, [name for name in NAMES if ROW[name].itemsize == 8]) as writer:
            writer.write_table(table, row_group_size=GROUP)
    with atomic_file(folder / SAMPLES) as partial:
        pq.write_table(_sample_table(records.samples), partial, compression="lz4")
    with atomic_file(folder / SERIES) as partial:
        series_file.write(partial, series)
    with atomic_file(folder / MANIFEST) as partial:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")


def _writer(path: Path, schema: pa.Schema, rising: list[str]) -> pq.ParquetWriter:
    """A writer that stores rising columns as differences and the others, whose values repeat, in dictionaries."""
    return pq.ParquetWriter(
        path,
        schema,
        compression="none",
        use_dictionary=[name for name in schema.names if name not in rising],
        column_encoding=dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
        write_statistics=False,
    )


def write_chunks(path: Path, chunks: Iterable[Chunks]) -> None:
    """Write chunks.parquet, or the part of it that is one shard's."""
    with _writer(path, CHUNK_SCHEMA, ["arrival"]) as writer:
        for arrival, tokens in _regroup(chunks):
            table = pa.table([arrow.numbers(arrival), arrow.numbers(tokens)], schema=CHUNK_SCHEMA)
            writer.write_table(table, row_group_size=GROUP)


def _regroup(chunks: Iterable[Chunks]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint16]]]:
    """Turn pieces of any size into pieces of GROUP rows; only the last one may be smaller."""
    pending: list[Chunks] = []
    count = 0
    for piece in chunks:
        at = 0
        while at < len(piece.arrival):
            take = min(GROUP - count, len(piece.arrival) - at)
            pending.append(Chunks(piece.arrival[at : at + take], piece.tokens[at : at + take]))
            at, count = at + take, count + take
            if count == GROUP:
                yield _join(pending)
                pending, count = [], 0
    if pending:
        yield _join(pending)


def _join(pieces: list[Chunks]) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
    if len(pieces) == 1:
        return pieces[0].arrival, pieces[0].tokens
    return np.concatenate([piece.arrival for piece in pieces]), np.concatenate([piece.tokens for piece in pieces])


def request_table(records: Records) -> pa.Table:
    """The columns of ROW under their names; missing and unknown values are null, and codes are spelled out."""
    rows = records.rows
    columns: dict[str, pa.Array] = {}
    for name in NAMES:
        values = rows[name]
        if name in TIMES:
            columns[name] = arrow.numbers(values, values == MISSING)
        elif name in UNKNOWN:
            columns[name] = arrow.numbers(values, values < 0)
        elif name == "failure":
            columns["failure"] = _failure_column(values, [failure.code for failure in records.failures])
            columns["message"] = _failure_column(values, [failure.message for failure in records.failures])
        elif name in NAMED:
            columns[name] = arrow.words(np.maximum(values, 0), getattr(records, NAMED[name]), values < 0)
        elif name in ("counted_by", "in_counted_by"):
            columns[name] = arrow.words(values, COUNTED_BY)
        elif name == "open_loop":
            columns[name] = arrow.booleans(values != 0)
        else:
            columns[name] = arrow.numbers(values)
    columns["phase"] = arrow.words(records.phase, PHASES)
    fields = [pa.field(name, column.type, name in _NULLABLE) for name, column in columns.items()]
    return pa.table(list(columns.values()), pa.schema(fields))


def _failure_column(failure: NDArray[np.int32], texts: list[str]) -> pa.Array:
    """The text for each row's failure, null for rows that succeeded; equal texts share an entry of the dictionary."""
    distinct = {text: index for index, text in enumerate(dict.fromkeys(texts))}
    index_of = np.array([0, *(distinct[text] for text in texts)], np.int32)
    return arrow.words(index_of[failure], list(distinct), failure == 0)


def _sample_table(samples: tuple[Sample, ...]) -> pa.Table:
    types = {int: np.int64, float: np.float64}
    fields = msgspec.structs.fields(Sample)
    columns = (np.array([getattr(sample, f.name) for sample in samples], types[f.type]) for f in fields)
    return pa.table(dict(zip((f.name for f in fields), map(arrow.numbers, columns), strict=True)))
