"""The gRPC server, and its client connections.

What a connection sends while it receives data, or in one turn of the event loop, goes to the socket at once. The codec
keeps what the client's windows or the socket do not accept yet.

The end has an order: clients are told to go away, calls that were on their way by then still arrive, the calls in progress
finish, and the rest is refused with UNAVAILABLE.
"""

import asyncio
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from inferometer.serve.grpc.call import Call, CallHead, CallHeads, Data, Method, refusing
from inferometer.serve.models.types import NEVER, Refused
from inferometer.serve.offload import Threads
from inferometer.serve.settings import GRPC_MOST, Settings
from inferometer.serve.sockets.listener import Listener
from inferometer.serve.sockets.transport import Transport, tls_context
from inferometer.timing.clock import now
from inferometer.wire.http2.events import HeadersTooLarge, Http2Error, RequestData, RequestHeaders, Reset
from inferometer.wire.http2.server import Http2Server

_LAST_S = 0.01  # time to send the last errors
_WINDOWS = {"stream_window": 4 << 20, "connection_window": 64 << 20, "max_frame": 1 << 20}
_TAKE = 1 << 20
"""Bytes that wait in the transport for the kernel; the rest stays in the codec."""
_MAX_UNSENT = 64 << 20
"""Unsent bytes of responses from which on the client cannot send more of its requests."""
_EXPIRED = Refused("DEADLINE_EXCEEDED", "Deadline Exceeded")
_TOO_LARGE = CallHead("", refusing(Refused("RESOURCE_EXHAUSTED", "the metadata is larger than the server accepts")))


class GrpcServer:
    """A gRPC server on a bound socket; it listens from the start. `methods` are those of all services, by path."""

    def __init__(
        self, sock: socket.socket, methods: Mapping[str, Method], settings: Settings, offload: Threads
    ) -> None:
        self.limits, self.is_logged, self.offload = settings.limits, settings.access_log, offload
        self.heads = CallHeads(methods, settings.token)
        context = tls_context(settings.tls, "h2") if settings.tls else None
        self._listener = Listener(sock, lambda transport: Connection(self, transport), self.limits, context)

    async def stop(self, grace: float) -> None:
        """Accept no new calls, let those in progress end for `grace` seconds, then refuse them."""
        listener = self._listener
        listener.stop_accepting()
        for connection in listener.connections:
            connection.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await listener.quiet()
        for connection in listener.connections:
            connection.leave()
        await asyncio.sleep(_LAST_S)
        listener.close()


class Connection:
    """The calls of one connection: the protocol of a Transport."""

    __slots__ = (
        "_arrived", "_is_awake", "_is_draining", "_owed", "_server", "_transport", "calls", "http2", "is_logged",
        "max_message", "offload", "peer",
    )  # fmt: skip

    room = None
    is_done = False

    def __init__(self, server: GrpcServer, transport: Transport) -> None:
        self.http2 = Http2Server(
            max_streams=server.limits.streams, max_header_list=server.limits.head, clock=time.monotonic, **_WINDOWS
        )
        self.calls: dict[int, Call] = {}
        self.offload, self.max_message = server.offload, min(server.limits.message, GRPC_MOST)
        self.is_logged, self.peer = server.is_logged, transport.peer
        self._server, self._transport, self._arrived = server, transport, 0
        self._is_awake = False  # what is queued will be sent in this turn of the loop
        self._is_draining = False
        self._owed: dict[int, int] = {}  # bytes by stream that the client may send again later

    def received(self, data: bytes, arrived: int) -> None:
        self._transport.moved = now()
        self._arrived = arrived
        was_awake, self._is_awake = self._is_awake, True
        try:
            self._handle(self.http2.feed(data))
        except Http2Error as error:
            self._handle(error.events)
            self.lost()
            self.leave()  # with the GOAWAY that the codec has queued
            return
        if self._is_draining:
            self.drain()  # for calls that were on their way
        if not was_awake:
            self.flush()

    def _handle(self, events: list[Any]) -> None:
        for event in events:
            kind = type(event)
            if kind is RequestHeaders:
                self._begin(event.stream, self._server.heads.head(event.headers), event.data, event.end)
            elif kind is HeadersTooLarge:
                self._begin(event.stream, _TOO_LARGE, b"", True)
            elif (call := self.calls.get(event.stream)) is None:
                continue
            elif kind is RequestData:
                call.received(event.data, event.end, self._arrived)
            elif kind is Reset:
                call.end("CANCELLED")
            else:  # trailers
                call.received(b"", True, self._arrived)

    def _begin(self, stream: int, head: CallHead, data: Data, end: bool) -> None:
        call = Call(self, stream, head, self._arrived)
        if (data or end) and not call.is_over:
            call.received(data, end, self._arrived)
        if head.timeout < NEVER and not call.is_over:
            left = max(call.deadline - now(), 0) / 1e9
            call.timer = self._transport.loop.call_later(left, call.refuse, _EXPIRED)

    def consumed(self, stream: int, count: int) -> None:
        """Let the client send as many bytes again, unless it does not read its responses."""
        if self.http2.blocked > _MAX_UNSENT:
            self._owed[stream] = self._owed.get(stream, 0) + count
        else:
            self.http2.consumed(stream, count)

    def wake(self) -> None:
        """Send what is queued, together with everything else of this turn of the loop."""
        if not self._is_awake:
            self._is_awake = True
            self._transport.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what the kernel and the client's windows accept."""
        self._is_awake = True
        http2, transport = self.http2, self._transport
        while (http2.has_more or self._owed) and transport.unsent < _TAKE and not transport.closed:
            if self._owed and http2.blocked <= _MAX_UNSENT // 2:
                owed, self._owed = self._owed, {}
                for stream, count in owed.items():
                    http2.consumed(stream, count)
            parts = http2.take_parts(_TAKE)
            if not parts:
                break
            transport.write(*parts)
        self._is_awake = False

    drained = flush

    def drain(self) -> None:
        """Announce the end: calls that are on their way are still accepted."""
        self._is_draining = True
        self.http2.drain()
        self.wake()
        for call in list(self.calls.values()):
            call.on_drained()

    def leave(self) -> None:
        """Refuse the calls that are left, and close when everything is sent."""
        for call in list(self.calls.values()):
            call.refuse(Refused("UNAVAILABLE", "the server stopped before the request was complete"))
        self.flush()
        self._transport.linger()

    def lost(self) -> None:
        for call in list(self.calls.values()):
            call.end("CANCELLED")

    @property
    def in_flight(self) -> bool:
        return bool(self.calls or self.http2.has_more or self.http2.blocked or self._transport.unsent)

    def is_late(self, silent: int, idle: int, stalled: int) -> bool:
        if not self.calls and not self.http2.mid_frame:
            return silent > idle
        is_incomplete = self.http2.mid_frame or all(call.is_incomplete for call in self.calls.values())
        return is_incomplete and silent > stalled
