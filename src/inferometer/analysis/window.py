"""Which requests count. Warm-up and cool-down stay in the data, but are marked and left out of the statistics.

`measure.warmup` and `measure.cooldown` each take one of

  0         leave out nothing
  a count   the first (last) N requests, in the order of their intended instants
  a time    requests intended within that time after t=0 (before the last intended instant)
  auto      see _auto_warmup and _auto_cooldown; only in the first (last) stage, and at most half of it

If a stage ends when it is stable, only its stable windows count, in addition to these rules (stability.py).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import exact, stability
from inferometer.analysis.metrics import e2e, e2e_service
from inferometer.config.schema import Measure
from inferometer.records import MISSING, PHASES, Columns, StagePlan
from inferometer.units import NS, parse_seconds

WARMUP, STEADY, COOLDOWN = range(len(PHASES))
_NOTHING = "0"
_BATCH = 5


def mark(rows: Columns, measure: Measure, plans: Sequence[StagePlan] = ()) -> NDArray[np.int8]:
    """The phase of each row, as an index into PHASES. A request that both rules leave out is warm-up."""
    phase = np.full(len(rows), STEADY, np.int8)
    for stage, stable in stability.of_run(rows, plans).items():
        if stable.settled is not None:
            start, end = stable.settled
            ended = np.where(rows["done"] == MISSING, rows["intended"], rows["done"])
            phase[(rows["stage"] == stage) & (ended < start)] = WARMUP
            phase[(rows["stage"] == stage) & (ended >= end)] = COOLDOWN
    for name, rule, select in ((COOLDOWN, measure.cooldown, _cooldown), (WARMUP, measure.warmup, _warmup)):
        if len(rows) and rule != _NOTHING:
            phase[select(rows, rule)] = name
    return phase


def _warmup(rows: Columns, rule: str) -> NDArray[np.bool_]:
    if rule == "auto":
        return _auto_warmup(rows)
    if rule.isdecimal():
        return _order(rows) < int(rule)
    return np.asarray(rows["intended"] < round(parse_seconds(rule) * NS))


def _cooldown(rows: Columns, rule: str) -> NDArray[np.bool_]:
    if rule == "auto":
        return _auto_cooldown(rows)
    if rule.isdecimal():
        return _order(rows) >= len(rows) - int(rule)
    return np.asarray(rows["intended"] > rows["intended"].max() - round(parse_seconds(rule) * NS))


def _order(rows: Columns) -> NDArray[np.int64]:
    """Position of each row in the order of intended instants."""
    position = np.empty(len(rows), np.int64)
    position[np.lexsort((rows["id"], rows["intended"]))] = np.arange(len(rows))
    return position


def _auto_warmup(rows: Columns) -> NDArray[np.bool_]:
    """Select the warm-up by MSER-5 (White 1997), on the end-to-end latency of the first stage's successful requests.

    The series, in the order of sending, is cut into batches of five. Of all truncations of at most half of the batches, take
    the one whose remaining m batch means have the smallest standard error: sum of squared deviations / m^2.
    """
    stage = rows["stage"] == rows["stage"].min()
    good = np.flatnonzero(stage & (rows["failure"] == 0) & (rows["sent"] != MISSING))
    good = good[np.lexsort((rows["id"][good], rows["sent"][good]))]
    cut = _BATCH * mser(_batch_means(e2e(rows[good])))
    if cut == 0:
        return np.zeros(len(rows), np.bool_)
    begin = rows["sent"][good[cut]]
    when = np.where(rows["sent"] == MISSING, rows["intended"], rows["sent"])
    return np.asarray(stage & (when < begin))


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
    """Select the last stage's requests that typically last into the drain, when nothing new is sent and the load falls.

    These are the requests intended less than the stage's median service time before its last intended instant. Requests are
    selected by when they were intended, not by how long they took: leaving out the slow ones would flatter the rest.
    """
    drain = np.zeros(len(rows), np.bool_)
    stage = np.flatnonzero(rows["stage"] == rows["stage"].max())
    last = rows[stage]
    service = e2e_service(last[last["failure"] == 0])
    service = service[~np.isnan(service)]
    if len(service):
        begin = last["intended"].max() - round(float(np.median(service)) * NS)
        drain[stage] = (last["intended"] > begin) & (_order(last) >= len(last) - len(last) // 2)
    return drain
