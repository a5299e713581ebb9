"""Did the client send when it was to? In open loop latencies count from then, so that the client's lateness is part of them.

Judged of the run as a whole and of each of its stages, for reports give the percentiles of both.
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
"""Of a latency, that may be the client's lag: half of the hundredth that a VALID run may be off, for the lag is not all that the
client adds."""

_REMEDY = "the client sent late. If it is busy, use more client.processes or lower the load; if its host is (a shared or virtual machine wakes late), use a quieter one, or allow it with limits.lag."


class _Late(NamedTuple):
    seconds: float
    allowed: float
    words: str

    @property
    def share(self) -> float:
        return self.seconds / self.allowed if self.allowed else math.inf


def lag(facts: Evidence) -> Check | None:
    """Of open loops: a closed one measures from the send, and what it is late by shows in the concurrency reached."""
    rows = facts.run.records.rows[facts.steady]
    stages = stages_of(rows["stage"][(rows["open_loop"] != 0) & (rows["sent"] != MISSING)])
    if not stages:
        return None
    found = _lateness(facts, rows, "")
    plans = facts.run.manifest.plan
    for stage in stages if len(plans) > 1 else ():
        found += _lateness(facts, rows[rows["stage"] == stage], f" of stage {stage + 1} ({plans[stage].name})")
    worst = max(found, key=lambda late: late.share)
    late = worst if worst.seconds > worst.allowed else found[0]
    bad = f"{late.words}, more than {format_seconds(late.allowed)}: {_REMEDY}"
    return judge("lag", late.seconds, late.allowed, late.words, bad)


def allowed(facts: Evidence, rows: Columns) -> float:
    """What a late send may add to the latency that is measured first: the first token's, or the whole answer's."""
    ok = rows[rows["failure"] == 0]
    medians = (_percentile(500, of(ok)) for of in (ttft_service, e2e_service))
    return max(facts.limits.lag, SHARE * next((median for median in medians if math.isfinite(median)), 0.0))


def _lateness(facts: Evidence, rows: Columns, where: str) -> list[_Late]:
    """The lag itself, and what the p99s owe to it: a few late sends and a few late answers make a tail that neither has alone."""
    lags = client_lag(rows[(rows["open_loop"] != 0) & (rows["sent"] != MISSING)])
    p99 = _percentile(990, lags)
    found = [_Late(p99, allowed(facts, rows), f"p99 of the client's own lag{where} is {format_seconds(p99)}")]
    ok = rows[rows["failure"] == 0]
    failed = len(rows) - len(ok) if settings.measure(facts.run.manifest).failures_as_inf else 0
    own = np.where(ok["open_loop"] != 0, client_lag(ok), 0.0)
    for name, of in (("ttft", ttft), ("e2e", e2e)):
        values = of(ok)
        p99 = _percentile(990, values, failed)
        if math.isfinite(p99):
            owed = p99 - _percentile(990, values - own, failed)
            words = f"p99 of {name}{where} is {format_seconds(owed)} more than without the client's own lag"
            found.append(_Late(owed, max(facts.limits.lag, SHARE * p99), words))
    return found


def _percentile(thousandths: int, values: NDArray[np.float64], infinite: int = 0) -> float:
    """Of the values that there are and so many more that are infinite; infinite where there is none."""
    known = values[~np.isnan(values)]
    place = rank(thousandths, len(known) + infinite) - 1
    return float(np.partition(known, place)[place]) if place < len(known) else math.inf
