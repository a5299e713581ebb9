"""Pages of real servers, recorded here before, during and after a load of 24 requests: what the figures must say about it.

vLLM 0.32.0 (CPU build, at most 2 requests at a time, speculative decoding by n-grams, one request before; excerpt), llama.cpp of
October 2026 (4 slots), and Triton 2.51 (a model that takes 20 ms, and one that is not used; 8 requests on a machine with a GPU). The responses of vLLM and llama.cpp
have 40 tokens each.
"""

from pathlib import Path

import pytest
from pages import scraped, window

from inferometer.server_metrics.exposition import parse
from inferometer.server_metrics.figures import Figures

PAGES = Path(__file__).parent / "recorded"


def recorded(server: str, model: str) -> Figures:
    """The figures of the three pages, as if they had been scraped at 0, 1 and 2 s."""
    texts = [(PAGES / f"{server}_{when}.txt").read_text() for when in ("before", "during", "after")]
    pages = {second: [(name, dict(labels), value) for name, labels, value in parse(text)] for second, text in enumerate(texts)}  # fmt: skip
    return window(scraped(pages), 0, 2, model)


def test_vllm() -> None:
    found = recorded("vllm_0.32.0", "tiny-llama")
    assert list(found.servers.values()) == ["vllm"]
    assert (found.gauges["running"].max, found.gauges["waiting"].max) == (1, 18), "not also those of waiting_by_reason"
    assert found.gauges["kv_cache_use"].max == pytest.approx(1 / 4095)
    counted = {name: figure.delta for name, figure in found.counters.items()}
    assert counted["requests"] == 24
    assert (counted["input_tokens"], counted["output_tokens"]) == (206, 24 * 40), "not also those of tokens_by_source"
    assert (counted["prefix_cache_queries"], counted["prefix_cache_hits"], counted["preemptions"]) == (206, 0, 0)
    assert (counted["spec_drafted"], counted["spec_accepted"]) == (44, 1), "not also those of accepted_tokens_per_pos"
    sums = {"ttft": 37.67598, "e2e": 46.07330, "queue_time": 36.80356, "prefill_time": 0.12736, "decode_time": 8.42535}
    for name, total in sums.items():
        assert found.histograms[name].count == 24
        assert found.histograms[name].mean == pytest.approx(total / 24, rel=1e-4)
    assert found.histograms["itl"].count == 24 * 39 - 1, "an accepted token comes with another: there is no gap"


def test_llama_cpp() -> None:
    found = recorded("llama_cpp_2026.10", "tiny-llama")
    assert list(found.servers.values()) == ["llamacpp"]
    assert (found.gauges["running"].max, found.gauges["waiting"].max) == (4, 13)
    counted = {name: figure.delta for name, figure in found.counters.items()}
    assert (counted["input_tokens"], counted["output_tokens"]) == (206, 24 * 40), "computed and cached prompt tokens"
    assert 0 < counted["prefill_seconds"] < counted["decode_seconds"]
    assert "requests" not in counted, "it does not count them"


def test_triton() -> None:
    found = recorded("triton_2.51", "slow")
    assert list(found.servers.values()) == ["triton"]
    assert found.gauges["waiting"].max == 16
    counted = {name: figure.delta for name, figure in found.counters.items()}
    assert (counted["requests"], counted["inferences"], counted["executions"], counted["failures"]) == (24, 24, 24, 0)
    assert counted["queue_seconds"] == pytest.approx(5.907131)
    assert counted["compute_seconds"] == pytest.approx((486 + 509880 + 5403) / 1e6)
    assert not [name for name in found.gauges if name.startswith("gpu_")], "this machine has no GPU"


def test_a_model_that_is_not_used_has_no_requests() -> None:
    found = recorded("triton_2.51", "identity")
    assert found.counters["requests"].delta == 0 and found.gauges["waiting"].max == 0


def test_triton_with_a_gpu() -> None:
    """An H200 under full load; nvidia-smi reported 100 %, 1,471 MiB and 690.03 W at the time of the second page."""
    found = recorded("triton_gpu_2.51", "burn")
    assert (found.gauges["waiting"].max, found.gauges["gpu_use"].max) == (6, 1)
    assert found.gauges["gpu_memory"].max == pytest.approx(1_471 * 2**20, rel=0.001)
    assert found.gauges["gpu_power"].max == pytest.approx(690.03, rel=0.002)
    assert found.counters["requests"].delta == 8
    assert found.counters["gpu_energy"].delta > 0
