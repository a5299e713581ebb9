"""Which metric of which server is which quantity: one table, and the functions that look names up in it.

A row is a metric that a server offers under some version. If a server offers a quantity under several names (an old and a new one),
the first of its rows that is on the page counts, so nothing counts twice. If a page has metrics of several servers (Triton with vLLM
in it), the first of SERVERS that offers the quantity counts; but metrics that are labelled with the measured model come first.

Names are looked up with `:` and `_` taken as the same (some Prometheus servers replace one by the other), and with or without `_total`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Literal, NamedTuple

from inferometer.server_metrics.vocabulary import QUANTITIES

Part = Literal["value", "bucket", "sum", "count"]
Labels = Mapping[str, str]
Condition = tuple[str, tuple[str, ...]]
"""A label, and values of it."""

MODEL_LABELS = ("model_name", "model", "modelName", "requested_model")
"""Labels that may hold the name of a model."""
PROCESS_START = "process_start_time_seconds"
"""When a server was started. Client libraries of Prometheus report it; figures.py recognises restarts by it."""
LIVE = ("running", "waiting", "kv_cache_use")
"""The gauges of the live view."""

_MS, _US, _MJ, _PERCENT, _MIB = 1e-3, 1e-6, 1e-3, 0.01, float(2**20)


class Row(NamedTuple):
    """One metric of a server."""

    quantity: str
    names: tuple[str, ...]
    """Without the server's prefix and `_total`. Several are added up. Counters may be the sum or the count of a histogram."""
    scale: float = 1.0
    """Factor from the server's unit to ours."""
    only: tuple[Condition, ...] = ()
    """Labels that a sample must have, with one of these values."""
    unless: tuple[Condition, ...] = ()
    """Labels that a sample must not have with one of these values."""
    note: str = ""
    """How it differs from the definition of the quantity."""


class Server(NamedTuple):
    """A kind of server."""

    title: str
    prefix: str
    rows: tuple[Row, ...]
    precedence: int = 0
    """If targets of several kinds offer a quantity, it is taken from those with the lowest value: a proxy's requests are those of the
    servers behind it, and must not be added to them."""


class Source(NamedTuple):
    """What a sample with a known name is."""

    server: str
    quantity: str
    part: Part
    """`value` for gauges and counters; which part of a histogram otherwise."""
    row: Row
    rank: int
    """The position of the row in the table: the lowest one that a target offers counts."""

    def matches(self, labels: Labels) -> bool:
        """Return whether a sample with these labels is meant."""
        row = self.row
        return all(labels.get(label) in values for label, values in row.only) and not any(
            labels.get(label) in values for label, values in row.unless
        )


def _row(quantity: str, *names: str, scale: float = 1.0, note: str = "", **only: str) -> Row:
    return Row(quantity, names, scale, tuple((label, (value,)) for label, value in only.items()), note=note)


_NOT_COMPLETED = (("finished_reason", ("abort", "error")),)

_VLLM = (
    _row("running", "num_requests_running"),
    _row("waiting", "num_requests_waiting"),
    _row("swapped", "num_requests_swapped"),
    _row("kv_cache_use", "kv_cache_usage_perc"),
    _row("kv_cache_use", "gpu_cache_usage_perc"),
    _row("prefix_cache_queries", "prefix_cache_queries"),
    _row("prefix_cache_queries", "gpu_prefix_cache_queries"),
    _row("prefix_cache_hits", "prefix_cache_hits"),
    _row("prefix_cache_hits", "gpu_prefix_cache_hits"),
    _row("prefix_cache_hit_rate", "gpu_prefix_cache_hit_rate"),
    _row("preemptions", "num_preemptions"),
    _row("spec_drafted", "spec_decode_num_draft_tokens"),
    _row("spec_accepted", "spec_decode_num_accepted_tokens"),
    _row("spec_acceptance", "spec_decode_draft_acceptance_rate"),
    Row("requests", ("request_success",), unless=_NOT_COMPLETED),
    _row("failures", "request_success", finished_reason="error"),
    _row("aborted", "request_success", finished_reason="abort"),
    _row("input_tokens", "prompt_tokens"),
    _row("output_tokens", "generation_tokens"),
    _row("ttft", "time_to_first_token_seconds"),
    _row("itl", "inter_token_latency_seconds"),
    _row("itl", "time_per_output_token_seconds"),
    _row("tpot", "request_time_per_output_token_seconds"),
    _row("e2e", "e2e_request_latency_seconds"),
    _row("queue_time", "request_queue_time_seconds"),
    _row("queue_time", "time_in_queue_requests"),
    _row("inference_time", "request_inference_time_seconds"),
    _row("prefill_time", "request_prefill_time_seconds"),
    _row("decode_time", "request_decode_time_seconds"),
)
_SGLANG = (
    _row("running", "num_running_reqs"),
    _row("waiting", "num_queue_reqs"),
    _row("kv_cache_use", "token_usage"),
    _row("prefix_cache_hits", "cached_tokens"),
    _row("prefix_cache_hit_rate", "cache_hit_rate", note="of the latest prefill batch"),
    _row("preemptions", "num_retracted_requests"),
    _row("spec_acceptance", "spec_accept_rate", note="of the latest decode batches"),
    _row("requests", "num_requests"),
    _row("requests", "e2e_request_latency_seconds_count"),
    _row("aborted", "num_aborted_requests"),
    _row("input_tokens", "prompt_tokens"),
    _row("output_tokens", "generation_tokens"),
    _row("ttft", "time_to_first_token_seconds"),
    _row("itl", "inter_token_latency_seconds"),
    _row("itl", "time_per_output_token_seconds"),
    _row("e2e", "e2e_request_latency_seconds"),
    _row("queue_time", "queue_time_seconds"),
    _row("prefill_time", "per_stage_req_latency_seconds", stage="prefill_forward"),
)
_TGI = (
    _row("running", "batch_current_size"),
    _row("waiting", "queue_size"),
    _row("spec_accepted", "request_skipped_tokens_sum", note="counted when a request has been completed"),
    _row("requests", "request_success"),
    _row("failures", "request_failure"),
    _row("input_tokens", "request_input_length_sum", note="counted when a request has been validated"),
    _row("output_tokens", "request_generated_tokens_sum", note="counted when a request has been completed"),
    _row("tpot", "request_mean_time_per_token_duration", note="includes the prefill"),
    _row("e2e", "request_duration"),
    _row("queue_time", "request_queue_duration"),
    _row("inference_time", "request_inference_duration"),
    _row("prefill_time", "batch_inference_duration", note="per batch, not per request", method="prefill"),
)
_TRTLLM = (
    _row("running", "num_requests_running"),
    _row("waiting", "num_requests_waiting"),
    _row("kv_cache_use", "kv_cache_utilization"),
    _row("prefix_cache_hits", "prompt_cached_tokens"),
    _row("prefix_cache_hit_rate", "kv_cache_hit_rate", note="of blocks, not tokens, since the start"),
    _row("spec_drafted", "spec_decode_num_draft_tokens"),
    _row("spec_drafted", "spec_decode_drafted_tokens"),
    _row("spec_accepted", "spec_decode_num_accepted_tokens"),
    _row("spec_accepted", "spec_decode_accepted_tokens"),
    _row("requests", "request_success"),
    _row("failures", "request_error"),
    _row("input_tokens", "prompt_tokens"),
    _row("output_tokens", "generation_tokens"),
    _row("ttft", "time_to_first_token_seconds"),
    _row("tpot", "time_per_output_token_seconds"),
    _row("e2e", "e2e_request_latency_seconds"),
    _row("queue_time", "request_queue_time_seconds"),
    _row("inference_time", "request_inference_time_seconds"),
    _row("prefill_time", "request_prefill_time_seconds"),
    _row("decode_time", "request_decode_time_seconds"),
    _row("gpu_memory", "gpu_memory_usage_bytes"),
)
_TRITON_TRTLLM = (
    _row("running", "trt_llm_request_metrics", request_type="scheduled"),
    _row("waiting", "trt_llm_request_metrics", request_type="waiting"),
    _row("kv_cache_use", "trt_llm_kv_cache_block_metrics", kv_cache_block_type="fraction"),
    _row("input_tokens", "llm_input_token_len_sum"),
    _row("output_tokens", "llm_output_token_len_sum"),
)
_LLAMACPP = (
    _row("running", "requests_processing"),
    _row("waiting", "requests_deferred"),
    _row("kv_cache_use", "kv_cache_usage_ratio", note="builds until 2025"),
    _row("prefix_cache_hits", "prompt_tokens_cached", note="builds since 2026"),
    _row("spec_drafted", "spec_decode_num_draft_tokens"),
    _row("spec_accepted", "spec_decode_num_accepted_tokens"),
    _row(
        "input_tokens",
        "prompt_tokens",
        "prompt_tokens_cached",
        note="builds without the second one do not count cached tokens",
    ),
    _row("output_tokens", "tokens_predicted"),
    _row("executions", "n_decode"),
    _row("prefill_seconds", "prompt_seconds"),
    _row("decode_seconds", "tokens_predicted_seconds"),
)
_NIM = (
    _row("running", "num_requests_running"),
    _row("waiting", "num_requests_waiting"),
    _row("kv_cache_use", "gpu_cache_usage_perc"),
    Row("requests", ("request_finish",), unless=_NOT_COMPLETED),
    _row("requests", "request_success"),
    _row("failures", "request_failure"),
    _row("input_tokens", "prompt_tokens"),
    _row("output_tokens", "generation_tokens"),
    _row("ttft", "time_to_first_token_seconds"),
    _row("itl", "time_per_output_token_seconds"),
    _row("e2e", "e2e_request_latency_seconds"),
)
_DYNAMO = (
    _row("running", "inflight_requests", note="includes requests that wait"),
    _row("waiting", "queued_requests", note="of the front end: until the first token"),
    _row("prefix_cache_hits", "cached_tokens_sum"),
    _row("requests", "requests", status="success"),
    _row("failures", "requests", status="error"),
    _row("input_tokens", "input_sequence_tokens_sum"),
    _row("output_tokens", "output_tokens"),
    _row("output_tokens", "output_sequence_tokens_sum"),
    _row("ttft", "time_to_first_token_seconds"),
    _row("itl", "inter_token_latency_seconds"),
    _row("e2e", "request_duration_seconds"),
)
_LITELLM = (
    _row("running", "in_flight_requests", note="every HTTP request, also for /metrics"),
    _row("requests", "deployment_success_responses"),
    _row("failures", "deployment_failure_responses"),
    _row("input_tokens", "input_tokens_metric"),
    _row("input_tokens", "input_tokens"),
    _row("output_tokens", "output_tokens_metric"),
    _row("output_tokens", "output_tokens"),
    _row("ttft", "llm_api_time_to_first_token_metric"),
    _row("e2e", "request_total_latency_metric"),
)
_TRITON = (
    _row("waiting", "inference_pending_request_count"),
    _row("requests", "inference_request_success"),
    _row("failures", "inference_request_failure"),
    _row("inferences", "inference_count"),
    _row("executions", "inference_exec_count"),
    _row("ttft", "inference_first_response_histogram_ms", scale=_MS, note="time to the first response"),
    _row("e2e", "inference_request_latency_seconds", note="only `inferometer serve`"),
    _row("queue_time", "inference_queue_latency_seconds", note="only `inferometer serve`"),
    _row("inference_time", "inference_compute_latency_seconds", note="only `inferometer serve`"),
    _row("e2e_seconds", "inference_request_duration_us", scale=_US),
    _row("queue_seconds", "inference_queue_duration_us", scale=_US),
    _row(
        "compute_seconds",
        "inference_compute_input_duration_us",
        "inference_compute_infer_duration_us",
        "inference_compute_output_duration_us",
        scale=_US,
    ),
    _row("gpu_use", "gpu_utilization"),
    _row("gpu_memory", "gpu_memory_used_bytes"),
    _row("gpu_power", "gpu_power_usage"),
    _row("gpu_energy", "energy_consumption"),
)
_MLSERVER = (
    _row("requests", "request_success"),
    _row("failures", "request_failure"),
    _row("e2e_seconds", "request_duration_sum"),
)
_DCGM = (
    _row("gpu_use", "DEV_GPU_UTIL", scale=_PERCENT),
    _row("gpu_use", "PROF_GR_ENGINE_ACTIVE"),
    _row("gpu_memory", "DEV_FB_USED", scale=_MIB),
    _row("gpu_power", "DEV_POWER_USAGE"),
    _row("gpu_energy", "DEV_TOTAL_ENERGY_CONSUMPTION", scale=_MJ),
    _row("gpu_temperature", "DEV_GPU_TEMP"),
    _row("gpu_clock", "DEV_SM_CLOCK"),
)

_INFEROMETER = (_row("server_info", "info"),)
"""The other metrics of `inferometer serve` have the names of vLLM and Triton."""

SERVERS: dict[str, Server] = {
    "inferometer": Server("inferometer serve", "inferometer_serve_", _INFEROMETER),
    "vllm": Server("vLLM", "vllm:", _VLLM),
    "ray_vllm": Server("vLLM under Ray Serve", "ray_vllm:", _VLLM),
    "sglang": Server("SGLang", "sglang:", _SGLANG),
    "tgi": Server("TGI", "tgi_", _TGI),
    "trtllm": Server("TensorRT-LLM", "trtllm_", _TRTLLM),
    "triton_trtllm": Server("TensorRT-LLM in Triton", "nv_", _TRITON_TRTLLM),
    "llamacpp": Server("llama.cpp", "llamacpp:", _LLAMACPP),
    "nim": Server("NVIDIA NIM", "", _NIM),
    "dynamo": Server("Dynamo", "dynamo_frontend_", _DYNAMO, precedence=1),
    "litellm": Server("LiteLLM", "litellm_", _LITELLM, precedence=1),
    "triton": Server("Triton", "nv_", _TRITON),
    "mlserver": Server("MLServer", "model_infer_", _MLSERVER),
    "dcgm": Server("DCGM exporter", "DCGM_FI_", _DCGM, precedence=-1),
}
"""By the names in Figures.servers, in the order in which they count if one page has metrics of several."""


def known(name: str) -> tuple[Source, ...] | None:
    """Return what samples with this name are; None if it is not in the table. There are several if labels tell quantities apart."""
    return _index().get(name.replace(":", "_"))


def name_pattern() -> str:
    """Return a regular expression (RE2) that matches the names of all samples that figures are made of, for `__name__=~`."""
    parts: dict[str, dict[str, None]] = {}
    for server in SERVERS.values():
        prefix = server.prefix.replace(":", "[:_]")
        for row in server.rows:
            suffix = "_(?:bucket|sum|count)" if QUANTITIES[row.quantity].kind == "histogram" else "(?:_total)?"
            parts.setdefault(f"{prefix}(?:NAMES){suffix}", {}).update(dict.fromkeys(row.names))
    patterns = [pattern.replace("NAMES", "|".join(names)) for pattern, names in parts.items()]
    return "|".join([*patterns, PROCESS_START])


def of_model(page: Iterable[Labels], model: str) -> Callable[[Labels], bool]:
    """Return a function that says whether a sample of the page counts: all do, unless some are labelled with this model. Then those that
    are labelled with another one do not."""
    if not model or not any(labels.get(name) == model for labels in page for name in MODEL_LABELS):
        return lambda labels: True

    def counts(labels: Labels) -> bool:
        named = [labels[name] for name in MODEL_LABELS if name in labels]
        return not named or model in named

    return counts


def is_usable(quantity: str, value: float) -> bool:
    """Return whether a gauge has a value. NaN stands for none, and so does a negative share (vLLM's -1 without a prefix cache)."""
    return not math.isnan(value) and not (value < 0 and QUANTITIES[quantity].unit == "share")


def latest(samples: Iterable[tuple[str, Labels, float]], model: str = "") -> dict[str, float]:
    """Return the gauges of the live view from one page. Label sets are put together: requests are added up, shares averaged."""
    offers: dict[str, dict[int, list[float]]] = {}
    page = [(name, labels, value) for name, labels, value in samples if known(name)]
    chosen = of_model([labels for _, labels, _ in page], model)
    for name, labels, value in page:
        for source in (known(name) or ()) if chosen(labels) else ():
            if source.quantity in LIVE and source.matches(labels) and is_usable(source.quantity, value):
                offers.setdefault(source.quantity, {}).setdefault(source.rank, []).append(value * source.row.scale)
    return {name: _put_together(name, offers[name]) for name in LIVE if name in offers}


def _put_together(name: str, offers: Mapping[int, list[float]]) -> float:
    values = offers[min(offers)]
    return sum(values) if QUANTITIES[name].is_additive else sum(values) / len(values)


@cache
def _index() -> dict[str, tuple[Source, ...]]:
    found: dict[str, tuple[Source, ...]] = {}
    rows = [(name, server, row) for name, server in SERVERS.items() for row in server.rows]
    for rank, (server_name, server, row) in enumerate(rows):
        for metric in row.names:
            name = (server.prefix + metric).replace(":", "_")
            is_histogram = QUANTITIES[row.quantity].kind == "histogram"
            parts: tuple[tuple[str, Part], ...] = (("", "value"), ("_total", "value"))
            for suffix, part in _HISTOGRAM if is_histogram else parts:
                source = Source(server_name, row.quantity, part, row, rank)
                found[name + suffix] = (*found.get(name + suffix, ()), source)
    return found


_HISTOGRAM: tuple[tuple[str, Part], ...] = (("_bucket", "bucket"), ("_sum", "sum"), ("_count", "count"))
