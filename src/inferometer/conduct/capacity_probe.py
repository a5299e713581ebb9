"""One probe of a capacity search: watched while it runs, and what is recorded of it afterwards."""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.summary import Summary
from inferometer.capacity_search.judgement import Look
from inferometer.capacity_search.probe_verdict import ProbeTest
from inferometer.capacity_search.result import Latency, Probe
from inferometer.capacity_search.trials import Trial
from inferometer.records import CANCELLED, LOST, MISSING, ROW, TIMES, Run, Snapshot

_LATENCIES = ("ttft", "itl", "tpot", "e2e", "queue", "compute", "protocol", "network")
"""Those that a probe's record has, if the endpoint has them."""
_SEEN = 0.5
"""Seconds after the last request was sent until the requests in flight are known."""


class Watch:
    """Looks at a probe while it runs, and ends it when a look decides, or when the rest of its responses need not be waited for.

    `until` is the latest end, in seconds since the start: what is left of the budget."""

    def __init__(
        self,
        test: ProbeTest,
        longest: float,
        progress: Callable[[Snapshot, Look | None], None] = lambda snapshot, look: None,
        until: float = math.inf,
    ) -> None:
        self.test, self._longest, self._progress, self._until = test, longest, progress, until
        self._rows: list[np.ndarray[tuple[int], np.dtype[np.void]]] = []
        self._last: Look | None = None
        self.ended_at: float | None = None
        """When the last request was sent, in seconds since the start."""
        self.has_stopped = False

    def __call__(self, snapshot: Snapshot) -> Literal["", "end", "stop"]:
        self._progress(snapshot, self._last)
        if not snapshot.started or snapshot.stopping:
            return ""
        self._rows.append(_since_start(snapshot))
        if self.ended_at is None and snapshot.elapsed >= self._longest:
            self.ended_at = self._longest
        if self.ended_at is not None:
            end = min(self.ended_at + self.test.patience, max(self._until, self.ended_at))
            may_stop = snapshot.elapsed >= self.ended_at + _SEEN and self.test.has_seen_enough(snapshot.ages())
            self.has_stopped = snapshot.elapsed >= end or may_stop
            return "stop" if self.has_stopped else ""
        if self._is_decided(snapshot):
            self.ended_at = snapshot.elapsed
            return "end"
        return ""

    def _is_decided(self, snapshot: Snapshot) -> bool:
        if not self.test.is_due(snapshot.elapsed):
            return False
        rows = np.concatenate(self._rows)
        self._rows = [rows]
        self._last = self.test.look(rows, snapshot.sent + snapshot.queued, snapshot.elapsed)
        return self.test.decision is not None


def _since_start(snapshot: Snapshot) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """The rows that are new, with times since t=0."""
    rows = snapshot.rows().copy()
    for name in TIMES:
        rows[name] = np.where(rows[name] == 0, MISSING, rows[name] - snapshot.t0)
    return rows.astype(ROW, copy=False)


def record(trial: Trial, found: Look, summary: Summary, run: Run) -> Probe:
    return Probe(
        level=trial.level,
        purpose=trial.purpose,
        status=trial.status,
        is_sure=trial.is_sure,
        is_warming=trial.is_warming,
        is_growing=trial.is_growing,
        seconds=trial.seconds,
        requests=found.requests,
        throughput=trial.rate,
        mean_e2e=found.mean_e2e,
        slos=found.results,
        overloaded=found.is_overloaded,
        folder=run.folder.name,
        failed=_failed(run),
        excess=trial.excess,
        violations=found.violations,
        output_tokens=summary.throughput.output_tokens,
        inferences=summary.throughput.inferences,
        latencies={
            name: _latency(summary.metrics[name])
            for name in _LATENCIES
            if name in summary.metrics and summary.metrics[name].count
        },
    )


def _failed(run: Run) -> int:
    """How many requests failed, without those that the client cancelled when it ended the probe."""
    own = [n for n, failure in enumerate(run.records.failures, 1) if failure.code in (CANCELLED, LOST)]
    failure = run.records.rows["failure"]
    return int(np.count_nonzero((failure != 0) & ~np.isin(failure, own)))


def _latency(found: Distribution) -> Latency:
    def finite(value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    return Latency(
        count=found.count,
        mean=found.mean,
        p50=finite(found.value("p50")),
        p90=finite(found.value("p90")),
        p99=finite(found.value("p99")),
        unsupported=tuple(name for name in ("p50", "p90", "p99") if name in found.unsupported),
    )
