"""Waits until a server is really ready: its health check passes, and then it gives a first good response.

Servers listen, and even report that they are healthy, before they can generate; so only a response counts. While it waits, the log is
read as it grows, so that the phases of the start-up (milestones.py) get their times.
"""

import http.client
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from inferometer.engines.launching import EngineError, Launch
from inferometer.engines.process import ServerProcess
from inferometer.errors import UserError
from inferometer.units import format_seconds

_LOOK = 0.1
_HEALTH_TIMEOUT = 5.0

Lines = list[tuple[float, str]]
"""Lines of a log, each with the seconds since the start at which it was seen."""


class LogReader:
    """Reads a log as it grows, and notes when each line was seen."""

    def __init__(self, process: ServerProcess) -> None:
        self._process = process
        self._read = 0
        self._rest = b""
        self.lines: Lines = []

    def look(self) -> None:
        """Read what was printed since the last look. A line counts when it is complete."""
        new = self._process.output_after(self._read)
        at = time.monotonic() - self._process.started
        self._read += len(new)
        *lines, self._rest = (self._rest + new).replace(b"\r", b"\n").split(b"\n")
        self.lines += [(at, line.decode("utf-8", "replace")) for line in lines if line]


def await_ready(
    process: ServerProcess | None,
    launch: Launch,
    respond: Callable[[float], float | None],
    patience: float,
    log: LogReader | None,
) -> tuple[float, float]:
    """Wait for the health check and a first good response; return when each of them came, by time.monotonic().

    `respond` sends a request, for which it gets the seconds that are left; it returns the seconds to its first token, or raises UserError. `process` is None for a server
    that was not started here. Raises EngineError with the reason.
    """
    deadline = time.monotonic() + patience
    healthy: float | None = None
    why = "it did not listen"
    while True:
        if log is not None:
            log.look()
        if process is not None and process.status is not None:
            raise _ended(process)
        if healthy is None and (not launch.ready or _is_healthy(launch.url, launch.ready)):
            healthy = time.monotonic()
        if healthy is not None:
            sent = time.monotonic()
            try:
                first = respond(max(deadline - sent, 1.0))
                return healthy, sent + (first if first is not None else time.monotonic() - sent)
            except UserError as error:
                why = error.what
                if not launch.ready:
                    healthy = None
        elif launch.ready:
            why = f"{launch.ready} did not respond with 2xx"
        if time.monotonic() > deadline:
            tail = process.tail if process is not None else ()
            kind = "not ready" if healthy is None else "no good response"
            raise EngineError(
                f"not ready after {format_seconds(patience)}: {why}",
                "see its log, or raise startup.timeout",
                kind,
                tail,
            )
        time.sleep(_LOOK)


def _ended(process: ServerProcess) -> EngineError:
    return EngineError(
        f"ended with status {process.status} before it was ready",
        f"see {process.log.name}",
        "died",
        process.tail,
    )


def _is_healthy(url: str, path: str) -> bool:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme.endswith("s") else http.client.HTTPConnection
    connection = kind(parts.hostname or "127.0.0.1", parts.port, timeout=_HEALTH_TIMEOUT)
    try:
        connection.request("GET", path)
        return 200 <= connection.getresponse().status < 300
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def post(url: str, path: str, timeout: float = 60.0) -> int:
    """Send an empty POST, for a reset or a profiler; return the status. Raises UserError when there is no response."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme.endswith("s") else http.client.HTTPConnection
    connection = kind(parts.hostname or "127.0.0.1", parts.port, timeout=timeout)
    try:
        connection.request("POST", path, headers={"Content-Length": "0"})
        response = connection.getresponse()
        response.read()
        return response.status
    except (OSError, http.client.HTTPException) as error:
        raise UserError(f"POST {url}{path}: {error}", "check the engine's log") from None
    finally:
        connection.close()
