"""bodies.parquet: the texts of requests and responses (`keep: text`). They stream through in row groups of bounded size."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from inferometer.records import Body
from inferometer.store import arrow

_GROUP_ROWS = 16_384
_GROUP_CHARACTERS = 16 << 20
"""The most rows and characters of a row group, which is held in memory while it is written or read."""

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("stage", pa.int16(), nullable=False),
        pa.field("class", pa.dictionary(pa.int16(), pa.string())),
        pa.field("session", pa.int64()),
        pa.field("turn", pa.int32()),
        pa.field("request", pa.string(), nullable=False),
        pa.field("response", pa.string()),
        pa.field("finish_reason", pa.dictionary(pa.int16(), pa.string())),
    ]
)


def write(path: Path, bodies: Iterable[Body], classes: Sequence[str]) -> None:
    """Write the texts; `classes` are the names of the traffic classes."""
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        group: list[Body] = []
        size = 0
        for body in bodies:
            group.append(body)
            size += len(body.request) + len(body.response or "")
            if len(group) >= _GROUP_ROWS or size >= _GROUP_CHARACTERS:
                writer.write_table(_table(group, classes))
                group, size = [], 0
        writer.write_table(_table(group, classes))


def _table(bodies: Sequence[Body], classes: Sequence[str]) -> pa.Table:
    columns = {
        "id": [body.id for body in bodies],
        "stage": [body.stage for body in bodies],
        "class": [classes[body.class_] if 0 <= body.class_ < len(classes) else None for body in bodies],
        "session": [body.session if body.session >= 0 else None for body in bodies],
        "turn": [body.turn if body.turn >= 0 else None for body in bodies],
        "request": [body.request for body in bodies],
        "response": [body.response for body in bodies],
        "finish_reason": [body.finish_reason for body in bodies],
    }
    return pa.table([pa.array(columns[field.name], field.type) for field in SCHEMA], SCHEMA)


def read(path: Path, ids: Collection[int]) -> dict[int, Body]:
    """Read the texts of these requests, by id, as far as they were kept. The names of classes are not read."""
    found: dict[int, Body] = {}
    if not path.exists():
        return found
    with arrow.open_parquet(path, SCHEMA.names) as file:
        for group in range(file.num_row_groups):
            try:
                own = file.read_row_group(group, columns=["id"])["id"].to_pylist()
                rows = [row for row, id in enumerate(own) if id in ids]
                if not rows:
                    continue
                table = file.read_row_group(group)
            except (OSError, pa.ArrowException) as error:
                raise arrow.damaged(path, error) from None
            for row in rows:
                body = _body(table, row, ())
                found[body.id] = body
    return found


def read_all(path: Path, classes: Sequence[str]) -> Iterator[Body]:
    """Yield all texts; one row group is in memory at a time. `classes` are the names of the traffic classes."""
    with arrow.open_parquet(path, SCHEMA.names) as file:
        for group in range(file.num_row_groups):
            try:
                table = file.read_row_group(group)
            except (OSError, pa.ArrowException) as error:
                raise arrow.damaged(path, error) from None
            for row in range(len(table)):
                yield _body(table, row, classes)


def _body(table: pa.Table, row: int, classes: Sequence[str]) -> Body:
    values = {name: table[name][row].as_py() for name in SCHEMA.names}
    return Body(
        id=values["id"],
        session=-1 if values["session"] is None else values["session"],
        turn=-1 if values["turn"] is None else values["turn"],
        stage=values["stage"],
        class_=classes.index(values["class"]) if values["class"] in classes else -1,
        request=values["request"],
        response=values["response"],
        finish_reason=values["finish_reason"],
    )
