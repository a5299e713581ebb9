"""/metrics of the models in Prometheus' text format, with Triton's metric names and additional latency histograms.

Written by hand instead of with prometheus_client, which would append `_total` to the counters' names; Triton's have no
suffix.
"""

from collections.abc import Callable, Iterable, Sequence

import psutil

from inferometer import __version__
from inferometer.serve.histogram import Histogram
from inferometer.serve.models.registry import Model, Models
from inferometer.serve.models.statistics import Statistics

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Samples = Iterable[tuple[dict[str, str], float]]

_COUNTERS: tuple[tuple[str, str, Callable[[Statistics], float]], ...] = (
    (
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes",
        lambda counted: counted.success,
    ),
    (
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        lambda counted: counted.rows,
    ),
    (
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        lambda counted: counted.executions,
    ),
    (
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda counted: counted.success_ns // 1000,
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        lambda counted: counted.queue_ns // 1000,
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda counted: counted.compute_ns[0] // 1000,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda counted: counted.compute_ns[1] // 1000,
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        lambda counted: counted.compute_ns[2] // 1000,
    ),
)
_HISTOGRAMS: tuple[tuple[str, str, Callable[[Statistics], Histogram]], ...] = (
    (
        "nv_inference_request_latency_seconds",
        "Latency of successful requests, from arrival to the last response",
        lambda counted: counted.request,
    ),
    (
        "nv_inference_queue_latency_seconds",
        "Time that successful requests spent in the queue",
        lambda counted: counted.queue,
    ),
    (
        "nv_inference_compute_latency_seconds",
        "Time that successful requests spent on a model instance",
        lambda counted: counted.compute,
    ),
)


def page(models: Models, started: float) -> bytes:
    """Return the page. `started` is when the server was started, in seconds since 1970."""
    served = [model for name in models.names() if not (model := models.find(name)).is_remote]
    lines: list[str] = []
    for name, text, value in _COUNTERS:
        lines += _family(name, text, "counter", ((_labels(model), value(model.counted)) for model in served))
    lines += _family(
        "nv_inference_request_failure",
        "Number of failed inference requests, all batch sizes",
        "counter",
        (
            ({"model": model.name, "reason": reason, "version": model.version}, count)
            for model in served
            for reason, count in model.counted.failures.items()
        ),
    )
    lines += _family(
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        "gauge",
        ((_labels(model), model.pending) for model in served),
    )
    for name, text, histogram in _HISTOGRAMS:
        lines += _histograms(name, text, [(_labels(model), histogram(model.counted)) for model in served])
    lines += _machine()
    lines += _family(
        "process_start_time_seconds", "Start time of the server since unix epoch in seconds.", "gauge", [({}, started)]
    )
    # the other names are those of vLLM and Triton: only this one tells that it is neither
    lines += _family(
        "inferometer_serve_info", "Version of inferometer serve.", "gauge", [({"version": __version__}, 1)]
    )
    return ("\n".join(lines) + "\n").encode()


def _machine() -> Iterable[str]:
    memory = psutil.virtual_memory()
    for name, text, value in (
        ("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", psutil.cpu_percent() / 100),
        ("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", memory.total),
        ("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", memory.used),
    ):
        yield from _family(name, text, "gauge", [({}, value)])


def _labels(model: Model) -> dict[str, str]:
    return {"model": model.name, "version": model.version}


def _family(name: str, text: str, kind: str, samples: Samples) -> Iterable[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        yield f"{name}{_written(labels)} {value}"


def _histograms(name: str, text: str, found: Sequence[tuple[dict[str, str], Histogram]]) -> Iterable[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} histogram"
    for labels, histogram in found:
        count = 0
        for bound, count in histogram.buckets():
            yield f"{name}_bucket{_written({**labels, 'le': bound})} {count}"
        yield f"{name}_sum{_written(labels)} {histogram.sum}"
        yield f"{name}_count{_written(labels)} {count}"


def _written(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
