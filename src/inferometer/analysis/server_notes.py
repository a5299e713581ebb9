"""What a user should know about the server, from its own metrics: one sentence for each finding.

These are findings about the server, so they do not change the verdict. What changes the meaning of the figures, a restart or other
clients, is a check (checks/server.py).
"""

from collections.abc import Iterable, Mapping, Sequence

from inferometer.analysis.server_comparison import Comparison
from inferometer.server_metrics.figures import Figures
from inferometer.units import format_number, format_seconds

# --- thresholds ------------------------------------------------------------------------------------------------------

QUEUED = 1.0
"""Requests waiting on average from which on the server is said to queue."""
KV_FULL = 0.95
"""Share of the KV cache in use from which on it is nearly full."""
COUNTS = 0.01
"""Share by which counts of requests or tokens may differ: a scrape at the border of a window is not exact."""
LATER, LATER_SHARE = 0.001, 0.02
"""By how much the server's mean latency may exceed the client's: seconds, and a share of the client's."""

Queues = Sequence[tuple[str, float, float]]
"""The name of each stage (empty if there is only one), and its mean and maximum number of requests waiting. Names may repeat."""


def notes(figures: Figures, derived: Mapping[str, float], fresh_limit: float | None) -> tuple[str, ...]:
    """Return the findings that figures of a window show. `fresh_limit` is the allowed share of cached tokens if every prompt is new,
    else None."""
    queues = [("", waiting.mean, waiting.max)] if (waiting := figures.gauges.get("waiting")) else []
    return tuple(_queue(queues, 1, _queue_time(figures, derived)) + _cache(figures, derived, fresh_limit))


def notes_of_run(
    figures: Figures,
    derived: Mapping[str, float],
    fresh_limit: float | None,
    queues: Queues,
    stages: int,
    comparison: Mapping[str, Comparison],
    has_failures: bool,
) -> tuple[str, ...]:
    """Return the findings about a whole run. `queues` are those of its stages: a mean over different loads would say little."""
    wait = _queue_time(figures, derived) if stages == 1 else None
    return tuple(
        _queue(queues, stages, wait)
        + _cache(figures, derived, fresh_limit)
        + _counts(comparison, has_failures)
        + _latencies(comparison)
    )


# --- one kind of finding each ----------------------------------------------------------------------------------------


def _queue_time(figures: Figures, derived: Mapping[str, float]) -> float | None:
    histogram = figures.histograms.get("queue_time")
    return histogram.mean if histogram is not None else derived.get("queue_time")


def _queue(queues: Queues, stages: int, wait: float | None) -> list[str]:
    long = [queue for queue in queues if queue[1] >= QUEUED]
    if not long:
        return []
    name, mean, most = max(long, key=lambda queue: queue[1])
    where = f" in {len(long)} of {stages} stages, most in {name}" if stages > 1 else ""
    each = f", {format_seconds(wait)} each on average" if wait else ""
    number = format_number(mean, 3)
    waiting = f"{number} request{'' if number == '1' else 's'} waiting on average (at most {most:,.0f}){each}"
    return [f"the server queued{where}: {waiting}; its capacity was reached"]


def _cache(figures: Figures, derived: Mapping[str, float], fresh_limit: float | None) -> list[str]:
    found = []
    preemptions = figures.counters.get("preemptions")
    if preemptions is not None and preemptions.delta > 0:
        times = "once" if preemptions.delta == 1 else f"{preemptions.delta:,.0f} times"
        found.append(
            f"the server preempted requests {times}: its KV cache was full, and latencies include the recomputation"
        )
    use = figures.gauges.get("kv_cache_use")
    if use is not None and use.max > KV_FULL and not found:
        found.append(f"the server's KV cache was up to {use.max:.0%} full: it limits how many requests run at a time")
    hits = derived.get("prefix_cache_hit_rate")
    if fresh_limit is not None and hits is not None and hits > fresh_limit:
        found.append(
            f"the server took {hits:.0%} of the prompt tokens from its prefix cache, although every prompt is new: it knows them "
            "from an earlier run (use data.salt: run, another seed, or restart the server)"
        )
    return found


def _counts(comparison: Mapping[str, Comparison], has_failures: bool) -> list[str]:
    """Counts that differ. The server may have counted tokens of requests that failed, and those of other clients."""
    found = []
    requests = comparison.get("requests")
    if requests is not None and requests.server < requests.client * (1 - COUNTS):
        found.append(
            f"the server completed {requests.server:,.0f} requests, this client {requests.client:,.0f}: the server does not count "
            "all of them, or not every replica was read (observe.prometheus)"
        )
    if has_failures or (requests is not None and not _agree(requests)):
        return found
    for name in ("input_tokens", "output_tokens"):
        tokens = comparison.get(name)
        if tokens is not None and not _agree(tokens):
            more = tokens.server / tokens.client - 1 if tokens.client else 1.0
            found.append(
                f"the server counted {tokens.server:,.0f} {name.replace('_', ' ')}, this client {tokens.client:,.0f}: "
                f"{abs(more):.1%} {'more' if more > 0 else 'fewer'}"
            )
    return found


def _agree(counted: Comparison) -> bool:
    return abs(counted.difference) <= COUNTS * counted.client


def _latencies(comparison: Mapping[str, Comparison]) -> list[str]:
    requests = comparison.get("requests")
    if requests is not None and not _agree(requests):
        return []  # they are the latencies of other requests
    return [
        f"the server's mean {name} ({format_seconds(both.server)}) is longer than this client's ({format_seconds(both.client)}): "
        "the two do not count between the same events, or not the same requests"
        for name, both in _means(comparison)
        if both.server > both.client * (1 + LATER_SHARE) + LATER
    ]


def _means(comparison: Mapping[str, Comparison]) -> Iterable[tuple[str, Comparison]]:
    return ((name.removesuffix(".mean"), both) for name, both in comparison.items() if name.endswith(".mean"))
