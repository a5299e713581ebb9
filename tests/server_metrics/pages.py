"""Pages of metrics as servers write them, and series as a scraper stores them."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from shared_data import SHARED

from inferometer.series import Column, TimeSeries
from inferometer.server_metrics.exposition import parse
from inferometer.server_metrics.figures import SOURCE, UP, Figures, figures
from inferometer.units import NS

MADE = Path(__file__).parent / "made"
"""Pages with values of our own, as servers write them."""
DUMPS = SHARED / "data" / "metrics"
A, B = "http://a:8000/metrics", "http://b:8000/metrics"

Sample = tuple[str, dict[str, str], float]

VLLM_BEFORE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.2
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.4
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.2
vllm:gpu_cache_usage_perc{engine="1",model_name="m"} 0.4
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 100.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 1.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"} 1.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.2",model_name="m"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.4",model_name="m"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 1.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 1.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 0.05
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.77100800497e+09
"""
VLLM_AFTER = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 4.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 6.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.9
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1100.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 9.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 2.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"} 2.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.2",model_name="m"} 5.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.4",model_name="m"} 10.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 11.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 11.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 2.55
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.77100800497e+09
"""


def read(path: Path) -> list[Sample]:
    """Return the samples of a page."""
    return parse(path.read_text(encoding="utf-8"))


def scraped(pages: Mapping[float, Iterable[Sample] | None], target: str = A) -> tuple[TimeSeries, ...]:
    """Return what is stored when these pages are scraped at these instants (seconds); None: the scrape failed."""
    up = Column(SOURCE, UP, {"target": target})
    columns: dict[tuple[str, str], Column] = {}
    for second, page in pages.items():
        at = round(second * NS)
        up.append(at, float(page is not None))
        present = {(name, str(labels)): (name, labels, value) for name, labels, value in page or ()}
        for key, (name, labels, value) in present.items():
            column = columns.setdefault(key, Column(SOURCE, name, labels | {"target": target}))
            column.append_change(at, value)
        has_buckets = any("le" in labels for _, labels, _ in present.values())
        for key in columns.keys() - present.keys() if page is not None else ():
            if has_buckets or not key[0].endswith("_bucket"):
                columns[key].append_change(at, math.nan)
    return (up.series(), *(column.series() for column in columns.values()))


def window(series: Iterable[TimeSeries], begin: float, end: float, model: str = "") -> Figures:
    """Return the figures of a window in seconds."""
    return figures(tuple(series), round(begin * NS), round(end * NS), model)


def totals(samples: Iterable[Sample], model: str = "") -> Figures:
    """Return the figures since the start of a server: of a page with nothing before it."""
    return window(scraped({0: [], 1: samples}), 0, 1, model)
