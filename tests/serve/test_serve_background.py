"""A server in a child process: what passes between it and its parent."""

from pathlib import Path

from raw_client import RawClient

from inferometer.serve.background import serving
from inferometer.serve.settings import Settings

MODEL = """
import sys
CONFIG = {
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
}
print("loaded")
def infer(inputs, parameters):
    print("computing " * 20_000, flush=True)
    return {"y": inputs["x"]}
"""


def test_what_a_model_prints_is_not_taken_for_what_the_server_says(tmp_path: Path):
    (tmp_path / "talker.py").write_text(MODEL)
    with serving(Settings(models=(str(tmp_path / "talker.py"),), http=0)) as server, RawClient(server.url) as web:
        given = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.5]}]}
        assert web.ask("/v2/models/talker/infer", given).json["outputs"][0]["data"] == [1.5]
