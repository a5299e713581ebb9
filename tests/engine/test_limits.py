"""When sockets run out: the limit and the remedy are named, before the run where that can be known."""

import errno
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import Client, scripted

from inferometer.config import from_mapping
from inferometer.engine import before
from inferometer.engine.link import out_of_sockets
from inferometer.errors import UserError
from inferometer.fleet.job import Job, make_task
from inferometer.wire.target import parse


@pytest.fixture
def low_limit() -> Iterator[int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = min(200, soft)
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    yield low
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_soft_limit_is_raised_to_the_hard_one(low_limit: int) -> None:
    before.raise_file_limit(10)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard > low_limit


def test_more_connections_than_files_is_said_before_the_run() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with pytest.raises(UserError) as caught:
        before.raise_file_limit(hard + 1)
    assert str(hard) in caught.value.what
    assert "client.processes" in caught.value.remedy


@pytest.mark.parametrize(("scheme", "files"), [("grpc", 4), ("http", 500)])
def test_requests_that_share_connections_need_no_file_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, files: int
) -> None:
    needed: list[int] = []
    monkeypatch.setattr(before, "raise_file_limit", needed.append)
    config = from_mapping(
        {
            "server": {"url": f"{scheme}://x:1", "api": "kserve", "model": "m"},
            "data": {"type": "tensors", "inputs": [{"name": "A", "datatype": "INT32", "shape": [1]}]},
            "load": {"type": "closed", "concurrency": 500, "requests": 500},
            "client": {"connections": 4},
        }
    )
    reached = before.Reached((parse(f"{scheme}://x:1"),), ((2, ("x", 1)),), "m", {})
    make_task(Job(config, reached, 1, tmp_path, "0a"), 0)
    assert needed == [files]


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EMFILE, "ulimit -n"), (errno.ENFILE, "fs.file-max"), (errno.EADDRNOTAVAIL, "ip_local_port_range")],
)
def test_each_limit_has_its_remedy(number: int, words: str) -> None:
    assert words in out_of_sockets(OSError(number, ""))


def test_sockets_that_run_out_during_the_run_are_failures_with_the_reason(tmp_path: Path) -> None:
    """A hard limit of 100 files, and an open loop whose server answers nothing."""
    with scripted(silent) as url:
        code = (
            "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)); "
            "sys.argv = ['inferometer', *sys.argv[1:]]; runpy.run_module('inferometer', run_name='__main__')"
        )
        command = [sys.executable, "-c", code, "run", url, "--model", "m", "--rate", "300", "--duration", "1s", "-q"]
        settings = [
            "--set",
            "client.connections=1",
            "--set",
            f"output={tmp_path}",
            "--set",
            "server.timeouts.total=500ms",
        ]
        done = subprocess.run([*command, *settings], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1, done.stderr
    assert "no_sockets" in done.stdout
    assert "ulimit -n" in done.stdout


def silent(client: Client) -> None:
    """Takes requests in and says nothing."""
    while client.request():
        pass
