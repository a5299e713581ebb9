"""Which level to try next, and the interval so far.

The search has no state but its history: `following` maps the trials so far to the next request for a trial, and `bracket` maps them to
the interval. Neither measures anything.

1. Explore: a few short closed loops (explore.py), which end in a guess of the capacity.
2. Narrow: from the guess and the violations so far, model.py estimates where the capacity is. The next trial is at the highest level that
   will probably hold, or the lowest that will probably fail, whichever is expected to narrow the interval more; until the interval is
   as narrow as `precision`, or a trial is not expected to narrow it by that much.
3. Repeat: a level that failed below one that held is tried again.
4. Confirm: what is left of the budget goes to a fresh trial of the highest level that holds.

`budget` limits the seconds of all trials together. When it is spent, the interval is what the trials have shown. An end that no trial
has shown is where the model puts it, and says so (`Bracket.low_basis`).
"""

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from inferometer.capacity_search import explore
from inferometer.capacity_search.explore import Guess, guess
from inferometer.capacity_search.model import Belief, believe
from inferometer.capacity_search.trials import Basis, Bracket, Goal, Request, Trial, explored, probed

_LIKELY, _SURE = 0.6, 0.75
"""The probability with which a trial should decide; and the first one on each side, which everything else builds on."""
_PART = 0.25
"""Share of the budget that one trial may take."""
_ENOUGH = 1.5
"""A trial is as long as this many times the independent requests that it needs take to arrive."""
_RESPONSES, _USUAL = 3.0, 0.19
"""A trial lasts this many times as long as a response takes, and at least this share of the budget."""
_SHORTER = 0.6
"""The last trial may be shortened to this part of what it should take."""
_STEP = 1.15
"""The first step beyond levels that all hold, or all fail."""
_APART = 0.03
"""Trials are this far apart, on the log scale: one at about the same level would hardly say more."""
_OF_REST = 0.25
"""A trial takes at least this share of what is left of the budget."""
_NARROW = 1.25
"""Once the interval is as narrow as this, its lower end is confirmed before anything else."""
_WAITS = 4.0
"""A queue that grows by a quarter of the arrivals reaches the limit on waiting within this many times the limit."""
_FAILING = 0.75
"""A trial that is to fail takes this part of the time that one needs to hold."""
_CAREFUL = 0.1
"""The probability that the capacity is beyond an end that only the model puts there."""
_ABOVE = 2.0
"""Standard deviations above the highest throughput at which a level fails without a trial."""
_NEARLY = 0.97
"""Part of the highest throughput from which on growth is an overload."""
_MOODS = 1.0, 2.5
"""Times that a queue forgets its past during a trial, from which on the trial's verdict is likely, and sure."""
_WEIGHTS = {True: 3, False: 1}
"""Of a trial that is sure, and of one that is not, when trials contradict each other."""


def following(goal: Goal, trials: Sequence[Trial]) -> Request | None:
    """The next trial; None when the search is over."""
    left = goal.budget - sum(trial.seconds for trial in trials) - goal.overhead
    if (request := explore.following(goal, trials)) is not None and request.seconds <= left:
        return request
    if explore.is_too_slow(trials):
        return None
    found, curve = bracket(goal, trials), guess(goal, trials)
    belief = believe(goal, probed(trials), curve)
    if belief is None:
        return None
    return _next(goal, trials, found, _evidence(goal, trials, curve, belief), belief, left)


def bracket(goal: Goal, trials: Sequence[Trial]) -> Bracket:
    """The interval that the trials have shown, with the model's ends where they have shown none."""
    if explore.is_too_slow(trials):
        slowest = explore.curve(trials)[0]
        return Bracket(None, goal.level_of(slowest.rate or 0.0, 1.0) or None, None)
    curve = guess(goal, trials)
    belief = believe(goal, probed(trials), curve)
    if belief is None:
        return Bracket(None, None, None)
    low, high, is_monotone = _ends(_evidence(goal, trials, curve, belief))
    return _completed(goal, trials, low, high, is_monotone, belief, curve)


# --- the interval ----------------------------------------------------------------------------------------------------


def _evidence(goal: Goal, trials: Sequence[Trial], curve: Guess | None, belief: Belief) -> list[Trial]:
    """The trials at levels that the user raises, as far as they are credible; and, as one that fails, the highest throughput of the closed
    loops: no server holds more."""
    known = [_believed(_credible(trial, curve), belief) for trial in probed(trials)]
    return known


def _credible(trial: Trial, curve: Guess | None) -> Trial:
    """A trial of a server that is limited by its queue, with what its length allows to say.

    A trial that is not many times as long as the queue remembers its past has seen one mood of it; unless it only says what theory expects
    of that level (`Guess.level`) anyway. And a number in flight that grows, close to the highest throughput, is an overload whose
    requests are not late yet.
    """
    is_high = curve is None or not curve.ceiling or trial.level > _NEARLY * curve.ceiling
    if trial.is_growing and is_high and trial.status != "fails":
        return msgspec.structs.replace(trial, status="fails", is_sure=False)
    return trial


def _believed(trial: Trial, belief: Belief) -> Trial:
    """A verdict that is only likely shows nothing if all trials together make the opposite more likely: one of several was lucky."""
    is_beyond = (trial.level > belief.quantile(0.5)) == (trial.status == "holds")
    return msgspec.structs.replace(trial, status="undecided") if is_beyond and not trial.is_sure else trial


def _ends(trials: Sequence[Trial]) -> tuple[Trial | None, Trial | None, bool]:
    """The highest trial that holds and the lowest that fails, on the two sides of the split that most of the evidence agrees with; and
    whether all of it does. A trial that held counts for all lower levels, and one that failed for all higher ones."""
    decided = sorted((trial for trial in trials if trial.status != "undecided"), key=lambda trial: trial.level)
    levels = sorted({trial.level for trial in decided})

    def agreeing(split: float) -> int:
        return sum(_WEIGHTS[trial.is_sure] for trial in decided if (trial.status == "holds") == (trial.level <= split))

    split = max([0.0, *levels], key=lambda level: (agreeing(level), -level))
    below = [trial for trial in decided if trial.level <= split and trial.status == "holds"]
    above = [trial for trial in decided if trial.level > split and trial.status == "fails"]
    low = max(below, key=lambda trial: (trial.level, trial.is_sure), default=None)
    high = min(above, key=lambda trial: (trial.level, not trial.is_sure), default=None)
    return low, high, agreeing(split) == sum(_WEIGHTS[trial.is_sure] for trial in decided)


def _completed(
    goal: Goal,
    trials: Sequence[Trial],
    low: Trial | None,
    high: Trial | None,
    is_monotone: bool,
    belief: Belief,
    curve: Guess | None,
) -> Bracket:
    """The interval with the ends that only the model has."""
    below = low.level if low else _outer(goal, belief.quantile(_CAREFUL), high.level if high else None, -1)
    above = high.level if high else _outer(goal, belief.quantile(1 - _CAREFUL), below, 1)
    held = [trial for trial in probed(trials) if low and trial.level >= low.level and trial.status == "holds"]
    return Bracket(
        low=below,
        high=above,
        estimate=goal.rounded(min(max(belief.quantile(0.5), below), above)),
        low_basis=_basis(low),
        high_basis=_basis(high),
        confirmed=len(held) > 1 and any(trial.is_sure for trial in held),
        non_monotone=not is_monotone,
    )


def _outer(goal: Goal, level: float, other: float | None, side: int) -> float:
    """The model's end, at least `precision` away from the other end."""
    if other is not None:
        nearest = other * (1 + goal.precision) ** side
        level = max(level, nearest) if side > 0 else min(level, nearest)
    return goal.rounded(level)


def _basis(trial: Trial | None) -> Basis:
    return "estimated" if trial is None else "shown" if trial.is_sure else "likely"


# --- the next trial --------------------------------------------------------------------------------------------------


def _next(
    goal: Goal, trials: Sequence[Trial], found: Bracket, known: Sequence[Trial], belief: Belief, left: float
) -> Request | None:
    if not probed(trials) and goal.start:
        return _trial(goal, trials, goal.start, left, "narrow")
    low, high, _ = _ends(known)
    if found.non_monotone and (doubtful := _contradicted(known, found)) is not None:
        return _trial(goal, trials, doubtful, left, "repeat")
    confirmation = _confirmation(goal, trials, low, left)
    if confirmation is not None and low and high and high.level / low.level <= _NARROW:
        return confirmation
    return _narrower(goal, trials, low, high, belief, left) or confirmation


def _narrower(
    goal: Goal, trials: Sequence[Trial], low: Trial | None, high: Trial | None, belief: Belief, left: float
) -> Request | None:
    """A trial in the widest gap between what holds and what fails, or beyond what was tried if nothing holds or fails yet."""
    tried = sorted(
        trial.level
        for trial in probed(trials)
        if (low is None or trial.level >= low.level) and (high is None or trial.level <= high.level)
    )
    if low is None:
        level = min([belief.quantile(0.4), *(one / _STEP for one in [*tried, *([high.level] if high else [])][:1])])
    elif high is None:
        level = max([belief.quantile(0.6), max(tried) * _STEP])
    else:
        marks = sorted({low.level, *tried, high.level})
        below, above = max(pairwise(marks), key=lambda gap: gap[1] / gap[0])
        if above / below <= 1 + max(goal.precision, _APART):
            return None
        level = math.sqrt(below * above)
    return _trial(goal, trials, level, left, "narrow")


def _contradicted(known: Sequence[Trial], found: Bracket) -> float | None:
    """A level below the lower end that failed once, or one above the upper end that held once."""
    levels = [trial.level for trial in known]
    for trial in known:
        is_below = found.low is not None and trial.level <= found.low and trial.status == "fails"
        is_above = found.high is not None and trial.level >= found.high and trial.status == "holds"
        if (is_below or is_above) and levels.count(trial.level) == 1:
            return trial.level
    return None


def _confirmation(goal: Goal, trials: Sequence[Trial], low: Trial | None, left: float) -> Request | None:
    """A fresh trial of the highest level that holds, which may be twice as long."""
    if low is None or any(trial.purpose == "confirm" and trial.level == low.level for trial in trials):
        return None
    request = _trial(goal, trials, low.level, left, "confirm")
    return request and Request(request.level, min(2 * request.seconds, left), "confirm")


def _trial(
    goal: Goal, trials: Sequence[Trial], level: float, left: float, purpose: str, part: float = 1.0
) -> Request | None:
    """A trial as long as it needs; None if too little of the budget is left for one that could decide."""
    mean = _e2e(goal, trials)
    rate = {"rate": level, "concurrency": level / mean, "users": level / (mean + goal.think)}[goal.by]
    queue = 0.0 if math.isinf(goal.slack) else _WAITS * goal.slack
    clustered = max([_ENOUGH * goal.needed / rate, *(goal.needed / pace for pace in _paces(trials))])
    settled = max(_RESPONSES * mean, _USUAL * goal.budget, 1.5 * (mean + goal.think) if goal.by == "users" else 0.0)
    longest = max(_PART * goal.budget, settled)
    wanted = min(max(settled, queue, clustered, _OF_REST * left) * part, longest)
    if _SHORTER * min(wanted, settled) > left:
        return None
    return Request(goal.rounded(level), min(wanted, left), purpose)  # type: ignore[arg-type]


def _paces(trials: Sequence[Trial]) -> list[float]:
    """Independent requests per second, by the trials that saw violations."""
    known = [trial.independent / trial.seconds for trial in probed(trials) if trial.excess and trial.independent]
    return [statistics.median(known)] if known else []


def _e2e(goal: Goal, trials: Sequence[Trial]) -> float:
    """How long a response takes near the capacity: as in the latest trial that was fine."""
    fine = [trial.residence for trial in trials if trial.residence and trial.status != "fails"]
    return max(fine[-1] if fine else goal.unloaded, goal.unloaded)


def _independent(goal: Goal, trials: Sequence[Trial]) -> float:
    """How many independent requests a trial is probably worth, by those so far."""
    known = [trial.independent for trial in probed(trials) if trial.independent]
    return max(statistics.median(known) if known else _ENOUGH * goal.needed, 1.0)


__all__ = ["Bracket", "Goal", "Request", "Trial", "bracket", "explored", "following"]
