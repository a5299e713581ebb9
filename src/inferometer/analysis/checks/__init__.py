"""The verdict: a table of checks, each a function of the evidence. A run is INVALID if any check fails."""

from collections.abc import Callable

import msgspec

from inferometer.analysis.checks import client, lag, load, outcome, sample
from inferometer.analysis.checks.evidence import Check, Evidence, StageEvidence
from inferometer.analysis.percentiles import PERCENTILES, needed

__all__ = ["CHECKS", "Check", "Evidence", "StageEvidence", "examine", "verdict"]


class CheckRule(msgspec.Struct, frozen=True):
    name: str
    definition: str
    """What has to be true for the check to pass."""
    judge: Callable[[Evidence], Check | None]
    """Returns None if the check does not apply to this run."""


CHECKS = {
    rule.name: rule
    for rule in (
        CheckRule("completed", "at least one request in the window succeeded", outcome.completed),
        CheckRule("interrupted", "the run was not interrupted or given up before its end (a warning if sequences left some of load.requests unsent)", outcome.interrupted),
        CheckRule("workers", "no client process died or hung", outcome.workers),
        CheckRule("failures", "failed / (ok + failed) in the window is at most limits.failures", outcome.failures),
        CheckRule("dropped", "no request was dropped at the concurrency cap", outcome.dropped),
        CheckRule("lag", f"open loop: the p99 of client_lag is at most limits.lag, or {lag.SHARE:.1%} of the median ttft_service (e2e_service if not streamed) if that is more; and client_lag adds at most limits.lag, or {lag.SHARE:.1%}, to the p99s of ttft and e2e; for the whole run and for each stage", lag.lag),
        CheckRule("rate", "open loop: requests of each stage were sent at a rate of at least limits.rate of the plan", load.rate),
        CheckRule("overload", "open loop, stages with a constant rate: the server kept up. It did not if the number of requests in flight grew by more than limits.overload of the arrivals, steadily (t > 1.73 of 20 increments); such a stage is not valid for latencies, but for the throughput at saturation. A stage in which responses take more than half of its time is too short to tell", load.overload),
        CheckRule("littles_law", f"the mean number in flight is requests/s x mean latency within {load.LITTLE:.0%} (a warning); for stages that are steady and long enough", load.littles_law),
        CheckRule("warmup", "measure.warmup: auto did not have to leave out half of a stage, which would be drift (a warning)", load.warmup),
        CheckRule("concurrency", f"closed loop: while requests were still being sent, at least limits.concurrency of load.concurrency were in flight on average (a warning below {load.WARN:.0%}, and if load.concurrency is 1 or if responses are so short that the client's time between requests, up to {load.TURN_AROUND * 1e6:.0f} µs, makes the difference)", load.concurrency),
        CheckRule("stability", "stages with load.stable: in three consecutive windows, throughput and mean latency differed by at most that share", load.stable),
        CheckRule("cpu", "the busiest client process used at most limits.cpu of a core on average (a warning if its p95 is above that)", client.cpu),
        CheckRule("stalls", "the client's event loop was blocked (for 10 ms or more at a time) for at most limits.stalls of the run", client.stalls),
        CheckRule("memory", "at most limits.memory of the machine's memory was in use", client.memory),
        CheckRule("clock_step", "the wall clock, which the kernel uses for its timestamps, jumped by at most limits.clock_step against the monotonic clock", client.clock_step),
        CheckRule("read_delay", f"kernel timestamps: at most {client.MERGED:.1%} of the gaps are between chunks that were read so late that the kernel may have merged them, and merging may account for at most {client.DOUBT:.0%}, or {client.IN_DOUBT * 1e3:.1f} ms, of the p99 of each of itl, ttft and ttft_service", client.read_delay),
        CheckRule("stamps", "arrivals were timestamped by the kernel, not when the client read them", client.stamps),
        CheckRule("token_source", "the server counted the output tokens", sample.token_source),
        CheckRule("answers", "responses have the requested number of tokens", sample.answers),
        CheckRule("prompts", "no prompt was sent twice, so that prefix caches do not flatter the server", sample.prompts),
        CheckRule("sample_size", f"the p99s of {', '.join(sample.QUOTED)} are supported in every stage: the values say as much as {needed(PERCENTILES['p99'])} independent ones", sample.size),
    )
}  # fmt: skip


def examine(evidence: Evidence) -> tuple[Check, ...]:
    """Results of all checks that apply to this run."""
    return tuple(check for rule in CHECKS.values() if (check := rule.judge(evidence)) is not None)


def verdict(checks: tuple[Check, ...]) -> str:
    return "INVALID" if any(check.status == "fail" for check in checks) else "VALID"
