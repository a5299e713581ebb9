"""What end-to-end time went into: client, network, queue, compute.

Where the server says it of each request (the Server-Timing header or trailer), these are means over the very requests of the
report, and the metrics `queue`, `compute` and `network` have their distributions. Where it only keeps sums (KServe's
statistics), these are averages over all requests that it counted in the stage, the warm-up included, and over whoever else
asked the server.

    e2e = client + network + queue + compute

client   from the intended instant to the send; 0 in closed loop, whose latencies count from the send
queue    waiting in the server
compute  in the model: input, inference and output, and the lookup in the server's cache
network  the rest: the way there and back, and the server's own handling of the protocol

Of a decoupled model the sums say nothing: they end when the model has taken the request, and its answers come later.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import metrics
from inferometer.records import Columns, Run, Spent, StageStatistics
from inferometer.units import NS

PER_REQUEST = "each request"
AVERAGES = "server statistics"


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


def breakdown(run: Run, ok: NDArray[np.bool_], stage: int | None = None) -> Breakdown | None:
    """Of the rows of `ok`, which are those of `stage` where one is named; None where the server tells nothing."""
    rows = run.records.rows
    told = ok & (rows["queue"] >= 0) & (rows["compute"] >= 0)
    if told.any():
        return _of_each(rows[told])
    found = run.manifest.statistics
    chosen = found if stage is None else found[stage : stage + 1]
    known = [one for one in chosen if one is not None and one.success.count]
    if not known or len(known) != len(chosen) or run.manifest.server.get("decoupled"):
        return None
    counted = rows[rows["failure"] == 0 if stage is None else _counted_in(rows, found, stage)]
    return _of_sums(counted, known) if len(counted) else None


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
    e2e, service = float(metrics.e2e(rows).mean()), float(metrics.e2e_service(rows).mean())
    queue, compute = float(rows["queue"].mean()) / NS, float(rows["compute"].mean()) / NS
    return Breakdown(PER_REQUEST, len(rows), e2e, e2e - service, service - queue - compute, queue, compute)


def _of_sums(rows: Columns, stages: list[StageStatistics]) -> Breakdown:
    e2e, service = float(metrics.e2e(rows).mean()), float(metrics.e2e_service(rows).mean())
    success = sum(one.success.count for one in stages)
    queue, given, inferred, taken, hit, missed = (
        _mean([getattr(one, name) for one in stages], success)
        for name in ("queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
    )
    compute = given + inferred + taken + hit + missed
    executions = sum(one.executions for one in stages)
    return Breakdown(
        AVERAGES,
        len(rows),
        e2e,
        e2e - service,
        service - queue - compute,
        queue,
        compute,
        given,
        inferred,
        taken,
        hit + missed,
        sum(one.inferences for one in stages) / executions if executions else None,
        success,
    )


def _mean(spent: list[Spent], requests: int) -> float:
    """Seconds a request, over all that succeeded: what only some of them needed (the cache) is spread over all."""
    return sum(one.ns for one in spent) / requests / NS
