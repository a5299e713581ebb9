"""Which level to probe next, and the interval so far.

A level is a rate, a number of requests in flight, or a number of users. The search has no state but its history: `following` maps
the trials so far to the next request for a trial, and `bracket` maps them to the interval. Neither measures anything.

1. Ramp: up by RAMP until a level fails. These trials are short scouts; a scout without any violation lets the ramp go on, but shows
   nothing. While the server does not even notice the load, the ramp takes several steps at once. If the first level fails, the
   ramp goes down.
2. Bisection on the log scale, between the highest level that may hold and the lowest that fails, until the interval is as narrow as
   `precision`. A trial that stays undecided shows nothing: the search continues on both sides of it.
3. Surprises are repeated: if every level below a failed one holds, the failure may have been a hiccup; and if a level holds above
   one that fails, the lower one is tried again. The later verdict counts.
4. Confirmation: the highest level that holds is tried once more, for longer. If that does not confirm it, the next lower counts.

`budget` limits the seconds of all trials together. When it is spent, the interval is what the trials have shown, however wide.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import msgspec

Status = Literal["holds", "fails", "undecided"]
Purpose = Literal["ramp", "bisect", "repeat", "confirm"]

RAMP = 1.5
CALM_STEPS = 3
"""Steps of the ramp at once, after a level that did not change how long requests take."""
_CONFIRMATION = 0.25
"""Share of the budget that is kept for the confirmation."""
_LONGER = 3.0
"""The confirmation lasts this many times as long as a trial needs to hold."""
_GOOD = 0.25
"""An undecided confirmation is good if at most this part of the violations that are allowed occurred."""
_SCOUT = 0.08
"""Share of the budget that one step of the ramp may take."""
_BELOW = 0.85
"""A trial after an overload: this share of what the server completed during it."""


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What is searched for."""

    start: float
    budget: float
    """Seconds, for all trials."""
    precision: float = 0.05
    """The search ends when `high` is at most this share above `low`."""
    shortest: float = 2.0
    """Seconds that a trial needs to show that a level fails."""
    telling: float = 2.0
    """Seconds that a trial needs to show that a level holds."""
    overhead: float = 0.0
    """Seconds that a trial takes beyond its length: its start, and waiting for its last responses."""
    whole: bool = False
    """Levels are whole numbers."""
    highest: float = 1e7


class Request(msgspec.Struct, frozen=True):
    """A trial that the search asks for."""

    level: float
    seconds: float
    """Its maximum length."""
    purpose: Purpose


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial showed."""

    level: float
    purpose: Purpose
    status: Status
    seconds: float
    """How long it took, with everything that belongs to it."""
    excess: float | None = None
    """The worst objective: the share of requests that violate it / the share that may. None: not known."""
    is_calm: bool = False
    """Requests took no longer than without load, and none violated an objective."""
    completed: float | None = None
    """Overloaded: the level that the server did achieve."""


class Bracket(msgspec.Struct, frozen=True):
    """The interval: None if nothing was shown."""

    low: float | None
    """The highest level shown to hold."""
    high: float | None
    """The lowest level above it shown to fail."""
    estimate: float | None
    confirmed: bool = False
    non_monotone: bool = False
    """A level held although a lower one failed, and the repetition did not resolve it."""


def bracket(trials: Sequence[Trial]) -> Bracket:
    """The interval that the trials have shown."""
    verdicts = _verdicts(trials)
    failing = sorted(level for level, status in verdicts.items() if status == "fails")
    holding = sorted(level for level, status in verdicts.items() if status == "holds")
    is_monotone = not (failing and holding and failing[0] < holding[-1])
    below = [
        level for level in holding if not failing or level < failing[0]
    ]  # the careful reading if it is not monotone
    low, high = (below[-1] if below else None), (failing[0] if failing else None)
    is_confirmed = any(one.level == low and one.purpose == "confirm" and one.status == "holds" for one in trials)
    return Bracket(low, high, _estimate(trials, low, high), is_confirmed, not is_monotone)


def following(goal: Goal, trials: Sequence[Trial]) -> Request | None:
    """The next trial; None when the search is over."""
    left = goal.budget - sum(trial.seconds for trial in trials) - goal.overhead
    if not trials:
        return Request(_level(goal, goal.start), _scout(goal), "ramp")
    found = bracket(trials)
    spare = left - (_CONFIRMATION * goal.budget if found.low is not None else 0.0)
    if spare >= goal.telling and (request := _narrower(goal, trials, found, spare)) is not None:
        return request
    return _confirmation(goal, trials, found, left)


# --- the steps -------------------------------------------------------------------------------------------------------


def _narrower(goal: Goal, trials: Sequence[Trial], found: Bracket, spare: float) -> Request | None:
    """A trial that makes the interval narrower; None if it is as narrow as it gets."""
    if found.high is None:
        return _up(goal, trials)
    if found.non_monotone and _is_new(trials, found.high):
        return Request(found.high, _length(goal, spare, 1), "repeat")
    if found.low is None:
        return _lower(goal, trials, found.high, spare)
    doubtful = sorted(
        {trial.level for trial in trials if found.low < trial.level < found.high and not _is_scout(trial)}
    )
    gaps = [(found.low, doubtful[0] if doubtful else found.high), (doubtful[-1] if doubtful else found.low, found.high)]
    below, above = max(gaps, key=lambda gap: gap[1] / gap[0])
    steps = math.log(above / below) / math.log1p(goal.precision)
    level = _level(goal, math.sqrt(below * above))
    if steps > 1 and below < level < above:
        return Request(level, _length(goal, spare, math.ceil(math.log2(steps))), "bisect")
    if not doubtful and _is_new(trials, found.high) and _never_failed_since(trials, found.high):
        return Request(found.high, _length(goal, spare, 1), "repeat")
    return None


def _lower(goal: Goal, trials: Sequence[Trial], high: float, spare: float) -> Request | None:
    """Nothing was shown to hold yet: try what an overloaded server achieved, or what a scout passed, or ever lower levels."""
    ceiling = min(trial.level for trial in trials if not _is_scout(trial) or trial.level == high)
    achieved = [trial.completed for trial in trials if trial.completed and trial.level == ceiling]
    passed = max((trial.level for trial in trials if trial.level < ceiling and _is_scout(trial)), default=0.0)
    if achieved and achieved[-1] * _BELOW < ceiling:
        guess = max(achieved[-1] * _BELOW, ceiling / RAMP**CALM_STEPS)
    elif passed > ceiling / RAMP**2:
        guess = passed
    else:
        guess = max(ceiling / RAMP, math.sqrt(passed * ceiling))
    level = _level(goal, guess)
    return Request(level, _length(goal, spare, 3), "bisect") if 0 < level < ceiling else None


def _up(goal: Goal, trials: Sequence[Trial]) -> Request | None:
    top = max(trials, key=lambda trial: trial.level)
    factor = RAMP ** (CALM_STEPS if top.is_calm else 1)
    level = _level(goal, max(top.level * factor, top.level + 1 if goal.whole else 0))
    return Request(level, _scout(goal), "ramp") if level <= goal.highest else None


def _confirmation(goal: Goal, trials: Sequence[Trial], found: Bracket, left: float) -> Request | None:
    tried = any(trial.level == found.low and trial.purpose == "confirm" for trial in trials)
    if found.low is None or tried or left < goal.telling:
        return None
    return Request(found.low, min(left, _LONGER * goal.telling), "confirm")


# --- levels and lengths ----------------------------------------------------------------------------------------------


def _level(goal: Goal, level: float) -> float:
    return float(max(round(level), 1)) if goal.whole else float(f"{level:.4g}")


def _scout(goal: Goal) -> float:
    return max(_SCOUT * goal.budget, goal.shortest)


def _length(goal: Goal, spare: float, trials: int) -> float:
    """The maximum length of a trial, if so many are still to come. Most end earlier, which leaves more for those after them."""
    return min(max(1.5 * spare / max(trials, 1), goal.telling), spare)


# --- what the trials say ---------------------------------------------------------------------------------------------


def _verdicts(trials: Sequence[Trial]) -> dict[float, Status]:
    """The verdict on each level: the latest counts. A confirmation that is not long enough, but good, takes nothing back."""
    verdicts: dict[float, Status] = {}
    for trial in trials:
        is_good = trial.purpose == "confirm" and trial.excess is not None and trial.excess < _GOOD
        if trial.status != "undecided" or not is_good:
            verdicts[trial.level] = trial.status
    return verdicts


def _is_scout(trial: Trial) -> bool:
    """Whether a trial shows nothing, but gave no reason for doubt either."""
    return trial.purpose == "ramp" and trial.status == "undecided" and trial.excess is not None and trial.excess < 1


def _is_new(trials: Sequence[Trial], level: float) -> bool:
    return sum(trial.level == level for trial in trials) == 1


def _never_failed_since(trials: Sequence[Trial], level: float) -> bool:
    """Whether every trial after the first one of `level` held."""
    first = next(index for index, trial in enumerate(trials) if trial.level == level)
    later = trials[first + 1 :]
    return bool(later) and all(trial.status == "holds" for trial in later)


def _estimate(trials: Sequence[Trial], low: float | None, high: float | None) -> float | None:
    """Where the share of violations crosses what is allowed, by interpolation on the log scale between the ends of the interval."""
    if low is None or high is None:
        return None
    known = {t.level: math.log(t.excess) for t in trials if t.excess and low <= t.level <= high and t.excess > 0}
    levels = sorted(known)
    for below, above in pairwise(levels):
        if known[below] < 0 <= known[above]:
            share = -known[below] / (known[above] - known[below])
            return math.exp(math.log(below) + share * math.log(above / below))
    return math.sqrt(low * high)
