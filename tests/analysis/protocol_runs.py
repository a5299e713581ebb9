"""Synthetic runs over a protocol, for comparisons with known results."""

import numpy as np
import synthetic_run as made

from inferometer.analysis.summary import Measured, summarise
from inferometer.records import Failure, Spent, StagePlan, StageStatistics

BUSY = (Failure("http_503", "busy [bold]\x1b[31m"),)


def measured(
    e2e_ms: float,
    count: int = 500,
    *,
    reported: tuple[float, float] | None = None,
    sums: tuple[float, float] | None = None,
    others: int = 0,
    failed: int = 0,
    sent: int = 1200,
    received: int = 1100,
) -> Measured:
    """A closed loop of one user: the nth response takes e2e_ms and n us; `reported` and `sums` are queue and compute in ms."""
    rows = made.blank(count)
    took = (np.arange(count) * 1_000 + e2e_ms * made.MS).astype(np.int64)
    ends = np.cumsum(took)
    rows["intended"] = rows["sent"] = ends - took
    rows["done"] = ends
    rows["n_in"] = rows["n_out"] = -1
    rows["counted_by"] = 0
    rows["bytes_out"], rows["bytes_in"] = sent, received
    if reported is not None:
        rows["queue"], rows["compute"] = (round(ms * made.MS) for ms in reported)
    statistics: tuple[StageStatistics, ...] = ()
    if sums is not None:
        counted = count + others
        queue, compute = (Spent(counted, round(counted * ms * made.MS)) for ms in sums)
        statistics = (StageStatistics(counted, counted, Spent(counted, 1), queue=queue, compute_infer=compute),)
    made.fail(rows, slice(0, failed))
    run = made.run(
        rows,
        failures=BUSY,
        plan=(StagePlan(type="closed", open=False, concurrency=1, requests=count),),
        config={"server": {"api": "kserve", "stream": False}, "data": {"type": "tensors"}},
        statistics=statistics,
        sampled=made.samples(1.0),
    )
    return run, summarise(run)
