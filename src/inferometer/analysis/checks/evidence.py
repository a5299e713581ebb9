"""What the checks go by, and what they say."""

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
    """What one check found. The message of one that does not pass says what is wrong and what to do next."""

    name: str
    status: Literal["pass", "warn", "fail"]
    value: float | None
    limit: float | None
    message: str


class FailureCount(msgspec.Struct, frozen=True):
    """A kind of failure: how many there were, and the message that most of them had."""

    code: str
    count: int
    message: str


class Evidence(msgspec.Struct, frozen=True):
    run: Run
    limits: Limits
    steady: NDArray[np.bool_]
    """The rows of the window."""
    metrics: Mapping[str, Distribution]
    """Of the window."""
    gaps: Gaps

    @property
    def stamps(self) -> object:
        return self.run.manifest.clock.get("stamps")


def judge(name: str, value: float, limit: float, good: str, bad: str) -> Check:
    """Pass up to the limit, fail above it."""
    passed = value <= limit
    return Check(name, "pass" if passed else "fail", value, float(limit), good if passed else bad)


def count_failures(run: Run, mask: NDArray[np.bool_]) -> list[FailureCount]:
    """The failures among the rows of `mask`, the commonest first."""
    failures = run.records.failures
    if not failures:
        return []
    numbers = np.bincount(run.records.rows["failure"][mask], minlength=len(failures) + 1)[1:].tolist()
    kinds: dict[str, Counter[str]] = {}
    for failure, count in zip(failures, numbers, strict=True):
        if count:  # shards may each have one of the same code and message
            kinds.setdefault(failure.code, Counter())[failure.message] += count
    table = [
        FailureCount(code, found.total(), min(found, key=lambda message: (-found[message], message)))
        for code, found in kinds.items()
    ]
    return sorted(table, key=lambda kind: (-kind.count, kind.code))
