"""One server of two front ends, with models in them and in processes of their own, for all tests of this folder."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from raw_client import RawClient

from inferometer.serve.background import Running, serving
from inferometer.serve.settings import Settings
from inferometer.serve.sim.settings import Fixed, Sim

HERE = Path(__file__).parent
WHERE = """
import os
import numpy as np
CONFIG = {
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "pid", "data_type": "TYPE_INT32", "dims": [1]}],
}
def infer(inputs, parameters):
    return {"pid": np.array([os.getpid()], np.int32)}
"""
BATCH = """
import os
import numpy as np
def infer(inputs, parameters):
    x = inputs["x"]
    if x.size and x[0, 0] == -1:
        os._exit(3)
    rows = np.full((len(x), 1), len(x), np.int32)
    return {"y": 2 * x, "rows": rows, "pid": np.full((len(x), 1), os.getpid(), np.int32)}
"""
BATCH_CONFIG = """
max_batch_size: 8
dynamic_batching { preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 10000000 }
input [{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "rows" data_type: TYPE_INT32 dims: [ 1 ] },
        { name: "pid" data_type: TYPE_INT32 dims: [ 1 ] }]
parameters { key: "process" value { string_value: "1" } }
"""
WORDS = """
import time, numpy as np
def infer(inputs, parameters):
    if inputs["text_input"][0] == b"":
        return
    try:
        for i in range(1000):
            yield {"text_output": np.array([b"%d" % i], object)}
            time.sleep(0.01 if i > 3 else 0)
    finally:
        open(inputs["text_input"][0].decode(), "w").close()
"""
WORDS_CONFIG = """
input [{ name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }]
output [{ name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }]
model_transaction_policy { decoupled: true }
parameters { key: "process" value { string_value: "1" } }
"""
REGISTER = """
from inferometer.serve import backends
import text_double
own = 'parameters { key: "process" value { string_value: "1" } }'
backends.LOADERS |= {"echo": "text_double:load", "vectors": "text_double:load_vectors"}
backends.BUILTIN |= {"echo": text_double.CONFIG + own, "vectors": text_double.VECTORS + own}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("served")
    models = {"where": (WHERE, ""), "words": (WORDS, WORDS_CONFIG), "batch": (BATCH, BATCH_CONFIG)}
    for name, (code, config) in models.items():
        (folder / "models" / name / "1").mkdir(parents=True)
        (folder / "models" / name / "1" / "model.py").write_text(code)
        (folder / "models" / name / "config.pbtxt").write_text(config)
    (folder / "sitecustomize.py").write_text(REGISTER)  # how the processes know the double of a text model
    paths = [str(folder), str(HERE.parent / "openai"), *(path for path in sys.path if path)]
    sim = Sim(timing=Fixed(ttft=0, itl=0), truth=str(folder / "truth.jsonl"), allow_fault_header=True)
    served = (str(folder / "models"), "identity", "echo", "vectors")
    settings = Settings(models=served, sim=sim, processes=2, http=0, grpc=0, metrics=0, control=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "PYTHONPATH", os.pathsep.join(paths))
        with serving(settings) as running:
            running.truth = folder / "truth.jsonl"  # type: ignore[attr-defined]
            yield running


@pytest.fixture
def front_ends(server: Running) -> Iterator[list[RawClient]]:
    """A connection to each of the front ends: the kernel chooses, so several are opened until both were chosen."""
    opened, found = [], {}
    while len(found) < 2:
        opened.append(client := RawClient(server.url))
        found.setdefault(pid_of(client), client)
    yield list(found.values())
    for client in opened:
        client.sock.close()


def pid_of(client: RawClient) -> int:
    given = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
    pid: int = client.request("/v2/models/where/infer", given).json["outputs"][0]["data"][0]
    return pid
