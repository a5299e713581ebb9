"""The table of metrics: every name leads to its quantity, in our unit, and none counts twice."""

import re

import pytest
from server_metrics.pages import VLLM_AFTER, VLLM_BEFORE, Sample, parse, totals

from inferometer.server_metrics import families
from inferometer.server_metrics.families import SERVERS, known, latest, name_pattern
from inferometer.server_metrics.vocabulary import QUANTITIES


def _values(*samples: Sample, model: str = "") -> dict[str, float]:
    """All figures of a page: the means of gauges, the values of counters, the counts of histograms."""
    found = totals(samples, model)
    levels = {name: gauge.mean for name, gauge in found.gauges.items()}
    counts = {name: counter.delta for name, counter in found.counters.items()}
    return levels | counts | {name: histogram.count for name, histogram in found.histograms.items()}


def test_every_row_names_a_quantity_and_no_server_names_a_metric_twice_for_it() -> None:
    for server in SERVERS.values():
        rows = [(row.quantity, row.names, row.only) for row in server.rows]
        assert len(set(rows)) == len(rows)
        assert {row.quantity for row in server.rows} <= QUANTITIES.keys()


def test_every_quantity_is_offered_by_some_server() -> None:
    assert {row.quantity for server in SERVERS.values() for row in server.rows} == QUANTITIES.keys()


def test_mlserver_reports_requests_failures_and_their_time() -> None:
    names = {
        "request_success_total": 53.0,
        "request_failure_total": 1.0,
        "request_duration_sum": 0.0066,
        "request_duration_count": 54.0,
    }
    samples = [(f"model_infer_{name}", {"model": "sum", "version": "None"}, value) for name, value in names.items()]
    assert _values(*samples, model="sum") == {"requests": 53, "failures": 1, "e2e_seconds": 0.0066}


@pytest.mark.parametrize("name", ["vllm:num_requests_running", "nv_inference_pending_request_count"])
def test_our_own_server_is_recognised_although_its_metrics_have_the_names_of_others(name: str) -> None:
    found = totals([(name, {}, 3.0), ("inferometer_serve_info", {"version": "1"}, 1.0)])
    assert list(found.servers.values()) == ["inferometer"]
    assert [gauge.mean for gauge in found.gauges.values()] == [3.0], "the other one only tells which server it is"
    assert found.missing == {}


@pytest.mark.parametrize("name", ["vllm:prompt_tokens_total", "vllm:prompt_tokens", "vllm_prompt_tokens_total", "ray_vllm_prompt_tokens_total", "prompt_tokens_total"])  # fmt: skip
def test_names_are_known_with_and_without_total_and_with_either_separator(name: str) -> None:
    assert _values((name, {"model_name": "m"}, 7.0)) == {"input_tokens": 7.0}


@pytest.mark.parametrize("name", ["up", "vllm:prompt_tokens_created", "vllm:iteration_tokens_total", "vllm:time_to_first_token_seconds", "python_info", ""])  # fmt: skip
def test_other_names_are_not_known(name: str) -> None:
    assert known(name) is None
    assert not re.fullmatch(name_pattern(), name)


def test_pattern_matches_every_known_name_and_has_nothing_that_re2_lacks() -> None:
    pattern = re.compile(name_pattern())
    for server in SERVERS.values():
        for row in server.rows:
            for name in row.names:
                is_histogram = QUANTITIES[row.quantity].kind == "histogram"
                for suffix in ("_bucket", "_sum", "_count") if is_histogram else ("", "_total"):
                    raw = server.prefix + name + suffix
                    assert known(raw) and pattern.fullmatch(raw) and pattern.fullmatch(raw.replace(":", "_")), raw
    assert pattern.fullmatch(families.PROCESS_START)
    assert set(re.findall(r"\(\?.|\\.", name_pattern())) == {"(?:"}


@pytest.mark.parametrize(
    ("name", "labels", "value", "expected"),
    [
        ("nv_inference_queue_duration_us", {}, 5e6, {"queue_seconds": 5.0}),
        ("DCGM_FI_DEV_GPU_UTIL", {}, 75.0, {"gpu_use": 0.75}),
        ("DCGM_FI_DEV_FB_USED", {}, 2.0, {"gpu_memory": 2.0 * 2**20}),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", {}, 2500.0, {"gpu_energy": 2.5}),
        ("nv_trt_llm_request_metrics", {"request_type": "waiting"}, 3.0, {"waiting": 3.0}),
        ("nv_trt_llm_request_metrics", {"request_type": "scheduled"}, 3.0, {"running": 3.0}),
        ("nv_trt_llm_request_metrics", {"request_type": "max"}, 3.0, {}),
        ("tgi_request_generated_tokens_sum", {}, 40.0, {"output_tokens": 40.0}),
        ("tgi_batch_inference_duration_count", {"method": "prefill"}, 4.0, {"prefill_time": 4.0}),
        ("tgi_batch_inference_duration_count", {"method": "decode"}, 4.0, {}),
        ("vllm:request_success_total", {"finished_reason": "error"}, 2.0, {"failures": 2.0}),
        ("vllm:request_success_total", {"finished_reason": "abort"}, 2.0, {"aborted": 2.0}),
        ("vllm:request_success_total", {"finished_reason": "stop"}, 2.0, {"requests": 2.0}),
        ("dynamo_frontend_requests_total", {"status": "error"}, 2.0, {"failures": 2.0}),
        ("vllm:gpu_prefix_cache_hit_rate", {}, -1.0, {}),
        ("vllm:num_requests_running", {}, float("nan"), {}),
    ],
)
def test_values_are_in_our_units_and_labels_tell_quantities_apart(
    name: str, labels: dict[str, str], value: float, expected: dict[str, float]
) -> None:
    assert _values((name, labels, value)) == expected


def test_old_and_new_name_of_a_quantity_count_once() -> None:
    page = [("vllm:gpu_cache_usage_perc", {}, 0.5), ("vllm:kv_cache_usage_perc", {}, 0.5), ("vllm:gpu_prefix_cache_hits_total", {}, 9.0), ("vllm:prefix_cache_hits_total", {}, 9.0)]  # fmt: skip
    assert _values(*page) == {"kv_cache_use": 0.5, "prefix_cache_hits": 9.0}
    assert latest(page) == {"kv_cache_use": 0.5}


def test_metrics_that_are_parts_of_a_quantity_are_added_up() -> None:
    assert _values(("llamacpp:prompt_tokens_total", {}, 10.0))["input_tokens"] == 10
    both = _values(("llamacpp:prompt_tokens_total", {}, 10.0), ("llamacpp:prompt_tokens_cached_total", {}, 5.0))
    assert both == {"input_tokens": 15.0, "prefix_cache_hits": 5.0}
    compute = [(f"nv_inference_compute_{part}_duration_us", {}, 1e6) for part in ("input", "infer", "output")]
    assert _values(*compute) == {"compute_seconds": 3.0}


def test_request_count_of_a_server_without_one_is_that_of_its_latency_histogram() -> None:
    latency = ("sglang:e2e_request_latency_seconds_count", {}, 5.0)
    assert _values(latency)["requests"] == 5
    assert _values(latency, ("sglang:num_requests_total", {}, 7.0))["requests"] == 7


def test_milliseconds_of_a_histogram_become_seconds_edges_included() -> None:
    name = "nv_inference_first_response_histogram_ms"
    page = [(f"{name}_bucket", {"le": "20"}, 0.0), (f"{name}_bucket", {"le": "80"}, 4.0), (f"{name}_bucket", {"le": "+Inf"}, 4.0), (f"{name}_count", {}, 4.0), (f"{name}_sum", {}, 200.0)]  # fmt: skip
    ttft = totals(page).histograms["ttft"]
    assert (ttft.mean, ttft.quantiles["p50"]) == pytest.approx((0.05, 0.05))


def test_live_figures_put_label_sets_together() -> None:
    assert latest(parse(VLLM_BEFORE)) == pytest.approx({"running": 5, "waiting": 0, "kv_cache_use": 0.3})
    assert latest(parse(VLLM_AFTER)) == pytest.approx({"running": 5, "waiting": 6, "kv_cache_use": 0.7})
    assert latest([]) == {}


def test_only_the_measured_model_counts_if_it_is_labelled() -> None:
    page = [("vllm:num_requests_running", {"model_name": "m"}, 2.0), ("vllm:num_requests_running", {"model_name": "n"}, 5.0)]  # fmt: skip
    assert latest(page, "m") == _values(*page, model="m") == {"running": 2.0}
    assert latest(page, "other") == _values(*page, model="other") == {"running": 7.0}


def test_on_a_page_with_several_servers_the_one_with_the_measured_model_counts() -> None:
    page = [("nv_inference_pending_request_count", {"model": "onnx"}, 2.0), ("vllm:num_requests_waiting", {"model_name": "llm"}, 5.0)]  # fmt: skip
    assert latest(page)["waiting"] == 5
    assert latest(page, "onnx") == _values(*page, model="onnx") == {"waiting": 2.0}
