"""Whether a probe holds or fails its objectives, judged while it runs.

A probe is looked at when its length has doubled, and ends as soon as a look decides. Someone who looks several times has several
chances to be wrong, so the 5 % are spent over the looks, in proportion to the time since the look before (for "holds", over those that
are late enough for it). A look counts violations, as analysis/slo.py does for a whole stage, among the requests that were due before
the earliest one that is still in flight. The first part is left out, because the queue of a drained server is empty.

Overload ends a probe at once, if more requests than allowed violate an objective already: in a short probe, a queue also grows for
a moment on a server that keeps up. A probe whose queue grew does not hold either.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import slo
from inferometer.analysis.binomial import TAIL
from inferometer.analysis.checks.evidence import StageEvidence
from inferometer.analysis.distributions import NO_GAPS, distributions
from inferometer.analysis.metrics import METRICS, e2e
from inferometer.analysis.overload import Overload, overload
from inferometer.analysis.percentiles import PERCENTILES
from inferometer.analysis.slo import SloResult
from inferometer.analysis.slo_expression import Slo
from inferometer.analysis.throughput import Throughput
from inferometer.capacity_search.search import LONGER, Purpose, Request, Status, Trial
from inferometer.records import MISSING, ROW, Columns, Failure, Manifest, Records, Run, StagePlan
from inferometer.units import NS

_CLEAR, _BEYOND = 0.05, 2.0
"""Growth of the number in flight, as a share of the arrivals, that is an overload. A run that lasts for minutes shows one of 2 %, but
in a few hundred requests a queue grows by more than that by chance."""
_WARMUP = 0.15
"""Share of a probe that is left out at its start."""

_CALM = 1.15
"""Requests that take at most this many times as long as without load are not slowed down by it."""
_SOONER = 1.3
"""The first look is at this many times the requests that would decide if they were independent and none violated anything."""

_QUEUE_SEEN, _QUEUE_SHOWN, _OF_BUDGET = 4, 40, 0.2
"""An overload by a share x of the capacity makes requests wait for x seconds longer every second, from 0: a limit of L seconds is
exceeded after L / x. So a probe is not looked at before 4 L, and does not hold before 40 L, when an overload by 2.5 % shows; or before
this share of the budget, if that is less."""
_PATIENT = 1.5
"""A probe is continued if it needs at most this many times the time that it has left: the projection is rough."""
_NEARLY_ALL = 0.95
_CUT = 1.0
"""Seconds for which the responses of a probe that failed are waited for."""
_GROWING = 0.05
"""A probe whose number in flight grew by more than this share of its arrivals does not hold."""

Rows = NDArray[np.void]


class ClassObjectives(msgspec.Struct, frozen=True):
    """The objectives of a traffic class, which are judged by its requests alone."""

    index: int
    """Its number in the column `class` of the rows."""
    name: str
    objectives: tuple[Slo, ...]


def looks(first: float, longest: float, telling: float) -> list[float]:
    """When to look, in seconds since the start: at `first`, whenever the length has doubled, and at the end. A probe that may hold
    from `telling` on is looked at then, and at doubling times from there."""
    times = []
    for time, end in ((first, min(telling, longest)), (max(first, telling), longest)):
        while time < 0.75 * end or (time == telling and time < end):
            times.append(time)
            time *= 2  # noqa: PLW2901
    return [*times, longest]


def spending(times: Sequence[float]) -> dict[float, float]:
    """How often each look may be wrong, so that all together are wrong at most in 5 %: in proportion to the time since the one before."""
    return {time: TAIL * (time - before) / times[-1] for before, time in zip([0.0, *times], times, strict=False)}


def needed_requests(objectives: Sequence[Slo], tail: float = TAIL) -> float:
    """How many independent requests, none of which violates anything, show that all objectives hold."""
    return math.log(tail) / math.log(1 - min(_allowed_shares(objectives), default=0.1))


def _allowed_shares(objectives: Sequence[Slo]) -> list[float]:
    """The shares of requests that may violate the objectives."""
    allowed = [
        (1000 - PERCENTILES[one.statistic]) / 1000 for one in objectives if one.kind == "metric" and is_counted(one)
    ]
    allowed += [one.threshold.value for one in objectives if one.kind == "failure_rate"]
    allowed += [1 - one.threshold.value for one in objectives if one.kind == "goodput" and one.is_share]
    return allowed


def telling_length(objectives: Sequence[Slo], budget: float, unloaded: float) -> float:
    """Seconds that a probe needs to show that a level holds."""
    return max(min(_QUEUE_SHOWN * slowest_limit(objectives), _OF_BUDGET * budget), 4 * unloaded, 2.0)


def slowest_limit(objectives: Sequence[Slo]) -> float:
    """The largest limit on how long a request may wait, in seconds."""
    limits = [
        condition.threshold.value
        for one in objectives
        for condition in (one.per_request() or ())
        if METRICS[condition.metric].can_fail
    ]
    return max(limits, default=0.0)


class Look(msgspec.Struct, frozen=True):
    """What a probe shows so far."""

    status: Status
    results: tuple[SloResult, ...]
    requests: int
    """How many were judged."""
    mean_e2e: float | None
    """Seconds; None if no request was judged."""
    overload: Overload = Overload("not_applicable")
    independent: float | None = None
    """How many independent requests they are worth: divided by the largest design effect."""

    @property
    def excess(self) -> float | None:
        """The worst objective: the share of requests that violate it / the share that may."""
        return max((one for result in self.results if (one := excess(result)) is not None), default=None)

    @property
    def worst(self) -> SloResult | None:
        """The objective that fails first: one that is missed, or else the one that is closest to its limit."""
        return max(self.results, key=lambda one: (one.status == "missed", excess(one) or 0.0), default=None)


class Sequential:
    """The sequential test of one probe.

    `longest` is its maximum length, and `telling` the length that it needs to hold (`telling_length`); `level` its planned number of
    requests per second, and `unloaded` how long a request takes without load, in seconds. A scout (`purpose` is ramp) ends as soon as there is no reason to stay: at the first look without a violation.
    """

    def __init__(
        self,
        plan: StagePlan,
        objectives: Sequence[Slo],
        longest: float,
        *,
        telling: float,
        level: float,
        unloaded: float,
        purpose: Purpose = "bisect",
        classes: Sequence[ClassObjectives] = (),
    ) -> None:
        everything = [*objectives, *(one for each in classes for one in each.objectives)]
        scout = purpose == "ramp"
        telling = min(LONGER * telling, _NEARLY_ALL * longest) if purpose == "confirm" else telling
        enough = 20 if scout else needed_requests(everything, TAIL / 4) * _SOONER
        slowest = slowest_limit(everything)
        first = min(max(2.5 * unloaded, enough / level + unloaded, _QUEUE_SEEN * slowest, 1.0), longest)
        self._is_long = longest >= telling
        self._telling = telling
        self._times = looks(first, longest, telling)
        self._spend = spending(self._times), spending([time for time in self._times if time >= telling])
        self._plan, self._objectives, self._scout = plan, objectives, scout
        self._classes, self._everything = classes, everything
        self._is_counted = all(map(is_counted, everything))
        self._warmup = round(unloaded * NS)
        self._unloaded = unloaded
        self._patience = max(3 * unloaded, slowest, _CUT)
        self.decision: Look | None = None
        """What ended the probe; None: nothing has."""

    @property
    def patience(self) -> float:
        """Seconds to wait for responses after the last request was sent; the rest is cancelled. An overloaded server may need minutes."""
        return _CUT if self.decision is not None and self.decision.status == "fails" else self._patience

    def is_due(self, elapsed: float) -> bool:
        """Whether it is time for the next look. The last one is `judge_all`, after the last response."""
        return self.decision is None and len(self._times) > 1 and elapsed >= self._times[0]

    def look(self, rows: Rows, arrived: int, elapsed: float) -> Look:
        """Look at the requests that have ended, of those that have `arrived`."""
        at = self._times[0]
        while len(self._times) > 1 and elapsed >= self._times[0]:
            at = self._times.pop(0)
        now = round(elapsed * NS)
        has_sessions = bool((rows["turn"] > 0).any())  # the ids of later turns do not tell which requests are in flight
        known, until = (
            with_in_flight(rows, arrived, now) if self._plan.open and not has_sessions else longest_first(rows, now)
        )
        found = judge(
            known,
            self._plan,
            self._objectives,
            self._tails(at),
            complete_until=until,
            warmup=self._warmup,
            classes=self._classes,
        )
        if self._ends(found, elapsed):
            self.decision = found
        return found

    def _tails(self, at: float) -> tuple[float, float]:
        """How often this look may be wrong about a level that fails, and about one that holds."""
        fails, holds = self._spend
        return fails[at], holds.get(at, 0.0)

    def _ends(self, found: Look, elapsed: float) -> bool:
        if found.status == "fails" or (self._scout and self.is_calm(found)):
            return True
        if elapsed < self._telling or not self._is_counted:
            return False
        return found.status == "holds" or self._is_futile(found, elapsed)

    def _is_futile(self, found: Look, elapsed: float) -> bool:
        """Whether the rest of the probe would not decide: the server is too close to the limit."""
        undecided = [result for result in found.results if result.status == "undecided"]
        left = _PATIENT * (self._times[-1] - elapsed)
        return any(result.more_seconds is None or result.more_seconds > left for result in undecided)

    def judge_all(self, rows: Columns, failures: tuple[Failure, ...] = (), more: Sequence[SloResult] = ()) -> Look:
        """The verdict when the probe is over: what ended it, or else all of its requests; `more` are results for the objectives that
        only a complete probe decides."""
        tails = self._tails(self._times[-1])
        final = judge(rows, self._plan, self._objectives, tails, failures, warmup=self._warmup, classes=self._classes)
        results = final.results + tuple(more)
        status = status_of(results) if final.status != "undecided" else "undecided"
        if status == "holds" and not self._is_long:
            status = "undecided"
        if self.decision is not None and self.decision.status != "undecided":
            if self.decision.status == "holds" and status == "fails":  # in its last responses
                status = "undecided"
            else:
                status, results = self.decision.status, self.decision.results
        return msgspec.structs.replace(final, status=status, results=results)

    def trial(self, request: Request, found: Look, seconds: float) -> Trial:
        """What the search learns from the probe, which took `seconds` with everything that belongs to it."""
        worst = found.worst
        allowed = worst.allowed if worst is not None else None  # None if it was overloaded
        return Trial(
            level=request.level,
            purpose=request.purpose,
            status=found.status,
            seconds=seconds,
            excess=found.excess,
            allowed=allowed or min(_allowed_shares(self._everything), default=None),
            independent=found.independent,
            is_calm=self.is_calm(found),
            completed=(self.decision or found).overload.capacity,
        )

    def is_calm(self, found: Look) -> bool:
        """Whether requests took no longer than without load, and none violated an objective."""
        return found.excess == 0 and found.mean_e2e is not None and found.mean_e2e <= _CALM * self._unloaded


def excess(result: SloResult) -> float | None:
    """How far an objective is from its limit: the share of requests that violate it / the share that may; or value / limit."""
    if result.violations is not None and result.allowed:
        return result.violations / result.allowed
    return result.value / result.limit if result.value is not None and result.limit and result.ci is not None else None


def is_counted(one: Slo) -> bool:
    """Whether an objective is judged by counting requests. Others are judged only when the probe is complete."""
    return one.kind in ("failure_rate", "goodput") or (
        one.kind == "metric" and one.statistic != "mean" and METRICS[one.name].values is not None
    )


def judge(
    rows: Columns,
    plan: StagePlan,
    objectives: Sequence[Slo],
    tails: tuple[float, float] = (TAIL, TAIL),
    failures: tuple[Failure, ...] = (),
    complete_until: int | None = None,
    warmup: int = 0,
    classes: Sequence[ClassObjectives] = (),
) -> Look:
    """Judge a probe by its requests so far; those without an end (`done` is MISSING) are in flight. Times are since its start.

    `tails`: how often it may be wrong about a level that fails, and about one that holds. `complete_until`: of the requests due before this instant, nothing is missing; None: the probe is over. `warmup` is the least
    that is left out at the start, in ns.
    """
    intended = rows["intended"]
    last = int(intended.max()) if len(intended) else 0
    end = last + 1 if complete_until is None else complete_until
    begin = max(round(_WARMUP * end), warmup)
    steady = (intended >= begin) & (intended < end)
    manifest = Manifest(
        inferometer="", started="", t0_wall_ns=0, config={}, plan=(plan,), workload={}, clock={}, seeds={}, versions={}, host={}
    )  # fmt: skip
    run = Run(Path(), manifest, Records(rows, steady.astype(np.int8), failures, ()), 0, lambda: iter(()))
    grown = overload(rows, plan, _CLEAR)
    if complete_until is not None and grown.status == "too_short":
        grown = Overload("not_applicable")
    results, effect = _judge_parts(run, steady, objectives, classes, tails, Overload("not_applicable"))
    is_grown = grown.status == "overloaded"
    if is_grown and any((excess(result) or 0.0) >= _BEYOND for result in results):
        results, effect = _judge_parts(run, steady, objectives, classes, (TAIL, TAIL), grown)
    times = e2e(rows[steady & (rows["failure"] == 0) & (rows["done"] != MISSING)])
    mean = float(times.mean()) if len(times) else None
    status = status_of(results)
    is_growing = is_grown or (grown.share or 0.0) > _GROWING
    if is_growing and status == "holds":
        status = "undecided"
    requests = int(steady.sum())
    return Look(status, results, requests, mean, grown, requests / effect)


def _largest_effect(evidence: StageEvidence, objectives: Sequence[Slo]) -> float:
    """The largest design effect of the metrics that the objectives are about."""
    names = {name for one in objectives for name in one.metrics if name in evidence.metrics}
    return max((evidence.metrics[name].design_effect.get("p99", 1.0) for name in names), default=1.0)


def _judge_parts(
    run: Run,
    steady: NDArray[np.bool_],
    objectives: Sequence[Slo],
    classes: Sequence[ClassObjectives],
    tails: tuple[float, float],
    grown: Overload,
) -> tuple[tuple[SloResult, ...], float]:
    """The results for all requests, and then those of each traffic class; and the largest design effect."""
    results: list[SloResult] = []
    effects = [1.0]
    everyone = ClassObjectives(-1, "", tuple(objectives))
    for part in (everyone, *classes):
        own = np.ones(len(steady), np.bool_) if part is everyone else run.records.rows["class"] == part.index
        metrics = distributions(run, own, NO_GAPS, as_inf=True)
        evidence = StageEvidence(0, "", steady & own, metrics, np.zeros(0), Throughput(), grown)
        counted = [one for one in part.objectives if is_counted(one)]
        judged = map(_either, *(slo.judge(run, evidence, counted, tail) for tail in tails))
        results += (
            msgspec.structs.replace(one, slo=f"{part.name}: {one.slo}", class_=part.name) if part.name else one
            for one in judged
        )
        effects.append(_largest_effect(evidence, counted))
    return tuple(results), max(effects)


def _either(strict: SloResult, lenient: SloResult) -> SloResult:
    """Missed by the first of two judgements, or met by the second."""
    if strict.status == "missed" or lenient.status == "met":
        return strict if strict.status == "missed" else lenient
    return msgspec.structs.replace(strict, status="undecided")


def status_of(results: Sequence[SloResult]) -> Status:
    if any(result.status == "missed" for result in results):
        return "fails"
    return "holds" if results and all(result.status == "met" for result in results) else "undecided"


def with_in_flight(rows: Rows, arrived: int, elapsed: int) -> tuple[Columns, int]:
    """Add the requests of an open loop that are still in flight; return all, and until when nothing is missing.

    Requests have ids in the order of their intended instants, so the missing ids are those in flight. The instants between two
    known ones are interpolated.
    """
    rows = rows[np.argsort(rows["id"], kind="stable")]
    ids = rows["id"]
    count = max(arrived, int(ids[-1]) + 1 if len(ids) else 0)
    missing = np.setdiff1d(np.arange(count), ids)
    known = (np.concatenate([[-1], ids, [count]]), np.concatenate([[0], rows["intended"], [elapsed]]))
    waiting = np.zeros(len(missing), ROW)
    for name in ("sent", "first_byte", "first_token", "first_content", "last_token", "done"):
        waiting[name] = MISSING
    waiting["id"], waiting["open_loop"], waiting["turn"], waiting["session"] = missing, 1, -1, -1
    waiting["intended"] = np.interp(missing, *known).astype(np.int64)
    until = int(waiting["intended"][0]) if len(missing) else elapsed
    if len(missing) and missing[0] > 0:  # interpolated: the ones before it are complete
        until = int(rows["intended"][np.searchsorted(ids, missing[0]) - 1]) + 1
    return Columns.of(np.concatenate([rows, waiting])), until


def longest_first(rows: Rows, elapsed: int) -> tuple[Columns, int]:
    """The requests of a closed loop, and until when hardly any is missing: none has taken longer than the longest so far."""
    known = rows[(rows["done"] != MISSING) & (rows["sent"] != MISSING)]
    longest = int((known["done"] - known["sent"]).max()) if len(known) else elapsed
    return Columns.of(rows), max(elapsed - longest, 0)
