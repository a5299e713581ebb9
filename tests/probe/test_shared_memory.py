"""Tensors in shared memory, against a server in this process that keeps regions as Triton does."""

import contextlib
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import Client, measure, scripted
from hypothesis import given
from hypothesis import strategies as st

from inferometer import schedule, workload
from inferometer.config import from_mapping
from inferometer.errors import UserError
from inferometer.prepare import choice, jobs
from inferometer.probe import shared_memory, shm_region
from inferometer.probe.shm_region import PREFIX, Region, sweep
from inferometer.records import Run
from inferometer.tensors import Tensor
from inferometer.types import Request

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory is a folder on Linux alone")

WAIT_S = 60


class Inferred(NamedTuple):
    body: dict[str, Any]
    """The request's JSON."""
    rest: bytes
    """The bytes after it."""
    given: bytes
    """Its first input, wherever that was."""


class Fake:
    """A KServe server with one model that returns its input, INPUT FP32 [-1, 4] -> OUTPUT."""

    def __init__(self, output: list[int]) -> None:
        self.input = {"name": "INPUT", "datatype": "FP32", "shape": [-1, 4]}
        self.output = {"name": "OUTPUT", "datatype": "FP32", "shape": output}
        self.refusal = ""
        self.in_use = 0
        """Number of times that it refuses to unregister a region."""
        self.registered: dict[str, dict[str, Any]] = {}
        self.seen: dict[str, dict[str, Any]] = {}
        """All regions that were ever registered."""
        self.inferred: list[Inferred] = []
        self.register_requested, self.may_register = threading.Event(), threading.Event()
        self.may_register.set()
        self.infer_requested = threading.Event()

    def __call__(self, client: Client) -> None:
        while request := client.request():
            first, headers, body = request
            status, tree = self._respond(first.split(" ")[1], headers, body)
            body = json.dumps(tree).encode()
            client.send(b"HTTP/1.1 %d Status\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))

    def _respond(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        if path == "/v2/models/m/infer":
            return self._infer(headers, body)
        if path.endswith("/register"):
            return self._register(path.split("/")[-2], json.loads(body))
        if path.endswith("/unregister"):
            return self._unregister(path.split("/")[-2])
        about = {
            "/v2": {"name": "fake"},
            "/v2/health/live": {},
            "/v2/models/m": {"name": "m", "inputs": [self.input], "outputs": [self.output]},
            "/v2/models/m/ready": {},
            "/v2/models/m/config": {"name": "m", "max_batch_size": 8},
            "/v2/systemsharedmemory/status": list(self.registered.values()),
        }
        return (200, about[path]) if path in about else (404, {"error": "Not Found"})

    def _register(self, name: str, about: dict[str, Any]) -> tuple[int, Any]:
        self.seen[name] = about
        self.register_requested.set()
        self.may_register.wait(WAIT_S)
        if self.refusal or name in self.registered:
            return 400, {"error": self.refusal or f"shared memory region '{name}' already in manager"}
        file = path_of(about["key"])
        assert file.stat().st_size == about["byte_size"]
        self.registered[name] = about | {"name": name}
        return 200, {}

    def _unregister(self, name: str) -> tuple[int, Any]:
        if self.in_use:
            self.in_use -= 1
            return 500, {"error": f"Cannot unregister shared memory region '{name}', it is currently in use."}
        self.registered.pop(name, None)
        return 200, {}

    def _infer(self, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        end = int(headers.get("inference-header-content-length", len(body)))
        tree, rest = json.loads(body[:end]), body[end:]
        if not tree["inputs"]:
            return 400, {"error": "expected 1 inputs but got 0 inputs for model 'm'"}
        (given,) = tree["inputs"]
        reference = given.get("parameters", {})
        raw = self._read(reference) if "shared_memory_region" in reference else rest
        self.inferred.append(Inferred(tree, rest, raw))
        self.infer_requested.set()
        output = self.output | {"shape": given["shape"]}
        (wanted,) = tree.get("outputs") or [{}]
        if "shared_memory_region" in wanted.get("parameters", {}):
            self._write(wanted["parameters"], raw)
        else:
            output["data"] = np.frombuffer(raw, "<f4").tolist()
        return 200, {"model_name": "m", "outputs": [output]}

    def _read(self, reference: dict[str, Any]) -> bytes:
        with path_of(self.registered[reference["shared_memory_region"]]["key"]).open("rb") as file:
            file.seek(reference.get("shared_memory_offset", 0))
            return file.read(reference["shared_memory_byte_size"])

    def _write(self, reference: dict[str, Any], raw: bytes) -> None:
        about = self.registered[reference["shared_memory_region"]]
        offset = reference.get("shared_memory_offset", 0)
        assert len(raw) <= reference["shared_memory_byte_size"]
        assert offset + reference["shared_memory_byte_size"] <= about["byte_size"]
        with path_of(about["key"]).open("r+b") as file:
            file.seek(offset)
            file.write(raw)

    def slots(self) -> list[int]:
        """The slot of each request's output."""
        return [one.body["outputs"][0]["parameters"].get("shared_memory_offset", 0) for one in self.inferred]

    def left_over(self) -> list[str]:
        """Regions that it still knows, and files of those that it ever knew."""
        return [*self.registered, *(name for name in self.seen if path_of(self.seen[name]["key"]).exists())]


def path_of(key: str) -> Path:
    assert key.startswith(f"/{PREFIX}")
    return shm_region.FOLDER / key[1:]


@contextlib.contextmanager
def serving(output: tuple[int, ...] = (-1, 4)) -> Iterator[tuple[Fake, str]]:
    fake = Fake(list(output))
    with scripted(fake) as url:
        yield fake, url


def shared_run(folder: Path, url: str | list[str], **sections: Any) -> Run:
    server = {"api": "kserve", "shared_memory": True} | sections.pop("server", {})
    sections = {"data": {"type": "tensors"}} | sections
    run, _ = measure(folder, url, server=server, **sections)
    return run


def failures(run: Run) -> int:
    return int(np.count_nonzero(run.records.rows["failure"]))


# --- what a run does ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "processes"),
    [
        ("kserve", 0),
        ("kserve-json", 2),
        pytest.param("kserve", 2, marks=pytest.mark.slow),
        pytest.param("kserve-json", 0, marks=pytest.mark.slow),
    ],
)
def test_tensors_are_in_shared_memory_and_not_in_messages(tmp_path: Path, api: str, processes: int) -> None:
    with serving() as (fake, url):
        server = {"api": api}
        run = shared_run(tmp_path, url, server=server, client={"processes": processes})
        assert len(run.records.rows) == len(fake.inferred) == 6
        assert failures(run) == 0
        assert fake.left_over() == []
        (about,) = fake.seen.values()
    seen = {one.given for one in fake.inferred}
    assert {len(raw) for raw in seen} == {16}
    assert len(seen) == 6  # random: all differ
    assert all(one.rest == b"" and "data" not in one.body["inputs"][0] for one in fake.inferred)
    assert about["key"].split("-")[1] == str(os.getpid())
    assert run.manifest.config["server"]["shared_memory"] is True


def test_the_tensors_are_those_that_are_sent_without_shared_memory(tmp_path: Path) -> None:
    load = {"type": "closed", "concurrency": 1, "requests": 5}
    with serving() as (fake, url):
        shared_run(tmp_path, url, load=load)
        shared_run(tmp_path, url, load=load, server={"shared_memory": False})
        there, here = fake.inferred[:5], fake.inferred[5:]
        assert [one.given for one in there] == [one.given for one in here]
        assert [one.body["inputs"][0]["shape"] for one in there] == [one.body["inputs"][0]["shape"] for one in here]


def test_one_kind_of_request_has_more_slots_than_there_are_users(tmp_path: Path) -> None:
    load = {"type": "closed", "concurrency": 3, "requests": 36}
    with serving() as (fake, url):
        run = shared_run(tmp_path, url, data={"type": "tensors", "fill": "zeros"}, load=load)
        assert failures(run) == 0
        used = fake.slots()
        assert len({one.body["inputs"][0]["parameters"].get("shared_memory_offset", 0) for one in fake.inferred}) == 1
    assert sorted(used) == sorted(list(set(used)) * 3)
    assert len(set(used)) == 12


def test_each_sequence_has_its_own_slot(tmp_path: Path) -> None:
    load = {"type": "closed", "concurrency": 2, "requests": 12}
    with serving() as (fake, url):
        run = shared_run(tmp_path, url, data={"type": "tensors", "sequence": 3}, load=load)
        assert failures(run) == 0
        slots: dict[int, set[int]] = {}
        for one, slot in zip(fake.inferred, fake.slots(), strict=True):
            slots.setdefault(one.body["parameters"]["sequence_id"], set()).add(slot)
    assert len(slots) >= 4
    assert all(len(found) == 1 for found in slots.values())
    assert len(set.union(*slots.values())) == len(slots)


def test_two_urls_of_one_server(tmp_path: Path) -> None:
    with serving() as (fake, url):
        run = shared_run(tmp_path, [url, url.replace("127.0.0.1", "localhost")])
        assert failures(run) == 0
        assert len(fake.seen) == 1
        assert fake.left_over() == []


# --- how large outputs are ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("output", "size"), [((-1, 4), 2 * 16), ((-1, 5), 2 * 20), ((-1, -1), 2 * 16 * 3 // 2 + 1024)])
def test_the_size_of_outputs_comes_from_the_metadata_or_a_first_inference(
    tmp_path: Path, output: tuple[int, ...], size: int
) -> None:
    with serving(output) as (fake, url):
        run = shared_run(tmp_path, url, data={"type": "tensors", "batch": 2})
        probes = [one for one in fake.inferred if "outputs" not in one.body]
        assert failures(run) == 0
        assert len(probes) == (-1 in output[1:])
        fake.inferred = [one for one in fake.inferred if one not in probes]
        assert {one.body["outputs"][0]["parameters"]["shared_memory_byte_size"] for one in fake.inferred} == {size}


def test_a_first_inference_that_fails_is_an_error_with_the_reason(tmp_path: Path) -> None:
    with serving((-1, -1)) as (fake, url):
        fake._infer = lambda headers, body: (500, {"error": "no weights"})  # type: ignore[method-assign]
        with pytest.raises(UserError, match=r"a first inference.*no weights"):
            shared_run(tmp_path, url)
        assert (fake.seen, list(tmp_path.iterdir())) == ({}, [])


def test_an_unknown_output_is_an_error(tmp_path: Path) -> None:
    with serving() as (_, url), pytest.raises(UserError, match="has no output 'OTHER'") as raised:
        shared_run(tmp_path, url, server={"outputs": ["OTHER"]})
    assert "OUTPUT" in raised.value.remedy


# --- what goes wrong ----------------------------------------------------------------------------------------------------


def test_a_server_that_cannot_open_the_region_is_an_error_with_its_message(tmp_path: Path) -> None:
    with serving() as (fake, url):
        fake.refusal = "Unable to open shared memory region: '/x'"
        with pytest.raises(UserError, match="Unable to open shared memory region") as raised:
            shared_run(tmp_path, url)
        assert "must run on this machine" in raised.value.remedy
        assert fake.left_over() == []
        assert fake.inferred == []
    assert list(tmp_path.iterdir()) == []


def test_an_exception_removes_the_region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("inferometer.conduct.measuring.Supervisor", broken)
    with serving() as (fake, url):
        with pytest.raises(RuntimeError, match="broken"):
            shared_run(tmp_path, url)
        assert len(fake.seen) == 1
        assert fake.left_over() == []


def test_a_region_in_use_is_unregistered_when_it_no_longer_is(tmp_path: Path) -> None:
    with serving() as (fake, url):
        fake.in_use = 3
        shared_run(tmp_path, url)
        assert fake.in_use == 0
        assert fake.left_over() == []


def test_a_region_that_stays_in_use_is_left_to_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_unregister", partial(shared_memory._unregister, patience=0))
    with serving() as (fake, url):
        fake.in_use = 1
        shared_run(tmp_path, url)
        (left,) = fake.left_over()
        assert list(fake.registered) == [left]
        shared_run(tmp_path, url)
        assert fake.left_over() == []


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite"])
def test_a_full_disk_is_an_error_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(shm_region, "FOLDER", tmp_path / "shm")
    monkeypatch.setattr(os, call, full)
    with serving() as (fake, url), pytest.raises(UserError, match=r"No space left on device.* of tensors") as raised:
        shared_run(tmp_path / "runs", url)
    assert "--shm-size" in raised.value.remedy
    assert (fake.seen, list((tmp_path / "shm").iterdir())) == ({}, [])
    assert not (tmp_path / "runs").exists()


def test_a_system_without_dev_shm_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_region, "FOLDER", tmp_path / "none")
    with serving() as (_, url), pytest.raises(UserError, match=r"this system does not have .*none"):
        shared_run(tmp_path, url)


def test_text_has_no_shared_memory() -> None:
    with pytest.raises(UserError, match=r"server\.shared_memory: chat does not send tensors"):
        from_mapping({"server": {"url": "http://localhost", "shared_memory": True}})


# --- signals ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def process_of(folder: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    config = {
        "server": {"url": url, "model": "m", "api": "kserve", "shared_memory": True},
        "load": {"type": "closed", "concurrency": 2, "duration": "60s"},
        "client": {"processes": 1, "grace": "100ms", "probe": False},
    }
    (folder / "run.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "inferometer", "run", "run.yaml", "--quiet"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def await_event(event: threading.Event, process: subprocess.Popen[str]) -> None:
    for _ in range(WAIT_S * 10):
        if event.wait(0.1):
            return
        assert process.poll() is None, process.communicate()
    raise AssertionError("it did not happen")


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 128 + signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 128 + signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_signal_between_creating_and_registering(tmp_path: Path, number: int, status: int) -> None:
    with serving() as (fake, url):
        fake.may_register.clear()
        with process_of(tmp_path, url) as process:
            await_event(fake.register_requested, process)
            (about,) = fake.seen.values()
            assert path_of(about["key"]).exists()
            process.send_signal(number)
            assert process.wait(WAIT_S) == status
        assert not path_of(about["key"]).exists()
        assert fake.inferred == []
        fake.may_register.set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 1),
        pytest.param(signal.SIGTERM, 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 128 + signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_signal_in_the_middle_of_a_run(tmp_path: Path, number: int, status: int) -> None:
    """(The first two end it with a report, which says INVALID.)"""
    with serving() as (fake, url), process_of(tmp_path, url) as process:
        await_event(fake.infer_requested, process)
        assert len(fake.left_over()) == 2  # registered, and a file
        process.send_signal(number)
        assert process.wait(WAIT_S) == status
        assert fake.left_over() == []


@pytest.mark.slow
def test_a_run_that_was_killed_leaves_a_region_that_the_next_one_removes(tmp_path: Path) -> None:
    with serving() as (fake, url):
        with process_of(tmp_path, url) as process:
            await_event(fake.infer_requested, process)
            (left,) = fake.seen
            process.kill()
            process.wait(WAIT_S)
        assert list(fake.registered) == [left]  # (its file may have been removed by another run on this machine)
        shared_run(tmp_path, url)
        assert len(fake.seen) == 2
        assert fake.left_over() == []


# --- regions ------------------------------------------------------------------------------------------------------------


def test_a_sweep_spares_regions_in_use_and_files_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_region, "FOLDER", tmp_path)
    region = Region()
    region.create()
    left, foreign = tmp_path / f"{PREFIX}{os.getpid()}-left", tmp_path / "triton_region"
    left.touch()  # even if the number of the process is in use again
    foreign.touch()
    sweep()
    assert sorted(tmp_path.iterdir()) == sorted([region.path, foreign])
    region.remove()
    assert list(tmp_path.iterdir()) == [foreign]


def test_a_region_removed_before_it_is_locked_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_region, "FOLDER", tmp_path)
    flock, swept = fcntl.flock, []

    def late(file: int, operation: int) -> None:
        if not swept:
            swept.extend(tmp_path.iterdir())
            swept[0].unlink()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    region = Region()
    region.create()
    assert list(tmp_path.iterdir()) == [region.path] != swept
    region.remove()


def test_only_the_user_can_access_a_region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_region, "FOLDER", tmp_path)
    region = Region()
    region.create()
    assert region.path.stat().st_mode & 0o777 == 0o600
    region.remove()


@given(st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=20), st.integers(0, 5000))
def test_equal_tensors_are_stored_once(pieces: list[bytes], reserved: int) -> None:
    region = Region()
    region.create()
    try:
        references = [region.put(piece) for piece in pieces]
        start = region.reserve(reserved)
        content = region.path.read_bytes()
    finally:
        region.remove()
    assert [content[reference.offset : reference.offset + reference.byte_size] for reference in references] == pieces
    assert len({reference.offset for reference in references}) == len(set(pieces))
    assert all(
        reference.offset % 64 == 0 and reference.offset + reference.byte_size <= start for reference in references
    )
    if reserved:
        assert len(content) == region.size == start + reserved


# --- slots --------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 70))
def test_consecutive_requests_have_different_slots(count: int, at_once: int, room: int) -> None:
    """For all requests that can be in flight together, at any point of the round and for any numbers of requests and slots."""
    shard = shared_memory._Shard(({},) * count, at_once, 0)
    slots = shard.slots(room)
    requests = jobs.in_rounds([Request(id, "", 0, 0) for id in range(count)], slots)
    launched = [n % len(requests) % slots for n in range(3 * len(requests))]
    assert all(len(set(launched[n : n + at_once])) == at_once for n in range(len(launched) - at_once))
    assert [request.id for request in requests] == [n % count for n in range(len(requests))]
    assert len(requests) >= count
    assert slots <= max(room, at_once)


def test_portions_are_what_the_shards_send() -> None:
    data = {"type": "tensors", "inputs": [{"name": "X", "datatype": "FP32", "shape": [2]}]}
    load = {"type": "closed", "concurrency": 5, "requests": 9}
    server = {"url": "grpc://localhost", "shared_memory": True}
    config = from_mapping({"server": server, "data": data, "load": load})
    plan = schedule.plan(config.load, config.seed)
    (first, second) = list(choice.portions(config, plan, 2, 0))
    whole = workload.build(config.data, config.seed, range(9))
    assert first.payloads == [request.payload for request in whole[::2]]
    assert second.payloads == [request.payload for request in whole[1::2]]
    assert (first.at_once, second.at_once) == (3, 2)


def test_empty_tensors_stay_in_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_region, "FOLDER", tmp_path)
    region = Region()
    region.create()
    placed = shared_memory._put(region, (Tensor("A", "FP32", (0,), b""), Tensor("B", "FP32", (1,), bytes(4))))
    region.remove()
    assert list(placed) == ["B"]


@pytest.mark.parametrize("api", ["kserve", "kserve-json"])
def test_inputs_without_elements_stay_in_the_messages(tmp_path: Path, api: str) -> None:
    """The first inference, which shows the size of the outputs, has them too."""
    with serving((-1, -1)) as (fake, url):
        fake.input["shape"] = [-1, -1]
        data = {"type": "tensors", "shape": {"INPUT": [1, 0]}}
        run = shared_run(tmp_path, url, server={"api": api}, data=data, load={"type": "closed", "requests": 3})
    assert failures(run) == 0
    assert len(fake.inferred) == 4
    assert all(one.body["inputs"][0]["shape"] == [1, 0] for one in fake.inferred)
    assert all("outputs" in one.body for one in fake.inferred[1:])
    assert fake.left_over() == []
