"""The test of one probe, while it runs and when it is over.

A probe is looked at when its length has doubled, and ends as soon as a look shows that it fails. Someone who looks several times has
several chances to be wrong, so the 5 % are spent over the looks, in proportion to the time since the look before. The first part
of a probe is left out, because the queue of a drained server is empty.

Requests in flight at the end are not waited for if what they have shown suffices: the time to first token is known from the first
token on, and so is about the time per token. The others count if they are later than the limit already.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.binomial import TAIL
from inferometer.analysis.slo_result import SloResult
from inferometer.capacity_search.judgement import Look, judge
from inferometer.capacity_search.objectives import Objectives
from inferometer.capacity_search.probe_requests import Rows, longest_first, settled, with_in_flight
from inferometer.capacity_search.trials import Goal, Request, Trial
from inferometer.records import Columns, Failure, StagePlan
from inferometer.units import NS

_MOST_WARMUP = 0.4
"""Share of a probe that is left out at its start, at most."""
_FAILED = (Failure(code="failed", message=""),)
_CUT = 0.2
"""Seconds for which the responses of a probe that has shown enough are waited for."""


class ProbeTest:
    """The test of one probe, which takes at most `request.seconds`. `warmup` is the least that is left out at its start, in seconds."""

    def __init__(self, request: Request, plan: StagePlan, objectives: Objectives, warmup: float) -> None:
        self._request, self._plan, self._objectives = request, plan, objectives
        self._explores = request.purpose == "explore"
        self._warmup = min(warmup, _MOST_WARMUP * request.seconds)
        self._times = _looks(max(1.0, 2.5 * warmup), request.seconds)
        self._spend = _spending(self._times)
        self.decision: Look | None = None
        """What ended the probe; None: nothing has."""

    @property
    def patience(self) -> float:
        """Seconds to wait for responses after the last request was sent; the rest is cancelled."""
        if self.decision is not None or (self._explores and not self._objectives.needs_ends):
            return _CUT
        return max(self._objectives.patience, 1.0)

    def has_seen_enough(self, ages: NDArray[np.int64]) -> bool:
        """Whether the requests in flight need not be waited for. `ages`: how long ago they started (ns), and whether their first token
        has arrived."""
        return not self._objectives.needs_ends and bool((ages[:, 1] == 1).all())

    def is_due(self, elapsed: float) -> bool:
        """Whether it is time for the next look. The last one is `verdict`, after the last response."""
        return not self._explores and self.decision is None and len(self._times) > 1 and elapsed >= self._times[0]

    def look(self, rows: Rows, arrived: int, elapsed: float) -> Look:
        """Look at the requests that have ended, of those that have `arrived`."""
        at = self._times[0]
        while len(self._times) > 1 and elapsed >= self._times[0]:
            at = self._times.pop(0)
        now = round(elapsed * NS)
        rows = rows.copy()
        rows["failure"] = rows["failure"] != 0  # why they failed is known when the probe is over
        has_sessions = bool((rows["turn"] > 0).any())  # the ids of later turns do not tell which requests are in flight
        known, until = (
            with_in_flight(rows, arrived, now) if self._plan.open and not has_sessions else longest_first(rows, now)
        )
        found = judge(known, self._plan, self._objectives, self._spend[at], _FAILED, until, self._warmup)
        if found.status == "fails" and found.is_sure:
            self.decision = found
        return found

    def verdict(self, rows: Columns, failures: tuple[Failure, ...] = (), more: Sequence[SloResult] = ()) -> Look:
        """The verdict when the probe is over: what ended it, or else all of its requests; `more` are results for the objectives that
        only a complete probe decides."""
        rows, failures = settled(rows, failures, self._objectives)
        tail = self._spend[self._times[-1]]
        found = judge(rows, self._plan, self._objectives, tail, failures, None, self._warmup, more)
        if self._explores:
            status = "undecided" if found.excess is None else "holds" if found.excess <= 1 else "fails"
            return msgspec.structs.replace(found, status=status, is_sure=False)
        if self.decision is None:
            return found
        return msgspec.structs.replace(
            found,
            status="fails",
            is_sure=True,
            results=self.decision.results,
            is_overloaded=self.decision.is_overloaded,
        )

    def trial(self, found: Look, seconds: float, served: tuple[float | None, float]) -> Trial:
        """What the search learns from the probe, which took `seconds` with everything that belongs to it."""
        worst = found.worst
        return Trial(
            level=self._request.level,
            purpose=self._request.purpose,
            status=found.status,
            is_sure=found.is_sure,
            seconds=seconds,
            excess=found.excess,
            allowed=worst.allowed if worst is not None else None,
            independent=found.independent,
            rate=served[0],
            rate_error=served[1],
            mean_e2e=found.mean_e2e,
            residence=found.residence,
            is_overloaded=found.is_overloaded,
            is_growing=found.is_growing,
            is_warming=found.is_warming,
        )


def _looks(first: float, longest: float) -> list[float]:
    """When to look, in seconds since the start: at `first`, whenever the length has doubled, and at the end."""
    times = []
    while first < 0.75 * longest:
        times.append(first)
        first *= 2
    return [*times, longest]


def _spending(times: Sequence[float]) -> dict[float, float]:
    """How often each look may be wrong, so that all together are wrong at most in 5 %: in proportion to the time since the one before."""
    return {time: TAIL * (time - before) / times[-1] for before, time in zip([0.0, *times], times, strict=False)}


def plan_of(goal: Goal, request: Request) -> StagePlan:
    """The load of a probe: a closed loop to explore, or when requests in flight or users are raised."""
    if goal.by == "rate" and request.purpose != "explore":
        return StagePlan(type="poisson", open=True, rate=request.level, duration=request.seconds)
    return StagePlan(type="closed", open=False, concurrency=int(request.level), duration=request.seconds)
