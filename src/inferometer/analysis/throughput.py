"""Rates of an open loop that agree when the server keeps up: requests offered, and requests completed without the edges.

At the start of a stage nothing has been completed yet, and at its end nothing more is sent while the last responses arrive.
Dividing by all of that time would report fewer requests per second than the server handled.
"""

import numpy as np

from inferometer.records import MISSING, Columns
from inferometer.units import NS

_EARLY = 10
"""The first tenth of the requests shows how long the pipeline takes to fill."""
_FILLED = 0.9
"""The percentile of their time; with the median, the rate would be too low when times vary."""


def offered(rows: Columns) -> float | None:
    """Requests sent per second, from the first send to the last; None for fewer than two."""
    sent = rows["sent"]
    sent = sent[sent != MISSING]
    span = int(sent.max() - sent.min()) / NS if len(sent) else 0.0
    return (len(sent) - 1) / span if span else None


def without_edges(rows: Columns, start: int, end: int) -> tuple[int, int]:
    """Narrow the window from `start` to `end` to the time in which the pipeline was full and requests were still sent.

    If that is less than half of the time in which requests were sent, the window stays as it is.
    """
    order = np.argsort(np.where(rows["sent"] == MISSING, np.iinfo(np.int64).max, rows["sent"]), kind="stable")
    order = order[: int((rows["sent"] != MISSING).sum())]
    early = rows[order[: max(len(order) // _EARLY, 1)]]
    times = np.sort((early["done"] - early["sent"])[early["failure"] == 0])
    if not len(times):
        return start, end
    first, last = (int(rows["sent"][order[index]]) for index in (0, -1))
    full = max(start, first + int(times[int(_FILLED * (len(times) - 1))]))
    finish = min(end, last)
    return (full, finish) if finish > full and 2 * (finish - full) >= last - first else (start, end)
