"""Starts `transformers serve` on a loopback port with the tiny model of model.py; run it with its own environment:

    ~/.cache/inferometer/real/transformers/bin/python tools/real_servers/transformers/serve.py [--continuous-batching]

When it is ready, it prints one line of JSON: {"url": "http://127.0.0.1:40123", "model": "/tmp/...", ...}. It ends when standard
input is closed, so that it does not outlive the process that started it. The output of the server goes to standard error.
"""

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

from model import write

CONTEXT = 512
OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="transformers-") as folder:
        model = Path(folder) / "tiny-llama"
        write(model, CONTEXT)
        (Path(folder) / "hub").mkdir()  # /v1/models lists this cache, and fails if it does not exist
        port = _free_port()
        command = [str(Path(sys.executable).parent / "transformers"), "serve", str(model), *sys.argv[1:]]
        command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
        environment = os.environ | OFFLINE | {"HF_HOME": folder}
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=environment) as server:
            try:
                url = f"http://127.0.0.1:{port}"
                _wait(url, server)
                print(json.dumps({"url": url, "model": str(model), "context": CONTEXT, "eos": 2}), flush=True)
                sys.stdin.read()
            finally:
                server.send_signal(signal.SIGKILL)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait(url: str, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit(f"transformers serve ended with status {server.returncode}")


if __name__ == "__main__":
    main()
