"""A server in a child process: the communication with its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from raw_client import RawClient, request
from waiting import until

from inferometer.serve.background import serving
from inferometer.serve.settings import Settings

CONFIG = """
CONFIG = {
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
}
"""
TALKER = """
print("loaded")
def infer(inputs, parameters):
    print("computing " * 20_000, flush=True)
    return {"y": inputs["x"]}
"""
WAITER = """
import os, time
def infer(inputs, parameters):
    if inputs["x"].any():  # not during warm-up
        open("{folder}/begun", "w").close()
        while not os.path.exists("{folder}/enough"):
            time.sleep(0.01)
    return {{"y": inputs["x"]}}
"""
GIVEN = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.5]}]}


def test_output_of_a_model_does_not_disturb_the_handshake(tmp_path: Path):
    (tmp_path / "talker.py").write_text(CONFIG + TALKER)
    with serving(Settings(models=(str(tmp_path / "talker.py"),), http=0)) as server, RawClient(server.url) as web:
        assert web.request("/v2/models/talker/infer", GIVEN).json["outputs"][0]["data"] == [1.5]


def test_a_signal_after_the_end_of_stdin_does_not_shorten_the_drain(tmp_path: Path):
    """The parent does both to stop it, and the child may see them in either order: that is one stop, not a second
    signal."""
    (tmp_path / "waiter.py").write_text(CONFIG + WAITER.format(folder=tmp_path))
    settings = Settings(models=(str(tmp_path / "waiter.py"),), http=0, drain=30)
    with serving(settings) as server, RawClient(server.url) as web, RawClient(server.url) as watch:
        web.send(request("/v2/models/waiter/infer", GIVEN))
        until((tmp_path / "begun").exists)
        server._process.stdin.close()
        server._process.stdin = None  # or `stop` would close it again
        until(lambda: watch.request("/v2/health/ready").status != 200)
        os.kill(server.pid, signal.SIGTERM)
        time.sleep(0.3)  # in which it would be over
        (tmp_path / "enough").touch()
        assert web.response().json["outputs"][0]["data"] == [1.5]


PARENT = """
import sys
from inferometer.serve.background import start
from inferometer.serve.settings import Settings
start(Settings(models=(sys.argv[1],), http=0, drain=30))
print("serving", flush=True)
sys.stdin.read()
"""
SLOW_TO_LOAD = "import time; open({mark!r}, 'w').close(); time.sleep(60)"


@pytest.mark.parametrize("moment", ["loading", "serving"])
def test_a_server_does_not_outlive_a_killed_parent(tmp_path: Path, moment: str):
    mark = tmp_path / "begun"
    (tmp_path / "model.py").write_text(SLOW_TO_LOAD.format(mark=str(mark)) if moment == "loading" else CONFIG + TALKER)
    command = [sys.executable, "-c", PARENT, str(tmp_path / "model.py")]
    parent = psutil.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if moment == "loading":
        until(mark.exists)
    else:
        assert parent.stdout.readline() == b"serving\n"
    (server,) = parent.children()
    parent.kill()
    parent.wait()
    until(lambda: not server.is_running())
