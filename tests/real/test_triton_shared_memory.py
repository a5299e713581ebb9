"""Tensors in shared memory, with the real Triton: over HTTP and gRPC, for every datatype, and however the run ends."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import measure
from triton_server import Triton
from waiting import until

from inferometer.probe import kserve, shared_memory
from inferometer.probe.connect import Peer
from inferometer.probe.shared_memory import Portion, Served
from inferometer.probe.shm_region import FOLDER, PREFIX
from inferometer.records import Run
from inferometer.tensors import DATATYPES
from inferometer.wire.context import SharedRefs, ShmRef
from inferometer.wire.kserve.control import ShmStatus
from inferometer.wire.target import parse

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("patient")]
pytest_plugins = ["triton_server"]

PROTOCOLS = ["http", "grpc"]
WAIT_S = 30


class Seen(NamedTuple):
    """A region at the end of a run, before it was removed."""

    refs: tuple[SharedRefs, ...]
    content: bytes
    registered: tuple[str, ...]

    def at(self, ref: ShmRef) -> bytes:
        return self.content[ref.offset : ref.offset + ref.byte_size]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    """The regions of this test's runs."""
    found: list[Seen] = []
    whole = shared_memory.shared

    @contextlib.contextmanager
    def watched(served: Served, portions: Iterable[Portion]) -> Iterator[tuple[SharedRefs, ...]]:
        with whole(served, portions) as refs:
            yield refs
            region = next(iter(refs[0].inputs[0].values())).region
            names = tuple(one.name for one in registered(served.peers[0].target.url))
            found.append(Seen(refs, (FOLDER / region).read_bytes(), names))

    monkeypatch.setattr(shared_memory, "shared", watched)
    return found


def registered(url: str) -> tuple[ShmStatus, ...]:
    found: tuple[ShmStatus, ...] = kserve.shm_status(Peer(parse(url)), {})
    return found


def shared_run(folder: Path, url: str | list[str], model: str, **sections: Any) -> Run:
    server = {"api": "kserve", "model": model, "shared_memory": True} | sections.pop("server", {})
    sections = {"data": {"type": "tensors"}, "load": {"type": "closed", "concurrency": 4, "requests": 40}} | sections
    run, _ = measure(folder, url, server=server, **sections)
    return run


def assert_all_well(run: Run, seen: list[Seen], url: str, count: int = 40) -> None:
    """Check that every request succeeded and was counted by Triton, and that nothing is left of the region."""
    assert run.records.failures == ()
    assert len(run.records.rows) == count
    (statistics,) = run.manifest.statistics
    assert statistics is not None and statistics.success.count == count
    (one,) = seen
    region = next(iter(one.refs[0].inputs[0].values())).region
    assert region in one.registered
    assert registered(url) == ()
    assert not (FOLDER / region).exists()


# --- runs ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_outputs_are_bit_for_bit_the_inputs(
    triton: Triton, tmp_path: Path, seen: list[Seen], protocol: str, processes: int
) -> None:
    url = getattr(triton, protocol)
    data = {"type": "tensors", "shape": {"INPUT0": [3, 5000]}}
    run = shared_run(tmp_path, url, "identity", data=data, client={"processes": processes})
    assert_all_well(run, seen, url)
    assert int(run.records.rows["bytes_out"].max()) < 2000  # of 60 000 bytes of tensors
    assert int(run.records.rows["bytes_in"].max()) < 2000
    (one,) = seen
    assert len(one.refs) == max(processes, 1)
    compared = 0
    for shard in one.refs:
        for inputs, outputs in zip(shard.inputs, shard.outputs, strict=False):
            raw = one.at(inputs["INPUT0"])
            assert len(raw) == 60_000
            assert one.at(outputs["OUTPUT0"])[: len(raw)] == raw
            compared += 1
    assert compared == 40


@pytest.mark.parametrize("protocol", [*PROTOCOLS, "json"])
def test_every_datatype_in_shared_memory(triton: Triton, tmp_path: Path, seen: list[Seen], protocol: str) -> None:
    url = triton.grpc if protocol == "grpc" else triton.http
    server = {"api": "kserve-json"} if protocol == "json" else {}
    load = {"type": "closed", "concurrency": 1, "requests": 6}
    data = {
        "type": "tensors",
        "shape": {f"IN_{datatype}": [1] for datatype in DATATYPES},
    }  # all are optional: only those with a shape are sent
    run = shared_run(tmp_path, url, "all_types", load=load, server=server, data=data)
    assert_all_well(run, seen, url, 6)
    (one,) = seen
    (shard,) = one.refs
    for inputs, outputs in zip(shard.inputs, shard.outputs, strict=True):
        assert len(inputs) == len(outputs) == 14
        for name, ref in inputs.items():
            raw = one.at(ref)
            assert raw and one.at(outputs[name.replace("IN_", "OUT_")])[: len(raw)] == raw, name


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_two_outputs_of_known_size(triton: Triton, tmp_path: Path, seen: list[Seen], protocol: str) -> None:
    url = getattr(triton, protocol)
    run = shared_run(tmp_path, url, "add_sub")
    assert_all_well(run, seen, url)
    (one,) = seen
    for inputs, outputs in zip(one.refs[0].inputs, one.refs[0].outputs, strict=False):
        first, second = (np.frombuffer(one.at(inputs[name]), "<i4") for name in ("INPUT0", "INPUT1"))
        assert outputs["OUTPUT0"].byte_size == 64
        assert one.at(outputs["OUTPUT0"]) == (first + second).tobytes()
        assert one.at(outputs["OUTPUT1"]) == (first - second).tobytes()


def test_responses_of_a_decoupled_model(triton: Triton, tmp_path: Path, seen: list[Seen]) -> None:
    """All responses to a request are written to its slot, so the last one remains."""
    np.save(tmp_path / "n.npy", np.array([5], np.int32))
    data = {"type": "tensors", "fill": f"@{tmp_path}/n.npy"}
    run = shared_run(tmp_path / "runs", triton.grpc, "square", data=data, server={"stream": True})
    assert run.records.failures == ()
    assert int(run.records.rows["chunk_count"].sum()) == 200
    (one,) = seen
    slots = one.refs[0].outputs
    assert len(slots) == 16
    assert {one.at(slot["SQUARE"]) for slot in slots} == {np.int32(16).tobytes()}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_output_that_outgrows_its_slot_is_a_failure_with_the_servers_message(
    triton: Triton, tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "_output_sizes", lambda *_: {"OUTPUT0": 8})
    data = {"type": "tensors", "shape": {"INPUT0": [1, 100]}}
    load = {"type": "closed", "concurrency": 1, "requests": 2}
    run = shared_run(tmp_path, getattr(triton, protocol), "identity", data=data, load=load)
    assert np.count_nonzero(run.records.rows["failure"]) == 2
    assert "at least 400 bytes" in run.records.failures[0].message
    assert registered(triton.http) == ()


def test_two_urls_of_one_server(triton: Triton, tmp_path: Path, seen: list[Seen]) -> None:
    urls = [triton.http, triton.http.replace("127.0.0.1", "localhost")]
    run = shared_run(tmp_path, urls, "add_sub")
    assert run.records.failures == ()
    assert len(seen) == 1
    assert registered(triton.http) == ()


# --- ends ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_run_that_is_ended_with_requests_in_the_model(
    triton: Triton, tmp_path: Path, protocol: str, number: signal.Signals
) -> None:
    """Triton keeps working, and the region is removed when the last of them is done; after SIGKILL, by the first run
    that starts later."""
    url = getattr(triton, protocol)
    np.save(tmp_path / "delay.npy", np.array([200], np.int32))
    config = {
        "server": {"url": url, "model": "slow", "api": "kserve", "shared_memory": True},
        "data": {"type": "tensors", "fill": "@delay.npy"},
        "load": {"type": "closed", "concurrency": 3, "duration": "60s"},
        "client": {"grace": "10ms"},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "inferometer", "run", "run.yaml", "--quiet"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        before = inferences(url)
        until(lambda: process.poll() is not None or inferences(url) > before)
        assert process.poll() is None, process.communicate()
        (one,) = registered(url)
        assert one.name.startswith(f"{PREFIX}{process.pid}-")
        process.send_signal(number)
        process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.communicate()
    if number is signal.SIGKILL:
        assert registered(url) == (one,)
        until(lambda: not another_run_leaves(tmp_path, url))
    assert not (FOLDER / one.name).exists()
    assert registered(url) == ()
    assert kserve.live(Peer(parse(url)), {})


def another_run_leaves(folder: Path, url: str) -> tuple[ShmStatus, ...]:
    shared_run(folder / "runs", url, "add_sub")
    return registered(url)


def inferences(url: str) -> int:
    (found,) = kserve.statistics(Peer(parse(url)), {}, "slow", "")
    return int(found.success.count)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("model", "shape", "outputs"),
    [("identity", {"INPUT0": [1, 0]}, []), ("all_types", {"IN_FP32": [0], "IN_INT32": [4]}, ["OUT_FP32", "OUT_INT32"])],
)
def test_inputs_without_any_elements(
    triton: Triton, tmp_path: Path, protocol: str, model: str, shape: dict[str, list[int]], outputs: list[str]
) -> None:
    data = {"type": "tensors", "shape": shape}
    run = shared_run(tmp_path, getattr(triton, protocol), model, server={"outputs": outputs}, data=data)
    assert run.records.failures == ()
    assert len(run.records.rows) == 40
