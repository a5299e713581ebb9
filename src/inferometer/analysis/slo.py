"""Judge service level objectives: met, missed, or undecided and how much longer to run.

A decision needs evidence in proportion to how close the limit is. "ttft.p99 < 500ms" says that at most 1 % of the requests violate
ttft < 500ms, and there are two ways to show it:

count     The number of violations, with the exact binomial test (binomial.py) at 5 %. A failed or dropped request is a violation.
          Requests that are in flight together resemble each other: n requests count as n / design effect independent ones. The
          design effect comes from blocks of time (blocks.py). It is an estimate from few blocks, so it is raised by (Student's t /
          normal quantile)^2. Few violations say little about how they cluster, so before an objective is met it is the largest of
          several: of the violations and of the requests beyond the quantile that three times as many may exceed, each from 20 and
          from 10 blocks, because a block has to last longer than what makes requests resemble each other. And if fewer than
          175 independent requests remain, the run is too short for its blocks, and counting does not show that it is met.
margin    The distance of all requests from the limit (margin.py), for limits that are far from everything measured.

What neither decides is close to the limit, for a run of that length. bench/decisions.py has the errors of both together at exactly the
limit, and the share of runs that are decided at a distance from it, for six kinds of servers.

Means, rates and gaps between chunks are judged by their confidence intervals; where too few values have one, by margin.
"""

from collections.abc import Sequence

import msgspec

from inferometer.analysis import binomial
from inferometer.analysis.checks.evidence import StageEvidence
from inferometer.analysis.metrics import METRICS
from inferometer.analysis.slo_count import by_count
from inferometer.analysis.slo_expression import Slo, met
from inferometer.analysis.slo_interval import by_interval
from inferometer.analysis.slo_requests import JudgedRequests
from inferometer.analysis.slo_result import Bounds, SloResult, projected, result, within_text
from inferometer.records import Run


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
    counted = JudgedRequests(run, stage)
    return tuple(_judge(counted, slo, tail) for slo in slos)


def goodput(run: Run, stage: StageEvidence, slos: Sequence[Slo]) -> Goodput | None:
    """The stage's goodput; None if no objective says anything about single requests, or if they cannot be judged."""
    forms = [form for slo in slos if (form := slo.per_request()) is not None]
    conditions = tuple(dict.fromkeys(condition for form in forms for condition in form))
    counted = JudgedRequests(run, stage)
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


def _judge(counted: JudgedRequests, slo: Slo, tail: float) -> SloResult:
    if not len(counted.at):
        return result(slo, "undecided", "no request in the window counts")
    unknown = [name for name in slo.metrics if METRICS[name].values is not None and counted.is_unknown(name)]
    if unknown:
        return result(slo, "undecided", f"{' and '.join(unknown)} could not be measured: no response has a value")
    overload, is_short = counted.stage.overload, False
    if any(METRICS[name].unit == "s" for name in slo.metrics):
        if overload.status == "overloaded":
            growth = "" if overload.growth is None else f", the queue grew by {overload.growth:.3g} requests/s"
            return result(slo, "missed", f"overloaded: no steady value{growth}")
        is_short = overload.status == "too_short"
    if slo.kind == "throughput" or slo.statistic == "mean" or slo.name == "itl":
        found = by_interval(counted, slo, is_short)
    else:
        found = by_count(counted, slo, tail, is_short)
    return _too_short(counted, slo, found) if is_short and found.status == "undecided" else found


def _too_short(counted: JudgedRequests, slo: Slo, found: SloResult) -> SloResult:
    """Undecided, because latencies may still grow: only a limit that is far away is decided in such a stage."""
    overload = counted.stage.overload
    needs: float | None = getattr(overload, "needs", None)
    more = None if needs is None else projected(needs - counted.span)
    reason = f"the stage is too short to tell: {overload.reason}{within_text(slo, found.value, 'the limit')}"
    return msgspec.structs.replace(found, reason=reason, more_seconds=more)
