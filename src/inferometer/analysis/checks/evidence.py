"""What the checks look at (Evidence) and what they return (Check)."""

from collections import Counter
from collections.abc import Mapping
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.gaps import Gaps
from inferometer.analysis.percentiles import Distribution
from inferometer.config.schema import Limits
from inferometer.records import Run


class Check(msgspec.Struct, frozen=True):
    """The result of one check. If it does not pass, the message says what is wrong and what to do next."""

    name: str
    status: Literal["pass", "warn", "fail"]
    value: float | None
    limit: float | None
    message: str


class FailureCount(msgspec.Struct, frozen=True):
    """One kind of failure: how often it occurred, and its most common message."""

    code: str
    count: int
    message: str


class Evidence(msgspec.Struct, frozen=True):
    run: Run
    limits: Limits
    steady: NDArray[np.bool_]
    """Selects the rows in the window."""
    metrics: Mapping[str, Distribution]
    """Statistics of the window."""
    gaps: Gaps

    @property
    def stamps(self) -> object:
        return self.run.manifest.clock.get("stamps")


def judge(name: str, value: float, limit: float, good: str, bad: str) -> Check:
    """Pass if the value is at most the limit, fail if it is above."""
    passed = value <= limit
    return Check(name, "pass" if passed else "fail", value, float(limit), good if passed else bad)


def count_failures(run: Run, mask: NDArray[np.bool_]) -> list[FailureCount]:
    """Failures among the rows of `mask`, the most common first."""
    failures = run.records.failures
    if not failures:
        return []
    numbers = np.bincount(run.records.rows["failure"][mask], minlength=len(failures) + 1)[1:].tolist()
    kinds: dict[str, Counter[str]] = {}
    for failure, count in zip(failures, numbers, strict=True):
        if count:  # each shard may have its own entry with the same code and message
            kinds.setdefault(failure.code, Counter())[failure.message] += count
    table = [
        FailureCount(code, messages.total(), min(messages, key=lambda message: (-messages[message], message)))
        for code, messages in kinds.items()
    ]
    return sorted(table, key=lambda kind: (-kind.count, kind.code))
