"""Which requests count: the warm-up and the cool-down stay in the data, marked, and are left out by rule.

`measure.warmup` and `measure.cooldown` each take one of

  0         nothing is left out
  a count   the first (last) so many requests, by the order of their intended instants
  a time    those intended within so long from t=0 (within so long before the last intended instant)
  auto      see _auto_warmup and _auto_cooldown; of the first (last) stage only, and never more than half of it

Of a stage that ends when it is stable, only the stable windows count, whatever else is left out (stability.py).
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
    """A place in PHASES for each row. Where both rules claim a request, it is warm-up."""
    phase = np.full(len(rows), STEADY, np.int8)
    for stage, found in stability.of_run(rows, plans).items():
        if found.settled is not None:
            start, end = found.settled
            ended = np.where(rows["done"] == MISSING, rows["intended"], rows["done"])
            phase[(rows["stage"] == stage) & (ended < start)] = WARMUP
            phase[(rows["stage"] == stage) & (ended >= end)] = COOLDOWN
    for place, rule, claimed in ((COOLDOWN, measure.cooldown, _cooldown), (WARMUP, measure.warmup, _warmup)):
        if len(rows) and rule != _NOTHING:
            phase[claimed(rows, rule)] = place
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
    """Each row's place by intended instant."""
    place = np.empty(len(rows), np.int64)
    place[np.lexsort((rows["id"], rows["intended"]))] = np.arange(len(rows))
    return place


def _auto_warmup(rows: Columns) -> NDArray[np.bool_]:
    """MSER-5 (White 1997) on the end-to-end latency of the first stage's good answers, by order of sending.

    The series is cut into batches of five, and of all truncations of at most half of the batches that one is taken
    whose remainder has the smallest standard error: sum of squared deviations / m^2, of its m batch means.
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
    """How many values to leave out at the start; at most half."""
    count = len(series)
    if count < 4 or np.isnan(series).any():
        return 0
    centred = series - exact.mean(series)  # takes the cancellation out of the sums of squares
    left = np.arange(count, 0, -1)
    total, squares = np.cumsum(centred[::-1])[::-1], np.cumsum(np.square(centred)[::-1])[::-1]
    error = (squares - np.square(total) / left) / left**2
    error = error[: count // 2 + 1]
    return int(
        np.flatnonzero(error <= error.min() + 1e-12 * error.max())[0]
    )  # the first, where rounding alone tells them apart


def _auto_cooldown(rows: Columns) -> NDArray[np.bool_]:
    """The last stage's requests whose life typically reaches into the drain, when nothing new is sent and the load falls:

    those intended less than the stage's median service time before its last intended instant. By the instant of a
    request, not by its fate: leaving out those that were slow to end would flatter the rest.
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
