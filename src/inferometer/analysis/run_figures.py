"""The figures of a run that comparisons are about, by name: ttft.p99, e2e.mean, throughput.requests, goodput.

A figure has a value, and a standard error of its logarithm from within the run: for percentiles by the circular block bootstrap
(time_bootstrap.py), for means, rates and goodput from their confidence intervals, which come from blocks of time as well.
"""

import math
from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import settings, student, time_bootstrap
from inferometer.analysis.blocks import BLOCKS
from inferometer.analysis.distributions import counts_as_inf
from inferometer.analysis.log_ratio import CONFIDENCE
from inferometer.analysis.metrics import METRICS
from inferometer.analysis.percentiles import PERCENTILES, Distribution
from inferometer.analysis.slo import Goodput
from inferometer.analysis.summary import StageSummary, Summary
from inferometer.analysis.throughput import Throughput
from inferometer.analysis.window import STEADY
from inferometer.records import Run
from inferometer.units import NS

STATISTICS = {"mean": "mean", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p99.9": "p999"}
"""The statistics of a metric, as users write them, and their fields in Distribution."""
RATES = ("requests", "output_tokens", "input_tokens", "total_tokens", "inferences")
HIGHER_IS_BETTER = ("tps_user",)
FAILURE_RATE = "failure_rate"
"""A share that may be 0: compared by its difference (share_difference.py), and not a figure with a ratio."""
_OURS = ("lag", "client_lag", "read_delay")
"""Times of the client itself: they say nothing about the server."""
_TIMES = [name for name, metric in METRICS.items() if metric.unit == "s" and name not in _OURS]

NAMES = (
    *(f"{metric}.{statistic}" for metric in (*_TIMES, *HIGHER_IS_BETTER) for statistic in STATISTICS),
    *(f"throughput.{rate}" for rate in RATES),
    "goodput",
    FAILURE_RATE,
)
USUAL = (
    *(f"{metric}.{statistic}" for metric in ("ttft", "itl", "tpot", "e2e", "queue", "compute", "protocol", "network")
      for statistic in ("mean", "p50", "p90", "p95", "p99")),
    "throughput.requests", "throughput.output_tokens", "throughput.inferences", "goodput",
)  # fmt: skip
"""The figures that are compared without being named."""
GROWING = ("ttft", "e2e", "queue")
"""Metrics that grow for as long as a server is overloaded."""
_MOST_GAPS = 4_000_000
"""Gaps between chunks that a bootstrap looks at; of more responses, every k-th is used."""


class Figure(msgspec.Struct, frozen=True):
    """One figure of one run, or of one of its stages."""

    value: float | None
    count: int = 0
    """How many requests it is computed from."""
    unit: str = "s"
    is_supported: bool = True
    """Whether there are enough values for this percentile."""
    relative_error: float | None = None
    """Standard error of its logarithm, if its confidence interval gives one."""
    is_steady: bool = True
    """Whether it has a steady value: the latencies of an overloaded stage depend on how long it lasted, and are left out."""

    @property
    def has_ratio(self) -> bool:
        """Whether it can be divided: it is known, positive and finite. A gap may be 0, and with failures a percentile is infinite."""
        return self.value is not None and 0 < self.value < math.inf


Part = Summary | StageSummary


def is_higher_better(name: str) -> bool:
    return name.startswith(("throughput.", "goodput")) or name.partition(".")[0] in HIGHER_IS_BETTER


def parts(summary: Summary) -> tuple[Part, ...]:
    """What has figures of its own: the stages, or the run if it has only one."""
    return summary.stages or (summary,)


def figure(part: Part, name: str) -> Figure:
    """One figure; its value is None if it was not measured, or has no steady value."""
    metric, _, statistic = name.partition(".")
    if metric == "throughput":
        return _rate(part.throughput, statistic, part.counts.ok)
    if metric == "goodput":
        return _goodput(part.goodput, part.counts.ok)
    found = part.metrics.get(metric, Distribution(unit="s", count=0))
    if part.overload is not None and part.overload.status == "overloaded":
        return Figure(None, 0, found.unit, is_steady=False)
    field = STATISTICS[statistic]
    value = found.mean if field == "mean" else found.value(field) if found.count else None
    interval = found.ci.get("mean", (None, None)) if field == "mean" else (None, None)
    count = part.counts.ok if metric == "itl" else found.count  # the count of itl is one of gaps
    return Figure(value, count, found.unit, field not in found.unsupported, _relative_error(value, interval))


def _rate(rates: Throughput, name: str, count: int) -> Figure:
    value: float | None = getattr(rates, name)
    interval = rates.ci.get(name, (None, None))
    return Figure(value or None, count, "/s", relative_error=_relative_error(value, interval))


def _goodput(goodput: Goodput | None, count: int) -> Figure:
    if goodput is None or not goodput.rate:
        return Figure(None, 0, "/s")
    error = _relative_error(goodput.rate, goodput.ci["rate"])
    return Figure(goodput.rate, count, "/s", relative_error=error)


def _relative_error(value: float | None, interval: tuple[float | None, float | None]) -> float | None:
    low, high = interval
    if not value or low is None or high is None or not math.isfinite(high):
        return None
    return (high - low) / (2 * student.quantile(CONFIDENCE, BLOCKS - 1) * value)


# --- standard errors of percentiles ----------------------------------------------------------------------------------


def percentile_errors(run: Run, stage: int | None, metrics: Mapping[str, tuple[str, ...]]) -> dict[str, float | None]:
    """Standard errors of the logarithms of percentiles, by name; `metrics` has the statistics wanted of each metric.

    None if it has none: a replicate of the percentile is infinite or 0, because requests failed.
    """
    errors: dict[str, float | None] = {}
    for metric, statistics in metrics.items():
        values, at = _gaps(run, stage) if metric == "itl" else _values(run, stage, metric)
        wanted = {statistic: PERCENTILES[STATISTICS[statistic]] for statistic in statistics}
        if len(values) < 2:
            errors |= {f"{metric}.{statistic}": None for statistic in statistics}
            continue
        found = time_bootstrap.percentile_replicates(values, at, tuple(wanted.values()))
        for statistic, thousandths in wanted.items():
            errors[f"{metric}.{statistic}"] = _log_deviation(found[thousandths])
    return errors


def _log_deviation(replicates: NDArray[np.float64]) -> float | None:
    """The standard deviation of the logs; blocks that are drawn from BLOCKS blocks vary a little too little."""
    if not np.isfinite(replicates).all() or (replicates <= 0).any():
        return None
    return float(np.log(replicates).std(ddof=1)) * math.sqrt(BLOCKS / (BLOCKS - 1))


def _counted(run: Run, stage: int | None) -> NDArray[np.bool_]:
    counted: NDArray[np.bool_] = run.records.phase == STEADY
    return counted if stage is None else counted & (run.records.rows["stage"] == stage)


def _values(run: Run, stage: int | None, metric: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The metric's values, with failed requests as +inf if they count, and the intended instants."""
    compute = METRICS[metric].values
    assert compute is not None
    rows, counted = run.records.rows, _counted(run, stage)
    good = counted & (rows["failure"] == 0)
    values, at = compute(rows[good]), rows["intended"][good]
    known = ~np.isnan(values)
    values, at = values[known], at[known]
    if settings.measure(run.manifest).failures_as_inf and METRICS[metric].can_fail and len(values):
        failed = rows["intended"][counted & counts_as_inf(run)]
        values, at = np.concatenate([values, np.full(len(failed), np.inf)]), np.concatenate([at, failed])
    return values, at


def _gaps(run: Run, stage: int | None) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Gaps between the chunks of successful responses, in seconds, and when each ended."""
    rows = run.records.rows
    own = rows[_counted(run, stage) & (rows["failure"] == 0) & (rows["chunk_count"] > 1)]
    every = max(-(-int(own["chunk_count"].sum(dtype=np.int64)) // _MOST_GAPS), 1)
    own = own[::every]
    is_gap = np.zeros(run.chunk_total + 1, np.int8)  # +1 where gaps of a response begin, -1 behind them
    np.add.at(is_gap, own["chunk_start"] + 1, 1)
    np.add.at(is_gap, own["chunk_start"] + own["chunk_count"], -1)
    inside = np.cumsum(is_gap, dtype=np.int8).astype(np.bool_)
    gaps, ends, position, previous = [], [], 0, 0
    for piece in run.chunks():
        if not len(piece.arrival):
            continue
        mask = inside[position : position + len(piece.arrival)]
        gap = np.diff(piece.arrival, prepend=previous)
        gaps.append(gap[mask] / NS)
        ends.append(piece.arrival[mask])
        position, previous = position + len(piece.arrival), int(piece.arrival[-1])
    if not gaps:
        return np.zeros(0), np.zeros(0, np.int64)
    return np.concatenate(gaps), np.concatenate(ends)
