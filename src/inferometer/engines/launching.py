"""How a server engine is started: what each file in servers/ returns, and what all of them use."""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from inferometer.config.engines import EngineSpec
from inferometer.errors import UserError


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


def flags(args: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """The words for flags: `--max-num-seqs 32`. true is a flag alone, false and null leave it out; `args` override `defaults`."""
    given = {name.replace("_", "-"): value for name, value in args.items()}
    words: list[str] = []
    for name, value in ({each.replace("_", "-"): value for each, value in defaults.items()} | given).items():
        if value is None or value is False:
            continue
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words
