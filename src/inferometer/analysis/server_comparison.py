"""The client's and the server's view of the same requests, quantity by quantity.

The server counts a request when it ends, and a first token when it is generated. So the client's side of a window is all requests
that succeeded and ended in it, whatever stage and phase they belong to; for TTFT, those whose first token arrived in it. Over the
whole run these are exactly the requests that the server counted, unless it has other clients.

The client's times count from the send: the server cannot know when a request should have been sent. What the client has more
than the server is the share of the network and of the client.
"""

from collections.abc import Callable, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import exact
from inferometer.analysis.metrics import Column, e2e_service, ttft_service
from inferometer.analysis.percentiles import Order
from inferometer.records import COUNTED_BY, MISSING, Columns
from inferometer.server_metrics.figures import Figures

_TOLERANCE = 0.05
"""Share of the requests that only one side may have counted."""
_BY_CHUNKS = COUNTED_BY.index("chunks")

TIMES: dict[str, tuple[str, Callable[[Columns], Column]]] = {
    "ttft": ("first_token", ttft_service),
    "e2e": ("done", e2e_service),
}
"""Histograms to compare: the event at which the server counts them, and the client's values."""
MEAN = "mean"
STATISTICS = (MEAN, "p50", "p99")


class Comparison(msgspec.Struct, frozen=True):
    """One quantity as the client and as the server measured it."""

    client: float
    server: float
    unit: str
    """requests, tokens, or s."""

    @property
    def difference(self) -> float:
        """What the client has more than the server. For times, this is the network's and the client's part."""
        return self.client - self.server


def compare(rows: Columns, figures: Figures, begin: int, end: int) -> dict[str, Comparison]:
    """Compare what both sides counted from `begin` to `end` (ns since t=0), with the server's figures of that time."""
    good = rows["failure"] == 0
    ended = rows[good & _within(rows["done"], begin, end)]
    counts: dict[str, tuple[int | None, str]] = {
        "requests": (len(ended), "requests"),
        "input_tokens": (_sum(ended, "n_in", "in_counted_by"), "tokens"),
        "output_tokens": (_sum(ended, "n_out", "counted_by"), "tokens"),
    }
    found = {
        name: Comparison(float(count), figures.counters[name].delta, unit)
        for name, (count, unit) in counts.items()
        if count is not None and name in figures.counters
    }
    for name, (event, values_of) in TIMES.items():
        reported = _reported(figures, name)
        values = values_of(rows[good & _within(rows[event], begin, end)])
        values = values[~np.isnan(values)]
        if not reported or not len(values) or not _are_the_same(len(values), _counted(figures, name)):
            continue
        client = {MEAN: exact.mean(values)} | Order(values).percentiles()
        for statistic in STATISTICS:
            if (value := reported.get(statistic)) is not None:
                found[f"{name}.{statistic}"] = Comparison(client[statistic], value, "s")
    return found


def _reported(figures: Figures, name: str) -> Mapping[str, float | None]:
    """The server's statistics of a time: those of its histogram, or the mean if it has only a sum."""
    if (histogram := figures.histograms.get(name)) is not None:
        return {MEAN: histogram.mean} | histogram.quantiles
    total, requests = (figures.counters.get(each) for each in (f"{name}_seconds", "requests"))
    return {MEAN: total.delta / requests.delta} if total is not None and requests is not None and requests.delta else {}


def _counted(figures: Figures, name: str) -> float:
    """How many requests the server's times are of."""
    histogram, requests = figures.histograms.get(name), figures.counters.get("requests")
    return histogram.count if histogram is not None else requests.delta if requests is not None else 0.0


def _are_the_same(client: int, server: float) -> bool:
    """Whether both sides measured the same requests, but for a few: otherwise their times say nothing about each other."""
    return abs(client - server) <= _TOLERANCE * max(client, server)


def _within(instants: NDArray[np.int64], begin: int, end: int) -> NDArray[np.bool_]:
    return np.asarray((instants != MISSING) & (instants > begin) & (instants <= end))


def _sum(rows: Columns, column: str, counted_by: str) -> int | None:
    """The sum of a number of tokens; None if it is not known of every request, or only as a number of chunks."""
    if not len(rows) or (rows[column] < 0).any() or (rows[counted_by] == _BY_CHUNKS).any():
        return None
    return int(rows[column].sum(dtype=np.int64))
