"""Recorded pages of real servers map to the expected quantities, and pairs recorded around a load give the right deltas."""

import csv

import pytest
from server_metrics.pages import DUMPS, dump, scraped, totals, window

from inferometer.server_metrics.families import SERVERS, known

pytestmark = pytest.mark.skipif(not DUMPS.is_dir(), reason="shared/data/metrics is not beside the repository")

_PAGES: dict[str, tuple[str, dict[str, float]]] = {
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


@pytest.mark.parametrize("name", _PAGES)
def test_page_maps_to_the_expected_quantities(name: str) -> None:
    kind, expected = _PAGES[name]
    found = totals(dump(name))
    values = {name: gauge.mean for name, gauge in found.gauges.items()}
    values |= {name: counter.delta for name, counter in found.counters.items()}
    values |= {name: histogram.count for name, histogram in found.histograms.items()}
    assert values == pytest.approx(expected)
    assert list(found.servers.values()) == [kind]


def test_pair_around_a_load_on_vllm_gives_its_requests_and_tokens() -> None:
    pages = scraped({0: dump("vllm_v1_before.txt"), 60: dump("vllm_v1_after.txt")})
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


def test_pair_around_a_load_on_dynamo_counts_families_that_were_absent_before() -> None:
    pages = scraped({0: dump("dynamo_frontend_pre.prom"), 60: dump("dynamo_frontend_post.prom")})
    found = window(pages, 0, 60, "openai/gpt-oss-120b")
    deltas = {name: counter.delta for name, counter in found.counters.items()}
    assert deltas == {"prefix_cache_hits": 376135760, "requests": 10913, "input_tokens": 389667809, "output_tokens": 2596886}  # fmt: skip
    assert {name: found.histograms[name].count for name in ("ttft", "itl", "e2e")} == {"ttft": 10913, "itl": 2585973, "e2e": 10913}  # fmt: skip
    quantiles = found.histograms["ttft"].quantiles
    assert quantiles["p50"] == pytest.approx(1 + 1.2 * (10913 / 2 - 4371) / (8874 - 4371))
    assert 2.2 <= (quantiles["p90"] or 0) <= (quantiles["p99"] or 0) <= 4.7
    assert found.missing == {}


def test_quantiles_above_the_last_bucket_are_not_known() -> None:
    assert totals(dump("sglang_metrics.txt")).histograms["ttft"].quantiles == {"p50": None, "p90": None, "p99": None}


def test_histograms_without_the_last_bucket_take_their_count_for_it() -> None:
    found = totals(dump("trtllm_doc_sample.txt"))
    assert found.histograms["tpot"].below["p50"] == 0.1
    assert found.histograms["ttft"].quantiles["p50"] is None
    assert found.missing == {}


def test_documented_families_of_tgi_are_known() -> None:
    with (DUMPS / "tgi_metric_families.csv").open(encoding="utf-8") as file:
        kinds = {row["name"]: row["type"] for row in csv.DictReader(file)}
    offered = {f"tgi_{name.removesuffix('_sum')}" for row in SERVERS["tgi"].rows for name in row.names}
    assert offered - kinds.keys() == {"tgi_request_failure"}  # the document leaves it out, but the router has it
    assert all(known(name) for name, kind in kinds.items() if kind != "Histogram" and name in offered)


def test_families_of_vllm_0_26_are_known() -> None:
    lines = (DUMPS / "vllm_metric_families_v0.26.0.txt").read_text(encoding="utf-8").splitlines()
    names = dict(line.split() for line in lines if not line.startswith("#"))
    found = {source.quantity for name, kind in names.items() for source in known(name + "_count" * (kind == "histogram")) or ()}  # fmt: skip
    assert found == {"running", "waiting", "kv_cache_use", "prefix_cache_queries", "prefix_cache_hits", "preemptions", "requests", "failures", "aborted", "input_tokens", "output_tokens", "ttft", "itl", "tpot", "e2e", "queue_time", "inference_time", "prefill_time", "decode_time"}  # fmt: skip
