"""Can the client itself be trusted: did it have enough CPU and memory, did it read in time, and was its clock steady?

What is measured about the client (CPU, stalls, memory, steps of the clock) only warns. A check fails if the client may have
changed a printed percentile by more than limits.effect_fail: see effect.py.
"""

import statistics
from collections.abc import Sequence

import numpy as np

from inferometer.analysis import gaps, settings
from inferometer.analysis.checks.effect import (
    Effect,
    Mask,
    checked,
    compare_doubtful,
    judge_effects,
    percentiles_replacing,
    successful,
    values_of,
)
from inferometer.analysis.checks.evidence import Check, Evidence, StageEvidence
from inferometer.analysis.client_samples import STALL, TICK, Interval, by_shard, errors, overlapping
from inferometer.analysis.percentiles import rank
from inferometer.records import MISSING, Sample
from inferometer.units import NS, format_seconds

ARRIVALS = {
    "ttft": ("first_token",),
    "ttft_service": ("first_token",),
    "tpot": ("first_token", "last_token"),
    "e2e": ("done",),
    "e2e_service": ("done",),
}
"""The arrivals that each metric is computed from. `itl` is computed from those of all chunks."""
UNSTAMPED = 0.01
"""Share of reads without a kernel timestamp above which there is a warning."""


def cpu(evidence: Evidence) -> Check | None:
    if settings.is_in_process(evidence.run.manifest):  # there is no client that could be the bottleneck
        return None
    limit = evidence.limits.cpu
    results = [
        (statistics.fmean(s.cpu for s in samples), shard, stage, sorted(s.cpu for s in samples))
        for stage in evidence.stages
        for shard, samples in by_shard(_during(evidence, stage)).items()
    ]
    if not results:
        return Check("cpu", "warn", None, limit, "The client's CPU usage was not sampled. Run for at least a second.")
    mean, shard, stage, _ = max(results, key=lambda result: result[0])
    used = f"Client process {shard} used {mean:.0%} of a core on average{_in(stage)}"
    if mean > limit:
        stages = tuple(sorted({found[2].stage for found in results if found[0] > limit}))
        bad = f"{used}, more than {limit:.0%}. If the throughput is lower than expected, the client may be the bottleneck: use more client.processes or another machine, or lower the load."
        return Check("cpu", "warn", mean, limit, bad, ("throughput",), stages)
    peaks = [(shares[rank(950, len(shares)) - 1], found) for *_, found, shares in results]
    peak, stage = max(peaks, key=lambda result: result[0])
    if peak > limit:
        bad = f"A client process used {peak:.0%} of a core for part of the time{_in(stage)} (p95). Use more client.processes to be safe."
        return Check("cpu", "warn", mean, limit, bad, ("throughput",), (stage.stage,))
    return Check("cpu", "pass", mean, limit, used)


def _in(stage: StageEvidence) -> str:
    return stage.label.replace(" of ", " in ", 1)


def _during(evidence: Evidence, stage: StageEvidence) -> list[Sample]:
    """The samples of the stage's time; those of all the time after t=0 if there is only one stage."""
    samples = [sample for sample in evidence.run.records.samples if sample.at > 0]
    if len(evidence.stages) == 1:
        return samples
    rows = evidence.run.records.rows[stage.steady]
    rows = rows[rows["sent"] != MISSING]
    if not len(rows):
        return []
    begin, end = int(rows["sent"].min()), int(rows["done"].max())
    return [sample for sample in samples if begin < sample.at <= end]


def memory(evidence: Evidence) -> Check | None:
    used = [sample.memory for sample in evidence.run.records.samples]
    if not used:
        return None
    limit = evidence.limits.memory
    peak = f"{max(used):.0%} of the machine's memory was in use at peak"
    if max(used) <= limit:
        return Check("memory", "pass", max(used), limit, peak)
    bad = f"{peak}: it was close to swapping. Free memory, or use another machine."
    return Check("memory", "warn", max(used), limit, bad)


# --- stalls and steps of the clock: arrivals within some intervals may be wrong ----------------------------------------


def stalls(evidence: Evidence) -> Check | None:
    """Check how much of the time the event loop was blocked and, without kernel timestamps, what that did to the latencies.

    Kernel timestamps do not depend on when the client reads. A stall still delays sends and merges chunks, which the checks
    `lag` and `read_delay` judge from the rows themselves.

    Without them, every arrival in the time of a sample may be late by its longest stall. A stall shorter than the monitor's tick
    is a few late wake-ups, unless the loop was busy all the time, so that every arrival had to wait.
    """
    shards = by_shard([sample for sample in evidence.run.records.samples if sample.at > 0])
    if not shards:
        return None
    share, limit = max(sum(s.stalled for s in own) / own[-1].at for own in shards.values()), evidence.limits.stalls
    longest = max(s.stall for own in shards.values() for s in own) / NS
    blocked = f"event loop was blocked for {share:.2%} of the time, for {format_seconds(longest)} at most"
    remedy = "Give it a CPU core of its own, or use another machine."
    if evidence.stamps == "user":
        late = [
            Interval(s.shard, begin, s.at + STALL, s.stall)
            for begin, s in _spans(shards)
            if s.stall >= TICK or s.cpu > evidence.limits.cpu
        ]
        cause = f"The client's {blocked}, and arrivals were timestamped when they were read"
        changed = judge_effects("stalls", _effects(evidence, late, (-1,)), evidence.limits, cause, remedy)
        if changed is not None:
            return changed
    if share <= limit:
        return Check("stalls", "pass", share, limit, blocked)
    bad = f"The client's {blocked}. The checks lag and read_delay say whether that changed the latencies. {remedy}"
    if evidence.stamps == "user":
        bad = f"The client's {blocked}, but that does not change the latencies. {remedy}"
    return Check("stalls", "warn", share, limit, bad, ("latency",))


def clock_step(evidence: Evidence) -> Check | None:
    """Check steps of the wall clock. Kernel timestamps are wrong between a step and the next sample, which corrects for it.

    After a step forward, timestamps would lie in the future, and are replaced by the instants of reading: they are wrong by no
    more than the client read late. After a step back, they are too early by the step.
    """
    shards = by_shard(evidence.run.records.samples)
    if not shards:
        return None
    steps = [(begin, sample, step) for begin, sample, step in _steps(shards) if step]
    longest = max((abs(step) for _, _, step in steps), default=0) / NS
    limit = float(evidence.limits.clock_step)
    jump = f"The wall clock was stepped by {format_seconds(longest)} against the monotonic clock"
    if evidence.stamps == "user":
        if longest <= limit:
            return Check("clock_step", "pass", longest, limit, jump)
        return Check("clock_step", "warn", longest, limit, f"{jump}. Arrivals do not depend on it in this run.")
    least = round(evidence.limits.effect_least * NS)
    wrong = [
        Interval(sample.shard, begin, sample.at, error)
        for begin, sample, step in steps
        if (error := -step if step < 0 else min(step, sample.stall)) > least
    ]
    remedy = "Wait until NTP has settled and run again, or use client.stamps: user."
    cause = f"{jump}, and kernel timestamps with it"
    changed = judge_effects("clock_step", _effects(evidence, wrong, (-1, 1)), evidence.limits, cause, remedy)
    if changed is not None:
        return changed
    if longest <= limit:
        return Check("clock_step", "pass", longest, limit, jump)
    bad = f"{jump}, but that does not change the latencies. {remedy}"
    return Check("clock_step", "warn", longest, limit, bad, ("latency",))


def _spans(shards: dict[int, list[Sample]]) -> list[tuple[int, Sample]]:
    """Each sample with the beginning of the time that it covers."""
    return [
        (before.at if before else min(0, sample.at), sample)
        for own in shards.values()
        for before, sample in zip([None, *own], own, strict=False)
    ]


def _steps(shards: dict[int, list[Sample]]) -> list[tuple[int, Sample, int]]:
    """Each sample with the beginning of its time, and by how much the wall clock was stepped in it (ns)."""
    befores = [0 if before is None else before.clock_step for own in shards.values() for before in [None, *own[:-1]]]
    return [
        (begin, sample, sample.clock_step - before)
        for (begin, sample), before in zip(_spans(shards), befores, strict=True)
    ]


def _effects(evidence: Evidence, intervals: Sequence[Interval], signs: tuple[int, ...]) -> list[Effect]:
    """What arrivals that are wrong within these intervals may have done to the percentiles. `signs`: whether the true ones
    are earlier (-1) or later (1)."""
    if not intervals:
        return []
    effects: list[Effect] = []
    for stage in evidence.stages:
        rows = successful(evidence, stage)
        found = {column: errors(intervals, rows, column) for column in ("first_token", "last_token", "done")}
        for metric, columns in ARRIVALS.items():
            values = values_of(metric, rows)
            if values is None:
                continue
            error = np.sum([found[column] for column in columns], axis=0) / NS
            if metric == "tpot":  # its first arrival may be wrong, or its last
                effects += compare_doubtful(stage, metric, values, error / np.maximum(rows["n_out"] - 1, 1))
            else:
                effects += compare_doubtful(stage, metric, values, error, signs)
    return effects + _effects_on_gaps(evidence, intervals)


def _effects_on_gaps(evidence: Evidence, intervals: Sequence[Interval]) -> list[Effect]:
    """The same for `itl`: compare with the gaps of responses that were not in flight during these intervals."""
    rows = evidence.run.records.rows
    good = evidence.steady & (rows["failure"] == 0)
    doubtful: Mask = overlapping(intervals, rows)
    if not len(evidence.gaps.values) or not (good & doubtful & (rows["chunk_count"] > 1)).any():
        return []
    others = gaps.gather(evidence.run, good & ~doubtful)
    largest = max(interval.error for interval in intervals) / NS
    nothing = np.zeros(0, np.int64)
    effects = []
    for stage in evidence.stages:
        left = others.values[others.stages.get(stage.stage, slice(0, 0))]
        values = checked(stage.metrics["itl"])
        without = percentiles_replacing(left, nothing, nothing, values)
        for name, printed in values.items():
            corrected = min(max(without.get(name, 0.0), printed - largest), printed + largest)
            effects.append(Effect(printed, corrected, name, "itl", stage))
    return effects


def stamps(evidence: Evidence) -> Check | None:
    if evidence.stamps == "user":
        bad = "Arrivals were timestamped when they were read, so latencies include the client's own delays. Use Linux and client.stamps: kernel."
        return Check("stamps", "warn", None, None, bad)
    if evidence.stamps != "kernel":
        return None
    samples = evidence.run.records.samples
    reads, unstamped = (sum(getattr(sample, name, 0) for sample in samples) for name in ("reads", "unstamped"))
    share = unstamped / reads if reads else 0.0
    if share <= UNSTAMPED:
        return Check("stamps", "pass", share, UNSTAMPED, "the kernel timestamped the arrivals")
    bad = f"{share:.1%} of the reads had no kernel timestamp, so that arrivals count from when they were read. Check that the clock is not being stepped, or use another machine."
    return Check("stamps", "warn", share, UNSTAMPED, bad, ("latency",))
