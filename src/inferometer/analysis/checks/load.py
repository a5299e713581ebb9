"""Did the client offer the load that it was asked to offer, when it was asked to?"""

from typing import Literal

import numpy as np

from inferometer.analysis import stability
from inferometer.analysis.checks.evidence import Check, Evidence, FailureCount, count_failures
from inferometer.analysis.checks.lag import allowed
from inferometer.analysis.metrics import stages_of
from inferometer.records import CANCELLED, DROPPED, MISSING, Columns, StagePlan
from inferometer.units import NS, format_seconds

SHARE = 0.95
"""Of the rate or the concurrency asked for, that must have been reached."""


def rate(facts: Evidence) -> Check | None:
    """Against the instants of the plan, not its nominal rate: a Poisson plan has more or fewer by chance, and rightly so."""
    rows = facts.run.records.rows
    found = []
    for stage in stages_of(rows["stage"][rows["open_loop"] != 0]):
        own = rows[rows["stage"] == stage]
        if (result := _rate(own, allowed(facts, own))) is not None:
            found.append((*result, int(stage)))
    if not found:
        return None
    share, words, stage = min(found)
    if share >= SHARE:
        return Check("rate", "pass", share, SHARE, words)
    return Check("rate", "fail", share, SHARE, f"Only {words}. {_why_slower(facts, stage, share)}")


def _rate(rows: Columns, allowed: float) -> tuple[float, str] | None:
    intended, sent = rows["intended"], rows["sent"]
    sent = sent[sent != MISSING]
    first, last = int(intended.min()), int(intended.max())
    if last <= first:
        return None
    end = max(int(sent.max()) - round(allowed * NS), last) if len(sent) else last
    asked, reached = len(intended) / ((last - first) / NS), len(sent) / ((end - first) / NS)
    return reached / asked, f"{reached:,.1f} requests/s were sent of {asked:,.1f} planned"


def _why_slower(facts: Evidence, stage: int, share: float) -> str:
    """What most of the shortfall is owed to, and the remedy: requests that were never sent, or else requests sent late."""
    rows = facts.run.records.rows
    own = rows["stage"] == stage
    was_sent = own & (rows["sent"] != MISSING)
    kinds = [kind for kind in count_failures(facts.run, own & ~was_sent) if kind.code != CANCELLED]
    if kinds and 2 * kinds[0].count >= (1 - share) * int(own.sum()):
        return _why_unsent(kinds[0])
    waited = (rows["sent"][was_sent] - rows["intended"][was_sent]).sum()
    if 2 * rows["held"][own].sum() <= waited:
        return "Use more client.processes or another machine, or lower the rate."
    if facts.run.manifest.plan[stage].concurrency:
        return _CAPPED
    return "Connections took long to open: have more of them before t=0 (client.connections), or lower the rate."


def _why_unsent(kind: FailureCount) -> str:
    if kind.code == "no_sockets":  # whose message names the limit and the remedy
        return f"This machine had no socket for {kind.count:,} requests: {kind.message}."
    if kind.code == DROPPED:
        return _CAPPED
    return f"{kind.count:,} requests failed before they could be sent, by {kind.code}: see the failures."


_CAPPED = "The server did not keep up with the cap on: lower the rate, or raise load.max_concurrency."


def stable(facts: Evidence) -> Check | None:
    """Of stages that were to end by it: the one that came least close."""
    plans = facts.run.manifest.plan
    found = stability.of_run(facts.run.records.rows, plans)
    if not found:
        return None
    worst = max(found, key=lambda stage: (found[stage].settled is None, found[stage].spread - plans[stage].stable))
    one, plan = found[worst], plans[worst]
    where = f" of stage {worst + 1} ({plan.name})" if len(plans) > 1 else ""
    length = format_seconds(plan.window)
    if one.settled is not None:
        good = f"three windows of {length} agree within {one.spread:.1%}"
        return Check("stability", "pass", one.spread, plan.stable, good)
    if one.windows < stability.WINDOWS:
        bad = f"Only {one.windows} whole windows of {length}{where} passed, and three in a row have to agree."
        return Check("stability", "fail", None, plan.stable, f"{bad} Give it a longer load.duration.")
    if not np.isfinite(one.spread):
        bad = f"No three of {one.windows} windows of {length}{where} in a row had an answer each."
        return Check("stability", "fail", None, plan.stable, f"{bad} Take a longer load.window.")
    bad = f"No three of {one.windows} windows of {length}{where} in a row agree within {plan.stable:.0%}: {one.spread:.0%} apart at the best."
    return Check(
        "stability",
        "fail",
        one.spread,
        plan.stable,
        f"{bad} Take a longer load.window, give it a longer load.duration, see what else the server does, or allow more with load.stable.",
    )


TURN_AROUND = 0.0001
"""Seconds that a client which is not busy may take to ask again; with answers that are not much longer it shows."""


def concurrency(facts: Evidence) -> Check | None:
    rows = facts.run.records.rows
    found = []
    for stage, plan in enumerate(facts.run.manifest.plan):
        if plan.open or plan.think or not plan.concurrency:
            continue
        own = rows[(rows["stage"] == stage) & (rows["sent"] != MISSING)]
        reached = in_flight(own, plan)
        if reached is not None:
            words = f"{reached:,.3g} requests were in flight on average of {plan.concurrency:,} asked"
            found.append((reached / plan.concurrency, words, own, plan.concurrency))
    if not found:
        return None
    share, words, own, asked = min(found, key=lambda each: each[0])
    if share >= SHARE:
        return Check("concurrency", "pass", share, SHARE, words)
    status, remedy = _why_fewer(own, asked)
    return Check("concurrency", status, share, SHARE, f"Only {words}. {remedy}")


def _why_fewer(rows: Columns, asked: int) -> tuple[Literal["warn", "fail"], str]:
    """What kept requests from being replaced at once."""
    if (rows["failure"] > 0).any():
        return "fail", "After a failure a user waits before it asks again: see the failures."
    median = float(np.median(rows["sent"] - rows["intended"])) / NS
    if median <= TURN_AROUND:
        return (
            "warn",
            f"Answers are so short that the {format_seconds(median)} count which the client takes to ask again: latencies hold, but a higher concurrency gives more throughput.",
        )
    slow = f"The client took {format_seconds(median)} (median) to replace an answer"
    if asked == 1:
        return (
            "warn",
            f"{slow}: latencies hold, but the throughput is the client's as well. Leave it a core of its own, or use another machine.",
        )
    return "fail", f"{slow}: use more client.processes or another machine, or a lower concurrency."


def in_flight(rows: Columns, plan: StagePlan) -> float | None:
    """Requests in flight on average, from when those asked for had been sent (and the ramp-up was over) to the last send.

    After the last send nobody replaces an answer, and the number falls as it must; so it does after the stage's time is up,
    when users only end their sequences. None where nothing was replaced.
    """
    asked = plan.concurrency
    if len(rows) <= asked:
        return None
    sent = rows["sent"]
    full = np.partition(sent, asked - 1)[asked - 1]
    begin, end = max(full, sent.min() + round(plan.ramp_up * NS)), sent.max()
    if plan.duration:
        end = min(end, sent.min() + round(plan.duration * NS))
    if end <= begin:
        return None
    done = np.where(rows["done"] == MISSING, end, rows["done"])
    lives = np.clip(done, begin, end) - np.clip(sent, begin, end)
    return float(lives.sum() / (end - begin))
