"""Did the client generate the planned load: the rate, the concurrency, the stability?"""

from typing import Literal

import numpy as np

from inferometer.analysis import stability
from inferometer.analysis.checks.evidence import Check, Evidence, FailureCount, count_failures
from inferometer.analysis.checks.lag import allowed
from inferometer.analysis.metrics import stages_of
from inferometer.records import CANCELLED, DROPPED, LOST, MISSING, Columns, StagePlan
from inferometer.units import NS, format_seconds

SHARE = 0.95
"""Share of the planned rate or concurrency that must be reached."""


def rate(evidence: Evidence) -> Check | None:
    """Compare with the instants of the plan, not with its nominal rate: a Poisson plan has more or fewer requests by chance."""
    rows = evidence.run.records.rows
    results = []
    for stage in stages_of(rows["stage"][rows["open_loop"] != 0]):
        own = rows[rows["stage"] == stage]
        if (result := _rate(own, allowed(evidence, own))) is not None:
            results.append((*result, int(stage)))
    if not results:
        return None
    share, message, stage = min(results)
    if share >= SHARE:
        return Check("rate", "pass", share, SHARE, message)
    return Check("rate", "fail", share, SHARE, f"Only {message}. {_why_slower(evidence, stage, share)}")


def _rate(rows: Columns, allowed: float) -> tuple[float, str] | None:
    intended, sent = rows["intended"], rows["sent"]
    sent = sent[sent != MISSING]
    first, last = int(intended.min()), int(intended.max())
    if last <= first:
        return None
    end = max(int(sent.max()) - round(allowed * NS), last) if len(sent) else last
    planned, reached = len(intended) / ((last - first) / NS), len(sent) / ((end - first) / NS)
    return reached / planned, f"{reached:,.1f} of {planned:,.1f} planned requests/s were sent"


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


TURN_AROUND = 0.0001
"""Seconds that an idle client may take between a response and the next request; with very short responses this shows."""


def concurrency(evidence: Evidence) -> Check | None:
    rows = evidence.run.records.rows
    results = []
    for stage, plan in enumerate(evidence.run.manifest.plan):
        if plan.open or plan.think or not plan.concurrency:
            continue
        own = rows[(rows["stage"] == stage) & (rows["sent"] != MISSING)]
        if (own["turn"] > 0).any():  # the users of sessions think between turns
            continue
        reached = in_flight(own, plan)
        if reached is not None:
            message = f"{reached:,.3g} of {plan.concurrency:,} requests were in flight on average"
            results.append((reached / plan.concurrency, message, own, plan.concurrency))
    if not results:
        return None
    share, message, own, planned = min(results, key=lambda result: result[0])
    if share >= SHARE:
        return Check("concurrency", "pass", share, SHARE, message)
    status, remedy = _why_fewer(own, planned)
    return Check("concurrency", status, share, SHARE, f"Only {message}. {remedy}")


def _why_fewer(rows: Columns, planned: int) -> tuple[Literal["warn", "fail"], str]:
    """Why completed requests were not replaced immediately."""
    if (rows["failure"] > 0).any():
        return "fail", "After a failure, a user pauses before the next request: see the failures."
    median = float(np.median(rows["sent"] - rows["intended"])) / NS
    if median <= TURN_AROUND:
        return (
            "warn",
            f"Responses are so short that the client's own {format_seconds(median)} between requests lowers the concurrency. The latencies are valid, but a higher load.concurrency would give more throughput.",
        )
    slow = f"The client took {format_seconds(median)} (median) between a response and the next request"
    if planned == 1:
        return (
            "warn",
            f"{slow}. The latencies are valid, but the client limited the throughput. Give it a CPU core of its own, or use another machine.",
        )
    return "fail", f"{slow}. Use more client.processes or another machine, or lower load.concurrency."


def in_flight(rows: Columns, plan: StagePlan) -> float | None:
    """Mean number of requests in flight, from when the planned number had been sent (and the ramp-up was over) to the last send.

    After the last send, completed requests are no longer replaced and the number has to fall. The same is true after the end of
    the stage, when users only finish their sequences. None if no request was replaced.
    """
    planned = plan.concurrency
    if len(rows) <= planned:
        return None
    sent = rows["sent"]
    full = np.partition(sent, planned - 1)[planned - 1]
    begin, end = max(full, sent.min() + round(plan.ramp_up * NS)), sent.max()
    if plan.duration:
        end = min(end, sent.min() + round(plan.duration * NS))
    if end <= begin:
        return None
    done = np.where(rows["done"] == MISSING, end, rows["done"])
    lifetimes = np.clip(done, begin, end) - np.clip(sent, begin, end)
    return float(lifetimes.sum() / (end - begin))
