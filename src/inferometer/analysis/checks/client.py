"""Was the client itself well: did it have the CPU, the memory and the clock to be trusted?"""

import statistics

import numpy as np

from inferometer.analysis import metrics
from inferometer.analysis.checks.evidence import Check, Evidence, judge
from inferometer.analysis.percentiles import Values, rank
from inferometer.records import Sample
from inferometer.units import NS, format_seconds

MERGED = 0.005
"""Share of the gaps that may be 0 because two chunks were stamped as one. Each takes a gap away and lengthens another, so
that a hundredth of the gaps is touched at the most."""

DOUBT = 0.01
"""Share of a p99, of the gaps or of the time to first token, that may be owed to merging; below IN_DOUBT it does not matter."""
IN_DOUBT = 0.0001
"""Seconds."""
TO_FIRST_TOKEN = {"ttft": metrics.ttft, "ttft_service": metrics.ttft_service}


def _by_shard(facts: Evidence) -> dict[int, list[Sample]]:
    shards: dict[int, list[Sample]] = {}
    for sample in facts.run.records.samples:
        if sample.at > 0:
            shards.setdefault(sample.shard, []).append(sample)
    return shards


def cpu(facts: Evidence) -> Check:
    limit = facts.limits.cpu
    shards = _by_shard(facts)
    if not shards:
        return Check("cpu", "warn", None, limit, "The client's health was not sampled. Run for a second or more.")
    mean, shard = max((statistics.fmean(s.cpu for s in samples), shard) for shard, samples in shards.items())
    used = f"client process {shard} used {mean:.0%} of a core on average"
    if mean > limit:
        bad = f"{used[0].upper()}{used[1:]}, more than {limit:.0%}: it was the bottleneck. Use more client.processes or another machine, or lower the load."
        return Check("cpu", "fail", mean, limit, bad)
    peaks = [sorted(s.cpu for s in samples)[rank(950, len(samples)) - 1] for samples in shards.values()]
    if max(peaks) > limit:
        bad = f"A client process used {max(peaks):.0%} of a core for a part of the run (p95). Use more client.processes to be sure."
        return Check("cpu", "warn", mean, limit, bad)
    return Check("cpu", "pass", mean, limit, used)


def stalls(facts: Evidence) -> Check | None:
    shares = [sum(s.stalled for s in samples) / max(s.at for s in samples) for samples in _by_shard(facts).values()]
    if not shares:
        return None
    longest = max(s.stall for s in facts.run.records.samples) / NS
    share = max(shares)
    words = f"its loop stood still for {share:.2%} of the time, {format_seconds(longest)} at the longest"
    bad = f"The client was kept from running: {words}. Leave it a core of its own, or use another machine."
    return judge("stalls", share, facts.limits.stalls, words, bad)


def memory(facts: Evidence) -> Check | None:
    used = [sample.memory for sample in facts.run.records.samples]
    if not used:
        return None
    words = f"{max(used):.0%} of the machine's memory in use at the most"
    bad = f"{words}: close to swapping. Free memory, or use another machine."
    return judge("memory", max(used), facts.limits.memory, words, bad)


def clock_step(facts: Evidence) -> Check | None:
    steps = [abs(sample.clock_step) / NS for sample in facts.run.records.samples]
    if not steps:
        return None
    words = f"the wall clock moved by {format_seconds(max(steps))} against the monotonic one"
    bad = f"{words[0].upper()}{words[1:]}, and kernel stamps moved with it. Let NTP settle and run again, or take client.stamps: user."
    check = judge("clock_step", max(steps), facts.limits.clock_step, words, bad)
    if check.status == "fail" and facts.stamps == "user":
        return Check(
            "clock_step",
            "warn",
            check.value,
            check.limit,
            f"{words[0].upper()}{words[1:]}. Arrivals do not depend on it here.",
        )
    return check


def read_delay(facts: Evidence) -> Check | None:
    """Merged chunks have one stamp, so that their gap is 0; counted where bytes lay unread, see gaps.py.

    Of the first two chunks, the first gets the second's stamp: its gap does not show it, but the time to first token does.
    """
    gaps = facts.gaps
    if facts.stamps != "kernel" or not len(gaps.values):
        return None
    share = gaps.merged / len(gaps.values)
    words = f"{gaps.merged:,} of {len(gaps.values):,} gaps may be merged chunks ({share:.2%})"
    remedy = (
        "the client read too late to tell them apart. Use more client.processes or another machine, or lower the load."
    )
    if share > MERGED:
        return judge("read_delay", share, MERGED, words, f"{words}: {remedy}")
    doubts = {"itl": _doubt_of_gaps(gaps.values, gaps.merged)}
    doubts |= {name: _doubt_of_first(facts, name) for name in TO_FIRST_TOKEN}
    name = max(doubts, key=lambda name: doubts[name])
    first = f"{len(gaps.first_merged):,} first chunks may be merged with the second"
    bad = f"{words if name == 'itl' else first}, and without them the p99 of {name} may be {doubts[name]:.1%} less: {remedy}"
    return judge("read_delay", doubts[name], DOUBT, words, bad)


def _doubt_of_gaps(values: Values, merged: int) -> float:
    """How much of the gaps' p99 may be owed to merging: had all of them been told apart, so many fewer would lie above it."""
    if not merged:
        return 0.0
    high = rank(990, len(values)) - 1
    low = max(high - merged, 0)
    least, most = (int(value) / NS for value in np.partition(values, (low, high))[[low, high]])
    return _owed(least, most)


def _doubt_of_first(facts: Evidence, name: str) -> float:
    """The same of the time to first token. Here it is known who was merged: at the least, they took no time at all."""
    merged = facts.gaps.first_merged
    found = facts.metrics[name]
    most = found.value("p99")
    if not len(merged) or most is None or not np.isfinite(most):
        return 0.0
    rows = facts.run.records.rows
    others = facts.steady & (rows["failure"] == 0)
    others[merged] = False
    values = TO_FIRST_TOKEN[name](rows[others])
    values = values[~np.isnan(values)]
    low = rank(990, found.count) - 1 - len(merged)
    return _owed(float(np.partition(values, low)[low]) if low >= 0 else 0.0, most)


def _owed(least: float, most: float) -> float:
    return (most - least) / most if most - least > IN_DOUBT else 0.0


def stamps(facts: Evidence) -> Check | None:
    if facts.stamps == "kernel":
        return Check("stamps", "pass", None, None, "arrivals are stamped by the kernel")
    if facts.stamps == "user":
        bad = "Arrivals are stamped when read, so that the client's own delays are in the latencies. Use Linux and client.stamps: kernel."
        return Check("stamps", "warn", None, None, bad)
    return None
