"""A real Triton Inference Server with the models of triton_models, and NVIDIA's own client as a second opinion.

A test file with the line

    pytest_plugins = ["triton_server"]

has two fixtures, created once per session (with pytest-xdist: once per worker): `triton`, a server with all of the models, and
`oracle`, which returns what tritonclient gets from it (triton_oracle.py has the jobs). Tests that use them are marked `triton`.
A third, `patient`, is for tests of Triton's statistics.
The server is shared, so tests compare its counts before and after. (Test files import more from here before pytest does,
so its assertions stay as they are: PYTEST_DONT_REWRITE.)
"""

import base64
import contextlib
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import psutil
import pytest
from needs import INSTALLED
from real_server import ROOT

from inferometer.infer import time_split
from inferometer.observe import statistics

MODELS = Path(__file__).parent / "triton_models"
PYTHON = INSTALLED / "triton/bin/python"
LOG_TAIL = 6000
STOP_S = 30

Job = dict[str, Any]
Oracle = Callable[..., Job]
"""oracle(url, model="identity", inputs=[tensor(...)], ...) -> the result of triton_oracle.py for that job."""


class Triton(NamedTuple):
    http: str
    """http://127.0.0.1:PORT"""
    grpc: str
    """grpc://127.0.0.1:PORT"""
    metrics: str
    """http://127.0.0.1:PORT/metrics"""
    pid: int
    log: Path


@contextlib.contextmanager
def running(models: Iterable[str] = (), options: Iterable[str] = ()) -> Iterator[Triton]:
    """Start a server with these models of triton_models (default: all of them), and with more options of tritonserver."""
    script = ROOT / "tools/real_servers/triton/serve.py"
    command = [PYTHON, script, "--models", MODELS, *models, *options]
    with tempfile.TemporaryDirectory(prefix="triton-log-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as errors, _process(command, errors) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"Triton did not start: {log.read_text(errors='replace')[-LOG_TAIL:]}"
            yield Triton(**json.loads(line), log=log)


@contextlib.contextmanager
def running_oracle() -> Iterator[Oracle]:
    """Start a process of triton_oracle.py, which runs one job after the other."""
    with _process([PYTHON, Path(__file__).parent / "triton_oracle.py"], None) as process:

        def send_job(url: str, **job: Any) -> Job:
            assert process.stdin is not None and process.stdout is not None
            protocol = "grpc" if url.startswith("grpc:") else "http"
            process.stdin.write(json.dumps({"url": url, "protocol": protocol} | job) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, f"the oracle ended with status {process.wait(STOP_S)}"
            response: Job = json.loads(line)
            assert "broken" not in response, response["broken"]
            return response

        yield send_job


def tensor(name: str, datatype: str, shape: Iterable[int], raw: bytes) -> Job:
    """Return an input of a job, from the raw bytes of the tensor."""
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": base64.b64encode(raw).decode()}


def values(response: Job, name: str) -> list[Any]:
    """Return the elements of an output in a result of the oracle; BYTES as bytes, BF16 as raw 16 bits."""
    output = next((each for each in response.get("outputs", []) if each["name"] == name), None)
    assert output is not None, response
    raw = base64.b64decode(output["data"])
    if output["datatype"] == "BYTES":
        return split_bytes(raw)
    return list(np.frombuffer(raw, NUMPY[output["datatype"]]).tolist())


def split_bytes(raw: bytes) -> list[bytes]:
    """Return the elements of a BYTES tensor: each is preceded by its length."""
    elements = []
    while raw:
        end = 4 + int.from_bytes(raw[:4], "little")
        elements.append(raw[4:end])
        raw = raw[end:]
    return elements


def join_bytes(elements: Iterable[bytes]) -> bytes:
    return b"".join(len(element).to_bytes(4, "little") + element for element in elements)


NUMPY = {
    "BOOL": "?",
    **{f"INT{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
    "BF16": "<u2",
}


@contextlib.contextmanager
def _process(command: list[Any], errors: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process that ends when its standard input closes, or is killed."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdin is not None and process.stdout is not None
    with process.stdout:
        try:
            yield process
        finally:
            process.stdin.close()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for statistics: Triton counts a request after its response, on a busy machine maybe later than a run waits."""
    monkeypatch.setattr(statistics, "_UNCHANGED_S", 0.2)
    monkeypatch.setattr(statistics, "_READ_FOR_S", 10.0)
    monkeypatch.setattr(time_split, "_PATIENCE_S", 10.0)


class _Restarting:
    """A Triton with all models that starts again, on other ports, if it crashed since its last use.

    Models that send errors in the middle of a stream sometimes crash it; the tests that follow should not fail, too."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._server = stack.enter_context(running())

    def __getattr__(self, name: str) -> Any:
        if not _is_running(self._server.pid):
            self._stack.close()
            self._server = self._stack.enter_context(running())
        return getattr(self._server, name)


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="session")
def triton() -> Iterator[Triton]:
    with contextlib.ExitStack() as stack:
        yield cast(Triton, _Restarting(stack))


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    with running_oracle() as send_job:
        yield send_job
