"""The gaps between consecutive chunks of an answer, of as many chunks as there may be, in one array.

The chunk columns come in pieces of about a million and are never held whole. Each piece's gaps go straight to their place
in one array, in which each stage's gaps lie together, so that a stage's percentiles need no copy. It is of uint32 (gaps
up to 4.29 s), which halves what must be touched and sorted, until a longer gap turns up and makes it int64.

Some gaps of 0 are not the server's. Chunks that wait in a socket together are merged by the kernel, and all get the stamp of
the latest. How late they were read does not show: of bytes that lay unread for 17 ms over a gap of 10 ms, a read delay of
7 ms is seen, for it counts from that stamp. What is seen is what is left of the lateness after the merged gaps, and may be
anything up to a gap. So the gaps of 0 are in doubt from a quarter of an answer's own gap on (LATE). Not from nothing on: a
server that writes two events at once makes gaps of 0 as well, and those are read without a delay worth the name.

An answer's own gap is the smaller of two. The median of the gaps that are not 0: with those of 0 it would itself be 0 for
a server that writes in pairs. And the mean of all of them, which merging leaves as it is: where ten chunks are merged again
and again, the gaps that are not 0 are ten times too long. An answer with no gap but 0 goes by the mean of all answers.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.metrics import stages_of
from inferometer.errors import UserError
from inferometer.records import Run

LATE = 4
"""An answer was read late if this many times its read delay is more than its own gap."""


class Gaps(msgspec.Struct, frozen=True):
    values: NDArray[np.uint32] | NDArray[np.int64]
    """Nanoseconds. Whoever takes percentiles may reorder them within a stage, and then altogether."""
    stages: dict[int, slice]
    read_late: int
    """Answers of which some bytes were seen to lie unread for more than a quarter of their own gap."""
    merged: int
    """Gaps of 0 in those answers: chunks that the kernel may have merged and stamped as one."""
    first_merged: NDArray[np.int64]
    """The rows of those answers whose first gap is 0: their first token may have the second's stamp."""


def gather(run: Run, counted: NDArray[np.bool_]) -> Gaps:
    """The gaps of the rows that are `counted`."""
    taken = _Slices(run, counted)
    stages = taken.layout()
    position, previous = 0, 0
    for piece in run.chunks():
        arrival = piece.arrival
        if not len(arrival):
            continue
        gaps = np.empty(len(arrival), np.int64)
        np.subtract(arrival[1:], arrival[:-1], out=gaps[1:])
        gaps[0] = arrival[0] - previous
        taken.place(gaps, position)
        taken.measure(arrival, position)
        position, previous = position + len(arrival), int(arrival[-1])
    late = taken.read_late()
    first_merged = taken.own[late & taken.first_zero]
    return Gaps(taken.values, stages, int(late.sum()), int(taken.zeros[late].sum()), first_merged)


class _Slices:
    """Which gaps belong to which request: slices of the chunk columns, in their order."""

    def __init__(self, run: Run, counted: NDArray[np.bool_]) -> None:
        rows = run.records.rows
        own = np.flatnonzero(rows["chunk_count"] > 0)
        own = own[np.argsort(rows["chunk_start"][own], kind="stable")]
        self.start = rows["chunk_start"][own]
        self.end = self.start + rows["chunk_count"][own]
        if len(own) and (self.start[0] < 0 or self.end[-1] > run.chunk_total or (self.start[1:] < self.end[:-1]).any()):
            raise UserError(
                f"{run.folder}: requests and chunks do not fit each other", "copy the run's folder again, or run again"
            )
        self.own = own
        self.counted = counted[own]
        self.stage = rows["stage"][own]
        self.reach = LATE * rows["read_delay"][own]
        self.shorter = np.zeros(len(own), np.int32)
        self.zeros = np.zeros(len(own), np.int32)
        self.first_zero = np.zeros(len(own), np.bool_)
        self.total = np.zeros(len(own), np.int64)

    def layout(self) -> dict[int, slice]:
        """Where each stage's gaps will lie; makes room for them."""
        sizes = np.where(self.counted, self.end - self.start - 1, 0)
        stages, at = {}, 0
        for stage in stages_of(self.stage):
            size = int(sizes[self.stage == stage].sum())
            stages[stage] = slice(at, at + size)
            at += size
        self.values: NDArray[np.uint32] | NDArray[np.int64] = np.empty(at, np.uint32)
        self.filled = {stage: part.start for stage, part in stages.items()}
        return stages

    def place(self, gaps: NDArray[np.int64], position: int) -> None:
        """Put the gaps of the chunks from `position` on, each to the chunk before it, where they belong."""
        limit = position + len(gaps)
        first = int(np.searchsorted(self.end, position, "right"))
        last = int(np.searchsorted(self.start, limit, "left"))
        here = slice(first, last)
        begin = np.clip(self.start[here] + 1, position, limit) - position
        end = np.clip(self.end[here], position, limit) - position
        for stage in stages_of(self.stage[here]):
            chosen = self.counted[here] & (self.stage[here] == stage) & (begin < end)
            picked = gaps[_mask(begin[chosen], end[chosen], len(gaps))]
            if len(picked) and self.values.dtype == np.uint32 and not 0 <= picked.min() <= picked.max() < 1 << 32:
                self.values = self.values.astype(np.int64)
            at = self.filled[stage]
            self.filled[stage] = at + len(picked)
            self.values[at : at + len(picked)] = picked
            self._compare(picked, first + np.flatnonzero(chosen), end[chosen] - begin[chosen], position)

    def _compare(
        self, picked: NDArray[np.int64], owners: NDArray[np.int64], counts: NDArray[np.int64], position: int
    ) -> None:
        """Count, request by request, the gaps shorter than the reach of its read delay, and those of 0."""
        if not len(picked) or self.reach[owners].max() <= picked.min():
            return
        starts = np.cumsum(counts) - counts
        shorter, zero = picked < np.repeat(self.reach[owners], counts), picked == 0
        self.shorter[owners] += np.add.reduceat(shorter.view(np.int8), starts, dtype=np.int32)
        self.zeros[owners] += np.add.reduceat(zero.view(np.int8), starts, dtype=np.int32)
        self.first_zero[owners] |= zero[starts] & (self.start[owners] + 1 >= position)

    def measure(self, arrival: NDArray[np.int64], position: int) -> None:
        """Add up each request's gaps, of the chunks from `position` on: its last arrival less its first."""
        limit = position + len(arrival)
        begun = slice(*np.searchsorted(self.start, (position, limit)))
        ended = slice(*np.searchsorted(self.end, (position, limit), "right"))
        self.total[begun] -= arrival[self.start[begun] - position]
        self.total[ended] += arrival[self.end[ended] - 1 - position]

    def read_late(self) -> NDArray[np.bool_]:
        """Requests whose read delay reaches beyond their own gap: the median of those that are not 0, or the mean.

        Beyond the median: of the gaps that are not 0, more than half are shorter. (Those of 0 always are.)
        """
        count = self.end - self.start - 1
        beyond_median = 2 * (self.shorter - self.zeros) > count - self.zeros
        beyond_mean = self.reach * count > self.total
        only_zeros = (self.zeros > 0) & (self.zeros == count)
        beyond_all = self.reach > self.total[self.counted].sum() / max(count[self.counted].sum(), 1)
        late: NDArray[np.bool_] = np.where(only_zeros, beyond_all, beyond_median | beyond_mean)
        return late & self.counted & (self.reach > 0)


def _mask(begin: NDArray[np.int64], end: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
    """True within [begin, end) of each pair (ascending, apart from each other), False outside."""
    edges = np.empty(2 * len(begin) + 2, np.int64)
    edges[0], edges[-1] = 0, length
    edges[1:-1:2], edges[2:-1:2] = begin, end
    inside = np.zeros(len(edges) - 1, np.bool_)
    inside[1::2] = True
    return np.repeat(inside, np.diff(edges))
