"""Starts NVIDIA's tritonserver on loopback ports with models of a folder; run it with its own environment:

    ~/.cache/inferometer/real/triton/bin/python tools/real_servers/triton/serve.py --models tests/real/triton_models [NAME...]

Without names it serves all models in the folder. Unknown options, such as `--grpc-use-ssl=1`, are passed on to tritonserver. When
it is ready, it prints one line of JSON: {"http": "http://127.0.0.1:40123", "grpc": "grpc://127.0.0.1:40124",
"metrics": "http://127.0.0.1:40125/metrics", "pid": 4711}. It ends when standard input is closed, so that it does not outlive the
process that started it. The output of tritonserver goes to standard error; its messages about a missing GPU (NVML, DCGM, pinned
memory) are harmless.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NoReturn

PACKAGES = Path(sysconfig.get_path("purelib"))
TRITON = PACKAGES / "pytriton/tritonserver"
START_S, STOP_S = 90, 15
ATTEMPTS = 3
"""Another process may take a free port before tritonserver listens on it."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("names", nargs="*")
    options, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="triton-") as folder:
        repository = Path(folder)
        for model in options.names or sorted(path.parent.name for path in options.models.glob("*/config.pbtxt")):
            shutil.copytree(options.models / model, repository / model, ignore=shutil.ignore_patterns("__pycache__"))
        server, ready = _start(repository, more)
        try:
            print(json.dumps(ready), flush=True)
            sys.stdin.read()
        finally:
            _stop(server)


def _start(repository: Path, more: list[str]) -> tuple[subprocess.Popen[bytes], dict[str, object]]:
    for _ in range(ATTEMPTS):
        http, grpc, metrics = _free_ports(3)
        urls = {"http": f"http://127.0.0.1:{http}", "metrics": f"http://127.0.0.1:{metrics}/metrics"}
        server = subprocess.Popen(
            _command(repository, http, grpc, metrics) + more,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            env=os.environ | _environment(),
        )
        try:
            if _becomes_ready(server, [f"{urls['http']}/v2/health/ready", urls["metrics"]]):
                return server, urls | {"grpc": f"grpc://127.0.0.1:{grpc}", "pid": server.pid}
        except BaseException:
            _stop(server)
            raise
    _give_up(f"tritonserver ended with status {server.returncode}, {ATTEMPTS} times")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(listener.getsockname()[1]) for listener in listeners]


def _command(repository: Path, http: int, grpc: int, metrics: int) -> list[str]:
    ports = {"http": http, "grpc": grpc, "metrics": metrics}
    return [
        str(TRITON / "bin/tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={TRITON / 'backends'}",
        "--disable-auto-complete-config",  # otherwise each model is started twice
        "--exit-timeout-secs=5",
        *(f"--{name}-address=127.0.0.1" for name in ports),
        *(f"--{name}-port={port}" for name, port in ports.items()),
    ]


def _environment() -> dict[str, str]:
    """Lets the stub of the python backend load the library of this interpreter and find numpy."""
    return {
        "LD_LIBRARY_PATH": f"{sysconfig.get_config_var('LIBDIR')}:{PACKAGES / 'nvidia_pytriton.libs'}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(PACKAGES),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _becomes_ready(server: subprocess.Popen[bytes], urls: list[str]) -> bool:
    """Wait until all URLs respond with 200; False if the server ended instead."""
    deadline = time.monotonic() + START_S
    while server.poll() is None:
        if time.monotonic() > deadline:
            _give_up(f"tritonserver was not ready within {START_S} s")
        try:
            for url in urls:
                with urllib.request.urlopen(url, timeout=5):
                    pass
            return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    return False


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGINT)
    try:
        server.wait(STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _give_up(why: str) -> NoReturn:
    raise SystemExit(f"serve.py: {why}")


if __name__ == "__main__":
    main()
