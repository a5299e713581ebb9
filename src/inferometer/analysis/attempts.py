"""Requests that were sent more than once: the server closed or refused the first attempt unprocessed, or `client.retries` repeated
them after a fault."""

import msgspec
import numpy as np

from inferometer.analysis import exact
from inferometer.records import Columns
from inferometer.units import NS


def retried(rows: Columns) -> int:
    """Count the requests that were sent more than once. Their latencies count from the first attempt."""
    return int(np.count_nonzero(rows["attempts"] > 1))


class Repeated(msgspec.Struct, frozen=True):
    """What `client.retries` did."""

    requests: int
    """Requests that were repeated at least once."""
    attempts: int
    """Attempts beyond the first of each."""
    recovered: int
    """Requests that succeeded after all."""
    failed: int
    wasted_s: float
    """Seconds from the first attempt to the last one, summed over these requests."""


def repeated(rows: Columns) -> Repeated:
    """Sum up the requests that `client.retries` repeated."""
    own = rows[rows["wasted"] > 0]
    failed = int(np.count_nonzero(own["failure"]))
    attempts = int(np.maximum(own["attempts"].astype(np.int64) - 1, 1).sum())
    return Repeated(len(own), attempts, len(own) - failed, failed, float(exact.total(own["wasted"]) / NS))
