"""From the run's folder to a Run: the rows at once, the chunks in pieces when they are asked for."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from inferometer.errors import UserError
from inferometer.records import (
    COUNTED_BY,
    MISSING,
    NAMES,
    PHASES,
    ROW,
    TIMES,
    Chunks,
    Columns,
    Failure,
    Manifest,
    Records,
    Run,
    Sample,
)
from inferometer.store.folder import CHUNKS, MANIFEST, REQUESTS, SAMPLES
from inferometer.store.writing import CHUNK_SCHEMA, UNKNOWN

SCHEMA = 1
"""The newest layout of a run's folder that is understood here."""
_ADDED = ("session", "turn")
"""Columns that older runs lack: their requests belong to no session."""


def read(folder: str | Path) -> Run:
    """The run that lies in `folder`, which may be a link to it such as runs/LATEST."""
    place = Path(folder)
    if not place.exists():
        raise UserError(f"{folder}: there is no such folder", "give the folder of a run, such as runs/LATEST")
    if not place.is_dir():
        raise UserError(f"{folder}: not a folder", "give the folder of a run, such as runs/LATEST")
    place = place.resolve()
    return _with_files(place, lambda: Records(*_requests(place / REQUESTS), _samples(place / SAMPLES)))


def written(folder: Path, records: Records) -> Run:
    """The run that was just written to `folder`: the same as `read` gives, without its reading all rows once more."""
    return _with_files(folder.resolve(), lambda: records)


def _with_files(place: Path, records: Callable[[], Records]) -> Run:
    manifest, found = _manifest(place), records()
    with _parquet(place / CHUNKS) as file:
        _check_columns(place / CHUNKS, file.schema_arrow, CHUNK_SCHEMA.names)
        total = file.metadata.num_rows
    return Run(place, manifest, found, total, partial(_chunks, place / CHUNKS))


def _manifest(place: Path) -> Manifest:
    path = place / MANIFEST
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UserError(
            f"{place}: no {MANIFEST}, so this is not a run, or one that did not end", "give the folder of a run"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", "give a folder that can be read") from None
    try:
        tree = msgspec.json.decode(data)
        schema = tree.get("schema") if isinstance(tree, dict) else None
        if isinstance(schema, int) and schema > SCHEMA:
            raise UserError(
                f"{path}: written by a newer inferometer ({tree.get('inferometer', '?')}; layout {schema}, known here: {SCHEMA})",
                "upgrade inferometer to read it",
            )
        return msgspec.convert(tree, Manifest)
    except msgspec.MsgspecError as error:
        raise UserError(f"{path}: not a run's manifest: {error}", "the file is damaged: run again") from None


# --- parquet ---------------------------------------------------------------------------------------------------------


def _parquet(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> UserError:
    if isinstance(error, FileNotFoundError):
        return UserError(f"{path}: missing", "the run's folder is not whole: copy it again, or run again")
    if isinstance(error, PermissionError):
        return UserError(f"{path}: no permission to read it", "give a folder that can be read")
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return UserError(f"{path}: damaged: {line}", "copy the run's folder again, or run again")


def _check_columns(path: Path, schema: pa.Schema, names: list[str]) -> None:
    if missing := [name for name in names if name not in schema.names]:
        raise UserError(f"{path}: lacks the columns {', '.join(missing)}", "it is not a run's file: run again")


def _chunks(path: Path) -> Iterator[Chunks]:
    with _parquet(path) as file:
        for group in range(file.num_row_groups):
            try:
                table = file.read_row_group(group, columns=CHUNK_SCHEMA.names).combine_chunks()
            except (OSError, pa.ArrowException) as error:
                raise _damaged(path, error) from None
            yield Chunks(table["arrival"].to_numpy(), table["tokens"].to_numpy())


def _requests(path: Path) -> tuple[Columns, Any, tuple[Failure, ...]]:
    """The rows, their phases and the failures that they name."""
    with _parquet(path) as file:
        known = [name for name in NAMES if name not in _ADDED or name in file.schema_arrow.names]
        names = [*known, "message", "phase"]
        _check_columns(path, file.schema_arrow, names)
        try:
            table = file.read(columns=names)
        except (OSError, pa.ArrowException) as error:
            raise _damaged(path, error) from None
    try:
        columns = {name: _numbers(name, table[name]) for name in known if name not in ("counted_by", "failure")}
        columns |= {name: np.full(len(table), -1, ROW[name]) for name in NAMES if name not in known}
        columns["counted_by"] = _places(table["counted_by"], COUNTED_BY)
        columns["failure"], failures = _failures(table["failure"], table["message"])
        phase = _places(table["phase"], PHASES)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise _damaged(path, error) from None
    return Columns(len(table), columns), phase, failures


def _numbers(name: str, column: pa.ChunkedArray) -> NDArray[Any]:
    """A column of ROW; what is null becomes what says so there."""
    if column.null_count and (name in TIMES or name in UNKNOWN):
        values = _filled(_joined(column), MISSING if name in TIMES else -1)
    else:
        values = column.to_numpy()
    return values.astype(ROW[name], casting="same_kind", copy=False)


def _filled(column: pa.Array, null: int) -> NDArray[Any]:
    """Whole numbers with `null` for those that are. (Arrow's own fill_null takes 80 ms to import.)"""
    valid, values = column.buffers()
    part = slice(column.offset, column.offset + len(column))
    numbers = np.frombuffer(values, column.type.to_pandas_dtype())[part]
    if valid is None:
        return numbers
    there = np.unpackbits(np.frombuffer(valid, np.uint8), count=part.stop, bitorder="little")[part]
    return np.where(there.view(np.bool_), numbers, numbers.dtype.type(null))


def _places(column: pa.ChunkedArray, words: tuple[str, ...]) -> NDArray[np.int8]:
    """Words back to their places in `words`."""
    coded = _coded(column)
    place_of = np.array([words.index(word) for word in coded.dictionary.to_pylist()], np.int8)
    places: NDArray[np.int8] = place_of[coded.indices.to_numpy()]
    return places


def _failures(codes: pa.ChunkedArray, messages: pa.ChunkedArray) -> tuple[Any, tuple[Failure, ...]]:
    """Each row's place in the list of the different (code, message), in the order in which they first come; 0 is ok."""
    code, message = _coded(codes), _coded(messages)
    numbers = np.zeros(len(code), np.int32)
    if code.null_count == len(code):
        return numbers, ()
    code_place = _filled(code.indices, -1)
    failed = np.flatnonzero(code_place >= 0)
    code_place, message_place = code_place[failed].astype(np.int64), _filled(message.indices, 0)[failed]
    width = max(len(message.dictionary), 1)
    pairs, first, inverse = np.unique(code_place * width + message_place, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(pairs), np.int64)
    rank[order] = np.arange(len(pairs))
    numbers[failed] = 1 + rank[inverse]
    code_words, message_words = code.dictionary.to_pylist(), message.dictionary.to_pylist() or [""]
    return numbers, tuple(
        Failure(code_words[pair // width], message_words[pair % width]) for pair in pairs[order].tolist()
    )


def _coded(column: pa.ChunkedArray) -> Any:
    """One dictionary array of a column of words."""
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    return _joined(coded.unify_dictionaries())


def _joined(column: pa.ChunkedArray) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _samples(path: Path) -> tuple[Sample, ...]:
    fields = [field.name for field in msgspec.structs.fields(Sample)]
    with _parquet(path) as file:
        _check_columns(path, file.schema_arrow, fields)
        try:
            return tuple(msgspec.convert(row, Sample) for row in file.read(columns=fields).to_pylist())
        except (OSError, pa.ArrowException, msgspec.ValidationError) as error:
            raise _damaged(path, error) from None
