"""How an objective was judged: the result, what it means for a run, and the words that all results share."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np

from inferometer.analysis.slo_expression import Slo, holds
from inferometer.units import format_number, format_seconds

Status = Literal["met", "missed", "undecided"]
By = Literal["", "count", "margin", "interval"]
Bounds = tuple[float | None, float | None]
_WORST: tuple[Status, ...] = ("missed", "undecided", "met")


class SloResult(msgspec.Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    """How one objective was judged."""

    slo: str
    """The expression; that of a traffic class begins with its name and a colon."""
    status: Status
    by: By = ""
    """What decided: the number of violations (`count`), the distance from the limit (`margin`) or the confidence interval
    (`interval`). Empty if it is undecided, or missed because the stage was overloaded."""
    within: bool | None = None
    """Whether the measured value is within the limit, which is what an undecided objective counts as; null without a value."""
    reason: str
    """What was observed, in a sentence."""
    value: float | None = None
    """What was measured: in seconds, per second, or a share."""
    limit: float
    ci: Bounds | None = None
    """Confidence interval of the value. One for a share has 95 % on each side."""
    violations: float | None = None
    """Share of the requests that violate the limit, for objectives about single requests."""
    allowed: float | None = None
    """Share of the requests that may violate it."""
    more_seconds: float | None = None
    """Undecided: about how much longer to run. In a summary, that is the time after which all such objectives are decided, and the p99s
    are supported. None if no run of a reasonable length would decide."""
    stages: tuple[int, ...] = ()
    """Of a run with several stages: indices of the stages with this status, the worst of all."""
    class_: str = ""
    """The traffic class whose requests were judged; empty: all requests were."""

    @property
    def expression(self) -> str:
        """The expression alone."""
        return self.slo.removeprefix(f"{self.class_}: ")


def together(stages: Sequence[tuple[int, tuple[SloResult, ...]]]) -> tuple[SloResult, ...]:
    """The objectives of a run with several stages: each as in the stage where it did worst, the first if several did."""
    combined = []
    for results in zip(*(results for _, results in stages), strict=True):
        worst = next(status for status in _WORST if any(result.status == status for result in results))
        where = [(number, one) for (number, _), one in zip(stages, results, strict=True) if one.status == worst]
        worst_one = min((one for _, one in where), key=lambda one: (bool(one.within), one.by != "margin"))
        more = [one.more_seconds for _, one in where if one.more_seconds is not None]
        combined.append(
            msgspec.structs.replace(
                worst_one,
                stages=tuple(number for number, _ in where),
                more_seconds=max(more) if len(more) == len(where) else None,
            )
        )
    return tuple(combined)


def is_passed(results: Iterable[SloResult], strict: bool = False) -> bool:
    """Whether no objective fails a run: one that is undecided counts as its measured value says.

    With `strict`, everything has to be shown by counting or by an interval: undecided objectives fail it, and so do those that are
    met by margin only."""
    return all(_passes(result, strict) for result in results)


def _passes(result: SloResult, strict: bool) -> bool:
    if result.status == "undecided":
        return not strict and bool(result.within)
    return result.status == "met" and not (strict and result.by == "margin")


# --- words -----------------------------------------------------------------------------------------------------------


def result(slo: Slo, status: Status, reason: str) -> SloResult:
    return SloResult(slo=str(slo), status=status, reason=reason, limit=slo.threshold.value)


def is_held(slo: Slo, value: float) -> bool:
    return bool(holds(np.array([value]), slo.sign, slo.threshold.value)[0])


def projected(more: float) -> float:
    """Two significant digits, rounded up, at least one second: it is a projection."""
    if more <= 1:
        return 1.0
    step = 10.0 ** (math.floor(math.log10(more)) - 1)
    return float(f"{math.ceil(more / step) * step:.2g}")


def longer_text(more: float | None) -> str:
    return "" if more is None else f"; run about {format_seconds(more)} longer"


def with_time(results: Iterable[SloResult], more: float | None) -> tuple[SloResult, ...]:
    """The results, in which every objective that a longer run would decide says `more`: what all of the report needs."""
    return tuple(
        one
        if one.more_seconds is None or more is None
        else msgspec.structs.replace(one, more_seconds=more, reason=f"{one.reason}{longer_text(more)}")
        for one in results
    )


def is_within(slo: Slo, value: float | None) -> bool | None:
    return None if value is None else is_held(slo, value)


def within_text(slo: Slo, value: float | None, limit: str = "it") -> str:
    if value is None:
        return ""
    return f": {slo.amount(value)} is {'within' if is_held(slo, value) else 'beyond'} {limit}"


def percent(share: float) -> str:
    return f"{format_number(100 * share, 3)}%"
