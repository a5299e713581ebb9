"""The metrics of two replicas in one run: counters are summed, gauges kept apart, histograms merged."""

from collections.abc import Iterator

import numpy as np
import pytest
from helpers import measure

from inferometer.analysis.server_view import ServerView
from inferometer.analysis.summary import Summary
from inferometer.records import Run
from inferometer.report import console
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed
from inferometer.server_metrics.figures import SOURCE

FAST, SLOW = 0.01, 0.05
"""TTFT of the two replicas."""
USERS, REQUESTS, TOKENS = 8, 32, 3


@pytest.fixture(scope="module")
def replicas() -> Iterator[list[str]]:
    """Two simulators, which serve one request at a time each."""
    fast, slow = (simulator(timing=Fixed(ttft=ttft, itl=0.001, max_batch=1)) for ttft in (FAST, SLOW))
    with running(fast) as first, running(slow) as second:
        yield [first, second]


@pytest.fixture(scope="module")
def both(replicas: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Summary]:
    return measure(
        tmp_path_factory.mktemp("both"),
        replicas,
        server={"model": "sim"},
        data={"type": "prompts", "prompts": ["hello"], "output": TOKENS},
        load={"type": "closed", "concurrency": USERS, "requests": REQUESTS, "ramp_up": 0},
        observe={"interval": "20ms"},
    )


def test_counters_of_replicas_are_summed(both: tuple[Run, Summary]) -> None:
    run, summary = both
    view = _view(summary)
    assert summary.counts.ok == REQUESTS
    counted = {name: figure.delta for name, figure in view.figures.counters.items()}
    assert counted["requests"] == REQUESTS
    assert counted["output_tokens"] == run.records.rows["n_out"].sum() == REQUESTS * TOKENS
    assert counted["input_tokens"] == run.records.rows["n_in"].sum()
    for name in ("requests", "input_tokens", "output_tokens"):
        assert view.comparison[name].client == view.comparison[name].server == counted[name]


def test_gauges_of_replicas_are_kept_apart(both: tuple[Run, Summary], replicas: list[str]) -> None:
    view = _view(both[1])
    targets = [f"{url}/metrics" for url in replicas]
    assert set(view.figures.servers) == set(targets)
    for name in ("running", "waiting"):
        gauge = view.figures.gauges[name]
        assert set(gauge.by_target) == set(targets)
        assert gauge.mean == pytest.approx(sum(gauge.by_target.values()), rel=0.2)
    assert 1 < view.figures.gauges["running"].max <= 2
    assert any("queued" in note for note in view.notes), view.notes


def test_histograms_of_replicas_are_merged(both: tuple[Run, Summary]) -> None:
    """Its upper end is that of the slow replica, and its mean that of all requests, as the client measured them."""
    run, summary = both
    view = _view(summary)
    ttft = view.figures.histograms["ttft"]
    rows = run.records.rows
    client = (rows["first_token"] - rows["sent"]) / 1e9
    assert ttft.count == REQUESTS
    assert ttft.mean is not None and FAST < ttft.mean <= client.mean()
    assert ttft.quantiles["p99"] is not None and ttft.quantiles["p99"] >= SLOW
    assert view.comparison["ttft.mean"].server <= view.comparison["ttft.mean"].client
    assert np.isclose(view.comparison["ttft.mean"].server, ttft.mean)


@pytest.mark.slow
def test_series_of_replicas_have_their_target(both: tuple[Run, Summary], replicas: list[str]) -> None:
    run, summary = both
    scraped = [each for each in run.series() if each.source == SOURCE]
    assert {each.labels["target"] for each in scraped} == {f"{url}/metrics" for url in replicas}
    text = console.render(run, summary)
    assert "waiting" in text and "running" in text


def _view(summary: Summary) -> ServerView:
    assert summary.server is not None
    return summary.server
