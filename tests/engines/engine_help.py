"""What the tests of in-process engines share."""

import os
from pathlib import Path
from typing import Any

import psutil

from inferometer.config.engines import EngineSpec
from inferometer.engines.inprocess.library import Library, start_library
from inferometer.types import Request

SCRIPTED = str(Path(__file__).parent / "scripted_engine.py")


def started(tmp_path: Path, *, timeout: float = 60, max_batch: int = 1, **spec: Any) -> Library:
    """Start an engine whose log is in `tmp_path`."""
    made = EngineSpec(**({"type": "transformers", "mode": "serial", "name": "the engine"} | spec))
    return start_library(made, "a model", tmp_path / "engine.log", tmp_path, timeout, max_batch=max_batch)


def requests(*prompts: str, n_out: int = 3) -> list[Request]:
    return [Request(id, prompt, 0, n_out) for id, prompt in enumerate(prompts)]


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def children_of(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def ours() -> set[int]:
    """All processes that this one has started and that have not ended."""
    return {pid for pid in children_of(os.getpid()) if is_alive(pid)}
