"""Judge service level objectives: met, missed, or undecided and how much longer to run.

An objective is met only if the run shows it with 95 % confidence, and missed only if the run shows the opposite.

"ttft.p99 < 500ms" says that at most 1 % of the requests violate ttft < 500ms. So a percentile is judged by the number of
violations, with the exact binomial test (binomial.py), and a failed or dropped request is a violation. Requests that are in
flight together resemble each other: n requests count as n / design effect independent ones (blocks.py). Few violations say
little about how they cluster, so the design effect is the largest of the violations' own and those of the metric's p90 and
p99 (percentiles.EFFECTS); and it is itself an estimate from 20 blocks, for which it is raised by (Student's t / normal
quantile)^2. Simulated at exactly the limit (250 to 420 runs each; independent requests, and M/M/1 queues at 50 and 80 % load;
500 to 30,000 requests), "p99" is then wrongly met in 0 to 6 % of runs, and "p90" in up to 3 % (independent) and 6 % (50 % load).
At 80 % load a run of 500 requests is only a few busy periods long, and too short for its blocks: "p90" is wrongly met in 19 %,
with 2,000 requests in 11 %, and with 10,000 in 5 %; "p50" in 9 %, 5 % and 2 %.

Means, rates and gaps between chunks are judged by their confidence intervals.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import binomial
from inferometer.analysis.blocks import BLOCKS, Proportion, proportion
from inferometer.analysis.checks.evidence import StageEvidence
from inferometer.analysis.metrics import METRICS
from inferometer.analysis.percentiles import PERCENTILES
from inferometer.analysis.slo_expression import Condition, Mask, Slo, holds, met
from inferometer.analysis.throughput import Throughput
from inferometer.records import CANCELLED, LOST, MISSING, Run
from inferometer.units import NS, format_number, format_seconds

Status = Literal["met", "missed", "undecided"]
_WORST: tuple[Status, ...] = ("missed", "undecided", "met")
_FAILURES_VIOLATE = ("tpot", "ntpot")
"""Latencies that a failed request violates any limit on, beside those in which it counts as infinitely slow."""
_RAISED = (1.7291 / 1.6449) ** 2
"""(95 % quantile of Student's t with BLOCKS - 1 degrees of freedom / that of the normal distribution)^2."""
assert BLOCKS == 20
_PER_REQUEST = ("input_tokens", "total_tokens", "inferences")
"""Rates without an interval of their own: requests per second times what is in a request."""
Bounds = tuple[float | None, float | None]


class SloResult(msgspec.Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    """How one objective was judged."""

    slo: str
    """The expression; that of a traffic class begins with its name and a colon."""
    status: Status
    reason: str
    """What was observed, in a sentence."""
    value: float | None = None
    """What was measured: in seconds, per second, or a share."""
    limit: float
    ci: Bounds | None = None
    """Confidence interval of the value. One for a share has 95 % on each side."""
    violations: float | None = None
    """Share of the requests that violate the limit, for objectives about single requests."""
    allowed: float | None = None
    """Share of the requests that may violate it."""
    more_seconds: float | None = None
    """Undecided: about how much longer to run. None if no run of a reasonable length would decide."""
    stages: tuple[int, ...] = ()
    """Of a run with several stages: indices of the stages with this status, the worst of all."""
    class_: str = ""
    """The traffic class whose requests were judged; empty: all requests were."""

    @property
    def expression(self) -> str:
        """The expression alone."""
        return self.slo.removeprefix(f"{self.class_}: ")


class Goodput(msgspec.Struct, frozen=True):
    """Requests intended in the window that met every objective's limit for a single request. Failed ones did not."""

    attainment: float
    """Their share."""
    rate: float | None
    """How many per second: attainment x requests intended per second."""
    ci: dict[str, Bounds]
    """95 % confidence intervals of both."""
    slos: tuple[str, ...]
    """The limits."""


def judge(run: Run, stage: StageEvidence, slos: Sequence[Slo], tail: float = binomial.TAIL) -> tuple[SloResult, ...]:
    """Judge the objectives for one stage. `tail` is how often counting violations may be wrong: less than 5 % for someone who
    judges a stage several times while it runs."""
    counted = _Counted(run, stage)
    return tuple(_judge(counted, slo, tail) for slo in slos)


def goodput(run: Run, stage: StageEvidence, slos: Sequence[Slo]) -> Goodput | None:
    """The stage's goodput; None if no objective says anything about single requests, or if they cannot be judged."""
    forms = [form for slo in slos if (form := slo.per_request()) is not None]
    conditions = tuple(dict.fromkeys(condition for form in forms for condition in form))
    counted = _Counted(run, stage)
    if not forms or not len(counted.at) or any(counted.is_unknown(condition.metric) for condition in conditions):
        return None
    good = counted.share(met(conditions, counted.rows), conditions)
    assert good.share is not None
    rate = counted.rate
    ends = (good.low, good.high)
    rates = tuple(None if rate is None or end is None else end * rate for end in ends)
    return Goodput(
        good.share,
        None if rate is None else good.share * rate,
        {"attainment": ends, "rate": (rates[0], rates[1])},
        tuple(map(str, conditions)) or ("success",),
    )


def together(stages: Sequence[tuple[int, tuple[SloResult, ...]]]) -> tuple[SloResult, ...]:
    """The objectives of a run with several stages: each as in the first of the stages where it did worst."""
    combined = []
    for results in zip(*(results for _, results in stages), strict=True):
        worst = next(status for status in _WORST if any(result.status == status for result in results))
        where = [(number, one) for (number, _), one in zip(stages, results, strict=True) if one.status == worst]
        more = [one.more_seconds for _, one in where if one.more_seconds is not None]
        combined.append(
            msgspec.structs.replace(
                where[0][1],
                stages=tuple(number for number, _ in where),
                more_seconds=max(more) if len(more) == len(where) else None,
            )
        )
    return tuple(combined)


def is_passed(results: Iterable[SloResult], allow_undecided: bool = False) -> bool:
    """Whether every objective is met, or undecided if that is allowed."""
    return all(result.status == "met" or (allow_undecided and result.status == "undecided") for result in results)


# --- what is judged --------------------------------------------------------------------------------------------------


class _Counted:
    """The requests of a stage that count: those in its window that were not cancelled or lost by the client."""

    def __init__(self, run: Run, stage: StageEvidence) -> None:
        own = [n for n, failure in enumerate(run.records.failures, 1) if failure.code in (CANCELLED, LOST)]
        rows = run.records.rows
        self.rows = rows[stage.steady & ~np.isin(rows["failure"], own)] if own else rows[stage.steady]
        self.at: NDArray[np.int64] = self.rows["intended"]
        self.failed: Mask = self.rows["failure"] != 0
        self.stage = stage
        self.values = lru_cache(self._values)

    @cached_property
    def window(self) -> tuple[int, int]:
        return (int(self.at.min()), int(self.at.max()) + 1) if len(self.at) else (0, 1)

    @property
    def span(self) -> float:
        """Seconds from the first intended instant to the last."""
        start, end = self.window
        return (end - 1 - start) / NS

    @property
    def rate(self) -> float | None:
        """Requests intended per second."""
        return (len(self.at) - 1) / self.span if self.span else None

    def _values(self, metric: str) -> NDArray[np.float64]:
        """One value per request: inf for a failed one if that violates any limit, NaN if there is none."""
        compute = METRICS[metric].values
        assert compute is not None
        values = compute(self.rows)
        if METRICS[metric].of == "sent":
            return np.where(self.rows["sent"] == MISSING, np.nan, values)
        violates = METRICS[metric].can_fail or metric in _FAILURES_VIOLATE
        return np.where(self.failed, np.inf if violates else np.nan, values)

    def is_unknown(self, metric: str) -> bool:
        """Whether no request that succeeded has a value, although some succeeded."""
        return bool(np.isnan(self.values(metric)[~self.failed]).all() and not self.failed.all())

    def effect(self, metric: str) -> float:
        """The larger of the design effects of the metric's p90 and p99."""
        return self.stage.metrics[metric].design_effect.get("p99", 1.0)

    def share(self, hit: Mask, conditions: Iterable[Condition], of: Mask | slice = slice(None)) -> Proportion:
        """The share of requests (`of` these) that are `hit`, with a design effect that suits the conditions' metrics."""
        least = max((self.effect(condition.metric) for condition in conditions), default=1.0)
        return proportion(hit[of], self.at[of], *self.window, least)


def _judge(counted: _Counted, slo: Slo, tail: float) -> SloResult:
    if not len(counted.at):
        return _result(slo, "undecided", "no request in the window counts")
    unknown = [name for name in slo.metrics if METRICS[name].values is not None and counted.is_unknown(name)]
    if unknown:
        return _result(slo, "undecided", f"{' and '.join(unknown)} could not be measured: no response has a value")
    overload = counted.stage.overload
    if any(METRICS[name].unit == "s" for name in slo.metrics):
        if overload.status == "overloaded":
            growth = "" if overload.growth is None else f", the queue grew by {overload.growth:.3g} requests/s"
            return _result(slo, "missed", f"overloaded: no steady value{growth}")
        if overload.status == "too_short":
            return _too_short(counted, slo)
    if slo.kind == "throughput" or slo.statistic == "mean" or slo.name == "itl":
        return _by_interval(counted, slo)
    return _by_share(counted, slo, tail)


def _too_short(counted: _Counted, slo: Slo) -> SloResult:
    overload = counted.stage.overload
    needs: float | None = getattr(overload, "needs", None)
    more = None if needs is None else _seconds(needs - counted.span)
    result = _result(slo, "undecided", f"the stage is too short to tell: {overload.reason}")
    return msgspec.structs.replace(result, more_seconds=more)


def _result(slo: Slo, status: Status, reason: str) -> SloResult:
    return SloResult(slo=str(slo), status=status, reason=reason, limit=slo.threshold.value)


# --- by the share of violations --------------------------------------------------------------------------------------


def _by_share(counted: _Counted, slo: Slo, tail: float) -> SloResult:
    """Judge a percentile, a failure rate or a goodput by the number of requests that violate it."""
    conditions = slo.per_request() or ()
    of: Mask = np.ones(len(counted.at), np.bool_)
    if slo.kind == "metric":
        values = counted.values(slo.name)
        of = ~np.isnan(values)
        bad = ~holds(values, slo.sign, slo.threshold.value)
    else:
        bad = ~met(conditions, counted.rows)
    allowed = _allowed(counted, slo)
    if allowed is None:
        return _result(slo, "undecided", "too few requests to have a rate")
    if allowed < 0:
        return _result(slo, "missed", f"only {counted.rate:.4g} requests/s were intended")
    if not of.any():  # a failed request has no value unless it violates any limit
        return _result(slo, "undecided", f"{slo.name} could not be measured: every request failed")
    found = counted.share(bad, conditions, of)
    assert found.share is not None and found.design_effect is not None
    n = found.count / (found.design_effect * _RAISED)
    k = found.share * n
    status: Status = "undecided"
    if binomial.is_above(k, n, allowed, tail):
        status = "missed"
    elif binomial.is_below(k, n, allowed, tail):
        status = "met"
    more = None
    if status == "undecided" and (needed := binomial.needed(found.share, allowed)) is not None and counted.span:
        more = _seconds((needed / n - 1) * counted.span)
    value, ci = _figure(counted, slo, found.share, binomial.bounds(k, n))
    failed = int(np.count_nonzero(counted.failed & bad & of)) if slo.kind != "failure_rate" else 0
    return SloResult(
        slo=str(slo),
        status=status,
        reason=_shares_text(slo, found, allowed, failed) + _more_text(status, more),
        value=value,
        limit=slo.threshold.value,
        ci=ci,
        violations=found.share,
        allowed=allowed,
        more_seconds=more,
    )


def _allowed(counted: _Counted, slo: Slo) -> float | None:
    """The share of requests that may violate the objective; negative if no share is small enough, None if not known."""
    if slo.kind == "metric":
        beyond = (1000 - PERCENTILES[slo.statistic]) / 1000
        return beyond if slo.sign[0] == "<" else 1 - beyond
    if slo.kind == "failure_rate":
        return slo.threshold.value
    if slo.is_share:
        return (100 - slo.threshold.number) / 100
    return None if counted.rate is None else 1 - slo.threshold.value / counted.rate


def _figure(counted: _Counted, slo: Slo, share: float, bounds: tuple[float, float]) -> tuple[float | None, Bounds]:
    """The value that was measured, and its interval."""
    if slo.kind == "metric":
        figures = counted.stage.metrics[slo.name]
        return figures.value(slo.statistic), figures.ci.get(slo.statistic, (None, None))
    if slo.kind == "failure_rate":
        return share, bounds
    scale = 1.0 if slo.is_share else counted.rate or 0.0
    return (1 - share) * scale, ((1 - bounds[1]) * scale, (1 - bounds[0]) * scale)


def _shares_text(slo: Slo, found: Proportion, allowed: float, failed: int) -> str:
    share = found.share or 0.0
    verb = {"failure_rate": "failed", "goodput": "missed a limit"}.get(slo.kind, "violate it")
    among = f" ({failed:,} of them failed)" if failed else ""
    return f"{_percent(share)} of {found.count:,} requests {verb}{among}, {_percent(allowed)} may"


# --- by the interval of the value ------------------------------------------------------------------------------------


def _by_interval(counted: _Counted, slo: Slo) -> SloResult:
    """Judge a mean, a rate or a percentile of the gaps: met if all of its confidence interval is on the right side."""
    value, ci, needs = _measured(counted, slo)
    if value is None:
        why = getattr(counted.stage.throughput, "reason", "") if slo.kind == "throughput" else ""
        return _result(slo, "undecided", why or f"{slo.subject} could not be measured")
    limit, is_upper = slo.threshold.value, slo.sign[0] == "<"
    best, worst = ci if is_upper else ci[::-1]
    status: Status = "undecided"
    if worst is not None and _holds(slo, worst):
        status = "met"
    elif best is not None and not _holds(slo, best):
        status = "missed"
    more = None
    if status == "undecided":
        ends = (worst, best) if _holds(slo, value) else (best, worst)
        more = _more_for_interval(value, limit, ends[0], counted.span) if ends[0] is not None else needs
    text = _interval_text(counted, slo, ci)
    if more is not None or ci != (None, None):
        text += _more_text(status, more)
    return SloResult(
        slo=str(slo),
        status=status,
        reason=text,
        value=value,
        limit=limit,
        ci=ci,
        more_seconds=more,
    )


def _measured(counted: _Counted, slo: Slo) -> tuple[float | None, Bounds, float | None]:
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
    return _seconds(((width / distance) ** 2 - 1) * span)


def _holds(slo: Slo, value: float) -> bool:
    return bool(holds(np.array([value]), slo.sign, slo.threshold.value)[0])


# --- text ------------------------------------------------------------------------------------------------------------


def _seconds(more: float) -> float:
    """Two significant digits, rounded up, at least one second: it is a projection."""
    if more <= 1:
        return 1.0
    step = 10.0 ** (math.floor(math.log10(more)) - 1)
    return float(f"{math.ceil(more / step) * step:.2g}")


def _more_text(status: Status, more: float | None) -> str:
    if status != "undecided":
        return ""
    return "; too close to the limit to tell" if more is None else f"; run about {format_seconds(more)} longer"


def _interval_text(counted: _Counted, slo: Slo, ci: Bounds) -> str:
    if ci == (None, None):
        if slo.kind == "throughput" and slo.name not in (*counted.stage.throughput.ci, *_PER_REQUEST):
            return f"this run has no confidence interval for {slo.subject}"
        return f"too few {'responses' if slo.kind == 'throughput' else 'values'} for a confidence interval"
    return f"95 % confidence interval {' .. '.join('-' if end is None else slo.amount(end) for end in ci)}"


def _percent(share: float) -> str:
    return f"{format_number(100 * share, 3)}%"
