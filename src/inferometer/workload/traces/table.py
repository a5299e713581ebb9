"""A trace as a table: what its requests are made from, whatever format the file has."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.config.data import Trace
from inferometer.config.data.trace_formats import FORMATS, PLAIN, Format, format_of
from inferometer.errors import UserError
from inferometer.units import NS
from inferometer.workload.traces import files
from inferometer.workload.traces.files import RawColumns

Integers = NDArray[np.int64]
_BLOCKS = (16, 32, 64, 128, 256, 512, 1024, 2048)
"""Block sizes that are tried if that of the format does not fit the hash ids."""


class HashIds(msgspec.Struct, frozen=True):
    """The hash ids of all rows, one after the other: those of row i are ids[starts[i] : starts[i + 1]]."""

    ids: NDArray[np.uint64]
    starts: Integers
    block: int
    """Tokens that each id stands for."""

    def of(self, row: int) -> NDArray[np.uint64]:
        return self.ids[self.starts[row] : self.starts[row + 1]]


class TraceTable(msgspec.Struct, frozen=True):
    """The rows of a trace that have tokens. With `later`, a row that starts a session is followed by others."""

    number: Integers
    """Each row's position in the file, from which its text is made."""
    input: Integers
    """Tokens of the prompt; of a later turn, those that it adds, unless `is_whole`. -1: the file has its text instead."""
    output: Integers
    """Tokens of the response; -1: not given."""
    first: Integers
    """The rows that start a session, or all rows if there are no sessions, in the order of their arrival."""
    later: dict[int, tuple[int, ...]]
    """For the first row of a session, the rows of its later turns."""
    time: Integers | None
    """When each of `first` arrives, in nanoseconds; None: the trace has no times."""
    think: Integers
    """Nanoseconds from the end of the turn before to each later turn, as recorded."""
    is_whole: bool
    """Whether the length of a later turn is that of its whole prompt."""
    hash_ids: HashIds | None
    prompts: list[str] | None
    """The texts of the prompts, if the file has them."""
    total: int
    """Rows that were read."""
    first_skipped: str
    """Where the first row is that is left out because it has no tokens; empty: none is."""


def read(spec: Trace) -> TraceTable:
    """Read a trace; raises UserError that names the line at fault."""
    raw = files.read(spec.path, spec.rows)
    known, names = _columns(spec, raw)
    unit = known.unit if spec.unit == "auto" else spec.unit
    lengths, outputs, prompts = _lengths(names, raw)
    is_kept = (lengths > 0) | (np.array([bool(text) for text in prompts]) if prompts else False)
    if known.drops_empty:
        is_kept &= outputs != 0
    rows = np.flatnonzero(is_kept)
    if not len(rows):
        raise UserError(f"{spec.path} has no rows with tokens", f"give {files.KINDS}", "data.path")
    times, has_time = _nanoseconds(names.get("time"), raw, unit)
    if spec.sort and has_time[rows].all():
        rows = rows[np.argsort(times[rows], kind="stable")]
    first, later = _sessions(spec, names, raw, rows)
    think = _think(names, raw, unit, rows, later, times)
    hash_ids = _hash_ids(spec, known, names, raw, rows, lengths)
    first, time = _window(spec, raw, rows, first, times if has_time[rows[first]].any() else None, has_time)
    return TraceTable(
        number=rows,
        input=lengths[rows],
        output=outputs[rows],
        first=first,
        later=later,
        time=time,
        think=think,
        is_whole=_is_whole(spec, known, hash_ids, later),
        hash_ids=hash_ids,
        prompts=[prompts[row] or "" for row in rows.tolist()] if prompts else None,
        total=raw.count,
        first_skipped="" if is_kept.all() else raw.where(int(np.argmin(is_kept))),
    )


# --- columns ---------------------------------------------------------------------------------------------------------


def _columns(spec: Trace, raw: RawColumns) -> tuple[Format, dict[str, str]]:
    """The format of the file, and the names of those columns in it that we know."""
    given = {name.lower(): name for name in raw.names}
    name = spec.format if spec.format != "auto" else "" if spec.columns else format_of(given)
    known = FORMATS.get(name or "", PLAIN)
    for key, column in spec.columns.items():
        if column.lower() not in given:
            raise UserError(
                f"{spec.path} has no column {column!r}", f"it has {', '.join(raw.names)}"[:200], f"data.columns.{key}"
            )
    names = {
        key: given[choice.lower()] for key, choices in known.columns.items() for choice in choices if choice.lower() in given
    } | {key: given[column.lower()] for key, column in spec.columns.items()}  # fmt: skip
    if "input" not in names and "prompt" not in names:
        wanted = f"a {known.columns['input'][0]} column" if name in FORMATS else "a column with the prompts' lengths"
        raise UserError(
            f"{spec.path} does not have {wanted}; its columns are {', '.join(raw.names)}"[:300],
            f"name it, such as {{data.columns}}: {{input: ...}}, or give {files.KINDS}",
            "data.path",
        )
    return known, names


def _lengths(names: dict[str, str], raw: RawColumns) -> tuple[Integers, Integers, list[str | None] | None]:
    """Tokens of the prompts and of the responses, and the texts of the prompts if there are any; -1: not given."""
    unknown = np.full(raw.count, -1, np.int64)
    prompts = raw.columns[names["prompt"]].to_pylist() if "prompt" in names else None
    lengths = files.tokens(raw, names["input"]) if "input" in names and not prompts else unknown
    if "prefix" in names:
        lengths = np.where(lengths > 0, lengths + np.maximum(files.tokens(raw, names["prefix"]), 0), lengths)
    return lengths, files.tokens(raw, names["output"]) if "output" in names else unknown, prompts


def _nanoseconds(name: str | None, raw: RawColumns, unit: str) -> tuple[Integers, NDArray[np.bool_]]:
    """A column of times or durations, and which rows have one."""
    if name is None:
        return np.zeros(raw.count, np.int64), np.zeros(raw.count, bool)
    return files.nanoseconds(raw, name, unit)


def _hash_ids(
    spec: Trace, known: Format, names: dict[str, str], raw: RawColumns, rows: Integers, lengths: Integers
) -> HashIds | None:
    lists = raw.lists.get(names.get("hash_ids", ""))
    if lists is None:
        return None
    ids: list[NDArray[np.uint64]] = []
    for row in rows.tolist():
        try:
            ids.append(np.array(lists[row] or [], dtype=np.uint64))
        except (ValueError, TypeError, OverflowError):
            raise UserError(
                f"{raw.where(row)}: hash_ids are not whole numbers", "fix the row, or remove it", "data.path"
            ) from None
    counts = np.array([len(each) for each in ids], np.int64)
    block = _block(spec, known, raw, rows, lengths[rows], counts)
    return HashIds(np.concatenate(ids), np.concatenate(([0], np.cumsum(counts))), block)


def _block(spec: Trace, known: Format, raw: RawColumns, rows: Integers, lengths: Integers, counts: Integers) -> int:
    """Tokens per hash id, so that every row has an id for each whole block, and at most one for a part of a block."""
    block = spec.block or known.block
    for size in (block,) if spec.block else (block, *_BLOCKS):
        wrong = (counts > 0) & ((counts < lengths // size) | (counts > -(-lengths // size)))
        if not wrong.any():
            return size
        if size == block:
            row = int(np.flatnonzero(wrong)[0])
    raise UserError(
        f"{raw.where(int(rows[row]))}: {counts[row]} hash ids do not fit {lengths[row]} tokens in blocks of {block}",
        "set it to the number of tokens per hash id",
        "data.block",
    )


# --- sessions --------------------------------------------------------------------------------------------------------


def _sessions(
    spec: Trace, names: dict[str, str], raw: RawColumns, rows: Integers
) -> tuple[Integers, dict[int, tuple[int, ...]]]:
    """The rows that start something, and the later turns of those that start a session; as indices of `rows`."""
    has_delays = "delay" in names or "delay_after" in names
    labels = _labels(names, raw) if (has_delays if spec.sessions == "auto" else spec.sessions) else None
    if labels is None:
        if spec.sessions is True:
            raise UserError(f"{spec.path} has no sessions", "leave it out", "data.sessions")
        return np.arange(len(rows)), {}
    turns: dict[object, list[int]] = {}
    for index, row in enumerate(rows.tolist()):
        label = labels[row]
        turns.setdefault(label if label is not None else ("alone", row), []).append(index)
    groups = list(turns.values())
    first = np.array([group[0] for group in groups], np.int64)
    return first, {group[0]: tuple(group[1:]) for group in groups if len(group) > 1}


def _labels(names: dict[str, str], raw: RawColumns) -> list[object] | None:
    """Which session each row belongs to; None in the list: none."""
    if "session" in names:
        labels: list[object] = raw.columns[names["session"]].to_pylist()
        return labels
    if "chat" not in names:
        return None
    chats, parents = (raw.columns[names[key]].to_pylist() for key in ("chat", "parent"))
    roots: dict[object, object] = {}
    for chat, parent in zip(chats, parents, strict=True):
        roots[chat] = roots.get(parent, chat)
    return [roots[chat] for chat in chats]


def _think(
    names: dict[str, str],
    raw: RawColumns,
    unit: str,
    rows: Integers,
    later: dict[int, tuple[int, ...]],
    times: Integers,
) -> Integers:
    """How long each later turn waits after the turn before: as recorded, or the time between their arrivals, less the duration
    of the turn before if the trace has it."""
    think = np.zeros(len(rows), np.int64)
    if not later:
        return think
    delay, _ = _nanoseconds(names.get("delay"), raw, unit)
    after, _ = _nanoseconds(names.get("delay_after"), raw, unit)
    elapsed, _ = _nanoseconds(names.get("elapsed"), raw, unit)
    has_delays = "delay" in names or "delay_after" in names
    for start, turns in later.items():
        for before, turn in zip((start, *turns), turns, strict=False):
            row, row_before = rows[turn], rows[before]
            gap = times[row] - times[row_before] - elapsed[row_before]
            think[turn] = max(0, delay[row] + after[row_before] if has_delays else gap)
    return think


def _is_whole(spec: Trace, known: Format, hash_ids: HashIds | None, later: dict[int, tuple[int, ...]]) -> bool:
    """Whether later turns repeat the prompt of the turns before: then their hash ids start with the same ones."""
    if spec.turns != "auto":
        return spec.turns == "whole"
    if hash_ids is not None:
        for start, turns in later.items():
            one, other = hash_ids.of(start), hash_ids.of(turns[0])
            if len(one) and len(other):
                return bool(one[0] == other[0])
    return known.turns == "whole"


# --- arrivals --------------------------------------------------------------------------------------------------------


def _window(
    spec: Trace,
    raw: RawColumns,
    rows: Integers,
    first: Integers,
    times: Integers | None,
    has_time: NDArray[np.bool_],
) -> tuple[Integers, Integers | None]:
    """Those of `first` that arrive within the window, and when; raises UserError if they are not in order."""
    if times is None:
        if spec.start or spec.end:
            raise UserError(f"{spec.path} has no times", "leave it out", "data.start" if spec.start else "data.end")
        return first, None
    starts = rows[first]
    if not has_time[starts].all():
        missing = int(starts[np.flatnonzero(~has_time[starts])[0]])
        raise UserError(f"{raw.where(missing)}: there is no time", "fix the row, or remove it", "data.path")
    arrivals = times[starts]
    if spec.sort:
        order = np.argsort(arrivals, kind="stable")
        first, arrivals = first[order], arrivals[order]
    backwards = np.flatnonzero(np.diff(arrivals) < 0)
    if len(backwards):
        row, by = int(starts[backwards[0] + 1]), int(arrivals[backwards[0]] - arrivals[backwards[0] + 1])
        raise UserError(
            f"{raw.where(row)}: the trace is not in order: this row is {by / NS:g} s earlier than the one before",
            "fix the file, or sort it with {data.sort}: true",
            "data.path",
        )
    begin, end = (arrivals[0] + round(float(bound) * NS) for bound in (spec.start, spec.end))
    inside = (arrivals >= begin) & ((arrivals < end) if spec.end else True)
    if not inside.any():
        length = (arrivals[-1] - arrivals[0]) / NS
        raise UserError(
            f"nothing arrives between data.start and data.end: {spec.path} is {length:g} s long",
            "choose others",
            "data.start",
        )
    return first[inside], arrivals[inside]
