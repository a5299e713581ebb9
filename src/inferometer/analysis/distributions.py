"""The statistics of every metric for a selection of the requests: a whole run, or one of its stages."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.metrics import METRICS, Column
from inferometer.analysis.percentiles import Distribution, Values, distribution
from inferometer.analysis.window import STEADY
from inferometer.records import MISSING, Columns, Run
from inferometer.units import NS

Mask = NDArray[np.bool_]
_BLOCK = 1 << 16


def distributions(run: Run, mask: Mask, gaps: Values, as_inf: bool) -> dict[str, Distribution]:
    """Statistics of every metric, for the rows of `mask` that are in the window. Reorders `gaps`."""
    rows = run.records.rows
    steady = mask & (run.records.phase == STEADY)
    chosen = {"ok": steady & (rows["failure"] == 0), "sent": steady & (rows["sent"] != MISSING)}
    failed = int(np.count_nonzero(steady & ~chosen["ok"])) if as_inf else 0
    buffer = np.empty(len(rows))
    result = {}
    for name, metric in METRICS.items():
        if metric.values is None:
            result[name] = distribution(gaps, metric.unit, scale=NS)
        else:
            values = _values(metric.values, rows, chosen[metric.of], buffer)
            result[name] = distribution(values, metric.unit, failed if metric.can_fail else 0)
    return result


def _values(of: Callable[[Columns], Column], rows: Columns, chosen: Mask, buffer: Column) -> Column:
    """A metric's known values for the `chosen` rows, written to `buffer`. Works in blocks that fit into the cache."""
    filled = 0
    for at in range(0, len(rows), _BLOCK):
        block = slice(at, at + _BLOCK)
        values = of(rows[block][chosen[block]])
        values = values[~np.isnan(values)]
        buffer[filled : filled + len(values)] = values
        filled += len(values)
    return buffer[:filled]
