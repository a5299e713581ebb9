"""Requests of the lengths that a trace has, and the instants at which they arrived.

    files.py    CSV and JSON lines as columns of text
    values.py   the text of a column as numbers
    table.py    the columns of every format as one table: lengths, sessions, times
    blocks.py   prompts from hash ids, block by block

Request n has the content of the nth row that arrives (of the nth session, if rows are the turns of sessions), and again after the
last. Prompts are made for the numbers of tokens alone, unless the trace has hash ids, which become shared prefixes.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.config.data import Trace
from inferometer.config.fields import Seconds
from inferometer.types import Request, Turn
from inferometer.units import NS
from inferometer.workload import text
from inferometer.workload import tokenizer as tokenizers
from inferometer.workload.traces import blocks

if TYPE_CHECKING:
    from inferometer.workload.traces.table import TraceTable

_NO_IDS = np.zeros(0, np.uint64)


def build(spec: Trace, seed: int, ids: Sequence[int]) -> list[Request]:
    table = _table(spec)
    starts = [int(table.first[id % len(table.first)]) for id in ids]
    wanted = _wanted(spec, table, starts)
    made = dict(zip(wanted, _prompts(spec, table, seed, wanted), strict=True))
    return [_request(spec, table, id, start, made) for id, start in zip(ids, starts, strict=True)]


def has_sessions(spec: Trace) -> bool:
    return bool(_table(spec).later)


def turns(spec: Trace, seed: int, ids: Sequence[int]) -> list[int]:
    """How many turns each session has."""
    table = _table(spec)
    return [1 + len(table.later.get(int(table.first[id % len(table.first)]), ())) for id in ids]


def distinct(spec: Trace) -> int:
    return len(_table(spec).first)


def notes(spec: Trace) -> dict[str, Any]:
    """What a user should know about the rows: how many are left out, because they are broken or have no tokens."""
    table = _table(spec)
    if not table.first_skipped:
        return {}
    skipped = {"rows": table.total - len(table.number), "of": table.total, "first": table.first_skipped}
    line = f"{skipped['rows']:,} of {table.total:,} rows were skipped; the first is {table.first_skipped}"
    return {"skipped": skipped, "notes": [line]}


def content(spec: Trace) -> bytes:
    """A hash of the content of the file."""
    from inferometer.workload.traces import files  # noqa: PLC0415  (pyarrow is slow to import)

    return files.digest(spec.path)


# --- arrivals --------------------------------------------------------------------------------------------------------


def arrivals(spec: Trace) -> NDArray[np.int64] | None:
    """When each request is due: nanoseconds after the first, divided by data.speed. None: the trace has no times."""
    table = _table(spec)
    if table.time is None:
        return None
    since = table.time - table.time[0]
    rounds = np.arange(spec.loop, dtype=np.int64)[:, None] * _length(spec, since)
    return _scaled((rounds + since).ravel(), spec.speed)


def _length(spec: Trace, since: NDArray[np.int64]) -> int:
    """How long a round lasts in the trace's time: its window, or its arrivals and one mean gap."""
    if spec.end:
        return round((float(spec.end) - float(spec.start)) * NS)
    return int(since[-1]) + (round(int(since[-1]) / (len(since) - 1)) if len(since) > 1 else NS)


def _scaled(times: NDArray[np.int64], speed: float) -> NDArray[np.int64]:
    """The times divided by the speed as it is written in decimal, to the nearest nanosecond. No float is involved."""
    ratio = Fraction(repr(speed))
    over, under = ratio.numerator, ratio.denominator
    if int(times.max(initial=0)) * under + over < 2**62:
        return (times * under + over // 2) // over
    return np.array([(time * under + over // 2) // over for time in times.tolist()], np.int64)


# --- requests --------------------------------------------------------------------------------------------------------


def _wanted(spec: Trace, table: "TraceTable", starts: Iterable[int]) -> dict[int, tuple[int, bool]]:
    """The rows whose text is needed, how many tokens of it, and whether it continues the text of the turns before.

    A later turn of a session without hash ids that is longer than the turn before it and the response to that adds the difference.
    """
    wanted: dict[int, tuple[int, bool]] = {}
    for start in starts:
        wanted[start] = int(table.input[start]), False
        before = start
        for turn in table.later.get(start, ()):
            added = _added(table, before, turn)
            wanted[turn] = added or int(table.input[turn]), bool(added) and spec.prompt == "text"
            before = turn
    return wanted


def _added(table: "TraceTable", before: int, turn: int) -> int:
    """Tokens that a turn adds to the turn before it and the response to that; 0: it has a prompt of its own."""
    if not table.is_whole:
        return int(table.input[turn])
    if table.hash_ids is not None and len(table.hash_ids.of(turn)):
        return 0
    return max(0, int(table.input[turn] - max(table.input[before], 0) - max(table.output[before], 1)))


def _prompts(spec: Trace, table: "TraceTable", seed: int, wanted: dict[int, tuple[int, bool]]) -> list[str]:
    known = table.hash_ids
    block = known.block if known is not None else 1
    rows = [
        blocks.Row(known.of(row) if known is not None else _NO_IDS, tokens, int(table.number[row]), continues)
        for row, (tokens, continues) in wanted.items()
        if not table.text(row)
    ]
    made = iter(blocks.prompts(spec.tokenizer, seed, text.salt_of(spec.salt), block, rows) if rows else [])
    return [table.text(row) or next(made) for row in wanted]


def _request(spec: Trace, table: "TraceTable", id: int, start: int, made: dict[int, str]) -> Request:
    n_in = int(table.input[start])
    if n_in < 0:
        n_in = tokenizers.load(spec.tokenizer).count(made[start])
    later, before = [], start
    for turn in table.later.get(start, ()):
        later.append(_turn(spec, table, before, turn, made[turn]))
        before = turn
    return Request(id, made[start], n_in, _output(spec, table, start), later=tuple(later))


def _turn(spec: Trace, table: "TraceTable", before: int, turn: int, prompt: str) -> Turn:
    think = int(_scaled(table.think[turn : turn + 1], spec.speed)[0])
    added = _added(table, before, turn)
    n_out = _output(spec, table, turn)
    if added or table.text(turn):
        n_in = tokenizers.load(spec.tokenizer).count(prompt) if table.text(turn) else added
        return Turn([{"role": "user", "content": prompt}], n_in, n_out, think)
    return Turn([], int(table.input[turn]), n_out, think, payload=prompt)


def _output(spec: Trace, table: "TraceTable", row: int) -> int:
    """Tokens to request: at least one, because servers refuse a request for none."""
    output = int(table.output[row])
    return spec.output if output < 0 else max(output, 1)


# --- reading ---------------------------------------------------------------------------------------------------------


def _table(spec: Trace) -> "TraceTable":
    """The table of the file, read once as long as the file does not change."""
    try:
        status = Path(spec.path).expanduser().stat()
        stamp = (status.st_size, status.st_mtime_ns)
    except OSError:
        stamp = (0, 0)  # reading it will report the error
    plain = msgspec.structs.replace(spec, salt="none", tokenizer=None, speed=1.0, loop=1)
    return _read(msgspec.json.encode(plain, enc_hook=float), stamp)


@lru_cache(maxsize=4)
def _read(encoded: bytes, stamp: tuple[int, int]) -> "TraceTable":
    from inferometer.workload.traces import table  # noqa: PLC0415  (pyarrow is slow to import)

    return table.read(msgspec.json.decode(encoded, type=Trace, dec_hook=lambda _, value: Seconds(value)))
