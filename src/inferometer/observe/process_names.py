"""Find processes by the names that people call them."""

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

import psutil

from inferometer.errors import UserError

KEY = "observe.processes"
_INTERPRETER = re.compile(r"(python|pypy|node|ruby|perl|java|bash|dash|sh)[\d.]*$")
_HAS_VALUE = ("-X", "-W")
"""Options of interpreters that are followed by a value."""


class Found(NamedTuple):
    """The processes that a name or an id stands for."""

    name: str
    processes: tuple[psutil.Process, ...]


def find(wanted: Sequence[int | str]) -> dict[str, Found]:
    """Find processes, by the way they are given: an id, or a name, which may stand for several.

    By name, neither this process nor one that it was started from is found. Raises UserError when there is no such process.
    """
    names = None
    found: dict[str, Found] = {}
    for each in wanted:
        given = str(each).strip()
        if given.isdecimal() or isinstance(each, int):
            found[given] = _by_id(int(given))
            continue
        names = _running() if names is None else names
        matching = tuple(process for process, known in names if given in known)
        if not matching:
            raise _no_such_name(given, {name for _, known in names for name in known})
        found[given] = Found(given, matching)
    return found


def names_of(name: str, command: Sequence[str]) -> set[str]:
    """The names that a process is known by: its own, that of its program and, if that is an interpreter, of what it runs."""
    known = {name, PurePath(command[0]).name if command else ""}
    if command and _INTERPRETER.match(PurePath(command[0]).name):
        known |= _script_names(command[1:])
    return known - {""}


def _script_names(arguments: Sequence[str]) -> set[str]:
    """`server.py` of `python -u server.py`; `vllm` and `vllm.entrypoints.api` of `python -m vllm.entrypoints.api`."""
    rest = iter(arguments)
    for argument in rest:
        if argument == "-m":
            module = next(rest, "")
            return {module, module.partition(".")[0]}
        if argument == "-c":
            return set()
        if argument in _HAS_VALUE:
            next(rest, "")
        elif not argument.startswith("-"):
            return {PurePath(argument).name}
    return set()


def _by_id(pid: int) -> Found:
    try:
        process = psutil.Process(pid)
        return Found(process.name(), (process,))
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        raise UserError(
            f"there is no process with the id {pid} on this machine", "start the server first", key=KEY
        ) from None
    except psutil.AccessDenied:
        return Found("", (process,))


def _running() -> list[tuple[psutil.Process, set[str]]]:
    me = psutil.Process()
    ours = {os.getpid(), *(parent.pid for parent in me.parents())}
    return [
        (process, names_of(process.info["name"] or "", process.info["cmdline"] or ()))
        for process in psutil.process_iter(["name", "cmdline"])
        if process.pid not in ours
    ]


def _no_such_name(given: str, names: set[str]) -> UserError:
    by_lower = {name.lower(): name for name in sorted(names)}
    close = difflib.get_close_matches(given.lower(), by_lower, n=3, cutoff=0.5)
    close += [lower for lower in by_lower if given.lower() in lower and lower not in close][:2]
    closest = ", ".join(by_lower[name] for name in close)
    remedy = "start the server first, or give the process id"
    remedy += f"; the closest names are {closest}" if closest else ""
    return UserError(f"no process on this machine is called {given}", remedy, key=KEY)
