"""From a run to its summary: the numbers, the checks and the verdict. The structs are the shape of summary.json."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import settings
from inferometer.analysis.checks import CHECKS, Check, Facts, examine, verdict
from inferometer.analysis.checks.facts import FailureCount, count_failures
from inferometer.analysis.gaps import Gaps, gather
from inferometer.analysis.metrics import METRICS, RATES, Columns, Metric, Part
from inferometer.analysis.percentiles import Distribution, Values, distribution
from inferometer.analysis.window import COOLDOWN, STEADY, WARMUP
from inferometer.records import COUNTED_BY, DROPPED, MISSING, PHASES, Run
from inferometer.units import NS

Mask = NDArray[np.bool_]


class Counts(msgspec.Struct, frozen=True):
    """Requests of the window. What was dropped or cancelled is not ok; what was dropped has not failed either."""

    ok: int
    failed: int
    dropped: int
    by_failure: dict[str, int]


class Throughput(msgspec.Struct, frozen=True):
    """A second, over the window; null where it has no length."""

    requests: float | None = None
    output_tokens: float | None = None
    input_tokens: float | None = None
    total_tokens: float | None = None


class Window(msgspec.Struct, frozen=True):
    """The part of the run that counts, in seconds since t=0, and how many requests lie in which part."""

    start: float
    end: float
    span: float
    requests: dict[str, int]


class StageSummary(msgspec.Struct, frozen=True):
    stage: int
    name: str
    window: Window
    counts: Counts
    throughput: Throughput
    metrics: dict[str, Distribution]


class Summary(msgspec.Struct, frozen=True):
    schema: int
    verdict: str
    checks: tuple[Check, ...]
    counts: Counts
    throughput: Throughput
    metrics: dict[str, Distribution]
    stages: tuple[StageSummary, ...]
    """One each where the load has several."""
    window: Window
    failures: tuple[FailureCount, ...]
    tokens_counted_by: dict[str, int]
    started: str
    inferometer: str
    definitions: dict[str, str]


def summarise(run: Run) -> Summary:
    rows, phase = run.records.rows, run.records.phase
    steady: Mask = phase == STEADY
    good = rows["failure"] == 0
    as_inf = settings.measure(run.manifest).failures_as_inf
    gaps = gather(run, steady & good)
    everything = np.ones(len(rows), np.bool_)
    several = len(run.manifest.plan) > 1
    stages = tuple(_stage(run, stage, gaps, as_inf) for stage in range(len(run.manifest.plan)) if several)
    metrics = _metrics(run, everything, gaps.values, as_inf)
    checks = examine(Facts(run, settings.limits(run.manifest), steady, metrics, gaps))
    window, throughput = _throughput(run, everything, first=True)
    sources = np.bincount(rows["counted_by"][steady & good], minlength=len(COUNTED_BY)).tolist()
    return Summary(
        schema=1,
        verdict=verdict(checks),
        checks=checks,
        counts=_counts(run, everything),
        throughput=throughput,
        metrics=metrics,
        stages=stages,
        window=window,
        failures=tuple(count_failures(run, steady)),
        tokens_counted_by={name: count for name, count in zip(COUNTED_BY, sources, strict=True) if count},
        started=run.manifest.started,
        inferometer=run.manifest.inferometer,
        definitions=_definitions(checks),
    )


def _stage(run: Run, stage: int, gaps: Gaps, as_inf: bool) -> StageSummary:
    mask: Mask = run.records.rows["stage"] == stage
    plan = run.manifest.plan[stage]
    window, throughput = _throughput(run, mask, first=stage == 0)
    own = gaps.values[gaps.stages.get(stage, slice(0, 0))]
    return StageSummary(
        stage, plan.name or plan.type, window, _counts(run, mask), throughput, _metrics(run, mask, own, as_inf)
    )


def _counts(run: Run, mask: Mask) -> Counts:
    mask = mask & (run.records.phase == STEADY)
    kinds = {kind.code: kind.count for kind in count_failures(run, mask)}
    dropped = kinds.pop(DROPPED, 0)
    ok = int((mask & (run.records.rows["failure"] == 0)).sum())
    return Counts(ok, sum(kinds.values()), dropped, kinds)


def _metrics(run: Run, mask: Mask, gaps: Values, as_inf: bool) -> dict[str, Distribution]:
    """Every metric of the window's rows among `mask`; reorders `gaps`."""
    rows = run.records.rows
    steady = mask & (run.records.phase == STEADY)
    chosen = {"ok": Part(rows, steady & (rows["failure"] == 0)), "sent": Part(rows, steady & (rows["sent"] != MISSING))}
    failed = int(steady.sum()) - len(chosen["ok"]) if as_inf else 0
    return {metric.name: _distribution(metric, chosen[metric.of], gaps, failed) for metric in METRICS.values()}


def _distribution(metric: Metric, rows: Columns, gaps: Values, failed: int) -> Distribution:
    if metric.values is None:
        return distribution(gaps, metric.unit, scale=NS)
    values = metric.values(rows)
    return distribution(values[~np.isnan(values)], metric.unit, failed if metric.can_fail else 0)


def _throughput(run: Run, mask: Mask, first: bool) -> tuple[Window, Throughput]:
    """Of the rows among `mask`; `first` says that they are there from t=0.

    What completes within the window counts, be it sent in the warm-up: so neither edge of the window biases the rate.
    """
    rows, phase = run.records.rows, run.records.phase
    sizes = {name: int((mask & (phase == place)).sum()) for place, name in enumerate(PHASES)}
    ended = Part(rows, mask & (phase == STEADY) & (rows["done"] != MISSING))
    if not len(ended):
        return Window(0.0, 0.0, 0.0, sizes), Throughput()
    start = 0 if first and not sizes[PHASES[WARMUP]] else int(ended["intended"].min())
    tail = Part(rows, mask & (phase == COOLDOWN))
    end = int(tail["intended"].min()) if len(tail) else int(ended["done"].max())
    span = max(end - start, 0) / NS
    window = Window(start / NS, end / NS, span, sizes)
    if not span:
        return window, Throughput()
    inside = Part(rows, mask & (rows["failure"] == 0) & (rows["done"] >= start) & (rows["done"] <= end))
    tokens_in, tokens_out = _total(inside["n_in"]), _total(inside["n_out"])
    both = None if tokens_in is None or tokens_out is None else tokens_in + tokens_out
    rates = (None if total is None else total / span for total in (tokens_out, tokens_in, both))
    return window, Throughput(len(inside) / span, *rates)


def _total(tokens: NDArray[np.int32]) -> int | None:
    """Of those that are known; None where none is."""
    known = tokens[tokens >= 0]
    return int(known.sum(dtype=np.int64)) if len(known) or not len(tokens) else None


def _definitions(checks: tuple[Check, ...]) -> dict[str, str]:
    """What this summary means by its names."""
    return (
        {name: metric.definition for name, metric in METRICS.items()}
        | {f"throughput.{name}": words for name, words in RATES.items()}
        | {f"check.{check.name}": CHECKS[check.name].definition for check in checks}
    )
