"""By how much could the client have changed a figure that is printed?

A check of the client's health compares each printed percentile with the one that remains when the suspect is corrected or left
out. A change of at most limits.effect_least (seconds) or limits.effect_pass (share) passes, a change of at most
limits.effect_fail is a warning, and more than that fails.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.checks.evidence import Check, Evidence, StageEvidence
from inferometer.analysis.metrics import METRICS
from inferometer.analysis.percentiles import PERCENTILES, Distribution, Values, needed, rank, select
from inferometer.config.schema import Limits
from inferometer.records import Columns
from inferometer.units import NS, format_seconds

PRINTED = ("p50", "p90", "p95", "p99")
"""The percentiles that are checked, if there are enough values for them."""
Seconds = NDArray[np.float64]
Mask = NDArray[np.bool_]
Whole = NDArray[np.int64]


class Effect(NamedTuple):
    """How far one printed percentile may be off because of the client."""

    printed: float
    """In seconds, like `corrected`."""
    corrected: float
    percentile: str
    metric: str
    stage: StageEvidence

    @property
    def seconds(self) -> float:
        return abs(self.printed - self.corrected)

    @property
    def share(self) -> float:
        """The error relative to the corrected value."""
        if not self.seconds:
            return 0.0
        return self.seconds / self.corrected if self.corrected > 0 else math.inf

    @property
    def figure(self) -> str:
        return f"{self.percentile} of {self.metric}{self.stage.label}"

    def __str__(self) -> str:
        measured = f"the {self.figure} is {format_seconds(self.printed)}"
        off = f" ({self.share:.1%} off)" if math.isfinite(self.share) else ""
        return f"{measured}, and would be {format_seconds(max(self.corrected, 0.0))} without that{off}"

    def status(self, limits: Limits) -> Literal["pass", "warn", "fail"]:
        if self.seconds <= limits.effect_least or self.share <= limits.effect_pass:
            return "pass"
        return "warn" if self.share <= limits.effect_fail else "fail"


def judge_effects(
    name: str, effects: Sequence[Effect], limits: Limits, cause: str, remedy: str, is_lateness: bool = False
) -> Check | None:
    """A warning or a failure for the largest effect that matters; None if none does. `is_lateness`: the true values are on the side
    of the corrected ones, because the client was late.

    The message is `cause`, what it does to the worst figure, and `remedy`.
    """
    matter = [(effect, status) for effect in effects if (status := effect.status(limits)) != "pass"]
    if not matter:
        return None
    failing = [effect for effect, status in matter if status == "fail"]
    worst = max(failing or [effect for effect, _ in matter], key=lambda effect: effect.share)
    limit = limits.effect_fail if failing else limits.effect_pass
    stages = tuple(sorted({effect.stage.stage for effect in failing or [effect for effect, _ in matter]}))
    message = f"{cause}: {worst}. {remedy}"
    overstates = is_lateness and bool(failing) and all(effect.corrected <= effect.printed for effect in failing)
    return Check(name, "fail" if failing else "warn", worst.share, limit, message, ("latency",), stages, overstates)


def checked(measured: Distribution) -> dict[str, float]:
    """The percentiles to check, with their values: those with enough values that failures do not make infinite.

    The number of values counts, not how much they say (their effective number). A client that was late for a while makes
    values depend on each other, and would otherwise hide what it did.
    """
    values = {name: measured.value(name) for name in PRINTED if measured.count >= needed(PERCENTILES[name])}
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def compare(stage: StageEvidence, metric: str, values: Seconds, corrected: Seconds) -> list[Effect]:
    """Effects on one metric, from its values as measured and with the client's part subtracted. NaN: not known."""
    names = checked(stage.metrics[metric])
    infinite = stage.metrics[metric].infinite
    with_it, without = (percentiles(some, names, infinite) for some in (values, corrected))
    return [Effect(with_it[name], without[name], name, metric, stage) for name in names]


def compare_doubtful(
    stage: StageEvidence, metric: str, values: Seconds, error: Seconds, signs: Sequence[int] = (-1, 1)
) -> list[Effect]:
    """Effects on one metric whose values are each known to within an `error`; 0: correct. `signs`: the true values may be
    lower (-1) or higher (1).

    The values in doubt are left out. That may change a percentile by more than the client can have done, because few values
    remain, or because the server was slow at the same time. So the largest possible error of each value is a bound. If too
    few values remain, only the bound is left.
    """
    printed = checked(stage.metrics[metric])
    doubtful = error > 0
    if not printed or not doubtful.any():
        return []
    infinite = stage.metrics[metric].infinite
    bounds = [
        percentiles(values, printed, infinite),
        *(percentiles(values + s * error, printed, infinite) for s in signs),
    ]
    left = values[~doubtful]
    remaining = int(np.count_nonzero(~np.isnan(left))) + infinite
    left_out = percentiles(left, [name for name in printed if remaining >= needed(PERCENTILES[name])], infinite)
    effects = []
    for name in printed:
        measured, *possible = (bound[name] for bound in bounds)
        low, high = min(measured, *possible), max(measured, *possible)
        if name in left_out:
            corrected = min(max(left_out[name], low), high)
        else:
            corrected = max(possible, key=lambda value: abs(value - measured))
        effects.append(Effect(measured, corrected, name, metric, stage))
    return effects


def percentiles(values: Seconds, names: Iterable[str], infinite: int = 0) -> dict[str, float]:
    """Percentiles of the known values and `infinite` more that are +inf; +inf if no value is known."""
    known = values[~np.isnan(values)]
    ranks = {name: rank(PERCENTILES[name], len(known) + infinite) - 1 for name in names}
    select(known, sorted({index for index in ranks.values() if index < len(known)}))
    return {name: float(known[index]) if index < len(known) else math.inf for name, index in ranks.items()}


def percentiles_replacing(
    values: Values, suspects: Whole, replacements: Whole, names: Iterable[str]
) -> Mapping[str, float]:
    """Percentiles of gaps (ns, reordered) if `suspects`, which are some of them, were as many `replacements`; in seconds.

    Both are in ascending order. The percentile is a replacement, or one of the values that are at most `len(suspects)` ranks
    away from it in `values`.
    """
    count, most = len(values), len(suspects)
    targets = {name: rank(PERCENTILES[name], count) for name in names if count >= needed(PERCENTILES[name])}
    ends = {name: (max(at - 1 - most, 0), min(at - 1 + most, count - 1)) for name, at in targets.items()}
    select(values, sorted({index for pair in ends.values() for index in pair}))
    found = {}
    for name, (low, high) in ends.items():
        near = np.sort(values[low : high + 1].astype(np.int64))
        possible = np.sort(np.concatenate([near, replacements]))
        others = np.searchsorted(near, possible, "right") - np.searchsorted(suspects, possible, "right")
        below = low + others + np.searchsorted(replacements, possible, "right")
        found[name] = int(possible[int(np.argmax(below >= targets[name]))]) / NS
    return found


def values_of(metric: str, rows: Columns) -> Seconds | None:
    """The metric of each row; None if it is not computed from rows."""
    of = METRICS[metric].values
    return None if of is None else of(rows)


def successful(evidence: Evidence, stage: StageEvidence) -> Columns:
    """The stage's rows that latencies are computed from."""
    rows = evidence.run.records.rows
    good: Mask = stage.steady & (rows["failure"] == 0)
    return rows[good]
