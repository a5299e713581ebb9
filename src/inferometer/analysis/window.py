"""Which requests count. Warm-up and cool-down stay in the data, but are marked and left out of the statistics.

`measure.warmup` and `measure.cooldown` apply to each stage. Each takes one of

  0         leave out nothing
  a count   the stage's first (last) N requests, in the order of their intended instants
  a time    requests intended within that time after the stage's start (before its last intended instant)
  auto      see _auto_warmup and _auto_cooldown; at most half of the stage

The warm-up is the first part of the same traffic: nothing is drained after it.

Closed loops: the first response of each user is left out as well, and what was sent during the ramp-up. While users start, the
server has fewer requests than planned, or all of them at once. A stage with fewer than 5 requests per user, or fewer than 50
in total, keeps all of them, because too little would be left.

If a stage ends when it is stable, only its stable windows count, in addition to `measure` (stability.py). They are after its
users' first responses.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import exact, stability
from inferometer.analysis.metrics import e2e, e2e_service, stages_of
from inferometer.config.schema import Measure
from inferometer.records import MISSING, PHASES, Columns, StagePlan
from inferometer.units import NS, parse_seconds

WARMUP, STEADY, COOLDOWN, START = range(len(PHASES))
_PER_USER, _IN_TOTAL = 5, 50
"""A closed stage needs this many requests for its users' first responses to be left out."""
AUTO = "auto"
_NOTHING = "0"
_BATCH = 5
_BOUND = 0.95
"""`auto` has reached its bound if it leaves out more than this share of what it may."""


def mark(rows: Columns, measure: Measure, plans: Sequence[StagePlan] = ()) -> NDArray[np.int8]:
    """The phase of each row, as an index into PHASES. A request that both rules leave out is warm-up."""
    phase = np.full(len(rows), STEADY, np.int8)
    settled = stability.of_run(rows, plans)
    for stage in stages_of(rows["stage"]):
        own = np.flatnonzero(rows["stage"] == stage)
        plan = plans[stage] if stage < len(plans) else None
        phase[own] = _mark(rows[own], measure, plan, settled.get(stage, stability.Stability()), stage == 0)
    return phase


def _mark(
    rows: Columns, measure: Measure, plan: StagePlan | None, stable: stability.Stability, is_first: bool
) -> NDArray[np.int8]:
    """The phases of a stage's rows."""
    phase = np.full(len(rows), STEADY, np.int8)
    if stable.settled is not None:
        start, end = stable.settled
        ended = np.where(rows["done"] == MISSING, rows["intended"], rows["done"])
        phase[ended < start] = WARMUP
        phase[ended >= end] = COOLDOWN
    if measure.cooldown != _NOTHING:
        phase[_cooldown(rows, measure.cooldown)] = COOLDOWN
    if measure.warmup != _NOTHING:
        phase[_warmup(rows, measure.warmup, 0 if is_first else int(rows["intended"].min()))] = WARMUP
    if plan is not None and not plan.open and not plan.stable:
        phase[_first_responses(rows, plan) & (phase == STEADY)] = START
    return phase


def _warmup(rows: Columns, rule: str, start: int) -> NDArray[np.bool_]:
    if rule == AUTO:
        return _auto_warmup(rows)
    if rule.isdecimal():
        return _order(rows) < int(rule)
    return np.asarray(rows["intended"] < start + round(parse_seconds(rule) * NS))


def _cooldown(rows: Columns, rule: str) -> NDArray[np.bool_]:
    if rule == AUTO:
        return _auto_cooldown(rows)
    if rule.isdecimal():
        return _order(rows) >= len(rows) - int(rule)
    return np.asarray(rows["intended"] > rows["intended"].max() - round(parse_seconds(rule) * NS))


def _first_responses(rows: Columns, plan: StagePlan) -> NDArray[np.bool_]:
    """Select the first request of each user of a closed loop, and all that were sent before the last user had started."""
    nothing = np.zeros(len(rows), np.bool_)
    if len(rows) < max(_PER_USER * plan.concurrency, _IN_TOTAL):
        return nothing
    ids = rows["id"]
    first = (
        ids <= np.partition(ids, plan.concurrency - 1)[plan.concurrency - 1]
    )  # users take ids in the order of sending
    ramp = rows["intended"] < rows["intended"].min() + round(plan.ramp_up * NS)
    left_out = first | ramp
    return nothing if left_out.all() else left_out


def _order(rows: Columns) -> NDArray[np.int64]:
    """Position of each row in the order of intended instants."""
    position = np.empty(len(rows), np.int64)
    position[np.lexsort((rows["id"], rows["intended"]))] = np.arange(len(rows))
    return position


def _auto_warmup(rows: Columns) -> NDArray[np.bool_]:
    """Select the warm-up of a stage by MSER-5 (White 1997), on the end-to-end latency of its successful requests.

    The series, in the order of sending, is cut into batches of five. Of all truncations of at most half of the batches, take
    the one whose remaining m batch means have the smallest standard error: sum of squared deviations / m^2.
    """
    good, means = _auto_series(rows)
    cut = _BATCH * mser(means)
    if cut == 0:
        return np.zeros(len(rows), np.bool_)
    begin = rows["sent"][good[cut]]
    when = np.where(rows["sent"] == MISSING, rows["intended"], rows["sent"])
    return np.asarray(when < begin)


def is_drifting(rows: Columns) -> bool:
    """Whether `auto` reaches its bound in a stage: the latency is still changing halfway, which is drift and not warm-up."""
    _, means = _auto_series(rows)
    return mser(means) > _BOUND * (len(means) // 2)


def _auto_series(rows: Columns) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """A stage's successful requests in the order of sending, and their end-to-end latency in batches."""
    good = np.flatnonzero((rows["failure"] == 0) & (rows["sent"] != MISSING))
    good = good[np.lexsort((rows["id"][good], rows["sent"][good]))]
    return good, _batch_means(e2e(rows[good]))


def _batch_means(series: NDArray[np.float64]) -> NDArray[np.float64]:
    whole = len(series) - len(series) % _BATCH
    means = np.zeros(whole // _BATCH)
    for at in range(_BATCH):
        means += series[at:whole:_BATCH]
    return means / _BATCH


def mser(series: NDArray[np.float64]) -> int:
    """Number of values to leave out at the start; at most half."""
    count = len(series)
    if count < 4 or np.isnan(series).any():
        return 0
    centred = series - exact.mean(series)  # avoids cancellation in the sums of squares
    left = np.arange(count, 0, -1)
    total, squares = np.cumsum(centred[::-1])[::-1], np.cumsum(np.square(centred)[::-1])[::-1]
    error = (squares - np.square(total) / left) / left**2
    error = error[: count // 2 + 1]
    smallest = error <= error.min() + 1e-12 * error.max()  # take the first if only rounding tells them apart
    return int(np.flatnonzero(smallest)[0])


def _auto_cooldown(rows: Columns) -> NDArray[np.bool_]:
    """Select a stage's requests that typically last into the drain, when nothing new is sent and the load falls.

    These are the requests intended less than the stage's median service time before its last intended instant. Requests are
    selected by when they were intended, not by how long they took: leaving out the slow ones would flatter the rest.
    """
    service = e2e_service(rows[rows["failure"] == 0])
    service = service[~np.isnan(service)]
    if not len(service):
        return np.zeros(len(rows), np.bool_)
    begin = rows["intended"].max() - round(float(np.median(service)) * NS)
    return np.asarray((rows["intended"] > begin) & (_order(rows) >= len(rows) - len(rows) // 2))
