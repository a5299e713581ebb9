"""Judge a percentile, a failure rate or a goodput: by the number of requests that violate it, or by how far they are from the limit.

slo.py describes the method.
"""

import math

import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import binomial, margin
from inferometer.analysis.metrics import METRICS
from inferometer.analysis.slo_expression import Mask, Slo, holds, met
from inferometer.analysis.slo_requests import JudgedRequests, allowed_share
from inferometer.analysis.slo_result import (
    Bounds,
    By,
    SloResult,
    Status,
    is_within,
    percent,
    projected,
    result,
    within_text,
)

LEAST = 175
"""Counting shows that an objective is met from this number of independent requests on."""


def by_count(counted: JudgedRequests, slo: Slo, tail: float, is_short: bool) -> SloResult:
    """Judge a percentile, a failure rate or a goodput by the requests that violate it, and by how far the others are from that.

    A stage that is too short (`is_short`) is no sample of what comes after it, so that few violations in it show nothing.
    """
    conditions = slo.per_request() or ()
    of: Mask = np.ones(len(counted.at), np.bool_)
    if slo.kind == "metric":
        values = counted.values(slo.name)
        of = ~np.isnan(values)
        bad = ~holds(values, slo.sign, slo.threshold.value)
    else:
        bad = ~met(conditions, counted.rows)
    allowed = allowed_share(counted, slo)
    if allowed is None:
        return result(slo, "undecided", "too few requests to have a rate")
    if allowed < 0:
        return result(slo, "missed", f"only {counted.rate:.4g} requests/s were intended")
    if not of.any():  # a failed request has no value unless it violates any limit
        return result(slo, "undecided", f"{slo.name} could not be measured: every request failed")
    near = counted.closeness(slo)
    own, largest = counted.design_effects(bad, near, of, allowed)
    count, share = int(of.sum()), int((bad & of).sum()) / int(of.sum())
    most, least = count / own, count / largest  # independent requests, to show that it is missed, and that it is met
    status: Status = "undecided"
    by: By = ""
    if binomial.is_above(share * most, most, allowed, tail):
        status, by = "missed", "count"
    elif not is_short and least >= LEAST and binomial.is_below(share * least, least, allowed, tail):
        status, by = "met", "count"
    else:
        status, by = _by_margin(near[of], allowed)
    bounds = (binomial.bounds(share * most, most)[0], binomial.bounds(share * least, least)[1])
    value, ci = _figure(counted, slo, share, bounds)
    failed = int(np.count_nonzero(counted.failed & bad & of)) if slo.kind != "failure_rate" else 0
    text, more = _shares_text(slo, share, count, allowed, failed), None
    if by == "count":
        text += f", and they count as {max(math.floor(most if status == 'missed' else least), 1):,} independent ones"
    elif by == "margin":
        text = _margin_text(slo, status, near[of], allowed, text)
    else:
        by_count = binomial.needed(share, allowed) or math.inf
        times = by_count / most
        if share <= allowed:
            times = min(max(by_count, LEAST) / least, margin.needed(near[of], allowed) / count)
        more = projected((times - 1) * counted.span) if counted.span and times < math.inf else None
        text = f"too close to the limit for {count:,} requests{within_text(slo, value)}; {text}"
    return SloResult(
        slo=str(slo),
        status=status,
        by=by,
        within=is_within(slo, value),
        reason=text,
        value=value,
        limit=slo.threshold.value,
        ci=ci,
        violations=share,
        allowed=allowed,
        more_seconds=more,
    )


def _by_margin(near: NDArray[np.float64], allowed: float) -> tuple[Status, By]:
    if len(near) >= margin.needed(near, allowed):
        return "met", "margin"
    fastest = float(near.min())
    if fastest < math.inf and margin.is_far(1 / fastest if fastest else math.inf, len(near)):
        return "missed", "margin"
    return "undecided", ""


def _margin_text(slo: Slo, status: Status, near: NDArray[np.float64], allowed: float, shares: str) -> str:
    """How far which requests are from the limit."""
    requests = f"{len(near):,} request{'' if len(near) == 1 else 's'}"
    are_times = all(METRICS[name].unit == "s" for name in slo.metrics)
    closest = float(near.min() if status == "missed" else near.max())
    if status == "missed":
        times = _times(closest)
        text = (
            f"the fastest of {requests} took {times} times"
            if are_times
            else f"all of {requests} are {times} times beyond"
        )
        return f"missed with margin: {text} the limit"
    if closest >= 1:
        return f"met with margin: {shares}, and the others are far from the limit"
    times = _times(1 / closest) if closest else "infinitely many"
    text = (
        f"the limit is {times} times the slowest of {requests}"
        if are_times
        else f"all of {requests} are {times} times within the limit"
    )
    few = f", and {percent(allowed)} may violate it" if closest > 0.5 else ""
    return f"met with margin: {text}{few}"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


def _figure(
    counted: JudgedRequests, slo: Slo, share: float, bounds: tuple[float, float]
) -> tuple[float | None, Bounds]:
    """The value that was measured, and its interval."""
    if slo.kind == "metric":
        figures = counted.stage.metrics[slo.name]
        return figures.value(slo.statistic), figures.ci.get(slo.statistic, (None, None))
    if slo.kind == "failure_rate":
        return share, bounds
    scale = 1.0 if slo.is_share else counted.rate or 0.0
    return (1 - share) * scale, ((1 - bounds[1]) * scale, (1 - bounds[0]) * scale)


def _shares_text(slo: Slo, share: float, count: int, allowed: float, failed: int) -> str:
    verb = {"failure_rate": "failed", "goodput": "missed a limit"}.get(slo.kind, "violate it")
    among = f" ({failed:,} of them failed)" if failed else ""
    return f"{percent(share)} of {count:,} requests {verb}{among}, {percent(allowed)} may"
