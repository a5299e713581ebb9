"""The figures of a group of requests: the whole run, a stage, or an adapter. They are the content of *_lifecycle_metrics.json."""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.compat.inference_perf.reports.distribution import distribution, known_sum, per
from inferometer.compat.inference_perf.reports.failures import by_label
from inferometer.compat.inference_perf.reports.goodput import Objectives, goodput, objectives
from inferometer.compat.inference_perf.reports.requests import SERVER, Mask, Requests
from inferometer.compat.inference_perf.spec import Spec
from inferometer.units import NS

Report = dict[str, Any]
_LATENCIES = (
    "request_latency",
    "normalized_time_per_output_token",
    "time_per_output_token",
    "time_to_first_token",
)
_MEDIA = {
    "image": ("pixels", "bytes", "aspect_ratio"),
    "video": ("frames", "pixels", "bytes", "aspect_ratio"),
    "audio": ("seconds", "bytes"),
}


class Options(msgspec.Struct, frozen=True):
    """The settings that lifecycle reports depend on."""

    percentiles: tuple[float, ...]
    max_error_messages: int
    is_concurrent: bool
    has_tokenizer: bool
    stages: tuple[dict[str, Any], ...]
    objectives: Objectives


def options(spec: Spec) -> Options:
    lifecycle = spec["report"]["request_lifecycle"]
    return Options(
        percentiles=tuple(lifecycle["percentiles"]),
        max_error_messages=int(lifecycle.get("max_error_messages", 100)),
        is_concurrent=spec["load"]["type"] == "concurrent",
        has_tokenizer=bool(spec.get("tokenizer")),
        stages=() if spec["load"].get("sweep") else tuple(spec["load"].get("stages") or ()),
        objectives=objectives(spec),
    )


def report(requests: Requests, own: Mask, gaps: NDArray[Any], chosen: Options, stage: int | None = None) -> Report:
    """Report on the requests of `own`, of which there is at least one. `gaps`: between their tokens, ns. `stage`: if it is one."""
    seconds = float(requests.end[own].max() - requests.start[own].min())
    found: Report = {
        "benchmark_time_seconds": seconds,
        "load_summary": _load(requests, own, chosen, stage),
        "successes": _successes(requests, own, gaps, chosen, seconds),
        "failures": _failures(requests, own & ~requests.ok, chosen),
    }
    if (retries := _retries(requests, own, chosen)) is not None:
        found["retries"] = retries
    return found


def _load(requests: Requests, own: Mask, chosen: Options, stage: int | None) -> Report:
    count = int(np.count_nonzero(own))
    found: Report = {
        "count": count,
        "schedule_delay": distribution(requests.schedule_delay[own], chosen.percentiles),
    }
    if stage is None:
        return found
    sending = float(requests.start[own].max() - requests.start[own].min())
    in_config = stage < len(chosen.stages)  # those of a sweep are not
    settings = chosen.stages[stage] if in_config else {"rate": requests.run.manifest.plan[stage].rate}
    # The stages of `concurrent` have a rate as well: inference-perf sets it to their number of requests.
    rate = settings.get("num_requests" if chosen.is_concurrent else "rate")
    found |= {
        "send_duration": sending,
        "requested_rate": float(rate or 0.0),
        "achieved_rate": per(count, sending),
    }
    if chosen.is_concurrent:
        found["concurrency"] = int(settings.get("concurrency_level") or 0)
    return found


def _successes(requests: Requests, own: Mask, gaps: NDArray[Any], chosen: Options, seconds: float) -> Report:
    ok = own & requests.ok
    count, rows, percentiles = int(np.count_nonzero(ok)), requests.rows, chosen.percentiles
    n_in, n_out, server_out = requests.n_in[ok], requests.n_out[ok], requests.server_out[ok]
    total_in, total_out = known_sum(n_in), known_sum(n_out)
    latency = {name: distribution(requests.latencies[name][ok], percentiles) for name in _LATENCIES}
    latency["inter_token_latency"] = distribution(gaps, percentiles, 1 / NS) if requests.is_streamed else None
    found: Report = {
        "count": count,
        "latency": latency,
        "throughput": {
            "input_tokens_per_sec": per(total_in, seconds),
            "output_tokens_per_sec": per(total_out, seconds),
            "total_tokens_per_sec": per(total_in + total_out, seconds),
            "requests_per_sec": per(count, seconds),
            "images_per_sec": 0.0,
            "videos_per_sec": 0.0,
            "audios_per_sec": 0.0,
        },
        "request_size_bytes": distribution(requests.size[ok], percentiles),
        **_no_media(count, percentiles),
        "prompt_len": distribution(n_in, percentiles),
        "prompt_tokens": _prompt_tokens(requests, ok, percentiles),
        "output_len": distribution(n_out, percentiles),
        "output_tokens": {"total": known_sum(server_out)} | (distribution(server_out, percentiles) or {}),
        "token_count_mismatches": _mismatches(requests, ok) if chosen.has_tokenizer or not requests.is_exact else 0,
        "client_fallback_requests": {
            "prompt": int(np.count_nonzero(rows["in_counted_by"][ok] != SERVER)),
            "output": int(np.count_nonzero(rows["counted_by"][ok] != SERVER)),
        },
    }
    if (met := goodput(requests, own, chosen.objectives)) is not None:
        found["goodput_metrics"] = met
    return found


def _no_media(count: int, percentiles: tuple[float, ...]) -> Report:
    """The fields of requests without images, videos and audio: there are 0 of each in every request."""
    none = distribution(np.zeros(count), percentiles)
    return {kind: {"count": none} | dict.fromkeys(fields) for kind, fields in _MEDIA.items()}


def _prompt_tokens(requests: Requests, chosen: Mask, percentiles: tuple[float, ...]) -> Report:
    n_in = requests.n_in[chosen]
    total, cached = known_sum(n_in), float(np.maximum(requests.rows["cached"][chosen], 0).sum())
    split = {"total": total, "cached": cached, "uncached": max(total - cached, 0.0)}
    return split | (distribution(n_in, percentiles) or {})


def _mismatches(requests: Requests, ok: Mask) -> int:
    """Streamed responses whose chunks do not add up to the tokens that the server reports."""
    rows = requests.rows
    reported = ok & (rows["counted_by"] == SERVER) & (rows["chunk_count"] > 0)
    differ = (rows["streamed_tokens"] < 0) | (rows["streamed_tokens"] != rows["n_out"])
    return int(np.count_nonzero(reported & differ)) if requests.is_streamed else 0


def _failures(requests: Requests, failed: Mask, chosen: Options) -> Report:
    taken = requests.end[failed] - requests.start[failed]
    n_in = requests.n_in[failed]
    return {
        "count": int(np.count_nonzero(failed)),
        "request_latency": distribution(taken, chosen.percentiles),
        "prompt_len": distribution(n_in, chosen.percentiles),
        "prompt_tokens": _prompt_tokens(requests, failed, chosen.percentiles),
        "by_label": by_label(
            requests.run.records.failures, requests.rows["failure"][failed], chosen.max_error_messages
        ),
    }


def _retries(requests: Requests, own: Mask, chosen: Options) -> Report | None:
    """What retries cost; None if there were none."""
    retried = own & requests.retried
    count = int(np.count_nonzero(retried))
    if not count:
        return None
    recovered = int(np.count_nonzero(retried & requests.ok))
    attempts = np.maximum(requests.rows["attempts"][retried].astype(np.int64) - 1, 1)
    wasted = requests.wasted[retried]
    return {
        "requests_retried": count,
        "attempts": int(attempts.sum()),
        "recovered": recovered,
        "failed_after_retry": count - recovered,
        "wasted_sec_total": known_sum(wasted),
        "wasted_sec": distribution(wasted, chosen.percentiles),
    }
