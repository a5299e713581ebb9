"""What the checks look at (Evidence) and what they return (Check)."""

from collections import Counter
from collections.abc import Mapping
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.gaps import Gaps
from inferometer.analysis.merges import NONE, Merges
from inferometer.analysis.overload import Overload
from inferometer.analysis.percentiles import Distribution, Values
from inferometer.analysis.server_view import ServerView
from inferometer.analysis.throughput import Throughput
from inferometer.config.schema import Limits
from inferometer.records import Run


class Check(msgspec.Struct, frozen=True):
    """The result of one check. If it does not pass, the message says what is wrong and what to do next."""

    name: str
    status: Literal["pass", "warn", "fail"]
    value: float | None
    limit: float | None
    message: str
    affects: tuple[str, ...] = ("latency", "throughput")
    """The kinds of figures that must not be quoted if the check fails."""
    stages: tuple[int, ...] = ()
    """Indices of the stages that it is about; empty: the whole run."""
    overstates: bool = False
    """If it fails: whether it can only have made latencies too high, so that an objective that they meet is met."""


class FailureCount(msgspec.Struct, frozen=True):
    """One kind of failure: how often it occurred, and its most common message."""

    code: str
    count: int
    message: str


class StageEvidence(msgspec.Struct, frozen=True):
    """One stage of the run. A run with a single load has one."""

    stage: int
    label: str
    """` of stage 2 (50/s)`; empty if there is only one stage."""
    steady: NDArray[np.bool_]
    """Selects the stage's rows in the window."""
    metrics: Mapping[str, Distribution]
    gaps: Values
    """The gaps between chunks in the window, in ns."""
    throughput: Throughput
    overload: Overload


class Evidence(msgspec.Struct, frozen=True):
    run: Run
    limits: Limits
    steady: NDArray[np.bool_]
    """Selects the rows in the window."""
    gaps: Gaps
    stages: tuple[StageEvidence, ...]
    merges: Merges = NONE
    """Chunks that the client may have merged by reading late."""
    more_seconds: float | None = None
    """How much longer to run, so that the p99s are supported and the objectives decided; None if that is so, or it would not help."""
    server: ServerView | None = None
    """What the server's own metrics say; None if none were read."""

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
