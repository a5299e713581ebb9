"""Whether a probe holds or fails its objectives, judged while it runs and when it is over.

A probe is looked at when its length has doubled, and ends as soon as a look shows that it fails. Someone who looks several times has
several chances to be wrong, so the 5 % are spent over the looks, in proportion to the time since the look before. The first part
of a probe is left out, because the queue of a drained server is empty.

When a probe is over, what it has not shown with 95 % confidence may still be likely (`Look.is_sure`): 0 of 20 slow requests is no proof, but no
reason to look at half the rate either. A closed loop that explores is judged by what was measured, without confidence.

Requests in flight at the end are not waited for if what they have shown suffices: the time to first token is known from the first
token on, and so is about the time per token. The others count if they are later than the limit already.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import slo
from inferometer.analysis.binomial import TAIL, is_above, is_below
from inferometer.analysis.blocks import proportion
from inferometer.analysis.checks.evidence import StageEvidence
from inferometer.analysis.distributions import NO_GAPS, distributions
from inferometer.analysis.metrics import METRICS, e2e, start, ttft
from inferometer.analysis.overload import Overload, overload
from inferometer.analysis.percentiles import PERCENTILES
from inferometer.analysis.slo_expression import Condition, Slo, met
from inferometer.analysis.slo_result import SloResult
from inferometer.analysis.throughput import Throughput
from inferometer.capacity_search.trials import Goal, Request, Status, Trial
from inferometer.records import CANCELLED, MISSING, ROW, Columns, Failure, Manifest, Records, Run, StagePlan
from inferometer.units import NS

LIKELY = 0.15
"""How often a verdict that is only likely may be wrong."""
_FAR = 1.25
"""A mean, a rate or a percentile of gaps that is this many times better or worse than its limit likely stays on that side of it."""
_CLEAR, _BEYOND = 0.05, 2.0
"""Growth of the number in flight, as a share of the arrivals, that is an overload if this many times the violations that are allowed
come with it."""
_CERTAIN, _HINT = 3.0, 1.0
"""Student's t of growth without violations yet, which may be an overload or responses so long that they still accumulate; and of growth
that makes a probe that holds only likely to."""
_WARMUP, _MOST_WARMUP = 0.15, 0.4
"""Share of a probe that is left out at its start, at least and at most."""
_TOKENS = 8
"""Chunks after which the time per token of a response in progress counts."""
_PER_RESIDENCE = 5.0
"""Independent requests in the time that a response takes, at most, for a sure verdict: those in flight together share what happens."""
_WARMING = 2.0
"""A server is warming up if the first third of the requests take this many times as long as the last third."""
_CUT = 0.2
"""Seconds for which the responses of a probe that has shown enough are waited for."""
_FROM_START = ("ttft", "ttft_service", "ttft_content", "tpot", "tps_user")
"""Metrics that a response in progress has."""

Rows = NDArray[np.void]


class ClassObjectives(msgspec.Struct, frozen=True):
    """The objectives of a traffic class, which are judged by its requests alone."""

    index: int
    """Its number in the column `class` of the rows."""
    name: str
    objectives: tuple[Slo, ...]


class Objectives(msgspec.Struct, frozen=True):
    """What must hold: for all requests, and for those of each traffic class."""

    common: tuple[Slo, ...]
    classes: tuple[ClassObjectives, ...] = ()

    @property
    def every(self) -> list[Slo]:
        return [*self.common, *(one for each in self.classes for one in each.objectives)]

    @property
    def names(self) -> list[str]:
        """What results call them."""
        return [*map(str, self.common), *(f"{each.name}: {one}" for each in self.classes for one in each.objectives)]

    @property
    def parts(self) -> list[ClassObjectives]:
        return [ClassObjectives(-1, "", self.common), *self.classes]

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What single requests must meet."""
        return tuple(condition for one in self.every for condition in (one.per_request() or ()))

    @property
    def allowed(self) -> float:
        """The smallest share of requests that may violate an objective."""
        shares = [
            (1000 - PERCENTILES[one.statistic]) / 1000 for one in self.every if one.kind == "metric" and is_counted(one)
        ]
        shares += [one.threshold.value for one in self.every if one.kind == "failure_rate"]
        shares += [1 - one.threshold.value for one in self.every if one.kind == "goodput" and one.is_share]
        return min((share for share in shares if 0 < share < 1), default=0.1)

    @property
    def needed(self) -> float:
        """How many independent requests, none of which violates anything, show that all objectives hold."""
        return math.log(TAIL) / math.log(1 - self.allowed)

    @property
    def patience(self) -> float:
        """The largest limit on how long a request may wait, in seconds; 0 if there is none."""
        return max((one.threshold.value for one in self.conditions if METRICS[one.metric].can_fail), default=0.0)

    @property
    def needs_ends(self) -> bool:
        """Whether a response in progress says too little."""
        return any(one.metric not in _FROM_START for one in self.conditions) or not self.conditions

    def slack(self, unloaded: dict[str, float]) -> float:
        """Seconds that a request may wait beyond what it takes without load, by the tightest limit; inf if no limit is about waiting."""
        limits = [(one.metric, one.threshold.value) for one in self.conditions if METRICS[one.metric].can_fail]
        limits += [
            (one.name, one.threshold.value)
            for one in self.every
            if one.statistic == "mean" and one.kind == "metric" and METRICS[one.name].can_fail
        ]
        return min((max(limit - unloaded.get(name, 0.0), 0.1 * limit) for name, limit in limits), default=math.inf)


class Look(msgspec.Struct, frozen=True):
    """What a probe shows so far."""

    status: Status
    results: tuple[SloResult, ...]
    requests: int
    """How many were judged."""
    mean_e2e: float | None
    """Seconds; None if no request was judged."""
    residence: float | None = None
    """How long the request that is in flight at any instant takes: the mean of e2e, weighted by e2e."""
    is_sure: bool = True
    is_overloaded: bool = False
    is_growing: bool = False
    is_warming: bool = False
    independent: float | None = None
    """How many independent requests they are worth, by how much the violations cluster."""
    violations: dict[str, float] = {}
    """By objective: the share of requests that violate it, also if the server was overloaded."""

    @property
    def excess(self) -> float | None:
        """How far the worst objective is from its limit."""
        return max((one for result in self.results if (one := excess(result)) is not None), default=None)

    @property
    def worst(self) -> SloResult | None:
        """The objective that fails first: one that is missed, or else the one that is closest to its limit."""
        return max(self.results, key=lambda one: (one.status == "missed", excess(one) or 0.0), default=None)


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
        has_sessions = bool((rows["turn"] > 0).any())  # the ids of later turns do not tell which requests are in flight
        known, until = (
            with_in_flight(rows, arrived, now) if self._plan.open and not has_sessions else longest_first(rows, now)
        )
        found = judge(known, self._plan, self._objectives, self._spend[at], (), until, self._warmup)
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


def excess(result: SloResult) -> float | None:
    """How far an objective is from its limit: the share of requests that violate it / the share that may; or value / limit."""
    if result.violations is not None and result.allowed:
        return result.violations / result.allowed
    if not result.value or not result.limit:
        return None
    return result.value / result.limit if "<" in result.expression else result.limit / result.value


def is_counted(one: Slo) -> bool:
    """Whether an objective is judged by counting requests. Others are judged only when the probe is complete."""
    return one.kind in ("failure_rate", "goodput") or (
        one.kind == "metric" and one.statistic != "mean" and METRICS[one.name].values is not None
    )


# --- judging ---------------------------------------------------------------------------------------------------------


def judge(
    rows: Columns,
    plan: StagePlan,
    objectives: Objectives,
    tail: float = TAIL,
    failures: tuple[Failure, ...] = (),
    complete_until: int | None = None,
    warmup: float = 0.0,
    more: Sequence[SloResult] = (),
) -> Look:
    """Judge a probe by its requests so far; those without an end (`done` is MISSING) are in flight. Times are since its start.

    `tail`: how often it may be wrong. `complete_until`: of the requests due before this instant, nothing is missing; None: the probe is
    over. `warmup` is the least that is left out at the start.
    """
    intended = rows["intended"]
    last = int(intended.max()) if len(intended) else 0
    end = last + 1 if complete_until is None else complete_until
    begin = max(_WARMUP * end, warmup * NS)
    steady = (intended >= begin) & (intended < end)
    run = _run(rows, steady, failures)
    clear = overload(rows, plan, _CLEAR)
    if clear.status == "too_short":
        clear = Overload("not_applicable")
    results = _judge_parts(run, steady, objectives, tail, Overload("not_applicable")) + tuple(more)
    violations = {result.slo: result.violations for result in results if result.violations is not None}
    is_over = clear.status == "overloaded" and any((excess(result) or 0.0) >= _BEYOND for result in results)
    if is_over:
        results = _judge_parts(run, steady, objectives, TAIL, clear) + tuple(more)
    times = e2e(rows[steady & (rows["failure"] == 0) & (rows["done"] != MISSING)])
    residence = float((times**2).sum() / times.sum()) if len(times) and times.sum() else None
    independent = _independent(rows[steady], objectives)
    careful = min(independent, _PER_RESIDENCE * (end - begin) / NS / residence) if residence else independent
    status: Status
    status, is_sure = ("fails", True) if is_over else (_status(results, careful, tail), True)
    if status == "undecided":
        status, is_sure = _status(results, independent, LIKELY, _FAR) if complete_until is None else status, False
    if status == "holds" and overload(rows, plan, _CLEAR, _HINT).status == "overloaded":
        is_sure = False
    is_growing = (
        not is_over and complete_until is None and overload(rows, plan, _CLEAR, _CERTAIN).status == "overloaded"
    )
    return Look(
        status=status,
        results=results,
        requests=int(steady.sum()),
        mean_e2e=float(times.mean()) if len(times) else None,
        residence=residence,
        is_sure=is_sure,
        is_overloaded=is_over,
        is_growing=is_growing,
        is_warming=_is_warming(rows),
        independent=independent,
        violations=violations,
    )


def _run(rows: Columns, steady: NDArray[np.bool_], failures: tuple[Failure, ...]) -> Run:
    manifest = Manifest(
        inferometer="", started="", t0_wall_ns=0, config={}, plan=(), workload={}, clock={}, seeds={}, versions={}, host={}
    )  # fmt: skip
    return Run(Path(), manifest, Records(rows, steady.astype(np.int8), failures, ()), 0, lambda: iter(()))


def _judge_parts(
    run: Run,
    steady: NDArray[np.bool_],
    objectives: Objectives,
    tail: float,
    grown: Overload,
    more: Sequence[SloResult] = (),
) -> tuple[SloResult, ...]:
    """The results for all requests, and then those of each traffic class."""
    results: list[SloResult] = []
    for part in objectives.parts:
        own = run.records.rows["class"] == part.index if part.name else np.ones(len(steady), np.bool_)
        metrics = distributions(run, own, NO_GAPS, as_inf=True)
        evidence = StageEvidence(0, "", steady & own, metrics, np.zeros(0), Throughput(), grown)
        judged = slo.judge(run, evidence, [one for one in part.objectives if is_counted(one)], tail)
        results += (
            msgspec.structs.replace(one, slo=f"{part.name}: {one.slo}", class_=part.name) if part.name else one
            for one in judged
        )
    return (*results, *more)


def _status(results: Sequence[SloResult], independent: float, tail: float, far: float = math.inf) -> Status:
    """Whether all objectives are met, or any is missed: as judged, or else by counting `independent` requests. Means, rates and gaps
    between chunks are decided if they are `far` times better or worse than the limit."""

    def of(result: SloResult) -> str:
        if result.status != "undecided" or (ratio := excess(result)) is None:
            return result.status
        if result.violations is None or not result.allowed:
            return "met" if ratio * far <= 1 else "missed" if ratio >= far else "undecided"
        seen = result.violations * independent
        if is_below(seen, independent, result.allowed, tail):
            return "met"
        return "missed" if is_above(seen, independent, result.allowed, tail) else "undecided"

    found = [of(result) for result in results]
    if "missed" in found:
        return "fails"
    return "holds" if found and set(found) == {"met"} else "undecided"


def _independent(rows: Columns, objectives: Objectives) -> float:
    """How many independent requests these are worth, by how much their violations cluster in time."""
    if len(rows) < 2 or not objectives.conditions:
        return float(len(rows))
    bad = ~met(objectives.conditions, rows) | (rows["failure"] != 0)
    at = rows["intended"]
    return proportion(bad, at, int(at.min()), int(at.max()) + 1).effective or 1.0


def _is_warming(rows: Columns) -> bool:
    """Whether the first requests took much longer than the last."""
    values = ttft(rows)
    values = e2e(rows) if np.isnan(values).all() else values
    values = values[np.argsort(rows["intended"], kind="stable")]
    values = values[~np.isnan(values)]
    third = len(values) // 3
    return third >= 3 and float(np.median(values[:third])) > _WARMING * float(np.median(values[-third:]))


def settled(
    rows: Columns, failures: tuple[Failure, ...], objectives: Objectives
) -> tuple[Columns, tuple[Failure, ...]]:
    """The requests that were cancelled at the end as what they had shown by then: a response in progress that is fast enough, or one
    that is too late. The others remain cancelled."""
    own = [number for number, failure in enumerate(failures, 1) if failure.code == CANCELLED]
    cancelled = np.isin(rows["failure"], own) & (rows["sent"] != MISSING)
    if not cancelled.any():
        return rows, failures
    streaming = cancelled & (rows["first_token"] != MISSING) & (rows["chunk_count"] >= _TOKENS)
    if objectives.needs_ends:
        streaming[:] = False
    waited = rows["done"] - start(rows)
    waits = np.ones(len(rows), np.bool_) if objectives.needs_ends else rows["first_token"] == MISSING
    late = cancelled & ~streaming & waits & (waited > objectives.patience * NS) & (objectives.patience > 0)
    changed = np.where(streaming, 0, np.where(late, len(failures) + 1, rows["failure"]))
    columns = {name: rows[name] for name in ROW.names or ()} | {"failure": changed.astype(ROW["failure"])}
    return Columns(len(rows), columns), (*failures, Failure(code="late", message="no response within the limit"))


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


# --- looks -----------------------------------------------------------------------------------------------------------


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


# --- tests -----------------------------------------------------------------------------------------------------------


def plan_of(goal: Goal, request: Request) -> StagePlan:
    """The load of a probe: a closed loop to explore, or when requests in flight or users are raised."""
    if goal.by == "rate" and request.purpose != "explore":
        return StagePlan(type="poisson", open=True, rate=request.level, duration=request.seconds)
    return StagePlan(type="closed", open=False, concurrency=int(request.level), duration=request.seconds)
