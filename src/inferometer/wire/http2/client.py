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
from inferometer.wire.http2.connection import ANY, Connection
from inferometer.wire.http2.events import Data, Event, Headers, Http2Error
from inferometer.wire.http2.fast_path import Layout, Layouts
from inferometer.wire.http2.fields import HeaderReader, validate_response
from inferometer.wire.http2.frames import (
    CANCEL,
    DATA,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    HEADERS,
    MAX_NUMBER,
    PADDED,
    PROTOCOL_ERROR,
    SETTINGS,
    kind_name,
)
from inferometer.wire.http2.outbox import Outbox, OutgoingStream

_MAX_STATUS_LINE = 300


class Http2Client(Connection):
    """The state of one connection. See the module's docstring for how to drive it."""

    __slots__ = ("_half", "_layouts", "_received", "_window")

    def __init__(self, window: int = MAX_NUMBER, max_frame: int = 1 << 20, max_header_list: int = 64 << 10) -> None:
        """`window`: bytes that the server may send before our next update, per stream and on the whole connection."""
        if not frames.DEFAULT_WINDOW <= window <= MAX_NUMBER:
            raise ValueError(f"window must be between 65535 and 2147483647 bytes (got {window})")
        reader = HeaderReader(max_header_list, "the server", validate_response)
        super().__init__(Outbox("the server"), reader, control.CLIENT_HANDLERS, max_frame)
        self._layouts = Layouts()
        self._window = window
        self._half = window // 2
        self._received = 0  # bytes of DATA for which the connection's window was not yet topped up

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
        if layout is None or self._kept or self._data_left or self._expected != ANY:
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
                data = self._join(data)
            self._frames(data, events)
            if len(events) == 3:
                self._layouts.learn(data, events, self._known)
        except Http2Error as error:
            self._layouts.by_size.clear()
            self._break(error, events)
            raise
        return events

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

    def _on_data_part(self, number: int, data: bytes, start: int, stop: int, end: bool, events: list[Event]) -> None:
        stream = self._streams.get(number)
        if stream is not None:
            events.append(Data(number, data[start:stop], end))
            if end:
                self.outbox.finish(stream)

    # --- headers ---

    def _check_id(self, number: int) -> None:
        control.check_was_open(self.outbox, HEADERS, number)

    def _on_block(self, number: int, raw: bytes, end: int, events: list[Event]) -> None:
        block = self._known.get(raw)
        if block is None:
            self._layouts.by_size.clear()
            block = self._read_block(raw)
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
