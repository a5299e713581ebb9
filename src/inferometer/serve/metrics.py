"""/metrics of the models, with Triton's metric names and additional latency histograms."""

from collections.abc import Callable
from typing import Any

import psutil

from inferometer import __version__
from inferometer.serve import prometheus
from inferometer.serve.models.registry import Models
from inferometer.serve.models.statistics import Statistics

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


def page(models: Models, started: float) -> bytes:
    """Return the page. `started` is when the server was started, in seconds since 1970."""
    served = [model for name in models.names() if not (model := models.find(name)).is_remote]
    labels = {model: {"model": model.name, "version": model.version} for model in served}
    reasons = [({**labels[one], "reason": why}, count) for one in served for why, count in one.counted.failures.items()]
    memory, pending = psutil.virtual_memory(), [(labels[one], one.pending) for one in served]
    families: list[prometheus.Family] = [
        *(
            (f"nv_inference_{name}", kind, text, [(labels[one], value(one.counted)) for one in served])
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
