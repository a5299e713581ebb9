"""Starts Seldon's MLServer on loopback ports with models of a folder; run it with its own environment:

    ~/.cache/inferometer/real/mlserver/bin/python tools/real_servers/mlserver/serve.py --models tests/real/mlserver_models [NAME...]

Without names it serves all models in the folder. When it is ready, it prints one line of JSON:
{"http": "http://127.0.0.1:40123", "grpc": "grpc://127.0.0.1:40124", "metrics": "http://127.0.0.1:40125/metrics", "pid": 4711}.
It ends when standard input is closed, so that it does not outlive the process that started it. The output of the server goes to
standard error.
"""

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

START_S = 60


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mlserver-") as folder:
        for model in options.names or sorted(path.parent.name for path in options.models.glob("*/model-settings.json")):
            shutil.copytree(options.models / model, Path(folder) / model, ignore=shutil.ignore_patterns("__pycache__"))
        http, grpc, metrics = _free_ports(3)
        (Path(folder) / "settings.json").write_text(json.dumps(_settings(http, grpc, metrics)))
        urls = {"http": f"http://127.0.0.1:{http}", "metrics": f"http://127.0.0.1:{metrics}/metrics"}
        command = [str(Path(sys.executable).parent / "mlserver"), "start", "."]
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        with subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=environment
        ) as server:
            try:
                _wait([f"{urls['http']}/v2/health/ready", urls["metrics"]], server)
                print(json.dumps(urls | {"grpc": f"grpc://127.0.0.1:{grpc}", "pid": server.pid}), flush=True)
                sys.stdin.read()
            finally:
                server.kill()  # it has nothing to save, and an interrupt fills its log with tracebacks


def _settings(http: int, grpc: int, metrics: int) -> dict[str, object]:
    """Settings without worker processes, and without compression, which does not work with streams."""
    ports = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics}
    return {"host": "127.0.0.1", **ports, "parallel_workers": 0, "gzip_enabled": False, "debug": False}


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(listener.getsockname()[1]) for listener in listeners]


def _wait(urls: list[str], server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            for url in urls:
                with urllib.request.urlopen(url, timeout=5):
                    pass
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise SystemExit(f"serve.py: mlserver was not ready within {START_S} s (status {server.poll()})")


if __name__ == "__main__":
    main()
