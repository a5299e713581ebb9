"""vLLM's own metrics beside ours: a queue, a KV cache that overflows, and counts and times that must agree with the records.

The server runs at most 4 requests at a time, and its KV cache has 8 blocks of 128 tokens (a ninth is reserved), so that 8 users
make it queue, and long responses make it preempt. It drafts tokens by looking up the last one in the text before.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import cli
from real_server import measure, started

from inferometer.analysis.server_view import ServerView
from inferometer.analysis.summary import Summary
from inferometer.records import Run
from inferometer.report import console

pytestmark = pytest.mark.vllm

RUNNING, USERS = 4, 8
OFTEN = {"interval": "50ms"}
REQUESTS = 40
DRAFTS = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}'


@pytest.fixture(scope="module")
def vllm() -> Iterator[dict[str, Any]]:
    options = ("--max-num-seqs", str(RUNNING), "--num-gpu-blocks-override", "9", "--speculative-config", DRAFTS)
    with started("vllm", *options) as ready:
        yield ready


@pytest.fixture(scope="module")
def queued(vllm: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Summary]:
    """A run with more users than the server has room for, of requests that fit into one block each."""
    return _measure(tmp_path_factory.mktemp("queued"), vllm, {"input": 16, "output": 40})


def test_the_report_has_running_waiting_and_cache_use(queued: tuple[Run, Summary]) -> None:
    run, summary = queued
    gauges = _view(summary).figures.gauges
    assert gauges["running"].max == RUNNING
    assert 0 < gauges["waiting"].mean <= gauges["waiting"].max <= USERS - 1
    assert 0 < gauges["kv_cache_use"].max <= 1
    assert list(_view(summary).figures.servers.values()) == ["vllm"]
    text = console.render(run, summary)
    assert "running" in text and "waiting" in text and "KV cache" in text


def test_the_server_counts_the_requests_and_tokens_that_the_client_counts(queued: tuple[Run, Summary]) -> None:
    run, summary = queued
    rows, counters = run.records.rows, _view(summary).figures.counters
    assert summary.counts.ok == REQUESTS, summary.failures
    assert counters["requests"].delta == REQUESTS
    assert counters["input_tokens"].delta == rows["n_in"].sum()
    assert counters["output_tokens"].delta == rows["n_out"].sum() == REQUESTS * 40
    assert counters["preemptions"].delta == 0
    for name in ("requests", "input_tokens", "output_tokens"):
        compared = _view(summary).comparison[name]
        assert compared.client == compared.server == counters[name].delta


def test_the_server_measures_no_longer_times_than_the_client(queued: tuple[Run, Summary]) -> None:
    """Its clock starts when it has read the request, and stops before it sends the response."""
    view = _view(queued[1])
    assert view.figures.histograms["ttft"].count == view.figures.histograms["e2e"].count == REQUESTS
    for name in ("ttft.mean", "e2e.mean"):
        assert 0 < view.comparison[name].server <= view.comparison[name].client
    assert (view.figures.histograms["queue_time"].mean or 0) > 0
    assert (view.figures.histograms["decode_time"].mean or 0) > 0
    assert (view.figures.histograms["prefill_time"].mean or 0) > 0


def test_drafted_and_accepted_tokens(queued: tuple[Run, Summary]) -> None:
    view = _view(queued[1])
    drafted, accepted = (view.figures.counters[name].delta for name in ("spec_drafted", "spec_accepted"))
    assert 0 <= accepted < drafted < 3 * REQUESTS * 40
    assert view.derived["spec_acceptance"] == pytest.approx(accepted / drafted)


def test_queueing_becomes_a_note(queued: tuple[Run, Summary]) -> None:
    run, summary = queued
    (note,) = (note for note in _view(summary).notes if "queued" in note)
    assert "waiting" in note
    assert "the server queued" in " ".join(console.render(run, summary).split())


def test_preemptions_become_a_note(tmp_path: Path, vllm: dict[str, Any]) -> None:
    run, summary = _measure(tmp_path, vllm, {"input": 16, "output": 190}, requests=8)
    view = _view(summary)
    assert summary.counts.ok == 8, summary.failures
    assert view.figures.counters["preemptions"].delta > 0
    assert view.figures.gauges["kv_cache_use"].max > 0.8
    assert view.figures.counters["output_tokens"].delta == run.records.rows["n_out"].sum() == 8 * 190
    assert any("preempt" in note for note in view.notes), view.notes


def test_cache_hits_that_were_not_meant_become_a_note(tmp_path: Path, vllm: dict[str, Any]) -> None:
    """The same prompts in two runs, each with one full block, all of which fit into the cache."""
    data = {"input": 40, "output": 4, "salt": "none"}
    _measure(tmp_path / "first", vllm, data, requests=3)
    run, summary = _measure(tmp_path / "second", vllm, data, requests=3)
    view = _view(summary)
    assert summary.counts.ok == 3, summary.failures
    assert 0 < view.figures.counters["prefix_cache_hits"].delta < view.figures.counters["prefix_cache_queries"].delta
    assert view.figures.counters["input_tokens"].delta == run.records.rows["n_in"].sum()
    assert any("prefix cache" in note for note in view.notes), view.notes


def test_the_command_shows_the_servers_figures_and_reproduces_its_report(
    tmp_path: Path, vllm: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    load = (
        "--concurrency",
        "8",
        "--requests",
        "24",
        "--input",
        "16",
        "--output",
        "20",
        "--set",
        "observe.interval=50ms",
    )
    live = cli("run", vllm["url"], "--quiet", *load)
    assert live.status in (0, 1), live  # on a shared machine it may be INVALID
    assert "waiting" in live.out, live
    again = cli("report", "runs/LATEST")
    assert again.out == live.out


def _measure(folder: Path, vllm: dict[str, Any], data: dict[str, Any], requests: int = REQUESTS) -> tuple[Run, Summary]:
    return measure(
        folder,
        vllm["url"],
        {"type": "closed", "concurrency": USERS, "requests": requests, "ramp_up": 0},
        server={"ignore_eos": True, "body": {"temperature": 0}},
        data={"type": "synthetic"} | data,
        observe=OFTEN,
    )


def _view(summary: Summary) -> ServerView:
    assert summary.server is not None
    return summary.server
