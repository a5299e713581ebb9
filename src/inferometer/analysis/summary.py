"""Summarise a run: statistics, checks and verdict. The structs define the layout of summary.json."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import sessions, settings, slo, stability
from inferometer.analysis.attempts import retried
from inferometer.analysis.breakdown import PARTS, Breakdown, split
from inferometer.analysis.checks import CHECKS, Check, Evidence, StageEvidence, examine, verdict
from inferometer.analysis.checks.evidence import FailureCount, count_failures
from inferometer.analysis.distributions import NO_GAPS, distributions, itl_by_stage, itl_of_all
from inferometer.analysis.gaps import Gaps, gather
from inferometer.analysis.metrics import METRICS, RATES
from inferometer.analysis.overload import Overload, overload
from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.sessions import SessionSummary
from inferometer.analysis.slo import Goodput, SloResult
from inferometer.analysis.slo_expression import Slo, parse_all
from inferometer.analysis.throughput import MeasuredWindow, Throughput, stage_rates, together
from inferometer.analysis.window import START, STEADY
from inferometer.records import COUNTED_BY, DROPPED, Run, StagePlan

Mask = NDArray[np.bool_]
FIGURES = ("latency", "throughput")


class Counts(msgspec.Struct, frozen=True):
    """Requests in the window, and those of users who were starting. Cancelled requests count as failed, dropped ones do not."""

    ok: int
    failed: int
    dropped: int
    by_failure: dict[str, int]
    retried: int = 0
    """How many of them were sent twice, because the server had closed the connection."""


class StageSummary(msgspec.Struct, frozen=True):
    stage: int
    name: str
    window: MeasuredWindow
    counts: Counts
    throughput: Throughput
    metrics: dict[str, Distribution]
    overload: Overload
    quotable: dict[str, bool] = {}
    """Whether its figures of each kind (FIGURES) may be quoted: no check that concerns them failed."""
    slos: tuple[SloResult, ...] = ()
    goodput: Goodput | None = None
    breakdown: Breakdown | None = None
    no_breakdown: str | None = None
    """Why there is no breakdown."""
    sessions: SessionSummary | None = None
    """None if requests are not the turns of sessions."""


class Summary(msgspec.Struct, frozen=True):
    schema: int
    verdict: str
    checks: tuple[Check, ...]
    counts: Counts
    throughput: Throughput
    metrics: dict[str, Distribution]
    """Empty if stages have different loads: a percentile over both would describe neither."""
    stages: tuple[StageSummary, ...]
    """Empty if the load has only one stage."""
    window: MeasuredWindow
    quotable: dict[str, bool]
    """Whether the figures of each kind (FIGURES) may be quoted; with several stages, whether those of all stages may."""
    overload: Overload | None
    """None if there are several stages."""
    failures: tuple[FailureCount, ...]
    tokens_counted_by: dict[str, int]
    started: str
    inferometer: str
    definitions: dict[str, str]
    slos: tuple[SloResult, ...] = ()
    """Each service level objective; with several stages, as in the stage where it did worst."""
    goodput: Goodput | None = None
    """None without objectives for single requests, or if there are several stages."""
    breakdown: Breakdown | None = None
    no_breakdown: str | None = None
    """Why there is no breakdown."""
    sessions: SessionSummary | None = None
    """None if requests are not the turns of sessions, or if stages have different loads."""


def summarise(run: Run, slos: Sequence[str] | None = None) -> Summary:
    """Summarise a run; `slos` are objectives to judge it by instead of its own."""
    objectives = parse_all(settings.slos(run.manifest) if slos is None else slos)
    rows, plans = run.records.rows, run.manifest.plan
    steady: Mask = run.records.phase == STEADY
    good = rows["failure"] == 0
    gaps = gather(run, steady & good)
    settled = stability.of_run(rows, plans)
    everything = np.ones(len(rows), np.bool_)
    as_inf = settings.measure(run.manifest).failures_as_inf
    limit = settings.limits(run.manifest).overload
    overloads = tuple(overload(rows[rows["stage"] == stage], plan, limit) for stage, plan in enumerate(plans))
    each = stage_rates(run, settled, overloads)
    itl = itl_by_stage(run, gaps)
    stages = tuple(
        _stage(run, stage, itl.get(stage, NO_GAPS), as_inf, each[stage], overloads[stage])
        for stage in range(len(plans))
    )
    several = len(stages) > 1
    evidence = _evidence(run, steady, gaps, stages)
    checks = examine(evidence)
    stages = tuple(_judged(run, *pair, objectives) for pair in zip(stages, evidence.stages, strict=True))
    window, rates = together(each)
    metrics, talks = (stages[0].metrics, stages[0].sessions) if not several else ({}, None)
    if several and _same_load(plans):
        metrics = distributions(run, everything, itl_of_all(run, gaps), as_inf)
        talks = sessions.summarise(run, everything)
    parts = split(run, steady & good)
    sources = np.bincount(rows["counted_by"][steady & good], minlength=len(COUNTED_BY)).tolist()
    return Summary(
        schema=2,
        verdict=verdict(checks),
        checks=checks,
        counts=_counts(run, everything),
        throughput=rates,
        metrics=metrics,
        quotable=_quotable(checks),
        overload=None if several else stages[0].overload,
        stages=tuple(msgspec.structs.replace(s, quotable=_quotable(checks, s.stage)) for s in stages if several),
        window=window,
        failures=tuple(count_failures(run, steady)),
        tokens_counted_by={name: count for name, count in zip(COUNTED_BY, sources, strict=True) if count},
        started=run.manifest.started,
        inferometer=run.manifest.inferometer,
        definitions=_definitions(checks, isinstance(parts, Breakdown), any(stage.sessions for stage in stages)),
        slos=slo.together([(stage.stage, stage.slos) for stage in stages]) if several else stages[0].slos,
        goodput=None if several else stages[0].goodput,
        sessions=talks,
        **_split(parts),
    )


def _stage(
    run: Run,
    stage: int,
    itl: Distribution,
    as_inf: bool,
    measured: tuple[MeasuredWindow, Throughput],
    overload: Overload,
) -> StageSummary:
    mask: Mask = run.records.rows["stage"] == stage
    plan = run.manifest.plan[stage]
    good = mask & (run.records.phase == STEADY) & (run.records.rows["failure"] == 0)
    return StageSummary(
        stage,
        plan.name or plan.type,
        measured[0],
        _counts(run, mask),
        measured[1],
        distributions(run, mask, itl, as_inf),
        overload,
        sessions=sessions.summarise(run, mask),
        **_split(split(run, good, stage)),
    )


def _judged(run: Run, stage: StageSummary, evidence: StageEvidence, objectives: tuple[Slo, ...]) -> StageSummary:
    """The stage with its service level objectives."""
    if not objectives:
        return stage
    return msgspec.structs.replace(
        stage,
        slos=slo.judge(run, evidence, objectives),
        goodput=slo.goodput(run, evidence, objectives),
    )


def _evidence(run: Run, steady: Mask, gaps: Gaps, stages: tuple[StageSummary, ...]) -> Evidence:
    """What the checks look at."""
    rows = run.records.rows
    return Evidence(
        run,
        settings.limits(run.manifest),
        steady,
        gaps,
        tuple(
            StageEvidence(
                stage.stage,
                f" of stage {stage.stage + 1} ({stage.name})" if len(stages) > 1 else "",
                steady & (rows["stage"] == stage.stage),
                stage.metrics,
                gaps.values[gaps.stages.get(stage.stage, slice(0, 0))],
                stage.throughput,
                stage.overload,
            )
            for stage in stages
        ),
    )


def _same_load(plans: tuple[StagePlan, ...]) -> bool:
    """Whether the stages differ in nothing but their names, their lengths, and how they start."""
    alike = {"name": "", "duration": 0.0, "requests": 0, "first_id": 0, "drain": False, "ramp_up": 0.0}
    loads = {msgspec.structs.replace(plan, **alike) for plan in plans}
    return len(loads) == 1


def _quotable(checks: tuple[Check, ...], stage: int | None = None) -> dict[str, bool]:
    """Which kinds of figures may be quoted: of the stage, or of the run."""
    failed = [c for c in checks if c.status == "fail" and (stage is None or not c.stages or stage in c.stages)]
    return {kind: not any(kind in check.affects for check in failed) for kind in FIGURES}


def _split(result: Breakdown | str) -> dict[str, Any]:
    return {"no_breakdown": result} if isinstance(result, str) else {"breakdown": result}


def _counts(run: Run, mask: Mask) -> Counts:
    mask = mask & np.isin(run.records.phase, (STEADY, START))
    rows = run.records.rows[mask]
    kinds = {kind.code: kind.count for kind in count_failures(run, mask)}
    dropped = kinds.pop(DROPPED, 0)
    ok = int(np.count_nonzero(rows["failure"] == 0))
    return Counts(ok, sum(kinds.values()), dropped, kinds, retried(rows))


def _definitions(checks: tuple[Check, ...], is_split: bool, has_sessions: bool) -> dict[str, str]:
    """Definitions of the names that this summary uses."""
    return (
        {name: metric.definition for name, metric in METRICS.items()}
        | {f"throughput.{name}": definition for name, definition in RATES.items()}
        | ({f"breakdown.{name}": definition for name, definition in PARTS.items()} if is_split else {})
        | (sessions.definitions() if has_sessions else {})
        | {f"check.{check.name}": CHECKS[check.name].definition for check in checks}
    )
