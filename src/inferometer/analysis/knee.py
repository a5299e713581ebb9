"""The knee of a latency-throughput curve: the level above which latency grows faster than throughput.

Kleinrock's power of a load is its throughput divided by its mean latency. Below the knee, a little more load gives more throughput
in proportion than it costs latency, and the power grows; above it, the power falls. So the knee is the level with the most power:
there, one percent more throughput costs one percent more latency. Unlike methods that look for the bend in a plot, this does not
depend on the unit of an axis, or on which levels beyond the knee were measured. For queues with a known formula it is known, too:
half of the capacity of an M/M/1 queue, 2 - sqrt(2) = 0.586 of the capacity of an M/D/1 queue. For a server whose latency is a + b n
with n requests in flight, which is what batching does to language models, it is n = a / b, where latency has doubled.

The latency R is the mean of `e2e`, and a level that the server does not keep up with has no power. The throughput is that of a steady
flow: the rate of an open loop, and N / (R + think time) for N users of a closed one (Little's law). It has no error but that of R,
while completions that are counted come in waves. A level is only said to have less power than another if their 95 % intervals show
it, and by at least 5 %. If no higher level is shown to have less power, the curve does not bend within the measured levels; if the
lowest level has the most power, and a higher one clearly less, the knee is at or below the lowest level.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from inferometer.analysis.counts import Counts
from inferometer.analysis.overload import CONSTANT_RATE, Overload
from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.throughput import Throughput
from inferometer.records import StagePlan
from inferometer.units import format_number

By = Literal["rate", "concurrency", ""]
_Z = 1.96
_LEAST = 0.05
"""Two powers that differ by less are taken for equal."""
_KEPT_UP = 0.9
"""Share of the requests that a server completes at least if it keeps up; it may refuse the rest instead of queueing it. The rate of the
completed ones says less: that of a few requests is lower because of the wait for the last."""
_FAILED = 0.05
"""Share of the requests that may fail: the mean latency is that of the others, which may be the fast ones."""


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """One measured level of a load, as far as the knee is concerned."""

    by: By
    value: float
    throughput: float | None
    """Completed requests per second."""
    latency: float | None
    """Mean end-to-end latency in seconds; None if it has no steady value."""
    is_saturated: bool = False
    """The server did not keep up."""
    flow: float | None = None
    """Requests per second by Little's law; None if only completions tell, as for sessions."""
    error: float = 0.0
    """Standard error of the logarithm of the power."""

    @property
    def power(self) -> float | None:
        """The logarithm of throughput / latency; None if it is not known or has no meaning."""
        if self.is_saturated or not self.throughput or not self.latency:
            return None
        return math.log((self.flow or self.throughput) / self.latency)


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """Where the curve of one combination of settings bends: above this level, latency grows faster than throughput."""

    settings: dict[str, Any]
    by: Literal["rate", "concurrency"]
    level: float
    throughput: float
    """Completed requests per second at that level."""
    reason: str
    """In words: what happens above it."""
    between: tuple[float | None, float | None] = (None, None)
    """The nearest levels below and above it that are shown to have less power: the knee is between them."""


def level_of(plan: StagePlan) -> tuple[By, float | None]:
    """What the level of a stage is, and its value; empty if its load has none, such as a trace."""
    if not plan.open:
        return "concurrency", float(plan.concurrency)
    return ("rate", plan.rate) if plan.type in CONSTANT_RATE and plan.rate else ("", None)


def measured_level(
    plan: StagePlan, throughput: Throughput, e2e: Distribution | None, overload: Overload | None, counts: Counts
) -> Level | None:
    """The level of a stage; None if its load has no level. Its latency does not count if the stage is too short, or requests fail."""
    by, value = level_of(plan)
    if value is None:
        return None
    failed = counts.failed + counts.dropped
    refuses = by == "rate" and failed > (1 - _KEPT_UP) * (failed + counts.ok)
    is_saturated = refuses or (overload is not None and overload.status == "overloaded")
    is_short = overload is not None and overload.status == "too_short"
    is_steady = not is_short and failed <= _FAILED * (failed + counts.ok)
    latency = e2e.mean if e2e is not None and is_steady else None
    error = _error(latency, e2e.ci.get("mean", (None, None)) if e2e is not None else (None, None))
    flow = None
    if plan.unit != "requests":
        error = math.hypot(error, _error(throughput.requests, throughput.ci.get("requests", (None, None))))
    elif by == "rate":
        flow = value
    elif latency:
        flow = value / (latency + plan.think)
        error *= 1 + latency / (latency + plan.think)  # a latency that is too high makes the throughput too low
    return Level(
        by=by,
        value=value,
        throughput=throughput.requests,
        latency=latency,
        is_saturated=is_saturated,
        flow=flow,
        error=error,
    )


def _error(value: float | None, interval: tuple[float | None, float | None]) -> float:
    """The relative standard error of a value; infinite if it has no interval, so that nothing is concluded from it."""
    low, high = interval
    if not value:
        return 0.0
    if low is None or high is None or not math.isfinite(high):
        return math.inf
    return (high - low) / (2 * _Z * value)


def is_less(level: Level, best: Level) -> bool:
    """Whether a level is shown to have less power than the best one; one that the server does not keep up with has."""
    if level.is_saturated:
        return True
    if level.power is None or best.power is None:
        return False
    return best.power - level.power > max(_Z * math.hypot(level.error, best.error), _LEAST)


def best_level(levels: Sequence[Level]) -> Level | None:
    """The level with the most power, the lowest of several; None if no level has any."""
    known = [level for level in levels if level.power is not None]
    return max(known, key=lambda level: (level.power, -level.value)) if known else None


def find_knee(levels: Sequence[Level], settings: dict[str, Any] | None = None) -> Knee | str:
    """The knee, or in words why there is none within these levels, which are all rates or all concurrencies."""
    levels = sorted(levels, key=lambda level: level.value)
    kinds = {level.by for level in levels}
    if len(kinds) != 1 or "" in kinds:
        return "the load has no levels that can be compared"
    unit = level_unit(levels[0].by)
    best = best_level(levels)
    if best is None or best.throughput is None:
        saturated = [level for level in levels if level.is_saturated]
        if len(saturated) == len(levels):
            return f"overloaded at every level, from {_number(levels[0].value)} {unit} on: measure lower levels"
        return "no level has a throughput and a steady latency"
    below = [level.value for level in levels if level.value < best.value and is_less(level, best)]
    above = [level for level in levels if level.value > best.value]
    less = [level.value for level in above if is_less(level, best)]
    if not less:
        return _no_knee(best, above, f"{_number(levels[-1].value)} {unit}")
    if not any(level.value < best.value for level in levels):
        return f"the knee is at or below {_number(best.value)} {unit}, the lowest level that was measured"
    return Knee(
        settings=dict(settings or {}),
        by="rate" if best.by == "rate" else "concurrency",
        level=best.value,
        throughput=best.throughput,
        reason=_reason(best, [level for level in above if level.value >= less[0]], unit),
        between=(max(below, default=None), less[0]),
    )


def _no_knee(best: Level, above: Sequence[Level], end: str) -> str:
    """Why no level above the best one is shown to have less power."""
    if not above:
        return f"no knee up to {end}: throughput grows at least as fast as latency"
    if all(level.power is None for level in above):
        return (
            f"no knee is shown up to {end}: levels above {_number(best.value)} have no steady latency; measure longer"
        )
    return (
        f"no knee is shown up to {end}: above {_number(best.value)}, the intervals are too wide to tell; measure longer"
    )


def _reason(best: Level, above: Sequence[Level], unit: str) -> str:
    """What happens from the knee to the first level that has less power, and from which level on the server does not keep up."""
    first = above[0]
    words = []
    if not first.is_saturated:
        assert best.throughput and best.latency and first.throughput and first.latency
        more = _growth(best.flow or best.throughput, first.flow or first.throughput)
        words.append(
            f"from {_number(best.value)} to {_number(first.value)} {unit}, throughput grows by {more} and mean latency by "
            f"{_growth(best.latency, first.latency)}"
        )
    if saturated := [level.value for level in above if level.is_saturated]:
        words.append(f"the server does not keep up with {_number(saturated[0])} {unit}")
    return "; ".join(words)


def _growth(before: float, after: float) -> str:
    return f"{100 * (after / before - 1):.0f} %"


def level_unit(by: str) -> str:
    return "requests/s" if by == "rate" else "in flight"


def _number(value: float) -> str:
    return format_number(value, 4)
