"""The figures of a window of the run, from the samples of all scraped servers.

Gauges count at the successful scrapes in the window. Label sets of a target (engines, GPUs) and several targets are put together: numbers of
requests, bytes and watts are added up, shares, temperatures and clocks averaged. How counters and histograms count: growth.py.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from inferometer.series import TimeSeries
from inferometer.server_metrics import growth
from inferometer.server_metrics.targets import SOURCE, UP, Instants, Target, Values, offering, targets, union
from inferometer.server_metrics.vocabulary import QUANTITIES, Kind

__all__ = ["SOURCE", "UP", "CounterFigure", "Figures", "GaugeFigure", "HistogramFigure", "figures"]

T = TypeVar("T")

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class GaugeFigure(msgspec.Struct, frozen=True):
    """A gauge over the window, from the scrapes in it."""

    mean: float
    max: float
    """If values are added up: of their sum, at any scrape of any target. If they are averaged: of any of them."""
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
    """p50, p90 and p99, interpolated within buckets; null if there are no observations, or it is in the first bucket or above the last
    one. Empty if the buckets of this window are not known."""
    resets: int = 0
    below: dict[str, float] = {}
    """Quantiles in the first bucket: its upper edge, which they are below."""


class Figures(msgspec.Struct, frozen=True):
    """All known quantities of a window, by their names in vocabulary.QUANTITIES."""

    gauges: dict[str, GaugeFigure] = {}
    counters: dict[str, CounterFigure] = {}
    histograms: dict[str, HistogramFigure] = {}
    missing: dict[str, str] = {}
    """Quantities that a target offers but that have no figure in this window, and why. If one has a figure all the same, it lacks
    something: a gauge lacks that target, a histogram its quantiles."""
    servers: dict[str, str] = {}
    """The kind of server behind each target, by its families: vllm, sglang, tgi ..."""


def figures(series: Sequence[TimeSeries], begin: int, end: int, model: str = "") -> Figures:
    """Return the figures from `begin` to `end` (ns since t=0). If samples have a label with the model's name, only those of `model`
    count; empty: all."""
    found = targets(series, model)
    missing: dict[str, str] = {}

    def all_of(
        kind: Kind, make: Callable[[str, Sequence[Target], int, int], tuple[T | None, list[str]]]
    ) -> dict[str, T]:
        results = {}
        for name, quantity in QUANTITIES.items():
            if quantity.kind == kind and (offers := offering(found, name)):
                figure, reasons = make(name, offers, begin, end)
                if figure is not None:
                    results[name] = figure
                if reasons:
                    missing[name] = "; ".join(reasons)
        return results

    servers = {target.url: target.kind for target in found}
    return Figures(
        all_of("gauge", _gauge), all_of("counter", _counter), all_of("histogram", _histogram), missing, servers
    )


# --- gauges ----------------------------------------------------------------------------------------------------------


class _Level(NamedTuple):
    """A gauge of one target: its value at each scrape, and the highest of its label sets."""

    at: Instants
    value: Values
    highest: float

    @property
    def mean(self) -> float:
        return math.fsum(self.value.tolist()) / len(self.value)


def _gauge(name: str, offers: Sequence[Target], begin: int, end: int) -> tuple[GaugeFigure | None, list[str]]:
    levels: dict[str, _Level] = {}
    reasons = []
    for target in offers:
        level = _level(name, target, begin, end)
        if isinstance(level, str):
            reasons.append(f"{target.url}: {level}")
        else:
            levels[target.url] = level
    if not levels:
        return None, reasons
    means = {url: level.mean for url, level in levels.items()}
    by_target = means if len(offers) > 1 else {}
    total = math.fsum(means.values())
    if QUANTITIES[name].is_additive:
        return GaugeFigure(total, _highest_sum(list(levels.values())), by_target), reasons
    return GaugeFigure(total / len(means), max(level.highest for level in levels.values()), by_target), reasons


def _level(name: str, target: Target, begin: int, end: int) -> _Level | str:
    if target.is_several:
        return growth.SEVERAL
    at = target.scraped[target.succeeded & (target.scraped >= begin) & (target.scraped <= end)]
    if not len(at):
        return "no scrape succeeded in this window"
    values = np.array([track.held(at) for track in target.quantities[name]])
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    at, values, known, count = at[count > 0], values[:, count > 0], known[:, count > 0], count[count > 0]
    if not len(at):
        return "was not on the page in this window"
    total = np.where(known, values, 0.0).sum(axis=0)
    highest = float(values[known].max())
    return _Level(at, total if QUANTITIES[name].is_additive else total / count, highest)


def _highest_sum(levels: Sequence[_Level]) -> float:
    """The highest sum over the targets. Each one's value holds until its next scrape."""
    instants = union(level.at for level in levels)
    total = np.zeros(len(instants))
    for level in levels:
        index = np.searchsorted(level.at, instants, "right") - 1
        total += np.where(index >= 0, level.value[np.maximum(index, 0)], 0.0)
    return float(total.max())


# --- counters and histograms -----------------------------------------------------------------------------------------


def _counter(name: str, offers: Sequence[Target], begin: int, end: int) -> tuple[CounterFigure | None, list[str]]:
    intervals, reasons = _intervals(offers, begin, end)
    if reasons:
        return None, reasons
    parts = [growth.grown(each.target.quantities[name], each) for each in intervals]
    return CounterFigure(math.fsum(part.delta for part in parts), sum(part.resets for part in parts)), []


def _histogram(name: str, offers: Sequence[Target], begin: int, end: int) -> tuple[HistogramFigure | None, list[str]]:
    intervals, reasons = _intervals(offers, begin, end)
    if reasons:
        return None, reasons
    counts, sums = (_parts(name, intervals, part) for part in ("count", "sum"))
    count = math.fsum(part.delta for part in counts)
    resets = sum(part.resets for part in counts)
    if count <= 0:
        return HistogramFigure(count, None, dict.fromkeys(_QUANTILES), resets), []
    has_sums = all(any(track.part == "sum" for track in each.target.quantities[name]) for each in intervals)
    mean = math.fsum(part.delta for part in sums) / count if has_sums else None
    buckets = _buckets(name, intervals, counts)
    if isinstance(buckets, str):
        return HistogramFigure(count, mean, {}, resets), [f"quantiles: {buckets}"]
    found = {label: growth.quantile(q, buckets) for label, q in _QUANTILES.items()}
    quantiles = {label: value for label, (value, _) in found.items()}
    below = {label: edge for label, (_, edge) in found.items() if edge is not None}
    return HistogramFigure(count, mean, quantiles, resets, below), []


def _intervals(offers: Sequence[Target], begin: int, end: int) -> tuple[list[growth.Interval], list[str]]:
    """The scrapes that stand for the window, or why a target has none: a sum without it would be too low."""
    intervals, reasons = [], []
    for target in offers:
        each = growth.interval(target, begin, end)
        if isinstance(each, str):
            reasons.append(f"{target.url} {each}")
        else:
            intervals.append(each)
    return intervals, reasons


def _parts(name: str, intervals: Sequence[growth.Interval], part: str) -> list[growth.Growth]:
    return [
        growth.grown([track for track in each.target.quantities[name] if track.part == part], each)
        for each in intervals
    ]


def _buckets(name: str, intervals: Sequence[growth.Interval], counts: Sequence[growth.Growth]) -> growth.Buckets | str:
    found = []
    for each, count in zip(intervals, counts, strict=True):
        if count.delta <= 0:
            continue
        buckets = growth.bucket_counts(each.target.quantities[name], each, count.delta)
        if isinstance(buckets, str):
            return f"{each.target.url}: {buckets}"
        found.append(buckets)
    return growth.merged(found)
