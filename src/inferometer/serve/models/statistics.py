"""A model's statistics since it was loaded, counted as Triton does.

Per request: success or failure, and the time from arrival to end; for successful requests also the queue time and the
times of the execution it was part of (joining inputs, inferring, splitting outputs). Per batch size: its executions.
"""

from array import array
from typing import Any, Literal

import numpy as np

from inferometer.serve.kserve.messages import ModelStatistics
from inferometer.serve.models.types import Compute, Inference
from inferometer.serve.prometheus import Histogram
from inferometer.timing.clock import wall_offset

Reason = Literal["REJECTED", "CANCELED", "BACKEND", "OTHER"]

_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60,
)  # fmt: skip
_FOLDED = 6 * 1024


class Statistics:
    """Counters and latency histograms of one model."""

    def __init__(self) -> None:
        self.success = self.success_ns = self.failure_ns = self.queue_ns = self.rows = self.executions = 0
        self.failures: dict[Reason, int] = {"REJECTED": 0, "CANCELED": 0, "BACKEND": 0, "OTHER": 0}
        self.compute_ns = [0, 0, 0]
        """Joining, inferring, splitting; for successful requests."""
        self.last = 0
        """When the last execution ended, in monotonic ns."""
        self.batches: dict[int, list[int]] = {}
        """Executions and the three compute times, by batch size."""
        self._recent: list[int] = []
        """Durations of requests that succeeded and are not counted yet: the request's, in the queue, on an instance, and
        the three compute times."""
        self.request, self.queue, self.compute = Histogram(_SECONDS), Histogram(_SECONDS), Histogram(_SECONDS)

    def executed(self, rows: int, compute_ns: Compute, ended: int) -> None:
        """Count an execution that the model completed."""
        self.executions += 1
        self.rows += rows
        self.last = ended
        batch = self.batches.get(rows) or self.batches.setdefault(rows, [0, 0, 0, 0])
        batch[0] += 1
        batch[1] += compute_ns[0]
        batch[2] += compute_ns[1]
        batch[3] += compute_ns[2]

    def succeeded(self, inference: Inference, compute_ns: Compute) -> None:
        finished, recent = inference.finished, self._recent
        recent += (finished - inference.arrived, inference.queue_ns, finished - inference.started, *compute_ns)
        if len(recent) >= _FOLDED:
            self.fold()

    def fold(self) -> None:
        """Count the requests that have succeeded since the last time. Counting many at once costs a third."""
        rows = np.frombuffer(array("q", self._recent), np.int64).reshape(-1, 6)
        whole, queued, _, *compute = rows.sum(axis=0).tolist()
        self.success += len(rows)
        self.success_ns += whole
        self.queue_ns += queued
        self.compute_ns = [before + more for before, more in zip(self.compute_ns, compute, strict=True)]
        for histogram, column in zip((self.request, self.queue, self.compute), rows.T, strict=False):
            histogram.observe_all(column)
        self._recent.clear()

    def failed(self, ns: int, reason: Reason) -> None:
        self.failure_ns += ns
        self.failures[reason] += 1

    def message(self, name: str, version: str) -> Any:
        last_ms = (self.last + wall_offset()) // 1_000_000 if self.executions else 0
        counts = {"last_inference": last_ms, "inference_count": self.rows, "execution_count": self.executions}
        made, times = ModelStatistics(name=name, version=version, **counts), ("input", "infer", "output")
        durations = {"success": self.success_ns, "queue": self.queue_ns}
        durations |= {f"compute_{part}": ns for part, ns in zip(times, self.compute_ns, strict=True)}
        pairs = {field: (self.success, ns) for field, ns in durations.items()}
        pairs |= {"fail": (sum(self.failures.values()), self.failure_ns), "cache_hit": (0, 0), "cache_miss": (0, 0)}
        for field, (count, ns) in pairs.items():
            duration = getattr(made.inference_stats, field)
            duration.count, duration.ns = count, ns
        for rows, (count, *compute) in sorted(self.batches.items()):
            batch = made.batch_stats.add(batch_size=rows)
            for part, ns in zip(times, compute, strict=True):
                duration = getattr(batch, f"compute_{part}")
                duration.count, duration.ns = count, ns
        return made
