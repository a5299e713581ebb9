"""Which rows of a dataset are used: those that can be read and whose length is accepted, up to the limit.

Every row is looked at once, because the number of those that are used decides which one a request gets. What remains in memory is the index of each request's rows, and why others were left out.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.config.data.datasets import DatasetSection, Hub, OpenAiBatch, PythonCode, RowsSection
from inferometer.errors import UserError
from inferometer.workload import tokenizer
from inferometer.workload.datasets import batch, files, hub, python_code, shapes
from inferometer.workload.datasets.conversations import Record
from inferometer.workload.datasets.rows import Row, Rows
from inferometer.workload.datasets.steps import output_length, sends_turns, steps

_BLOCK = 1024
FORM = '{"prompt": "..."}, {"messages": [{"role": "user", "content": "..."}]} or {"turns": ["...", "..."]}'

BATCH_FORM = '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}'


class Selection:
    """The records of a dataset that requests are made from."""

    def __init__(self, spec: RowsSection) -> None:
        self._rows = _open(spec)
        self._read = _reader(spec)
        _check_columns(spec, self._rows)
        self.total = 0
        self.skipped = self._rows.lost
        self.first_skipped = self._rows.first_lost
        self.filtered = 0
        self.has_turns = False
        self.urls: set[str] = set()
        self._groups = _grouped(self._rows)
        self._order, self._parts = self._select(spec)
        if not len(self._order):
            raise self._nothing(spec)

    def __len__(self) -> int:
        return len(self._order)

    def records(self, positions: Sequence[int]) -> list[Record]:
        """The records at these positions."""
        units = self._order[positions].tolist()
        parts = self._parts[positions].tolist()
        return [records[part] for records, part in zip(self._records(units), parts, strict=True)]  # type: ignore[index]

    def _records(self, units: Sequence[int]) -> list[list[Record] | ValueError]:
        """The records of each unit, which is a row, or the rows of a conversation."""
        groups = [self._groups[unit] for unit in units] if self._groups is not None else [[unit] for unit in units]
        rows = iter(self._rows.take([index for group in groups for index in group]))
        made = [self._made([next(rows) for _ in group]) for group in groups]
        self._rows.release()
        return made

    def _made(self, rows: list[Row | ValueError]) -> list[Record] | ValueError:
        readable = [row for row in rows if not isinstance(row, ValueError)]
        if not readable:
            return next(row for row in rows if isinstance(row, ValueError))
        try:
            return self._read(readable)
        except ValueError as error:
            return error

    # --- selecting ---------------------------------------------------------------------------------------------------

    def _select(self, spec: RowsSection) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The unit of each record that is used, and which of the unit's records it is."""
        count = len(self._rows) if self._groups is None else len(self._groups)
        self.total = count + self._rows.lost
        chosen: list[NDArray[np.int64]] = [np.empty((0, 2), dtype=np.int64)]
        wanted = spec.rows or count + 1
        may_be_plain = self._groups is None and _takes_plain_rows(spec)
        for start in range(0, count, _BLOCK):
            last = min(start + _BLOCK, count) - 1
            units = range(start, min(last + 1, start + wanted))
            if may_be_plain and _are_plain(self._rows, units):
                self.urls.add("")
                chosen.append(np.column_stack([np.array(units), np.zeros(len(units), dtype=np.int64)]))
                self._rows.release()
                wanted -= len(units)
                if not wanted:
                    self.total = units.stop + self._rows.lost
                    break
                continue
            pairs, records, broken = self._block(range(start, last + 1))
            keep = _accepted(spec, records)
            used = np.flatnonzero(keep)[:wanted]
            is_full = len(used) == wanted
            if is_full:
                last = pairs[used[-1]][0]
                self.total = last + 1 + self._rows.lost
            self.filtered += sum(
                1 for pair, kept in zip(pairs, keep.tolist(), strict=True) if not kept and pair[0] <= last
            )
            for unit, reason in broken:
                if unit <= last:
                    self._skip(unit, reason)
            for index in used.tolist():
                self.urls.add(records[index].url)
                self.has_turns = self.has_turns or sends_turns(records[index], spec)
            chosen.append(np.array(pairs, dtype=np.int64).reshape(-1, 2)[used])
            wanted -= len(used)
            if is_full:
                break
        together = np.concatenate(chosen)
        return together[:, 0], together[:, 1]

    def _block(self, units: range) -> tuple[list[tuple[int, int]], list[Record], list[tuple[int, ValueError]]]:
        """The records of these units, which unit and part each is, and the units that are broken."""
        pairs: list[tuple[int, int]] = []
        records: list[Record] = []
        broken: list[tuple[int, ValueError]] = []
        for unit, made in zip(units, self._records(units), strict=True):
            if isinstance(made, ValueError):
                broken.append((unit, made))
            else:
                pairs += [(unit, part) for part in range(len(made))]
                records += made
        return pairs, records, broken

    def _skip(self, unit: int, reason: ValueError) -> None:
        self.skipped += 1
        if not self.first_skipped:
            index = unit if self._groups is None else self._groups[unit][0]
            self.first_skipped = f"{self._rows.where(index)}: {reason}"

    def _nothing(self, spec: Any) -> UserError:
        if self.filtered:
            return UserError(
                f"{spec.path}: none of the {self.filtered:,} rows has an accepted length",
                "change data.min_input, data.max_input, data.min_output or data.max_output",
                "data",
            )
        remedy, key = _remedy(spec, self._rows), "data.path"
        if not self.skipped:
            return UserError(f"{spec.path} contains no requests", remedy, key)
        if wrong := _wrong_column(spec, self._rows):
            remedy, key = wrong
        if self.skipped == 1:
            return UserError(f"{spec.path}, {self.first_skipped}", remedy, key)
        return UserError(
            f"{spec.path}: none of its {self.skipped:,} rows can be used; the first is {self.first_skipped}",
            remedy,
            key,
        )


_KEPT = 4
_selections: dict[object, Selection] = {}


def select(spec: Any) -> Selection:
    """The selection of a spec; it is made again if the file has changed."""
    path = str(hub.rows_file(spec)) if isinstance(spec, Hub) else spec.path
    key = (type(spec), msgspec.json.encode(spec, enc_hook=float), files.identity(path))
    selection = _selections.pop(key, None) or Selection(spec)
    _selections[key] = selection  # the last one used is the last one
    while len(_selections) > _KEPT:
        del _selections[next(iter(_selections))]
    return selection


def _remedy(spec: Any, rows: Rows) -> str:
    if isinstance(spec, OpenAiBatch):
        return f"write each line as {BATCH_FORM}"
    if isinstance(spec, PythonCode):
        return f"yield prompts, or dicts such as {FORM}"
    if rows.columns is None:
        return f"write each line as {FORM}, or say with {{data.columns}} which keys it has instead"
    return "check the file, or set {data.columns}"


# --- sources ---------------------------------------------------------------------------------------------------------


def _open(spec: Any) -> Rows:
    if isinstance(spec, PythonCode):
        return python_code.open_rows(spec)
    path = str(hub.rows_file(spec)) if isinstance(spec, Hub) else spec.path
    return files.open_rows(path, str(spec.__struct_config__.tag))


def _reader(spec: RowsSection) -> Callable[[list[Row]], list[Record]]:
    if isinstance(spec, OpenAiBatch):
        return batch.reader(spec.model)
    assert isinstance(spec, DatasetSection)
    return shapes.reader(spec.columns, spec.template)


def _check_columns(spec: Any, rows: Rows) -> None:
    """Check the columns at once if all rows have the same."""
    if rows.columns is None or isinstance(spec, OpenAiBatch):
        return
    for key, name in _named_columns(spec):
        if name not in rows.columns:
            raise UserError(f"{spec.path}: {shapes.missing(name, rows.columns)}", "name a column of the file", key)
    if not (spec.template or spec.columns.prompt or spec.columns.messages or shapes.has_prompt(rows.columns)):
        raise UserError(
            f"{spec.path}: no column is known to be a prompt (the columns: {', '.join(rows.columns)[:200]})",
            "name it: {data.columns} {prompt: ...}, or combine several with data.template",
            "data.columns",
        )


def _named_columns(spec: Any) -> list[tuple[str, str]]:
    """The columns that the config names, each after its config key."""
    named = [(f"data.columns.{key}", name) for key, name in msgspec.to_builtins(spec.columns).items() if name]
    return named + [("data.template", name) for name in shapes.template_columns(spec.template or "")]


def _wrong_column(spec: Any, rows: Rows) -> tuple[str, str] | None:
    """The remedy and the config key, if the config names a column that the first readable row does not have."""
    if isinstance(spec, OpenAiBatch):
        return None
    row = next((row for row in rows.take(range(min(len(rows), _BLOCK))) if isinstance(row, dict)), {})
    key = next((key for key, name in _named_columns(spec) if name not in row), None)
    return ("name a key that the rows have", key) if key and row else None


def _grouped(rows: Rows) -> list[list[int]] | None:
    """The rows of each conversation, if each row is one message; None: each row is a request or a conversation."""
    first = rows.take([0])[0] if len(rows) else None
    if not isinstance(first, dict) or not shapes.is_one_message(first):
        return None
    groups: dict[Any, list[int]] = {}
    for start in range(0, len(rows), _BLOCK):
        block = range(start, min(start + _BLOCK, len(rows)))
        for index, row in zip(block, rows.take(block), strict=True):
            name = row.get("conversation_id") if isinstance(row, dict) else f"line {index}"
            groups.setdefault(str(name), []).append(index)
    return list(groups.values())


# --- plain rows ------------------------------------------------------------------------------------------------------


class _PlainMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: str
    content: str


class _PlainRow(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A row that is one request, whatever its values are. Most rows of large files are, and this is several times as fast as making
    a record of each."""

    prompt: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    messages: Annotated[list[_PlainMessage], msgspec.Meta(min_length=1)] | None = None
    output: Annotated[int, msgspec.Meta(ge=0)] | None = None
    response: str | None = None
    system: str | None = None
    id: str | int | None = None


_decode_plain = msgspec.json.Decoder(_PlainRow).decode


def _takes_plain_rows(spec: RowsSection) -> bool:
    """Whether a plain row is one request: nothing is filtered by its length, and no column has another meaning."""
    if not isinstance(spec, DatasetSection) or spec.turns == "all" or spec.template is not None:
        return False
    limits = (spec.min_input, spec.max_input, spec.min_output, spec.max_output)
    return not any(limits) and not any(msgspec.to_builtins(spec.columns).values())


def _are_plain(rows: Rows, units: range) -> bool:
    """Whether each of these rows is one request for certain."""
    raw = rows.raw(units)
    if raw is None:
        return False
    try:
        for line in raw:
            row = _decode_plain(line)
            if row.prompt is None if row.messages is None else row.messages[-1].role != "user":
                return False
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


# --- filters ---------------------------------------------------------------------------------------------------------


def _accepted(spec: RowsSection, records: list[Record]) -> NDArray[np.bool_]:
    """Which records have a length that the spec accepts."""
    keep = np.ones(len(records), dtype=bool)
    limits = (spec.min_input, spec.max_input, getattr(spec, "min_output", 0), getattr(spec, "max_output", 0))
    if not any(limits) or not records:
        return keep
    first = [steps(record, spec)[0] for record in records]
    counter = tokenizer.load(spec.tokenizer)
    counts = iter(counter.count_batch(text for step in first for text in step.texts))
    inputs = np.array([sum(next(counts) for _ in step.texts) for step in first])
    keep &= (inputs >= limits[0]) & (inputs <= (limits[1] or np.inf))
    if any(limits[2:]):
        lengths = counter.count_batch(step.reference or "" for step in first)
        outputs = np.array([output_length(*pair) for pair in zip(records, lengths, strict=True)])
        keep &= (outputs > 0) & (outputs >= limits[2]) & (outputs <= (limits[3] or np.inf))
    return keep
