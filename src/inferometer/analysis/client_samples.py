"""When was a client process blocked, and its clock stepped? Looks up the samples of its event loop by time.

A sample covers the time since the one before. What it says about a stall or a step holds for some moment of that time.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.records import Columns, Sample

TICK = 5_000_000
"""Nanoseconds between the monitor's ticks: a stall may be longer than the tick after it was late by this much."""
STALL = 10_000_000
"""Nanoseconds from which on a late tick counts as a stall."""
UNKNOWN = 1 << 62
"""Nanoseconds that stand for a stall of unknown length, if there are no samples."""

Whole = NDArray[np.int64]


class Interval(NamedTuple):
    """A time, from `begin` to `end` (ns since t=0), in which arrivals of a client process may be wrong by up to `error` ns."""

    shard: int
    begin: int
    end: int
    error: int


class Stalls:
    """The longest stall of each client process around given instants."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._shards = {
            shard: (np.array([s.at for s in own]), _with_next(np.array([s.stall for s in own])))
            for shard, own in by_shard(samples).items()
        }

    def around(self, shard: NDArray[np.int16], at: Whole) -> Whole:
        """The longest stall around each instant of a shard. A stall shows in the sample in which it ends, perhaps the next."""
        stalls = np.full(len(at), UNKNOWN, np.int64)
        for number, (ends, longest) in self._shards.items():
            own = shard == number
            index = np.minimum(np.searchsorted(ends, at[own], "left"), len(ends) - 1)
            stalls[own] = longest[index]
        return stalls

    def during(self, shard: NDArray[np.int16], begin: Whole, end: Whole) -> Whole:
        """The longest stall between each pair of instants of a shard."""
        stalls = np.full(len(begin), UNKNOWN, np.int64)
        for number, (ends, longest) in self._shards.items():
            own = np.flatnonzero(shard == number)
            low, high = (np.minimum(np.searchsorted(ends, at[own], "left"), len(ends) - 1) for at in (begin, end))
            if len(own):
                pairs = np.stack([low, np.maximum(low, high) + 1], axis=1).ravel()
                stalls[own] = np.maximum.reduceat(np.append(longest, 0), pairs)[::2]
        return stalls


def _with_next(values: Whole) -> Whole:
    """The larger of each value and the one after it."""
    larger: Whole = np.maximum(values, np.append(values[1:], 0))
    return larger


def by_shard(samples: Sequence[Sample]) -> dict[int, list[Sample]]:
    """The samples of each client process, in the order of time."""
    shards: dict[int, list[Sample]] = {}
    for sample in sorted(samples, key=lambda sample: (sample.shard, sample.at)):
        shards.setdefault(sample.shard, []).append(sample)
    return shards


def errors(intervals: Sequence[Interval], rows: Columns, column: str) -> Whole:
    """By how much the instant in `column` may be wrong for each row; 0 if it lies in none of the intervals."""
    result = np.zeros(len(rows), np.int64)
    shards, at = rows["shard"], rows[column]
    for shard, begins, ends, error in _columns(intervals):
        own = np.flatnonzero(shards == shard)
        index = np.searchsorted(ends, at[own], "left")
        known = np.minimum(index, len(ends) - 1)
        inside = (index < len(ends)) & (at[own] >= begins[known])
        result[own] = np.where(inside, error[known], 0)
    return result


def overlapping(intervals: Sequence[Interval], rows: Columns) -> NDArray[np.bool_]:
    """Rows that were in flight during one of the intervals."""
    result = np.zeros(len(rows), np.bool_)
    for shard, begins, ends, _ in _columns(intervals):
        own = rows["shard"] == shard
        begun = np.searchsorted(begins, rows["done"][own], "right")
        ended = np.searchsorted(ends, rows["sent"][own], "left")
        result[own] = begun > ended
    return result


def _columns(intervals: Sequence[Interval]) -> list[tuple[int, Whole, Whole, Whole]]:
    """Begins, ends and errors of each shard's intervals."""
    columns = []
    for shard in sorted({interval.shard for interval in intervals}):
        begin, end, error = np.array([interval[1:] for interval in intervals if interval.shard == shard], np.int64).T
        columns.append((shard, begin, end, error))
    return columns
