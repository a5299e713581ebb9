"""llama.cpp's own metrics beside ours. It has no counter of requests and no histograms, only sums of prefill and decode seconds."""

from collections.abc import Iterator

import pytest
from real_server import measure, started

from inferometer.analysis.server_view import ServerView
from inferometer.analysis.summary import Summary
from inferometer.records import Run
from inferometer.report import console

pytestmark = pytest.mark.llama_cpp

SLOTS, USERS, REQUESTS, TOKENS = 4, 8, 48, 100


@pytest.fixture(scope="module")
def queued(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, Summary]]:
    """A run with more users than the server has slots."""
    load = {"type": "closed", "concurrency": USERS, "requests": REQUESTS, "ramp_up": 0}
    folder = tmp_path_factory.mktemp("queued")
    with started("llama_cpp") as ready:
        data = {"type": "synthetic", "input": 16, "output": TOKENS}
        yield measure(folder, ready["url"], load, data=data, observe={"interval": "20ms"})


def test_the_report_has_running_and_waiting(queued: tuple[Run, Summary]) -> None:
    run, summary = queued
    gauges = _view(summary).figures.gauges
    assert 0 < gauges["running"].max <= SLOTS
    assert 0 < gauges["waiting"].mean <= gauges["waiting"].max <= USERS - 1
    assert list(_view(summary).figures.servers.values()) == ["llamacpp"]
    text = console.render(run, summary)
    assert "running" in text and "waiting" in text


def test_the_server_counts_the_tokens_that_the_client_counts(queued: tuple[Run, Summary]) -> None:
    run, summary = queued
    rows, view = run.records.rows, _view(summary)
    assert summary.counts.ok == REQUESTS, summary.failures
    assert view.figures.counters["output_tokens"].delta == rows["n_out"].sum() == REQUESTS * TOKENS
    assert view.figures.counters["input_tokens"].delta == rows["n_in"].sum(), "computed and cached ones"
    assert view.comparison["output_tokens"].client == view.comparison["output_tokens"].server
    assert view.comparison["input_tokens"].client == view.comparison["input_tokens"].server


def test_prefill_and_decode_seconds(queued: tuple[Run, Summary]) -> None:
    """The sums over all requests, none of which can take longer than the client waited for it."""
    run, summary = queued
    rows, counters = run.records.rows, _view(summary).figures.counters
    waited = float((rows["done"] - rows["sent"]).sum()) / 1e9
    assert 0 < counters["prefill_seconds"].delta < waited
    assert 0 < counters["decode_seconds"].delta < waited


def test_queueing_becomes_a_note(queued: tuple[Run, Summary]) -> None:
    assert any("queued" in note for note in _view(queued[1]).notes), _view(queued[1]).notes


def _view(summary: Summary) -> ServerView:
    assert summary.server is not None
    return summary.server
