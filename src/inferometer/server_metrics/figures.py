"""The figures of a window of the run, from the samples of all scraped servers."""

from collections.abc import Sequence

import msgspec

from inferometer.series import TimeSeries

SOURCE = "prometheus"
"""The source of scraped samples in series.parquet. Their labels are those of the page and `target`, the endpoint's URL."""
UP = "up"
"""A series per target with a value at the time of each scrape: 1 if it succeeded, else 0. Other samples are stored only when their
value has changed, and hold until the next one: their value at a scrape is the latest one at or before it."""


class GaugeFigure(msgspec.Struct, frozen=True):
    """A gauge over the window, from the scrapes in it."""

    mean: float
    max: float
    by_target: dict[str, float] = {}
    """The mean of each target, if there are several."""


class CounterFigure(msgspec.Struct, frozen=True):
    """How much a counter grew over the window, on all targets."""

    delta: float
    resets: int = 0
    """How often it fell, because a server was restarted: then `delta` is a lower bound."""


class HistogramFigure(msgspec.Struct, frozen=True):
    """The observations that a histogram counted over the window, on all targets."""

    count: float
    mean: float | None
    quantiles: dict[str, float | None] = {}
    """p50, p90 and p99, interpolated within buckets; null if there are no observations, or it is above the last bucket."""
    resets: int = 0


class Figures(msgspec.Struct, frozen=True):
    """All known quantities of a window, by their names in vocabulary.QUANTITIES."""

    gauges: dict[str, GaugeFigure] = {}
    counters: dict[str, CounterFigure] = {}
    histograms: dict[str, HistogramFigure] = {}
    missing: dict[str, str] = {}
    """Quantities that a target offers but that have no figure in this window, and why."""
    servers: dict[str, str] = {}
    """The kind of server behind each target, by its families: vllm, sglang, tgi ..."""


def figures(series: Sequence[TimeSeries], begin: int, end: int, model: str = "") -> Figures:
    """Return the figures from `begin` to `end` (ns since t=0). If samples have a label with the model's name, only those of `model`
    count; empty: all."""
    return Figures()
