"""Runs in buckets of real HTTP object stores, which the tests start: moto (S3), an emulator of GCS, and s3rver (older S3)."""

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from command import LENIENT, Result, assert_one_line, cli, options, start
from cutting_proxy import Proxy, proxied
from helpers import http_response
from real_server import started
from waiting import until

import inferometer
from inferometer.config.storage import Storage
from inferometer.errors import UserError
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed
from inferometer.store import objects
from inferometer.store.objects import ObjectStore, connect

KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI-not-a-real-key"


class Store(NamedTuple):
    scheme: str
    direct: str
    """Its URL without the proxy."""
    proxy: Proxy

    @property
    def url(self) -> str:
        return f"{self.scheme}://bench"


@pytest.fixture(scope="module")
def sim() -> Iterator[str]:
    with running(simulator(timing=Fixed(ttft=0.002, itl=0.0005))) as url:
        yield url


@pytest.fixture(
    scope="module",
    params=[pytest.param("s3", marks=pytest.mark.moto), pytest.param("gs", marks=pytest.mark.gcs_emulator)],
)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    with started({"s3": "moto", "gs": "gcs_emulator"}[request.param]) as ready:
        yield request.param, ready["url"]


S3_ONLY = pytest.mark.parametrize("server", [pytest.param("s3", marks=pytest.mark.moto)], indirect=True)


@pytest.fixture
def store(server: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The store behind a proxy, with credentials in the environment, and with short pauses between attempts."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(objects, "_FIRST_PAUSE", 0.01)
    monkeypatch.chdir(tmp_path)
    scheme, url = server
    with proxied(url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL" if scheme == "s3" else "STORAGE_EMULATOR_HOST", proxy.url)
        yield Store(scheme, url, proxy)


def connected(store: Store, prefix: str) -> ObjectStore:
    """The same bucket without the proxy."""
    return connect(f"{store.url}/{prefix}", Storage(endpoint=store.direct, anonymous=store.scheme == "gs"))


def run(sim: str, output: str, *more: str) -> Result:
    load = ("--requests", "6", "--concurrency", "2", "--input", "4", "--output", "3", "--quiet")
    return cli("run", sim, *load, *options(LENIENT | {"output": output, "storage.timeout": "6s"}), *more)


# --- the store itself ------------------------------------------------------------------------------------------------


def test_objects_come_back_as_they_were_stored(store: Store, tmp_path: Path) -> None:
    large = bytes(range(256)) * 90_000  # more than one part of an S3 upload
    (tmp_path / "large").write_bytes(large)
    with connect(f"{store.url}/objects") as bucket:
        bucket.check_writable()
        bucket.put("a/large", tmp_path / "large")
        bucket.put("a/small", b"small")
        bucket.put("b/empty", b"")
        assert bucket.sizes() == {"a/large": len(large), "a/small": 5, "b/empty": 0}
        assert bucket.names("a") == ["a/large", "a/small"]
        assert bucket.names("none") == []
        bucket.fetch("a/large", tmp_path / "deep/back")
        assert (tmp_path / "deep/back").read_bytes() == large
        with pytest.raises(UserError, match="no such object"):
            bucket.fetch("a/none", tmp_path / "none")


@pytest.mark.s3rver
@pytest.mark.parametrize("is_default", [True, False])
def test_older_look_alikes_store_the_content_or_the_upload_fails(
    monkeypatch: pytest.MonkeyPatch, is_default: bool
) -> None:
    """s3rver stores the framing of a body with a checksum as if it were content. The default for endpoints avoids that."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "S3RVER")
    monkeypatch.setattr(objects, "_FIRST_PAUSE", 0.01)
    if not is_default:
        monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_supported")
    with started("s3rver") as ready, connect("s3://bench/old", Storage(endpoint=ready["url"])) as bucket:
        if is_default:
            bucket.check_writable()
            bucket.put("x", b"0" * 700)
            assert bucket.sizes() == {"x": 700}
        else:
            with pytest.raises(UserError, match="another size"):
                bucket.check_writable()


# --- before the run --------------------------------------------------------------------------------------------------


class _Counting:
    """A server with one model that counts prompts, and responds to none of them."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            start = client.recv(4096)
            if start.startswith(b"GET /v1/models"):
                client.sendall(http_response(b'{"data": [{"id": "m"}]}'))
            elif start.startswith(b"POST "):
                self.requests += 1
            client.close()


@pytest.mark.parametrize(
    "command", [("run",), ("run", "--repeat", "2"), ("run", "--concurrency", "1:8:adaptive"), ("capacity",), ("ab",)]
)
def test_a_bucket_that_does_not_exist_is_refused_before_the_first_request(
    store: Store, command: tuple[str, ...]
) -> None:
    target = _Counting()
    urls = (target.url, target.url) if command == ("ab",) else (target.url,)
    settings = ("--set", f"output={store.scheme}://no-such-bucket/x", "--quiet")
    assert_one_line(cli(*command[:1], *urls, *command[1:], *settings), "no-such-bucket", "there is no such bucket")
    assert target.requests == 0
    assert not any(Path("runs").glob("*/*"))


@S3_ONLY
def test_a_local_folder_that_cannot_be_written_is_refused_before_the_first_request(store: Store) -> None:
    target = _Counting()
    settings = ("--set", f"output={store.url}/x", "--set", "storage.local=/proc/runs", "--quiet")
    assert_one_line(cli("run", target.url, *settings), "storage.local: /proc/runs: ", "on a volume")
    assert target.requests == 0


@S3_ONLY
@pytest.mark.parametrize("fault", ["frozen", "gone"])
def test_a_store_that_does_not_respond_is_refused_in_time(store: Store, fault: str) -> None:
    target = _Counting()
    if fault == "frozen":
        store.proxy.kind, store.proxy.fault = "stall", "/"
    else:
        store.proxy.close()
    began = time.monotonic()
    result = cli("run", target.url, "--set", f"output={store.url}/x", "--set", "storage.timeout=2s", "--quiet")
    assert_one_line(result, f"{store.url}/x", "did not respond within 2 s" if fault == "frozen" else "bench/x")
    assert time.monotonic() - began < 60  # the clients alone would take 90 s, or longer
    assert target.requests == 0


# --- a run in a bucket -----------------------------------------------------------------------------------------------


def test_a_run_is_uploaded_with_its_manifest_last_and_can_be_read_from_there(
    store: Store, sim: str, tmp_path: Path
) -> None:
    result = run(sim, f"{store.url}/whole")
    assert result.status == 0, result
    folder = Path("runs/LATEST").resolve()
    assert result.err.splitlines()[-1] == f"uploaded to {store.url}/whole/{folder.name}"
    local = {path.name: path.stat().st_size for path in folder.iterdir() if path.name != "upload.json"}
    with connected(store, "whole") as bucket:
        sizes = bucket.sizes()
        bucket.fetch("LATEST", tmp_path / "latest")
    assert {name.partition("/")[2]: size for name, size in sizes.items() if "/" in name} == local
    assert (tmp_path / "latest").read_text().strip() == folder.name
    own = [path for path in store.proxy.written() if folder.name in path]
    is_manifest = ["manifest.json" in path for path in own]
    assert is_manifest[-1] and is_manifest == sorted(is_manifest)
    for name in ("LATEST", folder.name, "2*"):
        assert cli("report", f"{store.url}/whole/{name}").out == result.out.replace(
            str(folder), _cached(tmp_path, folder.name)
        )
    listed = json.loads(cli("runs", f"{store.url}/whole", "--json").out)
    assert [(entry["name"], entry["state"], entry["verdict"]) for entry in listed] == [
        (folder.name, "complete", "VALID")
    ]
    compared = cli("compare", f"{store.url}/whole/LATEST", f"{store.url}/whole/{folder.name}", "--force")
    assert compared.status == 0 and f"{store.url}/whole/LATEST" in compared.out
    assert inferometer.open(f"{store.url}/whole/LATEST").summary.counts.ok == 6


def _cached(tmp_path: Path, name: str) -> str:
    """The folder of the run in the cache."""
    (manifest,) = (tmp_path / "cache").rglob(f"{name}/manifest.json")
    return str(manifest.parent)


def test_repeats_and_sweeps_are_uploaded_as_one_folder(store: Store, sim: str) -> None:
    assert run(sim, f"{store.url}/several", "--repeat", "2").status == 0
    assert run(sim, f"{store.url}/several", "--set", "data.input=[4, 5]").status == 0
    listed = json.loads(cli("runs", f"{store.url}/several", "--json").out)
    assert [(entry["kind"], entry["runs"], entry["state"]) for entry in listed] == [
        ("repeats", 2, "complete"),
        ("sweep", 2, "complete"),
    ]
    for entry in listed:
        assert cli("report", entry["folder"]).status == 0
    assert cli("runs", store.url, "--model", "sim").out.count("of 2 runs") == 2  # at any depth


@S3_ONLY
def test_pairs_and_searches_are_uploaded_and_can_be_read_from_there(store: Store, sim: str, tmp_path: Path) -> None:
    settings = options(LENIENT | {"output": f"{store.url}/both"})
    pairs = ("ab", sim, sim, "--pairs", "2", "--requests", "6", "--concurrency", "2", "--force")
    search = ("capacity", sim, "--slo", "failure_rate < 50%", "--budget", "10s", "--start", "100")
    for command in (pairs, search):
        result = cli(*command, *settings, "--input", "4", "--output", "3", "--quiet")
        assert f"uploaded to {store.url}/both/" in result.err, result
    listed = json.loads(cli("runs", f"{store.url}/both", "--json").out)
    assert [(entry["kind"], entry["state"]) for entry in listed] == [("ab", "complete"), ("capacity", "complete")]
    assert "requests/s" in listed[1]["load"]
    assert "capacity of " in cli("runs", f"{store.url}/both").out
    for entry in listed:
        assert cli("report", entry["folder"]).out, entry
    plotted = cli("plot", f"{store.url}/both/LATEST", "--list")
    assert plotted.status == 0 and plotted.out, plotted


def test_an_upload_that_is_cut_off_keeps_the_run_and_can_be_repeated(store: Store, sim: str) -> None:
    store.proxy.fault = "requests.parquet"
    result = run(sim, f"{store.url}/cut")
    folder = Path("runs/LATEST").resolve()
    assert result.status == 2
    assert "VALID" in result.out  # the report comes nevertheless
    what, next_step = result.err.splitlines()[-2:]
    assert "is not complete" in what and f"inferometer runs push {folder}" in next_step
    (listed,) = json.loads(cli("runs", "--json").out)
    assert listed["state"] == "not uploaded"
    store.proxy.repair()
    with connected(store, "cut") as bucket:
        present = bucket.names()
    assert f"{folder.name}/chunks.parquet" in present and f"{folder.name}/manifest.json" not in present
    (listed,) = json.loads(cli("runs", f"{store.url}/cut", "--json").out)
    assert listed["state"] == "incomplete"
    assert_one_line(cli("report", f"{store.url}/cut/{folder.name}"), "not complete")
    store.proxy.requests.clear()
    assert cli("runs", "push", folder).status == 0
    assert not any("chunks.parquet" in path for path in store.proxy.written())
    assert cli("report", f"{store.url}/cut/LATEST").status == 0
    (listed,) = json.loads(cli("runs", "--json").out)
    assert listed["state"] == "complete"


def test_an_upload_whose_process_is_killed_can_be_repeated(store: Store, sim: str, tmp_path: Path) -> None:
    store.proxy.kind, store.proxy.fault = "stall", "samples.parquet"
    load = ("--requests", "6", "--concurrency", "2", "--input", "4", "--output", "3", "--quiet")
    process = start("run", sim, *load, *options(LENIENT | {"output": f"{store.url}/killed"}), cwd=tmp_path)
    assert store.proxy.tripped.wait(60)
    process.kill()
    process.communicate()
    store.proxy.repair()
    (listed,) = json.loads(cli("runs", "--json").out)
    assert listed["state"] == "not uploaded"
    assert cli("runs", "push", listed["folder"]).status == 0
    assert cli("report", f"{store.url}/killed/LATEST").status == 0


@S3_ONLY
def test_ctrl_c_ends_an_upload_that_stalls(store: Store, sim: str, tmp_path: Path) -> None:
    store.proxy.kind, store.proxy.fault = "stall", "samples.parquet"
    load = ("--requests", "6", "--concurrency", "2", "--input", "4", "--output", "3", "--quiet")
    process = start("run", sim, *load, *options(LENIENT | {"output": f"{store.url}/ctrl-c"}), cwd=tmp_path)
    assert store.proxy.tripped.wait(60)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "VALID" in out
    assert "was interrupted" in err and "inferometer runs push" in err


@S3_ONLY
def test_a_stored_credential_is_nowhere(store: Store, sim: str, tmp_path: Path) -> None:
    store.proxy.fault = "requests.parquet"
    results = [run(sim, f"{store.url}/secret"), cli("runs", "--json")]
    store.proxy.repair()
    results += [cli("runs", "push", "runs/LATEST"), cli("report", f"{store.url}/secret/LATEST")]
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for text in (*(result.out + result.err for result in results), written.decode("latin-1")):
        assert SECRET not in text and KEY not in text


@S3_ONLY
def test_the_child_process_ends_with_its_parent(store: Store, sim: str, tmp_path: Path) -> None:
    store.proxy.kind, store.proxy.fault = "stall", "/"
    process = start("runs", f"{store.url}/x", cwd=tmp_path)
    parent = psutil.Process(process.pid)
    children: list[psutil.Process] = []

    def has_child() -> bool:
        children[:] = [each for each in parent.children() if "object_child" in " ".join(each.cmdline())]
        return bool(children)

    until(has_child, "the child process")
    process.kill()
    process.communicate()
    until(lambda: not children[0].is_running() or children[0].status() == psutil.STATUS_ZOMBIE, "the end of the child")


@pytest.mark.slow
@S3_ONLY
def test_parts_that_several_clients_uploaded_are_merged(store: Store, sim: str, tmp_path: Path) -> None:
    """As the Pods of an Indexed Job do; one of them is missing at first."""
    at = datetime.fromtimestamp(time.time() + 20, UTC).isoformat()
    load = ("--rate", "30", "--duration", "2s", "--input", "4", "--output", f"{store.url}/parts/")
    arguments = ("run", sim, *load, "--shard", "auto/2", "--start-at", at, "--quiet", *options(LENIENT))
    started_parts = [start(*arguments, cwd=tmp_path, JOB_COMPLETION_INDEX=str(number)) for number in (0, 1)]
    for process in started_parts:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    merged = cli("merge", f"{store.url}/parts", "--output", f"{store.url}/merged", "--json", "summary.json")
    assert merged.status == 0, merged
    assert json.loads(Path("summary.json").read_text())["counts"]["ok"] == 60
    assert f"uploaded to {store.url}/merged/" in merged.err
    again = cli("report", f"{store.url}/merged/LATEST")
    assert again.status == 0 and "2 of 2 parts" in again.out
    alone = cli("merge", f"{store.url}/parts/*-part1-*", "--output", tmp_path / "alone")
    assert alone.status == 1 and "Part 0 of 2, counted from 0, is missing" in alone.out
