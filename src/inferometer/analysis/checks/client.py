"""Can the client itself be trusted: did it have enough CPU and memory, and a steady clock?"""

import statistics

import numpy as np

from inferometer.analysis import metrics
from inferometer.analysis.checks.evidence import Check, Evidence, StageEvidence, judge
from inferometer.analysis.percentiles import Values, rank
from inferometer.records import Sample
from inferometer.units import NS, format_seconds

MERGED = 0.005
"""Share of the gaps that may be 0 because two chunks were merged under one timestamp. Each merge removes one gap and lengthens
another, so that at most 1 % of the gaps are affected."""

DOUBT = 0.01
"""Share of a p99, of gaps or of the time to first token, that may be due to merging. Less than IN_DOUBT does not matter."""
IN_DOUBT = 0.0001
"""Seconds."""
TO_FIRST_TOKEN = {"ttft": metrics.ttft, "ttft_service": metrics.ttft_service}


def _by_shard(evidence: Evidence) -> dict[int, list[Sample]]:
    shards: dict[int, list[Sample]] = {}
    for sample in evidence.run.records.samples:
        if sample.at > 0:
            shards.setdefault(sample.shard, []).append(sample)
    return shards


def cpu(evidence: Evidence) -> Check:
    limit = evidence.limits.cpu
    shards = _by_shard(evidence)
    if not shards:
        return Check("cpu", "warn", None, limit, "The client's CPU usage was not sampled. Run for at least a second.")
    mean, shard = max((statistics.fmean(s.cpu for s in samples), shard) for shard, samples in shards.items())
    used = f"Client process {shard} used {mean:.0%} of a core on average"
    if mean > limit:
        bad = f"{used}, more than {limit:.0%}: the client was the bottleneck. Use more client.processes or another machine, or lower the load."
        return Check("cpu", "fail", mean, limit, bad)
    peaks = [sorted(s.cpu for s in samples)[rank(950, len(samples)) - 1] for samples in shards.values()]
    if max(peaks) > limit:
        bad = f"A client process used {max(peaks):.0%} of a core for part of the run (p95). Use more client.processes to be safe."
        return Check("cpu", "warn", mean, limit, bad)
    return Check("cpu", "pass", mean, limit, used)


def stalls(evidence: Evidence) -> Check | None:
    shares = [sum(s.stalled for s in samples) / max(s.at for s in samples) for samples in _by_shard(evidence).values()]
    if not shares:
        return None
    longest = max(s.stall for s in evidence.run.records.samples) / NS
    share = max(shares)
    blocked = f"event loop was blocked for {share:.2%} of the time, for {format_seconds(longest)} at most"
    bad = f"The client's {blocked}. Give it a CPU core of its own, or use another machine."
    return judge("stalls", share, evidence.limits.stalls, blocked, bad)


def memory(evidence: Evidence) -> Check | None:
    used = [sample.memory for sample in evidence.run.records.samples]
    if not used:
        return None
    peak = f"{max(used):.0%} of the machine's memory was in use at peak"
    bad = f"{peak}: it was close to swapping. Free memory, or use another machine."
    return judge("memory", max(used), evidence.limits.memory, peak, bad)


def clock_step(evidence: Evidence) -> Check | None:
    steps = [abs(sample.clock_step) / NS for sample in evidence.run.records.samples]
    if not steps:
        return None
    jump = f"The wall clock jumped by {format_seconds(max(steps))} against the monotonic clock"
    bad = (
        f"{jump}, and kernel timestamps with it. Wait until NTP has settled and run again, or use client.stamps: user."
    )
    check = judge("clock_step", max(steps), evidence.limits.clock_step, jump, bad)
    if check.status == "fail" and evidence.stamps == "user":
        harmless = f"{jump}. Arrivals do not depend on it in this run."
        return Check("clock_step", "warn", check.value, check.limit, harmless)
    return check


def read_delay(evidence: Evidence) -> Check | None:
    """Check how much chunks that the kernel merged may have changed the results.

    Merged chunks share one timestamp, so that their gap is 0; they are counted if their bytes were read late, see gaps.py. If
    the first two chunks are merged, the first gets the timestamp of the second, and the time to first token is too long.
    """
    gaps = evidence.gaps
    if evidence.stamps != "kernel" or not len(gaps.values):
        return None
    share = gaps.merged / len(gaps.values)
    merged = f"{gaps.merged:,} of {len(gaps.values):,} gaps may be between merged chunks ({share:.2%})"
    remedy = (
        "The client read too late to tell them apart. Use more client.processes or another machine, or lower the load."
    )
    if share > MERGED:
        return judge("read_delay", share, MERGED, merged, f"{merged}. {remedy}")
    doubts = {"itl": _doubt_of_gaps(gaps.values, gaps.merged)}
    for name in TO_FIRST_TOKEN:
        doubts[name] = max(_doubt_of_first(evidence, stage, name) for stage in evidence.stages)
    name = max(doubts, key=lambda name: doubts[name])
    cause = merged if name == "itl" else f"{len(gaps.first_merged):,} first chunks may be merged with the second"
    bad = f"{cause}, and without them the p99 of {name} could be {doubts[name]:.1%} lower. {remedy}"
    return judge("read_delay", doubts[name], DOUBT, merged, bad)


def _doubt_of_gaps(values: Values, merged: int) -> float:
    """Share of the gaps' p99 that may be due to merging: without it, up to `merged` fewer gaps would lie above the p99."""
    if not merged:
        return 0.0
    high = rank(990, len(values)) - 1
    low = max(high - merged, 0)
    least, most = (int(value) / NS for value in np.partition(values, (low, high))[[low, high]])
    return _due_to_merging(least, most)


def _doubt_of_first(evidence: Evidence, stage: StageEvidence, name: str) -> float:
    """The same for the time to first token. Here the merged ones are known; in the extreme case they took no time at all."""
    rows = evidence.run.records.rows
    merged = evidence.gaps.first_merged
    merged = merged[stage.steady[merged]]
    measured = stage.metrics[name]
    most = measured.value("p99")
    if not len(merged) or most is None or not np.isfinite(most):
        return 0.0
    others = stage.steady & (rows["failure"] == 0)
    others[merged] = False
    values = TO_FIRST_TOKEN[name](rows[others])
    values = values[~np.isnan(values)]
    low = rank(990, measured.count) - 1 - len(merged)
    return _due_to_merging(float(np.partition(values, low)[low]) if low >= 0 else 0.0, most)


def _due_to_merging(least: float, most: float) -> float:
    return (most - least) / most if most - least > IN_DOUBT else 0.0


def stamps(evidence: Evidence) -> Check | None:
    if evidence.stamps == "kernel":
        return Check("stamps", "pass", None, None, "the kernel timestamped the arrivals")
    if evidence.stamps == "user":
        bad = "Arrivals were timestamped when they were read, so latencies include the client's own delays. Use Linux and client.stamps: kernel."
        return Check("stamps", "warn", None, None, bad)
    return None
