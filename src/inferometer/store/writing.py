"""From records to the run's folder. Chunks stream through in row groups of bounded size, so that memory does not grow with them.

How the chunk columns lie on the disk was measured (10 M chunks about 10 ms apart with 10 % jitter, one core, reading):
arrival as DELTA_BINARY_PACKED without compression 32 ms and 38 MB; BYTE_STREAM_SPLIT with lz4 37 ms and 35 MB; PLAIN without
compression 36 ms and 80 MB; any of them with zstd 50 to 190 ms. Token counts repeat and take next to nothing in a dictionary.

The same holds for the requests (500 k rows, writing and reading): 64-bit columns, which hold times and numbers that rise, as
DELTA_BINARY_PACKED and the others, which repeat, in dictionaries 80 + 30 ms and 7 MB; all in dictionaries with lz4 220 + 60 ms
and 15 MB; all PLAIN 120 + 65 ms and 66 MB.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from inferometer.records import COUNTED_BY, MISSING, NAMES, PHASES, ROW, TIMES, Chunks, Manifest, Records, Sample
from inferometer.store.folder import CHUNKS, MANIFEST, REQUESTS, SAMPLES, whole

GROUP = 1 << 20
"""Rows of a row group: 1 M chunks, 10 MB in memory."""

UNKNOWN = ("read_delay", "queue", "compute", "n_in", "n_out", "cached", "reasoning", "session", "turn")
"""Columns in which -1 says `not known`; null on the disk."""

_NULLABLE = {*TIMES, *UNKNOWN, "failure", "message"}

CHUNK_SCHEMA = pa.schema(
    [pa.field("arrival", pa.int64(), nullable=False), pa.field("tokens", pa.uint16(), nullable=False)]
)


def write(folder: Path, manifest: Manifest, records: Records, chunks: Iterable[Chunks]) -> None:
    """Write the run's files, the manifest last."""
    with whole(folder / CHUNKS) as partial:
        _write_chunks(partial, chunks)
    with whole(folder / REQUESTS) as partial:
        table = request_table(records)
        with _writer(partial, table.schema, [name for name in NAMES if ROW[name].itemsize == 8]) as writer:
            writer.write_table(table, row_group_size=GROUP)
    with whole(folder / SAMPLES) as partial:
        pq.write_table(_sample_table(records.samples), partial, compression="lz4")
    with whole(folder / MANIFEST) as partial:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")


def _writer(path: Path, schema: pa.Schema, by_differences: list[str]) -> pq.ParquetWriter:
    """Columns that rise are written as their differences, the others, which repeat, in dictionaries."""
    return pq.ParquetWriter(
        path,
        schema,
        compression="none",
        use_dictionary=[name for name in schema.names if name not in by_differences],
        column_encoding=dict.fromkeys(by_differences, "DELTA_BINARY_PACKED"),
        write_statistics=False,
    )


def _write_chunks(path: Path, chunks: Iterable[Chunks]) -> None:
    with _writer(path, CHUNK_SCHEMA, ["arrival"]) as writer:
        for arrival, tokens in _regroup(chunks):
            table = pa.table([_numbers(arrival), _numbers(tokens)], schema=CHUNK_SCHEMA)
            writer.write_table(table, row_group_size=GROUP)


def _regroup(chunks: Iterable[Chunks]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint16]]]:
    """Pieces of any size become pieces of GROUP rows (the last one smaller)."""
    held: list[Chunks] = []
    count = 0
    for piece in chunks:
        at = 0
        while at < len(piece.arrival):
            take = min(GROUP - count, len(piece.arrival) - at)
            held.append(Chunks(piece.arrival[at : at + take], piece.tokens[at : at + take]))
            at, count = at + take, count + take
            if count == GROUP:
                yield _join(held)
                held, count = [], 0
    if held:
        yield _join(held)


def _join(held: list[Chunks]) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
    if len(held) == 1:
        return held[0].arrival, held[0].tokens
    return np.concatenate([piece.arrival for piece in held]), np.concatenate([piece.tokens for piece in held])


def request_table(records: Records) -> pa.Table:
    """The ROW columns under their names; what is missing or not known is null, and codes are words."""
    rows = records.rows
    columns: dict[str, pa.Array] = {}
    for name in NAMES:
        values = rows[name]
        if name in TIMES:
            columns[name] = _numbers(values, values == MISSING)
        elif name in UNKNOWN:
            columns[name] = _numbers(values, values < 0)
        elif name == "failure":
            columns["failure"] = _failure_column(values, [failure.code for failure in records.failures])
            columns["message"] = _failure_column(values, [failure.message for failure in records.failures])
        elif name == "counted_by":
            columns[name] = _words(values, COUNTED_BY)
        elif name == "open_loop":
            columns[name] = pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values != 0)])
        else:
            columns[name] = _numbers(values)
    columns["phase"] = _words(records.phase, PHASES)
    fields = [pa.field(name, column.type, name in _NULLABLE) for name, column in columns.items()]
    return pa.table(list(columns.values()), pa.schema(fields))


def _numbers(values: NDArray[Any], missing: NDArray[np.bool_] | None = None) -> pa.Array:
    """The numbers as they lie there, null where `missing`. (pa.array looks for numpy.ma first, which takes long to import.)"""
    values = np.ascontiguousarray(values)
    valid = _bits(~missing) if missing is not None and missing.any() else None
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [valid, pa.py_buffer(values)])


def _bits(mask: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


def _failure_column(failure: NDArray[np.int32], words: list[str]) -> pa.Array:
    """The word of each row's failure, null where it is ok; equal words share a place in the dictionary."""
    distinct = {word: place for place, word in enumerate(dict.fromkeys(words))}
    place_of = np.array([0, *(distinct[word] for word in words)], np.int32)
    return pa.DictionaryArray.from_arrays(
        _numbers(place_of[failure], failure == 0), pa.array(list(distinct), pa.string())
    )


def _words(places: NDArray[np.int8], words: tuple[str, ...]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(_numbers(places), pa.array(words, pa.string()))


def _sample_table(samples: tuple[Sample, ...]) -> pa.Table:
    kinds = {int: pa.int64(), float: pa.float64()}
    fields = msgspec.structs.fields(Sample)
    return pa.table({f.name: pa.array([getattr(sample, f.name) for sample in samples], kinds[f.type]) for f in fields})
