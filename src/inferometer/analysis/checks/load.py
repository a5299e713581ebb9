"""Did the client offer the load that it was asked to offer, when it was asked to?"""

import numpy as np

from inferometer.analysis.checks.facts import Check, Facts, judge
from inferometer.analysis.metrics import Part
from inferometer.records import MISSING
from inferometer.units import NS, format_seconds

SHARE = 0.95
"""Of the rate or the concurrency asked for, that must have been reached."""


def _allowed_lag(facts: Facts) -> float:
    """What a late send may add to the latency that is measured first: the first token's, or the whole answer's."""
    medians = [facts.metrics[name].value("p50") for name in ("ttft_service", "e2e_service")]
    median = next((value for value in medians if value is not None and np.isfinite(value)), 0.0)
    return max(facts.limits.lag, 0.01 * median)


def lag(facts: Facts) -> Check | None:
    """Of open loops: a closed one measures from the send, and what it is late by shows in the concurrency reached."""
    p99 = facts.metrics["client_lag"].value("p99")
    if p99 is None or not any(stage.open for stage in facts.run.manifest.plan):
        return None
    limit = _allowed_lag(facts)
    late = f"p99 of the client's own lag is {format_seconds(p99)}"
    bad = f"{late}, more than {format_seconds(limit)}: the client sent late. If it is busy, use more client.processes or lower the load; if its host is (a shared or virtual machine wakes late), use a quieter one, or allow it with limits.lag."
    return judge("lag", p99, limit, late, bad)


def _worst(name: str, found: list[tuple[float, str, str]]) -> Check | None:
    """Of (share reached, in words, what to do) by stage, the least."""
    if not found:
        return None
    share, words, remedy = min(found)
    passed = share >= SHARE
    return Check(name, "pass" if passed else "fail", share, SHARE, words if passed else f"Only {words}. {remedy}")


def rate(facts: Facts) -> Check | None:
    """Against the instants of the plan, not its nominal rate: a Poisson plan has more or fewer by chance, and rightly so."""
    rows = facts.run.records.rows
    found = []
    for stage in np.unique(rows["stage"][rows["open_loop"] != 0]).tolist():
        if (result := _rate(Part(rows, rows["stage"] == stage), _allowed_lag(facts))) is not None:
            found.append(result)
    return _worst("rate", found)


def _rate(rows: Part, allowed: float) -> tuple[float, str, str] | None:
    intended, sent = rows["intended"], rows["sent"]
    was_sent = sent != MISSING
    intended_of_sent, sent = intended[was_sent], sent[was_sent]
    first, last = int(intended.min()), int(intended.max())
    if last <= first:
        return None
    end = max(int(sent.max()) - round(allowed * NS), last) if len(sent) else last
    asked, reached = len(intended) / ((last - first) / NS), len(sent) / ((end - first) / NS)
    words = f"{reached:,.1f} requests/s were sent of {asked:,.1f} planned"
    waited = (sent - intended_of_sent).sum()
    if 2 * rows["held"].sum() > waited:
        return (
            reached / asked,
            words,
            "The server did not keep up with the cap on: lower the rate, or raise load.max_concurrency.",
        )
    return reached / asked, words, "Use more client.processes or another machine, or lower the rate."


FAILED = "After a failure a user waits before it asks again: see the failures."


def concurrency(facts: Facts) -> Check | None:
    rows = facts.run.records.rows
    found = []
    for stage, plan in enumerate(facts.run.manifest.plan):
        if plan.open or plan.think or not plan.concurrency:
            continue
        reached = in_flight(
            Part(rows, (rows["stage"] == stage) & (rows["sent"] != MISSING)), plan.concurrency, plan.ramp_up
        )
        if reached is not None:
            words = f"{reached:,.1f} requests were in flight on average of {plan.concurrency:,} asked"
            failed = (rows["failure"] > 0)[rows["stage"] == stage].any()
            remedy = (
                FAILED
                if failed
                else "The client could not replace answers fast enough: use more client.processes or another machine, or a lower concurrency."
            )
            found.append((reached / plan.concurrency, words, remedy))
    return _worst("concurrency", found)


def in_flight(rows: Part, asked: int, ramp_up: float) -> float | None:
    """Requests in flight on average, from when `asked` had been sent (and the ramp-up was over) to the last send.

    After the last send nobody replaces an answer, and the number falls as it must. None where nothing was replaced.
    """
    if len(rows) <= asked:
        return None
    sent = np.sort(rows["sent"])
    begin, end = max(sent[asked - 1], sent[0] + round(ramp_up * NS)), sent[-1]
    if end <= begin:
        return None
    done = np.where(rows["done"] == MISSING, end, rows["done"])
    lives = np.clip(done, begin, end) - np.clip(rows["sent"], begin, end)
    return float(lives.sum() / (end - begin))
