"""Figures of a time series over the times that count: rates of counters, means and maxima of values, energy."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from inferometer.analysis import exact
from inferometer.analysis.energy import Instants, Values, growth, longest_power_gap, trapezoid
from inferometer.series import TimeSeries
from inferometer.units import NS, format_seconds

_LONGEST_GAP = 3.0
"""Intervals without a sample over which counters are interpolated."""


class Time(NamedTuple):
    """A time that figures are over (ns), and what was completed in it."""

    start: int
    end: int
    requests: float | None = None
    tokens: float | None = None
    reason: str = ""
    """Why it is not known what was completed."""

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / NS


class SeriesFigures:
    """Computes figures over some times, and notes why one is missing."""

    def __init__(self, times: Sequence[Time], interval: float, prefix: str = "") -> None:
        self.times = times
        self.seconds = math.fsum(time.seconds for time in times)
        self.missing: dict[str, str] = {}
        self._interval = interval
        self._prefix = prefix

    def about(self, part: str) -> "SeriesFigures":
        """The same for a part of the figures, whose names start with it."""
        made = SeriesFigures(self.times, self._interval, f"{part}.")
        made.missing = self.missing
        return made

    def rate(self, name: str, counter: TimeSeries | None) -> float | None:
        """By how much a counter grew per second."""
        grown = self.growth(name, counter)
        return None if grown is None else grown / self.seconds

    def growth(self, name: str, counter: TimeSeries | None) -> float | None:
        """By how much a counter grew. Edges are interpolated: of a short time, most may be from outside."""
        if counter is not None and 0 < self.seconds < self._interval and self._outside(counter.at) > self.seconds:
            length, interval = format_seconds(self.seconds), format_seconds(self._interval)
            return self._no(name, f"{length} is shorter than observe.interval, {interval}")
        return self._sum(name, counter, growth, _LONGEST_GAP * self._interval)

    def _outside(self, at: Instants) -> float:
        """Seconds by which the samples around the times begin before them and end after them."""
        around = [(at[at <= time.start], at[at >= time.end], time) for time in self.times]
        return sum(
            (time.start - int(before[-1]) + int(after[0]) - time.end) / NS
            for before, after, time in around
            if len(before) and len(after)
        )

    def energy(self, name: str, power: TimeSeries | None) -> float | None:
        """The integral of the power."""
        return self._sum(name, power, trapezoid, longest_power_gap(self._interval))

    def highest_rate(self, counter: TimeSeries | None, by: TimeSeries | None = None) -> float | None:
        """The highest growth between two samples: per second, or per growth of `by`, which has the same times."""
        if counter is None:
            return None
        at, base = counter.at, counter.at / NS if by is None else by.value
        found = [
            float((counter.value[last] - counter.value[first]) / (base[last] - base[first]))
            for time in self.times
            for first, last in pairwise(self._apart(at, time))
            if base[last] > base[first]
        ]
        return max(found, default=None)

    def _apart(self, at: Instants, time: Time) -> Iterator[int]:
        """The samples within a time, at least half an interval apart.

        The start of a stage adds a sample, soon after another. Over a short time, the resolution of a counter would matter.
        """
        earliest = time.start
        for index in np.flatnonzero((at >= time.start) & (at <= time.end)).tolist():
            if at[index] >= earliest:
                yield index
                earliest = int(at[index]) + round(self._interval / 2 * NS)

    def highest(self, name: str, gauge: TimeSeries | None) -> float | None:
        """The highest of the samples; of a short time without one, those around it."""
        values = self.within(gauge)
        if not len(values) and gauge is not None and self.seconds < self._interval:
            outside = [(gauge.value[gauge.at <= time.start], gauge.value[gauge.at >= time.end]) for time in self.times]
            values = np.concatenate([part for before, after in outside for part in (before[-1:], after[:1])])
        return float(values.max()) if len(values) else self._no(name, "no sample was taken")

    def mean(self, name: str, gauge: TimeSeries | None) -> float | None:
        """The mean of the samples."""
        values = self.within(gauge)
        return exact.mean(values) if len(values) else self._no(name, "no sample was taken")

    def within(self, series: TimeSeries | None) -> Values:
        """The samples that were taken within the times."""
        if series is None:
            return np.zeros(0)
        inside = np.zeros(len(series.at), np.bool_)
        for time in self.times:
            inside |= (series.at >= time.start) & (series.at <= time.end)
        return series.value[inside]

    def _sum(
        self,
        name: str,
        series: TimeSeries | None,
        measure: Callable[[Instants, Values, int, int, float], float | str],
        longest_gap: float,
    ) -> float | None:
        """The sum over all times of what `measure` returns for each; None if that is a reason for one of them."""
        if series is None:
            return self._no(name, "it was not recorded")
        parts = [measure(series.at, series.value, time.start, time.end, longest_gap) for time in self.times]
        if reasons := [part for part in parts if isinstance(part, str)]:
            return self._no(name, reasons[0])
        return math.fsum(part for part in parts if not isinstance(part, str))

    def _no(self, name: str, why: str) -> float | None:
        self.missing.setdefault(self._prefix + name, why)
        return None
