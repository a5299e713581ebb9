"""The gaps between chunks, counted over time and by group in one pass over the chunks, however many there are.

Gaps are counted in bins of equal ratio: 64 per power of two, so that a value read from them is exact to 1.6 %. Tables have exact values
(analysis/gaps.py); these are for charts. The bin of a gap is computed from the exponent and the mantissa, which is exact, so that every
machine draws the same chart.
"""

from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.gaps import Slices
from inferometer.analysis.percentiles import rank
from inferometer.records import Run
from inferometer.units import NS

Counts = NDArray[np.int64]
_PER_OCTAVE = 64
_OCTAVES = 41
BINS = _PER_OCTAVE * _OCTAVES
"""From 1 ns to 36 minutes."""


class TimeBins(msgspec.Struct, frozen=True):
    """A division of the run into intervals of equal length, ns since t=0."""

    start: int
    width: int
    count: int

    def index(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """The interval of each instant; the first or the last for instants outside."""
        found: NDArray[np.int64] = np.clip((at - self.start) // self.width, 0, self.count - 1)
        return found

    @property
    def seconds(self) -> float:
        """The length of an interval."""
        return self.width / NS

    @property
    def middles(self) -> dict[str, float]:
        """The middles of the intervals in seconds, as charts.js reads them."""
        return {"from": (self.start + self.width / 2) / NS, "step": self.seconds, "count": self.count}


class GapHistogram(NamedTuple):
    times: TimeBins
    by_time: Counts
    """One row per interval of time: a gap counts when it ends."""
    by_group: Counts
    """One row per group."""
    tokens: NDArray[np.float64]
    """Output tokens that arrived in each interval. A response's tokens are spread evenly over its chunks."""


def count_gaps(run: Run, times: TimeBins, group: NDArray[np.int64], groups: int) -> GapHistogram:
    """Count the gaps of successful requests; `group` is the number of each request's group, or -1 for none."""
    rows = run.records.rows
    slices = Slices(run, rows["failure"] == 0)
    by_time, by_group = np.zeros(times.count * BINS, np.int64), np.zeros(max(groups, 1) * BINS, np.int64)
    tokens = np.zeros(times.count)
    per_chunk = np.maximum(rows["n_out"], 0) / np.maximum(rows["chunk_count"], 1)
    position, previous = 0, 0
    for piece in run.chunks():
        arrival = piece.arrival
        if not len(arrival):
            continue
        gaps = np.diff(arrival, prepend=previous)
        here, begin, end = slices.within(position, len(arrival))
        counted = slices.counted[here]
        owners = slices.own[here][counted]
        index, whose = _expand(begin[counted], np.maximum(end[counted], begin[counted]), owners)
        when, size = times.index(arrival[index]), bin_of(gaps[index])
        by_time += np.bincount(when * BINS + size, minlength=len(by_time))
        own = group[whose]
        by_group += np.bincount((own * BINS + size)[own >= 0], minlength=len(by_group))
        first = np.clip(slices.start[here][counted] - position, 0, len(arrival))
        last = np.clip(slices.end[here][counted] - position, 0, len(arrival))
        index, whose = _expand(first, last, owners)
        tokens += np.bincount(times.index(arrival[index]), per_chunk[whose], minlength=times.count)
        position, previous = position + len(arrival), int(arrival[-1])
    return GapHistogram(times, by_time.reshape(times.count, BINS), by_group.reshape(-1, BINS), tokens)


def _expand(
    begin: NDArray[np.int64], end: NDArray[np.int64], owners: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The indices within [begin, end) of each pair, and the owner of each index."""
    lengths = end - begin
    offsets = np.cumsum(lengths) - lengths
    index = np.arange(int(lengths.sum())) + np.repeat(begin - offsets, lengths)
    return index, np.repeat(owners, lengths)


def bin_of(gaps: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bin of each gap in ns. Gaps below 1 ns are in the first bin."""
    mantissa, exponent = np.frexp(np.maximum(gaps, 1).astype(np.float64))
    found = (exponent.astype(np.int64) - 1) * _PER_OCTAVE + ((mantissa - 0.5) * 2 * _PER_OCTAVE).astype(np.int64)
    return np.minimum(found, BINS - 1)


def edge(index: int) -> float:
    """The lower edge of a bin, in seconds."""
    octave, part = divmod(index, _PER_OCTAVE)
    return float(2**octave * (1 + part / _PER_OCTAVE) / NS)


def value_at(counts: Counts, thousandths: int) -> float | None:
    """A percentile of a histogram, in seconds: the middle of the bin with the nearest rank; None if it is empty."""
    total = int(counts.sum())
    if not total:
        return None
    return middle(int(np.searchsorted(np.cumsum(counts), rank(thousandths, total))))


def middle(index: int) -> float:
    """The middle of a bin, in seconds; 0 for the first bin, which has the gaps of 0."""
    return (edge(index) + edge(index + 1)) / 2 if index else 0.0
