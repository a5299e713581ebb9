"""Starts Arize Phoenix, which receives traces over HTTP and gRPC; run it with its own environment:

    ~/.cache/inferometer/real/phoenix/bin/python tools/real_servers/phoenix/serve.py

When it is ready, it prints one line of JSON:
{"http": "http://127.0.0.1:40123", "grpc": "grpc://127.0.0.1:40124", "spans": "http://127.0.0.1:40123/v1/projects/default/spans"}.
It ends when standard input is closed, so that it does not outlive the process that started it. The output of the server goes to
standard error. Its gRPC port listens on all interfaces: Phoenix has no setting for that.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

START_S = 120


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="phoenix-", ignore_cleanup_errors=True) as folder:
        http, grpc = _free_ports(2)
        url = f"http://127.0.0.1:{http}"
        environment = os.environ | {
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": str(http),
            "PHOENIX_GRPC_PORT": str(grpc),
            "PHOENIX_WORKING_DIR": folder,
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }
        command = [str(Path(sys.executable).parent / "phoenix"), "serve"]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=environment, start_new_session=True
        ) as server:
            try:
                _wait(f"{url}/healthz", server)
                urls = {
                    "http": url,
                    "grpc": f"grpc://127.0.0.1:{grpc}",
                    "spans": f"{url}/v1/projects/default/spans",
                }
                print(json.dumps(urls), flush=True)
                sys.stdin.read()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(server.pid, signal.SIGKILL)  # it takes long to end by itself


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(listener.getsockname()[1]) for listener in listeners]


def _wait(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit(f"serve.py: Phoenix was not ready within {START_S} s (status {server.poll()})")


if __name__ == "__main__":
    main()
