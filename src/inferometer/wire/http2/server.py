"""One HTTP/2 connection, server side: turns received bytes into events, and responses into bytes to send.

    server = Http2Server(...)           then, whenever the socket is writable: write server.take_parts() until it is empty
    for event in server.feed(data): ... then take_parts() again, because pings and windows need replies
    server.respond(stream, block, [body], trailers)

Rules:

- `feed` raises Http2Error for a violation that breaks the connection; `take_parts` then returns the GOAWAY to send before closing.
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

from collections.abc import Callable
from typing import Any

from inferometer.wire.failures import bounded, is_tls
from inferometer.wire.http2 import control, frames
from inferometer.wire.http2.connection import Connection
from inferometer.wire.http2.events import (
    Headers,
    HeadersTooLarge,
    Http2Error,
    RequestData,
    RequestHeaders,
    ServerEvent,
)
from inferometer.wire.http2.fields import Block, HeaderReader, validate_request
from inferometer.wire.http2.floods import Allowance
from inferometer.wire.http2.frames import DATA, END_STREAM, HEADERS, PADDED, PROTOCOL_ERROR, kind_name
from inferometer.wire.http2.outbox import OutgoingStream

_VIEW = 4096
"""Pieces of bodies from this size on are passed on as views, without a copy."""
_MAX_LINE = 300
"""Bytes of something other than HTTP/2 that are awaited to describe it."""
_DRAIN = b"draining"
"""The payload of the PING that follows the first GOAWAY of a graceful end."""

_MAX_PARTS = 500
"""Maximum number of parts for one system call (IOV_MAX is 1,024 on Linux); more are joined."""
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


class Http2Server(Connection[ServerEvent]):
    """The state of one connection. See the module's docstring for how to drive it."""

    __slots__ = (
        *("_connection_half", "_connection_window", "_drain_sent", "_half", "_last", "_max_streams", "_noise"),
        *("_reset", "_resets", "_own_window"),
    )

    def __init__(
        self,
        *,
        max_streams: int = 1_000,
        max_header_list: int = 16 << 10,
        stream_window: int = 1 << 20,
        connection_window: int = 16 << 20,
        max_frame: int = 1 << 20,
        clock: Callable[[], float],
    ) -> None:
        """The windows are the bytes of request bodies that the client may send before they are `consumed`."""
        for name, value in (("stream_window", stream_window), ("connection_window", connection_window)):
            if not frames.DEFAULT_WINDOW <= value <= frames.MAX_NUMBER:
                raise ValueError(f"{name} must be between 65535 and 2147483647 bytes (got {value})")
        reader = HeaderReader(max_header_list, "the client", validate_request)
        super().__init__(reader, control.SERVER_HANDLERS, max_frame, is_server=True)
        self._max_streams = max_streams
        self._own_window = stream_window
        self._half = stream_window // 2
        self._connection_window = connection_window
        self._connection_half = connection_window // 2
        self._last = frames.MAX_NUMBER  # streams with larger ids are ignored
        self._drain_sent = False
        self._noise = Allowance("pings, settings, window updates or empty frames", _MAX_NOISE, _NOISE_PER_SECOND, clock)
        self._resets = Allowance(
            "requests that it cancels or that are not valid", _MAX_RESETS, _RESETS_PER_SECOND, clock
        )
        self._reset = 0  # number of such requests
        settings = {frames.MAX_CONCURRENT_STREAMS: max_streams, frames.INITIAL_WINDOW_SIZE: stream_window}
        self._begin(b"", connection_window, settings)

    # --- responses ---------------------------------------------------------------------------------------------------

    def consumed(self, stream: int, count: int) -> None:
        """Let the client send `count` more bytes: the application has consumed as many of the request's body."""
        open_stream = self.streams.get(stream)
        if open_stream is None:  # what was not consumed was released when the stream closed
            return
        self.released += count
        open_stream.consumed += count
        if open_stream.consumed >= self._half and not open_stream.is_received:
            self.put_urgent(frames.window_update(stream, open_stream.consumed))
            open_stream.received -= open_stream.consumed
            open_stream.consumed = 0

    def drain(self) -> None:
        """End the connection gracefully: announce that it will end, and refuse new streams once the client knows.

        The client knows when it has replied to the PING that follows the announcement. The connection `is_drained` when
        the streams up to then have ended.
        """
        if not self._drain_sent:
            self._drain_sent = True
            self.go_away(frames.MAX_NUMBER)
            self.put_urgent(frames.frame(frames.PING, 0, 0, _DRAIN))

    def go_away(self, last: int | None = None) -> None:
        """Announce that streams with ids greater than `last` are ignored. By default, `last` is the last stream so far."""
        self._last = min(self._last, self.last if last is None else last)
        self.put_urgent(frames.goaway(frames.NO_ERROR, b"", self._last))

    @property
    def is_drained(self) -> bool:
        """Whether new streams are ignored and all others have ended; what `take_parts` returns must still be sent."""
        return self._last != frames.MAX_NUMBER and not self.streams

    def unsent(self, stream: int) -> int:
        """Bytes of a response that wait for the client's windows or for their turn."""
        open_stream = self.streams.get(stream)
        return 0 if open_stream is None else open_stream.unsent

    @property
    def has_more(self) -> bool:
        """Whether `take_parts` may return something."""
        return bool(self._ordered or self._urgent or self._ready) or self.released >= self._connection_half

    def take_parts(self, limit: int = 1 << 20) -> list[bytes | memoryview]:
        """Return the next bytes to send, at most about `limit`, as parts for sendmsg; an empty list if there are none now."""
        if self.released >= self._connection_half and self._error is None:
            self.put_urgent(frames.window_update(0, self.released))
            self._received -= self.released
            self.released = 0
        if self._ready or self._urgent or self._ordered_size > limit:
            small, bodies = self._take(limit)
            if len(bodies) > _MAX_PARTS:
                return [b"".join((*small, *bodies))]
            return [b"".join(small), *bodies] if small else bodies
        data = self.take(limit)
        return [data] if data else []

    # --- received bytes ----------------------------------------------------------------------------------------------

    def _without_preface(self, data: bytes) -> bytes:
        size = len(frames.PREFACE)
        if data[:size] == frames.PREFACE:
            self._has_preface = True
            return data[size:]
        if not frames.PREFACE.startswith(data) and (is_tls(data) or b"\n" in data or len(data) >= _MAX_LINE):
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
        handler(self, flags, number, payload, events)
        if len(events) > before:  # a Reset, by the client or for a violation of the protocol
            self._count_reset()
        elif (
            kind == frames.PING
            and payload == _DRAIN
            and flags & frames.ACK
            and self._drain_sent
            and self._last == frames.MAX_NUMBER
        ):
            self.go_away()

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        for _ in range(len(self.streams) // _STREAMS_PER_NOISE):  # a change of the initial window affects all of them
            self._count_noise()
        super()._on_settings(flags, number, payload)

    # --- DATA ---

    def _on_data(self, flags: int, number: int, length: int, data: bytes, start: int, events: list[Any]) -> int:
        self._received += length
        if self._received > self._connection_window:
            raise Http2Error(frames.FLOW_CONTROL_ERROR, "the client sent more than the connection's window allows")
        stream = self.streams.get(number)
        if stream is None:
            control.check_was_open(self, DATA, number)
            self.released += length
        elif stream.is_received:
            self.released += length
            self._fail_stream(
                stream, frames.STREAM_CLOSED, "the client sent more of a request that it had ended", events
            )
            stream = None
        else:
            stream.received += length
            if stream.received > self._own_window:
                message = "the client sent more than the stream's window allows"
                self._fail_stream(stream, frames.FLOW_CONTROL_ERROR, message, events)
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

    def _on_block(self, number: int, raw: bytes, end: int, events: list[Any]) -> None:
        block = self._known.get(raw)
        if block is None:
            block = self._read_block(raw)
        if number < self.next or not number & 1:
            self._on_trailers(number, block, end, events)
        elif number > self._last:
            self.next = number + 2
        elif len(self.streams) >= self._max_streams or self.backlog > _MAX_BACKLOG:
            self._refuse(number, frames.REFUSED_STREAM)
        elif not block.fault and block.status:
            self.accept(number, end == END_STREAM)
            events.append(RequestHeaders(number, block.headers, end == END_STREAM))
        elif block.code == frames.ENHANCE_YOUR_CALM:
            self.accept(number, end == END_STREAM)
            events.append(HeadersTooLarge(number, block.fault))
        else:
            self._refuse(number, PROTOCOL_ERROR)

    def _refuse(self, number: int, code: int) -> None:
        """Reset a new stream without reporting it."""
        self._count_reset()
        self.next = number + 2
        self.put(frames.rst_stream(number, code))

    def _on_trailers(self, number: int, block: Block, end: int, events: list[Any]) -> None:
        stream = self.streams.get(number)
        if stream is None:
            control.check_was_open(self, HEADERS, number)
            if block.status:
                raise Http2Error(PROTOCOL_ERROR, f"the client opened stream {number} a second time or out of order")
            self._count_noise()
        elif stream.is_received:
            self._fail_stream(
                stream, frames.STREAM_CLOSED, "the client sent headers after the end of its request", events
            )
        elif block.fault:
            self._fail_stream(stream, block.code, block.fault, events)
        elif block.status or not end:
            what = "a second request on one stream" if block.status else "trailers that do not end the stream"
            self._fail_stream(stream, PROTOCOL_ERROR, "the client sent " + what, events)
        else:
            stream.is_received = True
            events.append(Headers(number, block.headers, True))

    # --- floods ---

    def _fail_stream(self, stream: OutgoingStream, code: int, message: str, events: list[Any]) -> None:
        self._count_reset()
        control.fail_stream(self, stream, code, message, events)

    def _count_noise(self) -> None:
        """Count a frame that is not part of a request."""
        self._noise.left -= 1
        if self._noise.left < 0:
            self._noise.refill((self.next // 2 + self.sent) * _NOISE_PER_FRAME)

    def _count_reset(self) -> None:
        """Count a stream that ends before its response."""
        self._reset += 1
        self._resets.left -= 1
        if self._resets.left < 0:
            self._resets.refill((self.next // 2 - self._reset) // 2)


def _not_http2(data: bytes) -> Http2Error:
    """Describe what the client speaks instead, as far as the first bytes show."""
    if is_tls(data):
        return Http2Error(PROTOCOL_ERROR, "the client speaks TLS, but this port takes HTTP/2 without TLS")
    line = bounded(data.partition(b"\n")[0].decode("latin-1").strip())
    return Http2Error(PROTOCOL_ERROR, f"the client does not speak HTTP/2: it began with '{line}'")
