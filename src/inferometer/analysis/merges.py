"""Which gaps of 0 may the client have caused, by reading so late that the kernel merged chunks under one timestamp?

Several chunks with the same timestamp came together. Either the server or the network sent them together, or they waited in
the socket because the client was not reading. The second takes a client whose event loop was blocked for as long as those
chunks took to arrive: chunks that are 10 ms apart are not merged by a client that was never blocked for more than 2 ms. So
chunks are in doubt only if their response was read late (gaps.py) and the samples of the client's event loop at that time have
a stall that was long enough.

A merge turns the gaps a, b into a + b, 0: both of them are suspects. If the first chunks of a response are merged, there is no
gap before them, and it is the time to first token that is too long.
"""

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.client_samples import TICK, Stalls
from inferometer.analysis.gaps import Gaps, _mask
from inferometer.records import Chunks, Run

Whole = NDArray[np.int64]


class Merges(msgspec.Struct, frozen=True):
    """What the client may have merged."""

    gaps: dict[int, Whole]
    """By stage: the gaps in doubt (ns, ascending), of which many are 0."""
    first: Whole
    """Rows whose first chunk may be merged with the second."""
    first_by: Whole
    """By how much its arrival may be late, at most (ns)."""


NONE = Merges({}, np.zeros(0, np.int64), np.zeros(0, np.int64))


def find(run: Run, gaps: Gaps, stalls: Stalls) -> Merges:
    """Look at the responses that were read late. Reads the chunks once more if there are any."""
    rows = run.records.rows
    suspects: dict[int, list[Whole]] = {}
    first: list[Whole] = []
    first_by: list[Whole] = []
    late = gaps.late_rows
    if not len(late):
        return NONE
    start, count = rows["chunk_start"][late], rows["chunk_count"][late].astype(np.int64)
    stage, shard = rows["stage"][late], rows["shard"][late]
    for arrival, here, begin in _responses(run.chunks(), start, start + count):
        runs = _runs_of_zeros(arrival, begin, begin + count[here])
        owner = here.start + np.searchsorted(begin, runs.at, "right") - 1
        last = begin + count[here] - 1
        mean = ((arrival[last] - arrival[begin]) / (count[here] - 1))[owner - here.start]
        blocked = stalls.around(shard[owner], arrival[runs.at]) + TICK
        is_first = runs.before < 0
        share = np.where(is_first, mean, np.minimum(mean, runs.before / (runs.length + 1)))
        doubtful = runs.length * share <= blocked
        for number in np.unique(stage[owner[doubtful]]).tolist():
            own = doubtful & (stage[owner] == number)
            zeros = np.zeros(int(runs.length[own].sum()), np.int64)
            suspects.setdefault(number, []).extend((zeros, runs.before[own & ~is_first]))
        first.append(late[owner[doubtful & is_first]])
        first_by.append(blocked[doubtful & is_first])
    return Merges(
        {number: np.sort(np.concatenate(parts)) for number, parts in suspects.items()},
        np.concatenate(first) if first else late[:0],
        np.concatenate(first_by) if first_by else late[:0],
    )


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
