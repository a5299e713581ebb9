"""The listening socket and all of its connections.

When the process has run out of file descriptors, accepting pauses until some are closed. A sweep over all connections
every few seconds finds clients that are idle or stalled (settings.Limits).
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any

from inferometer.serve.ports import place
from inferometer.serve.settings import Limits
from inferometer.serve.sockets.tls import TlsTransport
from inferometer.serve.sockets.transport import Transport
from inferometer.timing import clock
from inferometer.timing.clock import now

NEVER = 1 << 62
_BACKLOG = 4096
_AT_A_TIME = 256
"""Connections accepted before the loop does other work."""
_SWEEP_S = 5.0


class Listener:
    """The listening socket and all its connections; `make_protocol` is called for each of them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        make_protocol: Callable[[Transport], Any],
        limits: Limits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        limits = limits or Limits()
        self.loop = loop
        self.transports: set[Transport] = set()
        self._make_protocol, self._tls = make_protocol, tls
        self._primed = clock.prime()
        self._sock, self._is_accepting = sock, True
        self._idle, self._stalled = (int(limit * 1e9) or NEVER for limit in (limits.idle, limits.stalled))
        sock.listen(_BACKLOG)
        loop.add_reader(sock, self._accept)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._follow_wall_clock()
        self._sweep_again()

    @property
    def connections(self) -> list[Any]:
        """The protocols of all connections."""
        return [transport.protocol for transport in self.transports]

    @property
    def in_flight(self) -> int:
        """Number of connections for which the server's shutdown has to wait."""
        return sum(connection.in_flight for connection in self.connections)

    @property
    def leaving(self) -> int:
        """Number of connections whose last response is sent and whose client has not closed yet."""
        return sum(transport.is_leaving for transport in self.transports)

    def refuse_partial(self, why: str) -> int:
        """Refuse requests that are still arriving, with the reason. Return how many there were."""
        return sum(connection.refuse_partial(why) for connection in self.connections)

    def stop_accepting(self) -> None:
        """Accept no new connections beyond those already in the backlog; existing ones continue."""
        if self._is_accepting:
            self._accept(_BACKLOG)
            self._is_accepting = False
            self.loop.remove_reader(self._sock)
            self._sock.close()

    def close(self) -> None:
        self.stop_accepting()
        for timer in self._timers.values():
            timer.cancel()
        if self._primed is not None:
            self._primed.close()
        for transport in list(self.transports):
            transport.close()

    def serve(self, sock: socket.socket, peer: str = "") -> Transport:
        """Serve the requests that arrive over `sock`."""
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._primed is not None:
            clock.enable_stamps(sock)
        transport = Transport(self, sock, peer) if self._tls is None else TlsTransport(self, sock, peer, self._tls)
        transport.protocol = self._make_protocol(transport)
        self.transports.add(transport)
        return transport

    def _accept(self, most: int = _AT_A_TIME) -> None:
        for _ in range(most):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):  # wait for some to close instead of spinning
                    self.loop.remove_reader(self._sock)
                    self.loop.call_later(0.1, self._accept_again)
                return
            self.serve(sock, client_of(address))

    def _accept_again(self) -> None:
        if self._is_accepting:
            self.loop.add_reader(self._sock, self._accept)

    # --- periodically ------------------------------------------------------------------------------------------------

    def _follow_wall_clock(self) -> None:
        """Follow steps of the wall clock, which the kernel's timestamps are based on."""
        self.wall_offset = clock.wall_offset()
        self._timers["clock"] = self.loop.call_later(1.0, self._follow_wall_clock)

    def _sweep_again(self) -> None:
        self.sweep(now())
        wait = min(_SWEEP_S, min(self._idle, self._stalled) / 4e9)
        self._timers["sweep"] = self.loop.call_later(wait, self._sweep_again)

    def sweep(self, at: int) -> None:
        """Give up on clients that are late as of `at`: one pass over all connections instead of a timer for each."""
        for transport in list(self.transports):
            transport.close_if_broken()
        late = at - min(self._idle, self._stalled)
        for transport in [one for one in self.transports if one.moved < late]:
            transport.give_up_if_late(self._idle, self._stalled, at)


def client_of(address: Any) -> str:
    """Return HOST:PORT. (IPv4 clients of a dual-stack socket are shown as IPv4.)"""
    if not isinstance(address, tuple):
        return ""
    host, port = address[:2]
    return place(host.removeprefix("::ffff:") if "." in host else host, port)
