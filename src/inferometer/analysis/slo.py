"""Judge service level objectives: met, missed, or undecided and how much longer to run.

A decision needs evidence in proportion to how close the limit is. "ttft.p99 < 500ms" says that at most 1 % of the requests violate
ttft < 500ms, and there are two ways to show it:

count     The number of violations, with the exact binomial test (binomial.py) at 5 %. A failed or dropped request is a violation.
          Requests that are in flight together resemble each other: n requests count as n / design effect independent ones. The
          design effect comes from blocks of time (blocks.py). It is an estimate from few blocks, so it is raised by (Student's t /
          normal quantile)^2. Few violations say little about how they cluster, so before an objective is met it is the largest of
          several: of the violations and of the requests beyond the quantile that three times as many may exceed, each from 20 and
          from 10 blocks, because a block has to last longer than what makes requests resemble each other. And if fewer than
          LEAST independent requests remain, the run is too short for its blocks, and counting does not show that it is met.
margin    The distance of all requests from the limit (margin.py), for limits that are far from everything measured.

What neither decides is close to the limit, for a run of that length. bench/decisions.py has the errors of both together at exactly the
limit, and the share of runs that are decided at a distance from it, for six kinds of servers.

Means, rates and gaps between chunks are judged by their confidence intervals; where too few values have one, by margin.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import binomial, blocks, margin
from inferometer.analysis.blocks import BLOCKS, Proportion, proportion
from inferometer.analysis.checks.evidence import StageEvidence
from inferometer.analysis.metrics import METRICS
from inferometer.analysis.percentiles import PERCENTILES
from inferometer.analysis.slo_expression import Condition, Mask, Slo, holds, met
from inferometer.analysis.throughput import Throughput
from inferometer.records import CANCELLED, LOST, MISSING, Run
from inferometer.units import NS, format_number, format_seconds

Status = Literal["met", "missed", "undecided"]
By = Literal["", "count", "margin", "interval"]
_WORST: tuple[Status, ...] = ("missed", "undecided", "met")
_FAILURES_VIOLATE = ("tpot", "ntpot")
"""Latencies that a failed request violates any limit on, beside those in which it counts as infinitely slow."""
_RAISED = {count: (blocks.T[count - 2] / blocks.NORMAL) ** 2 for count in (BLOCKS, BLOCKS // 2)}
"""By how much a design effect is raised that comes from this number of blocks."""
_MORE_OFTEN = 3
"""The design effect is also estimated where this many times the allowed share of requests is beyond."""
LEAST = 175
"""Counting shows that an objective is met from this number of independent requests on."""
_PER_REQUEST = ("input_tokens", "total_tokens", "inferences")
"""Rates without an interval of their own: requests per second times what is in a request."""
Bounds = tuple[float | None, float | None]


class SloResult(msgspec.Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    """How one objective was judged."""

    slo: str
    """The expression; that of a traffic class begins with its name and a colon."""
    status: Status
    by: By = ""
    """What decided: the number of violations (`count`), the distance from the limit (`margin`) or the confidence interval
    (`interval`). Empty if it is undecided, or missed because the stage was overloaded."""
    within: bool | None = None
    """Whether the measured value is within the limit, which is what an undecided objective counts as; null without a value."""
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
    """The objectives of a run with several stages: each as in the stage where it did worst, the first if several did."""
    combined = []
    for results in zip(*(results for _, results in stages), strict=True):
        worst = next(status for status in _WORST if any(result.status == status for result in results))
        where = [(number, one) for (number, _), one in zip(stages, results, strict=True) if one.status == worst]
        worst_one = min((one for _, one in where), key=lambda one: (bool(one.within), one.by != "margin"))
        more = [one.more_seconds for _, one in where if one.more_seconds is not None]
        combined.append(
            msgspec.structs.replace(
                worst_one,
                stages=tuple(number for number, _ in where),
                more_seconds=max(more) if len(more) == len(where) else None,
            )
        )
    return tuple(combined)


def is_passed(results: Iterable[SloResult], strict: bool = False) -> bool:
    """Whether no objective fails a run: one that is undecided counts as its measured value says.

    With `strict`, everything has to be shown by counting or by an interval: undecided objectives fail it, and so do those that are
    met by margin only."""
    return all(_passes(result, strict) for result in results)


def _passes(result: SloResult, strict: bool) -> bool:
    if result.status == "undecided":
        return not strict and bool(result.within)
    return result.status == "met" and not (strict and result.by == "margin")


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

    def share(self, hit: Mask, conditions: Iterable[Condition]) -> Proportion:
        """The share of requests that are `hit`, with a design effect that suits the conditions' metrics."""
        least = max((self.effect(condition.metric) for condition in conditions), default=1.0)
        return proportion(hit, self.at, *self.window, least)

    def closeness(self, slo: Slo) -> NDArray[np.float64]:
        """How close each request is to violating the objective (margin.py): inf for a failed one, 0 if there is no value.

        Nothing is far from a failure, so for a failure rate all others are as close as can be."""
        if slo.kind == "failure_rate":
            return np.where(self.failed, np.inf, 1.0)
        if slo.kind == "metric":
            return margin.closeness(self.values(slo.name), slo.sign, slo.threshold.value)
        near = np.where(self.failed, np.inf, 0.0)
        for each in slo.conditions:
            near = np.maximum(near, margin.closeness(self.values(each.metric), each.sign, each.threshold.value))
        return near

    def design_effects(self, bad: Mask, near: NDArray[np.float64], of: Mask, allowed: float) -> tuple[float, float]:
        """By how much fewer independent requests there are than `of` these: by their violations, and the largest estimate."""
        block = blocks.index(self.at[of], *self.window)
        count = len(block)
        hits = [bad[of]]
        if _MORE_OFTEN * allowed <= 0.5:
            rank = min(max(math.ceil(round((1 - _MORE_OFTEN * allowed) * count, 6)), 1), count)
            hits.append(near[of] > np.partition(near[of], rank - 1)[rank - 1])
        values = np.bincount(block, minlength=BLOCKS)
        found = []
        for hit in hits:
            above = np.bincount(block[hit], minlength=BLOCKS)
            for number, raised in _RAISED.items():
                counts = (each.reshape(number, -1).sum(1) for each in (above, values))
                found.append(blocks.design_effect(*counts) * raised)
        return found[0], max(found)


def _judge(counted: _Counted, slo: Slo, tail: float) -> SloResult:
    if not len(counted.at):
        return _result(slo, "undecided", "no request in the window counts")
    unknown = [name for name in slo.metrics if METRICS[name].values is not None and counted.is_unknown(name)]
    if unknown:
        return _result(slo, "undecided", f"{' and '.join(unknown)} could not be measured: no response has a value")
    overload, is_short = counted.stage.overload, False
    if any(METRICS[name].unit == "s" for name in slo.metrics):
        if overload.status == "overloaded":
            growth = "" if overload.growth is None else f", the queue grew by {overload.growth:.3g} requests/s"
            return _result(slo, "missed", f"overloaded: no steady value{growth}")
        is_short = overload.status == "too_short"
    if slo.kind == "throughput" or slo.statistic == "mean" or slo.name == "itl":
        found = _by_interval(counted, slo, is_short)
    else:
        found = _by_share(counted, slo, tail, is_short)
    return _too_short(counted, slo, found) if is_short and found.status == "undecided" else found


def _too_short(counted: _Counted, slo: Slo, found: SloResult) -> SloResult:
    """Undecided, because latencies may still grow: only a limit that is far away is decided in such a stage."""
    overload = counted.stage.overload
    needs: float | None = getattr(overload, "needs", None)
    more = None if needs is None else _seconds(needs - counted.span)
    reason = f"the stage is too short to tell: {overload.reason}{_within_text(slo, found.value, 'the limit')}"
    return msgspec.structs.replace(found, reason=reason, more_seconds=more)


def _result(slo: Slo, status: Status, reason: str) -> SloResult:
    return SloResult(slo=str(slo), status=status, reason=reason, limit=slo.threshold.value)


# --- by the share of violations --------------------------------------------------------------------------------------


def _by_share(counted: _Counted, slo: Slo, tail: float, is_short: bool) -> SloResult:
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
    allowed = _allowed(counted, slo)
    if allowed is None:
        return _result(slo, "undecided", "too few requests to have a rate")
    if allowed < 0:
        return _result(slo, "missed", f"only {counted.rate:.4g} requests/s were intended")
    if not of.any():  # a failed request has no value unless it violates any limit
        return _result(slo, "undecided", f"{slo.name} could not be measured: every request failed")
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
        more = _seconds((times - 1) * counted.span) if counted.span and times < math.inf else None
        text = f"too close to the limit for {count:,} requests{_within_text(slo, value)}; {text}{_more_text(more)}"
    return SloResult(
        slo=str(slo),
        status=status,
        by=by,
        within=_is_within(slo, value),
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
    few = f", and {_percent(allowed)} may violate it" if closest > 0.5 else ""
    return f"met with margin: {text}{few}"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


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


def _shares_text(slo: Slo, share: float, count: int, allowed: float, failed: int) -> str:
    verb = {"failure_rate": "failed", "goodput": "missed a limit"}.get(slo.kind, "violate it")
    among = f" ({failed:,} of them failed)" if failed else ""
    return f"{_percent(share)} of {count:,} requests {verb}{among}, {_percent(allowed)} may"


# --- by the interval of the value ------------------------------------------------------------------------------------


def _by_interval(counted: _Counted, slo: Slo, is_short: bool) -> SloResult:
    """Judge a mean, a rate or a percentile of the gaps: met if all of its confidence interval is on the right side."""
    value, ci, needs = _measured(counted, slo)
    if value is None:
        why = getattr(counted.stage.throughput, "reason", "") if slo.kind == "throughput" else ""
        return _result(slo, "undecided", why or f"{slo.subject} could not be measured")
    limit, is_upper = slo.threshold.value, slo.sign[0] == "<"
    best, worst = ci if is_upper else ci[::-1]
    status: Status = "undecided"
    by: By = ""
    if not is_short and worst is not None and _holds(slo, worst):
        status, by = "met", "interval"
    elif best is not None and not _holds(slo, best):
        status, by = "missed", "interval"
    else:
        status, by = _far_interval(counted, slo, value)
    more = None
    if status == "undecided":
        ends = (worst, best) if _holds(slo, value) else (best, worst)
        more = _more_for_interval(value, limit, ends[0], counted.span) if ends[0] is not None else needs
    text = _interval_text(counted, slo, ci)
    if by == "margin":
        text = f"{status} with margin: all that was measured is far from the limit"
    elif status == "undecided":
        text = f"too close to the limit{_within_text(slo, value)}; {text}{_more_text(more)}"
    return SloResult(
        slo=str(slo),
        status=status,
        by=by,
        within=_is_within(slo, value),
        reason=text,
        value=value,
        limit=limit,
        ci=ci,
        more_seconds=more,
    )


def _far_interval(counted: _Counted, slo: Slo, value: float) -> tuple[Status, By]:
    """By the distance from the limit of all values of a metric, or of the rate, if the interval does not tell.

    The gaps of one response resemble each other, so each request counts once."""
    low = high = value
    if slo.kind == "metric":
        figures = counted.stage.metrics[slo.name]
        low, high = (value if end is None else end for end in (figures.min, figures.max))
    ends = np.array([low, high])
    near = margin.closeness(ends, slo.sign, slo.threshold.value)
    is_share = slo.kind == "metric" and slo.statistic != "mean"
    allowed = _allowed(counted, slo) if is_share else None
    if margin.is_far(float(near.max()), len(counted.at), allowed or margin.CLEAR):
        return "met", "margin"
    closest = float(near.min())
    if margin.is_far(1 / closest if closest else math.inf, len(counted.at)):
        return "missed", "margin"
    return "undecided", ""


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


def _more_text(more: float | None) -> str:
    return "" if more is None else f"; run about {format_seconds(more)} longer"


def _is_within(slo: Slo, value: float | None) -> bool | None:
    return None if value is None else _holds(slo, value)


def _within_text(slo: Slo, value: float | None, limit: str = "it") -> str:
    if value is None:
        return ""
    return f": {slo.amount(value)} is {'within' if _holds(slo, value) else 'beyond'} {limit}"


def _interval_text(counted: _Counted, slo: Slo, ci: Bounds) -> str:
    if ci == (None, None):
        if slo.kind == "throughput" and slo.name not in (*counted.stage.throughput.ci, *_PER_REQUEST):
            return f"this run has no confidence interval for {slo.subject}"
        return f"too few {'responses' if slo.kind == 'throughput' else 'values'} for a confidence interval"
    return f"95 % confidence interval {' .. '.join('-' if end is None else slo.amount(end) for end in ci)}"


def _percent(share: float) -> str:
    return f"{format_number(100 * share, 3)}%"
