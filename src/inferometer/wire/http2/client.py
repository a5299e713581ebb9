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
"""

from inferometer.wire.failures import bounded, is_tls
from inferometer.wire.http2 import control, frames
from inferometer.wire.http2.events import Data, Event, Headers, Http2Error
from inferometer.wire.http2.fast_path import Layout, Layouts
from inferometer.wire.http2.fields import HeaderReader
from inferometer.wire.http2.frames import (
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    HEAD,
    HEADERS,
    MAX_NUMBER,
    MIN_MAX_FRAME,
    PADDED,
    PRIORITIZED,
    PROTOCOL_ERROR,
    SETTINGS,
    kind_name,
    unpack_head,
)
from inferometer.wire.http2.hpack import HpackError
from inferometer.wire.http2.outbox import Outbox, OutgoingStream

_ANY = -1
_HEADERS_FORM = END_HEADERS | PADDED | PRIORITIZED
_MAX_STATUS_LINE = 300
_MAX_CONTINUATIONS = 64
_BLOCK_FACTOR = 4
"""A header block may be this many times as large as the limit on header lists; a larger block is not even decoded."""


class Http2Client:
    """The state of one connection. See the module's docstring for how to drive it."""

    __slots__ = (
        *("_block", "_block_flags", "_data_flags", "_data_left", "_data_padding", "_data_stream", "_error"),
        *("_expected", "_expected_stream", "_half", "_kept", "_kept_size", "_known", "_layouts", "_max_frame"),
        *("_max_list", "_needed", "_reader", "_received", "_streams", "_window", "outbox", "settings_received"),
    )

    def __init__(self, window: int = MAX_NUMBER, max_frame: int = 1 << 20, max_header_list: int = 64 << 10) -> None:
        """`window`: bytes that the server may send before our next update, per stream and on the whole connection."""
        if not frames.DEFAULT_WINDOW <= window <= MAX_NUMBER:
            raise ValueError(f"window must be between 65535 and 2147483647 bytes (got {window})")
        if not MIN_MAX_FRAME <= max_frame <= frames.MAX_MAX_FRAME:
            raise ValueError(f"max_frame must be between 16384 and 16777215 bytes (got {max_frame})")
        self.settings_received = False
        self.outbox = Outbox()
        """The bytes to send. Callers on the hot path use its `is_closing`, `max_streams`, `request` and `take` directly."""
        self._streams = self.outbox.streams
        self._reader = HeaderReader(max_header_list)
        self._known = self._reader.known
        self._layouts = Layouts()
        self._max_list = max_header_list
        self._max_frame = max_frame
        self._window = window
        self._half = window // 2
        self._received = 0  # bytes of DATA for which the connection's window was not yet topped up
        self._error: Http2Error | None = None
        self._expected = SETTINGS  # the only kind of frame that may come next, or _ANY
        self._expected_stream = 0  # and the stream that it must belong to
        self._kept: list[bytes] = []  # the beginning of an incomplete frame other than DATA
        self._kept_size = 0
        self._needed = 0  # number of bytes that must be there before it is parsed again
        self._data_stream = self._data_flags = 0  # the DATA frame that is being received,
        self._data_left = self._data_padding = 0  # the bytes of it still to come, and how many of them are padding
        self._block: list[bytes] = []  # a header block that still lacks a CONTINUATION
        self._block_flags = 0

    # --- requests ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Queue the preface of the connection and our settings."""
        settings = {
            frames.ENABLE_PUSH: 0,
            frames.INITIAL_WINDOW_SIZE: self._window,
            frames.MAX_FRAME_SIZE: self._max_frame,
            frames.MAX_HEADER_LIST_SIZE: self._max_list,
        }
        more = self._window - frames.DEFAULT_WINDOW
        preface = frames.PREFACE + frames.settings(settings)
        self.outbox.put_urgent(preface + (frames.window_update(0, more) if more else b""))

    def request(self, block: bytes, body: bytes, end: bool = True) -> int:
        """Queue a request and return the id of its stream. Not allowed once the connection `is_closing`."""
        return self.outbox.request(block, body, end)

    def send(self, stream: int, body: bytes, end: bool) -> None:
        """Queue more of a request's body. Does nothing if the stream has closed in the meantime."""
        self.outbox.send(stream, body, end)

    def reset(self, stream: int, code: int = CANCEL) -> None:
        """Cancel a stream. Does nothing if it has closed in the meantime."""
        open_stream = self._streams.get(stream)
        if open_stream is not None:
            self.outbox.reset(open_stream, code)

    def take(self, limit: int = 1 << 20) -> bytes:
        """Return the next bytes to send, at most about `limit`; b"" if there is nothing to send now."""
        return self.outbox.take(limit)

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    @property
    def max_streams(self) -> int:
        """Number of streams that the server allows to be open; a very large number while it has set no limit."""
        return self.outbox.max_streams

    @property
    def is_closing(self) -> bool:
        """Whether new requests are impossible: after a GOAWAY, after a connection error, or when the ids have run out."""
        return self.outbox.is_closing

    @property
    def blocked(self) -> int:
        """Bytes of request bodies that wait for the server's windows or for their turn."""
        return self.outbox.blocked

    # --- received bytes ----------------------------------------------------------------------------------------------

    @property
    def mid_frame(self) -> bool:
        """Whether the bytes received so far end inside a frame or a header block."""
        return bool(self._kept or self._data_left or self._block)

    def eof(self) -> None:
        """Handle the server's close; raises Http2Error if it happened in the middle of a frame."""
        if self._error is None and self.mid_frame:
            kept = b"".join(self._kept)
            self._error = (
                _not_http2(kept)
                if kept[:5] == b"HTTP/" or (is_tls(kept) and not self.settings_received)
                else Http2Error(PROTOCOL_ERROR, "the server closed the connection in the middle of a frame")
            )
            self.outbox.fail(self._error.code, self._error.message)
            raise self._error

    def complete_response(self, data: bytes) -> tuple[int, bytes, Layout] | None:
        """Return the stream id, the body and the layout if `data` is a complete response with the layout of an earlier one.

        Returns None for any other data, which must then go to `feed`.
        """
        layout = self._layouts.by_size.get(len(data))
        if layout is None or self._kept or self._data_left or self._expected != _ANY:
            return None
        start, number, middle, number_2, body, end, number_3, block = layout.unpack(data)
        if (
            number == number_2 == number_3
            and start == layout.start
            and middle == layout.middle
            and end == layout.end
            and block == layout.block
        ):
            stream = self._streams.get(number)
            received = self._received + len(body)
            if stream is None or stream.has_headers or stream.queue or not stream.is_ended or received > self._half:
                return None
            self._received = received
            del self._streams[number]
            return number, body, layout
        return None

    def feed(self, data: bytes) -> list[Event]:
        """Return the events of `data`, which may be split anywhere.

        Raises Http2Error, whose `events` are those that precede the error.
        """
        if self._error is not None:
            raise self._error
        events: list[Event] = []
        try:
            if self._kept:
                self._kept.append(data)
                self._kept_size += len(data)
                if self._kept_size < self._needed:
                    return events
                data = b"".join(self._kept)
                self._kept.clear()
            self._frames(data, events)
            if len(events) == 3:
                self._layouts.learn(data, events, self._known)
        except Http2Error as error:
            self._layouts.by_size.clear()
            error.events = events
            self._error = error
            self.outbox.fail(error.code, error.message)
            raise
        return events

    def _frames(self, data: bytes, events: list[Event]) -> None:
        at = self._data_part(data, 0, events) if self._data_left else 0
        size = len(data)
        while size - at >= HEAD:
            word, flags, number = unpack_head(data, at)
            number &= MAX_NUMBER
            kind = word & 0xFF
            length = word >> 8
            start = at + HEAD
            stop = start + length
            if (self._expected != _ANY or length > self._max_frame) and not self._is_allowed(
                kind, length, number, data
            ):
                self._keep(data, size + 1)
                return
            if kind == DATA:
                if flags & PADDED and length and start == size:
                    break  # the length of the padding has not arrived yet
                at = self._on_data(flags, number, length, data, start, events)
            elif stop > size:
                self._keep(data[at:], HEAD + length)
                return
            else:
                if kind == HEADERS and flags & _HEADERS_FORM == END_HEADERS:
                    self._on_block(number, data[start:stop], flags & END_STREAM, events)
                else:
                    self._on_frame(kind, flags, number, data[start:stop], events)
                at = stop
        if at < size:
            self._keep(data[at:], HEAD)

    def _on_frame(self, kind: int, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        if kind == HEADERS:
            self._on_headers(flags, number, payload, events)
        elif kind == CONTINUATION:
            self._on_continuation(flags, number, payload, events)
        elif kind == SETTINGS:
            self._on_settings(flags, number, payload)
        elif kind in control.HANDLERS:  # frames of unknown types must be ignored
            control.HANDLERS[kind](self.outbox, flags, number, payload, events)

    def _keep(self, rest: bytes, needed: int) -> None:
        self._kept.append(rest)
        self._kept_size = len(rest)
        self._needed = needed

    def _is_allowed(self, kind: int, length: int, number: int, data: bytes) -> bool:
        """Raise if the frame violates the protocol.

        Returns False if this is not HTTP/2 but an HTTP/1.1 status line that must arrive completely to be reported.
        """
        if self._expected == SETTINGS and kind != SETTINGS:
            if data[:5] == b"HTTP/" and b"\n" not in data and len(data) < _MAX_STATUS_LINE:
                return False
            raise _not_http2(data, kind)
        if length > self._max_frame:
            raise Http2Error(
                FRAME_SIZE_ERROR,
                f"the server sent a frame ({kind_name(kind)}) of {length} bytes, but at most {self._max_frame} are allowed",
            )
        if self._expected == CONTINUATION and (kind != CONTINUATION or number != self._expected_stream):
            raise Http2Error(
                PROTOCOL_ERROR,
                f"the server sent {kind_name(kind)} on stream {number} "
                f"inside the headers of stream {self._expected_stream}",
            )
        return True

    # --- DATA ---

    def _on_data(self, flags: int, number: int, length: int, data: bytes, start: int, events: list[Event]) -> int:
        """Handle a DATA frame; return the position in `data` where it, or the received part of it, ends."""
        self._received += length
        if self._received > self._half:
            self._top_up()
        stream = self._streams.get(number)
        if stream is None:
            control.check_was_open(self.outbox, DATA, number)
        elif not stream.has_headers:
            control.fail_stream(
                self.outbox, stream, PROTOCOL_ERROR, "the server sent a body before its headers", events
            )
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
                self.outbox.finish(stream)
            elif length:
                events.append(Data(number, data[start:stop], False))
        return stop

    def _top_up(self) -> None:
        if self._received > self._window:
            raise Http2Error(FLOW_CONTROL_ERROR, "the server sent more than the connection's window allows")
        self.outbox.put_urgent(frames.window_update(0, self._received))
        self._received = 0

    def _top_up_stream(self, stream: OutgoingStream, events: list[Event]) -> OutgoingStream | None:
        """Top up the stream's window; return the stream, or None if it had to be reset."""
        if stream.received > self._window:
            message = "the server sent more than the stream's window allows"
            control.fail_stream(self.outbox, stream, FLOW_CONTROL_ERROR, message, events)
            return None
        self.outbox.put_urgent(frames.window_update(stream.number, stream.received))
        stream.received = 0
        return stream

    def _data_head(self, flags: int, number: int, length: int, data: bytes, start: int, events: list[Event]) -> int:
        """Start on a DATA frame that is padded or has not arrived completely."""
        padding = 0
        if flags & PADDED:
            padding = _padding(DATA, length, data[start] if length else 0)
            length -= 1
            start += 1
        self._data_stream, self._data_flags, self._data_left, self._data_padding = number, flags, length, padding
        return self._data_part(data, start, events)

    def _data_part(self, data: bytes, at: int, events: list[Event]) -> int:
        """Pass on the received part of the current DATA frame; report END_STREAM once the frame is complete."""
        available = min(len(data) - at, self._data_left)
        body = min(available, max(self._data_left - self._data_padding, 0))
        self._data_left -= available
        end = not self._data_left and self._data_flags & END_STREAM == END_STREAM
        stream = self._streams.get(self._data_stream)
        if stream is not None and (body or end):
            events.append(Data(self._data_stream, data[at : at + body], end))
            if end:
                self.outbox.finish(stream)
        return at + available

    # --- headers ---

    def _on_headers(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        start, stop = 0, len(payload)
        if flags & PADDED:
            stop -= _padding(HEADERS, stop, payload[0] if payload else 0)
            start = 1
        if flags & PRIORITIZED:
            start += 5
            if start > stop:
                raise Http2Error(FRAME_SIZE_ERROR, "the server sent HEADERS too short for their priority field")
        if flags & END_HEADERS:
            self._on_block(number, payload[start:stop], flags & END_STREAM, events)
        else:
            if number not in self._streams:
                control.check_was_open(self.outbox, HEADERS, number)
            self._block.append(payload[start:stop])
            self._block_flags = flags
            self._expected, self._expected_stream = CONTINUATION, number

    def _on_continuation(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        if self._expected != CONTINUATION:
            raise Http2Error(
                PROTOCOL_ERROR, f"the server sent CONTINUATION on stream {number} without HEADERS before it"
            )
        self._block.append(payload)
        size = sum(map(len, self._block))
        if len(self._block) > _MAX_CONTINUATIONS or size > self._max_list * _BLOCK_FACTOR:
            raise Http2Error(
                frames.ENHANCE_YOUR_CALM,
                f"the server's headers are too long: {size} bytes in {len(self._block)} frames so far",
            )
        if flags & END_HEADERS:
            self._expected = _ANY
            raw = b"".join(self._block)
            self._block.clear()
            self._on_block(number, raw, self._block_flags & END_STREAM, events)

    def _on_block(self, number: int, raw: bytes, end: int, events: list[Event]) -> None:
        block = self._known.get(raw)
        if block is None:
            if len(raw) > self._max_list * _BLOCK_FACTOR:
                raise Http2Error(frames.ENHANCE_YOUR_CALM, f"the server sent a header block of {len(raw)} bytes")
            self._layouts.by_size.clear()
            try:
                block = self._reader.read(raw)
            except HpackError as error:
                raise Http2Error(
                    frames.COMPRESSION_ERROR, f"the server sent headers that cannot be decoded: {error}"
                ) from None
        stream = self._streams.get(number)
        if stream is None:
            control.check_was_open(self.outbox, HEADERS, number)
        elif block.fault:
            control.fail_stream(self.outbox, stream, block.code, block.fault, events)
        elif stream.has_headers:
            if block.status or not end:
                what = "a second :status" if block.status else "trailers that do not end the stream"
                control.fail_stream(self.outbox, stream, PROTOCOL_ERROR, "the server sent " + what, events)
            else:
                events.append(Headers(number, block.headers, True))
                self.outbox.finish(stream)
        elif block.status >= 200:
            stream.has_headers = True
            events.append(Headers(number, block.headers, end == END_STREAM))
            if end:
                self.outbox.finish(stream)
        elif not block.status or end or block.status == 101:
            what = "headers without a :status" if not block.status else f"status {block.status} as a final response"
            control.fail_stream(self.outbox, stream, PROTOCOL_ERROR, "the server sent " + what, events)

    # --- SETTINGS ---

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        is_ack = control.on_settings(self.outbox, flags, number, payload)
        if is_ack and not self.settings_received:
            raise Http2Error(PROTOCOL_ERROR, "the server acknowledged our SETTINGS before it sent its own")
        self.settings_received = True
        if self._expected == SETTINGS:
            self._expected = _ANY


def _padding(kind: int, length: int, padding: int) -> int:
    if not length:
        raise Http2Error(FRAME_SIZE_ERROR, f"the server sent an empty {kind_name(kind)} that is flagged as padded")
    if padding >= length:
        raise Http2Error(PROTOCOL_ERROR, f"the server sent {kind_name(kind)} with more padding than the frame can hold")
    return padding


def _not_http2(data: bytes, kind: int = SETTINGS) -> Http2Error:
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
