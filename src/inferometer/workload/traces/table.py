"""A trace as a table: what its requests are made from, whatever format the file has."""

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from inferometer.config.data import Trace
from inferometer.config.data.trace_formats import FORMATS, PLAIN, Format, format_of
from inferometer.errors import UserError
from inferometer.units import NS
from inferometer.workload.traces import files, values
from inferometer.workload.traces.files import RawColumns
from inferometer.workload.traces.values import Faults

Integers = NDArray[np.int64]
_BLOCKS = (16, 32, 64, 128, 256, 512, 1024, 2048)
"""Block sizes that are tried if that of the format does not fit the hash ids."""


class HashIds(msgspec.Struct, frozen=True):
    """The hash ids of all rows of the file, one after the other: those of row i are ids[starts[i] : ends[i]]."""

    ids: NDArray[np.uint64]
    starts: Integers
    ends: Integers
    block: int
    """Tokens that each id stands for."""

    def of(self, row: int) -> NDArray[np.uint64]:
        return self.ids[self.starts[row] : self.ends[row]]


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
    """The texts of the prompts, if the file has them; empty: the row has a length instead."""
    total: int
    """Rows of the file, or those that were read."""
    first_skipped: str
    """Where the first row is that is left out, and why, such as a failed request without tokens; empty: none is."""

    def text(self, row: int) -> str:
        """The text of a row's prompt; empty: one is made from its length."""
        return self.prompts[row] if self.prompts is not None else ""


def read(spec: Trace) -> TraceTable:
    """Read a trace; raises UserError that names the line at fault."""
    raw = files.read(spec.path, _wanted(spec), spec.rows)
    if not raw.count:
        raise _unusable(spec, raw.lost, raw.first_lost)
    known, names = _columns(spec, raw)
    unit = known.unit if spec.unit == "auto" else spec.unit
    faults = Faults(raw)
    lengths, outputs, prompts = _lengths(names, raw, faults)
    clock = _clock(names, raw, unit, faults)
    is_empty = lengths <= 0
    if prompts is not None:
        is_empty &= ~np.array([bool(text) for text in prompts], bool)
    if known.drops_empty:
        is_empty |= outputs == 0
    faults.add(is_empty & ~faults.rows, lambda row: "there are no tokens")
    block = _block(spec, known, raw, lengths, faults) if raw.hash_ids is not None else 0
    rows, first, later = _timed_sessions(spec, known, names, raw, clock, faults)
    think = _think(rows, later, clock)
    hash_ids = None
    if block and raw.hash_ids is not None:
        ids, starts = raw.hash_ids
        hash_ids = HashIds(ids, starts[rows], starts[rows + 1], block)
    first, time = _window(spec, raw, rows, first, clock)
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
        total=raw.count + raw.lost,
        first_skipped=raw.first_lost or faults.first,
    )


def _unusable(spec: Trace, count: int, first: str) -> UserError:
    if not count:
        return UserError(f"{spec.path} has no rows with tokens", f"give {files.KINDS}", "data.path")
    what = first if count == 1 else f"{spec.path}: none of its {count:,} rows can be used; the first is {first}"
    return UserError(what, f"fix the rows, or give {files.KINDS}", "data.path")


# --- columns ---------------------------------------------------------------------------------------------------------


def _wanted(spec: Trace) -> files.Wanted:
    """The columns that some format has, or that are named by the user."""
    formats = (*FORMATS.values(), PLAIN)
    names = {choice.lower() for known in formats for choices in known.columns.values() for choice in choices}
    texts = names | {name.lower() for name in spec.columns.values()}
    hash_ids = spec.columns.get("hash_ids", "hash_ids").lower()
    return files.Wanted(frozenset(texts - {hash_ids, "hash_ids"}), hash_ids)


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


def _lengths(
    names: dict[str, str], raw: RawColumns, faults: Faults
) -> tuple[Integers, Integers, list[str | None] | None]:
    """Tokens of the prompts and of the responses, and the texts of the prompts if there are any; -1: not given, or there is a text."""
    unknown = np.full(raw.count, -1, np.int64)
    prompts = raw.columns[names["prompt"]].to_pylist() if "prompt" in names else None
    lengths = values.tokens(raw, names["input"], faults) if "input" in names else unknown
    if "prefix" in names:
        prefixes = values.tokens(raw, names["prefix"], faults)
        lengths = np.where(lengths > 0, lengths + np.maximum(prefixes, 0), lengths)
    if prompts is not None:
        lengths = np.where([bool(text) for text in prompts], -1, lengths)
    return lengths, values.tokens(raw, names["output"], faults) if "output" in names else unknown, prompts


class _Clock(msgspec.Struct, frozen=True):
    """The times and durations of all rows, in nanoseconds."""

    times: Integers
    has_time: NDArray[np.bool_]
    delay: Integers
    """From the turn before to this one; with `after`, from this one to the next."""
    after: Integers
    elapsed: Integers
    """How long the request took."""
    has_delays: bool


def _clock(names: dict[str, str], raw: RawColumns, unit: str, faults: Faults) -> _Clock:
    def column(key: str) -> tuple[Integers, NDArray[np.bool_]]:
        if key not in names:
            return np.zeros(raw.count, np.int64), np.zeros(raw.count, bool)
        return values.nanoseconds(raw, names[key], unit, faults)

    times, has_time = column("time")
    delay, after, elapsed = (column(key)[0] for key in ("delay", "delay_after", "elapsed"))
    return _Clock(times, has_time, delay, after, elapsed, "delay" in names or "delay_after" in names)


def _block(spec: Trace, known: Format, raw: RawColumns, lengths: Integers, faults: Faults) -> int:
    """Tokens per hash id, so that every row has an id for each whole block, and at most one for a part of a block. Rows for
    which that is not so are broken, unless they are the most."""
    assert raw.hash_ids is not None
    counts = np.diff(raw.hash_ids[1])
    given = (counts > 0) & (lengths > 0) & ~faults.rows
    block = spec.block or known.block or PLAIN.block
    sizes = (block,) if spec.block else (block, *_BLOCKS)
    wrong = [given & ((counts < lengths // size) | (counts > -(-lengths // size))) for size in sizes]
    best = int(np.argmin([each.sum() for each in wrong]))

    def reason(row: int, size: int) -> str:
        return f"{counts[row]} hash ids do not fit {lengths[row]} tokens in blocks of {size}"

    if 2 * wrong[best].sum() > given.sum():
        row = int(np.argmax(wrong[0]))
        raise UserError(
            f"{raw.where(row)}: {reason(row, block)}", "set it to the number of tokens per hash id", "data.block"
        )
    faults.add(wrong[best], lambda row: reason(row, sizes[best]))
    return sizes[best]


# --- sessions --------------------------------------------------------------------------------------------------------


Sessions = tuple[Integers, dict[int, tuple[int, ...]]]
"""The rows that start something, and the later turns of those that start a session; as indices of the rows that are used."""


def _timed_sessions(
    spec: Trace, known: Format, names: dict[str, str], raw: RawColumns, clock: _Clock, faults: Faults
) -> tuple[Integers, Integers, dict[int, tuple[int, ...]]]:
    """The rows that are used, in order, and their sessions. If the trace has times, whatever starts without one is broken."""
    labels = _labels(spec, known, names, raw, clock)
    for _ in range(2):
        rows = np.flatnonzero(~faults.rows)
        if not len(rows):
            raise _unusable(spec, raw.count + raw.lost, raw.first_lost or faults.first)
        if spec.sort and clock.has_time[rows].all():
            rows = rows[np.argsort(clock.times[rows], kind="stable")]
        first, later = _sessions(labels, rows)
        has_time = clock.has_time[rows[first]]
        if has_time.all() or not has_time.any():
            break
        untimed = np.zeros(raw.count, bool)
        for start in first[~has_time].tolist():
            untimed[rows[[start, *later.get(start, ())]]] = True
        faults.add(untimed, lambda row: "there is no time")
    return rows, first, later


def _sessions(labels: Integers | None, rows: Integers) -> Sessions:
    if labels is None:
        return np.arange(len(rows)), {}
    own = labels[rows]
    order = np.argsort(own, kind="stable")
    bounds = np.flatnonzero(np.diff(own[order])) + 1
    starts = np.concatenate(([0], bounds))
    sizes = np.diff(np.concatenate((starts, [len(rows)])))
    later = {
        int(order[start]): tuple(order[start + 1 : start + size].tolist())
        for start, size in zip(starts[sizes > 1].tolist(), sizes[sizes > 1].tolist(), strict=True)
    }
    return np.sort(order[starts]), later


def _labels(spec: Trace, known: Format, names: dict[str, str], raw: RawColumns, clock: _Clock) -> Integers | None:
    """A number for the session of each row; None: rows are not the turns of sessions."""
    is_wanted = known.has_turns or clock.has_delays if spec.sessions == "auto" else spec.sessions
    if not is_wanted:
        return None
    alone = np.arange(raw.count, dtype=np.int64)  # rows without a session have one of their own
    if "session" in names:
        codes = pc.dictionary_encode(raw.columns[names["session"]]).combine_chunks()
        return np.asarray(pc.if_else(pc.is_valid(codes), codes.indices.cast(pa.int64()), pa.array(-1 - alone)))
    if "chat" in names and "parent" in names:
        chats, parents = (raw.columns[names[key]].to_pylist() for key in ("chat", "parent"))
        roots: dict[object, int] = {}
        labels = alone.copy()
        for row, (chat, parent) in enumerate(zip(chats, parents, strict=True)):
            labels[row] = roots[chat] = roots.get(parent, row)
        return labels
    if spec.sessions is True:
        raise UserError(f"{spec.path} has no sessions", "leave it out", "data.sessions")
    return None


def _think(rows: Integers, later: dict[int, tuple[int, ...]], clock: _Clock) -> Integers:
    """How long each later turn waits after the turn before: as recorded, or the time between their arrivals, less the duration
    of the turn before if the trace has it."""
    think = np.zeros(len(rows), np.int64)
    if not later:
        return think
    turns = np.array([turn for each in later.values() for turn in each], np.int64)
    before = np.array([turn for start, each in later.items() for turn in (start, *each[:-1])], np.int64)
    row, row_before = rows[turns], rows[before]
    if clock.has_delays:
        think[turns] = clock.delay[row] + clock.after[row_before]
    else:
        think[turns] = clock.times[row] - clock.times[row_before] - clock.elapsed[row_before]
    return np.maximum(think, 0)


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
    clock: _Clock,
) -> tuple[Integers, Integers | None]:
    """Those of `first` that arrive within the window, and when; raises UserError if they are not in order."""
    starts = rows[first]
    if not clock.has_time[starts].any():
        if spec.start or spec.end:
            raise UserError(f"{spec.path} has no times", "leave it out", "data.start" if spec.start else "data.end")
        return first, None
    arrivals = clock.times[starts]
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
    begin, end = (int(arrivals[0]) + round(float(bound) * NS) for bound in (spec.start, spec.end))
    inside = (arrivals >= begin) & ((arrivals < end) if spec.end else True)
    if not inside.any():
        length = (arrivals[-1] - arrivals[0]) / NS
        raise UserError(
            f"nothing arrives between data.start and data.end: {spec.path} is {length:g} s long",
            "choose others",
            "data.start",
        )
    return first[inside], arrivals[inside]
