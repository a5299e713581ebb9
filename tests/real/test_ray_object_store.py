"""Runs on a Ray cluster whose output is a bucket: the nodes store their chunks and texts there themselves."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from command import cli
from cutting_proxy import Proxy, proxied
from ray_nodes import ADDRESSES, STORE, ray_cluster
from real_server import started
from waiting import until

from inferometer import conduct, store
from inferometer.analysis.summary import Summary
from inferometer.conduct.remote import local_names
from inferometer.config import from_mapping
from inferometer.errors import UserError
from inferometer.fleet import ray_fleet
from inferometer.fleet.shard_store import Destination
from inferometer.records import Run
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed
from inferometer.store.folder import files_of
from inferometer.store.spool import Control

pytestmark = [pytest.mark.ray, pytest.mark.moto, pytest.mark.slow]

KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI-not-a-real-key"
BASE = "s3://bench/fleet"
SAME = ("id", "intended", "n_in", "n_out", "chunk_count", "failure", "stage", "shard")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster(3) as started_cluster:
        yield started_cluster


@pytest.fixture(scope="module")
def sim() -> Iterator[str]:
    with running(simulator(timing=Fixed(ttft=0.01, itl=0.001))) as url:
        yield url


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with started("moto") as ready:
        yield ready["url"]


@pytest.fixture
def proxy(cluster: Any, moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The store behind a proxy. The credentials are set when the cluster is up: its nodes do not have them."""
    with proxied(moto) as made:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        yield made


def measure(local: Path, url: str, output: str, **sections: Any) -> tuple[Run, Summary]:
    tree: dict[str, Any] = {
        "server": {"url": url, "model": "sim"},
        "data": {"type": "synthetic", "input": 20, "output": 8, "salt": "none"},
        "load": {"type": "poisson", "rate": 80, "requests": 90},
        "client": {"probe": False},
        "fleet": {"type": "ray", "shards": 3},
        "keep": "text",
        "output": output,
        "storage": {"local": str(local), "timeout": "5s"},
        "observe": {"prometheus": []},
        "limits": {"failures": 0},
    }
    return conduct.measure(from_mapping(tree | sections))


def rows_of(run: Run) -> np.ndarray[Any, Any]:
    return np.sort(np.asarray(run.records.rows), order="id")


def texts(run: Run) -> dict[int, str]:
    """The body of each request that has a response, by its id."""
    bodies = store.bodies_of(run.folder, run.records.rows["id"].tolist())
    return {id: body.request for id, body in bodies.items() if body.response}


def check_chunks(run: Run) -> None:
    """The chunks of each row are its own: the first and the last one arrived when the row says so."""
    arrivals = np.concatenate([piece.arrival for piece in run.chunks()])
    rows = run.records.rows
    own = rows["chunk_count"] > 0
    first, last = rows["chunk_start"][own], rows["chunk_start"][own] + rows["chunk_count"][own] - 1
    assert own.any() and len(arrivals) == rows["chunk_count"].sum() == run.chunk_total
    assert arrivals[first].tolist() == rows["first_token"][own].tolist()
    assert arrivals[last].tolist() == rows["last_token"][own].tolist()


def test_a_run_in_a_bucket_is_the_same_as_one_in_a_folder(proxy: Proxy, sim: str, tmp_path: Path) -> None:
    run, summary = measure(tmp_path / "runs", sim, BASE)
    here, local = measure(tmp_path / "runs", sim, str(tmp_path / "here"))
    for column in SAME:
        assert rows_of(run)[column].tolist() == rows_of(here)[column].tolist(), column
    assert run.manifest.workload["digest"] == here.manifest.workload["digest"]
    assert summary.counts == local.counts and summary.counts.ok == 90
    assert texts(run) == texts(here) and len(texts(run)) == 90
    assert [path.name for path in files_of(run.folder, "chunks.parquet")] == [
        f"chunks-0000{n}.parquet" for n in range(3)
    ]
    check_chunks(run)
    check_chunks(here)

    written = [path for path in proxy.written() if run.folder.name in path]
    for name in ("chunks", "bodies"):  # each by its shard, and not again by the parent
        assert sorted(path for path in written if f"/{name}" in path) == [
            f"/bench/fleet/{run.folder.name}/{name}-0000{shard}.parquet" for shard in range(3)
        ]
    assert "manifest.json" in written[-1]

    fetched, again = conduct.open_run(str(local_names([f"{BASE}/{run.folder.name}"])[0]))
    assert fetched.folder != run.folder and again == summary
    check_chunks(fetched)
    for command in (("report",), ("compare", "--force", str(here.folder)), ("runs",)):
        result = cli(*command, f"{BASE}/{run.folder.name}" if command[0] != "runs" else BASE)
        assert result.status in (0, 1) and not result.err.startswith("inferometer:"), result
    assert run.folder.name in cli("runs", BASE).out

    for path in Path(os.environ["RAY_TMPDIR"]).rglob("*"):  # logs, metadata, what spilled
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_a_shard_that_cannot_store_its_chunks_sends_them_to_the_parent(
    proxy: Proxy, sim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Destination] = []

    def one_is_wrong(*arguments: Any) -> Destination:
        made.append(destination(*arguments))
        return msgspec.structs.replace(made[-1], url="s3://no-such-bucket/x") if len(made) == 2 else made[-1]

    destination = ray_fleet.destination
    monkeypatch.setattr(ray_fleet, "destination", one_is_wrong)
    run, summary = measure(tmp_path / "runs", sim, BASE)
    assert summary.counts.ok == 90 and len(texts(run)) == 90
    check_chunks(run)
    (note,) = [line for line in run.manifest.outcome.notes if "could not store" in line]
    assert note.startswith("client process 1 ") and "there is no such bucket" in note
    written = [path for path in proxy.written() if f"{run.folder.name}/chunks" in path]
    assert sorted(path[-len("chunks-00000.parquet") :] for path in written) == [
        f"chunks-0000{n}.parquet" for n in range(3)
    ]
    fetched, again = conduct.open_run(str(local_names([f"{BASE}/{run.folder.name}"])[0]))
    assert again == summary
    check_chunks(fetched)


def completed(folder: Path, summary: Summary) -> None:
    """Upload the run, which then is in the bucket as it is in its folder."""
    result = cli("runs", "push", str(folder))
    assert result.status == 0, result
    fetched, again = conduct.open_run(str(local_names([f"{BASE}/{folder.name}"])[0]))
    assert again == summary
    check_chunks(fetched)


def test_a_store_that_refuses_the_shards_leaves_the_run_in_its_folder(proxy: Proxy, sim: str, tmp_path: Path) -> None:
    """From the first chunks on, nothing gets through."""
    proxy.fault = "chunks-"
    with pytest.raises(conduct.NotUploadedError, match="is not complete") as caught:
        measure(tmp_path / "runs", sim, BASE)
    run, summary = caught.value.run, caught.value.summary
    assert summary.counts.ok == 90 and len(texts(run)) == 90
    check_chunks(run)
    assert len([line for line in run.manifest.outcome.notes if "could not store" in line]) == 3
    assert [path.name for path in files_of(run.folder, "chunks.parquet")] == ["chunks.parquet"]
    proxy.repair()
    completed(run.folder, summary)


def test_chunks_that_cannot_be_fetched_are_a_clear_error_and_the_run_can_be_completed(
    proxy: Proxy, moto: str, sim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shards reach the store, and the parent does not any more."""

    def direct(*arguments: Any) -> Destination:
        proxy.tripped.set()
        found = destination(*arguments)
        return msgspec.structs.replace(found, environment=found.environment | {"AWS_ENDPOINT_URL": moto})

    destination = ray_fleet.destination
    monkeypatch.setattr(ray_fleet, "destination", direct)
    with pytest.raises(UserError, match="could not be collected") as caught:
        measure(tmp_path / "runs", sim, BASE)
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"inferometer report {folder}" in caught.value.next_step
    proxy.repair()
    run, summary = conduct.open_run(str(folder))
    assert summary.counts.ok == 90 and len(texts(run)) == 90
    check_chunks(run)
    completed(folder, summary)


def test_a_node_that_dies_leaves_its_rows_and_all_of_the_others(
    cluster: Any, proxy: Proxy, sim: str, tmp_path: Path
) -> None:
    """The last test of this file: Ray takes a while to notice that the node has gone."""
    node = cluster.add_node(num_cpus=1, node_ip_address=ADDRESSES[3], object_store_memory=STORE)

    def has_recorded() -> bool:
        paths = [path for path in (tmp_path / "runs").glob("*/spool/*.control") if path.stat().st_size]
        return len(paths) == 4 and all(Control(path, create=False)["rows"] >= 3 for path in paths)

    def kill() -> None:
        until(has_recorded, seconds=120)
        cluster.remove_node(node, allow_graceful=False)

    threading.Thread(target=kill, daemon=True).start()
    load = {"type": "constant", "rate": 80, "duration": "3s"}
    fleet = {"type": "ray", "shards": 4, "per_node": 1}
    run, summary = measure(tmp_path / "runs", sim, BASE, load=load, fleet=fleet)
    rows = run.records.rows
    assert sorted(rows["id"].tolist()) == list(range(240))
    failed = rows["failure"] > 0
    (lost,) = set(rows["shard"][failed].tolist())
    assert 0 < failed.sum() < (rows["shard"] == lost).sum() == 60
    assert summary.counts.by_failure == {"lost": int(failed.sum())} and summary.verdict == "INVALID"
    assert next(check.status for check in summary.checks if check.name == "workers") == "fail"
    assert (rows["chunk_count"] > 0).tolist() == (rows["shard"] != lost).tolist()
    check_chunks(run)
    fetched, again = conduct.open_run(str(local_names([f"{BASE}/{run.folder.name}"])[0]))
    assert again == summary and len(fetched.records.rows) == 240
