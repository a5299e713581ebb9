"""Judge a mean, a rate or a percentile of the gaps: by its confidence interval, or by how far everything measured is from the limit."""

import math

import numpy as np

from inferometer.analysis import margin
from inferometer.analysis.slo_expression import Slo
from inferometer.analysis.slo_requests import JudgedRequests, allowed_share
from inferometer.analysis.slo_result import (
    Bounds,
    By,
    SloResult,
    Status,
    is_held,
    is_within,
    projected,
    result,
    within_text,
)
from inferometer.analysis.throughput import Throughput

_PER_REQUEST = ("input_tokens", "total_tokens", "inferences")
"""Rates without an interval of their own: requests per second times what is in a request."""


def by_interval(counted: JudgedRequests, slo: Slo, is_short: bool) -> SloResult:
    """Judge a mean, a rate or a percentile of the gaps: met if all of its confidence interval is on the right side."""
    value, ci, needs = _measured(counted, slo)
    if value is None:
        why = getattr(counted.stage.throughput, "reason", "") if slo.kind == "throughput" else ""
        return result(slo, "undecided", why or f"{slo.subject} could not be measured")
    limit, is_upper = slo.threshold.value, slo.sign[0] == "<"
    best, worst = ci if is_upper else ci[::-1]
    status: Status = "undecided"
    by: By = ""
    if not is_short and worst is not None and is_held(slo, worst):
        status, by = "met", "interval"
    elif best is not None and not is_held(slo, best):
        status, by = "missed", "interval"
    else:
        status, by = _far_interval(counted, slo, value)
    more = None
    if status == "undecided":
        ends = (worst, best) if is_held(slo, value) else (best, worst)
        more = _more_for_interval(value, limit, ends[0], counted.span) if ends[0] is not None else needs
    text = _interval_text(counted, slo, ci)
    if by == "margin":
        text = f"{status} with margin: all that was measured is far from the limit"
    elif status == "undecided":
        text = f"too close to the limit{within_text(slo, value)}; {text}"
    return SloResult(
        slo=str(slo),
        status=status,
        by=by,
        within=is_within(slo, value),
        reason=text,
        value=value,
        limit=limit,
        ci=ci,
        more_seconds=more,
    )


def _far_interval(counted: JudgedRequests, slo: Slo, value: float) -> tuple[Status, By]:
    """By the distance from the limit of all values of a metric, or of the rate, if the interval does not tell.

    The gaps of one response resemble each other, so each request counts once."""
    low = high = value
    if slo.kind == "metric":
        figures = counted.stage.metrics[slo.name]
        low, high = (value if end is None else end for end in (figures.min, figures.max))
    ends = np.array([low, high])
    near = margin.closeness(ends, slo.sign, slo.threshold.value)
    is_share = slo.kind == "metric" and slo.statistic != "mean"
    allowed = allowed_share(counted, slo) if is_share else None
    if margin.is_far(float(near.max()), len(counted.at), allowed or margin.CLEAR):
        return "met", "margin"
    closest = float(near.min())
    if margin.is_far(1 / closest if closest else math.inf, len(counted.at)):
        return "missed", "margin"
    return "undecided", ""


def _measured(counted: JudgedRequests, slo: Slo) -> tuple[float | None, Bounds, float | None]:
    """The value, its interval, and how much longer to run if the interval has no end because there are too few values."""
    if slo.kind == "throughput":
        rates = counted.stage.throughput
        return getattr(rates, slo.name), _interval_of_rate(rates, slo.name), None
    figures = counted.stage.metrics[slo.name]
    short = figures.unsupported.get(slo.statistic)
    interval = figures.ci.get(slo.statistic, (None, None))
    return figures.value(slo.statistic), interval, short.more_seconds if short else None


def _interval_of_rate(rates: Throughput, name: str) -> Bounds:
    """The confidence interval of a rate. One that follows from the number of requests has their relative width."""
    intervals: dict[str, Bounds] = getattr(rates, "ci", {})
    value = getattr(rates, name)
    if name == "offered":  # it was chosen, not sampled
        return value, value
    if name in intervals or name not in _PER_REQUEST or not rates.requests or value is None:
        return intervals.get(name, (None, None))
    low, high = (
        None if end is None else value * end / rates.requests for end in intervals.get("requests", (None, None))
    )
    return low, high


def _more_for_interval(value: float, limit: float, end: float, span: float) -> float | None:
    """How much longer to run until the interval, which narrows with the square root of time, ends at the limit."""
    width, distance = abs(end - value), abs(limit - value)
    if not distance or not math.isfinite(width / distance):
        return None
    return projected(((width / distance) ** 2 - 1) * span)


def _interval_text(counted: JudgedRequests, slo: Slo, ci: Bounds) -> str:
    if ci == (None, None):
        if slo.kind == "throughput" and slo.name not in (*counted.stage.throughput.ci, *_PER_REQUEST):
            return f"this run has no confidence interval for {slo.subject}"
        return f"too few {'responses' if slo.kind == 'throughput' else 'values'} for a confidence interval"
    return f"95 % confidence interval {' .. '.join('-' if end is None else slo.amount(end) for end in ci)}"
