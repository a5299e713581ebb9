"""Binding ports, and the listening socket with all of its connections.

When the process has run out of file descriptors, accepting pauses for a second. A sweep over all connections every few seconds
finds clients that are idle or stalled (settings.Limits).
"""

import asyncio
import errno
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from typing import Any

from inferometer.errors import UserError
from inferometer.serve.settings import Limits, Settings
from inferometer.serve.sockets.transport import TlsTransport, Transport
from inferometer.timing import clock
from inferometer.timing.clock import now

NEVER = 1 << 62
_BACKLOG = 4096
_SWEEP_S = 5.0
_QUIET_NS, _LOOK_S = 100_000_000, 0.01


def bound(settings: Settings, held: ExitStack | AsyncExitStack, shared: bool = False) -> dict[str, socket.socket]:
    """Return a bound socket for each port of the settings, by the name of its option; `held` closes them. They do not
    listen yet: until they do, others can bind the same ports. Several `shared` sockets can listen on the same port."""
    sockets = {}
    for name, port in (("http", settings.http), ("grpc", settings.grpc), ("metrics", settings.metrics)):
        if port is not None:
            with _explained(settings.host, port):
                found = socket.getaddrinfo(settings.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
                family, kind, protocol, _, address = found[0]
                sockets[name] = sock = held.enter_context(socket.socket(family, kind, protocol))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if shared:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                sock.setblocking(False)
                sock.bind(address)
    return sockets


@contextmanager
def _explained(host: str, port: int) -> Iterator[None]:
    """Convert socket errors about that address to UserError."""
    try:
        yield
    except socket.gaierror as error:
        raise UserError(f"cannot find the host {host}: {error.strerror}", "check --host") from None
    except OSError as error:
        what = "is in use" if error.errno == errno.EADDRINUSE else f"is not available: {error.strerror}"
        remedy = "choose another port with --http, --grpc or --metrics (0: any free port), or check --host"
        raise UserError(f"{host} port {port} {what}", remedy) from None


class Listener:
    """The listening socket and all its connections; `make_protocol` is called for each of them."""

    def __init__(
        self, sock: socket.socket, make_protocol: Callable[[Transport], Any], limits: Limits, tls: ssl.SSLContext | None
    ) -> None:
        self.loop, self.transports = asyncio.get_running_loop(), set[Transport]()
        self._make_protocol, self._tls, self._sock, self._is_accepting = make_protocol, tls, sock, True
        self._idle, self._stalled = (int(limit * 1e9) or NEVER for limit in (limits.idle, limits.stalled))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit both options
        if sys.platform == "linux":
            clock.enable_stamps(sock)
        with _explained(*sock.getsockname()[:2]):  # another process may have taken the port since it was bound
            sock.listen(_BACKLOG)
        self._each_second()
        self._sweep_again()

    @property
    def connections(self) -> list[Any]:
        """The protocols of all connections."""
        return [transport.protocol for transport in self.transports]

    @property
    def in_flight(self) -> int:
        """Number of connections for which the server's shutdown has to wait."""
        return sum(connection.in_flight for connection in self.connections)

    def stop_accepting(self) -> None:
        """Accept no new connections beyond those already in the backlog; existing ones continue."""
        if self._is_accepting:
            self._accept()
            self._is_accepting = False
            self.loop.remove_reader(self._sock)
            self._sock.close()

    async def quiet(self) -> None:
        """Wait until all responses are sent, also to requests that were still arriving, and no new request has come for a
        moment: requests may cross our announcement of the end on the wire."""
        quiet_from = 0
        while not quiet_from or now() - quiet_from < _QUIET_NS:
            quiet_from = 0 if self.in_flight else quiet_from or now()
            await asyncio.sleep(_LOOK_S)

    def close(self) -> None:
        self.stop_accepting()
        self._second_timer.cancel()
        self._sweep_timer.cancel()
        for transport in list(self.transports):
            transport.close()

    def serve(self, sock: socket.socket, peer: str = "") -> Transport:
        sock.setblocking(False)
        transport = Transport(self, sock, peer) if self._tls is None else TlsTransport(self, sock, peer, self._tls)
        transport.protocol = self._make_protocol(transport)
        self.transports.add(transport)
        return transport

    def _accept(self) -> None:
        for _ in range(_BACKLOG):
            try:
                sock, address = self._sock.accept()
            except BlockingIOError:
                return
            except OSError:  # no more file descriptors: wait for some to close instead of spinning
                self.loop.remove_reader(self._sock)
                return
            with suppress(OSError):  # the client has closed the connection already
                self.serve(sock, place(address))

    def _each_second(self) -> None:
        """Follow steps of the wall clock, which the kernel's timestamps are based on; accept again if that was paused."""
        self.wall_offset = clock.wall_offset()
        if self._is_accepting:
            self.loop.add_reader(self._sock, self._accept)
        self._second_timer = self.loop.call_later(1.0, self._each_second)

    def _sweep_again(self) -> None:
        self.sweep(now())
        interval = min(_SWEEP_S, self._idle / 4e9, self._stalled / 4e9)
        self._sweep_timer = self.loop.call_later(interval, self._sweep_again)

    def sweep(self, at: int) -> None:
        """Close connections that are broken or late as of `at`: one pass over all of them instead of a timer for each."""
        for transport in list(self.transports):
            transport.close_if_late(self._idle, self._stalled, at)


def place(address: tuple[Any, ...]) -> str:
    """Return HOST:PORT, with brackets around IPv6 addresses. (IPv4 clients of a dual-stack socket are shown as IPv4.)"""
    host, port = address[:2]
    if "." in host:
        host = host.removeprefix("::ffff:")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
