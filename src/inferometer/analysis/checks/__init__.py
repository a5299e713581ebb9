"""The verdict: a table of checks, each a function of the evidence. A run is INVALID if any check fails.

Checks of the client fail by their effect: if what they watch may have changed a printed percentile (p50, p90, p95 or p99 of
ttft, itl, tpot or e2e, if there are enough values for it) by more than limits.effect_fail. See effect.py.
"""

from collections.abc import Callable

import msgspec

from inferometer.analysis import merges
from inferometer.analysis.checks import client, clocks, lag, load, lockstep, outcome, parts, reads, sample, server
from inferometer.analysis.checks.evidence import Check, Evidence, StageEvidence
from inferometer.analysis.client_samples import Stalls
from inferometer.analysis.percentiles import PERCENTILES, needed
from inferometer.analysis.server_notes import COUNTS
from inferometer.units import format_seconds

__all__ = ["CHECKS", "Check", "Evidence", "StageEvidence", "examine", "in_words", "verdict"]


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
        CheckRule("abort", "no limit of abort.on was exceeded, which would have ended the run or a stage", outcome.limits),
        CheckRule("workers", "no client process died or hung", outcome.workers),
        CheckRule("parts", f"a run that was merged from parts (`inferometer merge`): no part is missing, and each ran to its end (a warning if, by their own clocks, they started more than {format_seconds(parts.TOGETHER)} apart)", parts.parts),
        CheckRule("failures", "in each stage, failed / (ok + failed) in the window is at most limits.failures", outcome.failures),
        CheckRule("dropped", "no request was dropped at the concurrency cap", outcome.dropped),
        CheckRule("retries", "at most limits.retries of the requests were sent twice (a warning)", outcome.retries),
        CheckRule("lag", f"open loop: subtracting the client's own lag changes no printed percentile of ttft or e2e by more than limits.effect_fail (a warning above limits.effect_pass, or if the p99 of client_lag exceeds both limits.lag and {lag.SHARE:.1%} of the median ttft_service; of e2e_service if responses are not streamed)", lag.lag),
        CheckRule("rate", "open loop: requests of each stage were sent at a rate of at least limits.rate of the plan", load.rate),
        CheckRule("overload", "open loop, stages with a constant rate: the server kept up. It did not if the number of requests in flight grew steadily (t > 1.73 for 20 increments) and by more than limits.overload of the arrivals: then latencies must not be quoted, and the throughput is that of the saturated server. The check also fails, for latencies, if a stage is too short to tell, such as when responses take more than half of it", load.overload),
        CheckRule("littles_law", f"the mean number in flight equals requests/s x mean latency to within {load.LITTLE:.0%}, in stages that are steady and long enough (a warning)", load.littles_law),
        CheckRule("warmup", "measure.warmup: auto did not have to leave out half of a stage: that would be drift, not warm-up (a warning)", load.warmup),
        CheckRule("concurrency", f"closed loop: while requests were being sent, at least limits.concurrency of load.concurrency were in flight on average (a warning below {load.WARN:.0%}, or {load.WARN_ONE:.0%} of one user; never more than a warning for one user, or if responses are so short that the client's own time between requests, up to {load.TURN_AROUND * 1e6:.0f} µs, makes the difference)", load.concurrency),
        CheckRule("lockstep", f"closed loop with at least {lockstep.FEWEST} users: fewer than {lockstep.TOGETHER:.0%} of them send within {lockstep.WITHIN:.0%} of an end-to-end time of each other (a warning)", lockstep.lockstep),
        CheckRule("stability", "stages with load.stable: in three consecutive windows, throughput and mean latency differed by at most that share", load.stable),
        CheckRule("cpu", "in each stage, the busiest client process used at most limits.cpu of a core, on average and at its p95 (a warning)", client.cpu),
        CheckRule("stalls", "the client's event loop was blocked (for 10 ms or more at a time) for at most limits.stalls of the run (a warning). Without kernel timestamps, leaving out the responses that were read late also changes no printed percentile by more than limits.effect_fail (a warning above limits.effect_pass)", client.stalls),
        CheckRule("memory", "at most limits.memory of the machine's memory was in use (a warning)", client.memory),
        CheckRule("clock_step", "the wall clock, which the kernel uses for its timestamps, was stepped by at most limits.clock_step (a warning), and leaving out the responses that arrived meanwhile changes no printed percentile by more than limits.effect_fail (a warning above limits.effect_pass)", client.clock_step),
        CheckRule("clocks", "open loop on several machines: the clocks of any two of them are at most limits.clock_offset, or the mean time between two requests if that is more, apart, with the uncertainty of measuring that and the drift during the run. Latencies are of one clock and do not depend on it", clocks.clocks),
        CheckRule("read_delay", "kernel timestamps: splitting the chunks that the client may have merged by reading late, and leaving out the large responses that waited for it to read, changes no printed percentile by more than limits.effect_fail (a warning above limits.effect_pass)", reads.read_delay),
        CheckRule("merged_chunks", "kernel timestamps: at most limits.merged of the chunks arrived together with the chunk before although the client read in time: the server or the network merged them (a warning)", reads.merged_chunks),
        CheckRule("stamps", f"arrivals were timestamped by the kernel, not when the client read them (a warning above {client.UNSTAMPED:.0%})", client.stamps),
        CheckRule("token_source", "the output tokens of every response were counted, by the server or with data.tokenizer (a warning)", sample.token_source),
        CheckRule("answers", f"at most {sample.SHORT:.0%} of the responses are shorter than requested, and at most {sample.SHORT:.0%} longer (a warning)", sample.answers),
        CheckRule("prompts", "no prompt was sent twice, so that prefix caches do not flatter the server (a warning)", sample.prompts),
        CheckRule("cached_tokens", "if the prompts are fresh, the server had cached at most limits.cached of their tokens (a warning)", sample.cached_tokens),
        CheckRule("other_clients", f"by its own metrics, the server completed at most {COUNTS:.0%} more requests than this client sent (a warning)", server.other_clients),
        CheckRule("restarts", "no counter in the server's metrics fell, as it does after a restart (a warning)", server.restarts),
        CheckRule("sample_size", f"the p99s of {', '.join(sample.QUOTED)} are supported in every stage: the values say as much as {needed(PERCENTILES['p99'])} independent ones (a warning)", sample.size),
    )
}  # fmt: skip


def examine(evidence: Evidence) -> tuple[Check, ...]:
    """Results of all checks that apply to this run."""
    if evidence.stamps == "kernel":
        found = merges.find(evidence.run, evidence.gaps, Stalls(evidence.run.records.samples))
        evidence = msgspec.structs.replace(evidence, merges=found)
    return tuple(check for rule in CHECKS.values() if (check := rule.judge(evidence)) is not None)


def verdict(checks: tuple[Check, ...]) -> str:
    return "INVALID" if any(check.status == "fail" for check in checks) else "VALID"


def in_words(checks: tuple[Check, ...]) -> str:
    """The verdict for people, who may want to look at the warnings."""
    warned = any(check.status == "warn" for check in checks)
    return "VALID with warnings" if warned and verdict(checks) == "VALID" else verdict(checks)
