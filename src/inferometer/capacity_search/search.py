"""Which level to probe next, and the interval so far.

A level is a rate, a number of requests in flight, or a number of users. The search has no state but its history: `following` maps
the trials so far to the next request for a trial, and `bracket` maps them to the interval. Neither measures anything.

1. Ramp: up by RAMP until a level fails, or sees more violations than allowed. These trials are short scouts; a scout without any
   violation lets the ramp go on, but shows nothing. While the server does not even notice the load, the ramp takes several steps at
   once.
2. Levels that probably decide: from the violations so far, model.py estimates where the capacity is. The next trial is at the lowest
   level that will probably be shown to fail, or at the highest that will probably be shown to hold, until the interval is as narrow as
   `precision` or a trial is not expected to narrow it by that much. Objectives that are not judged by counting violations have no such
   model: then it is bisection on the log scale.
3. Surprises are repeated: if every level below a failed one holds, the failure may have been a hiccup; and if a level holds above
   one that fails, the lower one is tried again. The later verdict counts.
4. Confirmation: the highest level that holds is tried once more, for longer. If that does not confirm it, the next lower counts.

`budget` limits the seconds of all trials together. When it is spent, the interval is what the trials have shown, however wide.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

from inferometer.analysis.binomial import is_below
from inferometer.capacity_search.model import Belief, believe, highest_to_hold, lowest_to_fail

Status = Literal["holds", "fails", "undecided"]
Purpose = Literal["ramp", "bisect", "repeat", "confirm"]

RAMP = 1.5
CALM_STEPS = 3
"""Steps of the ramp at once, after a level that did not change how long requests take."""
_CONFIRMATION = 0.25
"""Share of the budget that is kept for the confirmation."""
LONGER = 1.5
"""The confirmation lasts this many times as long as a trial needs to hold; twice that, if it is undecided by then."""
_GOOD = 0.9
"""An undecided confirmation with more than this part of the violations that are allowed takes back that the level holds."""
_SCOUT = 0.08
"""Share of the budget that one step of the ramp may take."""
_LIKELY, _SURE = 0.85, 0.9
"""The probability with which a trial should decide; and the first one on each side, which everything else builds on."""
_PART = 0.4
"""Share of the time left that a trial may take."""
_SOONER, _FAILING = 1.5, 0.75
"""A failure shows this many times as soon; and a trial that is to fail takes at most this part of the time that one needs to hold, so
that it does not hold by chance: the queue may not have grown yet."""
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
    allowed: float | None = None
    """The share of requests that may violate that objective."""
    independent: float | None = None
    """How many independent requests the trial is worth."""
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
    reserve = min(_CONFIRMATION * goal.budget, LONGER * goal.telling + goal.overhead)
    spare = left - (reserve if found.low is not None else 0.0)
    if spare >= goal.telling and (request := _narrower(goal, trials, found, spare)) is not None:
        return request
    return _confirmation(goal, trials, found, left)


# --- the steps -------------------------------------------------------------------------------------------------------


def _narrower(goal: Goal, trials: Sequence[Trial], found: Bracket, spare: float) -> Request | None:
    """A trial that makes the interval narrower; None if it is as narrow as it gets."""
    if found.high is None and not _is_doubtful(max(trials, key=lambda trial: trial.level)):
        return _up(goal, trials)
    if found.non_monotone and found.high is not None and _is_new(trials, found.high):
        return Request(found.high, _length(goal, spare, 1), "repeat")
    belief = believe(trials)
    request = _likely(goal, trials, found, spare, belief) if belief else _bisection(goal, trials, found, spare)
    if request is None and found.high is not None and _is_surprise(trials, found.high):
        return Request(found.high, _length(goal, spare, 1), "repeat")
    return request


def _likely(goal: Goal, trials: Sequence[Trial], found: Bracket, spare: float, belief: Belief) -> Request | None:
    """A trial that will probably decide, at the level that is expected to narrow the interval the most."""
    levels = [trial.level for trial in trials]
    low = found.low or min(*levels, belief.median) / RAMP**4
    high = found.high or max(*levels, belief.median) * RAMP
    if high / low <= 1 + goal.precision:
        return None
    seconds = max(spare * _PART, goal.telling)
    shorter = max(_FAILING * goal.telling, goal.shortest)
    below, above = _independent(trials, seconds)[0], _independent(trials, shorter)[1]
    failing = lowest_to_fail(belief, low, high, above, _SURE if found.high is None else _LIKELY)
    holding = highest_to_hold(belief, low, high, below, _SURE if found.low is None else _LIKELY)
    is_bounded = found.low is not None and found.high is not None
    # a failure comes first: it shows soon, and says much about where the capacity is
    is_to_fail = failing[1] * _SOONER > holding[1] if is_bounded else found.high is None
    level, gain = failing if is_to_fail else holding
    level = _level(goal, level)
    if not low < level < high or (is_bounded and gain < goal.precision):
        return None
    return Request(level, min(shorter if is_to_fail else seconds, spare), "bisect")


def _independent(trials: Sequence[Trial], seconds: float) -> tuple[float, float]:
    """How many independent requests a trial of this length is worth, below the capacity and above it, by those so far."""
    known = [trial for trial in trials if trial.independent]
    calm = [
        (trial.independent or 0.0) / trial.seconds for trial in known if trial.excess is not None and trial.excess < 1
    ]
    late = [(trial.independent or 0.0) / trial.seconds for trial in known if trial.excess is None or trial.excess >= 1]
    return seconds * statistics.median(calm or late or [1.0]), seconds * statistics.median(late or calm or [1.0])


def _is_doubtful(trial: Trial) -> bool:
    """Whether a trial saw more violations than allowed."""
    return trial.excess is not None and trial.excess >= 1


def _bisection(goal: Goal, trials: Sequence[Trial], found: Bracket, spare: float) -> Request | None:
    """A trial in the middle of the wider gap; an undecided trial shows nothing, so there are gaps on both sides of it."""
    if found.high is None:
        return _up(goal, trials)
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
    return Request(found.low, min(left, 2 * LONGER * goal.telling), "confirm")


# --- levels and lengths ----------------------------------------------------------------------------------------------


def _level(goal: Goal, level: float) -> float:
    return float(max(round(level), 1)) if goal.whole else float(f"{level:.4g}")


def _scout(goal: Goal) -> float:
    return max(min(_SCOUT * goal.budget, goal.telling / 2), goal.shortest)


def _length(goal: Goal, spare: float, trials: int) -> float:
    """The maximum length of a trial, if so many are still to come. Most end earlier, which leaves more for those after them."""
    return min(max(1.5 * spare / max(trials, 1), goal.telling), spare)


# --- what the trials say ---------------------------------------------------------------------------------------------


def _verdicts(trials: Sequence[Trial]) -> dict[float, Status]:
    """The verdict on each level: the latest counts. An undecided confirmation takes nothing back if all trials of its level together
    show that it holds."""
    verdicts: dict[float, Status] = {}
    for index, trial in enumerate(trials):
        is_good = trial.purpose == "confirm" and _hold_together(trials[: index + 1], trial.level)
        if trial.status != "undecided" or not is_good:
            verdicts[trial.level] = trial.status
    return verdicts


def _hold_together(trials: Sequence[Trial], level: float) -> bool:
    """Whether the trials of a level, of which the last is undecided, together show that it holds."""
    known = [trial for trial in trials if trial.level == level]
    last = known[-1]
    if last.excess is None or last.excess >= _GOOD or not last.allowed:
        return False
    counted = [(trial.independent or 0.0, trial.excess or 0.0) for trial in known]
    total = sum(n for n, _ in counted)
    return is_below(sum(n * excess for n, excess in counted) * last.allowed, total, last.allowed) if total else False


def _is_scout(trial: Trial) -> bool:
    """Whether a trial shows nothing, but gave no reason for doubt either."""
    return trial.purpose == "ramp" and trial.status == "undecided" and trial.excess is not None and trial.excess < 1


def _is_new(trials: Sequence[Trial], level: float) -> bool:
    return sum(trial.level == level for trial in trials) == 1


def _is_surprise(trials: Sequence[Trial], level: float) -> bool:
    """Whether a level failed once, and every trial after that held."""
    first = next(index for index, trial in enumerate(trials) if trial.level == level)
    later = trials[first + 1 :]
    return _is_new(trials, level) and bool(later) and all(trial.status == "holds" for trial in later)


def _estimate(trials: Sequence[Trial], low: float | None, high: float | None) -> float | None:
    """Where the capacity probably is within the interval, by the violations of all trials; its middle if none were counted."""
    if low is None or high is None:
        return None
    belief = believe(trials)
    return min(max(belief.median, low), high) if belief else math.sqrt(low * high)
