"""The trade-off between what one user sees and what the hardware delivers, over several loads or settings.

Each measured level is a point: output tokens per second and user (efficiency.py), and output tokens per second and GPU, or of all
servers together if the number of GPUs is not known. A point is on the frontier if no other point is at least as good in both and
better in one. It is clearly so if every other point is worse in one of the two by more than both intervals, and clearly not if some
other point is better in both by more than the intervals. Only points of the same workload are compared: longer prompts are not a
worse server.

`cheapest_at`: the highest rate per GPU at which a user still sees a given number of tokens per second. Between two neighbouring
points of the same settings it is interpolated linearly; beyond the measured points nothing is said.

Its interval comes from resampling: each point is moved within its intervals, as if those were of normal distributions, and the
answer is computed again. The two figures of a point move together, from low to high, because a server that was slow for a while
was slow in both. That is also the cautious choice: along a falling curve the two errors then add up. Different points are
independent. The draws are stratified and the same every time, so the same points give the same interval.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.efficiency import Efficiency, Estimate, cost_per_million, rate, user_rate
from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.settings import settings_label
from inferometer.analysis.throughput import Throughput
from inferometer.random_numbers import shuffled

WORKLOAD = ("data.", "sessions.")
"""How the keys of settings begin that change what is requested. Points with different values of these do not compete."""
_DRAWS = 2000
_NORMAL = NormalDist().inv_cdf(0.975)
Values = NDArray[np.float64]


class ParetoPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One measured level."""

    label: str
    """Of the level, such as `concurrency 8`."""
    curve: str = ""
    """The settings that it belongs to, such as `data.input 1024`; empty if only the load changes."""
    workload: str = ""
    """The part of these settings that changes what is requested (WORKLOAD); empty if all points have the same workload."""
    level: float | None = None
    user: Estimate
    """Output tokens per second and user."""
    hardware: Estimate
    """Output tokens per second and GPU, or of all servers (Pareto.unit)."""
    price_per_hour: float | None = None
    """Of one such unit."""
    cost: Estimate | None = None
    """Of a million output tokens."""
    is_frontier: bool = False
    """Whether no other point is at least as good in both figures and better in one."""
    is_clear: bool = False
    """Whether the intervals leave no doubt about that."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The cheapest load of one curve at which a user sees enough tokens per second; `hardware` is null if there is none."""

    curve: str = ""
    hardware: Estimate | None = None
    cost: Estimate | None = None
    between: tuple[str, ...] = ()
    """The two neighbouring levels that it was interpolated between, or the level that it was measured at."""
    is_lower_bound: bool = False
    """Whether users see more than that at every measured level: a higher load may be cheaper."""
    reason: str = ""
    """Why there is no answer."""


class CheapestAt(msgspec.Struct, frozen=True, kw_only=True):
    tokens_per_user: float
    workload: str = ""
    answers: tuple[Answer, ...]
    """One per curve, the cheapest first."""


class Pareto(msgspec.Struct, frozen=True, kw_only=True):
    unit: Literal["gpu", "server"]
    """What the rates and costs of `hardware` are per: a GPU, or all servers together."""
    currency: str = "USD"
    points: tuple[ParetoPoint, ...]
    """By curve in their order, and within each from the fastest for a user to the slowest."""
    cheapest_at: tuple[CheapestAt, ...] = ()
    left_out: dict[str, str] = {}
    """Levels that are not points, and why."""


class Level(Protocol):
    """What becomes a point: a stage of a run, or a point of a sweep."""

    @property
    def name(self) -> str: ...
    @property
    def settings(self) -> dict[str, Any]: ...
    @property
    def level(self) -> float | None: ...
    @property
    def is_quotable(self) -> bool: ...
    @property
    def is_overloaded(self) -> bool: ...
    @property
    def throughput(self) -> Throughput: ...
    @property
    def metrics(self) -> dict[str, Distribution]: ...
    @property
    def efficiency(self) -> Efficiency | None: ...


def pareto_of(levels: Sequence[Level], cheapest_at: Sequence[float] = ()) -> Pareto | None:
    """The points, their frontier, and the answers for each rate in `cheapest_at`.

    None if no level has tokens per second and user and none was asked for.
    """
    left_out = {_full_name(each): why for each in levels if (why := _why_not(each))}
    kept = [each for each in levels if not _why_not(each)]
    if not kept and not cheapest_at:
        return None
    unit: Literal["gpu", "server"] = "gpu" if kept and all(_gpus(each) for each in kept) else "server"
    points = frontier([_point(each, unit) for each in kept])
    return Pareto(
        unit=unit,
        currency=next((each.efficiency.currency for each in kept if each.efficiency is not None), "USD"),
        points=points,
        cheapest_at=tuple(
            at([point for point in points if point.workload == workload], wanted)
            for wanted in dict.fromkeys(cheapest_at)
            for workload in dict.fromkeys(point.workload for point in points) or [""]
        ),
        left_out=left_out,
    )


def _why_not(level: Level) -> str:
    if level.is_overloaded:
        return "overloaded"
    if not level.is_quotable:
        return "a check failed: not quotable"
    if user_rate(level.metrics.get("tps_user")) is None:
        return "no response of several tokens was streamed"
    return "" if rate(level.throughput, "output_tokens") is not None else "its output tokens per second are not known"


def _gpus(level: Level) -> int | None:
    return None if level.efficiency is None else level.efficiency.gpus


def _point(level: Level, unit: Literal["gpu", "server"]) -> ParetoPoint:
    user, tokens = user_rate(level.metrics.get("tps_user")), rate(level.throughput, "output_tokens")
    assert user is not None and tokens is not None
    count = (_gpus(level) or 1) if unit == "gpu" else 1
    price = None if level.efficiency is None else level.efficiency.price_per_hour
    low, high = (None if end is None else end / count for end in tokens.ci)
    return ParetoPoint(
        label=level.name,
        curve=settings_label(level.settings),
        workload=settings_label({key: value for key, value in level.settings.items() if key.startswith(WORKLOAD)}),
        level=level.level,
        user=user,
        hardware=Estimate(tokens.value / count, (low, high)),
        price_per_hour=None if price is None else price / count,
        cost=None if price is None else cost_per_million(price, tokens),
    )


def _full_name(level: Level) -> str:
    return f"{curve}: {level.name}" if (curve := settings_label(level.settings)) else level.name


# --- the frontier ----------------------------------------------------------------------------------------------------


def frontier(points: Sequence[ParetoPoint]) -> tuple[ParetoPoint, ...]:
    """The points, sorted, each with whether it is on the frontier, and whether that is clear."""
    curves = list(dict.fromkeys(point.curve for point in points))
    ordered = sorted(points, key=lambda point: (curves.index(point.curve), -point.user.value, point.hardware.value))
    return tuple(
        _judged(point, [other for other in ordered if other is not point and other.workload == point.workload])
        for point in ordered
    )


def _judged(point: ParetoPoint, others: Sequence[ParetoPoint]) -> ParetoPoint:
    is_frontier = not any(_dominates(other, point) for other in others)
    if is_frontier:
        is_clear = all(_is_clearly_better_in_one(point, other) for other in others)
    else:
        is_clear = any(_clearly_dominates(other, point) for other in others)
    return msgspec.structs.replace(point, is_frontier=is_frontier, is_clear=is_clear)


def _dominates(one: ParetoPoint, other: ParetoPoint) -> bool:
    pairs = ((one.user.value, other.user.value), (one.hardware.value, other.hardware.value))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def _is_clearly_better_in_one(one: ParetoPoint, other: ParetoPoint) -> bool:
    return _is_above(one.user, other.user) or _is_above(one.hardware, other.hardware)


def _clearly_dominates(one: ParetoPoint, other: ParetoPoint) -> bool:
    return _is_above(one.user, other.user) and _is_above(one.hardware, other.hardware)


def _is_above(one: Estimate, other: Estimate) -> bool:
    """Whether the whole interval of `one` is above that of `other`; never if one of the two ends is not known."""
    low, high = one.ci[0], other.ci[1]
    return low is not None and high is not None and low > high


# --- the cheapest point for a given rate per user --------------------------------------------------------------------


def at(points: Sequence[ParetoPoint], tokens_per_user: float) -> CheapestAt:
    """For each curve, the highest rate per GPU (or server) at which a user sees at least `tokens_per_user`; of one workload."""
    curves: dict[str, list[ParetoPoint]] = {}
    for point in points:
        curves.setdefault(point.curve, []).append(point)
    answers = [_answer(curve, own, tokens_per_user) for curve, own in curves.items()]
    if not answers:
        answers = [Answer(reason="no measured level has output tokens/s/user that may be quoted")]
    return CheapestAt(
        tokens_per_user=tokens_per_user,
        workload=points[0].workload if points else "",
        answers=tuple(sorted(answers, key=_rank)),
    )


def _rank(answer: Answer) -> tuple[float, float]:
    """The cheapest first; by the rate if there is no price."""
    if answer.hardware is None:
        return math.inf, math.inf
    return (math.inf if answer.cost is None else answer.cost.value), -answer.hardware.value


def _answer(curve: str, points: Sequence[ParetoPoint], wanted: float) -> Answer:
    points = sorted(points, key=lambda point: (point.user.value, point.hardware.value, point.label))
    if points[-1].user.value < wanted:
        most = f"{points[-1].user.value:.3g}"
        return Answer(
            curve=curve,
            reason=f"no measured level reaches {wanted:g} tokens/s/user; the fastest ({points[-1].label}) has {most}",
        )
    x, y = (np.array([[value for value in column]]) for column in _columns(points))
    value = float(_highest(x, y, wanted)[0])
    used = _used(points, wanted, value)
    hardware = Estimate(value, _resampled(points, used, wanted))
    price = points[0].price_per_hour
    return Answer(
        curve=curve,
        hardware=hardware,
        cost=None if price is None else cost_per_million(price, hardware),
        between=tuple(point.label for point in used),
        is_lower_bound=points[0].user.value > wanted,
    )


def _columns(points: Sequence[ParetoPoint]) -> tuple[list[float], list[float]]:
    return [point.user.value for point in points], [point.hardware.value for point in points]


def _used(points: Sequence[ParetoPoint], wanted: float, value: float) -> list[ParetoPoint]:
    """The points that the answer depends on: a measured one, or the neighbours on both sides, the faster first."""
    measured = [point for point in points if point.user.value >= wanted and point.hardware.value == value]
    if measured:
        return measured[:1]
    above = next(index for index, point in enumerate(points) if point.user.value >= wanted)
    return [points[above], points[above - 1]]


def _highest(x: Values, y: Values, wanted: float) -> Values:
    """For each row, the highest y at an x of at least `wanted`, on the line through the points; -inf if no x reaches it.

    If the curve falls towards slower users, as it does for an overcommitted server, a measured point with faster users is better.
    """
    order = np.argsort(x, axis=1, kind="stable")
    x, y = np.take_along_axis(x, order, 1), np.take_along_axis(y, order, 1)
    reaches = x >= wanted
    best: Values = np.where(reaches, y, -np.inf).max(axis=1)
    rows = np.flatnonzero(reaches.any(axis=1) & ~reaches[:, 0])
    above = reaches[rows].argmax(axis=1)
    x0, x1, y0, y1 = x[rows, above - 1], x[rows, above], y[rows, above - 1], y[rows, above]
    best[rows] = np.maximum(best[rows], y0 + (y1 - y0) * ((wanted - x0) / (x1 - x0)))
    return best


def _resampled(
    points: Sequence[ParetoPoint], used: Sequence[ParetoPoint], wanted: float
) -> tuple[float | None, float | None]:
    """The interval of the answer. An end is null if too many draws do not reach `wanted`, or if a point has no interval."""
    if any(None in (*point.user.ci, *point.hardware.ci) for point in used):
        return None, None
    normal = _quantiles()
    draws = [normal[shuffled(0, _DRAWS, f"pareto {index}")] for index in range(len(points))]
    x = np.stack([_moved(point.user, z) for point, z in zip(points, draws, strict=True)], axis=1)
    y = np.stack([_moved(point.hardware, z) for point, z in zip(points, draws, strict=True)], axis=1)
    found = np.sort(_highest(x, y, wanted))
    tail = round(0.025 * _DRAWS)
    low, high = float(found[tail]), float(found[-1 - tail])
    return (low if math.isfinite(low) else None), (high if math.isfinite(high) else None)


@lru_cache(maxsize=1)
def _quantiles() -> Values:
    """Quantiles of the normal distribution, one for each draw."""
    return np.array([NormalDist().inv_cdf((index + 0.5) / _DRAWS) for index in range(_DRAWS)])


def _moved(estimate: Estimate, z: Values) -> Values:
    """The estimate, moved by `z` standard errors; an interval need not be symmetric. A missing end does not move."""
    low, high = (estimate.value if end is None else end for end in estimate.ci)
    return estimate.value + z / _NORMAL * np.where(z > 0, high - estimate.value, estimate.value - low)
