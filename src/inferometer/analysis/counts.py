"""How many requests succeeded and failed."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.attempts import retried
from inferometer.analysis.checks.evidence import count_failures
from inferometer.analysis.window import START, STEADY
from inferometer.records import DROPPED, Run


class Counts(msgspec.Struct, frozen=True):
    """Requests in the window, and those of users who were starting. Cancelled requests count as failed, dropped ones do not."""

    ok: int
    failed: int
    dropped: int
    by_failure: dict[str, int]
    retried: int = 0
    """How many of them were sent twice, because the server had closed the connection."""


def count(run: Run, mask: NDArray[np.bool_]) -> Counts:
    """Count the rows of `mask`."""
    mask = mask & np.isin(run.records.phase, (STEADY, START))
    rows = run.records.rows[mask]
    kinds = {kind.code: kind.count for kind in count_failures(run, mask)}
    dropped = kinds.pop(DROPPED, 0)
    ok = int(np.count_nonzero(rows["failure"] == 0))
    return Counts(ok, sum(kinds.values()), dropped, kinds, retried(rows))
