"""Reads a run back from its folder: the rows at once, the chunks and the series when they are needed."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from inferometer.errors import UserError
from inferometer.records import (
    COUNTED_BY,
    MISSING,
    NAMED,
    NAMES,
    PHASES,
    ROW,
    TIMES,
    UNKNOWN,
    Chunks,
    Columns,
    Failure,
    Manifest,
    Records,
    Run,
    Sample,
    class_names,
)
from inferometer.series import TimeSeries
from inferometer.store import arrow
from inferometer.store import series as series_file
from inferometer.store.folder import CHUNKS, MANIFEST, REQUESTS, SAMPLES, SERIES, files_of
from inferometer.store.writing import CHUNK_SCHEMA

SCHEMA = 1
"""The newest layout of a run's folder that this version can read."""
_ADDED = (
    *("session", "turn", "turns", "first_content", "first_tokens", "streamed_tokens"),
    *("class", "replica", "in_counted_by", "wasted", "server_total", "rtt"),
)
"""Columns that older runs lack: their requests belong to no session and no class, and the rest is not known."""
_COUNTED_BY = ("counted_by", "in_counted_by")
"""Columns of words from COUNTED_BY."""
_WORDS = (*_COUNTED_BY, "failure", *NAMED)
"""Columns of words, which are indices in ROW."""


def read(folder: str | Path) -> Run:
    """Read the run in `folder`, which may be a link to it such as runs/LATEST. Raises UserError when it is not a run."""
    path = _resolved(folder)
    return _run(path, partial(_records, path))


def _resolved(folder: str | Path) -> Path:
    path = Path(folder)
    if not path.exists():
        raise UserError(
            f"{folder}: there is no such folder", "give the folder of a run, or measure one with `inferometer run URL`"
        )
    if not path.is_dir():
        raise UserError(f"{folder}: not a folder", "give the folder of a run, such as runs/LATEST")
    return path.resolve()


def written(folder: Path, records: Records) -> Run:
    """The run that was just written to `folder`: equal to what `read` returns, without reading all rows again."""
    return _run(folder.resolve(), lambda _: records)


def read_manifest(folder: Path) -> Manifest:
    """Read only the manifest of a run. Raises UserError when the folder is not a run."""
    return _manifest(_resolved(folder))


def row_count(folder: Path) -> int:
    """Return the number of a run's rows."""
    with arrow.open_parquet(folder / REQUESTS, ["id"]) as file:
        return int(file.metadata.num_rows)


def chunks_of(folder: Path) -> Iterator[Chunks]:
    """Yield a run's chunks, in slices that fit into memory."""
    for path in chunk_files(folder):
        yield from _chunks(path)


def chunk_files(folder: Path) -> list[Path]:
    """Return the files that have the chunks of a run: one, or one per shard."""
    return files_of(folder, CHUNKS) or [folder / CHUNKS]


def series_of(folder: Path) -> tuple[TimeSeries, ...]:
    """Read what observers recorded beside a run, and the client's health."""
    return series_file.read(folder / SERIES)


def _run(folder: Path, read_records: Callable[[Manifest], Records]) -> Run:
    manifest = _manifest(folder)
    records = read_records(manifest)
    total = 0
    for path in chunk_files(folder):
        with arrow.open_parquet(path, CHUNK_SCHEMA.names) as file:
            total += file.metadata.num_rows
    chunks, series = partial(chunks_of, folder), partial(_series, folder / SERIES, records.samples)
    return Run(folder, manifest, records, total, chunks, series)


def _manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UserError(
            f"{folder}: there is no {MANIFEST}: the folder is not a run, or the run was killed before its first request",
            "give the folder of a run, such as runs/LATEST",
        ) from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", "give a folder that can be read") from None
    try:
        tree = msgspec.json.decode(data)
        schema = tree.get("schema") if isinstance(tree, dict) else None
        if isinstance(schema, int) and schema > SCHEMA:
            raise UserError(
                f"{path}: written by a newer inferometer ({tree.get('inferometer', '?')}; its layout is {schema}, "
                f"this version reads up to {SCHEMA})",
                "upgrade inferometer to read it",
            )
        return msgspec.convert(tree, Manifest)
    except msgspec.MsgspecError as error:
        raise UserError(f"{path}: not the manifest of a run: {error}", "the file is damaged: run again") from None


def _records(folder: Path, manifest: Manifest) -> Records:
    path = folder / REQUESTS
    classes = class_names(manifest)
    with arrow.open_parquet(path, [name for name in (*NAMES, "message", "phase") if name not in _ADDED]) as file:
        known = [name for name in NAMES if name in file.schema_arrow.names]
        try:
            table = file.read(columns=[*known, "message", "phase"])
            columns = {name: _numbers(name, table[name]) for name in known if name not in _WORDS}
            columns |= {name: np.full(len(table), _unknown(name), ROW[name]) for name in NAMES if name not in known}
            columns |= {name: _indices(table[name], COUNTED_BY) for name in _COUNTED_BY if name in known}
            columns["failure"], failures = _failures(table["failure"], table["message"])
            replicas: tuple[str, ...] = ()
            if "replica" in known:
                columns["replica"], replicas = _names(table["replica"])
            if "class" in known:
                columns["class"], _ = _names(table["class"], classes)
            phase = _indices(table["phase"], PHASES)
        except (OSError, pa.ArrowException, ValueError, TypeError) as error:
            raise arrow.damaged(path, error) from None
    samples = _samples(folder / SAMPLES)
    return Records(Columns(len(table), columns), phase, failures, samples, classes, replicas)


def _numbers(name: str, column: pa.ChunkedArray) -> NDArray[Any]:
    """A column of ROW; null becomes MISSING or -1."""
    if name not in TIMES and name not in UNKNOWN:
        arrow.check_complete(column)
    values = arrow.filled(arrow.joined(column), _unknown(name))
    return values.astype(ROW[name], casting="same_kind", copy=False)


def _unknown(name: str) -> int:
    """The value of a column that stands for a time that is missing or a number that is not known."""
    return MISSING if name in TIMES else 0 if name in _COUNTED_BY else -1


def _indices(column: pa.ChunkedArray, words: tuple[str, ...]) -> NDArray[np.int8]:
    """Turn words back into their indices in `words`."""
    arrow.check_complete(column)
    encoded = arrow.encoded(column)
    index_of = np.array([words.index(word) for word in encoded.dictionary.to_pylist()], np.int8)
    indices: NDArray[np.int8] = index_of[arrow.filled(encoded.indices, 0)]
    return indices


def _names(column: pa.ChunkedArray, names: tuple[str, ...] = ()) -> tuple[NDArray[np.int16], tuple[str, ...]]:
    """Turn names into indices: in `names`, or else in the names that occur, which are then in the order in which they first do."""
    encoded = arrow.encoded(column)
    if encoded.null_count == len(encoded):
        return np.full(len(encoded), -1, np.int16), names
    indices, words = arrow.filled(encoded.indices, -1), encoded.dictionary.to_pylist()
    if not names:
        present, first = np.unique(indices, return_index=True)
        names = tuple(words[index] for index in present[np.argsort(first)].tolist() if index >= 0)
    index_of = np.array([*(names.index(word) if word in names else -1 for word in words), -1], np.int16)
    return index_of[indices], names


def _failures(codes: pa.ChunkedArray, messages: pa.ChunkedArray) -> tuple[Any, tuple[Failure, ...]]:
    """Number the distinct pairs of code and message in the order in which they first occur; 0 stands for success."""
    code, message = arrow.encoded(codes), arrow.encoded(messages)
    numbers = np.zeros(len(code), np.int32)
    if code.null_count == len(code):
        return numbers, ()
    code_index = arrow.filled(code.indices, -1)
    failed = np.flatnonzero(code_index >= 0)
    code_index, message_index = code_index[failed].astype(np.int64), arrow.filled(message.indices, 0)[failed]
    width = max(len(message.dictionary), 1)
    pairs, first, inverse = np.unique(code_index * width + message_index, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(pairs), np.int64)
    rank[order] = np.arange(len(pairs))
    numbers[failed] = 1 + rank[inverse]
    code_words, message_words = code.dictionary.to_pylist(), message.dictionary.to_pylist() or [""]
    return numbers, tuple(
        Failure(code_words[pair // width], message_words[pair % width]) for pair in pairs[order].tolist()
    )


def _samples(path: Path) -> tuple[Sample, ...]:
    """Read the samples. Older runs lack the columns that have a default."""
    fields = msgspec.structs.fields(Sample)
    with arrow.open_parquet(path, [field.name for field in fields if field.required]) as file:
        known = [field.name for field in fields if field.name in file.schema_arrow.names]
        try:
            return tuple(msgspec.convert(row, Sample) for row in file.read(columns=known).to_pylist())
        except (OSError, pa.ArrowException, msgspec.ValidationError) as error:
            raise arrow.damaged(path, error) from None


def _chunks(path: Path) -> Iterator[Chunks]:
    with arrow.open_parquet(path, CHUNK_SCHEMA.names) as file:
        for group in range(file.num_row_groups):
            try:
                table = file.read_row_group(group, columns=CHUNK_SCHEMA.names).combine_chunks()
            except (OSError, pa.ArrowException) as error:
                raise arrow.damaged(path, error) from None
            yield Chunks(*(arrow.filled(arrow.joined(table[name]), 0) for name in ("arrival", "tokens")))


def _series(path: Path, samples: tuple[Sample, ...]) -> tuple[TimeSeries, ...]:
    """The stored series. Runs from before series.parquet have the client's health, from their samples."""
    return series_file.read(path) if path.exists() else series_file.client_health(samples)
