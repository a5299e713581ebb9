"""Starts llama.cpp's OpenAI server on a loopback port with the tiny model of model.py; run it with its own environment:

    ~/.cache/inferometer/real/llama_cpp/bin/python tools/real_servers/llama_cpp/serve.py

With `--api-key KEY` it requires that key. When it is ready, it prints one line of JSON:
{"url": "http://127.0.0.1:40123", "model": "tiny-llama", ...}. It ends when standard input is closed, so that it does not outlive
the process that started it. The output of llama.cpp goes to standard error.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import xllamacpp
from model import BOS, CONTEXT, EOS, write

NAME = "tiny-llama"
SLOTS = 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--api-key")
    options = parser.parse_args()
    ready_output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the library prints to standard output, which is for the JSON line
    with tempfile.TemporaryDirectory(prefix="llama_cpp-") as folder:
        path = Path(folder) / f"{NAME}.gguf"
        write(path, NAME, SLOTS)
        server = xllamacpp.Server(parameters(path, options.api_key))
        ready = {"url": server.listening_address, "model": NAME, "context": CONTEXT, "bos": BOS, "eos": EOS}
        print(json.dumps(ready), file=ready_output, flush=True)
        sys.stdin.read()
    os._exit(0)  # without waiting for its threads


def parameters(path: Path, api_key: str | None) -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.model_alias = {NAME}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = CONTEXT * SLOTS
    params.n_parallel = SLOTS
    params.n_threads_http = 32  # a connection occupies one for 5 s, even if it is idle
    if api_key is not None:
        params.api_keys = [api_key]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.endpoint_metrics = True
    params.offline = True
    params.warmup = False
    params.cache_ram_mib = 0
    params.fit_params = False
    return params


if __name__ == "__main__":
    main()
