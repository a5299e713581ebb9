"""*_prometheus_metrics.json: what the server's own metrics say about the run and its stages, read from a Prometheus server.

The fields, queries and windows are inference-perf's. A value that is not known is 0.0, as in its files.
"""

import logging
import math
import time
from collections.abc import Callable
from typing import Any

import msgspec

from inferometer.compat.inference_perf.reports.requests import Requests
from inferometer.compat.inference_perf.spec import Spec
from inferometer.errors import UserError
from inferometer.observe.prometheus_api import PrometheusApi, QueryError
from inferometer.records import Manifest
from inferometer.units import NS

SUMMARY = "summary_prometheus_metrics.json"
STAGE = "stage_{}_prometheus_metrics.json"
MARGIN = 2.0
"""Seconds beyond scrape_interval until the last scrape of the run can be queried."""
_TIMEOUT = 30.0
_DIGITS = 6
_LOG = logging.getLogger(__name__)

Metric = tuple[str, str]
"""Its kind (`counter`, `gauge` or `histogram`) and its name."""
_QUANTILES = {"median": 0.5, "p90": 0.9, "p99": 0.99}

_HISTOGRAM_FIELDS = {
    "request_queue_time": "request_queue_time_seconds",
    "request_inference_time": "request_inference_time_seconds",
    "request_prefill_time": "request_prefill_time_seconds",
    "request_decode_time": "request_decode_time_seconds",
    "request_prompt_tokens": "request_prompt_tokens",
    "request_generation_tokens": "request_generation_tokens",
    "request_max_num_generation_tokens": "request_max_num_generation_tokens",
    "request_params_n": "request_params_n",
    "request_params_max_tokens": "request_params_max_tokens",
    "iteration_tokens": "iteration_tokens_total",
    "request_prefill_kv_computed_tokens": "request_prefill_kv_computed_tokens",
    "kv_block_idle_before_evict": "kv_block_idle_before_evict_seconds",
    "kv_block_lifetime": "kv_block_lifetime_seconds",
    "kv_block_reuse_gap": "kv_block_reuse_gap_seconds",
}
"""Fields that only vLLM has, and its metrics without the prefix `vllm:`."""
_COUNTERS = (
    "prefix_cache_hits",
    "prefix_cache_queries",
    "prompt_tokens_cached",
    "external_prefix_cache_hits",
    "external_prefix_cache_queries",
    "mm_cache_hits",
    "mm_cache_queries",
    "corrupted_requests",
)
METRICS: dict[str, dict[str, Metric]] = {
    "vllm": {
        "requests": ("counter", "vllm:request_success"),
        "request_success_count": ("counter", "vllm:request_success"),
        "prompt_len": ("counter", "vllm:prompt_tokens"),
        "output_len": ("counter", "vllm:generation_tokens"),
        "queue_len": ("gauge", "vllm:num_requests_waiting"),
        "num_requests_running": ("gauge", "vllm:num_requests_running"),
        "num_preemptions_total": ("counter", "vllm:num_preemptions"),
        "request_latency": ("histogram", "vllm:e2e_request_latency_seconds"),
        "time_to_first_token": ("histogram", "vllm:time_to_first_token_seconds"),
        "time_per_output_token": ("histogram", "vllm:request_time_per_output_token_seconds"),
        "inter_token_latency": ("histogram", "vllm:inter_token_latency_seconds"),
        "kv_cache_usage_percentage": ("gauge", "vllm:kv_cache_usage_perc"),
    }
    | {name: ("counter", f"vllm:{name}") for name in _COUNTERS}
    | {field: ("histogram", f"vllm:{name}") for field, name in _HISTOGRAM_FIELDS.items()},
    "sglang": {
        "requests": ("counter", "sglang:e2e_request_latency_seconds_count"),
        "prompt_len": ("counter", "sglang:prompt_tokens_total"),
        "output_len": ("counter", "sglang:generation_tokens_total"),
        "queue_len": ("gauge", "sglang:num_queue_reqs"),
        "request_latency": ("histogram", "sglang:e2e_request_latency_seconds"),
        "time_to_first_token": ("histogram", "sglang:time_to_first_token_seconds"),
        "time_per_output_token": ("histogram", "sglang:time_per_output_token_seconds"),
        "inter_token_latency": ("histogram", "sglang:inter_token_latency_seconds"),
        "kv_cache_usage_percentage": ("gauge", "sglang:token_usage"),
    },
    "tgi": {
        "requests": ("counter", "tgi_request_success"),
        "prompt_len": ("histogram", "tgi_request_input_length"),
        "output_len": ("histogram", "tgi_request_generated_tokens"),
        "queue_len": ("gauge", "tgi_queue_size"),
        "request_latency": ("histogram", "tgi_request_duration"),
        "time_per_output_token": ("histogram", "tgi_request_mean_time_per_token_duration"),
    },
}
"""The metrics of each server.type, by the fields of the report (`requests`: for `count` and `rate`)."""
_SUMMARIES = (
    "request_latency",
    "time_to_first_token",
    "time_per_output_token",
    "kv_cache_usage_percentage",
    "inter_token_latency",
    *_HISTOGRAM_FIELDS,
)
"""Fields with a mean and quantiles."""


def reports(requests: Requests, spec: Spec, sleep: Callable[[float], None] = time.sleep) -> dict[str, dict[str, Any]]:
    """The files by name; none if the config has no Prometheus server. Waits until the run's last scrape can be queried."""
    metrics, wanted = spec.get("metrics") or {}, spec["report"].get("prometheus")
    settings = metrics.get("prometheus") or {}
    known = METRICS.get(spec["server"]["type"])
    if metrics.get("type") != "prometheus" or not settings or not wanted or known is None or not len(requests.rows):
        return {}
    delay = float(settings.get("scrape_interval") or 15) + MARGIN
    t0 = requests.run.manifest.t0_wall_ns / NS
    last = t0 + float(requests.end.max()) + delay
    sleep(min(max(last - time.time(), 0.0), delay))
    reader = _Reader(settings, known, _filters(spec, requests.run.manifest, requests.is_exact), requests.is_exact)
    found = {}
    if wanted.get("summary"):
        found[SUMMARY] = _report(reader, t0 + min(float(requests.start.min()), 0.0), last)
    if wanted.get("per_stage"):
        for stage in sorted(set(requests.stage.tolist())):
            own = requests.stage == stage
            begin, end = t0 + float(requests.start[own].min()), t0 + float(requests.end[own].max()) + delay
            found[STAGE.format(stage)] = _report(reader, begin, end)
    return found


def _filters(spec: Spec, manifest: Manifest, is_exact: bool) -> str:
    """The label matchers of every query: the model for servers that label their metrics with it, and those of the config."""
    server = manifest.config.get("server")
    model = spec["server"].get("model_name")
    if model is None and not is_exact and isinstance(server, dict):
        model = server.get("model")
    own = [f"model_name='{model}'"] if spec["server"]["type"] != "tgi" and (model is not None or is_exact) else []
    return ",".join([*own, *(spec["metrics"]["prometheus"].get("filters") or [])])


class _Reader:
    """Evaluates the queries of metrics. After the first failure to reach the server, everything is 0.0."""

    def __init__(self, settings: dict[str, Any], metrics: dict[str, Metric], filters: str, is_exact: bool) -> None:
        self._metrics, self._filters = metrics, filters
        self.is_exact = is_exact
        self._api: PrometheusApi | None = None
        token = settings.get("bearer_token")
        headers = dict(settings.get("headers") or {}) | ({"Authorization": f"Bearer {token}"} if token else {})
        try:
            self._api = PrometheusApi(str(settings["url"]), headers, tuple(headers.values()))
        except (KeyError, UserError) as error:
            _LOG.error("Prometheus: metrics.prometheus.url: %s; the report has zeros", error)

    def total(self, field: str, window: str, at: float) -> float:
        """How much a counter grew."""
        return self._counter(field, "sum({})", "increase", window, at)

    def rate(self, field: str, window: str, at: float) -> float:
        kind, name = self._metrics.get(field, ("", ""))
        if kind == "histogram":
            return self._value(f"sum(rate({name}_count{self._selector(window)}))", at)
        return self._counter(field, "sum({})", "rate", window, at)

    def mean(self, field: str, window: str, at: float) -> float:
        kind, name = self._metrics.get(field, ("", ""))
        over = self._selector(window)
        if kind == "gauge":
            return self._value(f"avg_over_time({name}{over})", at)
        if kind == "histogram":
            return self._value(f"sum(rate({name}_sum{over})) / sum(rate({name}_count{over}))", at)
        return self._counter(field, f"avg_over_time(({{}})[{window}:{window}])", "rate", window, at)

    def summary(self, field: str, window: str, at: float) -> dict[str, float]:
        """The mean and quantiles of a gauge or histogram."""
        kind, name = self._metrics.get(field, ("", ""))
        over = self._selector(window)
        inner = {"gauge": f"{name}{over}", "histogram": f"sum by (le) (rate({name}_bucket{over}))"}.get(kind)
        function = "quantile_over_time" if kind == "gauge" else "histogram_quantile"
        found = {"mean": self.mean(field, window, at)}
        for statistic, share in _QUANTILES.items():
            found[statistic] = 0.0 if inner is None else self._value(f"{function}({share}, {inner})", at)
        return found

    def _counter(self, field: str, shape: str, function: str, window: str, at: float) -> float:
        kind, name = self._metrics.get(field, ("", ""))
        if kind != "counter":
            return 0.0
        over = self._selector(window)
        names = [name] if name.endswith(("_total", "_count")) else [f"{name}_total", name]
        return self._value(shape.format(" or ".join(f"{function}({each}{over})" for each in names)), at)

    def _selector(self, window: str) -> str:
        return f"{{{self._filters}}}[{window}]"

    def _value(self, expression: str, at: float) -> float:
        """The value of the first series; 0.0 if there is none, or if it is not a number."""
        if self._api is None:
            return 0.0
        try:
            return _first(self._api.evaluate(expression, at, _TIMEOUT).data)
        except QueryError as error:
            _LOG.error("Prometheus: error executing query %s: %s", expression, error.what)
            if error.kind == "trouble":  # the other queries would wait for the same server
                self._api = None
            return 0.0


class _Sample(msgspec.Struct):
    value: tuple[float, str]


class _Vector(msgspec.Struct):
    result: list[_Sample]


def _first(data: msgspec.Raw) -> float:
    try:
        result = msgspec.json.decode(data, type=_Vector).result
        value = float(result[0].value[1]) if result else 0.0
    except (msgspec.MsgspecError, ValueError) as error:
        raise QueryError(f"the result is not what was queried: {error}", "setting") from None
    return round(value, _DIGITS) if math.isfinite(value) else 0.0


def _report(reader: _Reader, begin: float, end: float) -> dict[str, Any]:
    window = f"{max(end - begin, 1.0):.0f}s"

    def total(field: str) -> float:
        return reader.total(field, window, end)

    def mean(field: str) -> dict[str, float]:
        return {"mean": reader.mean(field, window, end)}

    def percent(hits: str, queries: str) -> dict[str, float]:
        asked = total(queries)
        return {"mean": total(hits) / asked * 100 if asked > 0 else 0.0}

    count = total("requests")
    successes: dict[str, Any] = {"count": count, "rate": reader.rate("requests", window, end)}
    for field in ("prompt_len", "output_len"):
        successes[field] = {
            "mean": _length(reader, field, count, window, end),
            "rate": reader.rate(field, window, end),
        }
    successes |= {
        "queue_len": mean("queue_len"),
        "num_requests_running": mean("num_requests_running"),
        "num_requests_swapped": {"mean": 0.0},
        "num_preemptions_total": {"mean": total("num_preemptions_total")},
        "prefix_cache_hit_percent": percent("prefix_cache_hits", "prefix_cache_queries"),
        "external_prefix_cache_hit_percent": percent("external_prefix_cache_hits", "external_prefix_cache_queries"),
        "mm_cache_hit_percent": percent("mm_cache_hits", "mm_cache_queries"),
        "request_success_count": total("request_success_count"),
        "prompt_tokens_cached": total("prompt_tokens_cached"),
        "corrupted_requests": total("corrupted_requests"),
        "prompt_tokens_recomputed": 0.0,
    }
    successes |= {field: reader.summary(field, window, end) for field in _SUMMARIES}
    return {"benchmark_time_seconds": 0.0, "load_summary": {}, "successes": successes, "failures": {}}


def _length(reader: _Reader, field: str, requests: float, window: str, at: float) -> float:
    """The mean length in tokens. inference-perf reports tokens per second for servers that only count tokens."""
    tokens = 0.0 if reader.is_exact else reader.total(field, window, at)
    return tokens / requests if tokens and requests else reader.mean(field, window, at)
