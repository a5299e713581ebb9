"""Serves a GGUF with llama.cpp's own HTTP server, from the package xllamacpp: `python xllamacpp_server.py --model FILE.gguf ...`.

It takes the flags of `llama-server` that are named below, with the same defaults, and ends at SIGTERM.
"""

import argparse
import json
import os
import signal
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

import xllamacpp

_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1")
_FLASH = {"auto": -1, "off": 0, "on": 1}


def _assign(name: str) -> Callable[[xllamacpp.CommonParams, Any], None]:
    return lambda params, value: setattr(params, name, value)


def _threads(params: xllamacpp.CommonParams, value: int) -> None:
    params.cpuparams.n_threads = value
    if params.cpuparams_batch.n_threads < 1:
        params.cpuparams_batch.n_threads = value


def _threads_batch(params: xllamacpp.CommonParams, value: int) -> None:
    params.cpuparams_batch.n_threads = value


def _cache_type(name: str) -> Callable[[xllamacpp.CommonParams, str], None]:
    return lambda params, value: setattr(params, name, getattr(xllamacpp.ggml_type, f"GGML_TYPE_{value.upper()}"))


def _parallel(params: xllamacpp.CommonParams, value: int) -> None:
    params.n_parallel = value
    params.kv_unified = False


VALUES: dict[str, tuple[type, Callable[[xllamacpp.CommonParams, Any], None]]] = {
    "parallel": (int, _parallel),
    "ctx-size": (int, _assign("n_ctx")),
    "threads": (int, _threads),
    "threads-batch": (int, _threads_batch),
    "threads-http": (int, _assign("n_threads_http")),
    "batch-size": (int, _assign("n_batch")),
    "ubatch-size": (int, _assign("n_ubatch")),
    "n-gpu-layers": (int, _assign("n_gpu_layers")),
    "main-gpu": (int, _assign("main_gpu")),
    "cache-type-k": (str, _cache_type("cache_type_k")),
    "cache-type-v": (str, _cache_type("cache_type_v")),
    "cache-ram": (int, _assign("cache_ram_mib")),
    "cache-reuse": (int, _assign("n_cache_reuse")),
    "chat-template": (str, _assign("chat_template")),
}
"""Flags with a value: its type, and where it goes."""

SWITCHES: dict[str, tuple[str, bool]] = {
    "kv-unified": ("kv_unified", True),
    "cont-batching": ("cont_batching", True),
    "no-cont-batching": ("cont_batching", False),
    "no-cache-prompt": ("cache_prompt", False),
    "no-warmup": ("warmup", False),
    "no-kv-offload": ("no_kv_offload", True),
    "no-op-offload": ("no_op_offload", True),
    "swa-full": ("swa_full", True),
    "metrics": ("endpoint_metrics", True),
    "offline": ("offline", True),
}
"""Flags without a value: the parameter that they set, and to what."""


def main() -> None:
    options = _options()
    try:
        server = xllamacpp.Server(_parameters(options))  # returns when it listens
    except RuntimeError as error:  # the log has said why
        raise SystemExit(f"xllamacpp_server.py: {error}") from None
    with urllib.request.urlopen(f"{server.listening_address}/props", timeout=30) as response:
        print(f"file type = {json.load(response)['model_ftype']}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    sys.stdout.flush()
    os._exit(0)  # without waiting for the threads of the library


def _options() -> dict[str, Any]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"xllamacpp {xllamacpp.__version__}")
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--flash-attn", choices=_FLASH)
    for name, (kind, _) in VALUES.items():
        choices = _CACHE_TYPES if name.startswith("cache-type") else None
        parser.add_argument(f"--{name}", type=kind, choices=choices)
    for name in SWITCHES:
        parser.add_argument(f"--{name}", action="store_true")
    return {name.replace("_", "-"): value for name, value in vars(parser.parse_args()).items()}


def _parameters(options: dict[str, Any]) -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.n_parallel, params.kv_unified = 4, True  # what llama-server does without --parallel
    params.model.path = options["model"]
    if options["alias"]:
        params.model_alias = {options["alias"]}
    params.hostnames, params.port = [options["host"]], options["port"]
    if options["flash-attn"]:
        params.flash_attn_type = xllamacpp.llama_flash_attn_type(_FLASH[options["flash-attn"]])
    for name, (_, assign) in VALUES.items():
        if options[name] is not None:
            assign(params, options[name])
    for name, (attribute, value) in SWITCHES.items():
        if options[name]:
            setattr(params, attribute, value)
    return params


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})  # inherited by the library's threads
    main()
