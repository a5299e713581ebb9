"""Whether a probe holds or fails, by its requests so far.

A growing number in flight with too many violations fails. Otherwise violations are counted, and what they have not shown with 95 %
confidence may still be likely (`Look.is_sure`): 0 of 20 slow requests is no proof, but no reason to look at half the rate either. A
closed loop that explores is judged by what was measured, without confidence.
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
from inferometer.analysis.metrics import e2e, ttft
from inferometer.analysis.overload import Overload, overload
from inferometer.analysis.slo_expression import met
from inferometer.analysis.slo_result import SloResult
from inferometer.analysis.throughput import Throughput
from inferometer.capacity_search.objectives import Objectives, excess, is_counted
from inferometer.capacity_search.trials import Status
from inferometer.records import MISSING, Columns, Failure, Manifest, Records, Run, StagePlan
from inferometer.units import NS

_WARMUP = 0.15
"""Share of a probe that is left out at its start, at least."""
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
_PER_RESIDENCE = 5.0
"""Independent requests in the time that a response takes, at most, for a sure verdict: those in flight together share what happens."""
_WARMING = 2.0
"""A server is warming up if the first third of the requests take this many times as long as the last third."""


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
