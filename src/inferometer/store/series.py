"""series.parquet: one row per value, grouped by series and ordered by time: source, name, labels, at and value.

`labels` is a JSON object with sorted keys, so that equal labels are equal strings, which a dictionary stores once.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from inferometer.records import Sample
from inferometer.series import SeriesRow, TimeSeries, group
from inferometer.store import arrow

CLIENT = "client"
"""The source of the client's own health."""
_HEALTH = tuple(field.name for field in msgspec.structs.fields(Sample) if field.name not in ("shard", "at"))
_KEY = ("source", "name", "labels")
_COLUMNS = [*_KEY, "at", "value"]


def client_health(samples: Iterable[Sample]) -> tuple[TimeSeries, ...]:
    """The samples of the client's processes as series, labelled by shard."""
    return group(
        SeriesRow(CLIENT, name, {"shard": str(sample.shard)}, sample.at, getattr(sample, name))
        for sample in samples
        for name in _HEALTH
    )


def write(path: Path, series: Sequence[TimeSeries]) -> None:
    """Write all series to a Parquet file."""
    keys = [(each.source, each.name, _labels(each.labels)) for each in series]
    lengths = [len(each.at) for each in series]
    columns = [_repeated([key[part] for key in keys], lengths) for part in range(len(_KEY))]
    columns.append(arrow.numbers(np.concatenate([np.zeros(0, np.int64), *(each.at for each in series)])))
    columns.append(arrow.numbers(np.concatenate([np.zeros(0, np.float64), *(each.value for each in series)])))
    fields = [pa.field(name, column.type, nullable=False) for name, column in zip(_COLUMNS, columns, strict=True)]
    pq.write_table(pa.table(columns, pa.schema(fields)), path, compression="lz4")


def read(path: Path) -> tuple[TimeSeries, ...]:
    """Read all series of a Parquet file. Raises UserError when it is damaged."""
    with arrow.open_parquet(path, _COLUMNS) as file:
        try:
            table = file.read(columns=_COLUMNS)
            keys = zip(*(table[name].to_pylist() for name in _KEY), strict=True)
            at, value = (table[name].to_numpy() for name in ("at", "value"))
            rows_of: dict[tuple[str, str, str], list[int]] = {}
            for row, key in enumerate(keys):
                rows_of.setdefault(key, []).append(row)
            return tuple(
                TimeSeries(source, name, msgspec.json.decode(labels, type=dict[str, str]), at[rows], value[rows])
                for (source, name, labels), rows in rows_of.items()
            )
        except (OSError, ValueError, TypeError, pa.ArrowException, msgspec.MsgspecError) as error:
            raise arrow.damaged(path, error) from None


def _labels(labels: dict[str, str]) -> str:
    return msgspec.json.encode(labels, order="sorted").decode()


def _repeated(words: list[str], lengths: list[int]) -> pa.Array:
    """A dictionary column in which each word is repeated for all rows of its series."""
    distinct = {word: index for index, word in enumerate(dict.fromkeys(words))}
    return arrow.words(np.repeat(np.array([distinct[word] for word in words], np.int32), lengths), list(distinct))
