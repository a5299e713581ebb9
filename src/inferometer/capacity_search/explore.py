"""The first part of a search: a few short closed loops, which show the curve of throughput against requests in flight.

A closed loop cannot be overloaded: it settles within one or two responses, at any level. So a handful of short levels find the highest
throughput and the number of requests in flight at which the objectives break, where an open loop would have to creep up to a rate that
it must not exceed. What they show becomes a guess of the capacity (`Guess`), and open-loop trials go there at once.

1. Up by FAR while throughput grows in proportion, and by NEAR when it does not, until a level breaks an objective, or throughput no longer grows.
2. Down to one request in flight, if the first level breaks already. What broke before the first level that is fine is tried again: the
   server may have been cold.
3. Between the last level that is fine and the first that is not, until throughput is the same on both sides of the gap.
"""

import math
from collections.abc import Sequence

import msgspec

from inferometer.capacity_search.trials import Goal, Request, Trial, explored, probed

FAR, NEAR = 4, 3
_LINEAR = 0.85
"""Throughput that grew by at least this part of what requests in flight did has not met a limit yet."""
_FLAT = 1.08
"""Throughput that grew by less than this has reached its ceiling."""
_SAME = 1.15
"""Rates this close to each other need no further level between them."""
_MOST = 2048
"""Requests in flight: more than any server handles at a time, and what a client process handles well."""
_BETWEEN = 3
"""Levels between the last that is fine and the first that is not."""
_PART, _LONGEST = 0.35, 0.07
"""Share of the budget for exploring, and for one level."""
_RESPONSES, _SHORTEST = 3.0, 4.0
"""A level lasts this many times as long as a response takes, and at least this many seconds."""
_REPEATS = 2
"""A level at which the server was still warming up is repeated this often."""
_COLD = 0.25
"""Share of the budget after which a server that breaks an objective with one request in flight is not cold, but too slow."""
_SPREAD, _UNKNOWN_SPREAD = 0.18, 0.3
"""Standard deviation of the logarithm of the capacity around the guess; the second if no level broke an objective and throughput still grew."""
_BURSTS = 0.8
"""An open loop whose mean number in flight is n has n + _BURSTS x sqrt(n) for a good part of the time."""
_DISTURBED = 1.2
"""Open loops that serve this many times the highest throughput of the closed loops show that something disturbed these."""
_LEAST_SPREAD = 0.05
"""Of the highest throughput, in a few short levels."""
_SLOPES = 6.0, 40.0
"""The violations of a queue grow with rate x (limit on waiting), within these bounds."""


class Guess(msgspec.Struct, frozen=True):
    """Where the capacity probably is, by the closed loops alone."""

    level: float
    spread: float
    """Standard deviation of its logarithm."""
    ceiling: float | None = None
    """The level that corresponds to the highest throughput; None if throughput still grew."""
    ceiling_spread: float = 0.05
    """Standard deviation of its logarithm."""
    slack: float = 0.0
    """Seconds that a request may wait, if a queue is what limits the server; 0 if its responses become too slow before there is one."""
    slope: float = 14.0
    """How fast violations grow around the capacity: the derivative of their log-odds by the logarithm of the level."""


def following(goal: Goal, trials: Sequence[Trial]) -> Request | None:
    """The next closed loop; None when the curve is known well enough."""
    known = explored(trials)
    if not known:
        return _request(goal, known, goal.explore_from)
    if sum(trial.seconds for trial in known[_first_fine(known) or 0 :]) > _PART * goal.budget:
        return None
    level = _repeated(goal, known) or _next_level(goal, curve(trials))
    return None if level is None else _request(goal, known, level)


def curve(trials: Sequence[Trial]) -> list[Trial]:
    """The latest trial of each number of requests in flight, in ascending order."""
    latest = {trial.level: trial for trial in explored(trials)}
    return [latest[level] for level in sorted(latest)]


def breaks(trial: Trial) -> bool:
    """Whether a level of the curve breaks an objective, by what was measured, without confidence."""
    return trial.status == "fails"


def is_too_slow(trials: Sequence[Trial]) -> bool:
    """Whether one request at a time breaks an objective: no level holds."""
    points = curve(trials)
    return bool(points) and points[0].level == 1 and breaks(points[0])


def guess(goal: Goal, trials: Sequence[Trial]) -> Guess | None:
    """What the curve says about the capacity; None if nothing was explored, or if one request at a time is too many."""
    points = [point for point in curve(trials) if point.rate]
    fine = _fine(points)
    if not fine:
        return None
    bad = points[len(fine) :]
    best, best_spread = _ceiling([*points, *(trial for trial in trials if trial.is_overloaded and trial.rate)])
    is_bounded = bool(bad) or _is_flat(points)
    if (served := _served(trials)) > _DISTURBED * best:
        return Guess(goal.level_of(served, served * (fine[-1].mean_e2e or goal.unloaded)), _UNKNOWN_SPREAD)
    base, in_flight = _break_point(fine[-1], bad[0] if bad else None)
    if goal.by == "concurrency":
        return Guess(in_flight, _SPREAD if bad else _UNKNOWN_SPREAD)
    queues = not math.isinf(goal.slack) and base > best / _SAME
    rate = base * (_share_of_ceiling(goal, base) if queues else 1 / (1 + _BURSTS / math.sqrt(in_flight)))
    level = goal.level_of(rate, rate * goal.unloaded if goal.by == "users" else in_flight)
    ceiling = goal.level_of(best, best * (fine[-1].mean_e2e or goal.unloaded)) if is_bounded else None
    slope = min(max(base * goal.slack, _SLOPES[0]), _SLOPES[1]) if queues else Guess(0, 0).slope
    return Guess(
        level, _SPREAD if is_bounded else _UNKNOWN_SPREAD, ceiling, best_spread, goal.slack if queues else 0.0, slope
    )


# --- the steps -------------------------------------------------------------------------------------------------------


def _repeated(goal: Goal, known: Sequence[Trial]) -> int | None:
    """A level that breaks an objective, perhaps only because the server was cold; or one that was too short to tell."""
    last, first_fine = known[-1], _first_fine(known)
    if first_fine is None and last.level == 1:
        return 1 if sum(trial.seconds for trial in known) < _COLD * goal.budget else None
    if last.status != "holds":
        times = sum(trial.level == last.level for trial in known)
        return int(last.level) if (last.is_warming or not breaks(last)) and times <= _REPEATS else None
    later = {trial.level for trial in known[first_fine:]}
    return min((int(trial.level) for trial in known[:first_fine] if trial.level not in later), default=None)


def _first_fine(known: Sequence[Trial]) -> int | None:
    """The number of the first trial that breaks no objective."""
    return next((number for number, trial in enumerate(known) if trial.status == "holds"), None)


def _next_level(goal: Goal, points: list[Trial]) -> int | None:
    fine = _fine(points)
    if not fine:
        lowest = int(points[0].level)
        return None if lowest == 1 else max(lowest // NEAR, 1)
    top = fine[-1]
    if len(fine) == len(points):
        if top.level >= _MOST or _is_flat(points):
            return None
        factor = FAR if _is_linear(goal, points) else NEAR
        return min(int(top.level) * factor, _MOST)
    first_bad = points[len(fine)]
    between = [point for point in points if goal.explore_from < point.level < points[-1].level]
    rates = [point.rate or 0.0 for point in points[len(fine) - 1 :]]
    is_wide = max(rates) > _SAME * (top.rate or 0.0) or goal.by == "concurrency"
    middle = round(math.sqrt(top.level * first_bad.level))
    if not is_wide or len(between) >= _BETWEEN or not top.level < middle < first_bad.level:
        return None
    return middle


def _request(goal: Goal, known: Sequence[Trial], level: int) -> Request:
    """A level lasts for a few responses; their time is at most what it would be if throughput did not grow any more."""
    expected = goal.unloaded
    if below := [trial for trial in known if trial.residence and trial.level <= level]:
        nearest = max(below, key=lambda trial: trial.level)
        slowest = (nearest.residence or 0.0) * level / nearest.level
        expected = max(math.sqrt((nearest.residence or 0.0) * slowest), goal.unloaded)
    unknown = sum(trial.level == level and trial.status == "undecided" for trial in known)
    longest = max(_LONGEST * goal.budget, 1.5 * goal.unloaded) * 2**unknown
    expected *= 2**unknown
    return Request(float(level), min(max(_RESPONSES * expected, _SHORTEST), longest), "explore")


# --- the curve -------------------------------------------------------------------------------------------------------


def _fine(points: Sequence[Trial]) -> list[Trial]:
    """The points below the first that breaks an objective."""
    first = next((index for index, point in enumerate(points) if point.status != "holds"), len(points))
    return list(points[:first])


def _is_linear(goal: Goal, points: Sequence[Trial]) -> bool:
    top = points[-1]
    before, level = (points[-2].rate, points[-2].level) if len(points) > 1 else (1 / goal.unloaded, 1.0)
    return bool(before and top.rate) and (top.rate or 0.0) / (before or 1.0) >= _LINEAR * top.level / level


def _is_flat(points: Sequence[Trial]) -> bool:
    """Whether the last step did not raise the throughput."""
    if len(points) < 2 or points[-1].level < 1.5 * points[-2].level:
        return False
    return (points[-1].rate or 0.0) < _FLAT * (points[-2].rate or 0.0)


def _ceiling(points: Sequence[Trial]) -> tuple[float, float]:
    """The highest throughput, and the standard deviation of its logarithm: the mean of all that are close to the highest, by their length."""
    highest = max((point.rate or 0.0) * (1 - point.rate_error) for point in points)
    near = [point for point in points if (point.rate or 0.0) * (1 + point.rate_error) >= highest]
    weights = [point.rate_error**-2 for point in near]
    rate = math.exp(sum(w * math.log(point.rate or 1.0) for w, point in zip(weights, near, strict=True)) / sum(weights))
    return rate, math.hypot(_LEAST_SPREAD, sum(weights) ** -0.5)


def _served(trials: Sequence[Trial]) -> float:
    """The highest rate that a server certainly served in open loops that hold."""
    rates = [(trial.rate or 0.0) * (1 - trial.rate_error) for trial in probed(trials) if trial.status == "holds"]
    return max(rates, default=0.0)


def _break_point(fine: Trial, bad: Trial | None) -> tuple[float, float]:
    """The rate and the number of requests in flight at which the objectives break: interpolated between two points by how far the
    worst objective is from its limit, on log scales."""
    rate, level = fine.rate or 0.0, fine.level
    if bad is None:
        return rate, level
    most = max(bad.rate or 0.0, rate)
    below, above = max(fine.excess or 0.0, 0.05), min(max(bad.excess or 1.0, 1.05), 20.0)
    part = math.log(1 / below) / math.log(above / below) if below < 1 else 0.0
    return rate * (most / rate) ** part, level * (bad.level / level) ** part


def _share_of_ceiling(goal: Goal, rate: float) -> float:
    """How much of the rate of a closed loop an open loop probably holds, because its arrivals are random.

    In an M/M/1 queue with service rate m, P(wait > t) is about exp(-(m - r) t) at the rate r; so r / m = 1 - ln(1 / allowed) / (m t). The form
    used here has the same limit for large m t, and does not become negative for small.
    """
    room = 1.5 * rate * goal.slack / math.log(1 / goal.allowed)
    return room / (1 + room)
