"""A server process: started with a log, watched, and ended with everything that it started.

Between this process and the server stands a keeper (keeper.py), which ends the server when it is told to, and also when this process is
killed. The server has a session of its own, so that a Ctrl-C on the terminal does not reach it.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from inferometer.engines.launching import EngineError

GRACE = 20.0
"""Seconds that a server has to end after SIGTERM."""
_KILLING = 10.0
"""Seconds after that for the keeper to kill what is left."""
_TAIL = 12
_KEEPER = str(Path(__file__).with_name("keeper.py"))


class ServerProcess:
    """A command that runs, and its log."""

    def __init__(self, command: Sequence[str] | str, log: Path, env: Mapping[str, str], grace: float = GRACE) -> None:
        words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        self.log = log
        self.started = time.monotonic()
        self._log_start = log.stat().st_size if log.exists() else 0
        self._grace = grace
        with log.open("ab") as output:
            self._keeper = subprocess.Popen(
                [sys.executable, "-S", "-E", _KEEPER, str(grace), *words],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=os.environ | dict(env),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id of the server itself; of its keeper, while it has not started."""
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self._keeper.pid).children():
                return child.pid
        return self._keeper.pid

    @property
    def status(self) -> int | None:
        """How it ended: its exit status, or 128 + the signal; None while it runs."""
        return self._keeper.poll()

    def settled_status(self) -> int | None:
        """Like `status`; but if the server has just ended, wait for its keeper, which needs a moment to notice."""
        with contextlib.suppress(psutil.Error, subprocess.TimeoutExpired):
            servers = psutil.Process(self._keeper.pid).children()
            if all(one.status() == psutil.STATUS_ZOMBIE for one in servers):
                self._keeper.wait(self._grace + _KILLING)
        return self.status

    @property
    def output(self) -> str:
        """What this process has printed so far."""
        return self.output_after(0).decode("utf-8", "replace")

    def output_after(self, count: int) -> bytes:
        """What it has printed after its first `count` bytes."""
        with self.log.open("rb") as file:
            file.seek(self._log_start + count)
            return file.read()

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines that it printed."""
        return tuple(line[:500] for line in self.output.splitlines() if line.strip())[-_TAIL:]

    def end(self) -> None:
        """End it and all of its descendants: politely, then at once."""
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):
            self._keeper.stdin.close()
        try:
            self._keeper.wait(self._grace + _KILLING)
        except subprocess.TimeoutExpired:  # a process that cannot be killed, such as one in a broken driver
            self._keeper.kill()
            self._keeper.wait()


@contextlib.contextmanager
def running(
    command: Sequence[str] | str, log: Path, env: Mapping[str, str] | None = None, grace: float = GRACE
) -> Iterator[ServerProcess]:
    """Run the command while the block runs."""
    process = ServerProcess(command, log, env or {}, grace)
    try:
        yield process
    finally:
        _undisturbed(process.end)


def _undisturbed(end: Callable[[], None]) -> None:
    """Call `end`, and call it again if a Ctrl-C interrupts it: nothing may be left behind."""
    try:
        end()
    except KeyboardInterrupt:
        end()
        raise


def check_port(host: str, port: int) -> None:
    """Raise EngineError when something listens on the port already."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), 1.0):
        raise EngineError(
            f"port {port} is taken: something responds there already, before the engine was started",
            "stop it, or give the engine another `url`",
            "port taken",
        )
