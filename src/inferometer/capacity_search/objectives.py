"""What must hold in a capacity search, and how far a result is from that."""

import math

import msgspec

from inferometer.analysis.binomial import TAIL
from inferometer.analysis.metrics import METRICS
from inferometer.analysis.percentiles import PERCENTILES
from inferometer.analysis.slo_expression import Condition, Slo
from inferometer.analysis.slo_result import SloResult

_FROM_START = ("ttft", "ttft_service", "ttft_content", "tpot", "tps_user")
"""Metrics that a response in progress has."""


class ClassObjectives(msgspec.Struct, frozen=True):
    """The objectives of a traffic class, which are judged by its requests alone."""

    index: int
    """Its number in the column `class` of the rows."""
    name: str
    objectives: tuple[Slo, ...]


class Objectives(msgspec.Struct, frozen=True):
    """What must hold: for all requests, and for those of each traffic class."""

    common: tuple[Slo, ...]
    classes: tuple[ClassObjectives, ...] = ()

    @property
    def every(self) -> list[Slo]:
        return [*self.common, *(one for each in self.classes for one in each.objectives)]

    @property
    def names(self) -> list[str]:
        """What results call them."""
        return [*map(str, self.common), *(f"{each.name}: {one}" for each in self.classes for one in each.objectives)]

    @property
    def parts(self) -> list[ClassObjectives]:
        return [ClassObjectives(-1, "", self.common), *self.classes]

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What single requests must meet."""
        return tuple(condition for one in self.every for condition in (one.per_request() or ()))

    @property
    def allowed(self) -> float:
        """The smallest share of requests that may violate an objective."""
        shares = [
            (1000 - PERCENTILES[one.statistic]) / 1000 for one in self.every if one.kind == "metric" and is_counted(one)
        ]
        shares += [one.threshold.value for one in self.every if one.kind == "failure_rate"]
        shares += [1 - one.threshold.value for one in self.every if one.kind == "goodput" and one.is_share]
        return min((share for share in shares if 0 < share < 1), default=0.1)

    @property
    def needed(self) -> float:
        """How many independent requests, none of which violates anything, show that all objectives hold."""
        return math.log(TAIL) / math.log(1 - self.allowed)

    @property
    def patience(self) -> float:
        """The largest limit on how long a request may wait, in seconds; 0 if there is none."""
        return max((one.threshold.value for one in self.conditions if METRICS[one.metric].can_fail), default=0.0)

    @property
    def needs_ends(self) -> bool:
        """Whether a response in progress says too little."""
        return any(one.metric not in _FROM_START for one in self.conditions) or not self.conditions

    def slack(self, unloaded: dict[str, float]) -> float:
        """Seconds that a request may wait beyond what it takes without load, by the tightest limit; inf if no limit is about waiting."""
        limits = [(one.metric, one.threshold.value) for one in self.conditions if METRICS[one.metric].can_fail]
        limits += [
            (one.name, one.threshold.value)
            for one in self.every
            if one.statistic == "mean" and one.kind == "metric" and METRICS[one.name].can_fail
        ]
        return min((max(limit - unloaded.get(name, 0.0), 0.1 * limit) for name, limit in limits), default=math.inf)


def excess(result: SloResult) -> float | None:
    """How far an objective is from its limit: the share of requests that violate it / the share that may; or value / limit."""
    if result.violations is not None and result.allowed:
        return result.violations / result.allowed
    if not result.value or not result.limit:
        return None
    return result.value / result.limit if "<" in result.expression else result.limit / result.value


def is_counted(one: Slo) -> bool:
    """Whether an objective is judged by counting requests. Others are judged only when the probe is complete."""
    return one.kind in ("failure_rate", "goodput") or (
        one.kind == "metric" and one.statistic != "mean" and METRICS[one.name].values is not None
    )
