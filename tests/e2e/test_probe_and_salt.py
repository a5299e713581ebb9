"""The probe over every protocol, and what it decides; the salt, and the prefix cache that it keeps runs apart in."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import Client, http_response, scripted

from inferometer import conduct, schedule
from inferometer.conduct.measuring import probed
from inferometer.config import from_mapping
from inferometer.prepare import sizing
from inferometer.probe import reach
from inferometer.records import Probe, Run
from inferometer.serve.background import Running, running, serving
from inferometer.serve.settings import Settings, simulator
from inferometer.serve.sim.settings import Batch

CLOSED = {"type": "closed", "concurrency": 64, "duration": "10s"}


def measured(folder: Path, url: str, **sections: Any) -> Run:
    tree = {"server": {"url": url}, "load": {"type": "closed", "concurrency": 4, "requests": 12}, "output": str(folder)}
    return conduct.measure(from_mapping(tree | sections))[0]


# --- the probe --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def identity() -> Iterator[Running]:
    with serving(Settings(models=("identity",), http=0, grpc=0)) as server:
        yield server


def tensor_probe(url: str, size: int, **server: Any) -> tuple[Probe, int]:
    """Return what the probe shows for a tensor of this many bytes, and the number of processes on a machine with 16 cores."""
    tree = {
        "server": {"url": url, "model": "identity"} | server,
        "data": {"type": "tensors", "shape": {"INPUT0": [1, size // 4]}},
        "load": CLOSED,
    }
    config = from_mapping(tree)
    reached = reach.reach(config.server)
    config = conduct.measuring.completed(config, reached)
    probe = probed(config, reached, "3f9a01bc")
    return probe, sizing.process_count(config, schedule.plan(config.load, config.seed), probe, cores=16)[0]


@pytest.mark.parametrize(
    ("scheme", "server"),
    [("http", {"api": "kserve"}), ("http", {"api": "kserve-json"}), ("grpc", {}), ("grpc", {"stream": True})],
)
def test_tensors_are_probed_over_every_protocol(identity: Running, scheme: str, server: dict[str, Any]) -> None:
    probe, _ = tensor_probe(identity.grpc if scheme == "grpc" else identity.url, 40_000, **server)
    assert (probe.requests, probe.failure) == (3, "")
    assert probe.e2e and probe.cpu
    assert probe.request_bytes and probe.request_bytes > 40_000
    assert probe.response_bytes and probe.response_bytes > 40_000


def test_large_tensors_get_more_processes(identity: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """600 kB with 64 in flight. (How fast this machine responds is left out: a request takes 20 ms.)"""
    monkeypatch.setattr(Probe, "e2e_ns", property(lambda probe: 20_000_000))
    monkeypatch.setattr(sizing, "slowness", lambda: 1.0)
    probe, small = tensor_probe(identity.url, 400, api="kserve")
    assert probe.request_bytes and probe.request_bytes < 2_000
    probe, large = tensor_probe(identity.url, 600_000, api="kserve")
    assert probe.request_bytes and probe.request_bytes > 600_000
    assert small < large


def test_shared_memory_is_probed_and_left_as_it_was(identity: Running) -> None:
    probe, _ = tensor_probe(identity.url, 600_000, api="kserve", shared_memory=True)
    assert (probe.requests, probe.failure) == (3, "")
    assert probe.request_bytes and probe.request_bytes < 2_000


def test_the_manifest_says_why_there_are_so_many_processes(
    sim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizing.processors, "usable", lambda: 3.0)
    monkeypatch.setattr(sizing, "cpu_per_request", lambda *_: 1.0)
    manifest = measured(tmp_path, sim).manifest
    assert manifest.host["processes"] == 2
    assert manifest.probe.processes_because.endswith("but one of 3 cores is left to others")


# --- the salt ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_repeated_run_meets_a_cold_prefix_cache(tmp_path: Path) -> None:
    """With the same prompts it would find them in the cache, as it used to."""

    def cached(url: str, **data: Any) -> tuple[int, Run]:
        section = {"type": "synthetic", "input": 64, "output": 2} | data
        run = measured(tmp_path, url, data=section, client={"processes": 1})
        return int(run.records.rows["cached"].sum()), run

    with running(simulator(timing=Batch(prefill_rate=1e6, decode_step=0.001, prefix_cache=True))) as url:
        first, second = cached(url), cached(url)
        assert (first[0], second[0]) == (0, 0)
        assert cached(url, salt="none")[0] == 0
        assert cached(url, salt="none")[0] > 0
        word = first[1].manifest.workload["salt"]
        assert cached(url, salt=word)[0] > 0
    assert word != second[1].manifest.workload["salt"]
    assert first[1].manifest.workload["digest"] == second[1].manifest.workload["digest"]
    assert first[1].manifest.config["data"]["salt"] == "run"  # type: ignore[index]


@pytest.mark.parametrize(
    "api", ["chat", *(pytest.param(api, marks=pytest.mark.slow) for api in ("completions", "embeddings"))]
)
def test_all_processes_use_the_salt_that_the_manifest_records(tmp_path: Path, api: str) -> None:
    seen: defaultdict[str, list[bytes]] = defaultdict(list)  # the probe's, and the run's, which are more

    def script(client: Client) -> None:
        while request := client.request():
            if request[2]:
                seen[request[1]["x-request-id"].rpartition("-")[0]].append(request[2])
            client.send(http_response())

    def bodies(url: str, processes: int, salt: str) -> tuple[list[bytes], object]:
        seen.clear()
        run = measured(
            tmp_path,
            url,
            server={"url": url, "model": "m", "api": api},
            data={"type": "synthetic", "input": 30, "output": 2, "salt": salt},
            client={"processes": processes},
        )
        return sorted(max(seen.values(), key=len)), run.manifest.workload["salt"]

    with scripted(script) as url:
        both, word = bodies(url, 2, "run")
        assert len(set(both)) == 12
        assert bodies(url, 1, str(word)) == (both, word)
        assert not set(bodies(url, 1, "run")[0]) & set(both)
