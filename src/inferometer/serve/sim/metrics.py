"""/metrics in Prometheus' text format with vLLM's names, so that a vLLM dashboard works with this server.

Plain counters are updated at a request's start and end; prometheus_client only formats them when they are scraped.
"""

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from inferometer.serve.histogram import Histogram
from inferometer.serve.sim.batch import BatchTiming
from inferometer.serve.sim.jobs import Job, Timing

_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_ITL = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
_REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)


class Counters:
    """Counts responses, and exports the counts."""

    def __init__(self, model: str, timing: Timing) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        """Tokens of responses that have ended."""
        self.ended = {"stop": 0, "length": 0, "abort": 0}
        self.ttft, self.itl, self.e2e, self.queue = map(Histogram, (_TTFT, _ITL, _REQUEST, _REQUEST))
        self._model, self._timing = model, timing
        self._registry = CollectorRegistry()
        self._active: Iterable[Job] = ()
        self._registry.register(self)

    def render(self, active: Iterable[Job]) -> bytes:
        """Return the page; `active` are the responses in progress, whose tokens count too."""
        self._active = active
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        timing = self._timing
        kv = timing.kv if isinstance(timing, BatchTiming) else None
        generated = self.generation_tokens + sum(job.made for job in self._active)
        preemptions = timing.preemptions if isinstance(timing, BatchTiming) else 0
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        for kind, name, text, value in (
            (gauge, "num_requests_running", "Number of requests in the running batch.", timing.n_running),
            (gauge, "num_requests_waiting", "Number of requests waiting in the queue.", timing.n_waiting),
            (gauge, "kv_cache_usage_perc", "KV cache usage, from 0 (empty) to 1 (full).", kv.usage if kv else 0),
            (counter, "num_preemptions", "Preemptions.", preemptions),
            (counter, "prompt_tokens", "Number of prefill tokens processed.", self.prompt_tokens),
            (counter, "generation_tokens", "Number of generation tokens processed.", generated),
            (counter, "prefix_cache_queries", "Prefix cache queries, in tokens.", kv.queried if kv else 0),
            (counter, "prefix_cache_hits", "Prefix cache hits, in tokens.", kv.hit if kv else 0),
        ):
            family: Any = kind(f"vllm:{name}", text, labels=["model_name"])
            family.add_metric([self._model], value)
            yield family
        labels = ["model_name", "finished_reason"]
        success = CounterMetricFamily("vllm:request_success", "Number of requests that ended.", labels=labels)
        for reason, count in self.ended.items():
            success.add_metric([self._model, reason], count)
        yield success
        for name, text, histogram in (
            ("time_to_first_token_seconds", "Time to first token in seconds.", self.ttft),
            ("inter_token_latency_seconds", "Time between chunks in seconds.", self.itl),
            ("e2e_request_latency_seconds", "End-to-end latency in seconds.", self.e2e),
            ("request_queue_time_seconds", "Time in the queue in seconds.", self.queue),
        ):
            family = HistogramMetricFamily(f"vllm:{name}", text, labels=["model_name"])
            family.add_metric([self._model], histogram.buckets(), histogram.sum)
            yield family
