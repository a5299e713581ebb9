"""How a server of several processes ends: nothing of it is left, whoever ends first."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from raw_client import RawClient, request
from waiting import until

SLOW = """
import time
CONFIG = {
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}],
}
def infer(inputs, parameters):
    if inputs["x"].any():  # not during the warm-up
        open("begun", "w").close()
        time.sleep(float(inputs["x"][0]))
    return inputs
"""
pytestmark = pytest.mark.slow  # each test starts a server of its own
Started = tuple["subprocess.Popen[str]", str, list[psutil.Process]]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """A server with two front ends and a model process: its process, its URL, and its child processes."""
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", "inferometer", "serve", "slow.py", "--processes", "2", "--http", "0"]
    command += ["--config", "parameters.process=1"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path, start_new_session=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line.startswith("Listening on"), server.communicate()
        children = psutil.Process(server.pid).children()
        yield server, line.split()[2], children
        server.kill()
        for child in children:
            if child.is_running():
                child.kill()


def slow(seconds: float) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [seconds]}
    return request("/v2/models/slow/infer", {"inputs": [tensor]})


def ended(children: list[psutil.Process]) -> bool:
    return not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


def test_a_signal_drains_all_processes(started: Started, tmp_path: Path):
    server, url, children = started
    assert len(children) == 3
    with RawClient(url) as client:
        client.send(slow(1))
        until((tmp_path / "begun").exists)
        os.killpg(server.pid, signal.SIGINT)  # as a terminal does
        assert client.response().status == 200
    assert server.wait(20) == 0
    assert ended(children)


def test_a_model_that_fails_to_load_in_all_processes_is_one_error(tmp_path: Path):
    (tmp_path / "broken.py").write_text("1 / 0")
    command = [sys.executable, "-m", "inferometer", "serve", "broken.py", "--processes", "2", "--http", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    what = "inferometer: model broken: broken.py failed to load: ZeroDivisionError: division by zero (line 1)"
    assert (ended.returncode, ended.stderr) == (2, f"{what}\n  next: fix the file\n")


def test_the_end_of_a_front_end_ends_the_server(started: Started):
    server, _, children = started
    children[0].kill()
    _, errors = server.communicate(timeout=30)
    assert server.returncode != 0
    assert f"(pid {children[0].pid}) ended with signal 9" in errors
    assert "ended unexpectedly, so the server stopped" in errors
    assert "Traceback" not in errors
    assert ended(children)


def test_children_end_with_a_parent_that_is_killed(started: Started):
    server, _, children = started
    server.kill()
    until(lambda: ended(children))
