"""Did the run come to its end, and did the server answer?"""

from collections.abc import Sequence

import numpy as np

from inferometer.analysis import settings
from inferometer.analysis.checks.evidence import Check, Evidence, count_failures, judge
from inferometer.errors import KEY_WANTED
from inferometer.records import CANCELLED, DROPPED, UNREACHED


def completed(facts: Evidence) -> Check:
    rows = facts.run.records.rows
    ok = int((facts.steady & (rows["failure"] == 0)).sum())
    if ok:
        return Check("completed", "pass", ok, 1, f"{ok:,} requests answered in full")
    if not len(rows):
        bad = "Nothing was sent. Give the run more time or more requests."
    elif (rows["failure"] == 0).any():
        bad = "The warm-up and the cool-down leave nothing to count. Run longer, or shorten measure.warmup and measure.cooldown."
    else:
        bad = "No request was answered in full. See the failures, and try one request by hand."
    return Check("completed", "fail", 0, 1, bad)


def interrupted(facts: Evidence) -> Check:
    outcome = facts.run.manifest.outcome
    if outcome.given_up:
        return Check("interrupted", "fail", 1, 0, _given_up(facts, outcome.given_up))
    if not outcome.interrupted:
        left = None if outcome.errors else _left_by_sequences(facts)
        return Check("interrupted", "warn" if left else "pass", 0, 0, left or "ran to its end")
    return Check(
        "interrupted",
        "fail",
        1,
        0,
        "The run was interrupted: this is what there was. Let it run to its end, or ask for less.",
    )


def _given_up(facts: Evidence, stages: tuple[int, ...]) -> str:
    run = facts.run
    _, unsent = _planned(facts, stages)
    which = "the run was"
    if len(run.manifest.plan) > 1:
        numbers = ", ".join(str(stage + 1) for stage in stages)
        which = f"stages {numbers} were" if len(stages) > 1 else f"stage {numbers} was"
    return (
        f"The server could not be reached for {UNREACHED} s on end, so {which} given up, with {unsent:,} requests not sent. "
        "See whether the server is still up. (A stage with a load.duration goes on whether it is or not.)"
    )


def _left_by_sequences(facts: Evidence) -> str | None:
    """What stages that only a number of requests ends did not send of it."""
    manifest = facts.run.manifest
    by_count = [number for number, plan in enumerate(manifest.plan) if not (plan.open or plan.duration or plan.stable)]
    planned, unsent = _planned(facts, by_count)
    if unsent <= 0 or not settings.text(manifest, "data", "sequence"):
        return None
    return (
        f"Not sent: {unsent:,} of {planned:,} requests, since the next sequence would have gone beyond load.requests. "
        "Give a number that sequences fill, or load.duration."
    )


def _planned(facts: Evidence, stages: Sequence[int]) -> tuple[int, int]:
    """The requests that these stages asked for, and those of them that were not sent."""
    planned = sum(facts.run.manifest.plan[stage].requests for stage in stages)
    return planned, planned - int(np.isin(facts.run.records.rows["stage"], stages).sum())


def workers(facts: Evidence) -> Check:
    errors = facts.run.manifest.outcome.errors
    if not errors:
        return Check("workers", "pass", 0, 0, "every client process ran to its end")
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    bad = (
        f"{errors[0].rstrip('.')}{more}. What was recorded is kept, but the load was not the one asked for: run again."
    )
    return Check("workers", "fail", len(errors), 0, bad)


def failures(facts: Evidence) -> Check | None:
    """Cancelled and dropped requests are not the server's failures: they have checks of their own."""
    rows = facts.run.records.rows
    kinds = [kind for kind in count_failures(facts.run, facts.steady) if kind.code not in (CANCELLED, DROPPED)]
    failed = sum(kind.count for kind in kinds)
    answered = failed + int((facts.steady & (rows["failure"] == 0)).sum())
    if not answered:
        return None
    share = failed / answered
    good = f"{failed:,} of {answered:,} failed"
    if not kinds:
        return Check("failures", "pass", 0.0, facts.limits.failures, good)
    said = f": {_short(kinds[0].message)}" if kinds[0].message else ""
    remedy = _remedy(kinds[0].code, _is_plain(facts) and failed == answered)
    bad = f"{failed:,} of {answered:,} requests failed ({share:.2%}), most by {kinds[0].code}{said}. {remedy}, or allow more with limits.failures."
    return judge("failures", share, facts.limits.failures, good, bad)


_REMEDIES = {
    ("http_404",): "Check server.url, server.model, and whether the server speaks server.api (tensor servers: kserve)",
    KEY_WANTED: "Give the key: server.api_key_env",
    ("connect_refused", "connect_failed"): "See whether the server is still up, at that address",
    ("connect_timeout",): "See whether the server is up and takes connections, or raise server.timeouts.connect",
    ("tls",): "Check server.tls, and the server's certificate",
    ("closed", "reset", "cut_short", "truncated", "stream_reset"): "See in the server's log why it broke off, and whether it is still up",
    ("first_token_timeout", "idle_timeout", "total_timeout", "grpc_DEADLINE_EXCEEDED"): "See why the server is slow, lower the load, or give it more time (server.timeouts, gRPC: server.deadline)",
    ("not_streamed",): "Set server.stream to false to measure it without streaming",
    ("no_sockets",): "Raise this machine's limit of open files (ulimit -n), or lower the load",
}  # fmt: skip


def _remedy(code: str, may_be_tls: bool) -> str:
    """What to look at, by the kind of failure."""
    if may_be_tls and code in ("closed", "reset"):  # as a port that speaks TLS does at plain requests
        return "Check the port, and write https:// (or grpcs://) if it speaks TLS"
    return next((remedy for codes, remedy in _REMEDIES.items() if code in codes), "Mend that")


def _is_plain(facts: Evidence) -> bool:
    """The server is asked without TLS."""
    url = settings.text(facts.run.manifest, "server", "url")
    return str(url[0] if isinstance(url, list) and url else url).startswith(("http://", "grpc://"))


def dropped(facts: Evidence) -> Check:
    """In any phase: a run with drops did not offer the load it was asked to."""
    places = [1 + place for place, failure in enumerate(facts.run.records.failures) if failure.code == DROPPED]
    count = int(np.isin(facts.run.records.rows["failure"], places).sum()) if places else 0
    bad = f"Dropped at the concurrency cap: {count:,}. Raise load.max_concurrency, lower the rate, or let them queue."
    return judge("dropped", count, 0, "none dropped", bad)


def _short(message: str, most: int = 100) -> str:
    """A server's message within a sentence of ours; the report's failures have more of it."""
    line = " ".join(message.split()).rstrip(".")
    return line if len(line) <= most else f"{line[:most].rstrip()}..."
