"""How much counters and histograms grew over a window.

A window counts from the last scrape at or before its begin to the last scrape at or before its end, so adjacent windows add up. Both must have
succeeded, and they must be two different ones: otherwise there is no figure, but a reason.

- A series that the page did not have at the first of these scrapes starts at 0: servers report some metrics only after the first request.
- A value that falls, or a process that was started again, is a reset: what the counter had grown before and what it has grown since then
  count, and what happened between the last scrape before and the restart is lost.
- A series that leaves the page keeps what it has counted. One that comes back goes on from there, unless its value is lower: a reset.
- Buckets are stored at the start, when a stage begins, and at the end. A window counts from the stored buckets nearest to its begin to
  those nearest to its end: with the fewest observations between. If they have counted other observations than the histogram's
  count has over the window (by more than a tenth), there are no quantiles.
- Buckets of several label sets and targets are added up at the edges that all of them have.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from inferometer.server_metrics.targets import Instants, Target, Track, Values

SEVERAL = "is answered by several servers in turn: name each of them (observe.prometheus)"
_TOLERANCE = 0.1
"""By how much the observations in the buckets may differ from the histogram's count."""


class Interval(NamedTuple):
    """The scrapes of a target that stand for a window."""

    target: Target
    first: int
    last: int


class Growth(NamedTuple):
    delta: float
    resets: int
    """The most that any of the series had: after a restart, they may appear again one by one."""


class Buckets(NamedTuple):
    """What a histogram has counted: observations up to each edge; the last edge is +Inf."""

    edges: Values
    counts: Values


def interval(target: Target, begin: int, end: int) -> Interval | str:
    """Return the scrapes that stand for the window, or why there are none."""
    if target.is_several:
        return SEVERAL
    first, last = (int(at) for at in np.searchsorted(target.scraped, (begin, end), "right") - 1)
    if first < 0:
        return "was not scraped before the window began"
    if not target.succeeded[first]:
        return "could not be scraped when the window began"
    if not target.succeeded[last]:
        return "could not be scraped when the window ended"
    if first == last:
        return "was not scraped between the window's begin and its end"
    return Interval(target, int(target.scraped[first]), int(target.scraped[last]))


def grown(tracks: Sequence[Track], within: Interval) -> Growth:
    """Return how much counters grew, all of them together."""
    deltas, resets = [], 0
    for track in tracks:
        at, value = _between(track, within.first, within.last)
        steps = np.diff(value)
        restarted = np.diff(np.searchsorted(within.target.restarts, at, "right")) > 0
        has_reset = (steps < 0) | (restarted & (value[:-1] > 0))
        deltas += np.where(has_reset, value[1:], steps).tolist()
        resets = max(resets, int(has_reset.sum()))
    return Growth(math.fsum(deltas), resets)


def bucket_counts(tracks: Sequence[Track], within: Interval, count: float) -> Buckets | str:
    """Return what one target's histogram has counted over the window, or why that is not known."""
    buckets = [track for track in tracks if track.part == "bucket"]
    if not buckets:
        return "the server reports no buckets"
    counts = [track for track in tracks if track.part == "count"]
    first, last = (_nearest(within.target, counts, at) for at in (within.first, within.last))
    if first == last:
        return "buckets are stored only when a stage begins or ends"
    between = Interval(within.target, first, last)
    totals = grown(counts, between)
    at = np.array((first, last), np.int64)
    held = [(track.le, *np.nan_to_num(track.counted().held(at)).tolist()) for track in buckets]
    is_reset = totals.resets > 0 or any(after < before for _, before, after in held)
    summed: dict[float, float] = {}
    for edge, before, after in held:
        summed[edge] = summed.get(edge, 0.0) + after - (0.0 if is_reset else before)
    if np.inf not in summed:
        summed[np.inf] = totals.delta
    if abs(summed[np.inf] - count) > max(_TOLERANCE * max(summed[np.inf], count), 1.0):
        return "buckets were stored too long before or after the window's begin or end"
    edges = np.array(sorted(summed))
    return Buckets(edges, np.maximum.accumulate([summed[edge] for edge in edges.tolist()]))


def merged(parts: Sequence[Buckets]) -> Buckets | str:
    """Add up the buckets of several targets, at the edges that all of them have."""
    edges = parts[0].edges
    for part in parts[1:]:
        edges = np.intersect1d(edges, part.edges)
    if len(edges) < 2:
        return "the targets' histograms have no edges in common"
    counts = np.zeros(len(edges))
    for part in parts:
        counts += part.counts[np.searchsorted(part.edges, edges)]
    return Buckets(edges, counts)


def quantile(q: float, buckets: Buckets) -> tuple[float | None, float | None]:
    """Interpolate within the bucket in which the quantile lies, as PromQL's histogram_quantile does. Returns the quantile, or else the
    edge that it is below.

    The first bucket is often wide: in a queue in which nothing waited, PromQL would put the p90 at 0.27 s if the first edge is at 0.3 s. So
    a quantile in it is only known to be below its edge. Above the last finite edge, and without observations, nothing is known
    (PromQL returns that edge).
    """
    edges, counts = buckets
    if counts[-1] <= 0:
        return None, None
    rank = q * float(counts[-1])
    index = int(np.searchsorted(counts[:-1], rank, "left"))
    if index == len(edges) - 1:
        return None, None
    upper = float(edges[index])
    if index == 0:
        return None, upper
    lower, below = float(edges[index - 1]), float(counts[index - 1])
    return lower + (upper - lower) * ((rank - below) / (float(counts[index]) - below)), None


def _between(track: Track, first: int, last: int) -> tuple[Instants, Values]:
    """The values of a counter from one scrape to another, with that at the first of them; 0 if there was none."""
    _, _, at, value = track.counted()
    begin, end = np.searchsorted(at, (first, last), "right")
    before = value[begin - 1] if begin else 0.0
    return np.concatenate(([first], at[begin:end])), np.concatenate(([before], value[begin:end]))


def _nearest(target: Target, counts: Sequence[Track], at: int) -> int:
    """The stored buckets, before or after a scrape, that differ from it by fewer observations, or else are nearer in time. If
    nothing has been counted yet, no buckets are needed."""
    if all(np.nan_to_num(track.counted().held(np.array([at], np.int64)))[0] == 0 for track in counts):
        return at
    index = int(np.searchsorted(target.marks, at, "right"))
    around: list[int] = target.marks[max(index - 1, 0) : index + 1].tolist()

    def distance(mark: int) -> tuple[float, int]:
        return grown(counts, Interval(target, min(mark, at), max(mark, at))).delta, abs(mark - at)

    return min(around, key=distance)
