"""Ray clusters that fail: nodes that die or freeze, too few CPUs, no cluster at all; and Ctrl-C. Nothing waits for ever."""

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from command import start
from helpers import scripted
from ray_nodes import ADDRESSES, STORE, ray_cluster
from shard_processes import slow, when_recorded
from waiting import until

from inferometer import conduct
from inferometer.analysis.summary import Summary
from inferometer.config import from_mapping
from inferometer.errors import UserError
from inferometer.fleet import ray_shard
from inferometer.records import Run

PATIENCE_S = 120.0
"""Ray starts a dozen processes for each of these tests, which takes long beside other tests."""
pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster(3) as started:
        yield started


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with scripted(slow) as url:
        yield url


def measure(folder: Path, url: str, **sections: Any) -> tuple[Run, Summary]:
    tree: dict[str, Any] = {
        "server": {"url": url, "model": "m"},
        "data": {"prompts": ["hello"], "output": 2},
        "load": {"type": "constant", "rate": 60, "duration": "3s"},
        "client": {"probe": False},
        "fleet": {"type": "ray", "shards": 3},
        "output": str(folder),
        "observe": {"prometheus": []},
    }
    return conduct.measure(from_mapping(tree | sections))


def check_lost(run: Run, summary: Summary, shards: int, planned: int) -> None:
    """One shard is lost: every planned request has a row, and those of the other shards succeeded."""
    rows = run.records.rows
    assert sorted(rows["id"].tolist()) == list(range(planned))
    failed = rows["failure"] > 0
    assert {run.records.failures[number - 1].code for number in set(rows["failure"][failed].tolist())} == {"lost"}
    (shard,) = set(rows["shard"][failed].tolist())
    assert 0 < failed.sum() < (rows["shard"] == shard).sum() == planned // shards
    assert summary.counts.by_failure == {"lost": int(failed.sum())}
    assert summary.verdict == "INVALID"
    assert next(check.status for check in summary.checks if check.name == "workers") == "fail"


def actors() -> list[psutil.Process]:
    """The processes of all shards' actors on this machine that belong to this test."""
    folder = os.environ["RAY_TMPDIR"]
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # such as of one that is ending
            is_ours = process.name().startswith("ray::") and process.environ().get("RAY_TMPDIR") == folder
            if is_ours and "ShardActor" in " ".join(process.cmdline()):
                found.append(process)
    return found


def test_an_actor_that_does_not_respond_is_given_up(
    cluster: Any, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_shard, "_SILENT_S", 4.0)
    frozen: list[psutil.Process] = []

    def freeze() -> None:
        frozen.append(actors()[0])
        frozen[0].suspend()

    when_recorded(tmp_path, 3, freeze, PATIENCE_S)
    run, summary = measure(tmp_path, server, load={"type": "constant", "rate": 60, "duration": "2s"})
    check_lost(run, summary, 3, 120)
    assert "did not respond for" in run.manifest.outcome.errors[0]
    with contextlib.suppress(psutil.NoSuchProcess):
        frozen[0].resume()
    until(lambda: not actors(), seconds=PATIENCE_S)


def test_too_few_cpus_are_an_error_that_says_what_is_missing(cluster: Any, server: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        measure(tmp_path, server, fleet={"type": "ray", "shards": 8, "wait": "1s"})
    assert "8 shards need 8 CPUs" in caught.value.what and "3 nodes with 3 CPUs" in caught.value.what
    assert "there is room for 3" in caught.value.remedy
    assert caught.value.key == "fleet.shards"
    assert not list(tmp_path.iterdir())


def test_ctrl_c_stops_all_shards(cluster: Any, server: str, tmp_path: Path) -> None:
    """In a process of its own, which connects to the cluster by its address."""
    run = ["run", server, "--model", "m", "--concurrency", "3", "--duration", "60s", "--prompt", "hello", "-q"]
    fleet = ["--fleet", f"ray://{cluster.address}", "--set", "fleet.shards=3", "--set", f"output={tmp_path}"]
    process = start(*run, *fleet, "--set", "client.probe=false", cwd=tmp_path)
    try:
        when_recorded(tmp_path, 3, lambda: process.send_signal(signal.SIGINT), PATIENCE_S)
        output, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 1 and "interrupted" in output
    stored, summary = conduct.open_run(str(tmp_path / "LATEST"))
    assert stored.manifest.outcome.interrupted and summary.counts.ok >= 9
    assert set(stored.records.rows["shard"].tolist()) == {0, 1, 2}
    until(lambda: not actors(), seconds=PATIENCE_S)


def test_no_cluster_at_the_address_is_an_error(server: str, tmp_path: Path) -> None:
    """Nothing listens there; or something does, and does not say anything."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ports = {"there is no Ray cluster at": 1, "did not respond within 2 s": silent.getsockname()[1]}
        for message, port in ports.items():
            options = ["--fleet", f"ray://127.0.0.1:{port}", "--set", "fleet.wait=2s", "--set", "client.probe=false"]
            process = start("run", server, "--model", "m", "--requests", "3", *options, cwd=tmp_path)
            try:
                _, errors = process.communicate(timeout=PATIENCE_S)
            finally:
                process.kill()
            assert process.returncode == 2, errors
            assert message in errors and "next:" in errors


def test_a_node_that_dies_loses_only_its_own_requests(cluster: Any, server: str, tmp_path: Path) -> None:
    """The last test of this file: Ray takes a while to notice that the node has gone."""
    node = cluster.add_node(num_cpus=1, node_ip_address=ADDRESSES[3], object_store_memory=STORE)
    when_recorded(tmp_path, 3, lambda: cluster.remove_node(node, allow_graceful=False), PATIENCE_S)
    load = {"type": "constant", "rate": 80, "duration": "3s"}
    run, summary = measure(tmp_path, server, fleet={"type": "ray", "shards": 4, "per_node": 1}, load=load)
    check_lost(run, summary, 4, 240)
    (error,) = run.manifest.outcome.errors
    assert "lost" in error and ADDRESSES[3] in error
