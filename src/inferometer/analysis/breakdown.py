"""What end-to-end time went into: client, network, queue, compute.

Where the server says it of each request (the Server-Timing header or trailer), these are means over the very requests of the
report, and the metrics `queue`, `compute` and `network` have their distributions. Where it only keeps sums (KServe's
statistics), these are averages over all requests that it counted in the stage, the warm-up included, and over whoever else
asked the server.

    e2e + excess = client + network + queue + compute

Excess is 0 unless the server says that it took longer than the client saw; then network, which is the rest, is 0 (PARTS).

Of a decoupled model the sums say nothing: they end when the model has taken the request, and its answers come later. Where
there is no split, there is the reason.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import exact, metrics
from inferometer.records import Columns, Manifest, Run, Spent, StageStatistics
from inferometer.units import NS

PER_REQUEST = "each request"
AVERAGES = "server statistics"

PARTS = {
    "client": "from the intended instant to the send; 0 in closed loop, whose latencies count from the send",
    "network": "the rest: the way there and back, and the server's own handling of the protocol; never below 0",
    "queue": "waiting in the server, as it says",
    "compute": "in the model, as the server says: input, inference and output, and the lookup in its cache",
    "excess": "how much longer the server says that it took than the client saw: its sums count work after an answer has left, "
    "others' requests, and requests given up here; network is 0 then, and e2e + excess is the sum of the parts",
}

WHY_EXCESS = {
    PER_REQUEST: "it may count work after an answer has left, or work at the same time twice",
    AVERAGES: "its sums count work after an answer has left, others' requests, and requests given up here",
}
"""How a server can say that it took longer than the client saw."""

LEAST_EXCESS = 1e-6
"""Seconds: less is not worth words."""


class Breakdown(msgspec.Struct, frozen=True):
    """Means in seconds; null where the server does not say."""

    source: str
    """PER_REQUEST or AVERAGES."""
    requests: int
    e2e: float
    client: float
    network: float
    queue: float
    compute: float
    compute_input: float | None = None
    compute_infer: float | None = None
    compute_output: float | None = None
    cache: float | None = None
    batch: float | None = None
    """Inferences of an execution, on average: what the server's batcher made of the requests."""
    counted: int | None = None
    """Requests that the server counted: more than `requests` where others used it meanwhile."""
    excess: float = 0.0
    """By how much queue and compute exceed what the client saw."""


def breakdown(run: Run, ok: NDArray[np.bool_], stage: int | None = None) -> Breakdown | None:
    """Of the rows of `ok`, which are those of `stage` where one is named; None where the server tells nothing."""
    found = split(run, ok, stage)
    return found if isinstance(found, Breakdown) else None


def split(run: Run, ok: NDArray[np.bool_], stage: int | None = None) -> Breakdown | str:
    """The same, or in words why there is none."""
    rows, manifest = run.records.rows, run.manifest
    told = ok & (rows["queue"] >= 0) & (rows["compute"] >= 0)
    if told.any():
        return _of_each(rows[told])
    stages = range(len(manifest.statistics)) if stage is None else (stage,)
    if why := _why_unread(manifest, rows, stages):
        return why
    good = rows["failure"] == 0
    sums = [one for each in stages if (one := manifest.statistics[each]) is not None and one.success.count]
    counted = rows[good if stage is None else _counted_in(rows, manifest.statistics, stage)]
    if sums and len(counted):
        return _of_sums(counted, sums)
    if stage is None or len(manifest.statistics) == 1:
        return "the server's statistics count no request as answered"
    if not (good & (rows["stage"] == stage)).any():
        return "no request of the stage was answered"
    return "the stage was too short for the server's statistics to tell it from its neighbours"


def _why_unread(manifest: Manifest, rows: Columns, stages: Sequence[int]) -> str:
    """Why not all of these stages have statistics that say something of them; empty where they have."""
    if (rows["failure"] != 0).all():
        return "no request was answered"
    if manifest.server.get("decoupled"):
        return "the statistics of a decoupled model end before its answers"
    found = dict(enumerate(manifest.statistics))
    missing = [each for each in stages if found.get(each) is None]
    if not found or not missing:
        return "" if found else _unread(manifest)
    why = dict(enumerate(manifest.no_statistics)).get(missing[0]) or _unread(manifest)
    return f"stage {missing[0] + 1}: {why}" if len(stages) > 1 else why


def _unread(manifest: Manifest) -> str:
    if not manifest.server:
        return "the server does not say how long it took: its answers have no server-timing"
    return "the server's statistics were not read"


def _counted_in(rows: Columns, found: tuple[StageStatistics | None, ...], stage: int) -> NDArray[np.intp]:
    """The rows that a stage's statistics are about: not quite the stage's own, as its end is seen a little late.

    The server counts answers as they end. Where it counted as many as there are, it is clear which those of a stage are;
    where it did not (others used it, or it counts failures too), the stage's own have to do.
    """
    good = rows["failure"] == 0
    counts = [one.success.count if one is not None else 0 for one in found]
    if None in found or sum(counts) != np.count_nonzero(good):
        return np.flatnonzero(good & (rows["stage"] == stage))
    places = np.flatnonzero(good)
    first = sum(counts[:stage])
    return places[np.argsort(rows["done"][places], kind="stable")][first : first + counts[stage]]


def _of_each(rows: Columns) -> Breakdown:
    e2e, service = exact.mean(metrics.e2e(rows)), exact.mean(metrics.e2e_service(rows))
    queue, compute = exact.mean(rows["queue"]) / NS, exact.mean(rows["compute"]) / NS
    network, excess = rest(service - queue - compute)
    return Breakdown(PER_REQUEST, len(rows), e2e, e2e - service, network, queue, compute, excess=excess)


def _of_sums(rows: Columns, stages: list[StageStatistics]) -> Breakdown:
    e2e, service = exact.mean(metrics.e2e(rows)), exact.mean(metrics.e2e_service(rows))
    success = sum(one.success.count for one in stages)
    queue, given, inferred, taken, hit, missed = (
        _mean([getattr(one, name) for one in stages], success)
        for name in ("queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
    )
    compute = given + inferred + taken + hit + missed
    network, excess = rest(service - queue - compute)
    executions = sum(one.executions for one in stages)
    return Breakdown(
        AVERAGES,
        len(rows),
        e2e,
        e2e - service,
        network,
        queue,
        compute,
        given,
        inferred,
        taken,
        hit + missed,
        sum(one.inferences for one in stages) / executions if executions else None,
        success,
        excess,
    )


def rest(left: float) -> tuple[float, float]:
    """Network and excess, from what the server leaves of the time that the client saw: of the two at least one is 0."""
    return max(0.0, left), max(0.0, -left)


def _mean(spent: list[Spent], requests: int) -> float:
    """Seconds a request, over all that succeeded: what only some of them needed (the cache) is spread over all."""
    return sum(one.ns for one in spent) / requests / NS
