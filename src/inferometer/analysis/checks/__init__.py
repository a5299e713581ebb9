"""The verdict: each check a function of the facts, in one table. A check never excuses itself: INVALID iff any fails."""

from collections.abc import Callable

import msgspec

from inferometer.analysis.checks import client, lag, load, outcome, sample
from inferometer.analysis.checks.evidence import Check, Evidence

__all__ = ["CHECKS", "Check", "Evidence", "examine", "verdict"]


class CheckRule(msgspec.Struct, frozen=True):
    name: str
    definition: str
    judge: Callable[[Evidence], Check | None]
    """None where the check does not apply to this run."""


CHECKS = {
    rule.name: rule
    for rule in (
        CheckRule("completed", "at least one request of the window was answered in full", outcome.completed),
        CheckRule("interrupted", "the run was not ended before its plan was (a warning where sequences left some of load.requests unsent)", outcome.interrupted),
        CheckRule("workers", "no client process died or hung", outcome.workers),
        CheckRule("failures", "failed / (ok + failed) of the window is at most limits.failures", outcome.failures),
        CheckRule("dropped", "no request was dropped at the concurrency cap", outcome.dropped),
        CheckRule("lag", f"open loop: p99 of client_lag is at most limits.lag, or {lag.SHARE:.1%} of the median ttft_service (not streamed: e2e_service) if that is more; and the p99s of ttft and e2e are at most limits.lag, or {lag.SHARE:.1%} of themselves, more than without client_lag; each also of every stage", lag.lag),
        CheckRule("rate", f"open loop: requests were sent at {load.SHARE:.0%} of the planned rate or more", load.rate),
        CheckRule("concurrency", f"closed loop: while requests were still to be sent, {load.SHARE:.0%} of the asked number were in flight on average, or more (a warning where answers are so short that the time to ask again, {load.TURN_AROUND * 1e6:.0f} µs at most, makes the difference, or where 1 was asked)", load.concurrency),
        CheckRule("stability", "stages with a limit `stable`: in three windows in a row, throughput and mean latency were at most that share apart", load.stable),
        CheckRule("cpu", "mean share of a core that the busiest client process used is at most limits.cpu (a p95 above it is a warning)", client.cpu),
        CheckRule("stalls", "share of the time in which a client's loop stood still for 10 ms and more is at most limits.stalls", client.stalls),
        CheckRule("memory", "share of the machine's memory in use was at most limits.memory", client.memory),
        CheckRule("clock_step", "the wall clock, which the kernel stamps with, stepped against the monotonic one by at most limits.clock_step", client.clock_step),
        CheckRule("read_delay", f"kernel stamps: chunks read so late that the kernel may have merged them are at most {client.MERGED:.1%} of all, and the p99s of itl, ttft and ttft_service owe them at most {client.DOUBT:.0%} each, or {client.IN_DOUBT * 1e3:.1f} ms", client.read_delay),
        CheckRule("stamps", "arrivals are stamped by the kernel, not when the client came to read them", client.stamps),
        CheckRule("token_source", "output tokens were counted by the server", sample.token_source),
        CheckRule("answers", "answers have the length asked for", sample.answers),
        CheckRule("prompts", "no prompt was sent twice, so that prefix caches cannot flatter", sample.prompts),
        CheckRule("sample_size", "the window has enough answers to support a p99", sample.size),
    )
}  # fmt: skip


def examine(facts: Evidence) -> tuple[Check, ...]:
    """Every check that applies to this run."""
    return tuple(check for rule in CHECKS.values() if (check := rule.judge(facts)) is not None)


def verdict(checks: tuple[Check, ...]) -> str:
    return "INVALID" if any(check.status == "fail" for check in checks) else "VALID"
