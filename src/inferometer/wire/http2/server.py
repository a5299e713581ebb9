"""One HTTP/2 connection, server side: turns received bytes into events, and responses into bytes to send.

    server = Http2Server(...)           then, whenever the socket is writable: write server.take() until it is empty
    for event in server.feed(data): ... then take() again, because pings and windows need replies
    server.respond(stream, block, [body], trailers)

Rules:

- `feed` raises Http2Error for a violation that breaks the connection; `take` then returns the GOAWAY to send before closing.
  A violation that breaks only one stream becomes a Reset event, if the request was reported before.
- Bodies are not buffered: DATA is passed on as it arrives. The client may send as much as the windows allow; `consumed` opens
  them again. What was not consumed when a stream closes counts as consumed then.
- A stream closes when its response is complete. If the request is not complete then, the stream is reset with NO_ERROR.
- Methods for a stream that has closed in the meantime do nothing.
- A client that floods the server with frames that are not part of a request, or with requests that it cancels, gets a
  connection error (floods.py). A client that does not read its responses has its new streams refused.
- A GOAWAY from the client is not reported: the client opens no more streams and closes the connection when it is done.
- Content-length is not checked; priorities are ignored.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from inferometer.wire.failures import bounded, is_tls
from inferometer.wire.http2 import control, frames
from inferometer.wire.http2.connection import Connection
from inferometer.wire.http2.events import (
    HeadersTooLarge,
    Http2Error,
    RequestData,
    RequestHeaders,
    RequestTrailers,
    ServerEvent,
)
from inferometer.wire.http2.fields import Block, HeaderReader, validate_request
from inferometer.wire.http2.floods import Allowance
from inferometer.wire.http2.frames import (
    CANCEL,
    DATA,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    HEADERS,
    MAX_NUMBER,
    NO_ERROR,
    PADDED,
    PING,
    PREFACE,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    STREAM_CLOSED,
    kind_name,
)
from inferometer.wire.http2.outbox import Outbox, OutgoingStream

_VIEW = 4096
"""Pieces of bodies from this size on are passed on as views, without a copy."""
_MAX_LINE = 300
"""Bytes of something other than HTTP/2 that are awaited to describe it."""
_DRAIN = b"draining"
"""The payload of the PING that follows the first GOAWAY of a graceful end."""

_MAX_BACKLOG = 32 << 20
"""Bytes of small responses that the client has not read; new streams are refused beyond it."""

_MAX_NOISE, _NOISE_PER_SECOND = 10_000, 1_000
"""Allowance for frames that are not part of a request: PING, SETTINGS, WINDOW_UPDATE, PRIORITY, empty DATA, ..."""
_NOISE_PER_FRAME = 8
"""Such frames earned by every request and every DATA frame sent. grpcio, for example, sends two updates of windows per request."""
_STREAMS_PER_NOISE = 64
"""SETTINGS count once more per this many open streams."""
_MAX_RESETS, _RESETS_PER_SECOND = 20_000, 5_000
"""Allowance for streams that the client opens and cancels, or on which it violates the protocol. Two requests that were not
cancelled pay for one that was."""


class Http2Server(Connection):
    """The state of one connection. See the module's docstring for how to drive it."""

    __slots__ = (
        *("_connection_half", "_connection_window", "_drain_sent", "_half", "_has_preface", "_last", "_max_streams"),
        *("_noise", "_received", "_reset", "_resets", "_window"),
    )

    def __init__(
        self,
        *,
        max_streams: int = 1_000,
        max_header_list: int = 16 << 10,
        stream_window: int = 1 << 20,
        connection_window: int = 16 << 20,
        max_frame: int = 1 << 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The windows are the bytes of request bodies that the client may send before they are `consumed`."""
        for name, value in (("stream_window", stream_window), ("connection_window", connection_window)):
            if not frames.DEFAULT_WINDOW <= value <= MAX_NUMBER:
                raise ValueError(f"{name} must be between 65535 and 2147483647 bytes (got {value})")
        reader = HeaderReader(max_header_list, "the client", validate_request)
        super().__init__(Outbox("the client", is_server=True), reader, control.SERVER_HANDLERS, max_frame)
        self._max_streams = max_streams
        self._window = stream_window
        self._half = stream_window // 2
        self._connection_window = connection_window
        self._connection_half = connection_window // 2
        self._received = 0  # bytes of DATA for which the connection's window was not yet topped up
        self._has_preface = False
        self._last = MAX_NUMBER  # streams with larger ids are ignored
        self._drain_sent = False
        self._noise = Allowance("pings, settings, window updates or empty frames", _MAX_NOISE, _NOISE_PER_SECOND, clock)
        self._resets = Allowance(
            "requests that it cancels or that are not valid", _MAX_RESETS, _RESETS_PER_SECOND, clock
        )
        self._reset = 0  # number of such requests
        settings = {
            frames.MAX_CONCURRENT_STREAMS: max_streams,
            frames.INITIAL_WINDOW_SIZE: stream_window,
            frames.MAX_FRAME_SIZE: max_frame,
            frames.MAX_HEADER_LIST_SIZE: max_header_list,
        }
        more = connection_window - frames.DEFAULT_WINDOW
        self.outbox.put_urgent(frames.settings(settings) + (frames.window_update(0, more) if more else b""))

    # --- responses ---------------------------------------------------------------------------------------------------

    def respond(self, stream: int, block: bytes, body: Sequence[bytes | memoryview], trailers: bytes) -> None:
        """Queue a complete response: headers, a body in parts, and trailers."""
        self.outbox.respond(stream, block, body, trailers)

    def headers(self, stream: int, block: bytes, end: bool = False) -> None:
        """Queue the headers of a response or, after them, its trailers, which must end it."""
        self.outbox.headers(stream, block, end)

    def send(self, stream: int, *parts: bytes | memoryview, end: bool = False) -> None:
        """Queue a part of a response's body. Large parts are not copied and must not change."""
        self.outbox.send_parts(stream, parts, end)

    def reset(self, stream: int, code: int = CANCEL) -> None:
        """Give up a stream."""
        open_stream = self._streams.get(stream)
        if open_stream is not None:
            self.outbox.reset(open_stream, code)

    def consumed(self, stream: int, count: int) -> None:
        """Let the client send `count` more bytes: the application has consumed as many of the request's body."""
        open_stream = self._streams.get(stream)
        if open_stream is None:  # what was not consumed was released when the stream closed
            return
        self.outbox.released += count
        open_stream.consumed += count
        if open_stream.consumed >= self._half and not open_stream.is_received:
            self.outbox.put_urgent(frames.window_update(stream, open_stream.consumed))
            open_stream.received -= open_stream.consumed
            open_stream.consumed = 0

    def drain(self) -> None:
        """End the connection gracefully: announce that it will end, and refuse new streams once the client knows.

        The client knows when it has replied to the PING that follows the announcement. The connection `is_drained` when
        the streams up to then have ended.
        """
        if not self._drain_sent:
            self._drain_sent = True
            self.go_away(MAX_NUMBER)
            self.outbox.put_urgent(frames.frame(PING, 0, 0, _DRAIN))

    def go_away(self, last: int | None = None, code: int = NO_ERROR, debug: bytes = b"") -> None:
        """Announce that streams with ids greater than `last` are ignored. By default, `last` is the last stream so far."""
        self._last = min(self._last, self.outbox.last if last is None else last)
        self.outbox.put_urgent(frames.goaway(code, debug, self._last))

    @property
    def is_drained(self) -> bool:
        """Whether new streams are ignored and all others have ended; what `take` returns must still be sent."""
        return self._last != MAX_NUMBER and not self._streams

    def is_open(self, stream: int) -> bool:
        return stream in self._streams

    def unsent(self, stream: int) -> int:
        """Bytes of a response that wait for the client's windows or for their turn."""
        open_stream = self._streams.get(stream)
        return 0 if open_stream is None else open_stream.unsent

    @property
    def backlog(self) -> int:
        """Bytes that `take` could return now, other than those that wait for the client's windows.

        Do not read more requests while this is large: the client sends them without reading our responses.
        """
        return self.outbox.backlog

    @property
    def has_more(self) -> bool:
        """Whether `take` may return something."""
        return self.outbox.has_more or self.outbox.released >= self._connection_half

    def take(self, limit: int = 1 << 20) -> list[bytes | memoryview]:
        """Return the next bytes to send, at most about `limit`, as parts for sendmsg; an empty list if there are none now."""
        outbox = self.outbox
        if outbox.released >= self._connection_half and self._error is None:
            outbox.put_urgent(frames.window_update(0, outbox.released))
            self._received -= outbox.released
            outbox.released = 0
        return outbox.take_parts(limit)

    # --- received bytes ----------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> list[ServerEvent]:
        """Return the events of `data`, which may be split anywhere.

        Raises Http2Error, whose `events` are those that precede the error.
        """
        if self._error is not None:
            raise self._error
        events: list[ServerEvent] = []
        try:
            if self._kept:
                data = self._join(data)
            if not self._has_preface:
                data = self._without_preface(data)
            self._frames(data, events)
        except Http2Error as error:
            self._break(error, events)
            raise
        return events

    def fail(self, code: int, message: str) -> None:
        """Give up the connection for a reason of the caller's: drop everything that waits and send a GOAWAY."""
        if self._error is None:
            self._break(Http2Error(code, message), [])

    def _without_preface(self, data: bytes) -> bytes:
        size = len(PREFACE)
        if data[:size] == PREFACE:
            self._has_preface = True
            return data[size:]
        if not PREFACE.startswith(data) and (is_tls(data) or b"\n" in data or len(data) >= _MAX_LINE):
            raise _not_http2(data)
        if data:
            self._keep(data, len(data) + 1)
        return b""

    def _check_first(self, kind: int, data: bytes) -> bool:
        raise Http2Error(PROTOCOL_ERROR, f"the client began with {kind_name(kind)} instead of SETTINGS")

    def _on_frame(self, kind: int, flags: int, number: int, payload: bytes, events: list[Any]) -> None:
        self._count_noise()
        handler = self._handlers.get(kind)
        if handler is None:
            super()._on_frame(kind, flags, number, payload, events)
            return
        before = len(events)
        handler(self.outbox, flags, number, payload, events)
        if len(events) > before:  # a Reset, by the client or for a violation of the protocol
            self._count_reset()
        elif (
            kind == PING and payload == _DRAIN and flags & frames.ACK and self._drain_sent and self._last == MAX_NUMBER
        ):
            self.go_away()

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        for _ in range(len(self._streams) // _STREAMS_PER_NOISE):  # a change of the initial window affects all of them
            self._count_noise()
        super()._on_settings(flags, number, payload)

    # --- DATA ---

    def _on_data(self, flags: int, number: int, length: int, data: bytes, start: int, events: list[Any]) -> int:
        self._received += length
        if self._received > self._connection_window:
            raise Http2Error(FLOW_CONTROL_ERROR, "the client sent more than the connection's window allows")
        stream = self._streams.get(number)
        if stream is None:
            control.check_was_open(self.outbox, DATA, number)
            self.outbox.released += length
        elif stream.is_received:
            self.outbox.released += length
            self._fail_stream(stream, STREAM_CLOSED, "the client sent more of a request that it had ended", events)
            stream = None
        else:
            stream.received += length
            if stream.received > self._window:
                message = "the client sent more than the stream's window allows"
                self._fail_stream(stream, FLOW_CONTROL_ERROR, message, events)
                stream = None
        stop = start + length
        if flags & PADDED:
            return self._on_padded(flags, number, length, data, start, events)
        if stop > len(data):
            return self._data_head(flags, number, length, data, start, events)
        if stream is not None:
            if length or flags & END_STREAM:
                self._on_body(stream, data, start, stop, flags & END_STREAM == END_STREAM, events)
            else:
                self._count_noise()
        return stop

    def _on_padded(self, flags: int, number: int, length: int, data: bytes, start: int, events: list[Any]) -> int:
        """Handle a padded DATA frame. The padding is not passed on, so the caller cannot report it as consumed."""
        self._count_noise()
        at = self._data_head(flags, number, length, data, start, events)
        self.consumed(number, self._data_padding + 1)
        return at

    def _on_data_part(self, number: int, data: bytes, start: int, stop: int, end: bool, events: list[Any]) -> None:
        stream = self._streams.get(number)
        if stream is not None:
            self._on_body(stream, data, start, stop, end, events)

    def _on_body(
        self, stream: OutgoingStream, data: bytes, start: int, stop: int, end: bool, events: list[Any]
    ) -> None:
        piece = data[start:stop] if stop - start < _VIEW else memoryview(data)[start:stop]
        if end:
            stream.is_received = True
            if events:
                last = events[-1]
                if last.__class__ is RequestHeaders and last.stream == stream.number:
                    last.data = piece
                    last.end = True
                    return
        events.append(RequestData(stream.number, piece, end))

    # --- headers ---

    def _check_id(self, number: int) -> None:
        if number < self.outbox.next or not number & 1:
            control.check_was_open(self.outbox, HEADERS, number)

    def _on_block(self, number: int, raw: bytes, end: int, events: list[Any]) -> None:
        block = self._known.get(raw)
        if block is None:
            block = self._read_block(raw)
        outbox = self.outbox
        if number < outbox.next or not number & 1:
            self._on_trailers(number, block, end, events)
        elif number > self._last:
            outbox.next = number + 2
        elif len(self._streams) >= self._max_streams or outbox.backlog > _MAX_BACKLOG:
            self._refuse(number, REFUSED_STREAM)
        elif not block.fault and block.status:
            outbox.accept(number, end == END_STREAM)
            events.append(RequestHeaders(number, block.headers, end == END_STREAM))
        elif block.code == ENHANCE_YOUR_CALM:
            outbox.accept(number, end == END_STREAM)
            events.append(HeadersTooLarge(number, block.fault))
        else:
            self._refuse(number, PROTOCOL_ERROR)

    def _refuse(self, number: int, code: int) -> None:
        """Reset a new stream without reporting it."""
        self._count_reset()
        self.outbox.next = number + 2
        self.outbox.put(frames.rst_stream(number, code))

    def _on_trailers(self, number: int, block: Block, end: int, events: list[Any]) -> None:
        stream = self._streams.get(number)
        if stream is None:
            control.check_was_open(self.outbox, HEADERS, number)
            if block.status:
                raise Http2Error(PROTOCOL_ERROR, f"the client opened stream {number} a second time or out of order")
            self._count_noise()
        elif stream.is_received:
            self._fail_stream(stream, STREAM_CLOSED, "the client sent headers after the end of its request", events)
        elif block.fault:
            self._fail_stream(stream, block.code, block.fault, events)
        elif block.status or not end:
            what = "a second request on one stream" if block.status else "trailers that do not end the stream"
            self._fail_stream(stream, PROTOCOL_ERROR, "the client sent " + what, events)
        else:
            stream.is_received = True
            events.append(RequestTrailers(number, block.headers))

    # --- floods ---

    def _fail_stream(self, stream: OutgoingStream, code: int, message: str, events: list[Any]) -> None:
        self._count_reset()
        control.fail_stream(self.outbox, stream, code, message, events)

    def _count_noise(self) -> None:
        """Count a frame that is not part of a request."""
        self._noise.left -= 1
        if self._noise.left < 0:
            self._noise.refill((self.outbox.next // 2 + self.outbox.sent) * _NOISE_PER_FRAME)

    def _count_reset(self) -> None:
        """Count a stream that ends before its response."""
        self._reset += 1
        self._resets.left -= 1
        if self._resets.left < 0:
            self._resets.refill((self.outbox.next // 2 - self._reset) // 2)


def _not_http2(data: bytes) -> Http2Error:
    """Describe what the client speaks instead, as far as the first bytes show."""
    if is_tls(data):
        return Http2Error(PROTOCOL_ERROR, "the client speaks TLS, but this port takes HTTP/2 without TLS")
    line = bounded(data.partition(b"\n")[0].decode("latin-1").strip())
    return Http2Error(PROTOCOL_ERROR, f"the client does not speak HTTP/2: it began with '{line}'")
