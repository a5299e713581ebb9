"""The fields of inference-perf's report files, written from its documentation, and a walk that compares a file with them.

D: a distribution or null; NUMBER, COUNT, TEXT, LIST, NUMBERS: values that may not be null; `X | None`: they may.
A field whose name ends in `?` may be absent.
"""

from collections.abc import Iterator
from typing import Any

D, NUMBER, COUNT, TEXT, LIST, NUMBERS, NULL = "D", "number", "count", "text", "list", "numbers", "null"
QUANTILES = {"mean": NUMBER, "median": NUMBER, "p90": NUMBER, "p99": NUMBER}
DEFAULT_PERCENTILES = ("p0.1", "p1", "p5", "p10", "p25", "median", "p75", "p90", "p95", "p99", "p99.9")
TOKENS = {"total": NUMBER, "cached": NUMBER, "uncached": NUMBER, "*D": D}

LIFECYCLE: dict[str, Any] = {
    "benchmark_time_seconds": NUMBER,
    "load_summary": {"count": COUNT, "schedule_delay": D},
    "successes": {
        "count": COUNT,
        "latency": {
            "request_latency": D,
            "normalized_time_per_output_token": D,
            "time_per_output_token": D,
            "time_to_first_token": D,
            "inter_token_latency": D,
        },
        "throughput": {
            "input_tokens_per_sec": NUMBER,
            "output_tokens_per_sec": NUMBER,
            "total_tokens_per_sec": NUMBER,
            "requests_per_sec": NUMBER,
            "images_per_sec": NUMBER,
            "videos_per_sec": NUMBER,
            "audios_per_sec": NUMBER,
        },
        "request_size_bytes": D,
        "image": {"count": D, "pixels": D, "bytes": D, "aspect_ratio": D},
        "video": {"count": D, "pixels": D, "bytes": D, "aspect_ratio": D, "frames": D},
        "audio": {"count": D, "seconds": D, "bytes": D},
        "prompt_len": D,
        "prompt_tokens": TOKENS,
        "output_len": D,
        "output_tokens": {"total": NUMBER, "*D": D},
        "token_count_mismatches": COUNT,
        "client_fallback_requests": {"prompt": COUNT, "output": COUNT},
        "goodput_metrics?": {
            "goodput_percentage": NUMBER,
            "request_goodput": NUMBER,
            "token_goodput": NUMBER,
            "good_requests": COUNT,
            "total_requests": COUNT,
            "ttft_attainment_percentage?": NUMBER,
            "tpot_attainment_percentage?": NUMBER,
            "itl_attainment_percentage?": NUMBER,
            "ntpot_attainment_percentage?": NUMBER,
            "request_latency_attainment_percentage?": NUMBER,
        },
    },
    "failures": {
        "count": COUNT,
        "request_latency": D,
        "prompt_len": D,
        "prompt_tokens": TOKENS,
        "by_label": {"*": {"count": COUNT, "messages": LIST}},
    },
    "retries?": {
        "requests_retried": COUNT,
        "attempts": COUNT,
        "recovered": COUNT,
        "failed_after_retry": COUNT,
        "wasted_sec_total": NUMBER,
        "wasted_sec": D,
    },
}
STAGE = LIFECYCLE | {
    "load_summary": LIFECYCLE["load_summary"]
    | {"send_duration": NUMBER, "requested_rate": NUMBER, "achieved_rate": NUMBER, "concurrency?": COUNT}
}
ENTRY: dict[str, Any] = {
    "start_time": NUMBER,
    "end_time": NUMBER,
    "request": f"{TEXT} | {NULL}",
    "response": f"{TEXT} | {NULL}",
    "info": {
        "request_metrics": {"text": {"input_tokens": COUNT}, "image": NULL, "video": NULL, "audio": NULL},
        "response_metrics": {
            "output_tokens": COUNT,
            "server_usage": {"*": "any"},
            "response_chunks": LIST,
            "chunk_times": NUMBERS,
            "output_token_times": NUMBERS,
        },
        "extra_info": {"*": "any"},
        "lora_adapter": f"{TEXT} | {NULL}",
        "labels": {"*": "any"},
        "graph_event_id": f"{TEXT} | {NULL}",
        "input_tokens": COUNT,
        "output_tokens": COUNT,
        "output_token_times": NUMBERS,
    },
    "computed_metrics": {
        "request_latency": NUMBER,
        "normalized_time_per_output_token": NUMBER,
        "time_to_first_token": NUMBER,
        "time_per_output_token": NUMBER,
        "inter_token_latency": NUMBER,
        "inter_token_latencies": NUMBERS,
        "input_tokens": COUNT,
        "output_tokens": COUNT,
        "ttft_slo_sec": f"{NUMBER} | {NULL}",
        "tpot_slo_sec": f"{NUMBER} | {NULL}",
    },
    "error": NULL,
}
"""An entry of a streamed request that succeeded."""
PROMETHEUS: dict[str, Any] = {
    "benchmark_time_seconds": NUMBER,
    "load_summary": {},
    "failures": {},
    "successes": {"count": NUMBER, "rate": NUMBER}
    | {key: {"mean": NUMBER, "rate": NUMBER} for key in ("prompt_len", "output_len")}
    | {
        key: {"mean": NUMBER}
        for key in (
            *("queue_len", "num_requests_running", "num_requests_swapped", "num_preemptions_total"),
            *("prefix_cache_hit_percent", "external_prefix_cache_hit_percent", "mm_cache_hit_percent"),
        )
    }
    | dict.fromkeys(
        ("request_success_count", "prompt_tokens_cached", "corrupted_requests", "prompt_tokens_recomputed"), NUMBER
    )
    | dict.fromkeys(
        (
            *("request_latency", "time_to_first_token", "time_per_output_token", "inter_token_latency"),
            *("kv_cache_usage_percentage", "request_queue_time", "request_inference_time", "request_prefill_time"),
            *("request_decode_time", "request_prompt_tokens", "request_generation_tokens"),
            *("request_max_num_generation_tokens", "request_params_n", "request_params_max_tokens", "iteration_tokens"),
            *("request_prefill_kv_computed_tokens", "kv_block_idle_before_evict", "kv_block_lifetime"),
            "kv_block_reuse_gap",
        ),
        QUANTILES,
    ),
}
_STATISTICS = (
    *("units", "mean", "stddev", "min", "p0p1", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p99p9"),
    "max",
)
_S = {name: TEXT if name == "units" else NUMBER for name in _STATISTICS}
_RATE = {"units": TEXT, "mean": NUMBER}
PARTIAL: dict[str, Any] = {
    "version": TEXT,
    "run": {"uid": TEXT, "eid": TEXT, "time": {"start": TEXT, "end": TEXT, "duration": TEXT}},
    "results": {
        "request_performance": {
            "aggregate": {
                "requests": {"total": COUNT, "failures": COUNT, "input_length": _S, "output_length": _S},
                "latency": dict.fromkeys(
                    (
                        *("request_latency", "time_to_first_token", "time_per_output_token", "inter_token_latency"),
                        "normalized_time_per_output_token",
                    ),
                    _S,
                ),
                "throughput": dict.fromkeys(
                    ("input_token_rate", "output_token_rate", "total_token_rate", "request_rate"), _RATE
                ),
            }
        }
    },
}
"""A partial benchmark report of a streamed stage."""
_GROUP = {"warnings": LIST, "errors": LIST}
VALIDATION: dict[str, Any] = {"global": _GROUP, "reports": {"*": _GROUP}}


def problems(
    found: Any, fields: Any, percentiles: tuple[str, ...] = DEFAULT_PERCENTILES, path: str = ""
) -> Iterator[str]:
    """Yield a sentence for every field that is missing, unknown or of the wrong type."""
    if isinstance(fields, str):
        if not any(_is(found, each, percentiles) for each in fields.split(" | ")):
            yield f"{path}: {found!r} is not {fields}"
        return
    if not isinstance(found, dict):
        yield f"{path}: {found!r} is not an object"
        return
    left = dict(found)
    for name, kind in fields.items():
        key = name.removesuffix("?")
        if name == "*":
            for other in list(left):
                yield from problems(left.pop(other), kind, percentiles, f"{path}.{other}")
        elif name == "*D":  # the keys of a distribution, beside the others; absent if there are no values
            own = {key: left.pop(key) for key in ("mean", "min", "max", *percentiles) if key in left}
            if own:
                yield from problems(own, D, percentiles, path)
        elif key in left:
            yield from problems(left.pop(key), kind, percentiles, f"{path}.{key}")
        elif not name.endswith("?"):
            yield f"{path}.{key} is missing"
    yield from (f"{path}.{name} is not a field" for name in left)


def _is(value: Any, kind: str, percentiles: tuple[str, ...]) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == D:
        names = ["mean", "min", "max", *percentiles]
        return value is None or (list(value) == names and all(_is(each, NUMBER, ()) for each in value.values()))
    return {
        NUMBER: is_number,
        COUNT: is_number and value == int(value),
        TEXT: isinstance(value, str),
        LIST: isinstance(value, list),
        NUMBERS: isinstance(value, list) and all(isinstance(each, int | float) for each in value),
        NULL: value is None,
        "any": True,
    }[kind]
