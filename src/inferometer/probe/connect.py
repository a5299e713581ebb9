"""Connecting to a server: addresses, TLS, and the errors of both."""

import socket
import ssl
from typing import Any

import msgspec

from inferometer.errors import TRUST, UserError
from inferometer.probe.kept import Connections
from inferometer.units import format_seconds
from inferometer.wire.failures import tls_reason
from inferometer.wire.target import Target

Address = tuple[int, tuple[object, ...]]
"""Address family and socket address."""


class Peer(msgspec.Struct, frozen=True):
    """A server to connect to, with its TLS settings and timeouts."""

    target: Target
    context: ssl.SSLContext | None = None
    connect_timeout: float = 10.0
    timeout: float = 60.0
    """For each read or write; 0: no limit."""
    kept: Connections | None = None
    """Connections that round trips use one after the other; None: each has its own."""
    max_size: int = 1 << 30
    """Maximum bytes of a response."""


class Unreachable(UserError):  # noqa: N818 - not an error of the server
    """No address of the host accepts a connection."""


class Refused(Unreachable):
    """Nothing listens at the port."""


def first_address(target: Target) -> Address:
    """The first address of the host, whether or not a server listens there."""
    family, _, _, _, address = _resolve(target)[0]
    return int(family), tuple(address)


def connect(peer: Peer) -> tuple[socket.socket, Address]:
    """Connect to the first address of the host that accepts, including TLS."""
    target = peer.target
    last_error: OSError = OSError("no address")
    for family, kind, protocol, _, address in _resolve(target):
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # no IPv6 on this system, or out of descriptors
            last_error = error
            continue
        sock.settimeout(peer.connect_timeout or None)
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            last_error = error
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if target.tls and peer.context is not None:
            sock = _encrypted(target, sock, peer.context)
        return sock, (int(family), tuple(address))
    raise _unreachable(target, last_error, peer.connect_timeout) from None


def _resolve(target: Target) -> list[Any]:
    """What getaddrinfo returns. Raises UserError when the host name does not resolve."""
    try:
        return socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        raise UserError(
            f"{target.url}: the host name {target.host} does not resolve", "check the host in {server.url}"
        ) from None


def _encrypted(target: Target, sock: socket.socket, context: ssl.SSLContext) -> socket.socket:
    try:
        return context.wrap_socket(sock, server_hostname=target.host)
    except OSError as error:
        sock.close()
        if isinstance(error, ssl.SSLCertVerificationError):
            raise UserError(f"{target.url}: {tls_reason(error)}", TRUST) from None
        reason = (
            tls_reason(error)
            if isinstance(error, ssl.SSLError)
            else "no response"
            if isinstance(error, TimeoutError)
            else str(error)
        )
        plain = "grpc" if target.grpc else "http"
        raise UserError(
            f"{target.url}: the TLS handshake failed: {reason}",
            f"check the port, or write {plain}:// instead of {plain}s://",
        ) from None


def _unreachable(target: Target, error: OSError, timeout: float) -> Unreachable:
    if isinstance(error, ConnectionRefusedError):
        return Refused(f"{target.url}: connection refused", "start the server, or check host and port")
    if isinstance(error, TimeoutError):
        limit = format_seconds(timeout) if timeout else "the system's limit"
        return Unreachable(
            f"{target.url}: no connection within {limit}", "check host and port, or raise {server.timeouts.connect}"
        )
    return Unreachable(f"{target.url}: {error.strerror or error}", "check host and port")
