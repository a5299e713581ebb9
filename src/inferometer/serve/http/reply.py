"""Sends a complete response to a request, and writes the access log."""

import sys
import time
from collections.abc import Callable

from inferometer.serve.http import answers
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.sockets.transport import Data
from inferometer.timing.clock import now

_JOINED = 64 * 1024
"""Responses up to this size are sent in one piece."""


def reply(
    connection: Connection,
    request: Request,
    status: int,
    *body: Data,
    content_type: bytes = b"application/json",
    extra: bytes = b"",
    close: bool = False,
) -> None:
    keep, length = request.keep_alive and not close, sum(map(len, body))
    promise = keep and request.http10
    head = answers.head(status, length, keep_alive=keep, content_type=content_type, extra=extra, promise=promise)
    if request.method == b"HEAD":
        connection.write(head)
    elif length <= _JOINED:
        connection.write(b"".join((head, *body)))
    else:
        connection.write(head, *body)
    connection.finish(keep)


class Logged:
    """A connection for one request that writes a line to standard error when the response is finished.

    The line has the time, client, method, path, status, bytes sent, and milliseconds from arrival to the end of the
    response; "-" if invalid bytes have no such value. It contains no headers and no bodies.
    """

    __slots__ = ("_connection", "_request", "_sent", "_status")

    def __init__(self, connection: Connection, request: Request) -> None:
        self._connection = connection
        self._request = request
        self._sent = 0
        self._status = "499"  # the client disconnected before there was a response

    @property
    def closed(self) -> bool:
        return self._connection.closed

    @property
    def unsent(self) -> int:
        return self._connection.unsent

    @property
    def between(self) -> bytes:
        return self._connection.between

    @between.setter
    def between(self, between: bytes) -> None:
        self._connection.between = between

    @property
    def gone(self) -> Callable[[], None] | None:
        return self._connection.gone

    @gone.setter
    def gone(self, gone: Callable[[], None] | None) -> None:
        self._connection.gone = gone

    def write(self, data: Data, *more: Data) -> None:
        if not self._sent:
            self._status = bytes(data[9:12]).decode("latin-1")
        self._sent += len(data) + sum(map(len, more))
        self._connection.write(data, *more)

    def finish(self, keep_alive: bool = True) -> None:
        self._say()
        self._connection.finish(keep_alive)

    def hang_up(self) -> None:
        self._say()
        self._connection.hang_up()

    def reset(self) -> None:
        self._say()
        self._connection.reset()

    def _say(self) -> None:
        request = self._request
        words = (
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            self._connection.peer or "-",
            request.method.decode("latin-1") or "-",
            request.path.partition(b"?")[0].decode("ascii", "backslashreplace") or "-",
            self._status,
            str(self._sent),
            f"{(now() - request.arrived) / 1e6:.3f}",
        )
        sys.stderr.write(" ".join(words) + "\n")
