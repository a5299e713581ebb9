"""The figures of repeated calls: mean, sd, min, max, median, p95 and p99, by the same definitions as all other percentiles."""

import math
from collections.abc import Sequence

import msgspec

from inferometer.analysis.percentiles import rank
from inferometer.units import format_seconds


class Durations(msgspec.Struct, frozen=True):
    """Seconds. NaN for what is not known: everything without calls, and `sd` of one call."""

    count: int
    mean: float
    sd: float
    """Standard deviation of the calls, as a sample."""
    min: float
    max: float
    median: float
    p95: float
    p99: float

    def __str__(self) -> str:
        if not self.count:
            return "no calls"
        figures = {name: getattr(self, name) for name in ("mean", "sd", "min", "max", "median", "p95", "p99")}
        words = [f"{name} {format_seconds(value)}" for name, value in figures.items() if not math.isnan(value)]
        return f"{', '.join(words)} ({self.count:,} {'call' if self.count == 1 else 'calls'})"


def describe_durations(seconds: Sequence[float]) -> Durations:
    """Describe the durations of calls. Percentiles are values that occurred: those of the nearest rank."""
    count = len(seconds)
    if not count:
        return Durations(0, *[math.nan] * 7)
    ordered = sorted(seconds)
    mean = math.fsum(ordered) / count
    variance = math.fsum((each - mean) ** 2 for each in ordered) / (count - 1) if count > 1 else math.nan
    median, p95, p99 = (ordered[rank(thousandths, count) - 1] for thousandths in (500, 950, 990))
    return Durations(count, mean, math.sqrt(variance), ordered[0], ordered[-1], median, p95, p99)
