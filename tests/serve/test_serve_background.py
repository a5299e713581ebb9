"""A server in a child process: the communication with its parent."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from raw_client import RawClient
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
GIVEN = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.5]}]}


def test_output_of_a_model_does_not_disturb_the_handshake(tmp_path: Path):
    (tmp_path / "talker.py").write_text(CONFIG + TALKER)
    with serving(Settings(models=(str(tmp_path / "talker.py"),), http=0)) as server, RawClient(server.url) as web:
        assert web.request("/v2/models/talker/infer", GIVEN).json["outputs"][0]["data"] == [1.5]


PARENT = """
import sys
from inferometer.serve.background import serving
from inferometer.serve.settings import Settings
server = serving(Settings(models=(sys.argv[1],), http=0, drain=30))
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
