"""Every type of engine: how its server is started, and which in-process modes it has."""

import difflib
from importlib import import_module

from inferometer.config.engines import EngineSpec, is_in_process
from inferometer.engines.launching import EngineError, ServerEngine

SERVERS: dict[str, str] = {
    "inferometer": "inferometer.engines.servers.inferometer",
    "command": "inferometer.engines.servers.command",
    "vllm": "inferometer.engines.servers.vllm",
    "transformers": "inferometer.engines.servers.transformers",
    "llamacpp": "inferometer.engines.servers.llamacpp",
    "sglang": "inferometer.engines.servers.sglang",
    "tgi": "inferometer.engines.servers.tgi",
    "triton": "inferometer.engines.servers.triton",
    "openvino": "inferometer.engines.servers.openvino",
    "onnxruntime": "inferometer.engines.servers.onnxruntime",
}
"""The module of each server engine, which has `ENGINE`. Imported when it is needed."""

IN_PROCESS: dict[str, tuple[str, ...]] = {
    "transformers": ("serial", "batched", "continuous"),
    "vllm": ("serial", "batched"),
}
"""Engines that can be used as a library to generate text, and their modes."""

ENCODERS = ("torch", "onnxruntime")
"""Engines that run an encoder in a process of their own."""


def server_engine(spec: EngineSpec) -> ServerEngine:
    """How the engine's server is started. Raises EngineError for a type or a mode that does not exist."""
    if spec.type not in SERVERS:
        raise EngineError(f"{spec.name}: there is no server engine {spec.type!r}", f"it takes {' | '.join(SERVERS)}")
    engine: ServerEngine = import_module(SERVERS[spec.type]).ENGINE
    return engine


def check_spec(spec: EngineSpec, is_encoder: bool) -> None:
    """Raise EngineError when there is no such engine, or when it does not have that mode."""
    known = sorted({*SERVERS, *IN_PROCESS, *ENCODERS})
    if spec.type not in known:
        near = difflib.get_close_matches(spec.type, known, 1, 0.5)
        suggestion = f"did you mean {near[0]}? " if near else ""
        raise EngineError(f"{spec.name}: there is no engine {spec.type!r}", f"{suggestion}it takes {' | '.join(known)}")
    if is_encoder:
        if spec.type not in ENCODERS:
            raise EngineError(f"{spec.name}: {spec.type} does not run encoders", f"use {' or '.join(ENCODERS)}")
    elif is_in_process(spec):
        if spec.mode not in IN_PROCESS.get(spec.type, ()):
            modes = " | ".join(("serve", *IN_PROCESS.get(spec.type, ())))
            raise EngineError(f"{spec.name}: {spec.type} has no mode {spec.mode!r}", f"it takes {modes}")
    elif spec.mode not in ("", "serve"):
        raise EngineError(
            f"{spec.name}: there is no mode {spec.mode!r}", "it takes serve | serial | batched | continuous"
        )
    elif spec.type not in SERVERS:
        modes = " | ".join(IN_PROCESS.get(spec.type, ())) or "an `encoder` section"
        raise EngineError(f"{spec.name}: {spec.type} has no server", f"use {modes}")
