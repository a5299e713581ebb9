"""Summarise a run: statistics, checks and verdict. The structs define the layout of summary.json."""

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import settings, stability
from inferometer.analysis.breakdown import PARTS, Breakdown, split
from inferometer.analysis.checks import CHECKS, Check, Evidence, examine, verdict
from inferometer.analysis.checks.evidence import FailureCount, count_failures
from inferometer.analysis.gaps import Gaps, gather
from inferometer.analysis.metrics import METRICS, RATES, Column
from inferometer.analysis.percentiles import Distribution, Values, distribution
from inferometer.analysis.throughput import offered, without_edges
from inferometer.analysis.window import COOLDOWN, STEADY, WARMUP
from inferometer.records import COUNTED_BY, DROPPED, MISSING, PHASES, Columns, Run
from inferometer.units import NS

Mask = NDArray[np.bool_]
Settled = dict[int, stability.Stability]
"""By stage number, for stages that end when they are stable."""
_BLOCK = 1 << 16


class Counts(msgspec.Struct, frozen=True):
    """Requests in the window. Dropped and cancelled requests are not ok; cancelled ones count as failed, dropped ones do not."""

    ok: int
    failed: int
    dropped: int
    by_failure: dict[str, int]


class Throughput(msgspec.Struct, frozen=True):
    """Rates per second over the window; null if the window has no length."""

    requests: float | None = None
    output_tokens: float | None = None
    input_tokens: float | None = None
    total_tokens: float | None = None
    inferences: float | None = None
    offered: float | None = None


class MeasuredWindow(msgspec.Struct, frozen=True):
    """The part of the run that counts, in seconds since t=0, and the number of requests in each phase."""

    start: float
    end: float
    span: float
    """From start to end, without the time between the windows of stages that ended when they were stable."""
    requests: dict[str, int]


class StageSummary(msgspec.Struct, frozen=True):
    stage: int
    name: str
    window: MeasuredWindow
    counts: Counts
    throughput: Throughput
    metrics: dict[str, Distribution]
    breakdown: Breakdown | None = None
    no_breakdown: str | None = None
    """Why there is no breakdown."""


class Summary(msgspec.Struct, frozen=True):
    schema: int
    verdict: str
    checks: tuple[Check, ...]
    counts: Counts
    throughput: Throughput
    metrics: dict[str, Distribution]
    stages: tuple[StageSummary, ...]
    """Empty if the load has only one stage."""
    window: MeasuredWindow
    failures: tuple[FailureCount, ...]
    tokens_counted_by: dict[str, int]
    started: str
    inferometer: str
    definitions: dict[str, str]
    breakdown: Breakdown | None = None
    no_breakdown: str | None = None
    """Why there is no breakdown."""


def summarise(run: Run) -> Summary:
    rows, phase = run.records.rows, run.records.phase
    steady: Mask = phase == STEADY
    good = rows["failure"] == 0
    as_inf = settings.measure(run.manifest).failures_as_inf
    gaps = gather(run, steady & good)
    everything = np.ones(len(rows), np.bool_)
    settled = stability.of_run(rows, run.manifest.plan)
    several = len(run.manifest.plan) > 1
    stages = tuple(_stage(run, stage, gaps, as_inf, settled) for stage in range(len(run.manifest.plan)) if several)
    metrics = _metrics(run, everything, gaps.values, as_inf)
    checks = examine(Evidence(run, settings.limits(run.manifest), steady, metrics, gaps))
    window, throughput = _throughput(run, everything, range(len(run.manifest.plan)), settled)
    if settled and several:
        window, throughput = _together(window, stages)
    parts = split(run, steady & good)
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
        definitions=_definitions(checks, isinstance(parts, Breakdown)),
        **_split(parts),
    )


def _stage(run: Run, stage: int, gaps: Gaps, as_inf: bool, settled: Settled) -> StageSummary:
    mask: Mask = run.records.rows["stage"] == stage
    plan = run.manifest.plan[stage]
    window, throughput = _throughput(run, mask, range(stage, stage + 1), settled)
    own = gaps.values[gaps.stages.get(stage, slice(0, 0))]
    good = mask & (run.records.phase == STEADY) & (run.records.rows["failure"] == 0)
    return StageSummary(
        stage,
        plan.name or plan.type,
        window,
        _counts(run, mask),
        throughput,
        _metrics(run, mask, own, as_inf),
        **_split(split(run, good, stage)),
    )


def _split(result: Breakdown | str) -> dict[str, Any]:
    return {"no_breakdown": result} if isinstance(result, str) else {"breakdown": result}


def _counts(run: Run, mask: Mask) -> Counts:
    mask = mask & (run.records.phase == STEADY)
    kinds = {kind.code: kind.count for kind in count_failures(run, mask)}
    dropped = kinds.pop(DROPPED, 0)
    ok = int((mask & (run.records.rows["failure"] == 0)).sum())
    return Counts(ok, sum(kinds.values()), dropped, kinds)


def _metrics(run: Run, mask: Mask, gaps: Values, as_inf: bool) -> dict[str, Distribution]:
    """Statistics of every metric, for the rows of `mask` that are in the window. Reorders `gaps`."""
    rows = run.records.rows
    steady = mask & (run.records.phase == STEADY)
    chosen = {"ok": steady & (rows["failure"] == 0), "sent": steady & (rows["sent"] != MISSING)}
    failed = int(np.count_nonzero(steady & ~chosen["ok"])) if as_inf else 0
    buffer = np.empty(len(rows))
    distributions = {}
    for name, metric in METRICS.items():
        if metric.values is None:
            distributions[name] = distribution(gaps, metric.unit, scale=NS)
        else:
            values = _values(metric.values, rows, chosen[metric.of], buffer)
            distributions[name] = distribution(values, metric.unit, failed if metric.can_fail else 0)
    return distributions


def _values(of: Callable[[Columns], Column], rows: Columns, chosen: Mask, buffer: Column) -> Column:
    """A metric's known values for the `chosen` rows, written to `buffer`. Works in blocks that fit into the cache."""
    filled = 0
    for at in range(0, len(rows), _BLOCK):
        block = slice(at, at + _BLOCK)
        values = of(rows[block][chosen[block]])
        values = values[~np.isnan(values)]
        buffer[filled : filled + len(values)] = values
        filled += len(values)
    return buffer[:filled]


def _throughput(run: Run, mask: Mask, stages: range, settled: Settled) -> tuple[MeasuredWindow, Throughput]:
    """The window and the rates of the rows of `mask`, which are those of `stages`.

    Requests that complete within the window count, even if they were sent in the warm-up: that way neither edge of the window
    biases the rate. A request that completes exactly when the window begins does not count, because all of its work was
    before the window: in closed loop, its end starts the next request.
    """
    rows, phase = run.records.rows, run.records.phase
    sizes = {name: int((mask & (phase == number)).sum()) for number, name in enumerate(PHASES)}
    ended = rows[mask & (phase == STEADY) & (rows["done"] != MISSING)]
    if not len(ended):
        return MeasuredWindow(0.0, 0.0, 0.0, sizes), Throughput()
    start = 0 if stages.start == 0 and not sizes[PHASES[WARMUP]] else int(ended["intended"].min())
    tail = rows[mask & (phase == COOLDOWN) & (rows["intended"] >= ended["intended"].max())]
    end = int(tail["intended"].min()) if len(tail) else int(ended["done"].max())
    start, end = _stable_edges(settled, stages, start, end)
    span = max(end - start, 0) / NS
    window = MeasuredWindow(start / NS, end / NS, span, sizes)
    if not span:
        return window, Throughput()
    if all(plan.open and not plan.stable for plan in run.manifest.plan[stages.start : stages.stop]):
        start, end = without_edges(rows[mask], start, end)
        span = (end - start) / NS
    inside = rows[mask & (rows["failure"] == 0) & (rows["done"] > start) & (rows["done"] <= end)]
    tokens_in, tokens_out = _total(inside["n_in"]), _total(inside["n_out"])
    both = None if tokens_in is None or tokens_out is None else tokens_in + tokens_out
    batch = settings.number(run.manifest.server, "batch")
    inferences = None if batch is None else len(inside) * batch
    rates = (None if total is None else total / span for total in (tokens_out, tokens_in, both, inferences))
    found = Throughput(len(inside) / span, *rates)
    return window, msgspec.structs.replace(found, offered=offered(rows[mask & (phase == STEADY)]))


def _stable_edges(settled: Settled, stages: range, start: int, end: int) -> tuple[int, int]:
    """The edges of the window; a stage that ended when it was stable counts from its first stable window to its last."""
    first, last = (settled.get(stage, stability.Stability()).settled for stage in (stages.start, stages.stop - 1))
    return (first[0] if first else start), (last[1] if last else end)


def _together(window: MeasuredWindow, stages: tuple[StageSummary, ...]) -> tuple[MeasuredWindow, Throughput]:
    """The whole run's window and rates, from the stages' windows only: what came before a stage was stable does not count."""
    span = math.fsum(stage.window.span for stage in stages)
    rates = {}
    for name in Throughput.__struct_fields__:
        known = [(getattr(stage.throughput, name), stage.window.span) for stage in stages]
        done = [rate * seconds for rate, seconds in known if rate is not None]
        rates[name] = math.fsum(done) / span if done and span else None
    return msgspec.structs.replace(window, span=span), Throughput(**rates)


def _total(tokens: NDArray[np.int32]) -> int | None:
    """Sum of the token counts; None if one is not known, such as that of a later turn without the server's usage."""
    return int(tokens.sum(dtype=np.int64)) if (tokens >= 0).all() else None


def _definitions(checks: tuple[Check, ...], is_split: bool) -> dict[str, str]:
    """Definitions of the names that this summary uses."""
    return (
        {name: metric.definition for name, metric in METRICS.items()}
        | {f"throughput.{name}": definition for name, definition in RATES.items()}
        | ({f"breakdown.{name}": definition for name, definition in PARTS.items()} if is_split else {})
        | {f"check.{check.name}": CHECKS[check.name].definition for check in checks}
    )
