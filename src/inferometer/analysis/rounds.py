"""A figure that was measured in one or several rounds: its value with an interval, and the ratio of two such figures.

Over several rounds, the value is the mean of the rounds and the interval Student's, from how much the rounds vary (as in repeats.py).
Of a single round, the interval is that of the run itself, which does not cover what changes from run to run.

Rounds with the same number send the same prompts to every engine, one engine soon after the other. So they are pairs, and what both
have in common cancels out in their ratio (log_ratio.py).
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from inferometer.analysis import log_ratio, student
from inferometer.analysis.efficiency import Estimate, Interval
from inferometer.analysis.log_ratio import CONFIDENCE, LogRatio

Comparing = Literal["better", "worse", "no clear difference"]


class Rounds(msgspec.Struct, frozen=True):
    """A positive figure by the number of the round."""

    values: dict[int, float]
    error: float | None = None
    """Of a single round: standard error of the figure's logarithm, if it is known."""
    ci: Interval = (None, None)
    """Of a single round: the run's own interval."""

    @property
    def value(self) -> float:
        return math.fsum(self.values.values()) / len(self.values)

    def estimate(self) -> Estimate:
        """The mean of the rounds with its interval."""
        if len(self.values) < 2:
            return Estimate(self.value, self.ci)
        half = student.quantile(CONFIDENCE, len(self.values) - 1) * _mean_error(list(self.values.values()))
        return Estimate(self.value, (max(self.value - half, 0.0), self.value + half))

    def scaled(self, factor: float) -> "Rounds":
        """The figure times a constant."""
        low, high = (None if end is None else end * factor for end in self.ci)
        return Rounds({number: value * factor for number, value in self.values.items()}, self.error, (low, high))

    def inverse(self) -> "Rounds":
        """1 / the figure."""
        low, high = (None if not end else 1 / end for end in self.ci)
        return Rounds({number: 1 / value for number, value in self.values.items()}, self.error, (high, low))


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """How many times as good one engine is as another, with its 95 % interval: null ends if that is not known."""

    engine: str
    """The other engine."""
    ratio: float
    ci: Interval = (None, None)
    verdict: Comparing = "no clear difference"
    method: log_ratio.Method | None = None

    @property
    def is_clear(self) -> bool:
        """Whether the engine is clearly better than the other one."""
        return self.verdict == "better"


def log_ratio_of(a: Rounds, b: Rounds) -> LogRatio | None:
    """log(b / a) with its error; None if a single round of either has no error."""
    common = sorted(a.values.keys() & b.values.keys())
    if len(common) > 1:
        return log_ratio.paired([a.values[each] for each in common], [b.values[each] for each in common])
    if len(a.values) > 1 or len(b.values) > 1:
        return log_ratio.unpaired(list(a.values.values()), list(b.values.values()))
    if a.error is None or b.error is None:
        return None
    return log_ratio.single(a.value, b.value, (a.error, b.error))


def ratio_of(best: Rounds, other: Rounds, name: str) -> Ratio:
    """How many times as much `best` is as `other`, which belongs to the engine `name`."""
    return judged(log_ratio_of(other, best), best.value / other.value, name)


def judged(found: LogRatio | None, ratio: float, name: str) -> Ratio:
    """The ratio in the layout of the report; clear if its interval excludes 1."""
    if found is None:
        return Ratio(engine=name, ratio=_rounded(ratio))
    low, high = (log_ratio.exp(end) for end in found.interval())
    verdict: Comparing = "better" if low > 1 else "worse" if high < 1 else "no clear difference"
    return Ratio(
        engine=name,
        ratio=_rounded(log_ratio.exp(found.value)),
        ci=(_rounded(low), _rounded(high)),
        verdict=verdict,
        method=found.method,
    )


def together(each: Sequence[LogRatio]) -> LogRatio:
    """The mean of independent log ratios: the ratio of geometric means over several cells."""
    count = len(each)
    error = math.sqrt(math.fsum(one.error**2 for one in each)) / count
    return LogRatio(
        math.fsum(one.value for one in each) / count, error, min(one.freedom for one in each), each[0].method
    )


def geometric(cells: Mapping[int, Rounds]) -> float:
    """The geometric mean over cells."""
    return math.exp(math.fsum(math.log(each.value) for each in cells.values()) / len(cells))


def _mean_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


def _rounded(value: float) -> float:
    return float(f"{value:.7g}")
