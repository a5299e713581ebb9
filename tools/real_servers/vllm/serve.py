"""Starts vLLM's OpenAI server on a loopback port, on the CPU, with the tiny model of transformers/model.py; run it with its own
environment:

    ~/.cache/inferometer/real/vllm/bin/python tools/real_servers/vllm/serve.py [--max-num-seqs 2]

All options are passed on to `vllm serve`. It takes about half a minute. When it is ready, it prints one line of JSON:
{"url": "http://127.0.0.1:40123", "model": "tiny-llama", "context": 1024, "eos": 2, "pid": 4711}. It ends when standard input is
closed, so that it does not outlive the process that started it. The output of the server goes to standard error.
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

sys.path.insert(0, str(Path(__file__).parents[1] / "transformers"))
from model import write

NAME = "tiny-llama"
CONTEXT = 1024
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
START_S, STOP_S = 300, 15


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="vllm-") as folder:
        model = Path(folder) / NAME
        write(model, CONTEXT)
        port = _free_port()
        environment = os.environ | ENVIRONMENT | {"HF_HOME": folder}
        server = subprocess.Popen(
            [*_command(model, port), *sys.argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            env=environment,
            start_new_session=True,  # its engine is a process of its own, and is to end with it
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url, server)
            ready = {"url": url, "model": NAME, "context": CONTEXT, "eos": 2, "pid": server.pid}
            print(json.dumps(ready), flush=True)
            sys.stdin.read()
        finally:
            _stop(server)


def _command(model: Path, port: int) -> list[str]:
    return [
        *(str(Path(sys.executable).parent / "vllm"), "serve", str(model)),
        *("--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--max-model-len", str(CONTEXT), "--enforce-eager"),
    ]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while server.poll() is None:
        if time.monotonic() > deadline:
            raise SystemExit(f"vllm serve was not ready within {START_S} s")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit(f"vllm serve ended with status {server.returncode}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(STOP_S)
    with contextlib.suppress(ProcessLookupError):  # the group is empty
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


if __name__ == "__main__":
    main()
