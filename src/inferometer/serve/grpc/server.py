"""The gRPC server: the methods of all services by path, access control, the access log, and the end.

The end has an order: clients are told to go away, calls that were on their way by then still arrive, the calls in progress
finish, and the rest is refused with UNAVAILABLE.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Iterable, Mapping

from inferometer.serve import access
from inferometer.serve.grpc.call import Call
from inferometer.serve.grpc.connection import Connection
from inferometer.serve.grpc.headers import CallHeads, Method
from inferometer.serve.models.types import Refused
from inferometer.serve.offload import Offload
from inferometer.serve.settings import Limits, Settings
from inferometer.serve.sockets import tls
from inferometer.serve.sockets.listener import Listener

_GOODBYE_S = 0.1
"""Time for the calls that were on their way when the end was announced."""
_LOOK_S = 0.01


class GrpcServer:
    """A gRPC server on a bound socket; it listens from the start. `methods` are those of all services, by path. When it
    stops, it calls `closers`, which end the calls that would not end by themselves."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        methods: Mapping[str, Method],
        closers: Iterable[Callable[[], None]],
        settings: Settings,
        offload: Offload,
    ) -> None:
        self.limits: Limits = settings.limits
        self.offload = offload
        self.is_logged = settings.access_log
        self._closers = closers
        self.heads = CallHeads(methods, settings.token)
        context = tls.context(settings.tls, "h2") if settings.tls else None
        self.port: int = sock.getsockname()[1]
        self._listener = Listener(loop, sock, lambda transport: Connection(self, transport), self.limits, context)

    @property
    def _connections(self) -> list[Connection]:
        return self._listener.connections

    def log(self, call: Call, code: str) -> None:
        """Write a line of the access log."""
        if self.is_logged:
            access.log(call.connection.peer, "GRPC", call.head.path, code, call.began)

    async def stop(self, grace: float) -> None:
        """Accept no new calls, let those in progress end for `grace` seconds, then refuse them."""
        end = time.monotonic() + grace
        self._listener.stop_accepting()
        for connection in self._connections:
            connection.drain()
        for close in self._closers:
            close()
        await asyncio.sleep(min(_GOODBYE_S, grace))
        while time.monotonic() < end and any(connection.in_flight for connection in self._connections):
            await asyncio.sleep(_LOOK_S)
        refused = 0
        for connection in self._connections:
            for call in list(connection.calls.values()):
                call.abort(Refused("UNAVAILABLE", "the server stopped before the request was complete"))
                refused += 1
            connection.leave()
        if refused:
            await asyncio.sleep(_LOOK_S)
        self._listener.close()
