"""The statistics of every metric for a selection of the requests: a whole run, or one of its stages.

A request lies in the block of time of its intended instant, a gap between chunks in that of its end.
"""

from collections.abc import Callable, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import blocks, gaps
from inferometer.analysis.gaps import Gaps
from inferometer.analysis.metrics import METRICS, Column, Metric
from inferometer.analysis.percentiles import Distribution, Order, describe, distribution, thresholds
from inferometer.analysis.settings import further_percentiles
from inferometer.analysis.window import STEADY
from inferometer.records import CANCELLED, LOST, MISSING, Columns, Run
from inferometer.units import NS

Mask = NDArray[np.bool_]
_BLOCK = 1 << 16
ITL = METRICS["itl"]
NO_GAPS = Distribution(unit=ITL.unit, count=0)


def distributions(run: Run, mask: Mask, itl: Distribution, as_inf: bool) -> dict[str, Distribution]:
    """Statistics of every metric, for the rows of `mask` that are in the window; those of the gaps are passed in.

    With `as_inf`, failed requests count as infinitely slow in the metrics that can fail. A metric that no successful request
    has, such as the time to first token if responses are not streamed, does not apply to the failed ones either.
    """
    rows = run.records.rows
    steady = mask & (run.records.phase == STEADY)
    chosen = {"ok": steady & (rows["failure"] == 0), "sent": steady & (rows["sent"] != MISSING)}
    failed = steady & counts_as_inf(run) if as_inf else np.zeros(len(rows), np.bool_)
    spans = {name: _span(rows, chosen[name] | failed) for name in chosen}
    failures = blocks.index(rows["intended"][failed], *spans["ok"])
    nothing = failures[:0]
    further = further_percentiles(run.manifest)
    buffer = np.empty(len(rows))
    result = {}
    for name, metric in METRICS.items():
        if metric.values is None:
            result[name] = itl
            continue
        values, at = _values(metric.values, rows, chosen[metric.of], buffer)
        start, end = spans[metric.of]
        applies = metric.can_fail and (len(values) or not chosen["ok"].any())
        infinite = failures if applies else nothing
        placed = blocks.Placed(blocks.index(at, start, end), infinite, (end - start) / NS)
        found = distribution(values, metric.unit, len(infinite), placed=placed, further=further)
        estimated = _count_estimates(metric, rows[chosen[metric.of]])
        result[name] = msgspec.structs.replace(found, estimated=estimated) if estimated else found
    return result


def _count_estimates(metric: Metric, rows: Columns) -> int:
    """How many of the rows' known values are estimates."""
    if metric.estimated is None or metric.values is None:
        return 0
    return int(np.count_nonzero(metric.estimated(rows) & ~np.isnan(metric.values(rows))))


def itl_by_stage(run: Run, found: Gaps) -> dict[int, Distribution]:
    """Statistics of the gaps of each stage. Reorders the gaps within each stage."""
    orders = {stage: Order(found.values[part]) for stage, part in found.stages.items()}
    return _itl(run, found, orders, found.slices.stage)


def itl_of_all(run: Run, found: Gaps) -> Distribution:
    """Statistics of the gaps of all stages together. Reorders the gaps."""
    return _itl(run, found, {0: Order(found.values)}, np.zeros_like(found.slices.stage))[0]


def _itl(run: Run, found: Gaps, orders: Mapping[int, Order], group: NDArray[np.int16]) -> dict[int, Distribution]:
    further = further_percentiles(run.manifest)
    limits = {each: thresholds(order, further) for each, order in orders.items() if order.count}
    tallies = gaps.tally(run, found.slices, group, limits)
    return {each: describe(order, ITL.unit, NS, tallies.get(each), further) for each, order in orders.items()}


def counts_as_inf(run: Run) -> Mask:
    """Rows of failed requests, except those that failed because of the client: cancelled and lost ones."""
    counts = np.array([False, *(failure.code not in (CANCELLED, LOST) for failure in run.records.failures)])
    rows: Mask = counts[run.records.rows["failure"]]
    return rows


def _span(rows: Columns, chosen: Mask) -> tuple[int, int]:
    """The first and the last intended instant."""
    intended = rows["intended"][chosen]
    return (int(intended.min()), int(intended.max())) if len(intended) else (0, 0)


def _values(
    of: Callable[[Columns], Column], rows: Columns, chosen: Mask, buffer: Column
) -> tuple[Column, NDArray[np.int64]]:
    """A metric's known values for the `chosen` rows, written to `buffer`, and their intended instants.

    Works in blocks that fit into the cache.
    """
    filled, instants = 0, []
    for at in range(0, len(rows), _BLOCK):
        block = slice(at, at + _BLOCK)
        own = rows[block][chosen[block]]
        values = of(own)
        known = ~np.isnan(values)
        values = values[known]
        buffer[filled : filled + len(values)] = values
        instants.append(own["intended"][known])
        filled += len(values)
    return buffer[:filled], np.concatenate(instants) if instants else np.zeros(0, np.int64)
