"""Split end-to-end time into client, overhead, queue and compute, and overhead into network and protocol.

If the server reports its times per request (in a Server-Timing header or trailer), the parts are means over exactly the
requests of the report, and the metrics of the same names have distributions. If it only keeps totals (KServe's statistics), the parts
are averages over all requests that it counted during the stage, including the warm-up and the requests of other clients.

    e2e + excess = client + overhead + queue + compute
    overhead - excess = network + protocol          if the server reports how long it had each request

A server may report any of queue, compute and the total; what it does not report is part of overhead, or of protocol.

Excess is 0 unless the server reports more time than the client saw; then overhead, which is the remainder, is 0 (PARTS). Network and
protocol are never changed: a negative mean is shown as it is, and reports say that it is.

For a decoupled model the totals say nothing: they end when the model has accepted the request, before it responds. If there is
no breakdown, there is a reason.
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
    "client": "from the intended instant to the send; 0 in closed loop, where latencies count from the send",
    "overhead": "the remainder: transfer in both directions, the server's protocol handling, and whichever of queue and compute the server does not report; never less than 0",
    "network": "outside of the server: from the send until the server received the request, and from its send until the response had arrived; null if the server does not report how long it had each request",
    "protocol": "in the server, besides what it reports as queue and compute: waiting to be read, decoding, encoding; null likewise",
    "queue": "waiting in the server, as reported by it; null if it does not report it",
    "compute": "in the model, as reported by the server: input, inference, output and cache lookup; null likewise",
    "excess": "how much more time the server reports than the client saw: its totals include work after a response was sent, "
    "other clients' requests, and requests that this client gave up; overhead is then 0, and e2e + excess is the sum of the parts",
    "rtt": "the shortest round trip of the requests' connections, as the kernel measured it; the mean over the requests",
}

WHY_EXCESS = {
    PER_REQUEST: "it may include work after a response was sent, or count parallel work twice",
    AVERAGES: "its totals include work after a response was sent, other clients' requests, and requests that this client gave up",
}
"""Why a server can report more time than the client saw."""

LEAST_EXCESS = 1e-6
"""Seconds. Reports do not mention less."""


class Breakdown(msgspec.Struct, frozen=True):
    """Means in seconds; null if the server does not report it."""

    source: str
    """PER_REQUEST or AVERAGES."""
    requests: int
    e2e: float
    client: float
    overhead: float
    queue: float | None
    compute: float | None
    compute_input: float | None = None
    compute_infer: float | None = None
    compute_output: float | None = None
    cache: float | None = None
    batch: float | None = None
    """Mean number of inferences per execution: the batch size that the server's batcher achieved."""
    counted: int | None = None
    """Requests that the server counted: more than `requests` if other clients used it at the same time."""
    excess: float = 0.0
    """Time by which queue and compute exceed what the client saw."""
    network: float | None = None
    protocol: float | None = None
    rtt: float | None = None

    @property
    def reported(self) -> dict[str, float]:
        """Those of queue and compute that the server reports."""
        parts = {"queue": self.queue, "compute": self.compute}
        return {name: value for name, value in parts.items() if value is not None}


def breakdown(run: Run, ok: NDArray[np.bool_], stage: int | None = None) -> Breakdown | None:
    """The breakdown of the rows of `ok`, which belong to `stage` if one is given; None if the server reports no times."""
    result = split(run, ok, stage)
    return result if isinstance(result, Breakdown) else None


def split(run: Run, ok: NDArray[np.bool_], stage: int | None = None) -> Breakdown | str:
    """The same, or the reason why there is none."""
    rows, manifest = run.records.rows, run.manifest
    known = [rows[name] >= 0 for name in ("queue", "compute", "server_total")]
    complete, some = ok & known[0] & known[1], ok & (known[0] | known[1] | known[2])
    if some.any():
        return _from_requests(rows[complete if complete.any() else some])
    stages = range(len(manifest.statistics)) if stage is None else (stage,)
    if reason := _why_no_statistics(manifest, rows, stages):
        return reason
    good = rows["failure"] == 0
    sums = [one for each in stages if (one := manifest.statistics[each]) is not None and one.success.count]
    counted = rows[good if stage is None else _counted_in(rows, manifest.statistics, stage)]
    if sums and len(counted):
        return _from_totals(counted, sums)
    if stage is None or len(manifest.statistics) == 1:
        return "the server's statistics count no successful request"
    if not (good & (rows["stage"] == stage)).any():
        return "no request of the stage succeeded"
    return "the stage was too short: the server's statistics cannot be separated from those of the stages next to it"


def _why_no_statistics(manifest: Manifest, rows: Columns, stages: Sequence[int]) -> str:
    """Why some of these stages have no usable statistics; empty if all of them have."""
    if (rows["failure"] != 0).all():
        return "no request succeeded"
    if manifest.server.get("decoupled"):
        return "the statistics of a decoupled model end before it responds"
    statistics = dict(enumerate(manifest.statistics))
    missing = [stage for stage in stages if statistics.get(stage) is None]
    if not statistics or not missing:
        return "" if statistics else _why_not_read(manifest)
    reason = dict(enumerate(manifest.no_statistics)).get(missing[0]) or _why_not_read(manifest)
    return f"stage {missing[0] + 1}: {reason}" if len(stages) > 1 else reason


def _why_not_read(manifest: Manifest) -> str:
    if not manifest.server:
        return "the server does not report how long it took: its responses have no server-timing"
    return "the server's statistics were not read"


def _counted_in(rows: Columns, statistics: tuple[StageStatistics | None, ...], stage: int) -> NDArray[np.intp]:
    """The rows that a stage's statistics cover: not exactly the stage's own, because its end is noticed a little late.

    The server counts requests in the order in which they end. If its total matches the number of successful requests, that
    order tells which ones belong to a stage. If it does not (other clients used the server, or it counts failures too), use the
    stage's own rows.
    """
    good = rows["failure"] == 0
    counts = [one.success.count if one is not None else 0 for one in statistics]
    if None in statistics or sum(counts) != np.count_nonzero(good):
        return np.flatnonzero(good & (rows["stage"] == stage))
    indices = np.flatnonzero(good)
    first = sum(counts[:stage])
    return indices[np.argsort(rows["done"][indices], kind="stable")][first : first + counts[stage]]


def _from_requests(rows: Columns) -> Breakdown:
    e2e, service = exact.mean(metrics.e2e(rows)), exact.mean(metrics.e2e_service(rows))
    queue, compute, total = (_mean_if_known(rows[name]) for name in ("queue", "compute", "server_total"))
    model = (queue or 0.0) + (compute or 0.0)
    overhead, excess = rest(service - model)
    return Breakdown(
        PER_REQUEST,
        len(rows),
        e2e,
        e2e - service,
        overhead,
        queue,
        compute,
        excess=excess,
        network=None if total is None else service - total,
        protocol=None if total is None else total - model,
        rtt=_rtt(rows),
    )


def _from_totals(rows: Columns, stages: list[StageStatistics]) -> Breakdown:
    e2e, service = exact.mean(metrics.e2e(rows)), exact.mean(metrics.e2e_service(rows))
    success = sum(one.success.count for one in stages)
    queue, before, infer, after, hit, miss = (
        _mean([getattr(one, name) for one in stages], success)
        for name in ("queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
    )
    compute = before + infer + after + hit + miss
    overhead, excess = rest(service - queue - compute)
    executions = sum(one.executions for one in stages)
    return Breakdown(
        AVERAGES,
        len(rows),
        e2e,
        e2e - service,
        overhead,
        queue,
        compute,
        before,
        infer,
        after,
        hit + miss,
        sum(one.inferences for one in stages) / executions if executions else None,
        success,
        excess,
        rtt=_rtt(rows),
    )


def _mean_if_known(column: NDArray[np.int64]) -> float | None:
    return exact.mean(column) / NS if (column >= 0).all() else None


def _rtt(rows: Columns) -> float | None:
    known = rows["rtt"] >= 0
    return exact.mean(rows["rtt"][known]) / NS if known.any() else None


def rest(left: float) -> tuple[float, float]:
    """Overhead and excess, from the client's time minus the server's. At least one of the two is 0."""
    return max(0.0, left), max(0.0, -left)


def _mean(spent: list[Spent], requests: int) -> float:
    """Seconds per successful request; time that only some of them needed (the cache) is spread over all."""
    return sum(one.ns for one in spent) / requests / NS
