"""series.parquet: one row per value, grouped by series and ordered by time: source, name, labels, at and value.

`labels` is a JSON object with sorted keys, so that equal labels are equal strings, which a dictionary stores once.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from inferometer.records import Sample
from inferometer.series import Columns, TimeSeries
from inferometer.store import arrow

CLIENT = "client"
"""The source of the client's own health."""
_HEALTH = tuple(field.name for field in msgspec.structs.fields(Sample) if field.name not in ("shard", "at"))
_KEY = ("source", "name", "labels")
_COLUMNS = [*_KEY, "at", "value"]


def client_health(samples: Iterable[Sample]) -> tuple[TimeSeries, ...]:
    """The samples of the client's processes as series, labelled by shard."""
    columns = Columns(CLIENT)
    for sample in samples:
        labels = {"shard": str(sample.shard)}
        for name in _HEALTH:
            columns.append(name, labels, sample.at, getattr(sample, name))
    return columns.series()


def write(path: Path, series: Sequence[TimeSeries]) -> None:
    """Write all series to a Parquet file."""
    keys = [(each.source, each.name, _labels(each.labels)) for each in series]
    lengths = [len(each.at) for each in series]
    columns = [_repeated([key[part] for key in keys], lengths) for part in range(len(_KEY))]
    columns.append(arrow.numbers(np.concatenate([np.zeros(0, np.int64), *(each.at for each in series)])))
    columns.append(arrow.numbers(np.concatenate([np.zeros(0, np.float64), *(each.value for each in series)])))
    fields = [pa.field(name, column.type, nullable=False) for name, column in zip(_COLUMNS, columns, strict=True)]
    pq.write_table(pa.table(columns, pa.schema(fields)), path.absolute(), compression="lz4")  # see writing.py


def read(path: Path) -> tuple[TimeSeries, ...]:
    """Read all series of a Parquet file. Raises UserError when it is damaged."""
    with arrow.open_parquet(path, _COLUMNS) as file:
        try:
            table = file.read(columns=_COLUMNS)
            keys = [table[name].combine_chunks().dictionary_encode() for name in _KEY]
            at, value = (arrow.filled(arrow.joined(table[name]), 0) for name in ("at", "value"))
            rows_of: dict[tuple[str, str, str], list[slice]] = {}
            for rows in _runs_of_equal([arrow.filled(key.indices, -1) for key in keys]):
                source, name, labels = (key[rows.start].as_py() for key in keys)
                rows_of.setdefault((source, name, labels), []).append(rows)
            return tuple(
                TimeSeries(
                    source,
                    name,
                    msgspec.json.decode(labels, type=dict[str, str]),
                    np.concatenate([at[rows] for rows in parts]),
                    np.concatenate([value[rows] for rows in parts]),
                )
                for (source, name, labels), parts in rows_of.items()
            )
        except (OSError, ValueError, TypeError, pa.ArrowException, msgspec.MsgspecError) as error:
            raise arrow.damaged(path, error) from None


def _runs_of_equal(columns: list[NDArray[np.integer[Any]]]) -> Iterator[slice]:
    """Yield where all columns keep their values: usually one slice per series, which are written one after the other."""
    length = len(columns[0])
    changes = np.zeros(max(length - 1, 0), np.bool_)
    for column in columns:
        changes |= np.diff(column) != 0
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), length]
    return (slice(start, end) for start, end in pairwise(edges) if end > start)


def _labels(labels: dict[str, str]) -> str:
    return msgspec.json.encode(labels, order="sorted").decode()


def _repeated(words: list[str], lengths: list[int]) -> pa.Array:
    """A dictionary column in which each word is repeated for all rows of its series."""
    distinct = {word: index for index, word in enumerate(dict.fromkeys(words))}
    return arrow.words(np.repeat(np.array([distinct[word] for word in words], np.int32), lengths), list(distinct))
