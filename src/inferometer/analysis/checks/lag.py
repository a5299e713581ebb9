"""Did the client send on time? In open loop, latencies count from the intended instant and so include the client's own lag.

The run as a whole and each of its stages are checked, because reports give percentiles for both.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import settings
from inferometer.analysis.checks.evidence import Check, Evidence, judge
from inferometer.analysis.metrics import client_lag, e2e, e2e_service, stages_of, ttft, ttft_service
from inferometer.analysis.percentiles import rank
from inferometer.records import MISSING, Columns
from inferometer.units import format_seconds

SHARE = 0.005
"""Share of a latency that may be the client's lag: half of the 1 % by which a VALID run may be off, because the lag is not the
only thing that the client adds."""

_REMEDY = "the client sent late. If the client is busy, use more client.processes or lower the load. If its machine is (shared and virtual machines wake up late), use a quieter one, or allow it with limits.lag."


class _Late(NamedTuple):
    seconds: float
    allowed: float
    message: str

    @property
    def share(self) -> float:
        return self.seconds / self.allowed if self.allowed else math.inf


def lag(evidence: Evidence) -> Check | None:
    """Check open loops only: closed loops measure from the send, and their lag shows as lower concurrency."""
    rows = evidence.run.records.rows[evidence.steady]
    stages = stages_of(rows["stage"][(rows["open_loop"] != 0) & (rows["sent"] != MISSING)])
    if not stages:
        return None
    lags = _lateness(evidence, rows, "")
    plans = evidence.run.manifest.plan
    for stage in stages if len(plans) > 1 else ():
        lags += _lateness(evidence, rows[rows["stage"] == stage], f" of stage {stage + 1} ({plans[stage].name})")
    worst = max(lags, key=lambda late: late.share)
    late = worst if worst.seconds > worst.allowed else lags[0]
    bad = f"{late.message}, more than {format_seconds(late.allowed)}: {_REMEDY}"
    return judge("lag", late.seconds, late.allowed, late.message, bad)


def allowed(evidence: Evidence, rows: Columns) -> float:
    """Seconds that a late send may add to a latency, relative to the time to first token or, if not streamed, end to end."""
    ok = rows[rows["failure"] == 0]
    medians = (_percentile(500, of(ok)) for of in (ttft_service, e2e_service))
    return max(evidence.limits.lag, SHARE * next((median for median in medians if math.isfinite(median)), 0.0))


def _lateness(evidence: Evidence, rows: Columns, where: str) -> list[_Late]:
    """The lag itself, and what it adds to the p99s: a few late sends and a few slow responses may together make a longer tail."""
    lags = client_lag(rows[(rows["open_loop"] != 0) & (rows["sent"] != MISSING)])
    p99 = _percentile(990, lags)
    lateness = [_Late(p99, allowed(evidence, rows), f"p99 of the client's own lag{where} is {format_seconds(p99)}")]
    ok = rows[rows["failure"] == 0]
    failed = len(rows) - len(ok) if settings.measure(evidence.run.manifest).failures_as_inf else 0
    own = np.where(ok["open_loop"] != 0, client_lag(ok), 0.0)
    for name, of in (("ttft", ttft), ("e2e", e2e)):
        values = of(ok)
        p99 = _percentile(990, values, failed)
        if math.isfinite(p99):
            added = p99 - _percentile(990, values - own, failed)
            message = f"p99 of {name}{where} includes {format_seconds(added)} of the client's own lag"
            lateness.append(_Late(added, max(evidence.limits.lag, SHARE * p99), message))
    return lateness


def _percentile(thousandths: int, values: NDArray[np.float64], infinite: int = 0) -> float:
    """A percentile of the known values and `infinite` more that are +inf; +inf if there are none."""
    known = values[~np.isnan(values)]
    index = rank(thousandths, len(known) + infinite) - 1
    return float(np.partition(known, index)[index]) if index < len(known) else math.inf
