"""How a server engine is started: what each file in servers/ returns, and what all of them use."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from inferometer.config.engines import EngineSpec
from inferometer.errors import UserError

_LOOK_TIMEOUT = 30.0
_WORDS = {"true": "on", "false": "off", "none": "off"} | {
    "half": "float16", "f16": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32", "f32": "float32",
}  # fmt: skip
"""What engines call values that all of them have, and what facts call them."""


class EngineError(UserError):
    """An engine that cannot take part. `reason` is one of campaign.Reason; `log_tail` its last output."""

    def __init__(self, what: str, remedy: str = "", reason: str = "failed", log_tail: tuple[str, ...] = ()) -> None:
        super().__init__(what, remedy)
        self.reason = reason
        self.log_tail = log_tail


class Start(msgspec.Struct, frozen=True):
    """What an engine's file gets."""

    spec: EngineSpec
    model: str
    """The folder, file or name of the model."""
    port: int
    """A free port of this machine."""
    folder: Path
    """A folder for files that the engine needs, such as a model repository. It is kept with the campaign."""
    is_profiled: bool = False
    """Whether a level is measured with the engine's own profiler, which some engines must be started for."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A server process to start, and how to talk to it."""

    command: tuple[str, ...] | str
    """Words, or a line for the shell; empty: the server runs already."""
    url: str
    env: dict[str, str] = {}
    ready: str = "/health"
    """Path that responds with 2xx when the server is ready; empty: only the first good response counts."""
    server: dict[str, Any] = {}
    """Keys of the `server` section of the config: model, api, ignore_eos, body ..."""
    milestones: tuple[tuple[str, str], ...] = ()
    """Phases of the start-up: a name, and a regular expression for the line of the log that ends it."""
    reset_cache: str = ""
    """Path to POST to, to empty the prefix cache; empty: there is none."""
    profiler: tuple[str, str] = ("", "")
    """Paths to POST to, to start and stop the engine's own profiler; empty: it has none."""
    facts: dict[str, str] = {}
    """What the flags say about EngineRecord.facts."""
    fact_lines: tuple[tuple[str, str], ...] = ()
    """Further facts: a name, and a regular expression with one group, for lines of the log."""
    version: tuple[str, ...] = ()
    """Command that prints the engine's version."""
    max_tokens_field: str = ""


class ServerEngine(msgspec.Struct, frozen=True):
    """A row of catalog.SERVERS."""

    launch: Callable[[Start], Launch]
    install: str
    """How to install it: `pip install vllm`."""


def program(spec: EngineSpec, name: str, install: str) -> str:
    """The path of the engine's program: `executable`, or `name` on the PATH or beside `python`. Raises EngineError if there is none."""
    if spec.executable:
        path = Path(spec.executable).expanduser()
        found = str(path) if path.is_file() and os.access(path, os.X_OK) else shutil.which(spec.executable)
        if not found:
            raise EngineError(f"{spec.executable}: there is no such program", "check `executable`", "not installed")
        return found
    if spec.python and (beside := Path(spec.python).expanduser().parent / name).is_file():
        return str(beside)
    if found := shutil.which(name):
        return found
    raise EngineError(
        f"{name} is not installed", f"{install}, or name the program with `executable`", reason="not installed"
    )


def interpreter(spec: EngineSpec, package: str, install: str) -> str:
    """The Python interpreter that has `package`: `python`, or the one that runs inferometer. Raises EngineError if it has not."""
    python = str(Path(spec.python).expanduser()) if spec.python else sys.executable
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    try:
        found = subprocess.run([python, "-c", look], capture_output=True, timeout=_LOOK_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{python} does not run: {error}", "check `python`", "not installed") from None
    if found.returncode:
        where = f"{install}, or name an interpreter that has it with `python`"
        raise EngineError(f"{package} is not installed for {python}", where, "not installed")
    return python


def flags(args: Mapping[str, Any], defaults: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> list[str]:
    """The words for flags: `--max-num-seqs 32`. true is a flag alone, false and null leave it out; `args` override `defaults`.

    `own` are flags that are not for `args` to set, such as the port.
    """
    given, own = dashed(args), dict(own or {})
    if taken := sorted(given.keys() & own.keys()):
        raise EngineError(f"args.{taken[0]}: inferometer sets this flag itself", "remove it; `url` sets the address")
    words: list[str] = []
    for name, value in (own | dashed(defaults) | given).items():
        if value is None or value is False:
            continue
        words += [f"--{name}"] if value is True else [f"--{name}", _text(value)]
    return words


def free_port() -> int:
    """A port of this machine that nobody listens on, for engines that need more than one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def dashed(args: Mapping[str, Any]) -> dict[str, Any]:
    """The flags with the names that the command line has: `max-num-seqs` for `max_num_seqs`."""
    return {name.lstrip("-").replace("_", "-"): value for name, value in args.items()}


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else str(value)


def local_model(model: str) -> str:
    """The absolute path of a folder or file of this machine; a name on the hub as it is."""
    path = Path(model).expanduser()
    return str(path.resolve()) if path.exists() else model


def visible_gpus(device: str | None) -> dict[str, str]:
    """The environment for engines whose flags do not choose a device: `cpu` hides all GPUs, `cuda:1` all others."""
    if device is None or device == "cuda":
        return {}
    return {"CUDA_VISIBLE_DEVICES": "" if device == "cpu" else device.removeprefix("cuda:")}


def known_facts(**values: Any) -> dict[str, str]:
    """What is known of EngineRecord.facts: names with spaces, `on` and `off` for true and false, nothing for None."""
    return {name.replace("_", " "): fact_value(value) for name, value in values.items() if value is not None}


def fact_value(value: Any) -> str:
    """A value as all engines report it, whatever their logs call it: on, off, float32."""
    text = _text(value)
    return _WORDS.get(text.lower(), text.removeprefix("torch."))
