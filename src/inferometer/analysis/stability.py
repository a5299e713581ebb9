"""When has a stage settled? perf_analyzer's rule, as a pure function of the answers: the same during a run and after it.

Time is cut into windows, the first of which begins with the stage's first good answer. An answer belongs to the window in
which it was complete. A stage is stable with the first three windows in a row of which, both for the answers of a window and
for their mean service time, the highest is at most `stable` above the lowest; a window without an answer is never stable.

Then only what was complete (or failed) within the three windows counts: what was before is warm-up, what came after is
cool-down. By when a request ended, not by when it was meant to start: those that start in the last window are answered while
the load falls already.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.records import MISSING, Columns, StagePlan
from inferometer.units import NS

WINDOWS = 3
"""That have to agree."""


class StabilityRule(msgspec.Struct, frozen=True):
    window: int
    """ns"""
    stable: float


class Stability(msgspec.Struct, frozen=True):
    windows: int = 0
    """Whole ones."""
    spread: float = np.inf
    """The least that any three in a row had: of throughput and latency the larger; 0.1: the highest is 10 % above the lowest."""
    settled: tuple[int, int] | None = None
    """From when to when, in the times of the answers; None: it has not."""


def rule_of(plan: StagePlan) -> StabilityRule | None:
    """None where the stage does not end by being stable."""
    return StabilityRule(round(plan.window * NS), plan.stable) if plan.stable else None


def look(done: NDArray[np.int64], sent: NDArray[np.int64], rule: StabilityRule, until: int) -> Stability:
    """Of good answers, complete at `done`: all that there are up to the instant `until`."""
    if not len(done):
        return Stability()
    begin = int(done.min())
    windows = (until - begin) // rule.window
    if windows < 1:
        return Stability()
    place = (done - begin) // rule.window
    whole = place < windows
    answers = np.bincount(place[whole], minlength=windows)
    times: NDArray[np.float64] = np.bincount(place[whole], (done - sent)[whole], minlength=windows).astype(np.float64)
    least = np.inf
    for first in range(windows - WINDOWS + 1):
        three = slice(first, first + WINDOWS)
        ratio = _ratio(answers[three], times[three])
        if ratio <= 1 + rule.stable:
            start = begin + first * rule.window
            return Stability(windows, ratio - 1, (start, start + WINDOWS * rule.window))
        least = min(least, ratio - 1)
    return Stability(windows, least)


def _ratio(answers: NDArray[np.int64], times: NDArray[np.float64]) -> float:
    """The highest to the lowest, of throughput or of mean latency, whichever are further apart."""
    if not answers.all():
        return np.inf
    means = times / answers
    return float(max(answers.max() / answers.min(), means.max() / max(means.min(), 1.0)))


def of_stage(rows: Columns, stage: int, plan: StagePlan) -> Stability | None:
    """What the records of a whole run say; None where the stage has no such rule."""
    rule = rule_of(plan)
    if rule is None:
        return None
    own = rows[rows["stage"] == stage]
    good = own[(own["failure"] == 0) & (own["done"] != MISSING)]
    if not len(good):
        return Stability()
    until = int(own["done"].max())
    if plan.duration:  # what is answered after the stage's end is answered while the load falls
        until = min(until, int(own["intended"].min()) + round(plan.duration * NS))
    return look(good["done"], good["sent"], rule, until)


def of_run(rows: Columns, plans: Sequence[StagePlan]) -> dict[int, Stability]:
    """By stage, those that have the rule."""
    found = ((stage, of_stage(rows, stage, plan)) for stage, plan in enumerate(plans))
    return {stage: one for stage, one in found if one is not None}
