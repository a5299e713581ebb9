"""Runs whose shards are on the nodes of a Ray cluster: the same requests, instants and records as on one machine."""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from command import start
from helpers import Client, http_response, scripted
from ray_nodes import ADDRESSES, ENVIRONMENT, may_shift_clocks, ray_cluster, shifted_node
from waiting import until

from inferometer import conduct, store
from inferometer.analysis.summary import Summary
from inferometer.config import from_mapping
from inferometer.errors import UserError
from inferometer.fleet import clocks, ray_actors
from inferometer.fleet.clocks import Reading
from inferometer.fleet.ray_actor import ShardActor
from inferometer.records import Body, Run
from inferometer.report import console
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed
from inferometer.units import NS

pytestmark = [pytest.mark.ray, pytest.mark.slow]

RAY = {"fleet": {"type": "ray", "shards": 3}}
LOCAL = {"client": {"processes": 2, "probe": False}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster(3) as started:
        yield started


@pytest.fixture(scope="module")
def sim() -> Iterator[str]:
    with running(simulator(timing=Fixed(ttft=0.01, itl=0.001))) as url:
        yield url


def measure(folder: Path, url: str, **sections: Any) -> tuple[Run, Summary]:
    tree: dict[str, Any] = {
        "server": {"url": url, "model": "sim"},
        "data": {"type": "synthetic", "input": 20, "output": 5, "salt": "none"},
        "load": {"type": "poisson", "rate": 80, "requests": 90},
        "client": {"probe": False},
        "keep": "text",
        "output": str(folder),
        "observe": {"prometheus": []},
        "limits": {"failures": 0},
    }
    return conduct.measure(from_mapping(tree | sections))


def bodies(run: Run) -> dict[int, Body]:
    """The texts of each request, by its id."""
    return store.bodies_of(run.folder, run.records.rows["id"].tolist())


def sent(run: Run) -> dict[int, str]:
    """The body of each request, by its id."""
    return {id: body.request for id, body in bodies(run).items()}


def test_the_same_requests_at_the_same_instants_as_on_one_machine(cluster: Any, sim: str, tmp_path: Path) -> None:
    on_ray, summary = measure(tmp_path / "ray", sim, **RAY)
    here, local = measure(tmp_path / "here", sim, **LOCAL)
    rows, own = np.sort(np.asarray(on_ray.records.rows), order="id"), np.sort(np.asarray(here.records.rows), order="id")
    for column in ("id", "intended", "n_in", "n_out", "chunk_count", "failure", "stage"):
        assert rows[column].tolist() == own[column].tolist(), column
    assert on_ray.manifest.workload["digest"] == here.manifest.workload["digest"]
    assert sent(on_ray) == sent(here)
    assert set(rows["shard"].tolist()) == {0, 1, 2}
    assert summary.counts == local.counts
    nodes = on_ray.manifest.host["nodes"]
    assert isinstance(nodes, list) and {node["address"] for node in nodes} == set(ADDRESSES[:3])
    for found in (summary, local):  # by the simulator, 14 ms; the rest is noise of this machine
        assert 0.013 < (found.metrics["e2e_service"].value("p50") or 0) < 0.1


def test_files_reach_the_nodes_and_secrets_only_the_server(cluster: Any, tmp_path: Path) -> None:
    """Rows of a Python function, which only the parent has called, a corpus in another folder, and a header that is secret."""
    code, text = tmp_path / "rows.py", tmp_path / "words.txt"
    code.write_text("import os\n\ndef requests():\n    return [f'{os.getpid()} says {n}' for n in range(30)]\n")
    text.write_text("all of these words come from a file on the machine of the parent " * 50)
    classes = [
        {"name": "code", "weight": 1, "data": {"type": "python", "path": str(code), "output": 3}},
        {"name": "corpus", "weight": 1, "data": {"type": "synthetic", "corpus": str(text), "input": 8, "output": 3}},
    ]
    secret = "hdr-5f2c9e1a7b3d"
    seen: list[tuple[str, str | None]] = []

    def respond(client: Client) -> None:
        while (request := client.request()) is not None:
            if not request[0].startswith("POST"):
                client.send(http_response())
                continue
            seen.append((json.loads(request[2])["messages"][0]["content"], request[1].get("authorization")))
            client.send(http_response())

    with scripted(respond) as url:
        server = {"url": url, "model": "m", "headers": {"Authorization": f"Bearer {secret}"}}
        load = {"type": "closed", "concurrency": 6, "requests": 60}
        data = {"type": "mix", "classes": classes}
        run, summary = measure(tmp_path / "runs", url, server=server, data=data, load=load, **RAY)
    assert summary.counts.ok == len(seen) == 60
    assert [body.response for body in bodies(run).values()] == ["one two"] * 60
    generated = [prompt for prompt, _ in seen if " says " in prompt]
    others = [prompt for prompt, _ in seen if " says " not in prompt]
    assert {prompt.partition(" ")[0] for prompt in generated} == {str(os.getpid())}
    assert others and all(word in text.read_text() for prompt in others for word in prompt.split()[3:-1])
    assert {authorization for _, authorization in seen} == {f"Bearer {secret}"}
    files = [path for path in Path(os.environ["RAY_TMPDIR"]).rglob("*") if path.is_file()]
    assert files and not [path for path in files if secret.encode() in path.read_bytes()]


def test_barriers_pauses_and_dealt_requests_work_across_nodes(cluster: Any, sim: str, tmp_path: Path) -> None:
    stages = [
        {"type": "constant", "rate": 100, "requests": 20},
        {"type": "closed", "concurrency": 6, "requests": 150},
        {"type": "constant", "rate": 100, "requests": 20},
    ]
    load = {"type": "stages", "drain": True, "pause": "200ms", "stages": stages}
    run, summary = measure(tmp_path, sim, load=load, **RAY)
    rows = run.records.rows
    assert summary.counts.ok == len(rows) == 190
    assert sorted(rows["id"].tolist()) == list(range(190))
    for before, after in ((0, 1), (1, 2)):
        end = rows["done"][rows["stage"] == before].max()
        assert rows["intended"][rows["stage"] == after].min() > end + NS // 5
    last = np.sort(rows["intended"][rows["stage"] == 2])
    bounds = [node["bound_ns"] for node in _nodes(run)]
    assert np.abs(np.diff(last) - NS // 100).max() <= 2 * max(bounds)  # one instant for all nodes


def test_a_cluster_is_started_if_there_is_none(sim: str, tmp_path: Path) -> None:
    """And ended: Ray ends its processes with the thread that started them, which must not be before the run is over."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        options = [
            "--rate",
            "50",
            "--requests",
            "40",
            "--output",
            "3",
            "--fleet",
            "ray",
            "--set",
            "fleet.shards=2",
            "--set",
            "fleet.cpus=0.5",
        ]
        lenient = ["--set", "limits.effect_fail=1000", "--set", f"output={tmp_path}", "-q"]
        command = start("run", sim, *options, *lenient, cwd=tmp_path, **ENVIRONMENT, RAY_TMPDIR=folder)
        try:
            output, errors = command.communicate(timeout=120)
        finally:
            command.kill()
        assert command.returncode in (0, 1), errors
        assert "2 shards on 1 node, its clock known to within" in output
        run, summary = conduct.open_run(str(tmp_path / "LATEST"))
        assert summary.counts.ok == 40 and set(run.records.rows["shard"].tolist()) == {0, 1}
        until(lambda: not using(folder), "Ray's processes to end")


def using(folder: str) -> list[psutil.Process]:
    """The processes whose command line has this folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if folder in " ".join(process.cmdline()):
                found.append(process)
    return found


def _nodes(run: Run) -> list[dict[str, Any]]:
    nodes = run.manifest.clock["nodes"]
    assert isinstance(nodes, list)
    return nodes


# --- clocks ----------------------------------------------------------------------------------------------------------


def test_a_known_offset_is_measured_within_its_bound(cluster: Any) -> None:
    """Over a real actor's channel. The nodes are on this machine, so the true offset is the one that is added here."""
    import ray  # noqa: PLC0415

    actor = ray.remote(num_cpus=1)(ShardActor).remote()
    try:
        ray.get(actor.clock.remote(), timeout=120)  # its process has to start first
        for shift in (0, 7 * NS, -123_456_789_012):

            def ping(shift: int = shift) -> Reading:
                reading = ray.get(actor.clock.remote(), timeout=60)
                return Reading(reading.monotonic + shift, reading.wall_ahead - shift)

            found = clocks.measure(ping)
            assert abs(found.offset - shift) <= found.uncertainty
            assert abs(found.wall) <= found.uncertainty + NS // 1000
    finally:
        ray.get(actor.close.remote(), timeout=60)
        ray.kill(actor)


@pytest.mark.skipif(not may_shift_clocks(), reason="needs the right to make a time namespace")
def test_a_node_with_another_clock_keeps_to_the_common_schedule(cluster: Any, sim: str, tmp_path: Path) -> None:
    """The kernel gives one node a monotonic clock that is 1,000 s ahead."""
    shift = 1000 * NS
    with shifted_node(cluster, ADDRESSES[3], shift // NS):
        fleet = {"type": "ray", "shards": 4, "per_node": 1}
        load = {"type": "constant", "rate": 100, "requests": 120}
        run, summary = measure(tmp_path / "runs", sim, fleet=fleet, load=load)
    assert summary.counts.ok == 120
    offsets = {node["node"]: (node["offset_ns"], node["bound_ns"]) for node in _nodes(run)}
    for address, (offset, bound) in offsets.items():
        assert abs(offset - (shift if address == ADDRESSES[3] else 0)) <= bound, address
    rows = np.sort(np.asarray(run.records.rows), order="id")
    assert rows["intended"].tolist() == (rows["id"] * (NS // 100)).tolist()
    assert (rows["sent"] - rows["intended"]).max() < 5 * NS  # by its own clock, it started with the others
    assert (rows["done"] > rows["sent"]).all() and (rows["done"] - rows["sent"]).max() < 10 * NS
    assert "4 shards on 4 nodes, their clocks known to within" in console.render(run, summary)


# --- nodes that cannot run a shard -----------------------------------------------------------------------------------


def test_another_version_on_a_node_is_an_error(
    cluster: Any, sim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_actors, "__version__", "0.0.1")
    with pytest.raises(UserError, match=r"has inferometer .*, and this machine 0\.0\.1"):
        measure(tmp_path, sim, fleet={"type": "ray", "shards": 1})
