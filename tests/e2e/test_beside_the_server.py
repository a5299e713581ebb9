"""The simulator's /metrics beside the client's figures in whole runs: both count the same requests and tokens."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from command import cli
from helpers import measure

from inferometer.analysis.server_view import ServerView
from inferometer.analysis.summary import Summary
from inferometer.report import console
from inferometer.serve.background import running, serving
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Batch

AUTO = {"prometheus": "auto"}
CLOSED = {"type": "closed", "concurrency": 8, "requests": 80}
DATA = {"type": "synthetic", "input": 20, "output": 12}


def view_of(summary: Summary) -> ServerView:
    assert summary.server is not None
    return summary.server


def agree(view: ServerView) -> bool:
    counted = [view.comparison[name] for name in ("requests", "input_tokens", "output_tokens")]
    return all(both.client == both.server for both in counted)


def test_both_count_the_same_requests_and_tokens(tmp_path: Path, sim: str) -> None:
    run, summary = measure(
        tmp_path, sim, server={"model": "sim"}, data=DATA, load=CLOSED, client={"probe": True}, observe=AUTO
    )
    view = view_of(summary)
    assert agree(view) and view.comparison["requests"].client == 80
    assert run.manifest.probe.requests > 0, "those of the probe do not count"
    assert view.figures.servers == {f"{sim}/metrics": "inferometer"}
    assert " server (inferometer serve) " in console.render(run, summary)
    assert {check.name: check.status for check in summary.checks if check.name in ("other_clients", "restarts")} == {
        "other_clients": "pass",
        "restarts": "pass",
    }


def test_our_own_server_under_two_addresses_counts_once(tmp_path: Path) -> None:
    with serving(msgspec.structs.replace(simulator(), metrics=0)) as server:
        assert server.metrics and not server.metrics.startswith(server.url)
        observe = {"prometheus": [server.url, server.metrics]}
        _, summary = measure(tmp_path, server.url, server={"model": "sim"}, data=DATA, load=CLOSED, observe=observe)
    view = view_of(summary)
    assert list(view.figures.servers.values()) == ["inferometer"] and agree(view)


def test_the_clients_latencies_are_the_servers_and_a_little_more(tmp_path: Path, sim: str) -> None:
    _, summary = measure(tmp_path, sim, server={"model": "sim"}, data=DATA, load=CLOSED, observe=AUTO)
    for name in ("ttft.mean", "e2e.mean"):
        both = view_of(summary).comparison[name]
        assert 0 < both.difference < 0.5 * both.client, "the network is the loopback interface"


@pytest.mark.slow
def test_stages_are_compared_each_and_together(tmp_path: Path, sim: str) -> None:
    load: dict[str, Any] = {"stages": [{"type": "closed", "concurrency": users, "duration": "1s"} for users in (2, 6)]}
    _, summary = measure(
        tmp_path, sim, server={"model": "sim"}, data=DATA, load=load, observe=AUTO | {"interval": "100ms"}
    )
    assert agree(view_of(summary))
    running_ = []
    for stage in summary.stages:
        assert stage.server is not None
        requests = stage.server.comparison["requests"]
        assert requests.client == pytest.approx(requests.server, rel=0.1)
        running_.append(stage.server.figures.gauges["running"].mean)
    assert running_[0] < running_[1]


@pytest.mark.slow
def test_a_server_that_queues_is_a_note_and_a_later_report_is_the_same(tmp_path: Path) -> None:
    load = ("--concurrency", "12", "--requests", "60", "--input", "20", "--output", "6")
    with running(simulator(timing=Batch(max_batch=2))) as url:
        live = cli("run", url, *load, "--set", f"output={tmp_path}", "--set", "observe.interval=100ms")
    text = " ".join(live.out.split())
    assert " ! the server queued: " in text and "its capacity was reached" in text
    (folder,) = (each for each in tmp_path.iterdir() if each.is_dir() and not each.is_symlink())
    assert cli("report", folder).out == live.out


def test_without_an_endpoint_nothing_is_shown(tmp_path: Path, sim: str) -> None:
    _, summary = measure(tmp_path, sim, server={"model": "sim"}, data=DATA, load=CLOSED, observe={"prometheus": []})
    assert summary.server is None
