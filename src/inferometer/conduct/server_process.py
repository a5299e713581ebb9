"""Start a server by a shell command and stop it: for `inferometer ab --start-a CMD --start-b CMD`.

The command gets a session of its own, so that a Ctrl-C on the terminal does not reach it, and everything it starts can be
ended with it: its whole process group is.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from inferometer.config.schema import Server
from inferometer.errors import UserError
from inferometer.probe.reach import reach
from inferometer.units import format_seconds

GRACE = 20.0
"""Seconds that a server has to end after SIGTERM."""
_LOOK = 0.2
_LOG_LINES = 12


@contextlib.contextmanager
def started(command: str, server: Server, log: Path, patience: float) -> Iterator[None]:
    """Run the command's server while the block runs. Raises UserError with its last log lines when it does not respond."""
    if _responds(server):
        raise UserError(
            f"{server.urls[0]}: a server responds there already, before the command was started",
            "stop that server, or leave out --start-a and --start-b to measure it",
        )
    with (
        log.open("ab") as output,
        subprocess.Popen(
            command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        ) as process,
    ):
        try:
            _wait(process, command, server, log, patience)
            yield
        finally:
            _end(process)


def _responds(server: Server) -> bool:
    try:
        reach(server)
    except UserError:
        return False
    return True


def _wait(process: "subprocess.Popen[bytes]", command: str, server: Server, log: Path, patience: float) -> None:
    """Wait until the server responds and has a model."""
    deadline = time.monotonic() + patience
    why = ""
    while process.poll() is None:
        try:
            reach(server)
            return
        except UserError as error:
            why = error.line
        if time.monotonic() > deadline:
            raise UserError(
                f"the server of {command!r} did not respond within {format_seconds(patience)} ({why}){_tail(log)}",
                "see its log, or raise --start-timeout",
            )
        time.sleep(_LOOK)
    raise UserError(
        f"{command!r} ended with status {process.returncode} before its server responded{_tail(log)}",
        f"fix the command; its whole log is {log}",
    )


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
    return "; its last output:" + "".join(f"\n    {line}" for line in lines) if lines else "; it printed nothing"


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the whole process group: politely, then at once. What the leader left behind is ended as well."""
    _signal_group(process, signal.SIGTERM)
    _until(lambda: process.poll() is not None and not _has_group(process), GRACE)
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _until(is_over: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_over() and time.monotonic() < deadline:
        time.sleep(_LOOK / 4)


def _has_group(process: "subprocess.Popen[bytes]") -> bool:
    """Whether anything that the command started still runs; the shell itself may end before its server does."""
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _signal_group(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
