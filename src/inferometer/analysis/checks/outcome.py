"""Did the run complete, and did the server respond?"""

from collections.abc import Sequence

import numpy as np

from inferometer.analysis import settings
from inferometer.analysis.attempts import repeated
from inferometer.analysis.checks.evidence import Check, Evidence, count_failures, judge
from inferometer.errors import KEY_WANTED
from inferometer.records import CANCELLED, DROPPED, LOST
from inferometer.units import format_seconds


def completed(evidence: Evidence) -> Check:
    rows = evidence.run.records.rows
    ok = int((evidence.steady & (rows["failure"] == 0)).sum())
    if ok:
        return Check("completed", "pass", ok, 1, f"{ok:,} requests succeeded")
    if not len(rows):
        bad = "No request was sent. Give the run more time or more requests."
    elif (rows["failure"] == 0).any():
        bad = "Every successful request is in the warm-up or the cool-down. Run longer, or shorten measure.warmup and measure.cooldown."
    else:
        bad = "No request succeeded. See the failures, and try a single request with `inferometer infer`."
    return Check("completed", "fail", 0, 1, bad)


def interrupted(evidence: Evidence) -> Check:
    outcome = evidence.run.manifest.outcome
    if outcome.given_up:
        return Check("interrupted", "fail", 1, 0, _given_up(evidence, outcome.given_up))
    if not outcome.interrupted and any(trip.ended == "run" for trip in outcome.trips):
        return Check("interrupted", "pass", 0, 0, "not interrupted: a limit of abort.on ended the run")
    if not outcome.interrupted:
        unsent = None if outcome.errors else _left_by_sequences(evidence)
        return Check("interrupted", "warn" if unsent else "pass", 0, 0, unsent or "the run completed")
    bad = "The run was interrupted, and the results are partial. Let it run to its end, or make it shorter."
    return Check("interrupted", "fail", 1, 0, bad)


def limits(evidence: Evidence) -> Check | None:
    """Fail if a limit of abort.on has ended the run or stages. What ended before it may be quoted."""
    manifest = evidence.run.manifest
    trips, count = manifest.outcome.trips, len(settings.abort_limits(manifest))
    if not trips:
        return Check("abort", "pass", 0, 0, "no limit of abort.on was exceeded") if count else None
    first, more = trips[0], len(trips) - 1
    stage = evidence.stages[first.stage].label.removeprefix(" of ")
    what = f"The run was ended{f' in {stage}' if stage else ''}"
    if first.ended == "stage":
        what = f"{stage.capitalize() or 'The stage'} was ended"
    others = f" ({more} more {'stages were' if more > 1 else 'stage was'} ended early too)" if more else ""
    bad = (
        f"{what} after {format_seconds(first.at)} by {'abort.on' if count else first.limit}: {first.reason}{others}. "
        "Find out why the server did not cope, lower the load, or raise the limit."
    )
    ended = range(first.stage, len(manifest.plan)) if first.ended == "run" else (trip.stage for trip in trips)
    return Check("abort", "fail", len(trips), 0, bad, stages=tuple(ended))


def _given_up(evidence: Evidence, stages: tuple[int, ...]) -> str:
    run = evidence.run
    _, unsent = _planned(evidence, stages)
    which = "the run was"
    if len(run.manifest.plan) > 1:
        numbers = ", ".join(str(stage + 1) for stage in stages)
        which = f"stages {numbers} were" if len(stages) > 1 else f"stage {numbers} was"
    waited = format_seconds(settings.unreached(run.manifest))
    return (
        f"The server could not be reached for {waited}, so {which} given up, with {unsent:,} requests not sent. "
        "Check whether the server is still up. (A stage with a load.duration continues even if it is not.)"
    )


def _left_by_sequences(evidence: Evidence) -> str | None:
    """A warning if stages that end after load.requests requests sent fewer, because of sequences."""
    manifest = evidence.run.manifest
    by_count = [number for number, plan in enumerate(manifest.plan) if not (plan.open or plan.duration or plan.stable)]
    planned, unsent = _planned(evidence, by_count)
    if unsent <= 0 or not settings.text(manifest, "data", "sequence"):
        return None
    return (
        f"{unsent:,} of {planned:,} requests were not sent, because the next sequence would have exceeded load.requests. "
        "Choose a load.requests that whole sequences add up to, or use load.duration."
    )


def _planned(evidence: Evidence, stages: Sequence[int]) -> tuple[int, int]:
    """Number of requests, or of sessions, that these stages planned, and how many of them were not sent."""
    plans, rows = evidence.run.manifest.plan, evidence.run.records.rows
    sent = 0
    for stage in stages:
        own = rows["stage"] == stage
        sent += int((own & (rows["turn"] <= 0) if plans[stage].unit == "sessions" else own).sum())
    planned = sum(plans[stage].requests for stage in stages)
    return planned, planned - sent


def workers(evidence: Evidence) -> Check:
    errors = evidence.run.manifest.outcome.errors
    if not errors:
        return Check("workers", "pass", 0, 0, "every client process completed")
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    bad = f"{errors[0].rstrip('.')}{more}. The records were kept, but the load was not the planned one: run again."
    return Check("workers", "fail", len(errors), 0, bad)


def failures(evidence: Evidence) -> Check | None:
    """Count failures of the server in each stage. Cancelled, dropped and lost requests have their own checks."""
    rows, limit = evidence.run.records.rows, evidence.limits.failures
    results = []
    for stage in evidence.stages:
        kinds = [
            kind for kind in count_failures(evidence.run, stage.steady) if kind.code not in (CANCELLED, DROPPED, LOST)
        ]
        failed = sum(kind.count for kind in kinds)
        if total := failed + int((stage.steady & (rows["failure"] == 0)).sum()):
            results.append((failed / total, failed, total, kinds, stage))
    if not results:
        return None
    share, failed, total, kinds, stage = max(results, key=lambda result: result[0])
    if share <= limit:
        failed, total = sum(result[1] for result in results), sum(result[2] for result in results)
        return Check("failures", "pass", share, limit, f"{failed:,} of {total:,} failed")
    message = f": {_short(kinds[0].message)}" if kinds[0].message else ""
    remedy = _remedy(kinds[0].code, _is_plain(evidence) and failed == total)
    bad = f"{failed:,} of {total:,} requests{stage.label} failed ({share:.2%}), most with {kinds[0].code}{message}. {remedy}, or allow more with limits.failures."
    stages = tuple(result[4].stage for result in results if result[0] > limit)
    return Check("failures", "fail", share, limit, bad, stages=stages)


def retries(evidence: Evidence) -> Check | None:
    """Report requests that were sent twice, because the server closed or refused the first attempt unprocessed."""
    rows = evidence.run.records.rows[evidence.steady]
    attempts, by_config = rows["attempts"], repeated(rows)
    sent = int(np.count_nonzero(attempts > 0))
    if not sent:
        return None
    again, limit = int(np.count_nonzero((attempts > 1) & (rows["wasted"] <= 0))), evidence.limits.retries
    message = f"{again:,} of {sent:,} requests were sent twice"
    if by_config.requests:
        message += f"; client.retries repeated {by_config.requests:,} after a fault, {by_config.recovered:,} of them successfully"
    if again / sent <= limit:
        return Check("retries", "pass", again / sent, limit, message)
    bad = f"{message}: the server closed idle connections, or refused streams, just when they were used. Their latencies include the first attempt. Raise the server's keep-alive timeout, or use fewer client.connections."
    return Check("retries", "warn", again / sent, limit, bad, ("latency",))


_REMEDIES = {
    ("http_404",): "Check server.url, server.model, and whether the server supports server.api (tensor servers: kserve)",
    KEY_WANTED: "Provide the API key with server.api_key_env, or check it",
    ("connect_refused", "connect_failed"): "Check whether the server is still up at that address",
    ("connect_timeout",): "Check whether the server is up and accepts connections, or raise server.timeouts.connect",
    ("tls",): "Check server.tls and the server's certificate",
    ("closed", "reset", "cut_short", "truncated", "stream_reset"): "Check in the server's log why it closed the connection, and whether it is still up",
    ("first_token_timeout", "idle_timeout", "total_timeout", "grpc_DEADLINE_EXCEEDED"): "Find out why the server is slow, lower the load, or allow more time (server.timeouts; gRPC: server.deadline)",
    ("compressed",): "Ask for gzip only with the header accept-encoding (server.headers), or turn compression off at the server or the proxy before it",
    ("http_429", "http_503"): "Lower the load, raise the limit of the server or of the proxy before it, or repeat these requests with client.retries and client.retry_statuses",
    ("unfinished",): "Find out why the server does not end its responses, run longer, or wait longer for them (client.grace)",
    ("too_large",): "Check that the server ends its responses, and observes the number of tokens that is requested",
    ("no_sockets",): "Raise this machine's limit on open files (ulimit -n), or lower the load",
}  # fmt: skip


def _remedy(code: str, may_be_tls: bool) -> str:
    """What to do next, by kind of failure."""
    if may_be_tls and code in ("closed", "reset"):  # a TLS port does this to plain-text requests
        return "Check the port, and write https:// (or grpcs://) if the server expects TLS"
    return next((remedy for codes, remedy in _REMEDIES.items() if code in codes), "Fix the cause")


def _is_plain(evidence: Evidence) -> bool:
    """Whether requests are sent without TLS."""
    url = settings.text(evidence.run.manifest, "server", "url")
    return str(url[0] if isinstance(url, list) and url else url).startswith(("http://", "grpc://"))


def dropped(evidence: Evidence) -> Check:
    """Count drops in every phase: a run that dropped requests did not generate the planned load."""
    failures = evidence.run.records.failures
    numbers = [number for number, failure in enumerate(failures, 1) if failure.code == DROPPED]
    count = int(np.isin(evidence.run.records.rows["failure"], numbers).sum()) if numbers else 0
    requests = "request was" if count == 1 else "requests were"
    bad = f"{count:,} {requests} dropped at the concurrency cap. Raise load.max_concurrency, lower the rate, or let requests queue."
    return judge("dropped", count, 0, "no request was dropped", bad)


def _short(message: str, most: int = 100) -> str:
    """Shorten a server's message to fit into a sentence; the report's list of failures has more of it."""
    line = " ".join(message.split()).rstrip(".")
    return line if len(line) <= most else f"{line[:most].rstrip()}..."
