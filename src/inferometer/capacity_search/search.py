"""Which level to try next, and the interval so far.

The search has no state but its history: `following` maps the trials so far to the next request for a trial, and `bracket` maps them to
the interval. Neither measures anything.

1. Explore: a few short closed loops (explore.py), which end in a guess of the capacity.
2. Narrow: the first trials are at the levels that model.py thinks will probably hold, and fail. From then on, the next one is in the
   middle of the widest gap between the highest level that holds and the lowest that fails.
3. Repeat: a level that failed below one that held is tried again, and the other way round. So is the upper end if the server collapsed
   there, and nowhere else: if it holds the second time, the first is forgotten.
4. Confirm: a fresh trial of the highest level that holds, for up to twice as long.

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
from inferometer.capacity_search.trials import Basis, Bracket, Goal, Purpose, Request, Trial, probed

_RESPONSES, _USUAL, _MOST, _OF_REST = 3.0, 0.19, 0.25, 0.25
"""A trial lasts this many times as long as a response takes; at least this share of the budget, at most the next; and at least the last
share of what is left of it."""
_WAITS = 4.0
"""A queue that grows by a quarter of the arrivals reaches the limit on waiting within this many times the limit."""
_ENOUGH = 1.5
"""A trial is as long as this many times the independent requests that it needs take to arrive."""
_SHORTER = 0.6
"""The last trial may be shortened to this part of what it should take."""
_PROBABLE = 0.4
"""The first level to hold, and to fail, has the capacity on the wrong side of it with this probability."""
_STEP = 1.15
"""The first step beyond levels that all hold, or all fail."""
_CALM = 0.25
"""A level that holds with less than this part of the violations that are allowed is far below the capacity."""
_APART = 0.03
"""Levels closer than this, on the log scale, are hardly worth a trial between them."""
_NARROW = 1.25
"""Once the interval is as narrow as this, its lower end is confirmed before anything else."""
_CAREFUL = 0.05
"""The probability that the capacity is beyond an end that only the model puts there."""
_DISPUTED = 0.25
"""The probability that the capacity is beyond an end that a trial has shown, from which on the end is moved."""
_NEARLY = 0.97
"""Part of the highest throughput from which on growth of the number in flight is an overload whose requests are not late yet."""
_COLLAPSED = 0.8
"""A trial below the highest throughput that failed while the server served less than this part of what arrived: something disturbed it,
or the server collapses under a burst."""
_WEIGHTS = {True: 3, False: 1}
"""Of a trial that is sure, and of one that is not, when trials contradict each other."""


def following(goal: Goal, trials: Sequence[Trial]) -> Request | None:
    """The next trial; None when the search is over."""
    left = goal.budget - sum(trial.seconds for trial in trials) - goal.overhead
    if (request := explore.following(goal, trials)) is not None and request.seconds <= left:
        return request
    if explore.is_too_slow(trials):
        return None
    curve = guess(goal, trials)
    trials = _corrected(goal, trials, curve)
    belief = believe(goal, probed(trials), curve)
    return None if belief is None else _next(goal, trials, _evidence(goal, trials, belief), belief, curve, left)


def bracket(goal: Goal, trials: Sequence[Trial]) -> Bracket:
    """The interval that the trials have shown, with the model's ends where they have shown none."""
    if explore.is_too_slow(trials):
        slowest = explore.curve(trials)[0]
        return Bracket(None, goal.level_of(slowest.rate or 0.0, 1.0) or None, None)
    curve = guess(goal, trials)
    trials = _corrected(goal, trials, curve)
    belief = believe(goal, probed(trials), curve)
    if belief is None:
        return Bracket(None, None, None)
    known = _evidence(goal, trials, belief)
    low, high = _ends(known)
    if low is None and goal.whole and high and high.level <= 1:
        return Bracket(None, high.level, None)
    below = (
        _disputed(goal, belief, low, -1)
        if low
        else _outer(goal, belief.quantile(_CAREFUL), high.level if high else None, -1)
    )
    above = _disputed(goal, belief, high, 1) if high else _outer(goal, belief.quantile(1 - _CAREFUL), below, 1)
    held = [trial for trial in known if low and trial.level >= low.level and trial.status == "holds"]
    return Bracket(
        low=below,
        high=above,
        estimate=goal.rounded(min(max(belief.quantile(0.5), below), above)),
        low_basis=_basis(low),
        high_basis=_basis(high),
        confirmed=len(held) > 1 and any(trial.is_sure for trial in held),
        non_monotone=bool(_contradicting(known, low, high)),
    )


# --- the interval ----------------------------------------------------------------------------------------------------


def _corrected(goal: Goal, trials: Sequence[Trial], curve: Guess | None) -> list[Trial]:
    """The trials as the others show them.

    A collapse at a level that held in another trial is forgotten. A number in flight that grows at a level close to the highest
    throughput is an overload whose requests are not late yet, and so is an undecided trial that served fewer requests than arrived there.
    (Closed loops whose requests start together may serve more than any open loop can, so what an overload served counts as well.)
    """
    held = {trial.level for trial in probed(trials) if trial.status == "holds"}
    served = [trial.rate for trial in probed(trials) if trial.is_overloaded and trial.rate and goal.by == "rate"]
    ceilings = [curve.ceiling] if curve and curve.ceiling else []
    highest = min([*ceilings, max(served)] if served else ceilings, default=0.0)

    def corrected(trial: Trial) -> Trial:
        is_growing = trial.is_growing or (trial.status == "undecided" and served and _serves_less(goal, trial))
        if not is_growing or trial.status == "fails" or trial.level <= _NEARLY * highest:
            return trial
        return msgspec.structs.replace(trial, status="fails", is_sure=False, is_overloaded=True)

    return [corrected(trial) for trial in trials if trial.level not in held or not _has_collapsed(goal, trial, curve)]


def _has_collapsed(goal: Goal, trial: Trial, curve: Guess | None) -> bool:
    is_low = curve is not None and trial.level < _NEARLY * (curve.ceiling or 0.0)
    is_overloaded = trial.is_overloaded and goal.by == "rate" and trial.purpose != "explore"
    return is_low and is_overloaded and (trial.rate or 0.0) < _COLLAPSED * trial.level


def _serves_less(goal: Goal, trial: Trial) -> bool:
    """Whether the server served fewer requests than arrived."""
    return goal.by == "rate" and bool(trial.rate) and (trial.rate or 0.0) * (1 + trial.rate_error) < trial.level


def _evidence(goal: Goal, trials: Sequence[Trial], belief: Belief) -> list[Trial]:
    """The trials of levels that the user raises, with the verdicts that all trials together leave them.

    A level that fails while the server is still warming up shows nothing. And a verdict that is only likely shows nothing if all trials
    together make the opposite more likely.
    """
    middle = belief.quantile(0.5)

    def verdict(trial: Trial) -> Trial:
        if trial.status == "holds" and _serves_less(goal, trial):
            trial = msgspec.structs.replace(trial, is_sure=False)
        if trial.is_warming and trial.status == "fails":
            return msgspec.structs.replace(trial, status="undecided")
        is_lucky = (trial.level > middle) == (trial.status == "holds")
        return msgspec.structs.replace(trial, status="undecided") if is_lucky and not trial.is_sure else trial

    return [verdict(trial) for trial in probed(trials)]


def _ends(known: Sequence[Trial]) -> tuple[Trial | None, Trial | None]:
    """The highest trial that holds and the lowest that fails, on the two sides of the split that most of the evidence agrees with. A trial
    that held counts for all lower levels, and one that failed for all higher ones."""
    decided = [trial for trial in known if trial.status != "undecided"]

    def agreeing(split: float) -> int:
        return sum(_WEIGHTS[one.is_sure] for one in decided if (one.status == "holds") == (one.level <= split))

    split = max([0.0, *(trial.level for trial in decided)], key=lambda level: (agreeing(level), -level))
    below = [trial for trial in decided if trial.level <= split and trial.status == "holds"]
    above = [trial for trial in decided if trial.level > split and trial.status == "fails"]
    low = max(below, key=lambda trial: (trial.level, trial.is_sure), default=None)
    high = min(above, key=lambda trial: (trial.level, not trial.is_sure), default=None)
    return low, high


def _contradicting(known: Sequence[Trial], low: Trial | None, high: Trial | None) -> list[float]:
    """Levels that failed although they are at or below the lower end, or held although they are at or above the upper end."""
    return [
        trial.level
        for trial in known
        if (low is not None and trial.level <= low.level and trial.status == "fails")
        or (high is not None and trial.level >= high.level and trial.status == "holds")
    ]


def _outer(goal: Goal, level: float, other: float | None, side: int) -> float:
    """The model's end, at least `precision`, and one if levels are whole, away from the other end."""
    if other is not None:
        nearest = other * (1 + goal.precision) ** side
        if goal.whole:
            nearest = max(nearest, other + 1) if side > 0 else min(nearest, other - 1)
        level = max(level, nearest) if side > 0 else min(level, nearest)
    return goal.rounded(level)


def _disputed(goal: Goal, belief: Belief, end: Trial, side: int) -> float:
    """The level of an end that a trial has shown, or farther out if all trials together dispute it: a probe close to saturation may be over before
    its queue is as long as it gets."""
    if side < 0:
        return goal.rounded(min(end.level, max(belief.quantile(_DISPUTED), end.level / _STEP)))
    return goal.rounded(max(end.level, min(belief.quantile(1 - _DISPUTED), end.level * _STEP)))


def _basis(trial: Trial | None) -> Basis:
    return "estimated" if trial is None else "shown" if trial.is_sure else "likely"


# --- the next trial --------------------------------------------------------------------------------------------------


def _next(
    goal: Goal, trials: Sequence[Trial], known: Sequence[Trial], belief: Belief, curve: Guess | None, left: float
) -> Request | None:
    if not known and goal.start:
        return _trial(goal, trials, goal.start, left, "narrow")
    low, high = _ends(known)
    levels = [trial.level for trial in known]
    for level in _contradicting(known, low, high):
        if levels.count(level) == 1:
            return _trial(goal, trials, level, left, "repeat")
    confirmation = _confirmation(goal, trials, low, left)
    if low and high and high.level / low.level <= _NARROW:
        collapsed = [trial.level for trial in trials if _has_collapsed(goal, trial, curve)]
        if collapsed == [high.level] and levels.count(high.level) == 1:
            return _trial(goal, trials, high.level, left, "repeat") or confirmation
        if confirmation is not None:
            return confirmation
    gap = _narrower(goal, levels, low, high, belief, curve.ceiling if curve else None)
    narrower = None if gap is None else _trial(goal, trials, gap, left, "narrow")
    return narrower or confirmation


def _narrower(
    goal: Goal,
    levels: Sequence[float],
    low: Trial | None,
    high: Trial | None,
    belief: Belief,
    ceiling: float | None,
) -> float | None:
    """A level in the widest gap between what holds and what fails, or beyond what was tried if nothing holds or fails yet."""
    if low is None:
        return min([belief.quantile(_PROBABLE), *(level / _STEP for level in levels)])
    if high is None:
        middle = math.sqrt(low.level * ceiling) if ceiling and (low.excess or 0.0) < _CALM else 0.0
        return max([belief.quantile(1 - _PROBABLE), middle, *(level * _STEP for level in levels)])
    tried = sorted({low.level, high.level, *(level for level in levels if low.level <= level <= high.level)})
    below, above = max(pairwise(tried), key=lambda gap: gap[1] / gap[0])
    is_narrow = above / below <= 1 + max(goal.precision, _APART) or (goal.whole and above - below <= 1)
    return None if is_narrow else math.sqrt(below * above)


def _confirmation(goal: Goal, trials: Sequence[Trial], low: Trial | None, left: float) -> Request | None:
    if low is None or any(trial.purpose == "confirm" and trial.level == low.level for trial in trials):
        return None
    request = _trial(goal, trials, low.level, left, "confirm")
    return request and Request(request.level, min(2 * request.seconds, left), "confirm")


def _trial(goal: Goal, trials: Sequence[Trial], level: float, left: float, purpose: Purpose) -> Request | None:
    """A trial as long as it needs; None if too little of the budget is left for one that could decide."""
    takes = _e2e(goal, trials)
    rate = {"rate": level, "concurrency": level / takes, "users": level / (takes + goal.think)}[goal.by]
    queue = 0.0 if math.isinf(goal.slack) else _WAITS * goal.slack
    clustered = max([_ENOUGH * goal.needed / rate, *(goal.needed / pace for pace in _paces(trials))])
    cycle = 1.5 * (takes + goal.think) if goal.by == "users" else 0.0
    settled = max(_RESPONSES * takes, _USUAL * goal.budget, cycle)
    wanted = min(max(settled, queue, clustered, _OF_REST * left), max(_MOST * goal.budget, settled))
    if _SHORTER * min(wanted, settled) > left:
        return None
    return Request(goal.rounded(level), min(wanted, left), purpose)


def _paces(trials: Sequence[Trial]) -> list[float]:
    """Independent requests per second, by the trials that saw violations."""
    known = [trial.independent / trial.seconds for trial in probed(trials) if trial.excess and trial.independent]
    return [statistics.median(known)] if known else []


def _e2e(goal: Goal, trials: Sequence[Trial]) -> float:
    """How long a response takes near the capacity: as in the latest trial that was fine."""
    fine = [trial.residence for trial in trials if trial.residence and trial.status != "fails"]
    return max(fine[-1] if fine else goal.unloaded, goal.unloaded)
