"""Connections that stay open between round trips, for callers that make many (roundtrip.py)."""

import contextlib
import select
import socket
import threading
from collections.abc import Callable

from inferometer.wire.http2.client import Http2Client


class Opened:
    """A connected socket, and what belongs to it for as long as it is open."""

    def __init__(
        self, sock: socket.socket, resources: contextlib.ExitStack, connect_from: int, has_stamps: bool
    ) -> None:
        self.sock = sock
        self.connect_from = connect_from
        """When connecting began, CLOCK_MONOTONIC ns."""
        self.has_stamps = has_stamps
        """Arrivals are timestamped by the kernel."""
        self.http2: Http2Client | None = None
        """gRPC: the state of the HTTP/2 connection."""
        self.is_used = False
        """Whether it has carried a round trip before. The server may have closed it since then."""
        self._resources = resources

    def close(self) -> None:
        self._resources.close()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has arrived since the last response. HTTP/1.1: if something has, the server closed the connection."""
        poll = select.poll()  # unlike select(), it takes file descriptors above 1023
        poll.register(self.sock, select.POLLIN)
        return not poll.poll(0)


class Connections:
    """The idle connections to one server. Several threads may use it: each round trip has its connection to itself."""

    def __init__(self) -> None:
        self._idle: list[Opened] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def take(self, connect: Callable[[], Opened]) -> Opened:
        """Return an idle connection, or else a new one."""
        while True:
            with self._lock:
                opened = self._idle.pop() if self._idle else None
            if opened is None:
                return connect()
            if opened.http2 is not None or opened.is_quiet:  # HTTP/2 may have sent a PING
                return opened
            opened.close()

    def give_back(self, opened: Opened) -> None:
        """Keep the connection for the next round trip."""
        opened.is_used = True
        with self._lock:
            if not self._is_closed:
                self._idle.append(opened)
                return
        opened.close()

    def close(self) -> None:
        """Close the idle connections; those in use are closed when their round trip ends."""
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, [], True
        for opened in idle:
            opened.close()
