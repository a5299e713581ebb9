"""The requests of a stage by which its objectives are judged, how close each is to a limit, and how many independent ones they are."""

import math
from collections.abc import Iterable
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from inferometer.analysis import blocks, margin
from inferometer.analysis.blocks import BLOCKS, Proportion, proportion
from inferometer.analysis.checks.evidence import StageEvidence
from inferometer.analysis.metrics import METRICS
from inferometer.analysis.percentiles import PERCENTILES
from inferometer.analysis.slo_expression import Condition, Mask, Slo
from inferometer.records import CANCELLED, LOST, MISSING, Run
from inferometer.units import NS

_FAILURES_VIOLATE = ("tpot", "ntpot")
"""Latencies that a failed request violates any limit on, beside those in which it counts as infinitely slow."""
_RAISED = {count: (blocks.T[count - 2] / blocks.NORMAL) ** 2 for count in (BLOCKS, BLOCKS // 2)}
"""By how much a design effect is raised that comes from this number of blocks."""
_MORE_OFTEN = 3
"""The design effect is also estimated where this many times the allowed share of requests is beyond."""


class JudgedRequests:
    """The requests of a stage that count: those in its window that were not cancelled or lost by the client."""

    def __init__(self, run: Run, stage: StageEvidence) -> None:
        own = [n for n, failure in enumerate(run.records.failures, 1) if failure.code in (CANCELLED, LOST)]
        rows = run.records.rows
        self.rows = rows[stage.steady & ~np.isin(rows["failure"], own)] if own else rows[stage.steady]
        self.at: NDArray[np.int64] = self.rows["intended"]
        self.failed: Mask = self.rows["failure"] != 0
        self.stage = stage
        self.values = lru_cache(self._values)

    @cached_property
    def window(self) -> tuple[int, int]:
        return (int(self.at.min()), int(self.at.max()) + 1) if len(self.at) else (0, 1)

    @property
    def span(self) -> float:
        """Seconds from the first intended instant to the last."""
        start, end = self.window
        return (end - 1 - start) / NS

    @property
    def rate(self) -> float | None:
        """Requests intended per second."""
        return (len(self.at) - 1) / self.span if self.span else None

    def _values(self, metric: str) -> NDArray[np.float64]:
        """One value per request: inf for a failed one if that violates any limit, NaN if there is none."""
        compute = METRICS[metric].values
        assert compute is not None
        values = compute(self.rows)
        if METRICS[metric].of == "sent":
            return np.where(self.rows["sent"] == MISSING, np.nan, values)
        violates = METRICS[metric].can_fail or metric in _FAILURES_VIOLATE
        return np.where(self.failed, np.inf if violates else np.nan, values)

    def is_unknown(self, metric: str) -> bool:
        """Whether no request that succeeded has a value, although some succeeded."""
        return bool(np.isnan(self.values(metric)[~self.failed]).all() and not self.failed.all())

    def effect(self, metric: str) -> float:
        """The larger of the design effects of the metric's p90 and p99."""
        return self.stage.metrics[metric].design_effect.get("p99", 1.0)

    def share(self, hit: Mask, conditions: Iterable[Condition]) -> Proportion:
        """The share of requests that are `hit`, with a design effect that suits the conditions' metrics."""
        least = max((self.effect(condition.metric) for condition in conditions), default=1.0)
        return proportion(hit, self.at, *self.window, least)

    def closeness(self, slo: Slo) -> NDArray[np.float64]:
        """How close each request is to violating the objective (margin.py): inf for a failed one, 0 if there is no value.

        Nothing is far from a failure, so for a failure rate all others are as close as can be."""
        if slo.kind == "failure_rate":
            return np.where(self.failed, np.inf, 1.0)
        if slo.kind == "metric":
            return margin.closeness(self.values(slo.name), slo.sign, slo.threshold.value)
        near = np.where(self.failed, np.inf, 0.0)
        for each in slo.conditions:
            near = np.maximum(near, margin.closeness(self.values(each.metric), each.sign, each.threshold.value))
        return near

    def design_effects(self, bad: Mask, near: NDArray[np.float64], of: Mask, allowed: float) -> tuple[float, float]:
        """By how much fewer independent requests there are than `of` these: by their violations, and the largest estimate."""
        block = blocks.index(self.at[of], *self.window)
        count = len(block)
        hits = [bad[of]]
        if _MORE_OFTEN * allowed <= 0.5:
            rank = min(max(math.ceil(round((1 - _MORE_OFTEN * allowed) * count, 6)), 1), count)
            hits.append(near[of] > np.partition(near[of], rank - 1)[rank - 1])
        values = np.bincount(block, minlength=BLOCKS)
        found = []
        for hit in hits:
            above = np.bincount(block[hit], minlength=BLOCKS)
            for number, raised in _RAISED.items():
                counts = (each.reshape(number, -1).sum(1) for each in (above, values))
                found.append(blocks.design_effect(*counts) * raised)
        return found[0], max(found)


def allowed_share(counted: JudgedRequests, slo: Slo) -> float | None:
    """The share of requests that may violate the objective; negative if no share is small enough, None if not known."""
    if slo.kind == "metric":
        beyond = (1000 - PERCENTILES[slo.statistic]) / 1000
        return beyond if slo.sign[0] == "<" else 1 - beyond
    if slo.kind == "failure_rate":
        return slo.threshold.value
    if slo.is_share:
        return (100 - slo.threshold.number) / 100
    return None if counted.rate is None else 1 - slo.threshold.value / counted.rate
