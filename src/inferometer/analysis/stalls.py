"""Stalls: gaps between chunks that are much longer than usual, and whether many streams or only one had them.

A gap is long if it exceeds LONG times the typical gap of its stage, and the typical gap by at least MARGIN. A stall that at least
half of the open streams of a replica share at the same instant is the server's. A long gap of a single stream is that request's: a preemption, if
the server counted one in that time, else its cause is not known. A shared stall is the client's if its event loop stalled in that time for
at least half as long. Even if the kernel stamps chunks, chunks that wait in a socket together get the timestamp of the latest (gaps.py).

One pass over the chunks is enough, and its memory does not grow with their number: it keeps a few sums per request, and counts how
many streams are in a long gap, by bins of time.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.gaps import Slices, pieces
from inferometer.records import MISSING, Columns, Run, Sample
from inferometer.series import TimeSeries
from inferometer.server_metrics.targets import offering, targets, union

Instants = NDArray[np.int64]
Spans = NDArray[np.float64]
Mask = NDArray[np.bool_]

LONG = 4
"""How many typical gaps a long gap has at least."""
MARGIN = 10_000_000
"""How much longer than the typical gap it is at least, in ns."""
_FEWEST, _SHARE, _SHARE_IF_PREEMPTED = 3, 0.5, 0.9
"""A stall is shared if this many streams are in a long gap at once (or both of two), and this share of all open streams. While the server
preempts, several streams stall one by one, so it takes nearly all of them."""
_FINEST, _MOST_BINS = 1_000_000, 1 << 20
"""Bins of time are at least this long (ns), and there are at most this many, of all replicas together."""
_MOST_REPLICAS = 32
"""Streams of more replicas are not told apart."""
_MOST_LISTED = 50
"""Long gaps that are listed per chosen request."""


class LongGap(NamedTuple):
    """A long gap of one request, in ns since t=0."""

    start: int
    end: int


class Stalls(NamedTuple):
    typical: Spans
    """The typical gap of each row's stage, in ns; 0 if no response of the stage has two chunks."""
    excess: Spans
    """By how much the long gaps of each row exceed the typical gap, in all."""
    preempted: Spans
    """The same, of the gaps during which the server counted a preemption."""
    server: "Windows"
    """When streams stalled together."""
    client: "Windows"
    """When streams stalled together because the client did not read."""
    listed: dict[int, list[LongGap]]
    """The long gaps of the chosen rows."""


class Windows(NamedTuple):
    """Times at which something was the case, as bins from `begin` on. Those of the next replica follow those of the one before."""

    begin: int
    width: int
    size: int
    """Bins per replica."""
    total: Instants
    """How much of the time before each bin it was the case, and at the end."""

    def overlap(self, replica: NDArray[np.int16], start: Instants, end: Instants) -> Spans:
        """How much of the time from `start` to `end` it was the case; 0 if the end is not known."""
        known = (start != MISSING) & (end != MISSING)
        before, after = (self._until(replica, np.where(known, instants, self.begin)) for instants in (start, end))
        return np.maximum(after - before, 0.0)

    def _until(self, replica: NDArray[np.int16], instants: Instants) -> Spans:
        """How much of the time before each instant it was the case."""
        passed = np.clip(instants - self.begin, 0, self.size * self.width)
        bin = np.minimum(passed // self.width, self.size - 1)
        part = (passed - bin * self.width) / self.width
        index = _group(replica, (len(self.total) - 1) // self.size) * self.size + bin
        until: Spans = self.total[index] + part * (self.total[index + 1] - self.total[index])
        return until


def _group(replica: NDArray[np.int16], groups: int) -> Instants:
    """The group of streams that stall together: the replica, or 0 if they are not told apart."""
    return np.clip(replica, 0, groups - 1).astype(np.int64)


def find_stalls(
    run: Run, counted: Mask, preemptions: Sequence[tuple[int, int]], chosen: Collection[int] = ()
) -> Stalls:
    """Find the long gaps of all rows. `counted` rows determine the typical gap; `preemptions` are intervals in which the server
    counted one; the gaps of the rows `chosen` are listed."""
    rows = run.records.rows
    typical = _typical(rows, counted)
    limit = np.where(typical > 0, np.maximum(LONG * typical, typical + MARGIN), np.inf)
    excess, preempted = np.zeros(len(rows)), np.zeros(len(rows))
    bins = _Bins(rows, len(run.records.replicas))
    listed: dict[int, list[LongGap]] = {row: [] for row in chosen}
    slices = Slices(run, counted)
    lowest = float(limit.min(initial=np.inf))
    for position, arrival, gaps in pieces(run):
        at = np.flatnonzero(gaps > lowest)
        owner = np.searchsorted(slices.start, at + position, "right") - 1
        inside = (owner >= 0) & (at + position > slices.start[owner]) & (at + position < slices.end[owner])
        at, row = at[inside], slices.own[owner[inside]]
        is_long = gaps[at] > limit[row]
        at, row = at[is_long], row[is_long]
        length, end = gaps[at], arrival[at]
        start = end - length
        over = length - typical[row]
        np.add.at(excess, row, over)
        np.add.at(preempted, row, np.where(_meets(start, end, preemptions), over, 0.0))
        bins.add(rows["replica"][row], start, end)
        if chosen:
            for index in np.flatnonzero(np.isin(row, list(chosen))).tolist():
                if len(own := listed[int(row[index])]) < _MOST_LISTED:
                    own.append(LongGap(int(start[index]), int(end[index])))
    server, client = bins.shared(run.records.samples, preemptions)
    return Stalls(typical, excess, preempted, server, client, listed)


def _typical(rows: Columns, counted: Mask) -> Spans:
    """The median over the responses of each stage of their mean gap."""
    count = rows["chunk_count"].astype(np.int64) - 1
    known = counted & (count > 0) & (rows["last_token"] != MISSING) & (rows["first_token"] != MISSING)
    means = (rows["last_token"] - rows["first_token"]) / np.maximum(count, 1)
    typical = np.zeros(len(rows))
    for stage in sorted(set(rows["stage"].tolist())):
        own = rows["stage"] == stage
        if (both := own & known).any():
            ascending = np.sort(means[both])  # np.median would import numpy.ma
            typical[own] = (ascending[(len(ascending) - 1) // 2] + ascending[len(ascending) // 2]) / 2
    return typical


def _meets(start: Instants, end: Instants, intervals: Sequence[tuple[int, int]]) -> Mask:
    """Which gaps overlap one of the intervals, which are in ascending order and do not overlap each other."""
    if not intervals:
        return np.zeros(len(start), np.bool_)
    begins, ends = (np.array(side, np.int64) for side in zip(*intervals, strict=True))
    following = np.searchsorted(ends, start)
    overlaps: Mask = (following < len(ends)) & (begins[np.minimum(following, len(ends) - 1)] <= end)
    return overlaps


class _Bins:
    """Counts how many streams are open, and how many are in a long gap, by replicas and bins of time."""

    def __init__(self, rows: Columns, replicas: int) -> None:
        first, last = rows["first_token"], rows["last_token"]
        streams = (rows["chunk_count"] > 1) & (first != MISSING) & (last != MISSING)
        self._groups = replicas if 1 < replicas <= _MOST_REPLICAS else 1
        self._begin = int(first[streams].min(initial=np.iinfo(np.int64).max)) if streams.any() else 0
        end = int(last[streams].max()) if streams.any() else 0
        self._width = max(_FINEST, -(-(end - self._begin) * self._groups // _MOST_BINS))
        self._size = (end - self._begin) // self._width + 3
        self._open = self._changes(rows["replica"][streams], first[streams], last[streams] + self._width)
        self._stalled = np.zeros_like(self._open)

    def add(self, replica: NDArray[np.int16], start: Instants, end: Instants) -> None:
        """Count long gaps."""
        self._stalled += self._changes(replica, start + self._width, end)

    def _changes(self, replica: NDArray[np.int16], start: Instants, end: Instants) -> Instants:
        """By how much the number changes at each bin, of what lasts from the bin of `start` to before the bin of `end`.

        The last bin of each replica is after all ends, so the numbers are 0 there, and the sum of changes is too.
        """
        first, last = (np.clip((side - self._begin) // self._width, 0, self._size - 1) for side in (start, end))
        offset = _group(replica, self._groups) * self._size
        lasting = last > first
        size = self._groups * self._size
        return np.bincount((offset + first)[lasting], minlength=size) - np.bincount(
            (offset + last)[lasting], minlength=size
        )

    def shared(self, samples: Sequence[Sample], preemptions: Sequence[tuple[int, int]]) -> tuple[Windows, Windows]:
        """When streams stalled together: because of the server, and because of the client."""
        stalled, streams = np.cumsum(self._stalled), np.cumsum(self._open)
        begins = self._begin + self._width * np.tile(np.arange(self._size), self._groups)
        share = np.where(_meets(begins, begins + self._width, preemptions), _SHARE_IF_PREEMPTED, _SHARE)
        together = stalled >= np.maximum(share * streams, np.minimum(_FEWEST, np.maximum(streams, 2)))
        changes = np.flatnonzero(np.diff(together, prepend=False, append=False))
        first, last = changes[::2], changes[1::2]
        client = np.zeros(len(together), np.bool_)
        for index in np.flatnonzero(_is_clients(samples, begins[first], begins[last])).tolist():
            client[first[index] : last[index]] = True
        return self._windows(together & ~client), self._windows(together & client)

    def _windows(self, holds: Mask) -> Windows:
        total = np.concatenate(([0], np.cumsum(holds * self._width)))
        return Windows(self._begin, self._width, self._size, total)


def _is_clients(samples: Sequence[Sample], start: Instants, end: Instants) -> Mask:
    """Which shared stalls are the client's: those in which the event loop of a process stalled for at least half as long.

    A stall is in the sample that covers its end, so the sample after that of the start counts too.
    """
    longest = np.zeros(len(start), np.int64)
    for shard in {sample.shard for sample in samples}:
        own = sorted((sample for sample in samples if sample.shard == shard), key=lambda sample: sample.at)
        at, stall = (
            np.array(column, np.int64) for column in zip(*((each.at, each.stall) for each in own), strict=True)
        )
        first = np.minimum(np.searchsorted(at, start), len(at) - 1)
        last = np.minimum(np.searchsorted(at, end), len(at) - 1)
        longest = np.maximum(longest, np.maximum(stall[first], stall[last]))
    return np.asarray(2 * longest >= end - start)


def _merged(intervals: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join intervals that overlap."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


# --- what the server's metrics say about it --------------------------------------------------------------------------


class Waiting(NamedTuple):
    """How many requests waited in the server, at each scrape."""

    at: Instants
    value: Spans

    def during(self, start: Instants, end: Instants) -> Spans:
        """The mean from the last scrape before `start` to the first one after `end`; NaN if there is none."""
        if not len(self.at):
            return np.full(len(start), np.nan)
        first = np.maximum(np.searchsorted(self.at, start, "right") - 1, 0)
        last = np.minimum(np.searchsorted(self.at, end, "left"), len(self.at) - 1)
        total = np.concatenate(([0.0], np.cumsum(self.value)))
        mean: Spans = (total[last + 1] - total[first]) / np.maximum(last + 1 - first, 1)
        return mean


def waiting(series: Sequence[TimeSeries], model: str) -> Waiting:
    """The gauge of waiting requests, added up over all servers; empty if none reports it."""
    offers = offering(targets(series, model), "waiting")
    if not offers:
        return Waiting(np.zeros(0, np.int64), np.zeros(0))
    at = union(target.scraped[target.succeeded] for target in offers)
    value = np.zeros(len(at))
    for target in offers:
        for track in target.quantities["waiting"]:
            value += np.nan_to_num(track.held(at))
    return Waiting(at, value)


def preemptions(series: Sequence[TimeSeries], model: str) -> list[tuple[int, int]]:
    """The intervals between two scrapes in which a server counted a preemption."""
    found = []
    for target in offering(targets(series, model), "preemptions"):
        at = target.scraped[target.succeeded]
        for track in target.quantities["preemptions"]:
            rose = np.flatnonzero(np.diff(np.nan_to_num(track.held(at))) > 0)
            found += [(int(at[index]), int(at[index + 1])) for index in rose.tolist()]
    return _merged(found)
