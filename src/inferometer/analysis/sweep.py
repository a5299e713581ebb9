"""A sweep: the same measurement at several loads, and for several values of other settings."""

from collections.abc import Sequence
from typing import Any

import msgspec

from inferometer import __version__
from inferometer.analysis.counts import Counts
from inferometer.analysis.efficiency import Efficiency
from inferometer.analysis.gate import obstacles
from inferometer.analysis.knee import By, Knee, Level, find_knee, level_of, level_unit, measured_level
from inferometer.analysis.pareto import Pareto, pareto_of
from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.run_figures import Part, parts
from inferometer.analysis.settings import cost, settings_label
from inferometer.analysis.slo import Goodput
from inferometer.analysis.slo_result import SloResult, is_passed
from inferometer.analysis.summary import Summary
from inferometer.analysis.throughput import Throughput
from inferometer.records import Run, StagePlan
from inferometer.units import format_number, format_seconds

MeasuredCell = tuple[dict[str, Any], Run, Summary]
"""One run of a sweep, and the values of the grid's keys in it."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One measured level: a stage of a run."""

    run: str
    """Name of the run's folder."""
    stage: int
    name: str
    settings: dict[str, Any]
    """The values of the grid's keys, such as {"data.input": 1024}."""
    by: By
    """What the level is; empty if the load has none, such as a trace."""
    level: float | None
    is_quotable: bool
    """Whether no check that concerns its latencies or rates failed."""
    is_overloaded: bool
    counts: Counts
    throughput: Throughput
    metrics: dict[str, Distribution]
    slos: tuple[SloResult, ...] = ()
    goodput: Goodput | None = None
    efficiency: Efficiency | None = None
    is_knee: bool = False


class Unmeasured(msgspec.Struct, frozen=True):
    """A run of the grid that could not be measured."""

    settings: dict[str, Any]
    error: str


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """The layout of a sweep's JSON."""

    schema: int = 2
    inferometer: str = __version__
    folder: str
    keys: tuple[str, ...]
    """The keys of the grid, in the order of the config; empty if only the load changes."""
    points: tuple[Point, ...]
    """In the order of the grid; of each combination of settings, by level."""
    knees: tuple[Knee, ...] = ()
    answers: tuple[str, ...] = ()
    """One sentence for each combination of settings: where its knee is, or why there is none."""
    unmeasured: tuple[Unmeasured, ...] = ()
    interrupted: bool = False
    pareto: Pareto | None = None
    """What users see against what the hardware delivers, a curve per combination of settings; None if no price, GPUs or energy are
    known, unless `cost.cheapest_at` asks for it."""


def summarise_sweep(
    folder: str,
    keys: Sequence[str],
    measured: Sequence[MeasuredCell],
    unmeasured: Sequence[Unmeasured] = (),
    interrupted: bool = False,
) -> Sweep:
    """Put the levels of all runs together, and find the knee of each combination of settings."""
    groups: list[tuple[dict[str, Any], list[tuple[Point, Level | None]]]] = []
    for settings, run, summary in measured:
        own = next((points for known, points in groups if known == settings), None)
        if own is None:
            groups.append((settings, own := []))
        for index, part in enumerate(parts(summary)):
            own.append((_point(settings, run, index, part), _level(part, run.manifest.plan[index])))
    points: list[Point] = []
    knees: list[Knee] = []
    answers: list[str] = []
    for settings, own in groups:
        levels = [level for _, level in own if level is not None]
        knee = find_knee(levels, settings)
        knees += [knee] if isinstance(knee, Knee) else []
        sentence = describe_knee(knee) if len(levels) > 1 else _figures(*own[0])
        answers.append(f"{label}: {sentence}" if (label := settings_label(settings)) else sentence)
        points += [
            msgspec.structs.replace(point, is_knee=isinstance(knee, Knee) and point.level == knee.level)
            for point, _ in sorted(own, key=lambda pair: pair[0].level or 0.0)
        ]
    return Sweep(
        folder=folder,
        keys=tuple(keys),
        points=tuple(points),
        knees=tuple(knees),
        answers=(*answers, *_best(points)),
        unmeasured=tuple(unmeasured),
        interrupted=interrupted,
        pareto=_pareto(points, measured),
    )


def _pareto(points: Sequence[Point], measured: Sequence[MeasuredCell]) -> Pareto | None:
    wanted = list(dict.fromkeys(rate for _, run, _ in measured for rate in cost(run.manifest).user_rates))
    is_known = any(point.efficiency is not None for point in points)
    return pareto_of(points, wanted) if is_known or wanted else None


def levels_of(run: Run, summary: Summary) -> list[Level]:
    """The levels of one run; empty if one of its stages has none, so that they are no sweep."""
    found = [_level(part, plan) for part, plan in zip(parts(summary), run.manifest.plan, strict=True)]
    return [level for level in found if level is not None] if None not in found else []


def describe_knee(knee: Knee | str) -> str:
    """Where the knee is and why, or why there is none."""
    if isinstance(knee, str):
        return knee
    low, high = (None if end is None else format_number(end, 4) for end in knee.between)
    bounds = f"between {low} and {high}" if low is not None else f"below {high}"
    return f"the knee is at {format_number(knee.level, 4)} {level_unit(knee.by)} ({bounds}): {knee.reason}"


def _figures(point: Point, level: Level | None) -> str:
    """The rate and the latency of a combination that was measured at one level."""
    is_overloaded = point.is_overloaded or (level is not None and level.is_saturated)
    unit, rate = _main_rate(point)
    latency = point.metrics["e2e"].mean if "e2e" in point.metrics and not is_overloaded else None
    words = [f"{format_number(rate, 4)} {unit}"] if rate is not None else ["no rate"]
    words += [f"mean latency {format_seconds(latency)}"] if latency is not None else []
    return ", ".join([*words, *(["overloaded: measure lower levels"] if is_overloaded else [])])


def _best(points: Sequence[Point]) -> list[str]:
    """If each of several combinations was measured at one level: which of them has the highest rate."""
    labels = [settings_label(point.settings) for point in points]
    known = [point for point in points if _main_rate(point)[1] is not None]
    if len(set(labels)) < len(labels) or len(known) < 2:
        return []
    best = max(known, key=lambda point: _main_rate(point)[1] or 0.0)
    return [f"most {_main_rate(best)[0]}: {settings_label(best.settings)}"]


def _main_rate(point: Point) -> tuple[str, float | None]:
    """What the work of a request is counted in, and how much of it was done per second."""
    rates = {"output tokens/s": point.throughput.output_tokens, "inferences/s": point.throughput.inferences}
    return next(((unit, rate) for unit, rate in rates.items() if rate), ("requests/s", point.throughput.requests))


def _point(settings: dict[str, Any], run: Run, index: int, part: Part) -> Point:
    plan = run.manifest.plan[index]
    by, level = level_of(plan)
    return Point(
        run=run.folder.name,
        stage=index,
        name=getattr(part, "name", "") or plan.name or plan.type,
        settings=settings,
        by=by,
        level=level,
        is_quotable=all(part.quotable.values()),
        is_overloaded=_is_overloaded(part),
        counts=part.counts,
        throughput=part.throughput,
        metrics=part.metrics,
        slos=part.slos,
        goodput=part.goodput,
        efficiency=getattr(part, "efficiency", None),
    )


def _level(part: Part, plan: StagePlan) -> Level | None:
    return measured_level(plan, part.throughput, part.metrics.get("e2e"), part.overload, part.counts)


def _is_overloaded(part: Part) -> bool:
    return part.overload is not None and part.overload.status == "overloaded"


# --- the verdict of a sweep ------------------------------------------------------------------------------------------


def problems(sweep: Sweep, measured: Sequence[MeasuredCell], strict: bool = False) -> list[str]:
    """Why a sweep fails, in words; empty if it does not.

    A sweep goes into overload on purpose, so what happens at an overloaded level does not fail it. It fails if a run could not be
    measured or was interrupted, if a check fails at a level that is not overloaded, or if a combination of settings meets its
    objectives at no level.
    """
    found = [f"{settings_label(each.settings)}: not measured: {each.error}" for each in sweep.unmeasured]
    if sweep.interrupted:
        found.append("interrupted: some runs are missing or incomplete")
    for settings, run, summary in measured:
        overloaded = {index for index, part in enumerate(parts(summary)) if _is_overloaded(part)}
        name = run.manifest.plan[0].name if len(run.manifest.plan) == 1 else ""
        where = ", ".join(each for each in (settings_label(settings), name) if each) or run.folder.name
        for check in obstacles(summary):
            if check.name == "interrupted" and sweep.interrupted:
                continue
            if not (check.stages and set(check.stages) <= overloaded):
                found.append(f"{where}: {check.name}: {check.message}")
    combinations: list[tuple[dict[str, Any], list[Point]]] = []
    for point in sweep.points:
        own = next((points for known, points in combinations if known == point.settings), None)
        if own is None:
            combinations.append((point.settings, own := []))
        own.append(point)
    for settings, own in combinations:
        if any(point.slos for point in own) and not any(is_passed(point.slos, strict) for point in own):
            found.append(f"{settings_label(settings) or 'objectives'}: no level meets every objective")
    return found
