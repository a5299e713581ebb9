"""Which gaps of 0 may the client have caused, by reading so late that the kernel merged chunks under one timestamp?

Several chunks with the same timestamp came together. Either the server or the network sent them together, or they waited in
the socket because the client was not reading. The second takes a client whose event loop was blocked for as long as those
chunks took to arrive: chunks that are 10 ms apart are not merged by a client that was never blocked for more than 2 ms. So
chunks are in doubt only if their response was read late (gaps.py) and the samples of the client's event loop at that time have
a stall that was long enough.

The samples cannot exclude a stall of up to a tick that lies between two ticks. But if such stalls were frequent, ticks would be
late as well. So regular gaps of 0 are the server's if hardly any of them has a stall that was long enough. And a server that
merges chunks does so in all responses: if those read in time have many gaps of 0, as many of those read late are the server's.

A merge turns the gaps a, b into a + b, 0: both of them are suspects, and have probably been the response's mean gap and the
rest. If the first chunks of a response are merged, there is no gap before them, and it is the time to first token that is too
long.

If a whole response came at once, its gaps do not say for how long a client must have been blocked to merge it. Its read delay does: a
client that was blocked while the response arrived reads it at any time up to the end of that, so that half of the read delays are
more than half as long as the responses took to arrive. If most are too short to change the time to first token, the server or a proxy
wrote the responses at once. (Long ones may take several reads: ONE_PIECE.)
"""

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.client_samples import TICK, Stalls
from inferometer.analysis.gaps import Gaps, _mask
from inferometer.records import Chunks, Run

REGULAR = 0.02
"""Share of the gaps above which gaps of 0 are regular, if there are MANY runs of them."""
MANY = 20
"""Runs of gaps of 0 of which, if stalls caused them, ticks would have shown some."""
SEEN = 0.1
"""Share of the suspects that have a long enough stall, below which regular gaps of 0 are the server's."""
SEVERAL = 3
"""Merges in a response that was read in time from which on they are the server's: each of the client's leaves a read delay
below a quarter of the gap in one of four cases only, so that three of them do in one of 64."""
ONE_PIECE = 0.9
"""Share of gaps of 0 from which on a response came at once."""
PROMPT, PROMPT_SHARE = 250_000, 0.025
"""Median read delay of responses that came at once, up to which the client did not merge them: ns, or a share of the median time to first
token if that is more."""
FEWEST = 5
"""Responses that it takes to say so."""

Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Merges(msgspec.Struct, frozen=True):
    """What the client may have merged."""

    gaps: dict[int, Whole]
    """By stage: the gaps in doubt (ns, ascending), of which many are 0."""
    likely: dict[int, Whole]
    """By stage: what as many gaps probably were if the client merged their chunks (ns, ascending)."""
    first: Whole
    """Rows whose first chunk may be merged with the second."""
    first_by: Whole
    """By how much its arrival may be late, at most (ns)."""


NONE = Merges({}, {}, np.zeros(0, np.int64), np.zeros(0, np.int64))


def find(run: Run, gaps: Gaps, stalls: Stalls) -> Merges:
    """Look at the responses that were read late. Reads the chunks once more if there are any."""
    late = gaps.late_rows[~np.isin(gaps.late_rows, _at_once(run, gaps))]
    if not len(late):
        return NONE
    suspects = _suspects(run, late, stalls)
    of_server = _of_server(run, gaps, stalls)
    found: dict[int, Whole] = {}
    likely: dict[int, Whole] = {}
    ours = np.zeros(len(suspects.row), np.bool_)
    for stage in sorted(set(suspects.stage.tolist())):
        own = _ours(suspects, stage, gaps, of_server)
        ours[own] = True
        length, before, share = suspects.length[own], suspects.before[own], suspects.share[own]
        has_before = before >= 0
        zeros = np.zeros(int(length.sum()), np.int64)
        rest = before - length * share
        found[stage] = np.sort(np.concatenate([zeros, before[has_before]]))
        likely[stage] = np.sort(np.concatenate([np.repeat(share, length), rest[has_before]]))
    first = ours & (suspects.before < 0)
    found = {stage: values for stage, values in found.items() if len(values)}
    return Merges(found, likely, suspects.row[first], suspects.stall[first] + TICK)


def _at_once(run: Run, gaps: Gaps) -> Whole:
    """Rows of responses that the server or a proxy wrote at once, in the stages where they were read promptly."""
    slices, rows = gaps.slices, run.records.rows
    at_once = slices.counted & (slices.zeros > 0) & (slices.zeros >= ONE_PIECE * (slices.end - slices.start - 1))
    found = [gaps.late_rows[:0]]
    for stage in gaps.stages:
        own = slices.own[at_once & (slices.stage == stage)]
        if len(own) >= FEWEST:
            first_token = np.median(rows["first_token"][own] - rows["sent"][own])
            if np.median(rows["read_delay"][own]) <= max(PROMPT, PROMPT_SHARE * first_token):
                found.append(own)
    return np.concatenate(found)


class _Suspects(msgspec.Struct, frozen=True):
    """Runs of gaps of 0 that a stall of the client may explain."""

    row: Whole
    stage: Whole
    length: Whole
    before: Whole
    """The gap before them; -1 if they are the first of the response."""
    share: Whole
    """What each of the gaps of 0 probably was: the response's mean gap, or an equal part of the gap before if that is less."""
    stall: Whole
    """The longest stall around that time."""


def _suspects(run: Run, late: Whole, stalls: Stalls) -> _Suspects:
    rows = run.records.rows
    start, count = rows["chunk_start"][late], rows["chunk_count"][late].astype(np.int64)
    stage, shard = rows["stage"][late].astype(np.int64), rows["shard"][late]
    parts: list[tuple[Whole, ...]] = [(late[:0],) * 6]
    for arrival, here, begin in _responses(run.chunks(), start, start + count):
        runs = _runs_of_zeros(arrival, begin, begin + count[here])
        owner = here.start + np.searchsorted(begin, runs.at, "right") - 1
        last = begin + count[here] - 1
        mean = ((arrival[last] - arrival[begin]) / (count[here] - 1))[owner - here.start]
        stall = stalls.around(shard[owner], arrival[runs.at])
        share = np.where(runs.before < 0, mean, np.minimum(mean, runs.before / (runs.length + 1))).astype(np.int64)
        columns = (late[owner], stage[owner], runs.length, runs.before, share, stall)
        doubtful = runs.length * share <= stall + TICK
        parts.append(tuple(column[doubtful] for column in columns))
    return _Suspects(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _ours(suspects: _Suspects, stage: int, gaps: Gaps, of_server: dict[int, float]) -> Whole:
    """Indices of the suspects of a stage that the client may have caused."""
    own = np.flatnonzero(suspects.stage == stage)
    length = suspects.length[own]
    seen = length * suspects.share[own] <= suspects.stall[own]
    total = gaps.stages[stage].stop - gaps.stages[stage].start
    regular = length[~seen].sum() > REGULAR * total and np.count_nonzero(~seen) >= MANY
    if regular and np.count_nonzero(seen) < SEEN * len(own):
        own = own[seen]
    excess = 1 - of_server.get(stage, 0.0)
    return own[np.linspace(0, len(own), round(excess * len(own)), endpoint=False).astype(np.int64)]


def _of_server(run: Run, gaps: Gaps, stalls: Stalls) -> dict[int, float]:
    """By stage: the share of the gaps of 0 in late responses that is to be expected from the responses read in time."""
    slices = gaps.slices
    late = slices.read_late()
    count = slices.end - slices.start - 1
    rows = run.records.rows[slices.own]
    mean = np.maximum(slices.total / np.maximum(count, 1), 1.0)
    at_once = 1 + (stalls.during(rows["shard"], rows["sent"], rows["done"]) + TICK) / mean  # the client may merge
    in_time = slices.counted & ~late
    certain = in_time & (slices.zeros >= SEVERAL * at_once)
    shares = {}
    for stage in gaps.stages:
        own = slices.stage == stage
        ours, others = late & own, in_time & own
        expected = slices.zeros[certain & own].sum() / max(count[others].sum(), 1) * count[ours].sum()
        shares[stage] = min(float(expected / max(slices.zeros[ours].sum(), 1)), 1.0)
    return shares


class _Runs(msgspec.Struct, frozen=True):
    """Consecutive gaps of 0."""

    at: Whole
    """Index of the chunk before the first of them, which has the same timestamp."""
    length: Whole
    before: Whole
    """The gap before that chunk; -1 if it is the first of the response."""


def _runs_of_zeros(arrival: Whole, begin: Whole, end: Whole) -> _Runs:
    """Find runs of zeros within responses, whose chunks are [begin, end) of each pair."""
    gaps = np.diff(arrival)  # gaps[i] lies between chunks i and i + 1
    inside = _mask(begin, end - 1, len(gaps))
    zero = np.concatenate([[False], (gaps == 0) & inside, [False]])
    edges = np.flatnonzero(zero[1:] != zero[:-1])
    at, stop = edges[0::2], edges[1::2]
    has_before = (at > 0) & np.concatenate([[False], inside])[at]
    before = np.where(has_before, gaps[at - 1], -1)
    return _Runs(at, stop - at, before)


def _responses(pieces: Iterator[Chunks], start: Whole, end: Whole) -> Iterator[tuple[Whole, slice, Whole]]:
    """Yield arrivals, the responses that lie within them completely, and where each of those begins.

    `start` and `end` are the responses' slices of the chunk columns, in ascending order. A response that continues in the
    next piece is yielded with that one.
    """
    position, done = 0, 0
    rest = np.zeros(0, np.int64)
    for piece in pieces:
        arrival = np.concatenate([rest, piece.arrival]) if len(rest) else piece.arrival
        limit = position + len(arrival)
        complete = int(np.searchsorted(end, limit, "right"))
        if complete > done:
            yield arrival, slice(done, complete), start[done:complete] - position
        done = complete
        if done == len(start):
            return
        keep = max(min(int(start[done]), limit), position)
        rest, position = arrival[keep - position :], keep
