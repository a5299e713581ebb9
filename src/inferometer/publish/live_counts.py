"""Running totals of a run in progress, from its spool: requests, failures, tokens and latency histograms by stage and traffic class.

The parent reads the rows of the requests that have ended (new_rows.py) and the shards' control numbers. Metrics are those of
analysis/metrics.py, but every request counts here, also those of the warm-up.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.analysis.metrics import METRICS
from inferometer.publish.new_rows import NewRows, Rows
from inferometer.records import MISSING, Columns
from inferometer.store.spool import Control, latest_sample
from inferometer.units import NS

_STEPS = [float(f"{step}e{power}") for power in range(-5, 3) for step in (1, 1.6, 2.5, 4, 6.3)]
BOUNDS = (*(step for step in _STEPS if step < 600), 600.0)
"""Upper bounds of the buckets of all histograms, in seconds: five per decade, from 10 us to 10 minutes. That fits tensor servers
that respond in 100 us as well as reasoning models that take minutes."""

HISTOGRAMS = ("ttft", "e2e", "tpot", "client_lag")
"""The metrics of analysis/metrics.py that have a histogram."""

_TIMES = ("intended", "sent", "first_token", "last_token", "done")
_OTHERS = ("held", "open_loop", "chunk_count", "counted_by", "n_out", "streamed_tokens", "first_tokens", "failure")
"""The columns that these metrics are computed from."""


CodeOf = Callable[[int], str]
"""Returns the code that a number in the column `failure` stands for."""


class Labels(NamedTuple):
    stage: str
    traffic_class: str
    """Empty if the run has no traffic classes."""


class Histogram(NamedTuple):
    counts: tuple[int, ...]
    """Number of values in each bucket of BOUNDS, and last those beyond; not cumulative."""
    sum: float
    """Seconds."""


class Totals(msgspec.Struct, frozen=True):
    """What has been counted for one stage and traffic class since the start. None of the numbers ever falls."""

    completed: int
    """Requests that succeeded."""
    failures: Mapping[str, int]
    """Requests that failed, by code. `dropped` ones were not sent."""
    input_tokens: int
    output_tokens: int
    """Of the requests that succeeded, as far as they are known. If the client counts them, it does so after the run."""
    histograms: Mapping[str, Histogram]
    """By the names of HISTOGRAMS."""


class Progress(msgspec.Struct, frozen=True):
    """The state of the run now, by the numbers that the shards publish about every 10 ms."""

    sent: int
    """Requests sent so far; unlike the totals, it includes those in flight."""
    in_flight: int
    queued: int
    """Requests that are due and wait to be sent: for the concurrency cap, or for a connection."""
    stage: int
    """Index of the stage that the slowest shard is in, or was in when it died."""
    reached: int
    """The latest stage behind a barrier or a pause at which a shard waits, after all its earlier requests have been sent; 0: none."""
    elapsed: float
    """Seconds since t=0; it stops when the last shard has ended."""
    cpu: Mapping[int, float]
    """CPU time of each client process as a share of one core, in its latest sample."""


class LiveCounts:
    """Counts what a run's shards have recorded. The shards need not have started yet. Methods may be called in any thread."""

    def __init__(self, spool: Path, shards: int, stages: Sequence[str], classes: Sequence[str] = ()) -> None:
        self._spool, self._shards = spool, shards
        self._stages, self._classes = stages, classes
        self._lock = threading.Lock()
        self._rows = NewRows(spool, shards)
        self._sums = _Sums(len(stages), len(classes))
        self._recounted = 0

    def update(self) -> None:
        """Count the requests that ended since the last call."""
        with self._lock:
            recounted = sum(control["recounted"] for control in self._controls())
            if (
                recounted != self._recounted
            ):  # tokens were counted after the run, in rows that have been read: start again
                self._recounted = recounted
                self._rows = NewRows(self._spool, self._shards)
                sums = _Sums(len(self._stages), len(self._classes))
            else:
                sums = self._sums
            for shard, rows in self._rows.pieces():
                sums.add(rows, partial(self._code, shard))
            self._sums = sums

    def totals(self) -> dict[Labels, Totals]:
        """Return the totals of every stage and class, up to the current stage. Those of a stage begin with 0 when it begins."""
        current = self.stage
        with self._lock:
            numbers = self._sums.with_rows() | {
                self._sums.group(stage, number) for stage in range(current + 1) for number in self._class_numbers()
            }
            return {self._labels(group): self._sums.totals(group) for group in sorted(numbers)}

    @property
    def stage(self) -> int:
        """Index of the stage that the slowest shard is in, or was in when it died."""
        return min((control["stage"] for control in self._controls()), default=0)

    @property
    def elapsed(self) -> float:
        """Seconds since t=0, by each shard's own clock; it stops when the last shard has ended."""
        elapsed = (control["heartbeat"] - control["t0"] for control in self._controls() if control["t0"])
        return max([*elapsed, 0]) / NS

    def progress(self) -> Progress:
        """Return the state of the run now."""
        controls = self._controls()
        samples = {shard: latest_sample(self._spool, shard) for shard in range(self._shards)}
        return Progress(
            sent=sum(control["sent"] for control in controls),
            in_flight=sum(control["in_flight"] for control in controls),
            queued=sum(control["queued"] for control in controls),
            stage=self.stage,
            reached=max((control["reached"] for control in controls), default=0),
            elapsed=self.elapsed,
            cpu={shard: sample.cpu for shard, sample in samples.items() if sample is not None},
        )

    def _code(self, shard: int, number: int) -> str:
        return self._rows.failure(shard, number).code

    def _controls(self) -> list[Control]:
        controls = [self._rows.control(shard) for shard in range(self._shards)]
        return [control for control in controls if control is not None]

    def _class_numbers(self) -> Sequence[int]:
        return range(len(self._classes)) if self._classes else (-1,)

    def _labels(self, group: int) -> Labels:
        stage, number = self._sums.parts(group)
        return Labels(self._stages[stage], self._classes[number] if number >= 0 else "")


class _Sums:
    """Sums by group: a group is a stage and a traffic class (-1: none)."""

    def __init__(self, stages: int, classes: int) -> None:
        self._width = classes + 1
        self._groups = groups = stages * self._width
        self._completed = np.zeros(groups, np.int64)
        self._tokens = {name: np.zeros(groups, np.int64) for name in ("n_in", "n_out")}
        self._failures: Counter[tuple[int, str]] = Counter()
        self._counts = {name: np.zeros((groups, len(BOUNDS) + 1), np.int64) for name in HISTOGRAMS}
        self._seconds = {name: np.zeros(groups) for name in HISTOGRAMS}

    def group(self, stage: int, number: int) -> int:
        return stage * self._width + number + 1

    def parts(self, group: int) -> tuple[int, int]:
        stage, number = divmod(group, self._width)
        return stage, number - 1

    def with_rows(self) -> set[int]:
        """Return the groups of which requests have ended."""
        return set(np.flatnonzero(self._completed).tolist()) | {group for group, _ in self._failures}

    def add(self, rows: Rows, code_of: CodeOf) -> None:
        groups = rows["stage"].astype(np.int64) * self._width + rows["class"] + 1
        failure = rows["failure"]
        good = failure == 0
        self._completed += np.bincount(groups[good], minlength=self._groups)
        for name in self._tokens:
            self._tokens[name] += self._sum(groups[good], np.maximum(rows[name][good], 0)).astype(np.int64)
        self._add_failures(groups[~good], failure[~good], code_of)
        self._add_histograms(groups, _columns(rows), good)

    def totals(self, group: int) -> Totals:
        return Totals(
            completed=int(self._completed[group]),
            failures={code: count for (own, code), count in self._failures.items() if own == group},
            input_tokens=int(self._tokens["n_in"][group]),
            output_tokens=int(self._tokens["n_out"][group]),
            histograms={
                name: Histogram(tuple(self._counts[name][group].tolist()), float(self._seconds[name][group]))
                for name in HISTOGRAMS
            },
        )

    def _sum(self, groups: NDArray[np.int64], values: NDArray[Any]) -> NDArray[np.float64]:
        sums: NDArray[Any] = np.bincount(groups, values, minlength=self._groups)  # numpy's stub says integers
        return sums

    def _add_failures(self, groups: NDArray[np.int64], numbers: NDArray[np.int32], code_of: CodeOf) -> None:
        """Count by code. The loop is over distinct failures, not over rows."""
        pairs, counts = np.unique(groups << 32 | numbers, return_counts=True)
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            self._failures[pair >> 32, code_of(pair & 0xFFFFFFFF)] += count

    def _add_histograms(self, groups: NDArray[np.int64], rows: Columns, good: NDArray[np.bool_]) -> None:
        buckets = len(BOUNDS) + 1
        for name in HISTOGRAMS:
            metric = METRICS[name]
            assert metric.values is not None
            values = metric.values(rows)
            known = ~np.isnan(values)
            if metric.of == "ok":
                known &= good
            chosen, values = groups[known], values[known]
            cells = chosen * buckets + np.searchsorted(BOUNDS, values)
            self._counts[name] += np.bincount(cells, minlength=self._groups * buckets).reshape(-1, buckets)
            self._seconds[name] += self._sum(chosen, values)


def _columns(rows: Rows) -> Columns:
    """Return rows of the spool as metrics take them: an event that did not happen is 0 in the spool, and MISSING there."""
    times = {name: np.where(rows[name] == 0, MISSING, rows[name]) for name in _TIMES}
    return Columns(len(rows), times | {name: rows[name] for name in _OTHERS})
