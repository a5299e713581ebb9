"""The listening socket: who comes in, and all connections that there are.

Where the process has no more files, accepting pauses until some are closed. A look at all connections, every few seconds,
finds those whose client is late (settings.Limits: idle, stalled).
"""

import asyncio
import errno
import socket
import ssl
from typing import Any

from inferometer.serve.http.connection import Connection, Handler
from inferometer.serve.http.tls import TlsConnection
from inferometer.serve.ports import place
from inferometer.serve.settings import Limits
from inferometer.timing import clock
from inferometer.timing.clock import now

NEVER = 1 << 62
_BACKLOG = 4096
_AT_A_TIME = 256
"""Connections that are taken before others have their turn."""
_SWEEP_S = 5.0


class Listener:
    """The listening socket and all its connections."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        handler: Handler,
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.loop = loop
        self.handler = handler
        self.limits = limits or Limits()
        self.tls = tls
        self.connections: set[Connection] = set()
        self.wall_offset = clock.wall_offset()
        self._primed = clock.prime()
        self._sock = sock
        self._is_accepting = True
        sock.listen(_BACKLOG)
        loop.add_reader(sock, self._acceptable)
        self._resample()
        self._idle, self._stalled = _ns(self.limits.idle), _ns(self.limits.stalled)
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep_again()

    @property
    def in_flight(self) -> int:
        """Connections whose request is being answered, or whose answer is not out, or that are let in with a request that is
        still coming."""
        return sum(connection.in_flight for connection in self.connections)

    @property
    def leaving(self) -> int:
        """Connections whose last answer is out, and whose client has not closed yet."""
        return sum(connection.is_leaving for connection in self.connections)

    def let_in(self) -> None:
        """From now on new requests are refused; those whose heads have come are none."""
        for connection in self.connections:
            connection.let_in()

    def refuse_partial(self, why: str) -> int:
        """The rest of requests is not waited for any longer: 503, in words. How many there were."""
        return sum(connection.refuse_partial(why) for connection in list(self.connections))

    def stop_accepting(self) -> None:
        """No new connections but those that wait to be taken; the ones that are there go on."""
        if self._is_accepting:
            self._accept(_BACKLOG)
            self._is_accepting = False
            self.loop.remove_reader(self._sock)
            self._sock.close()

    def close(self) -> None:
        self.stop_accepting()
        self._timer.cancel()
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._primed is not None:
            self._primed.close()
        for connection in list(self.connections):
            connection.close()

    def serve(self, sock: socket.socket, peer: str = "") -> Connection:
        """Answer the requests that come over `sock`."""
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._primed is not None:
            clock.ask_for_stamps(sock)
        connection = Connection(self, sock, peer) if self.tls is None else TlsConnection(self, sock, peer, self.tls)
        self.connections.add(connection)
        return connection

    def _acceptable(self) -> None:
        self._accept(_AT_A_TIME)

    def _accept(self, most: int) -> None:
        for _ in range(most):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):  # wait for some to close rather than spin
                    self.loop.remove_reader(self._sock)
                    self.loop.call_later(0.1, self._accept_again)
                return
            self.serve(sock, client_of(address))

    def _accept_again(self) -> None:
        if self._is_accepting:
            self.loop.add_reader(self._sock, self._acceptable)

    def _resample(self) -> None:
        """The wall clock may be stepped; the kernel's stamps are of it."""
        self.wall_offset = clock.wall_offset()
        self._timer = self.loop.call_later(1.0, self._resample)

    # --- patience ----------------------------------------------------------------------------------------------------

    def sweep(self, at: int) -> None:
        """Give up the clients that are late as of `at`: one look at all connections instead of a timer for each."""
        late = at - min(self._idle, self._stalled)
        for connection in [one for one in self.connections if one.moved < late]:
            connection.give_up_if_late(self._idle, self._stalled, at)

    def _sweep_again(self) -> None:
        shortest = min(self._idle, self._stalled)
        if shortest < NEVER:
            self._sweeper = self.loop.call_later(min(_SWEEP_S, shortest / 4e9), self._swept)

    def _swept(self) -> None:
        self.sweep(now())
        self._sweep_again()


def client_of(address: Any) -> str:
    """HOST:PORT. (An IPv4 client of a socket for both is shown as what it is.)"""
    if not isinstance(address, tuple):
        return ""
    host, port = address[:2]
    return place(host.removeprefix("::ffff:") if "." in host else host, port)


def _ns(limit: float) -> int:
    return int(limit * 1e9) if limit else NEVER
