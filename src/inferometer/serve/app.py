"""The server put together and run until it is told to stop."""

import asyncio
import errno
import gc
import resource
import signal
import socket
from collections.abc import Callable

from inferometer.errors import UserError
from inferometer.serve.http.connection import Listener
from inferometer.serve.sim.server import Server
from inferometer.serve.sim.settings import Settings, check

_REASONS = {
    errno.EADDRINUSE: ("is in use", "choose another with --port, or --port 0 for any free one"),
    errno.EACCES: ("needs privileges", "choose a --port from 1024 on"),
    errno.EADDRNOTAVAIL: (
        "is not an address of this machine",
        "give --host an address of this machine, or 0.0.0.0 for all",
    ),
}


async def serve(settings: Settings, ready: Callable[[str], None], stop: asyncio.Event | None = None) -> None:
    """Serve until SIGINT, SIGTERM or `stop`; `ready` is told the URL once it listens."""
    check(settings)
    loop = asyncio.get_running_loop()
    stop = stop or asyncio.Event()
    with _bound(settings) as sock:
        server = Server(settings, loop)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        _raise_file_limit()
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000, 50, 100)
        listener = Listener(loop, sock, server)
        try:
            ready(_url(sock))
            await stop.wait()
        finally:
            listener.close()
            server.close()


def _bound(settings: Settings) -> socket.socket:
    where = f"{settings.host} port {settings.port}"
    try:
        return _bind(settings.host, settings.port)
    except socket.gaierror as error:
        raise UserError(
            f"cannot resolve {settings.host}: {error.strerror}", "give --host an address or a name"
        ) from None
    except OSError as error:
        reason, remedy = _REASONS.get(
            error.errno or 0, (f"cannot be listened on: {error.strerror}", "see --host and --port")
        )
        raise UserError(f"{where} {reason}", remedy) from None


def _bind(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _raise_file_limit() -> None:
    """A socket is a file: as many as the system lets us have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
