"""Requests that were sent more than once, because the server closed or refused the first attempt unprocessed."""

import numpy as np

from inferometer.records import Columns


def retried(rows: Columns) -> int:
    """Count the requests that were sent more than once. Their latencies count from the first attempt."""
    return int(np.count_nonzero(rows["attempts"] > 1))
