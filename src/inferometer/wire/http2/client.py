"""One HTTP/2 connection, client side: turns received bytes into events, and requests into bytes to send.

    client.start()                      then, whenever the socket is writable: write client.take() until it is empty
    stream = client.request(block, body)
    for event in client.feed(data): ... then take() again, because pings and windows need replies

Rules:

- `feed` raises Http2Error for a violation that breaks the connection; `take` then returns the GOAWAY to send before closing.
  A violation that breaks only one stream becomes a Reset event.
- Frames of closed streams are counted and decoded as far as the connection's state requires, and otherwise ignored.
- Informational responses (1xx) are skipped. END_STREAM decides where a body ends; content-length is not checked.
- The caller of `request` must respect `max_streams`. When END_STREAM arrives before the complete request was sent, the rest
  of the request is dropped and the stream is reset.
- Bodies are not buffered: DATA is passed on as it arrives, in complete or partial frames, and our windows are topped up when
  half of them is used.
- A response that arrives in one read and has the same header blocks as an earlier one becomes a single
  Response event. A server's responses to unary calls are the same three frames again and again, of which only the stream and the
  message differ: two `unpack`s and a few comparisons parse them all. They may be followed by other frames, or by more responses.
"""

import struct
from collections.abc import Callable

import msgspec

from inferometer.wire.failures import bounded, is_tls
from inferometer.wire.http2 import control, frames
from inferometer.wire.http2.connection import Connection
from inferometer.wire.http2.events import Data, Event, Fields, Headers, Http2Error, Response
from inferometer.wire.http2.fields import HeaderReader, validate_response
from inferometer.wire.http2.frames import DATA, END_STREAM, HEADERS, PADDED, PROTOCOL_ERROR, kind_name
from inferometer.wire.http2.outbox import OutgoingStream

_MAX_STATUS_LINE = 300


class _Layout(msgspec.Struct, frozen=True, gc=False):
    """The header blocks of a successful response, and how to unpack what is around its message."""

    unpack: Callable[[bytes, int], tuple[bytes, int, int, int]]
    """The header block, and the head of the DATA frame."""
    unpack_end: Callable[[bytes, int], tuple[bytes, int, bytes]]
    """The head of the trailers' frame, in two parts, and their block."""
    size: int
    """Bytes before the message, without the first head."""
    end_size: int
    block: bytes
    end_head: bytes
    end_block: bytes
    headers: Fields
    trailers: Fields


class Http2Client(Connection[Event]):
    """The state of one connection. See the module's docstring for how to drive it."""

    __slots__ = ("_half", "_head_block", "_layout", "_own_window")

    def __init__(
        self, window: int = frames.MAX_NUMBER, max_frame: int = 1 << 20, max_header_list: int = 64 << 10
    ) -> None:
        """`window`: bytes that the server may send before our next update, per stream and on the whole connection."""
        if not frames.DEFAULT_WINDOW <= window <= frames.MAX_NUMBER:
            raise ValueError(f"window must be between 65535 and 2147483647 bytes (got {window})")
        reader = HeaderReader(max_header_list, "the server", validate_response)
        super().__init__(reader, control.CLIENT_HANDLERS, max_frame, is_server=False)
        self._head_block = b""  # of the last response that was parsed frame by frame
        self._layout: _Layout | None = None
        self._own_window = window
        self._half = window // 2

    def start(self) -> None:
        """Queue the preface of the connection and our settings."""
        settings = {frames.ENABLE_PUSH: 0, frames.INITIAL_WINDOW_SIZE: self._own_window}
        self._begin(frames.PREFACE, self._own_window, settings)

    # --- received bytes ----------------------------------------------------------------------------------------------

    def eof(self) -> None:
        """Handle the server's close; raises Http2Error if it happened in the middle of a frame."""
        if self._error is None and self.mid_frame:
            kept = b"".join(self._kept)
            error = Http2Error(PROTOCOL_ERROR, "the server closed the connection in the middle of a frame")
            if kept[:5] == b"HTTP/" or (is_tls(kept) and not self.settings_received):
                error = _not_http2(kept)
            self._break(error)
            raise error

    def _on_usual(self, number: int, data: bytes, start: int, events: list[Event]) -> int:
        layout = self._layout
        assert layout is not None
        body = start + layout.size
        try:
            block, word, flags, number_2 = layout.unpack(data, start)
            end = body + (word >> 8)
            end_head, number_3, end_block = layout.unpack_end(data, end)
        except struct.error:  # there are fewer bytes
            return 0
        if (
            not number == number_2 == number_3
            or block != layout.block
            or word & 0xFF != DATA
            or flags
            or end_head != layout.end_head
            or end_block != layout.end_block
        ):
            return 0
        stream = self.streams.get(number)
        length = end - body
        received = self._received + length
        if (
            stream is None
            or stream.has_headers
            or stream.queue
            or not stream.is_ended
            or length > self._max_frame
            or received > self._half
        ):
            return 0
        self._received = received
        del self.streams[number]
        events.append(Response(number, layout.headers, data[body:end], layout.trailers))
        return end + layout.end_size

    def _learn(self, end_block: bytes, trailers: Fields) -> None:
        """Store the blocks of a complete response, if they may come again with the same meaning."""
        layout, block = self._layout, self._head_block
        if layout is not None and layout.block == block and layout.end_block == end_block:
            return
        head = self._known.get(block)
        if head is not None and end_block in self._known:
            start, end = struct.Struct(f">{len(block)}sLBL"), struct.Struct(f">5sL{len(end_block)}s")
            end_head = frames.head(len(end_block) << 8 | HEADERS, frames.END_HEADERS | END_STREAM, 0)[:5]
            self._layout = _Layout(
                start.unpack_from,
                end.unpack_from,
                start.size,
                end.size,
                block,
                end_head,
                end_block,
                head.headers,
                trailers,
            )
            self._usual = len(block) << 8 | HEADERS

    def _check_first(self, kind: int, data: bytes) -> bool:
        if data[:5] == b"HTTP/" and b"\n" not in data and len(data) < _MAX_STATUS_LINE:
            return False  # the status line must arrive completely to be reported
        raise _not_http2(data, kind)

    # --- DATA ---

    def _on_data(self, flags: int, number: int, length: int, data: bytes, start: int, events: list[Event]) -> int:
        """Handle a DATA frame; return the position in `data` where it, or the received part of it, ends."""
        self._received += length
        if self._received > self._half:
            self._top_up()
        stream = self.streams.get(number)
        if stream is None:
            control.check_was_open(self, DATA, number)
        elif not stream.has_headers:
            control.fail_stream(self, stream, PROTOCOL_ERROR, "the server sent a body before its headers", events)
            stream = None
        else:
            stream.received += length
            if stream.received > self._half:
                stream = self._top_up_stream(stream, events)
        stop = start + length
        if flags & PADDED or stop > len(data):
            return self._data_head(flags, number, length, data, start, events)
        if stream is not None:
            if flags & END_STREAM:
                events.append(Data(number, data[start:stop], True))
                self.finish(stream)
            elif length:
                events.append(Data(number, data[start:stop], False))
        return stop

    def _top_up(self) -> None:
        if self._received > self._own_window:
            raise Http2Error(frames.FLOW_CONTROL_ERROR, "the server sent more than the connection's window allows")
        self.put_urgent(frames.window_update(0, self._received))
        self._received = 0

    def _top_up_stream(self, stream: OutgoingStream, events: list[Event]) -> OutgoingStream | None:
        """Top up the stream's window; return the stream, or None if it had to be reset."""
        if stream.received > self._own_window:
            message = "the server sent more than the stream's window allows"
            control.fail_stream(self, stream, frames.FLOW_CONTROL_ERROR, message, events)
            return None
        self.put_urgent(frames.window_update(stream.number, stream.received))
        stream.received = 0
        return stream

    def _on_body(
        self, stream: OutgoingStream, data: bytes, start: int, stop: int, end: bool, events: list[Event]
    ) -> None:
        events.append(Data(stream.number, data[start:stop], end))
        if end:
            self.finish(stream)

    # --- headers ---

    def _on_block(self, number: int, raw: bytes, end: int, events: list[Event]) -> None:
        block = self._known.get(raw)
        if block is None:
            block = self._read_block(raw)
            if not self._known:  # the dynamic table has changed, and with it the meaning of blocks
                self._layout, self._usual = None, -1
        stream = self.streams.get(number)
        if stream is None:
            control.check_was_open(self, HEADERS, number)
        elif block.fault:
            control.fail_stream(self, stream, block.code, block.fault, events)
        elif stream.has_headers:
            if block.status or not end:
                what = "a second :status" if block.status else "trailers that do not end the stream"
                control.fail_stream(self, stream, PROTOCOL_ERROR, "the server sent " + what, events)
            else:
                events.append(Headers(number, block.headers, True))
                self.finish(stream)
                self._learn(raw, block.headers)
        elif block.status >= 200:
            stream.has_headers = True
            self._head_block = raw
            events.append(Headers(number, block.headers, end == END_STREAM))
            if end:
                self.finish(stream)
        elif not block.status or end or block.status == 101:
            what = "headers without a :status" if not block.status else f"status {block.status} as a final response"
            control.fail_stream(self, stream, PROTOCOL_ERROR, "the server sent " + what, events)


def _not_http2(data: bytes, kind: int = frames.SETTINGS) -> Http2Error:
    """Describe what the server speaks instead, as far as the first bytes show."""
    if data[:5] == b"HTTP/":
        line = bounded(data.partition(b"\n")[0].decode("latin-1"))
        return Http2Error(PROTOCOL_ERROR, f"the server does not speak HTTP/2: it responded with '{line}'")
    if is_tls(data):
        return Http2Error(PROTOCOL_ERROR, "the server does not speak HTTP/2 without TLS: it responded with TLS")
    return Http2Error(
        PROTOCOL_ERROR,
        f"the server does not speak HTTP/2: it began with {kind_name(kind)} instead of SETTINGS: {data[:16]!r}",
    )
