"""The levels of an engine: the figures of its runs at each of them, over all rounds."""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from inferometer.analysis import settings
from inferometer.analysis.efficiency import Estimate
from inferometer.analysis.engine_figures import (
    WORST,
    EngineLevel,
    Latency,
    LevelCounts,
    LevelResources,
    LevelSlo,
    LevelThroughput,
)
from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.rounds import Rounds, judged, log_ratio_of
from inferometer.analysis.run_figures import figure, percentile_errors
from inferometer.analysis.summary import FIGURES as SUMMARY_FIGURES
from inferometer.analysis.summary import Measured, Summary
from inferometer.analysis.utilisation import Work, work_of
from inferometer.campaign import EngineRecord, LevelRecord
from inferometer.config.engines import Level
from inferometer.records import Run

_STATISTICS = ("mean", "p50", "p95", "p99")
_RATES = ("requests", "output_tokens", "input_tokens", "total_tokens")


class LevelRounds(msgspec.Struct, frozen=True):
    """A level with what ratios are computed from: its figures by round."""

    level: EngineLevel
    figures: dict[str, Rounds] = {}
    work: Work = Work()
    runs: dict[int, Measured] = {}
    """By round."""

    @property
    def rate(self) -> Rounds | None:
        """Output tokens per second, or requests if no tokens were counted."""
        return self.figures.get("throughput.output_tokens") or self.figures.get("throughput.requests")


FIGURES = ("throughput.requests", "throughput.output_tokens", "e2e.p50")
"""What engines are compared by."""


def levels_of(engine: EngineRecord, runs: Mapping[str, Measured]) -> list[LevelRounds]:
    """The engine's levels in ascending order, without those that were profiled."""
    groups: dict[tuple[str, float], list[LevelRecord]] = {}
    for record in engine.levels:
        if not record.is_profiled:
            groups.setdefault((record.by, record.level), []).append(record)
    found = [_level(records, runs) for _, records in sorted(groups.items(), key=lambda item: item[0][1])]
    return [with_scaling(each, found[0]) for each in found]


def with_scaling(level: LevelRounds, base: LevelRounds) -> LevelRounds:
    """The level with its scaling efficiency against the lowest one; a rate that was offered says nothing about scaling."""
    if level.level.by == "rate" or level.rate is None or base.rate is None:
        return level
    times = level.level.level / base.level.level
    if level is base:
        scaling = Estimate(1.0, (None, None))
    else:
        found = judged(
            log_ratio_of(base.rate.scaled(times), level.rate), level.rate.value / base.rate.value / times, ""
        )
        scaling = Estimate(found.ratio, found.ci)
    return msgspec.structs.replace(level, level=msgspec.structs.replace(level.level, scaling=scaling))


def _level(records: Sequence[LevelRecord], runs: Mapping[str, Measured]) -> LevelRounds:
    first = records[0]
    every = {record.repeat: runs[record.run] for record in records if record.run in runs}
    problems = [record.error or f"its run {record.run} cannot be read" for record in records if record.run not in runs]
    problems += [record.error for record in records if record.run in runs and record.error]
    measured = {number: each for number, each in every.items() if all(each[1].quotable.values())} or every
    each = list(measured.values())
    problems += _failed_checks(each)
    left_out = [*problems, *_failed_checks([one for number, one in every.items() if number not in measured])]
    made = EngineLevel(
        by=first.by,
        level=first.level,
        name=Level(first.by, first.level).name,
        repeats=len(each),
        left_out=len(records) - len(each),
        valid=bool(each) and not problems,
        quotable={kind: bool(each) and all(one.quotable[kind] for _, one in each) for kind in SUMMARY_FIGURES},
        problems=tuple(dict.fromkeys(left_out)),
        padding=_mean([record.padding for record in records]),
        cache=first.cache,
    )
    if not each:
        return LevelRounds(made)
    figures = {name: found for name in FIGURES if (found := rounds_of(measured, name)) is not None}
    return LevelRounds(_with_figures(made, measured), figures, work_of([run for run, _ in each]), measured)


def _with_figures(made: EngineLevel, measured: Mapping[int, Measured]) -> EngineLevel:
    each = list(measured.values())
    summaries = [summary for _, summary in each]
    throughput = {name: _rate(measured, name) for name in _RATES}
    efficiencies = [summary.efficiency for summary in summaries]
    return msgspec.structs.replace(
        made,
        failed_checks=tuple(
            dict.fromkeys(check.name for one in summaries for check in one.checks if check.status == "fail")
        ),
        overloaded=any(one.overload is not None and one.overload.status == "overloaded" for one in summaries),
        runs=tuple(run.folder.name for run, _ in each),
        counts=_counts(each),
        ttft=_latency(summaries, "ttft"),
        tpot=_latency(summaries, "tpot"),
        e2e=_latency(summaries, "e2e"),
        throughput=LevelThroughput(
            **throughput, reason=next((one.throughput.reason for one in summaries if one.throughput.reason), "")
        ),
        resources=_resources(summaries),
        energy_per_token=_mean([_energy(one) for one in summaries]),
        cost_per_million=_pooled([one.cost_per_million.get("output_tokens") if one else None for one in efficiencies]),
        output_tokens_per_gpu=_pooled([one.output_tokens_per_gpu if one else None for one in efficiencies]),
        output_tokens_per_user=_pooled([_per_user(one) for one in summaries]),
        slos=_slos(summaries),
        goodput=_pooled([_goodput(one) for one in summaries]),
    )


def _failed_checks(measured: Sequence[Measured]) -> list[str]:
    return [
        f"{check.name.replace('_', ' ')}: {check.message}"
        for _, summary in measured
        for check in summary.checks
        if check.status == "fail"
    ]


# --- figures over the rounds -----------------------------------------------------------------------------------------


def rounds_of(measured: Mapping[int, Measured], name: str) -> Rounds | None:
    """A figure of each round; None if one of them does not have it."""
    found = {number: figure(summary, name) for number, (_, summary) in measured.items()}
    if not found or not all(each.has_ratio for each in found.values()):
        return None
    values = {number: each.value or 0.0 for number, each in found.items()}
    if len(values) > 1:
        return Rounds(values)
    (number,) = values
    run, summary = measured[number]
    metric, _, statistic = name.partition(".")
    if metric == "throughput":
        return Rounds(values, found[number].relative_error, summary.throughput.ci.get(statistic, (None, None)))
    if metric not in summary.metrics:
        return Rounds(values, found[number].relative_error)
    error = found[number].relative_error
    if statistic.startswith("p"):
        error = percentile_errors(run, None, {metric: (statistic,)}).get(name)
    return Rounds(values, error, summary.metrics[metric].ci.get(statistic, (None, None)))


def _rate(measured: Mapping[int, Measured], name: str) -> Estimate | None:
    found = rounds_of(measured, f"throughput.{name}")
    return None if found is None else found.estimate()


def _pooled(each: Sequence[Estimate | None]) -> Estimate | None:
    """The mean over the rounds with the interval from their variation; of one round, as it is."""
    known = [one for one in each if one is not None]
    if not known or len(known) < len(each):
        return None
    return known[0] if len(known) == 1 else Rounds({n: one.value for n, one in enumerate(known)}).estimate()


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def _latency(summaries: Sequence[Summary], name: str) -> Latency | None:
    found = [summary.metrics.get(name) for summary in summaries]
    known = [each for each in found if each is not None and each.count]
    if len(known) < len(found) or any(_is_overloaded(summary) for summary in summaries):
        return None
    values = {each: _statistic(known, each) for each in _STATISTICS}
    return Latency(
        count=sum(each.count for each in known),
        **{each: None if one is None else one.value for each, one in values.items()},
        ci={each: one.ci for each, one in values.items() if one is not None},
        unsupported=tuple(each for each in _STATISTICS if any(each in one.unsupported for one in known)),
    )


def _statistic(known: Sequence[Distribution], name: str) -> Estimate | None:
    """One statistic over the rounds. With failures a percentile may be infinite, and then so is the mean of the rounds."""
    values = [each.mean if name == "mean" else each.value(name) for each in known]
    if any(value is None for value in values):
        return None
    numbers = [value for value in values if value is not None]
    if len(numbers) == 1:
        return Estimate(numbers[0], known[0].ci.get(name, (None, None)))
    if not all(map(math.isfinite, numbers)):
        return Estimate(math.inf)
    return Rounds(dict(enumerate(numbers))).estimate()


def _is_overloaded(summary: Summary) -> bool:
    return summary.overload is not None and summary.overload.status == "overloaded"


def _counts(measured: Sequence[Measured]) -> LevelCounts:
    failures: dict[str, int] = {}
    for _, summary in measured:
        for name, count in summary.counts.by_failure.items():
            failures[name] = failures.get(name, 0) + count
    return LevelCounts(
        ok=sum(summary.counts.ok for _, summary in measured),
        failed=sum(summary.counts.failed + summary.counts.dropped for _, summary in measured),
        by_failure=failures,
        input_tokens=_tokens_per_request([run for run, _ in measured], "n_in"),
        output_tokens=_tokens_per_request([run for run, _ in measured], "n_out"),
        input_counted_by=tuple(dict.fromkeys(who for _, one in measured for who in one.input_tokens_counted_by)),
        output_counted_by=tuple(dict.fromkeys(who for _, one in measured for who in one.tokens_counted_by)),
    )


def _tokens_per_request(runs: Sequence[Run], column: str) -> float | None:
    total = count = 0
    for run in runs:
        rows = run.records.rows
        tokens = rows[column][rows["failure"] == 0]
        known = tokens[tokens >= 0]
        total, count = total + int(known.sum(dtype=np.int64)), count + len(known)
    return total / count if count else None


# --- resources, objectives -------------------------------------------------------------------------------------------


def _resources(summaries: Sequence[Summary]) -> LevelResources | None:
    used = [summary.resources for summary in summaries if summary.resources is not None]
    if not used:
        return None
    working = [[gpu for gpu in each.gpus.values() if (gpu.use or 0.0) > 0] for each in used]
    made = LevelResources(
        cpu=_mean([_total([one.cpu for one in each.processes.values()]) for each in used]),
        memory=_highest([_total([one.memory_max for one in each.processes.values()]) for each in used]),
        gpu_memory=_highest([_total([one.memory_max for one in gpus]) for gpus in working]),
        gpu_use=_mean([_mean([one.use for one in gpus]) for gpus in working]),
        power=_mean([_total([one.power for one in each.gpus.values()]) for each in used]),
    )
    return made if made != LevelResources() else None


def _total(values: Sequence[float | None]) -> float | None:
    """The sum; None if there are no values or one is not known."""
    known = [value for value in values if value is not None]
    return math.fsum(known) if known and len(known) == len(values) else None


def _highest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _energy(summary: Summary) -> float | None:
    energy = None if summary.resources is None else summary.resources.energy
    return None if energy is None else energy.per_output_token


def _per_user(summary: Summary) -> Estimate | None:
    found = summary.metrics.get("tps_user")
    median = None if found is None or _is_overloaded(summary) else found.value("p50")
    return None if found is None or median is None else Estimate(median, found.ci.get("p50", (None, None)))


def _goodput(summary: Summary) -> Estimate | None:
    found = summary.goodput
    return None if found is None or found.rate is None else Estimate(found.rate, found.ci["rate"])


def _slos(summaries: Sequence[Summary]) -> tuple[LevelSlo, ...]:
    found = []
    for results in zip(*(summary.slos for summary in summaries), strict=True):
        worst = next(status for status in WORST if any(result.status == status for result in results))
        shown = next(result for result in results if result.status == worst)
        found.append(LevelSlo(shown.slo, worst, shown.reason, shown.value))
    return tuple(found)


def currency_of(runs: Sequence[Run]) -> str:
    return settings.cost(runs[0].manifest).currency if runs else "USD"
