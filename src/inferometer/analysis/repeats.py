"""Several runs: of repeats of one config, how much figures vary between runs, beside the variation within a run; of others, their figures.

Between runs: the mean of the runs' values with its t interval, and their standard deviation. Within a run: half of the width of
the run's own 95 % interval, as the median over the runs. If runs vary by much more than their own intervals allow, something
changes from run to run that a single run cannot see.
"""

import math
import statistics
from collections.abc import Sequence

import msgspec

from inferometer import __version__
from inferometer.analysis import student
from inferometer.analysis.log_ratio import CONFIDENCE
from inferometer.analysis.run_figures import STATISTICS, USUAL, Part, figure, parts
from inferometer.analysis.summary import Measured


class Variation(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over all runs. Null for what is not known."""

    unit: str
    mean: float
    ci: tuple[float | None, float | None]
    """95 % confidence interval of the mean, from the variation between runs; null for fewer than two runs."""
    between: float | None
    """Standard deviation between runs, as a share of the mean."""
    within: float | None
    """Standard error within a run, as a share of the mean: the median over the runs that have one."""
    values: tuple[float, ...]
    """The value of each run."""


class StageVariation(msgspec.Struct, frozen=True):
    name: str
    metrics: dict[str, Variation]


class Repeats(msgspec.Struct, frozen=True, kw_only=True):
    schema: int = 1
    inferometer: str = __version__
    runs: tuple[str, ...]
    """Folders of the runs."""
    verdicts: tuple[str, ...]
    metrics: dict[str, Variation]
    """Empty if the runs have several stages."""
    stages: tuple[StageVariation, ...] = ()


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One run, or one stage of it, among runs that are not repeats of each other."""

    run: str
    verdict: str
    stage: str
    figures: dict[str, float]


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """The layout of the JSON file for runs that are not repeats of each other."""

    schema: int = 1
    inferometer: str = __version__
    runs: tuple[RunFigures, ...]


def list_runs(measured: Sequence[Measured]) -> RunList:
    """The usual figures of each run and stage."""
    return RunList(
        runs=tuple(
            RunFigures(
                run=str(run.folder),
                verdict=summary.verdict,
                stage=getattr(part, "name", ""),
                figures={name: value for name in USUAL if (value := figure(part, name).value) is not None},
            )
            for run, summary in measured
            for part in parts(summary)
        )
    )


def summarise_repeats(measured: Sequence[Measured]) -> Repeats:
    """The variation of the usual figures. All runs must have the same stages."""
    first = parts(measured[0][1])
    stages = tuple(
        StageVariation(getattr(part, "name", ""), _stage([parts(summary)[index] for _, summary in measured]))
        for index, part in enumerate(first)
    )
    several = len(stages) > 1
    return Repeats(
        runs=tuple(str(run.folder) for run, _ in measured),
        verdicts=tuple(summary.verdict for _, summary in measured),
        metrics={} if several else stages[0].metrics,
        stages=stages if several else (),
    )


def _stage(runs: Sequence[Part]) -> dict[str, Variation]:
    found = {}
    for name in USUAL:
        figures = [figure(part, name) for part in runs]
        values = [each.value for each in figures if each.value is not None and each.has_ratio]
        if len(values) < len(figures):
            continue
        within = [error for part in runs if (error := _within(part, name)) is not None]
        found[name] = _variation(figures[0].unit, values, statistics.median(within) if within else None)
    return found


def _variation(unit: str, values: Sequence[float], within: float | None) -> Variation:
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Variation(unit=unit, mean=mean, ci=(None, None), between=None, within=within, values=tuple(values))
    deviation = statistics.stdev(values)
    half = student.quantile(CONFIDENCE, len(values) - 1) * deviation / math.sqrt(len(values))
    ci = (max(mean - half, 0.0), mean + half)
    return Variation(unit=unit, mean=mean, ci=ci, between=deviation / mean, within=within, values=tuple(values))


def _within(part: Part, name: str) -> float | None:
    """The relative standard error of one run's figure, from its own interval."""
    found = figure(part, name)
    metric, _, statistic = name.partition(".")
    if found.relative_error is not None or metric not in part.metrics:
        return found.relative_error
    low, high = part.metrics[metric].ci.get(STATISTICS[statistic], (None, None))
    if low is None or high is None or not found.value or not math.isfinite(high):
        return None
    return (high - low) / (2 * 2.093 * found.value)
