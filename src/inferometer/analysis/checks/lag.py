"""Did the client send on time? In open loop, latencies count from the intended instant and so include the client's own lag."""

import math

import numpy as np

from inferometer.analysis.checks.effect import Effect, compare, judge_effects, percentiles, successful, values_of
from inferometer.analysis.checks.evidence import Check, Evidence, StageEvidence
from inferometer.analysis.metrics import client_lag, e2e_service, ttft_service
from inferometer.records import MISSING, Columns
from inferometer.units import format_seconds

SHARE = 0.005
"""Share of the median time to first token that the p99 of the lag may have without a warning, even if limits.lag is less."""
ENOUGH = 100
"""Requests from which on the p99 of the lag is judged by itself: that of fewer is their largest."""

_FROM_INTENDED = ("ttft", "e2e")
_REMEDY = "If the client is busy, use more client.processes or lower the load. If its machine is (shared and virtual machines wake up late), use a quieter one."


def lag(evidence: Evidence) -> Check | None:
    """Check open loops only: closed loops measure from the send, and their lag shows as lower concurrency."""
    effects: list[Effect] = []
    warnings: list[Check] = []
    measured: list[Check] = []
    for stage in evidence.stages:
        rows = evidence.run.records.rows[stage.steady]
        sent = rows[(rows["open_loop"] != 0) & (rows["sent"] != MISSING)]
        if not len(sent):
            continue
        lags = client_lag(sent)
        p99, allow = percentiles(lags, ["p99"])["p99"], allowed(evidence, rows)
        message = f"p99 of the client's own lag{stage.label} is {format_seconds(p99)}"
        if p99 > allow and len(sent) >= ENOUGH:
            bad = f"{message}, more than {format_seconds(allow)}, but that changes no percentile by more than {evidence.limits.effect_pass:.1%}. {_REMEDY} Or allow it with limits.lag."
            warnings.append(Check("lag", "warn", p99, allow, bad, ("latency",), (stage.stage,)))
        measured.append(Check("lag", "pass", p99, allow, message))
        if float(lags.max()) > evidence.limits.effect_least:  # no percentile can change by more than that
            effects += _effects(evidence, stage)
    if not measured:
        return None
    cause = "Latencies include the client's own lag, because it sent late"
    changed = judge_effects("lag", effects, evidence.limits, cause, _REMEDY, is_lateness=True)
    return changed or max(warnings or measured, key=lambda check: (check.value or 0.0) / (check.limit or math.inf))


def _effects(evidence: Evidence, stage: StageEvidence) -> list[Effect]:
    """What the percentiles would be if each request had been sent on time and taken just as long."""
    rows = successful(evidence, stage)
    own = np.where(rows["open_loop"] != 0, client_lag(rows), 0.0)
    effects = []
    for name in _FROM_INTENDED:
        if (values := values_of(name, rows)) is not None:
            effects += compare(stage, name, values, values - own)
    return effects


def allowed(evidence: Evidence, rows: Columns) -> float:
    """Seconds that a late send may add to a latency, relative to the time to first token or, if not streamed, end to end."""
    ok = rows[rows["failure"] == 0]
    medians = (percentiles(of(ok), ["p50"])["p50"] for of in (ttft_service, e2e_service))
    return max(float(evidence.limits.lag), SHARE * next((median for median in medians if math.isfinite(median)), 0.0))
