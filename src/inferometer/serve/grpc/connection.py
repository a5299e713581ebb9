"""One client connection: passes the codec's events to calls, and what the codec has to send to the transport.

What is sent while data is received, or in one turn of the event loop, goes to the socket at once. The codec keeps what the
client's windows or the socket do not accept yet; calls stop passing on messages meanwhile.
"""

import re
import time
from typing import TYPE_CHECKING, Any

from inferometer.serve.grpc.call import Call
from inferometer.serve.grpc.headers import CallHead, Data, refused_head
from inferometer.serve.http import responses
from inferometer.serve.models.types import NEVER, Refused
from inferometer.serve.settings import GRPC_MOST
from inferometer.serve.sockets.transport import Transport
from inferometer.timing.clock import now
from inferometer.wire.http2.events import HeadersTooLarge, Http2Error, RequestData, RequestHeaders, Reset
from inferometer.wire.http2.server import Http2Server

if TYPE_CHECKING:
    from inferometer.serve.grpc.server import GrpcServer

_STREAM_WINDOW, _CONNECTION_WINDOW = 4 << 20, 64 << 20
_MAX_FRAME = 1 << 20
_TAKE = 1 << 20
"""Bytes that wait in the transport for the kernel; the rest stays in the codec."""
_MAX_UNSENT = 64 << 20
"""Unsent bytes of responses from which on the client cannot send more of its requests."""
_TOO_LARGE = refused_head("", Refused("RESOURCE_EXHAUSTED", "the metadata is larger than the server accepts"))
_HTTP1 = re.compile(rb"[A-Z]+ [^ ]* HTTP/1\.[01]\r?\n")
_NOT_HTTP2 = b"this port serves gRPC, which needs HTTP/2\n"


class Connection:
    """The calls of one connection: the protocol of a Transport."""

    __slots__ = (
        "_arrived", "_begun", "_is_awake", "_owed", "_server", "_transport", "blocked", "calls", "http2", "max_message",
        "offload", "peer",
    )  # fmt: skip

    room = None

    def __init__(self, server: "GrpcServer", transport: Transport) -> None:
        limits = server.limits
        self.http2 = Http2Server(
            max_streams=limits.streams,
            max_header_list=limits.head,
            stream_window=_STREAM_WINDOW,
            connection_window=_CONNECTION_WINDOW,
            max_frame=_MAX_FRAME,
            clock=time.monotonic,
        )
        self.calls: dict[int, Call] = {}
        self.blocked: set[Call] = set()
        """Calls with messages that the client has no room for."""
        self.offload, self.max_message = server.offload, min(limits.message, GRPC_MOST)
        self._server, self._transport, self.peer = server, transport, transport.peer
        self._arrived = 0
        self._is_awake = False  # what is queued will be sent in this turn of the loop
        self._begun: list[Call] = []  # calls with a deadline that have just begun
        self._owed: dict[int, int] = {}  # bytes by stream that the client may send again later

    # --- in ----------------------------------------------------------------------------------------------------------

    def received(self, data: bytes, arrived: int) -> None:
        self._transport.moved = now()
        self._arrived = arrived
        was_awake, self._is_awake = self._is_awake, True
        try:
            self._handle(self.http2.feed(data))
        except Http2Error as error:
            self._handle(error.events)
            self._fail(error, data)
            return
        if not was_awake:
            self._flush()

    def _handle(self, events: list[Any]) -> None:
        calls = self.calls
        for event in events:
            kind = type(event)
            if kind is RequestHeaders:
                self._begin(event.stream, self._server.heads.head(event.headers), event.data, event.end)
            elif kind is HeadersTooLarge:
                self._begin(event.stream, _TOO_LARGE, b"", True)
            elif (call := calls.get(event.stream)) is None:
                continue
            elif kind is RequestData:
                call.received(event.data, event.end, self._arrived)
            elif kind is Reset:
                call.cancel()
            else:  # trailers
                call.received(b"", True, self._arrived)
        if self._begun:
            for call in self._begun:
                if not call.is_over:
                    call.timer = self._transport.loop.call_later(max(call.deadline - now(), 0) / 1e9, call.expire)
            self._begun.clear()

    def _begin(self, stream: int, head: CallHead, data: Data, end: bool) -> None:
        call = Call(self, stream, head, self._arrived)
        if head.method is None:
            self.http2.headers(stream, head.trailers, True)
            self._server.log(call, head.status)
            return
        self.calls[stream] = call
        if head.timeout < NEVER:
            self._begun.append(call)
        call.begin()
        if (data or end) and not call.is_over:
            call.received(data, end, self._arrived)

    def consumed(self, stream: int, count: int) -> None:
        """Let the client send as many bytes again, unless it does not read its responses."""
        if self.http2.outbox.blocked > _MAX_UNSENT:
            self._owed[stream] = self._owed.get(stream, 0) + count
        else:
            self.http2.consumed(stream, count)

    # --- out ---------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Send what is queued, together with everything else of this turn of the loop."""
        if not self._is_awake:
            self._is_awake = True
            self._transport.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_awake = True
        http2, transport = self.http2, self._transport
        while (http2.has_more or self.blocked or self._owed) and transport.unsent < _TAKE and not transport.closed:
            if self.blocked or self._owed:
                self._move_on()
            parts = http2.take(_TAKE)
            if not parts:
                break
            transport.write(*parts)
        self._is_awake = False

    def _move_on(self) -> None:
        """Continue with what had to wait for the client, as far as it has read its responses."""
        if self.http2.outbox.blocked <= _MAX_UNSENT // 2:
            owed, self._owed = self._owed, {}
            for stream, count in owed.items():
                self.http2.consumed(stream, count)
        blocked, self.blocked = self.blocked, set()
        for call in blocked:
            if not call.is_over:
                call.advance()

    def drained(self) -> None:
        self._flush()

    # --- the end -----------------------------------------------------------------------------------------------------

    def over(self, call: Call, code: str) -> None:
        """Forget a call."""
        del self.calls[call.stream]
        if call.timer is not None:
            call.timer.cancel()
        if self._server.is_logged:
            self._server.log(call, code)
        if not self._is_awake:
            self.wake()

    def drain(self) -> None:
        """Announce the end: calls that are on their way are still accepted."""
        self.http2.drain()
        self.wake()

    def leave(self) -> None:
        """Close when everything is sent; all calls are over."""
        self._flush()
        if not self._transport.closed:
            self._transport.linger()

    def _fail(self, error: Http2Error, data: bytes) -> None:
        """End a connection on which the client violated the protocol."""
        self.http2.fail(error.code, error.message)
        self.lost()
        if _HTTP1.match(data):
            head = responses.head(505, len(_NOT_HTTP2), keep_alive=False, content_type=b"text/plain")
            self._transport.write(head + _NOT_HTTP2)
        else:
            self._flush()
        self._transport.linger()

    def ended(self) -> None:
        """Close: a client that only closed its sending side would not be able to use HTTP/2 either."""
        self._transport.close()

    def lost(self) -> None:
        for call in list(self.calls.values()):
            call.cancel()

    # --- patience ----------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> bool:
        return bool(self.calls or self.http2.has_more or self._transport.unsent)

    @property
    def is_waiting(self) -> bool:
        return self.http2.mid_frame or (bool(self.calls) and all(call.is_incomplete for call in self.calls.values()))

    @property
    def is_idle(self) -> bool:
        return not self.calls

    def late(self) -> None:
        self._transport.close()
