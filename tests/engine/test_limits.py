"""Running out of sockets: messages name the limit and the remedy, before the run if that can be known."""

import asyncio
import contextlib
import errno
import json
import os
import resource
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme
from grpc_peers import GrpcPeer, descriptors, scripted_grpc
from h2.settings import SettingCodes
from helpers import Client, jobs_of, measure, scripted

from inferometer import open_files, processors, store
from inferometer.config import from_mapping
from inferometer.engine.reader import Reader, StampClock
from inferometer.engine.transport import Transport, out_of_sockets
from inferometer.errors import UserError
from inferometer.open_files import RESERVED_FILES
from inferometer.timing.deadlines import Deadlines
from inferometer.types import Fail


@pytest.fixture
def low_limit() -> Iterator[int]:
    """A soft limit with room for 100 files beyond those that other tests may have left open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = min(max(int(path.name) for path in Path("/dev/fd").iterdir()) + 100, soft)
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    yield low
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_soft_limit_is_raised_to_the_hard_limit(low_limit: int) -> None:
    open_files.raise_file_limit(10)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard > low_limit


def test_more_connections_than_files_is_an_error_before_the_run() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with pytest.raises(UserError) as caught:
        open_files.raise_file_limit(hard + 1)
    assert str(hard) in caught.value.what
    assert ("client.processes to 2," in caught.value.remedy) == (processors.usable() >= 2)
    with pytest.raises(UserError) as caught:
        open_files.raise_file_limit(10_000 * hard)
    assert "client.processes" not in caught.value.remedy


@pytest.mark.parametrize(("scheme", "files"), [("grpc", 4), ("http", 500)])
def test_requests_that_share_connections_do_not_need_a_file_each(tmp_path: Path, scheme: str, files: int) -> None:
    config = from_mapping(
        {
            "server": {"url": f"{scheme}://x:1", "api": "kserve", "model": "m"},
            "data": {"type": "tensors", "inputs": [{"name": "A", "datatype": "INT32", "shape": [1]}]},
            "load": {"type": "closed", "concurrency": 500, "requests": 500},
            "client": {"connections": 4},
        }
    )
    with jobs_of(config, tmp_path) as (job,):
        assert job.open_files == files


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EMFILE, "ulimit -n"), (errno.ENFILE, "fs.file-max"), (errno.EADDRNOTAVAIL, "ip_local_port_range")],
)
def test_each_limit_has_its_own_remedy(number: int, words: str) -> None:
    assert words in out_of_sockets(OSError(number, ""))


# --- sockets that run out while it runs ------------------------------------------------------------------------------


def silent(client: Client) -> None:
    """Reads requests and never responds."""
    while client.request():
        pass


def silent_peer(peer: GrpcPeer) -> None:
    for _ in peer.requests():
        pass


def one_stream_each(context: ssl.SSLContext | None = None) -> contextlib.AbstractContextManager[str]:
    """A gRPC server that allows one call per connection."""
    return scripted_grpc(silent_peer, context, {SettingCodes.MAX_CONCURRENT_STREAMS: 1})


def inferometer(config: dict[str, Any], folder: Path, already_open: int = 0) -> "subprocess.CompletedProcess[str]":
    """`inferometer run` with a hard limit of 100 files, of which some are in use."""
    code = (
        "import os, resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)); "
        f"[os.dup(0) for _ in range({already_open})]; "
        "sys.argv = ['inferometer', *sys.argv[1:]]; runpy.run_module('inferometer', run_name='__main__')"
    )
    path = folder / "run.yaml"
    path.write_text(json.dumps(config | {"output": str(folder / "runs")}))
    command = [sys.executable, "-c", code, "run", str(path), "-q"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, stdin=subprocess.DEVNULL)


def config_for(url: str, folder: Path, processes: int) -> dict[str, Any]:
    """500 requests within a second, each given up after 700 ms."""
    timeouts = {"timeouts": {"total": "700ms"}, "tls": {"verify": False}}
    text: dict[str, Any] = {
        "server": {"url": url, "model": "m"} | timeouts,
        "data": {"type": "prompts", "prompts": ["hello"], "output": 2},
    }
    proto = folder / "t.binpb"
    proto.write_bytes(descriptors())
    calls: dict[str, Any] = {
        "server": {"url": url, "api": "grpc", "method": "t.S/Unary", "proto": str(proto)} | timeouts,
        "data": {"type": "messages", "messages": [{"text": "hello"}]},
    }
    return (calls if url.startswith("grpc") else text) | {
        "load": {"type": "constant", "rate": 500, "requests": 500},
        "client": {"processes": processes, "connections": 1, "probe": False},
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "processes"),
    [
        ("grpc", 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("http", 0), ("http", 2), ("https", 1), ("grpc", 0), ("grpcs", 1))
        ),
    ],
)
def test_running_out_of_sockets_causes_failures_and_the_run_continues(
    tmp_path: Path, scheme: str, processes: int
) -> None:
    context = own_certificate(alpn="h2" if scheme == "grpcs" else "http/1.1") if scheme.endswith("s") else None
    server = one_stream_each(context) if scheme.startswith("grpc") else scripted(silent, context)
    with server as url:
        result = inferometer(config_for(url, tmp_path, processes), tmp_path)
    assert (result.returncode, result.stderr) == (1, "")
    assert "INVALID" in result.stdout
    assert "the limit of 100 open files (ulimit -n) is reached: raise it" in " ".join(result.stdout.split())
    run = store.read(str(tmp_path / "runs" / "LATEST"))
    assert run.manifest.outcome.errors == ()
    assert {sample.shard for sample in run.records.samples} == set(range(processes or 1))
    rows, codes = run.records.rows, [failure.code for failure in run.records.failures]
    assert sorted(codes) == ["no_sockets", "total_timeout"]
    assert sorted(rows["id"].tolist()) == list(range(500))
    sent, without = (rows["failure"] == codes.index(code) + 1 for code in ("total_timeout", "no_sockets"))
    assert rows["id"][sent].min() < rows["id"][without].min()
    tried = np.where(sent, rows["sent"], rows["done"])
    for shard in range(processes or 1):
        own = rows["shard"] == shard
        after = own & (
            tried > rows["done"][own & sent].min()
        )  # may be empty if a busy machine sent everything at the end
        assert not after.any() or (sent & after).any(), "who comes after that finds a socket that has become free"


def own_certificate(alpn: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols([alpn])
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.mark.slow
def test_running_out_of_sockets_before_the_start_is_a_clear_error(tmp_path: Path) -> None:
    with scripted(silent) as url:
        config = config_for(url, tmp_path, 0) | {"client": {"processes": 0, "connections": 30, "probe": False}}
        result = inferometer(config, tmp_path, already_open=40)
    assert result.returncode == 2
    assert "the limit of 100 open files" in result.stderr
    assert "client.connections" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list((tmp_path / "runs").glob("*"))


def test_connections_leave_files_for_the_client_itself(low_limit: int) -> None:
    async def open_all() -> list[Fail]:
        with socket.create_server(("127.0.0.1", 0), backlog=low_limit) as listener:
            loop, clock = asyncio.get_running_loop(), StampClock(0, False)
            reader = Reader(loop, clock, lambda: None, Deadlines(loop))
            owners = [Owner() for _ in range(low_limit)]
            transports = [Transport(loop, reader, owner) for owner in owners]
            for transport in transports:
                transport.connect(socket.AF_INET, listener.getsockname())
            for _ in range(RESERVED_FILES):
                kept.callback(os.close, os.dup(listener.fileno()))
            for transport in transports:
                transport.close()
            return [owner.fail for owner in owners if owner.fail is not None]

    with contextlib.ExitStack() as kept:
        failed = asyncio.run(open_all())
    assert 0 < len(failed) < low_limit
    assert {fail.code for fail in failed} == {"no_sockets"}


class Owner:
    """A transport's owner that records whether it could be opened."""

    fail: Fail | None = None

    def established(self) -> None: ...

    def received(self, pieces: Sequence[bytes], stamps: Sequence[int], delay: int) -> None: ...

    def closed(self, at: int) -> None: ...

    def broken(self, fail: Fail) -> None:
        self.fail = fail

    def drained(self) -> None: ...


def test_more_processes_than_files_is_an_error_before_any_is_started(tmp_path: Path, low_limit: int) -> None:
    load = {"type": "closed", "concurrency": low_limit, "requests": low_limit}
    with scripted(silent) as url, pytest.raises(UserError) as caught:
        measure(tmp_path, url, client={"processes": low_limit}, load=load)
    assert f"{low_limit} client processes need more open files than the limit of {low_limit}" in caught.value.what
    assert "client.processes" in caught.value.remedy
    assert not list(tmp_path.iterdir())
