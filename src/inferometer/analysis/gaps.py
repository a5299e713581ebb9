"""Gaps between consecutive chunks of a response, for any number of chunks, in one array.

Chunk columns arrive in pieces of about a million and are never held in memory as a whole. The gaps of each piece are written
directly into one array, in which the gaps of each stage are contiguous, so that a stage's percentiles need no copy. The array
is uint32 (gaps up to 4.29 s), which halves the memory to read and sort; the first longer gap converts it to int64.

Percentiles reorder the array, and confidence intervals need to know when the gaps above a percentile occurred. So once the
percentiles are known, a second pass over the chunks counts them by blocks of time (`tally`).

Some gaps of 0 are not the server's doing. The kernel merges chunks that wait in a socket together, and gives all of them the
timestamp of the latest. The read delay does not show how late they were read, because it counts from that timestamp: if bytes
waited for 17 ms across a gap of 10 ms, the read delay is only 7 ms. It is what remains of the wait after the merged gaps, and
can be anything up to a gap. So gaps of 0 are in doubt if the read delay exceeds a quarter of the response's typical gap
(LATE). A smaller read delay does not put them in doubt: a server that writes two events at once also produces gaps of 0, and
those are read with hardly any delay.

The typical gap of a response is the smaller of two values. One is the median of the gaps that are not 0 (with the zeros, it
would itself be 0 for a server that writes in pairs). The other is the mean of all gaps, which merging does not change: if ten
chunks are merged again and again, the gaps that are not 0 are ten times too long. For a response whose gaps are all 0, it is
the mean over all responses.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.blocks import BLOCKS, Tally, edge, index
from inferometer.analysis.metrics import stages_of
from inferometer.errors import UserError
from inferometer.records import Run
from inferometer.units import NS

LATE = 4
"""A response was read late if its read delay times this factor exceeds its typical gap."""


class Gaps(msgspec.Struct, frozen=True):
    values: NDArray[np.uint32] | NDArray[np.int64]
    """Nanoseconds. Computing percentiles may reorder them, first within each stage and then across stages."""
    stages: dict[int, slice]
    zeros: dict[int, int]
    """Gaps of 0 by stage: chunks that have the same timestamp as the one before."""
    first_zero: NDArray[np.int64]
    """Rows whose first gap is 0."""
    late_rows: NDArray[np.int64]
    """Rows that have a gap of 0 and some of whose bytes were seen to wait unread for more than a quarter of the typical gap, so
    that the kernel may have merged the chunks; in the order of their chunks. merges.py looks at them in detail."""
    slices: "Slices"


def gather(run: Run, counted: NDArray[np.bool_], group: NDArray[np.integer[Any]] | None = None) -> Gaps:
    """Collect the gaps of the rows selected by `counted`. `group` divides the rows in another way than by stage."""
    slices = Slices(run, counted, group)
    stages = slices.allocate()
    for position, arrival, gaps in pieces(run):
        slices.store(gaps, position)
        slices.add_totals(arrival, position)
    late = slices.read_late()
    return Gaps(
        values=slices.values,
        stages=stages,
        zeros={stage: int(slices.zeros[slices.stage == stage].sum()) for stage in stages},
        first_zero=slices.own[slices.first_zero],
        late_rows=slices.own[late & (slices.zeros > 0)],
        slices=slices,
    )


def tally(
    run: Run, slices: "Slices", group: NDArray[np.int16], thresholds: Mapping[int, Mapping[str, float]]
) -> dict[int, Tally]:
    """Count the gaps of each group above its thresholds, by blocks of time, in another pass over the chunks.

    `group` is the group (such as the stage) of each request that has chunks, in the order of `slices`. A group's blocks
    divide the time from its first intended instant to its last byte; a gap belongs to the block in which it ends.
    """
    counters = {}
    for each, limits in thresholds.items():
        own = run.records.rows[slices.own[slices.counted & (group == each)]]
        counters[each] = _Counter(int(own["intended"].min()), int(own["done"].max()), limits)
    for position, arrival, gaps in pieces(run):
        here, begin, end = slices.within(position, len(gaps))
        for each in stages_of(group[here]):
            chosen = slices.counted[here] & (group[here] == each) & (begin < end)
            if chosen.any():
                mask = _mask(begin[chosen], end[chosen], len(gaps))
                counters[each].add(arrival, gaps, mask)
    return {each: counter.tally() for each, counter in counters.items()}


def pieces(run: Run) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """The chunks piece by piece: the index of the first one, their arrivals, and the gap between each and the one before it."""
    position, previous = 0, 0
    for piece in run.chunks():
        arrival = piece.arrival
        if not len(arrival):
            continue
        gaps = np.empty(len(arrival), np.int64)
        np.subtract(arrival[1:], arrival[:-1], out=gaps[1:])
        gaps[0] = arrival[0] - previous
        yield position, arrival, gaps
        position, previous = position + len(arrival), int(arrival[-1])


class _Counter:
    """Counts gaps by block and by the thresholds that they exceed."""

    def __init__(self, start: int, end: int, thresholds: Mapping[str, float]) -> None:
        self._thresholds = {name: int(thresholds[name]) for name in thresholds}
        self._start, self._end = start, end
        self._above = {name: np.zeros(BLOCKS, np.int64) for name in thresholds}
        self._finite = np.zeros(BLOCKS, np.int64)
        self._sums = [0] * BLOCKS

    def add(self, arrival: NDArray[np.int64], gaps: NDArray[np.int64], mask: NDArray[np.bool_]) -> None:
        """Count the gaps of `mask`, which end at these arrivals. Most pieces lie in one block, or in a few."""
        first, last = index(np.array([arrival.min(), arrival.max()]), self._start, self._end).tolist()
        if first == last:
            self._count(first, gaps[mask])
            return
        for each in range(first, last + 1):
            here = mask.copy()
            if each > first:
                here &= arrival >= edge(each, self._start, self._end)
            if each < last:
                here &= arrival < edge(each + 1, self._start, self._end)
            self._count(each, gaps[here])

    def _count(self, block: int, gaps: NDArray[np.int64]) -> None:
        self._finite[block] += len(gaps)
        self._sums[block] += int(gaps.sum())
        for name, threshold in self._thresholds.items():
            self._above[name][block] += np.count_nonzero(gaps > threshold)

    def tally(self) -> Tally:
        seconds = (self._end - self._start) / NS
        return Tally(seconds, self._finite, np.zeros(BLOCKS, np.int64), self._above, self._sums, 1.0)


class Slices:
    """Assigns gaps to requests: each request owns a slice of the chunk columns."""

    def __init__(self, run: Run, counted: NDArray[np.bool_], group: NDArray[np.integer[Any]] | None = None) -> None:
        rows = run.records.rows
        own = np.flatnonzero(rows["chunk_count"] > 0)
        own = own[np.argsort(rows["chunk_start"][own], kind="stable")]
        self.start = rows["chunk_start"][own]
        self.end = self.start + rows["chunk_count"][own]
        if len(own) and (self.start[0] < 0 or self.end[-1] > run.chunk_total or (self.start[1:] < self.end[:-1]).any()):
            raise UserError(
                f"{run.folder}: requests.parquet and chunks.parquet do not match",
                "copy the run's folder again, or repeat the run",
            )
        self.own = own
        self.counted = counted[own]
        self.stage: NDArray[Any] = (rows["stage"] if group is None else group)[own]
        self.reach = LATE * rows["read_delay"][own]
        self.shorter = np.zeros(len(own), np.int32)
        self.zeros = np.zeros(len(own), np.int32)
        self.first_zero = np.zeros(len(own), np.bool_)
        self.total = np.zeros(len(own), np.int64)

    def allocate(self) -> dict[int, slice]:
        """Allocate the array of gaps; return the slice of each stage."""
        sizes = np.where(self.counted, self.end - self.start - 1, 0)
        stages, at = {}, 0
        for stage in stages_of(self.stage):
            size = int(sizes[self.stage == stage].sum())
            stages[stage] = slice(at, at + size)
            at += size
        self.values: NDArray[np.uint32] | NDArray[np.int64] = np.empty(at, np.uint32)
        self.filled = {stage: part.start for stage, part in stages.items()}
        return stages

    def store(self, gaps: NDArray[np.int64], position: int) -> None:
        """Store the gaps of the chunks from `position` on, each measured from the chunk before it."""
        here, begin, end = self.within(position, len(gaps))
        for stage in stages_of(self.stage[here]):
            chosen = self.counted[here] & (self.stage[here] == stage) & (begin < end)
            picked = gaps[_mask(begin[chosen], end[chosen], len(gaps))]
            if len(picked) and self.values.dtype == np.uint32 and not 0 <= picked.min() <= picked.max() < 1 << 32:
                self.values = self.values.astype(np.int64)
            at = self.filled[stage]
            self.filled[stage] = at + len(picked)
            self.values[at : at + len(picked)] = picked
            self._compare(picked, here.start + np.flatnonzero(chosen), end[chosen] - begin[chosen], position)

    def within(self, position: int, length: int) -> tuple[slice, NDArray[np.int64], NDArray[np.int64]]:
        """The requests with chunks among the `length` ones from `position` on, and where the gaps of each begin and end there."""
        limit = position + length
        first = int(np.searchsorted(self.end, position, "right"))
        last = int(np.searchsorted(self.start, limit, "left"))
        here = slice(first, last)
        begin = np.clip(self.start[here] + 1, position, limit) - position
        end = np.clip(self.end[here], position, limit) - position
        return here, begin, end

    def _compare(
        self, picked: NDArray[np.int64], owners: NDArray[np.int64], counts: NDArray[np.int64], position: int
    ) -> None:
        """Count, for each request, the gaps of 0 and the gaps shorter than LATE times its read delay."""
        if not len(picked) or max(self.reach[owners].max() - 1, 0) < picked.min():
            return
        starts = np.cumsum(counts) - counts
        shorter, zero = picked < np.repeat(self.reach[owners], counts), picked == 0
        self.shorter[owners] += np.add.reduceat(shorter.view(np.int8), starts, dtype=np.int32)
        self.zeros[owners] += np.add.reduceat(zero.view(np.int8), starts, dtype=np.int32)
        self.first_zero[owners] |= zero[starts] & (self.start[owners] + 1 >= position)

    def add_totals(self, arrival: NDArray[np.int64], position: int) -> None:
        """Add the chunks from `position` on to each request's sum of gaps: its last arrival minus its first."""
        limit = position + len(arrival)
        begun = slice(*np.searchsorted(self.start, (position, limit)))
        ended = slice(*np.searchsorted(self.end, (position, limit), "right"))
        self.total[begun] -= arrival[self.start[begun] - position]
        self.total[ended] += arrival[self.end[ended] - 1 - position]

    def read_late(self) -> NDArray[np.bool_]:
        """Requests for which LATE times the read delay exceeds the typical gap: the median without zeros, or the mean.

        It exceeds the median if more than half of the gaps that are not 0 are shorter. (Gaps of 0 always are.)
        """
        count = self.end - self.start - 1
        beyond_median = 2 * (self.shorter - self.zeros) > count - self.zeros
        beyond_mean = self.reach * count > self.total
        only_zeros = (self.zeros > 0) & (self.zeros == count)
        beyond_all = self.reach > self.total[self.counted].sum() / max(count[self.counted].sum(), 1)
        late: NDArray[np.bool_] = np.where(only_zeros, beyond_all, beyond_median | beyond_mean)
        return late & self.counted & (self.reach > 0)


def _mask(begin: NDArray[np.int64], end: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
    """True within [begin, end) of each pair (ascending, not touching each other), False elsewhere."""
    edges = np.empty(2 * len(begin) + 2, np.int64)
    edges[0], edges[-1] = 0, length
    edges[1:-1:2], edges[2:-1:2] = begin, end
    inside = np.zeros(len(edges) - 1, np.bool_)
    inside[1::2] = True
    return np.repeat(inside, np.diff(edges))
