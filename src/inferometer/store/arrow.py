"""Numpy arrays as Arrow arrays and back, and Parquet files whose damage is a UserError."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from inferometer.errors import UserError

# --- to Arrow --------------------------------------------------------------------------------------------------------


def numbers(values: NDArray[Any], missing: NDArray[np.bool_] | None = None) -> pa.Array:
    """Wrap numbers without a copy, null where `missing`. (pa.array imports pandas first, if it is installed: 0.4 s.)"""
    values = np.ascontiguousarray(values)
    valid = bits(~missing) if missing is not None and missing.any() else None
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [valid, pa.py_buffer(values)])


def booleans(values: NDArray[np.bool_]) -> pa.Array:
    """Convert booleans to an Arrow array."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits(values)])


def bits(mask: NDArray[np.bool_]) -> pa.Buffer:
    """Pack a mask into Arrow's bitmap."""
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


def words(indices: NDArray[Any], dictionary: list[str] | tuple[str, ...], missing: Any = None) -> pa.Array:
    """A column of strings, given as indices into a dictionary; null where `missing`."""
    return pa.DictionaryArray.from_arrays(numbers(indices, missing), strings(dictionary))


def strings(values: Sequence[str]) -> pa.Array:
    """Convert strings to an Arrow array."""
    encoded = [value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(encoded), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    )


# --- from Arrow ------------------------------------------------------------------------------------------------------


def filled(column: pa.Array, null: int) -> NDArray[Any]:
    """Numbers or booleans, with `null` instead of nulls. (Arrow's own fill_null and to_numpy import other libraries first.)"""
    if not len(column):
        return np.empty(0, column.type.to_pandas_dtype())
    valid, values = column.buffers()
    part = slice(column.offset, column.offset + len(column))

    def unpacked(bitmap: pa.Buffer) -> NDArray[np.bool_]:
        return np.unpackbits(np.frombuffer(bitmap, np.uint8), count=part.stop, bitorder="little")[part].view(np.bool_)

    is_boolean = pa.types.is_boolean(column.type)
    found = unpacked(values) if is_boolean else np.frombuffer(values, column.type.to_pandas_dtype())[part]
    return found if valid is None else np.where(unpacked(valid), found, found.dtype.type(null))


def check_complete(column: pa.ChunkedArray) -> None:
    """Raise ValueError if there are nulls in a column that has none."""
    if column.null_count:
        raise ValueError("null in a column that has none")


def encoded(column: pa.ChunkedArray) -> Any:
    """A column of strings as one dictionary array."""
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    return joined(coded.unify_dictionaries())


def joined(column: pa.ChunkedArray) -> Any:
    """A column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


# --- Parquet files ---------------------------------------------------------------------------------------------------


def open_parquet(path: Path, columns: list[str]) -> pq.ParquetFile:
    """Open a file that must have these columns."""
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise damaged(path, error) from None
    if missing := [name for name in columns if name not in file.schema_arrow.names]:
        file.close()
        raise UserError(
            f"{path}: the columns {', '.join(missing)} are missing", "this is not a file of a run: run again"
        )
    return file


def damaged(path: Path, error: Exception) -> UserError:
    """Say in one line why a file cannot be read."""
    if isinstance(error, FileNotFoundError):
        return UserError(f"{path}: the file is missing", "the run's folder is incomplete: copy it again, or run again")
    if isinstance(error, PermissionError):
        return UserError(f"{path}: no permission to read the file", "give a folder that can be read")
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return UserError(f"{path}: the file is damaged: {line}", "copy the run's folder again, or run again")
