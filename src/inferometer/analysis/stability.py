"""Decide when a stage is stable: perf_analyzer's rule, as a pure function of the responses, during a run and after it.

Time is cut into windows; the first begins with the stage's first successful response. A response belongs to the window in
which it completed. The stage is stable with the first three consecutive windows in which the largest number of responses is
at most a share of `stable` above the smallest, and the largest mean service time as well. A window without a response is
never stable.

Then only requests that completed (or failed) within the three windows count: earlier ones are warm-up, later ones cool-down.
What decides is when a request ended, not when it was intended to start: requests that start in the last window are completed
while the load is already falling.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.records import MISSING, Columns, StagePlan
from inferometer.units import NS

WINDOWS = 3
"""Consecutive windows that have to agree."""


class StabilityRule(msgspec.Struct, frozen=True):
    window: int
    """ns"""
    stable: float


class Stability(msgspec.Struct, frozen=True):
    windows: int = 0
    """Number of complete windows."""
    spread: float = np.inf
    """The smallest spread of any three consecutive windows, in throughput or latency, whichever is larger. 0.1 means that the
    highest is 10 % above the lowest."""
    settled: tuple[int, int] | None = None
    """Start and end of the three stable windows, on the clock of the responses; None if the stage was never stable."""


def rule_of(plan: StagePlan) -> StabilityRule | None:
    """The stage's rule; None if the stage does not end when it is stable."""
    return StabilityRule(round(plan.window * NS), plan.stable) if plan.stable else None


def assess(done: NDArray[np.int64], sent: NDArray[np.int64], rule: StabilityRule, until: int) -> Stability:
    """Apply the rule to successful requests that were sent at `sent` and completed at `done`: all of them up to `until`."""
    if not len(done):
        return Stability()
    begin = int(done.min())
    windows = (until - begin) // rule.window
    if windows < 1:
        return Stability()
    window = (done - begin) // rule.window
    complete = window < windows
    counts = np.bincount(window[complete], minlength=windows)
    # bincount adds in the order of the rows on every processor, so that its float sums are reproducible.
    times: NDArray[np.float64] = np.bincount(window[complete], (done - sent)[complete], minlength=windows).astype(
        np.float64
    )
    smallest = np.inf
    for first in range(windows - WINDOWS + 1):
        three = slice(first, first + WINDOWS)
        ratio = _ratio(counts[three], times[three])
        if ratio <= 1 + rule.stable:
            start = begin + first * rule.window
            return Stability(windows, ratio - 1, (start, start + WINDOWS * rule.window))
        smallest = min(smallest, ratio - 1)
    return Stability(windows, smallest)


def _ratio(counts: NDArray[np.int64], times: NDArray[np.float64]) -> float:
    """Ratio of the highest to the lowest, of throughput or of mean latency, whichever is larger."""
    if not counts.all():
        return np.inf
    means = times / counts
    return float(max(counts.max() / counts.min(), means.max() / max(means.min(), 1.0)))


def of_stage(rows: Columns, stage: int, plan: StagePlan) -> Stability | None:
    """Stability of a stage, from the records of the whole run; None if the stage has no such rule."""
    rule = rule_of(plan)
    if rule is None:
        return None
    own = rows[rows["stage"] == stage]
    good = own[(own["failure"] == 0) & (own["done"] != MISSING)]
    if not len(good):
        return Stability()
    until = int(own["done"].max())
    if plan.duration:  # responses after the end of the stage come while the load is falling
        until = min(until, int(own["intended"].min()) + round(plan.duration * NS))
    return assess(good["done"], good["sent"], rule, until)


def of_run(rows: Columns, plans: Sequence[StagePlan]) -> dict[int, Stability]:
    """Stability by stage number, for the stages that have the rule."""
    stages = ((stage, of_stage(rows, stage, plan)) for stage, plan in enumerate(plans))
    return {stage: result for stage, result in stages if result is not None}
