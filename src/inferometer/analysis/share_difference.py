"""The difference of two shares, B - A, with its uncertainty: for failure rates, which may be 0 and then have no ratio.

Newcombe's interval: Wilson's score interval of each share, joined by the root of the sum of squares. Unlike difference +- error, it is
not empty if no request of either side failed, and it stays within -100 and +100 points.

Requests that fail together say less than as many independent ones, so the number of requests is divided by a design effect: the largest
of those between blocks of time (blocks.py) and, with several runs, between the runs, of either side. A side without failures shows no
effect of its own; if the servers are equal, that of the other side is also its own. An effect above 1 is an estimate from a few blocks
or runs, and is enlarged by the square of t / 1.96.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import blocks, student
from inferometer.analysis.distributions import counts_as_inf
from inferometer.analysis.window import STEADY
from inferometer.records import Run

_LARGEST_Z = 40.0
_POWER_Z = blocks.NORMAL + 0.8416
"""For a test at 5 % with a power of 80 %."""
CONFIDENCE = 0.95


class Share(msgspec.Struct, frozen=True):
    """`hits` of `count` requests, which say as much as `effective` independent ones."""

    hits: int
    count: int
    effective: float

    @property
    def value(self) -> float:
        return self.hits / self.count

    def interval(self, z: float) -> tuple[float, float]:
        """Wilson's interval, `z` standard errors to each side."""
        square = z * z / self.effective
        half = z * math.sqrt(self.value * (1 - self.value) / self.effective + square / (4 * self.effective))
        centre = self.value + square / 2
        return max((centre - half) / (1 + square), 0.0), min((centre + half) / (1 + square), 1.0)


class ShareDifference(msgspec.Struct, frozen=True):
    """B's share less A's. It has the methods of log_ratio.LogRatio."""

    a: Share
    b: Share

    @property
    def value(self) -> float:
        return self.b.value - self.a.value

    def interval(self, z: float = blocks.NORMAL) -> tuple[float, float]:
        (a_low, a_high), (b_low, b_high) = self.a.interval(z), self.b.interval(z)
        low = self.value - math.hypot(self.b.value - b_low, a_high - self.a.value)
        high = self.value + math.hypot(b_high - self.b.value, self.a.value - a_low)
        return low, high

    def p_above(self, limit: float) -> float:
        """One-sided p-value of "it is at most `limit`": the tail beyond the interval that just reaches the limit."""
        return self._tail(limit) if self.value > limit else 1 - self._tail(limit)

    def p_below(self, limit: float) -> float:
        return 1 - self.p_above(limit)

    def p(self) -> float:
        """Two-sided p-value of "there is no difference"."""
        return min(2 * self._tail(0.0), 1.0)

    def _tail(self, limit: float) -> float:
        """The normal distribution's tail beyond the z at which the interval reaches `limit`."""
        low, high = 0.0, _LARGEST_Z
        while high - low > 1e-6:
            z = (low + high) / 2
            ends = self.interval(z)
            low, high = (z, high) if ends[0] > limit or ends[1] < limit else (low, z)
        return 0.5 * math.erfc(low / math.sqrt(2))

    def more_requests(self, effect: float) -> int:
        """How many more requests per side it takes to show a difference of `effect` with a power of 80 %; 0: none."""
        sides = (self.a, self.b)
        # One more failure and one more success: with no failures at all, the share is small, but not known to be 0.
        shares = [(each.hits + 1) / (each.count + 2) for each in sides]
        cost = max(each.count / each.effective for each in sides)
        needed = cost * math.fsum(share * (1 - share) for share in shares) * (_POWER_Z / effect) ** 2
        return max(math.ceil(needed) - min(each.count for each in sides), 0)


def failure_rates(a: Sequence[Run], b: Sequence[Run], stage: int | None) -> ShareDifference | None:
    """Compare the failure rates of two sides; None if one has no request that counts."""
    counts = [[_counts(run, stage) for run in side] for side in (a, b)]
    if not all(any(count.any() for _, count in side) for side in counts):
        return None
    freedom = len(a) + len(b) - 2
    effect = max(_effect(side, freedom) for side in counts)
    return ShareDifference(*(_pooled(side, effect) for side in counts))


Blocks = tuple[NDArray[np.int64], NDArray[np.int64]]


def _counts(run: Run, stage: int | None) -> Blocks:
    """Failed and all requests of each block of time. Requests that the client cancelled or lost do not count."""
    rows = run.records.rows
    failed = counts_as_inf(run)
    counted = (run.records.phase == STEADY) & (failed | (rows["failure"] == 0))
    if stage is not None:
        counted &= rows["stage"] == stage
    at = rows["intended"][counted]
    if not len(at):
        return np.zeros(blocks.BLOCKS, np.int64), np.zeros(blocks.BLOCKS, np.int64)
    block = blocks.index(at, int(at.min()), int(at.max()) + 1)
    hit = np.bincount(block[failed[counted]], minlength=blocks.BLOCKS)
    return hit.astype(np.int64), np.bincount(block, minlength=blocks.BLOCKS).astype(np.int64)


def _effect(runs: Sequence[Blocks], freedom: int) -> float:
    """The design effect of a side: the larger of that between blocks of time, and that between its runs."""
    hits, counts = np.array([hit for hit, _ in runs]), np.array([count for _, count in runs])
    effect = _enlarged(blocks.design_effect(hits.ravel(), counts.ravel()), blocks.BLOCKS - 1)
    if len(runs) == 1:
        return effect
    return max(effect, _enlarged(blocks.design_effect(hits.sum(axis=1), counts.sum(axis=1)), freedom))


def _enlarged(effect: float, freedom: int) -> float:
    return effect * (student.quantile(CONFIDENCE, freedom) / blocks.NORMAL) ** 2 if effect > 1 else 1.0


def _pooled(runs: Sequence[Blocks], effect: float) -> Share:
    hits, count = sum(int(hit.sum()) for hit, _ in runs), sum(int(each.sum()) for _, each in runs)
    return Share(hits, count, count / effect)
