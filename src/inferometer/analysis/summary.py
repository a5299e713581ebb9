"""Summarise a run: statistics, checks and verdict. The structs define the layout of summary.json."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import server_view, sessions, settings, slo, slo_result, stability
from inferometer.analysis.breakdown import PARTS, Breakdown, split
from inferometer.analysis.checks import CHECKS, Check, Evidence, StageEvidence, examine, verdict
from inferometer.analysis.checks.evidence import FailureCount, count_failures
from inferometer.analysis.checks.sample import more_seconds
from inferometer.analysis.counts import Counts, count
from inferometer.analysis.distributions import NO_GAPS, distributions, itl_by_stage, itl_of_all
from inferometer.analysis.efficiency import DEFINITIONS as EFFICIENCY_DEFINITIONS
from inferometer.analysis.efficiency import Efficiency, efficiency, hardware
from inferometer.analysis.gaps import Gaps, gather
from inferometer.analysis.groups import Group, Groups, by_class, by_replica
from inferometer.analysis.knee import Knee, find_knee, level_of, measured_level
from inferometer.analysis.metrics import METRICS, RATES
from inferometer.analysis.overload import Overload, overload, overload_of_cut
from inferometer.analysis.pareto import Pareto, pareto_of
from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.resources import DEFINITIONS, ResourceUse, resource_uses
from inferometer.analysis.server_view import ServerView, server_views
from inferometer.analysis.sessions import SessionSummary
from inferometer.analysis.slo import Goodput
from inferometer.analysis.slo_expression import Slo, parse_all
from inferometer.analysis.slo_result import SloResult
from inferometer.analysis.tail import CAUSES, Tail, tails
from inferometer.analysis.throughput import MeasuredWindow, Throughput, measured_spans, rates, together
from inferometer.analysis.window import STEADY
from inferometer.records import COUNTED_BY, Run, StagePlan, Trip

Mask = NDArray[np.bool_]
FIGURES = ("latency", "throughput")
SCHEMA = 3
"""Version of the layout of summary.json (docs/reference/json.md)."""


class StageSummary(msgspec.Struct, frozen=True):
    """The figures of one stage."""

    stage: int
    """Its index in the plan."""
    name: str
    window: MeasuredWindow
    """The part of the stage that counts."""
    counts: Counts
    """How many requests succeeded and failed."""
    throughput: Throughput
    """Rates per second."""
    metrics: dict[str, Distribution]
    """Statistics of each metric, by its name (metrics.METRICS)."""
    overload: Overload
    """Whether the server kept up with the load."""
    quotable: dict[str, bool] = {}
    """Whether its figures of each kind (FIGURES) may be quoted: no check that concerns them failed."""
    slos: tuple[SloResult, ...] = ()
    """Each service level objective."""
    goodput: Goodput | None = None
    """None without objectives for single requests."""
    breakdown: Breakdown | None = None
    """Where the time went, by the server's own account."""
    no_breakdown: str | None = None
    """Why there is no breakdown."""
    sessions: SessionSummary | None = None
    """None if requests are not the turns of sessions."""
    classes: tuple[Group, ...] = ()
    """The traffic classes; empty if there are none."""
    replicas: tuple[Group, ...] = ()
    """The replicas, by address; empty if there is only one."""
    server: ServerView | None = None
    """What the server's own metrics say; None if none were read."""
    resources: ResourceUse | None = None
    """None if no use of resources was recorded."""
    tail: Tail | None = None
    """Why its slow requests were slow."""
    efficiency: Efficiency | None = None
    """None if neither a price, GPUs nor energy are known."""


class Summary(msgspec.Struct, frozen=True):
    """All figures and checks of a run."""

    schema: int
    """Version of this layout."""
    verdict: str
    """VALID or INVALID."""
    checks: tuple[Check, ...]
    """The checks behind the verdict."""
    counts: Counts
    """How many requests succeeded and failed."""
    throughput: Throughput
    """Rates per second."""
    metrics: dict[str, Distribution]
    """Empty if stages have different loads: a percentile over both would describe neither."""
    stages: tuple[StageSummary, ...]
    """Empty if the load has only one stage."""
    window: MeasuredWindow
    """The part of the run that counts."""
    quotable: dict[str, bool]
    """Whether the figures of each kind (FIGURES) may be quoted; with several stages, whether those of all stages may."""
    overload: Overload | None
    """None if there are several stages."""
    failures: tuple[FailureCount, ...]
    """Each kind of failure, with its most common message."""
    tokens_counted_by: dict[str, int]
    """Who counted the output tokens, for how many requests."""
    started: str
    """Wall clock at t=0, ISO 8601."""
    inferometer: str
    """The version that measured."""
    definitions: dict[str, str]
    """What each metric and check means, by its name."""
    slos: tuple[SloResult, ...] = ()
    """Each service level objective; with several stages, as in the stage where it did worst."""
    goodput: Goodput | None = None
    """None without objectives for single requests, or if there are several stages."""
    breakdown: Breakdown | None = None
    """Where the time went, by the server's own account."""
    no_breakdown: str | None = None
    """Why there is no breakdown."""
    sessions: SessionSummary | None = None
    """None if requests are not the turns of sessions, or if stages have different loads."""
    classes: tuple[Group, ...] = ()
    """The traffic classes, in the order of the config; empty if there are none."""
    replicas: tuple[Group, ...] = ()
    """The replicas, by address; empty if there is only one."""
    input_tokens_counted_by: dict[str, int] = {}
    """Who counted the input tokens, for how many requests."""
    server: ServerView | None = None
    """What the server's own metrics say; None if none were read."""
    resources: ResourceUse | None = None
    """None if no use of resources was recorded."""
    tail: Tail | None = None
    """Why slow requests were slow; None if there are several stages."""
    knee: Knee | None = None
    """Several stages with levels of one load: the level above which latency grows faster than throughput."""
    no_knee: str | None = None
    """Why there is no knee, if the stages are levels of one load."""
    efficiency: Efficiency | None = None
    """None if neither a price, GPUs nor energy are known."""
    pareto: Pareto | None = None
    """What users see against what the hardware delivers, over the stages; None without `efficiency` or if there is only one stage,
    unless `cost.cheapest_at` asks for it."""
    ended_by: tuple[Trip, ...] = ()
    """Limits of `abort.on` that ended the run or stages."""


class _Level(msgspec.Struct, frozen=True):
    """A stage as a point of the Pareto chart."""

    name: str
    level: float | None
    is_quotable: bool
    is_overloaded: bool
    throughput: Throughput
    metrics: dict[str, Distribution]
    efficiency: Efficiency | None
    settings: dict[str, Any] = {}


Measured = tuple[Run, Summary]
"""A run, and what its figures are."""


def summarise(run: Run, slos: Sequence[str] | None = None) -> Summary:
    """Summarise a run; `slos` are objectives to judge it by instead of its own."""
    objectives = parse_all(settings.slos(run.manifest) if slos is None else slos)
    rows, plans = run.records.rows, run.manifest.plan
    steady: Mask = run.records.phase == STEADY
    good = rows["failure"] == 0
    settled = stability.of_run(rows, plans)
    everything = np.ones(len(rows), np.bool_)
    as_inf = settings.measure(run.manifest).failures_as_inf
    limit = settings.limits(run.manifest).overload
    cut = {each.stage: each for each in run.manifest.outcome.cut_short}
    overloads = tuple(
        overload_of_cut(rows[rows["stage"] == stage], plan, cut[stage])
        if stage in cut
        else overload(rows[rows["stage"] == stage], plan, limit)
        for stage, plan in enumerate(plans)
    )
    spans = measured_spans(run, settled, overloads)
    classes = by_class(run, spans, overloads, as_inf, own_slos=slos is None)
    replicas = by_replica(run, spans, overloads, as_inf)
    seen = server_views(run, spans)
    each = rates(run, spans)
    used = resource_uses(run, spans, [throughput for _, throughput in each])
    gaps = gather(run, steady & good)
    itl = itl_by_stage(run, gaps)
    stages = tuple(
        _stage(run, stage, itl.get(stage, NO_GAPS), as_inf, each[stage], overloads[stage])
        for stage in range(len(plans))
    )
    several = len(stages) > 1
    evidence = _evidence(run, steady, gaps, stages, seen.whole)
    stages = tuple(_judged(run, *pair, objectives) for pair in zip(stages, evidence.stages, strict=True))
    stages = tuple(_with_groups(stage, classes, replicas) for stage in stages)
    more = more_seconds(evidence, [result for stage in stages for result in stage.slos])
    checks = examine(msgspec.structs.replace(evidence, more_seconds=more))
    stages = tuple(
        msgspec.structs.replace(
            stage,
            slos=slo_result.with_time(stage.slos, more),
            server=seen.stages[stage.stage],
            resources=used.stages[stage.stage],
            tail=tail,
        )
        for stage, tail in zip(stages, tails(run), strict=True)
    )
    window, total_rates = together(each)
    metrics, talks = (stages[0].metrics, stages[0].sessions) if not several else ({}, None)
    if several and _same_load(plans):
        metrics = distributions(run, everything, itl_of_all(run, gaps), as_inf)
        talks = sessions.summarise(run, everything)
    parts = split(run, steady & good)
    known = hardware(run.manifest, used.whole)
    stages = tuple(
        msgspec.structs.replace(
            stage,
            quotable=_quotable(checks, stage.stage),
            efficiency=efficiency(
                known,
                stage.throughput,
                stage.metrics.get("tps_user"),
                stage.overload.status == "overloaded",
                None if stage.resources is None else stage.resources.energy,
            ),
        )
        for stage in stages
    )
    whole = stages[0].efficiency
    if several:
        energy = None if used.whole is None else used.whole.energy
        whole = efficiency(known, total_rates, metrics.get("tps_user"), False, energy)
    return Summary(
        schema=SCHEMA,
        verdict=verdict(checks),
        checks=checks,
        counts=count(run, everything),
        throughput=total_rates,
        metrics=metrics,
        quotable=_quotable(checks),
        overload=None if several else stages[0].overload,
        stages=stages if several else (),
        window=window,
        failures=tuple(count_failures(run, steady)),
        tokens_counted_by=_sources(rows["counted_by"][steady & good]),
        started=run.manifest.started,
        inferometer=run.manifest.inferometer,
        definitions=_definitions(
            checks, isinstance(parts, Breakdown), any(stage.sessions for stage in stages), seen.whole
        )
        | (DEFINITIONS if used.whole is not None else {})
        | _tail_definitions(stages)
        | (EFFICIENCY_DEFINITIONS if whole is not None else {}),
        slos=slo_result.together([(stage.stage, stage.slos) for stage in stages]) if several else stages[0].slos,
        goodput=None if several else stages[0].goodput,
        sessions=talks,
        classes=classes.whole,
        replicas=replicas.whole,
        input_tokens_counted_by=_sources(rows["in_counted_by"][steady & good]),
        server=seen.whole,
        resources=used.whole,
        tail=None if several else stages[0].tail,
        efficiency=whole,
        pareto=_pareto(run, stages),
        ended_by=run.manifest.outcome.trips,
        **_split(parts),
        **_knee(stages, plans),
    )


def _pareto(run: Run, stages: Sequence[StageSummary]) -> Pareto | None:
    wanted = settings.cost(run.manifest).user_rates
    if not wanted and (len(stages) < 2 or all(stage.efficiency is None for stage in stages)):
        return None
    levels = [
        _Level(
            stage.name,
            level_of(run.manifest.plan[stage.stage])[1],
            all(stage.quotable.values()),
            stage.overload.status == "overloaded",
            stage.throughput,
            stage.metrics,
            stage.efficiency,
        )
        for stage in stages
    ]
    return pareto_of(levels, wanted)


def _knee(stages: Sequence[StageSummary], plans: Sequence[StagePlan]) -> dict[str, Any]:
    """The knee over the stages, if they are levels of one load."""
    levels = [
        measured_level(plan, stage.throughput, stage.metrics.get("e2e"), stage.overload, stage.counts)
        for stage, plan in zip(stages, plans, strict=True)
    ]
    known = [level for level in levels if level is not None]
    if len({level.value for level in known}) < 2 or len(known) < len(levels) or len({level.by for level in known}) > 1:
        return {}
    found = find_knee(known)
    return {"no_knee": found} if isinstance(found, str) else {"knee": found}


def _tail_definitions(stages: Sequence[StageSummary]) -> dict[str, str]:
    """Definitions of the causes that explain a tail."""
    tails = [stage.tail for stage in stages if stage.tail is not None]
    used = {each.cause for tail in tails for metric in tail.metrics.values() for each in metric.causes}
    return {f"tail.{name}": cause.definition for name, cause in CAUSES.items() if name in used}


def _sources(counted_by: NDArray[np.int8]) -> dict[str, int]:
    """For how many requests each of COUNTED_BY counted."""
    counts = np.bincount(counted_by, minlength=len(COUNTED_BY)).tolist()
    return {name: count for name, count in zip(COUNTED_BY, counts, strict=True) if count}


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
        count(run, mask),
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


def _with_groups(stage: StageSummary, classes: Groups, replicas: Groups) -> StageSummary:
    """The stage with its traffic classes and replicas. The objectives of classes count like those of the run."""
    own = classes.stages[stage.stage] if classes.stages else ()
    return msgspec.structs.replace(
        stage,
        slos=stage.slos + tuple(result for group in own for result in group.slos),
        classes=own,
        replicas=replicas.stages[stage.stage] if replicas.stages else (),
    )


def _evidence(
    run: Run, steady: Mask, gaps: Gaps, stages: tuple[StageSummary, ...], server: ServerView | None
) -> Evidence:
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
        server=server,
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


def _definitions(
    checks: tuple[Check, ...], is_split: bool, has_sessions: bool, server: ServerView | None
) -> dict[str, str]:
    """Definitions of the names that this summary uses."""
    return (
        {name: metric.definition for name, metric in METRICS.items()}
        | {f"throughput.{name}": definition for name, definition in RATES.items()}
        | ({f"breakdown.{name}": definition for name, definition in PARTS.items()} if is_split else {})
        | (sessions.definitions() if has_sessions else {})
        | (server_view.definitions(server) if server is not None else {})
        | {f"check.{check.name}": CHECKS[check.name].definition for check in checks}
    )
