"""/metrics of the simulator, with vLLM's names, so that a vLLM dashboard works with this server."""

from collections.abc import Iterable

from inferometer.serve import prometheus
from inferometer.serve.prometheus import Family, Histogram
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
    """Counts responses when they end."""

    def __init__(self) -> None:
        self.prompt_tokens = self.generation_tokens = 0
        self.ended = {"stop": 0, "length": 0, "abort": 0}
        self.ttft, self.itl, self.e2e, self.queue = map(Histogram, (_TTFT, _ITL, _REQUEST, _REQUEST))

    def page(self, model: str, timing: Timing, active: Iterable[Job]) -> bytes:
        """Return the page; `active` are the responses in progress, whose tokens count too."""
        batch = timing if isinstance(timing, BatchTiming) else None
        kv = batch.kv if batch else None
        generated = self.generation_tokens + sum(job.made for job in active)
        gauge, counter, histogram, labels = "gauge", "counter", "histogram", {"model_name": model}
        table = (
            ("num_requests_running", gauge, "Number of requests in the running batch.", timing.n_running),
            ("num_requests_waiting", gauge, "Number of requests waiting in the queue.", timing.n_waiting),
            ("kv_cache_usage_perc", gauge, "KV cache usage, from 0 (empty) to 1 (full).", kv.usage if kv else 0),
            ("num_preemptions_total", counter, "Preemptions.", batch.preemptions if batch else 0),
            ("prompt_tokens_total", counter, "Number of prefill tokens processed.", self.prompt_tokens),
            ("generation_tokens_total", counter, "Number of generation tokens processed.", generated),
            ("prefix_cache_queries_total", counter, "Prefix cache queries, in tokens.", kv.queried if kv else 0),
            ("prefix_cache_hits_total", counter, "Prefix cache hits, in tokens.", kv.hit if kv else 0),
            ("time_to_first_token_seconds", histogram, "Time to first token in seconds.", self.ttft),
            ("inter_token_latency_seconds", histogram, "Time between chunks in seconds.", self.itl),
            ("e2e_request_latency_seconds", histogram, "End-to-end latency in seconds.", self.e2e),
            ("request_queue_time_seconds", histogram, "Time in the queue in seconds.", self.queue),
        )
        families: list[Family] = [(f"vllm:{name}", kind, text, [(labels, value)]) for name, kind, text, value in table]
        ended = [({**labels, "finished_reason": reason}, count) for reason, count in self.ended.items()]
        families.append(("vllm:request_success_total", counter, "Number of requests that ended.", ended))
        return prometheus.page(families)
