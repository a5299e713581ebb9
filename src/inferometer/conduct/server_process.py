"""A server that is started by a shell command for a run, and ended after it: for `inferometer ab --start-a CMD --start-b CMD`."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from inferometer.config.schema import Server
from inferometer.engines.process import ServerProcess, running
from inferometer.errors import UserError
from inferometer.probe.reach import reach
from inferometer.units import format_seconds

_LOOK = 0.2


@contextlib.contextmanager
def started(command: str, server: Server, log: Path, patience: float) -> Iterator[None]:
    """Run the command's server while the block runs. Raises UserError with its last log lines when it does not respond."""
    if _responds(server):
        raise UserError(
            f"{server.urls[0]}: a server responds there already, before the command was started",
            "stop that server, or leave out --start-a and --start-b to measure it",
        )
    with running(command, log) as process:
        _wait(process, command, server, patience)
        yield


def _responds(server: Server) -> bool:
    try:
        reach(server)
    except UserError:
        return False
    return True


def _wait(process: ServerProcess, command: str, server: Server, patience: float) -> None:
    """Wait until the server responds and has a model."""
    deadline = time.monotonic() + patience
    why = ""
    while process.status is None:
        try:
            reach(server)
            return
        except UserError as error:
            why = error.line
        if time.monotonic() > deadline:
            raise UserError(
                f"the server of {command!r} did not respond within {format_seconds(patience)} ({why}){_tail(process)}",
                "see its log, or raise --start-timeout",
            )
        time.sleep(_LOOK)
    raise UserError(
        f"{command!r} ended with status {process.status} before its server responded{_tail(process)}",
        f"fix the command; its whole log is {process.log}",
    )


def _tail(process: ServerProcess) -> str:
    lines = "".join(f"\n    {line}" for line in process.tail)
    return f"; its last output:{lines}" if lines else "; it printed nothing"
