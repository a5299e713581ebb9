"""Binds ports, and explains why a port cannot be bound."""

import contextlib
import errno
import socket
from collections.abc import Iterator, Mapping

from inferometer.errors import UserError


def bound(host: str, port: int, option: str, shared: bool = False) -> socket.socket:
    """Return a socket bound to that address but not listening yet: until it does, others can bind the same address.
    `option` is the command-line option that sets the port. Several `shared` sockets can listen on the same port."""
    with explained(host, port, option), contextlib.ExitStack() as failed:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        sock = failed.enter_context(socket.socket(family, kind, protocol))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setblocking(False)
        sock.bind(address)
        failed.pop_all()
    return sock


def bound_all(
    host: str, numbers: Mapping[str, int | None], held: contextlib.ExitStack | contextlib.AsyncExitStack, shared: bool
) -> dict[str, socket.socket]:
    """Return a bound socket for each port that is not None, by the name of its option; `held` closes them."""
    return {
        name: held.enter_context(bound(host, port, f"--{name}", shared))
        for name, port in numbers.items()
        if port is not None
    }


@contextlib.contextmanager
def explained(host: str, port: int, option: str) -> Iterator[None]:
    """Convert socket errors about that address to UserError."""
    try:
        yield
    except socket.gaierror as error:
        raise UserError(f"cannot resolve {host}: {error.strerror}", "set --host to an address or host name") from None
    except OSError as error:
        what, remedy = f"is not available: {error.strerror}", f"check --host and {option}"
        if error.errno == errno.EADDRINUSE:
            what, remedy = "is in use", f"choose another port with {option}, or {option} 0 for any free port"
        if error.errno == errno.EADDRNOTAVAIL:
            what, remedy = "is not an address of this machine", "set --host to one, or to 0.0.0.0 for all interfaces"
        raise UserError(f"{host} port {port} {what}", remedy) from None


def place(host: str, port: int) -> str:
    """Return HOST:PORT, with brackets around IPv6 addresses."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
