"""Did the run have the planned load: the rate, the concurrency, a server that keeps up, stability?"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import settings, stability, window
from inferometer.analysis.checks.evidence import Check, Evidence, FailureCount, StageEvidence, count_failures
from inferometer.analysis.checks.lag import allowed
from inferometer.analysis.metrics import stages_of
from inferometer.analysis.throughput import busy_span
from inferometer.records import CANCELLED, DROPPED, LOST, MISSING, Columns, StagePlan
from inferometer.units import NS, format_number, format_seconds

# --- the rate --------------------------------------------------------------------------------------------------------


def rate(evidence: Evidence) -> Check | None:
    """Compare with the instants of the plan, not with its nominal rate: a Poisson plan has more or fewer requests by chance."""
    rows, limit = evidence.run.records.rows, evidence.limits.rate
    results = []
    given_up = _given_up(evidence)
    for stage in stages_of(rows["stage"][rows["open_loop"] != 0]):
        own = rows[(rows["stage"] == stage) & ~given_up]
        if len(own) and (result := _rate(own, allowed(evidence, own))) is not None:
            results.append((*result, int(stage)))
    if not results:
        return None
    share, message, stage = min(results)
    if share >= limit:
        return Check("rate", "pass", share, limit, message)
    label = evidence.stages[stage].label
    remedy = _why_slower(evidence, stage, share)
    # A server that does not keep up within the cap is saturated: its throughput is what it can do.
    affects = ("latency",) if remedy == _CAPPED else ("latency", "throughput")
    slow = tuple(sorted(stage for share, _, stage in results if share < limit))
    return Check("rate", "fail", share, limit, f"Only {message}{label}. {remedy}", affects, slow)


def _given_up(evidence: Evidence) -> NDArray[np.bool_]:
    """Select requests that were not sent because their stage, or the run, was ended early: they were no longer due."""
    rows, outcome = evidence.run.records.rows, evidence.run.manifest.outcome
    ended = [each.stage for each in outcome.cut_short] + [trip.stage for trip in outcome.trips]
    cancelled = [number for number, failure in enumerate(evidence.run.records.failures, 1) if failure.code == CANCELLED]
    unsent: NDArray[np.bool_] = (rows["sent"] == MISSING) & np.isin(rows["failure"], cancelled)
    return unsent & np.isin(rows["stage"], ended)


def _rate(rows: Columns, allowed: float) -> tuple[float, str] | None:
    intended, sent = rows["intended"], rows["sent"]
    sent = sent[sent != MISSING]
    first, last = int(intended.min()), int(intended.max())
    if last <= first:
        return None
    end = max(int(sent.max()) - round(allowed * NS), last) if len(sent) else last
    planned, reached = len(intended) / ((last - first) / NS), len(sent) / ((end - first) / NS)
    unsent = len(intended) - len(sent)
    never = f" ({unsent:,} of {len(intended):,} requests were never sent)" if unsent else ""
    return reached / planned, f"{reached:,.1f} of {planned:,.1f} planned requests/s were sent{never}"


def _why_slower(evidence: Evidence, stage: int, share: float) -> str:
    """Main cause of the shortfall and its remedy: requests that were never sent, or requests that were sent late."""
    rows = evidence.run.records.rows
    own = rows["stage"] == stage
    was_sent = own & (rows["sent"] != MISSING)
    kinds = [kind for kind in count_failures(evidence.run, own & ~was_sent) if kind.code not in (CANCELLED, LOST)]
    if kinds and 2 * kinds[0].count >= (1 - share) * int(own.sum()):
        return _why_unsent(kinds[0])
    waited = (rows["sent"][was_sent] - rows["intended"][was_sent]).sum()
    if 2 * rows["held"][own].sum() <= waited:
        return "Use more client.processes or another machine, or lower the rate."
    if evidence.run.manifest.plan[stage].concurrency:
        return _CAPPED
    return "Connections took long to open: open more of them before t=0 (client.connections), or lower the rate."


def _why_unsent(kind: FailureCount) -> str:
    if kind.code == "no_sockets":  # its message names the limit and the remedy
        return f"This machine ran out of sockets for {kind.count:,} requests: {kind.message}."
    if kind.code == DROPPED:
        return _CAPPED
    return f"{kind.count:,} requests failed with {kind.code} before they could be sent: see the failures."


_CAPPED = "The server did not keep up within the concurrency cap: lower the rate, or raise load.max_concurrency."


# --- overload --------------------------------------------------------------------------------------------------------


def overload(evidence: Evidence) -> Check | None:
    """Fail for the latencies of stages whose queue grew, and of those that are too short to tell."""
    limit = evidence.limits.overload
    open_stages = [stage for stage in evidence.stages if evidence.run.manifest.plan[stage.stage].open]
    if not open_stages:
        return None
    grown = [stage for stage in open_stages if stage.overload.status == "overloaded"]
    short = [stage for stage in open_stages if stage.overload.status == "too_short"]
    shares = [stage.overload.share for stage in open_stages if stage.overload.share is not None]
    value = max(shares, default=None)
    if not grown and not short:
        return Check("overload", "pass", value, limit, _kept_up(open_stages))
    messages = [_overloaded(evidence, grown)] if grown else []
    if short:
        worst = max(short, key=lambda stage: stage.overload.needs or 0.0)
        needs = format_seconds(worst.overload.needs or 0.0)
        messages.append(
            f"Too short to tell whether the server keeps up{worst.label.replace(' of ', ' in ', 1)}: {worst.overload.reason}. "
            f"Run for at least {needs}."
        )
    numbers = tuple(sorted(stage.stage for stage in (*grown, *short)))
    return Check("overload", "fail", value, limit, " ".join(messages), ("latency",), numbers)


def _overloaded(evidence: Evidence, stages: list[StageEvidence]) -> str:
    """Describe the first stage that was overloaded: in a sweep, that is the lowest rate that was too much."""
    first, more = stages[0], len(stages) - 1
    growth, capacity = (
        f"{format_number(value or 0.0, 3)} requests/s" for value in (first.overload.growth, first.overload.capacity)
    )
    latency = "TTFT" if first.metrics["ttft"].count else "the latency"
    others = f" ({more} more {'stages were' if more > 1 else 'stage was'} overloaded too)" if more else ""
    return (
        f"The queue{first.label} grew by {growth}; {latency} has no steady value at this rate; the server completes about "
        f"{capacity}{others}. Lower the rate to measure latencies; the throughput is the server's at saturation."
    )


def _kept_up(stages: list[StageEvidence]) -> str:
    """Say that the queue did not grow, or why the test does not apply."""
    tested = [stage for stage in stages if stage.overload.status == "steady"]
    reasons = sorted({stage.overload.reason for stage in stages if stage.overload.status == "not_applicable"})
    words = ["the number of requests in flight did not keep growing"] if tested else []
    return "; ".join([*words, *(f"not applicable: {reason}" for reason in reasons)])


LITTLE = 0.05
"""By how much the number in flight may differ from Little's law. Simulated queues up to a load of 0.95 differ by at most 0.03."""
_FEWEST, _LONGEST = 500, 0.05
"""Requests that the law needs, and the share of the time that one may take: else the edges make too much of a difference."""


def littles_law(evidence: Evidence) -> Check | None:
    """Check that the printed throughput, mean latency and number in flight agree, in stages that are long and steady enough."""
    off = {}
    for stage in evidence.stages:
        rates, latency = stage.throughput, stage.metrics["e2e_service"]
        if rates.little is None or rates.span is None or rates.requests is None or latency.mean is None:
            continue
        is_steady = stage.overload.status == "steady" or not evidence.run.manifest.plan[stage.stage].open
        if is_steady and rates.requests * rates.span >= _FEWEST and latency.mean <= _LONGEST * rates.span:
            off[stage.stage] = rates.little
    if not off:
        return None
    worst = max(off, key=lambda stage: abs(off[stage] - 1))
    value = abs(off[worst] - 1)
    if value <= LITTLE:
        return Check(
            "littles_law", "pass", value, LITTLE, f"in flight / (requests/s x mean latency) is {off[worst]:.3f}"
        )
    bad = (
        f"The mean number in flight{evidence.stages[worst].label} is {off[worst]:.2f} times requests/s x mean latency, and by "
        "Little's law should equal it: the figures do not describe the same steady state. Run longer, and look for requests "
        "without a row (the check workers) and for a load that changes."
    )
    return Check("littles_law", "warn", value, LITTLE, bad, stages=(worst,))


# --- stability and drift ---------------------------------------------------------------------------------------------


def warmup(evidence: Evidence) -> Check | None:
    """Warn if `measure.warmup: auto` reached its bound. An overloaded stage drifts too, and has its own check."""
    if settings.measure(evidence.run.manifest).warmup != window.AUTO:
        return None
    rows = evidence.run.records.rows
    drifting = [
        stage
        for stage in evidence.stages
        if stage.overload.status != "overloaded" and window.is_drifting(rows[rows["stage"] == stage.stage])
    ]
    if not drifting:
        return Check("warmup", "pass", 0, 0, "the latency settled within the first half of each stage")
    bad = (
        f"measure.warmup: auto left out half of the requests{drifting[0].label}, and the latency was still changing: that is "
        "drift, not warm-up. Run longer, or find out what keeps changing in the server."
    )
    return Check("warmup", "warn", len(drifting), 0, bad, ("latency",), tuple(stage.stage for stage in drifting))


def stable(evidence: Evidence) -> Check | None:
    """Check the least stable of the stages that end when they are stable."""
    plans = evidence.run.manifest.plan
    stages = stability.of_run(evidence.run.records.rows, plans)
    if not stages:
        return None
    worst = max(stages, key=lambda stage: (stages[stage].settled is None, stages[stage].spread - plans[stage].stable))
    result, plan = stages[worst], plans[worst]
    where = f" in stage {worst + 1} ({plan.name})" if len(plans) > 1 else ""
    length = format_seconds(plan.window)
    if result.settled is not None:
        good = f"three consecutive windows of {length} agree within {result.spread:.1%}"
        return Check("stability", "pass", result.spread, plan.stable, good)
    if result.windows < stability.WINDOWS:
        bad = f"Three consecutive windows of {length}{where} have to agree, but there were only {result.windows} complete windows."
        return Check("stability", "fail", None, plan.stable, f"{bad} Use a longer load.duration.")
    consecutive = f"No three consecutive windows of {length}{where} (out of {result.windows})"
    if not np.isfinite(result.spread):
        bad = f"{consecutive} had a response each. Use a longer load.window."
        return Check("stability", "fail", None, plan.stable, bad)
    bad = (
        f"{consecutive} agree within {plan.stable:.0%}; the closest differ by {result.spread:.0%}. "
        "Use a longer load.window or load.duration, find out what else the server is doing, or allow more with load.stable."
    )
    return Check("stability", "fail", result.spread, plan.stable, bad)


# --- concurrency -----------------------------------------------------------------------------------------------------

TURN_AROUND = 0.0001
"""Seconds that an idle client may take between a response and the next request; with very short responses this shows."""
WARN, WARN_ONE = 0.95, 0.97
"""Shares of the planned concurrency below which there is a warning: in general, and if the concurrency is 1."""


def concurrency(evidence: Evidence) -> Check | None:
    """A shortfall alone is a warning: latencies at 7.3 requests in flight are true at 7.3."""
    rows, limit = evidence.run.records.rows, evidence.limits.concurrency
    results = []
    for stage, plan in enumerate(evidence.run.manifest.plan):
        if plan.open or plan.think or not plan.concurrency:
            continue
        own = rows[(rows["stage"] == stage) & (rows["sent"] != MISSING)]
        if plan.unit == "sessions":  # their users think between turns
            continue
        reached = in_flight(own, plan)
        if reached is not None:
            results.append((reached / plan.concurrency, reached, stage))
    if not results:
        return None
    share, reached, stage = min(results)
    planned = evidence.run.manifest.plan[stage].concurrency
    message = f"mean in flight {format_number(reached, 3)} of {planned:,}"
    if share >= (WARN_ONE if planned == 1 else WARN):
        return Check("concurrency", "pass", share, limit, message)
    own = rows[(rows["stage"] == stage) & (rows["sent"] != MISSING)]
    is_allowed, remedy = _why_fewer(own, planned, evidence.run.manifest.outcome.errors)
    status: Literal["warn", "fail"] = "warn" if is_allowed or share >= limit else "fail"
    short = tuple(sorted(stage for share, _, stage in results if share < WARN))
    label = f", in stage {stage + 1}" if len(evidence.stages) > 1 else ""
    return Check(
        "concurrency", status, share, limit, f"{message.capitalize()}{label}. {remedy}", ("throughput",), short
    )


def _why_fewer(rows: Columns, planned: int, errors: tuple[str, ...]) -> tuple[bool, str]:
    """Why completed requests were not replaced immediately, and whether that is always allowed. `errors` are of client processes."""
    if errors:
        return False, f"The load was not the planned one: {errors[0].rstrip('.')}. See the check workers."
    if (rows["failure"] > 0).any():
        return False, "After a failure, a user pauses before the next request: see the failures."
    median = float(np.median(rows["sent"] - rows["intended"] - rows["held"])) / NS
    between = f"the client's own {format_seconds(median)} between requests"
    if planned == 1:
        return True, (
            f"The rest is {between} (median). The latencies are valid, but the client limited the throughput. Give it a CPU core "
            "of its own, or use another machine."
        )
    if median <= TURN_AROUND:
        return True, (
            f"Responses are so short that {between} lowers the concurrency. The latencies are valid, but a higher "
            "load.concurrency would give more throughput."
        )
    slow = f"The client took {format_seconds(median)} (median) between a response and the next request"
    return False, f"{slow}. Use more client.processes or another machine, or lower load.concurrency."


def in_flight(rows: Columns, plan: StagePlan) -> float | None:
    """Mean number of requests in flight while all users were at work; None if fewer requests were replaced than there are users.

    The time in which a part of the first requests was replaced can be so short that the gaps between requests are most of it.
    """
    sent = rows["sent"]
    busy = busy_span(sent, plan)
    if busy is None:
        return None
    begin, end = busy
    if np.count_nonzero((sent > begin) & (sent <= end)) < plan.concurrency:
        return None
    done = np.where(rows["done"] == MISSING, end, rows["done"])
    lifetimes = np.clip(done, begin, end) - np.clip(sent, begin, end)
    return int(lifetimes.sum()) / (end - begin)
