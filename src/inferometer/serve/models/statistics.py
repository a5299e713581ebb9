"""A model's statistics since it was loaded, counted as Triton does, for its statistics message and /metrics.

Per request: success or failure, and the time from arrival to end; for successful requests also the queue time and the
times of the execution it was part of (joining inputs, inferring, splitting outputs). Per batch size: its executions.
"""

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from inferometer import __version__
from inferometer.serve import prometheus
from inferometer.serve.kserve.messages import ModelStatistics
from inferometer.serve.models.types import Code, Compute, Inference
from inferometer.serve.prometheus import Histogram
from inferometer.timing.clock import wall_offset

if TYPE_CHECKING:
    from inferometer.serve.models.registry import Models

_REASONS: dict[Code, str] = {
    "CANCELLED": "CANCELED", "DEADLINE_EXCEEDED": "REJECTED", "RESOURCE_EXHAUSTED": "REJECTED", "INTERNAL": "BACKEND",
}  # fmt: skip
"""Triton's names for why requests failed; "OTHER" for the rest."""
_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60,
)  # fmt: skip
_FOLDED = 6 * 1024


class Statistics:
    """Counters and latency histograms of one model."""

    def __init__(self, model: str, version: str) -> None:
        self.labels = {"model": model, "version": version}
        self.success = self.success_ns = self.failure_ns = self.queue_ns = self.rows = self.executions = 0
        self.failures = {"REJECTED": 0, "CANCELED": 0, "BACKEND": 0, "OTHER": 0}
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

    def failed(self, ns: int, code: Code) -> None:
        self.failure_ns += ns
        self.failures[_REASONS.get(code, "OTHER")] += 1

    def message(self) -> Any:
        def compute(count: int, ns: list[int]) -> dict[str, Any]:
            parts = zip(("input", "infer", "output"), ns, strict=True)
            return {f"compute_{part}": {"count": count, "ns": each} for part, each in parts}

        self.fold()
        failures, last_ms = sum(self.failures.values()), (self.last + wall_offset()) // 1_000_000
        pairs = {"success": (self.success, self.success_ns), "fail": (failures, self.failure_ns)}
        pairs |= {"queue": (self.success, self.queue_ns), "cache_hit": (0, 0), "cache_miss": (0, 0)}
        stats = {field: {"count": count, "ns": ns} for field, (count, ns) in pairs.items()}
        batches = [{"batch_size": rows, **compute(count, ns)} for rows, (count, *ns) in sorted(self.batches.items())]
        return ModelStatistics(
            name=self.labels["model"], version=self.labels["version"], last_inference=last_ms if self.executions else 0,
            inference_count=self.rows, execution_count=self.executions, batch_stats=batches,
            inference_stats=stats | compute(self.success, self.compute_ns),
        )  # fmt: skip


# --- /metrics --------------------------------------------------------------------------------------------------------

_CACHED, _NOT_CACHED = "in microseconds (includes cached requests)", "(does not include cached requests)"
_MODEL: dict[str, tuple[str, str, Callable[[Statistics], Any]]] = {
    "request_success": ("counter", "Number of successful inference requests, all batch sizes", lambda of: of.success),
    "count": ("counter", f"Number of inferences performed {_NOT_CACHED}", lambda of: of.rows),
    "exec_count": ("counter", f"Number of model executions performed {_NOT_CACHED}", lambda of: of.executions),
    "request_duration_us": ("counter", f"Cumulative inference request duration {_CACHED}", lambda of: of.success_ns // 1000),
    "queue_duration_us": ("counter", f"Cumulative inference queuing duration {_CACHED}", lambda of: of.queue_ns // 1000),
    "compute_input_duration_us": ("counter", f"Cumulative compute input duration in microseconds {_NOT_CACHED}", lambda of: of.compute_ns[0] // 1000),
    "compute_infer_duration_us": ("counter", f"Cumulative compute inference duration in microseconds {_NOT_CACHED}", lambda of: of.compute_ns[1] // 1000),
    "compute_output_duration_us": ("counter", f"Cumulative inference compute output duration in microseconds {_NOT_CACHED}", lambda of: of.compute_ns[2] // 1000),
    "request_latency_seconds": ("histogram", "Latency of successful requests, from arrival to the last response", lambda of: of.request),
    "queue_latency_seconds": ("histogram", "Time that successful requests spent in the queue", lambda of: of.queue),
    "compute_latency_seconds": ("histogram", "Time that successful requests spent on a model instance", lambda of: of.compute),
}  # fmt: skip
"""Kind, description and value of the metrics of a model, by name after nv_inference_."""


def page(models: "Models", started: float) -> bytes:
    """Return the page. `started` is when the server was started, in seconds since 1970."""
    served = [model for name in models.names() if not (model := models.find(name)).is_remote]
    counted = [model.counted for model in served]
    for one in counted:
        one.fold()
    reasons = [({**one.labels, "reason": why}, count) for one in counted for why, count in one.failures.items()]
    memory, pending = psutil.virtual_memory(), [(model.counted.labels, model.pending) for model in served]
    families: list[prometheus.Family] = [
        *(
            (f"nv_inference_{name}", kind, text, [(one.labels, value(one)) for one in counted])
            for name, (kind, text, value) in _MODEL.items()
        ),
        ("nv_inference_request_failure", "counter", "Number of failed inference requests, all batch sizes", reasons),
        ("nv_inference_pending_request_count", "gauge", "Instantaneous number of pending requests awaiting execution per-model.", pending),
        ("nv_cpu_utilization", "gauge", "CPU utilization rate [0.0 - 1.0]", [({}, psutil.cpu_percent() / 100)]),
        ("nv_cpu_memory_total_bytes", "gauge", "CPU total memory (RAM), in bytes", [({}, memory.total)]),
        ("nv_cpu_memory_used_bytes", "gauge", "CPU used memory (RAM), in bytes", [({}, memory.used)]),
        ("process_start_time_seconds", "gauge", "Start time of the server since unix epoch in seconds.", [({}, started)]),
        # The other names are those of vLLM and Triton: only this one tells that it is neither.
        ("inferometer_serve_info", "gauge", "Version of inferometer serve.", [({"version": __version__}, 1)]),
    ]  # fmt: skip
    return prometheus.page(families)
