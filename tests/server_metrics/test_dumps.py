"""Pages of each kind of server map to the expected quantities, and pairs from around a load give the right deltas."""

import csv
from pathlib import Path

import pytest
from server_metrics.pages import DUMPS, MADE, read, scraped, totals, window
from shared_data import needs_shared

from inferometer.server_metrics.families import SERVERS, known

Pages = dict[str, tuple[str, dict[str, float]]]

_MADE: Pages = {
    "vllm_v0.txt": ("vllm", {"running": 3, "waiting": 2, "swapped": 1, "kv_cache_use": 0.25, "preemptions": 4, "requests": 11, "input_tokens": 900, "output_tokens": 310, "ttft": 12, "itl": 298, "e2e": 11}),
    "vllm_v1.txt": ("vllm", {"running": 4, "waiting": 1, "kv_cache_use": 0.5, "prefix_cache_queries": 600, "prefix_cache_hits": 128, "preemptions": 2, "requests": 9, "failures": 2, "aborted": 3, "input_tokens": 640, "output_tokens": 50632753152, "ttft": 10, "itl": 190, "tpot": 9, "e2e": 9, "queue_time": 10, "inference_time": 9, "prefill_time": 10, "decode_time": 9}),
    "ray_vllm.txt": ("ray_vllm", {"running": 3, "waiting": 2, "swapped": 1, "kv_cache_use": 0.25, "preemptions": 4, "requests": 11, "input_tokens": 1000, "output_tokens": 310, "ttft": 12, "itl": 298, "e2e": 11}),
    "sglang.txt": ("sglang", {"running": 40, "waiting": 8, "kv_cache_use": 0.75, "prefix_cache_hit_rate": 0.125, "requests": 200, "input_tokens": 512001.2, "output_tokens": 64000, "ttft": 210, "itl": 9000, "e2e": 200}),
    "nim.txt": ("nim", {"running": 2, "waiting": 6, "kv_cache_use": 0.0625, "requests": 8, "failures": 1, "input_tokens": 220, "output_tokens": 350, "ttft": 9, "itl": 341, "e2e": 8}),
    "triton.txt": ("triton", {"waiting": 3, "requests": 7, "failures": 1, "inferences": 22, "executions": 7, "e2e_seconds": 1.0, "queue_seconds": 0.0035, "compute_seconds": 0.8935, "gpu_use": 0.5, "gpu_memory": 3e9, "gpu_power": 61.5, "gpu_energy": 12345.5}),
    "triton_trtllm.txt": ("triton_trtllm", {"running": 7, "waiting": 2, "kv_cache_use": 0.375}),
    "trtllm.txt": ("trtllm", {"requests": 60, "ttft": 60, "tpot": 60, "e2e": 60, "queue_time": 60}),
    "tgi.txt": ("tgi", {"running": 6, "waiting": 3, "requests": 14, "failures": 1, "input_tokens": 600, "output_tokens": 280, "tpot": 14, "e2e": 14, "queue_time": 14, "inference_time": 14, "prefill_time": 9}),
    "llamacpp.txt": ("llamacpp", {"running": 2, "waiting": 5, "input_tokens": 3300, "output_tokens": 820, "executions": 840, "prefill_seconds": 2.75, "decode_seconds": 8.5}),
    "llamacpp_cached.txt": ("llamacpp", {"running": 2, "waiting": 5, "prefix_cache_hits": 700, "input_tokens": 4000, "output_tokens": 820, "executions": 840}),
    "litellm.txt": ("litellm", {"requests": 20, "failures": 3, "input_tokens": 410, "output_tokens": 150, "ttft": 19, "e2e": 20}),
    "dcgm.txt": ("dcgm", {"gpu_use": 0.75, "gpu_memory": 1536 * 2**20, "gpu_power": 200, "gpu_energy": 12, "gpu_temperature": 45, "gpu_clock": 1000}),
}  # fmt: skip
_DUMPS: Pages = {
    "vllm_v0_metrics.txt": ("vllm", {"running": 0, "waiting": 0, "swapped": 0, "kv_cache_use": 0, "preemptions": 0, "requests": 1, "input_tokens": 5, "output_tokens": 7, "ttft": 1, "itl": 6, "e2e": 1}),
    "vllm_ray_serve_metrics.txt": ("ray_vllm", {"running": 0, "waiting": 0, "swapped": 0, "kv_cache_use": 5.882698982295764e-05, "preemptions": 0, "requests": 1, "input_tokens": 58, "output_tokens": 300, "ttft": 1, "itl": 299, "e2e": 1}),
    "sglang_metrics.txt": ("sglang", {"running": 162, "waiting": 2826, "kv_cache_use": 0.28, "prefix_cache_hit_rate": 0.007507552643049313, "requests": 11228, "input_tokens": 8128902, "output_tokens": 7557572, "ttft": 11008, "itl": 7400757, "e2e": 11228}),
    "nvidia_nim_metrics.txt": ("nim", {"running": 1, "waiting": 0, "kv_cache_use": 0.0002848191398461977, "requests": 5, "failures": 0, "input_tokens": 109, "output_tokens": 174, "ttft": 5, "itl": 169, "e2e": 5}),
    "triton_metrics.txt": ("triton", {"waiting": 0, "requests": 3, "failures": 0, "inferences": 3, "executions": 3, "e2e_seconds": 1.327965, "queue_seconds": 0.000145, "compute_seconds": 1.327518, "gpu_use": 0, "gpu_memory": 266338304, "gpu_power": 32.09, "gpu_energy": 4879631.328000044}),
    "triton_trtllm_batch_manager_metrics.txt": ("triton_trtllm", {"running": 1, "waiting": 1, "kv_cache_use": 0.4875}),
    "trtllm_doc_sample.txt": ("trtllm", {"requests": 155, "ttft": 150, "tpot": 150, "e2e": 150, "queue_time": 150}),
    "llamacpp_2025.txt": ("llamacpp", {"running": 0, "waiting": 0, "input_tokens": 33065, "output_tokens": 7801, "executions": 7831, "prefill_seconds": 235.743, "decode_seconds": 279.178}),
    "llamacpp_2026_partial.txt": ("llamacpp", {"running": 3, "waiting": 0, "prefix_cache_hits": 129725, "input_tokens": 207179, "output_tokens": 1426, "executions": 424}),
    "litellm_proxy_metrics.txt": ("litellm", {"requests": 0, "failures": 7, "input_tokens": 0, "output_tokens": 0, "ttft": 0, "e2e": 0}),
    "dcgm_exporter_metrics.txt": ("dcgm", {"gpu_use": 0, "gpu_memory": 0, "gpu_power": 8.969, "gpu_energy": 128996.013, "gpu_temperature": 25, "gpu_clock": 300}),
}  # fmt: skip


def check(path: Path, kind: str, expected: dict[str, float]) -> None:
    found = totals(read(path))
    values = {name: gauge.mean for name, gauge in found.gauges.items()}
    values |= {name: counter.delta for name, counter in found.counters.items()}
    values |= {name: histogram.count for name, histogram in found.histograms.items()}
    assert values == pytest.approx(expected)
    assert list(found.servers.values()) == [kind]


@pytest.mark.parametrize("name", _MADE)
def test_page_maps_to_the_expected_quantities(name: str) -> None:
    check(MADE / name, *_MADE[name])


@needs_shared
def test_dumps_of_real_servers_map_to_the_expected_quantities() -> None:
    for name, expected in _DUMPS.items():
        check(DUMPS / name, *expected)


def test_families_that_were_absent_before_a_load_count_from_zero() -> None:
    found = window(scraped({0: read(MADE / "dynamo_before.prom"), 60: read(MADE / "dynamo_after.prom")}), 0, 60, "tiny")
    deltas = {name: counter.delta for name, counter in found.counters.items()}
    assert deltas == {"prefix_cache_hits": 1200, "requests": 100, "input_tokens": 5000, "output_tokens": 2100}
    counts = {name: histogram.count for name, histogram in found.histograms.items()}
    assert counts == {"ttft": 100, "itl": 2000, "e2e": 100}
    quantiles = found.histograms["ttft"].quantiles
    assert (quantiles["p50"], quantiles["p90"]) == pytest.approx((1 + 1.2 * 10 / 40, 2.2 + 2.5 * 10 / 20))
    assert found.missing == {}


def test_quantiles_above_the_last_bucket_are_not_known() -> None:
    found = totals(read(MADE / "sglang.txt"))
    assert found.histograms["ttft"].quantiles == {"p50": None, "p90": None, "p99": None}


def test_histograms_without_the_last_bucket_take_their_count_for_it() -> None:
    found = totals(read(MADE / "trtllm.txt"))
    assert found.histograms["tpot"].below["p50"] == 0.1
    assert found.histograms["ttft"].quantiles["p50"] is None
    assert found.missing == {}


@needs_shared
def test_pair_around_a_load_on_vllm_gives_its_requests_and_tokens() -> None:
    pages = scraped({0: read(DUMPS / "vllm_v1_before.txt"), 60: read(DUMPS / "vllm_v1_after.txt")})
    found = window(pages, 0, 60, "Qwen/Qwen3-0.6B")
    deltas = {name: counter.delta for name, counter in found.counters.items()}
    assert deltas == {"prefix_cache_queries": 6192, "prefix_cache_hits": 0, "preemptions": 0, "requests": 6, "failures": 0, "aborted": 0, "input_tokens": 6203 - 11, "output_tokens": 6154 - 10}  # fmt: skip
    assert found.missing == {}
    ttft, itl, e2e = (found.histograms[name] for name in ("ttft", "itl", "e2e"))
    assert (ttft.count, itl.count, e2e.count) == (6, 6138, 6)
    assert ttft.mean == pytest.approx(0.0174, abs=1e-4)
    assert 0.01 <= (ttft.quantiles["p50"] or 0) <= 0.02
    assert itl.below == {"p50": 0.01, "p90": 0.01, "p99": 0.01}
    assert 5 <= (e2e.quantiles["p50"] or 0) <= 10


@needs_shared
def test_pair_around_a_load_on_dynamo_counts_families_that_were_absent_before() -> None:
    pages = scraped({0: read(DUMPS / "dynamo_frontend_pre.prom"), 60: read(DUMPS / "dynamo_frontend_post.prom")})
    found = window(pages, 0, 60, "openai/gpt-oss-120b")
    deltas = {name: counter.delta for name, counter in found.counters.items()}
    assert deltas == {"prefix_cache_hits": 376135760, "requests": 10913, "input_tokens": 389667809, "output_tokens": 2596886}  # fmt: skip
    assert {name: found.histograms[name].count for name in ("ttft", "itl", "e2e")} == {"ttft": 10913, "itl": 2585973, "e2e": 10913}  # fmt: skip
    quantiles = found.histograms["ttft"].quantiles
    assert quantiles["p50"] == pytest.approx(1 + 1.2 * (10913 / 2 - 4371) / (8874 - 4371))
    assert 2.2 <= (quantiles["p90"] or 0) <= (quantiles["p99"] or 0) <= 4.7
    assert found.missing == {}


@needs_shared
def test_documented_families_of_tgi_are_known() -> None:
    with (DUMPS / "tgi_metric_families.csv").open(encoding="utf-8") as file:
        kinds = {row["name"]: row["type"] for row in csv.DictReader(file)}
    offered = {f"tgi_{name.removesuffix('_sum')}" for row in SERVERS["tgi"].rows for name in row.names}
    assert offered - kinds.keys() == {"tgi_request_failure"}  # the document leaves it out, but the router has it
    assert all(known(name) for name, kind in kinds.items() if kind != "Histogram" and name in offered)


@needs_shared
def test_families_of_vllm_0_26_are_known() -> None:
    lines = (DUMPS / "vllm_metric_families_v0.26.0.txt").read_text(encoding="utf-8").splitlines()
    names = dict(line.split() for line in lines if not line.startswith("#"))
    found = {source.quantity for name, kind in names.items() for source in known(name + "_count" * (kind == "histogram")) or ()}  # fmt: skip
    assert found == {"running", "waiting", "kv_cache_use", "prefix_cache_queries", "prefix_cache_hits", "preemptions", "requests", "failures", "aborted", "input_tokens", "output_tokens", "ttft", "itl", "tpot", "e2e", "queue_time", "inference_time", "prefill_time", "decode_time"}  # fmt: skip
