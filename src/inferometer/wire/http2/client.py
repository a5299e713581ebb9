"""One HTTP/2 connection, the client's side: what was read becomes events, what is asked for becomes bytes to write.

    client.start()                      then, whenever the socket is writable: write client.take() until it is empty
    stream = client.request(block, body)
    for event in client.feed(data): ... then take() again: pings and windows want their answers

Rules:

- `feed` raises Http2Error for what breaks the connection; `take` then gives the GOAWAY to send before closing. What breaks
  one stream only is a Reset.
- Frames of streams that are over are counted and decoded as far as the connection's state needs it, and otherwise ignored.
- Informational answers (1xx) are skipped. A body's length is what END_STREAM says; content-length is not checked.
- Whoever calls `request` minds `max_streams`. When END_STREAM comes before all of the request was sent, the rest of it is
  dropped and the stream reset.
- Nothing is kept of a body: DATA is passed on as it comes, part of a frame or whole, and the windows that we give are topped
  up when half of them is used.
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
_SHAPE = END_HEADERS | PADDED | PRIORITIZED
_MAX_STATUS_LINE = 300
_MAX_CONTINUATIONS = 64
_BLOCK_FACTOR = 4
"""A header block may have so many times the bytes that a header list may: beyond it, it is not even decoded."""


class Http2Client:
    __slots__ = (
        *("_block", "_block_flags", "_data_flags", "_data_left", "_data_padding", "_data_stream", "_error"),
        *("_expects", "_expects_on", "_half", "_kept", "_kept_size", "_known", "_layouts", "_max_frame"),
        *("_max_list", "_needs", "_reader", "_received", "_streams", "_window", "outbox", "settings_received"),
    )

    def __init__(self, window: int = MAX_NUMBER, max_frame: int = 1 << 20, max_header_list: int = 64 << 10) -> None:
        """`window`: bytes that the server may send ahead of our updates, on a stream and in all."""
        if not frames.DEFAULT_WINDOW <= window <= MAX_NUMBER:
            raise ValueError(f"a window of {window} bytes: it has to be within 65535 and 2147483647")
        if not MIN_MAX_FRAME <= max_frame <= frames.MAX_MAX_FRAME:
            raise ValueError(f"frames of {max_frame} bytes: it has to be within 16384 and 16777215")
        self.settings_received = False
        self.outbox = Outbox()
        """What is to be written. Its `is_closing`, `max_streams`, `request` and `take` are the same as here, without a detour."""
        self._streams = self.outbox.streams
        self._reader = HeaderReader(max_header_list)
        self._known = self._reader.known
        self._layouts = Layouts()
        self._max_list = max_header_list
        self._max_frame = max_frame
        self._window = window
        self._half = window // 2
        self._received = 0  # bytes of DATA that the connection's window was not yet topped up for
        self._error: Http2Error | None = None
        self._expects = SETTINGS  # the only kind of frame that may come next
        self._expects_on = 0  # and on which stream
        self._kept: list[bytes] = []  # the beginning of a frame that is not DATA
        self._kept_size = 0
        self._needs = 0  # bytes that it wants before it is looked at again
        self._data_stream = self._data_flags = 0  # the DATA frame that we are in,
        self._data_left = self._data_padding = 0  # what is still to come of it, and how much of that is padding
        self._block: list[bytes] = []  # a header block that waits for its CONTINUATION
        self._block_flags = 0

    # --- what is asked for -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Queue what a connection begins with."""
        settings = {
            frames.ENABLE_PUSH: 0,
            frames.INITIAL_WINDOW_SIZE: self._window,
            frames.MAX_FRAME_SIZE: self._max_frame,
            frames.MAX_HEADER_LIST_SIZE: self._max_list,
        }
        more = self._window - frames.DEFAULT_WINDOW
        self.outbox.hurry(frames.PREFACE + frames.settings(settings) + (frames.window_update(0, more) if more else b""))

    def request(self, block: bytes, body: bytes, end: bool = True) -> int:
        """Queue a request; the stream's id. Not once the connection `is_closing`."""
        return self.outbox.request(block, body, end)

    def send(self, stream: int, body: bytes, end: bool) -> None:
        """Queue more of a request's body. Nothing happens where the stream is over by now."""
        self.outbox.send(stream, body, end)

    def reset(self, stream: int, code: int = CANCEL) -> None:
        """Give a stream up. Nothing happens where it is over by now."""
        there = self._streams.get(stream)
        if there is not None:
            self.outbox.reset(there, code)

    def take(self, limit: int = 1 << 20) -> bytes:
        """The next bytes to write, at most about `limit`; b"": nothing now."""
        return self.outbox.take(limit)

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    @property
    def max_streams(self) -> int:
        """Streams that the server lets us have open; a very large number while it has set no limit."""
        return self.outbox.max_streams

    @property
    def is_closing(self) -> bool:
        """The server goes away, broke the connection, or the ids ran out: no new request."""
        return self.outbox.is_closing

    @property
    def blocked(self) -> int:
        """Bytes of bodies that wait for the server's windows or their turn."""
        return self.outbox.blocked

    # --- what was read -----------------------------------------------------------------------------------------------

    @property
    def mid_frame(self) -> bool:
        """What was read so far ends inside of a frame, or of a header block."""
        return bool(self._kept or self._data_left or self._block)

    def eof(self) -> None:
        """The server closed. Raises Http2Error where it did so in the middle of a frame."""
        if self._error is None and self.mid_frame:
            kept = b"".join(self._kept)
            self._error = (
                _not_http2(kept)
                if kept[:5] == b"HTTP/" or (is_tls(kept) and not self.settings_received)
                else Http2Error(PROTOCOL_ERROR, "the server closed the connection in the middle of a frame")
            )
            self.outbox.fail(self._error.code, self._error.message)
            raise self._error

    def whole(self, data: bytes) -> tuple[int, bytes, Layout] | None:
        """The stream's number, the body and what the headers are, where `data` is all of an answer and looks like one before.
        None: `feed` it."""
        layout = self._layouts.by_size.get(len(data))
        if layout is None or self._kept or self._data_left or self._expects != _ANY:
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
            if stream is None or stream.is_answered or stream.queue or not stream.is_ended or received > self._half:
                return None
            self._received = received
            del self._streams[number]
            return number, body, layout
        return None

    def feed(self, data: bytes) -> list[Event]:
        """What `data` says, split anywhere. Raises Http2Error, which has the events that came before."""
        if self._error is not None:
            raise self._error
        events: list[Event] = []
        try:
            if self._kept:
                self._kept.append(data)
                self._kept_size += len(data)
                if self._kept_size < self._needs:
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
            if (self._expects != _ANY or length > self._max_frame) and not self._may_come(kind, length, number, data):
                self._keep(data, size + 1)
                return
            if kind == DATA:
                if flags & PADDED and length and start == size:
                    break  # how much padding there is comes next
                at = self._on_data(flags, number, length, data, start, events)
            elif stop > size:
                self._keep(data[at:], HEAD + length)
                return
            else:
                if kind == HEADERS and flags & _SHAPE == END_HEADERS:
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
        elif kind in control.HANDLERS:  # what we do not know is to be ignored
            control.HANDLERS[kind](self.outbox, flags, number, payload, events)

    def _keep(self, rest: bytes, needs: int) -> None:
        self._kept.append(rest)
        self._kept_size = len(rest)
        self._needs = needs

    def _may_come(self, kind: int, length: int, number: int, data: bytes) -> bool:
        """False: this is not HTTP/2, but what it is cannot be said before more of it has come."""
        if self._expects == SETTINGS and kind != SETTINGS:
            if data[:5] == b"HTTP/" and b"\n" not in data and len(data) < _MAX_STATUS_LINE:
                return False
            raise _not_http2(data, kind)
        if length > self._max_frame:
            raise Http2Error(
                FRAME_SIZE_ERROR,
                f"the server sent a frame ({kind_name(kind)}) of {length} bytes where {self._max_frame} are allowed",
            )
        if self._expects == CONTINUATION and (kind != CONTINUATION or number != self._expects_on):
            raise Http2Error(
                PROTOCOL_ERROR,
                f"the server sent {kind_name(kind)} on stream {number} inside of the headers of stream {self._expects_on}",
            )
        return True

    # --- DATA ---

    def _on_data(self, flags: int, number: int, length: int, data: bytes, start: int, events: list[Event]) -> int:
        """Where the frame's part of `data` ends."""
        self._received += length
        if self._received > self._half:
            self._top_up()
        stream = self._streams.get(number)
        if stream is None:
            control.check_closed(self.outbox, DATA, number)
        elif not stream.is_answered:
            control.give_up(self.outbox, stream, PROTOCOL_ERROR, "the server sent a body before its headers", events)
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
            raise Http2Error(FLOW_CONTROL_ERROR, "the server sent more than the connection's window")
        self.outbox.hurry(frames.window_update(0, self._received))
        self._received = 0

    def _top_up_stream(self, stream: OutgoingStream, events: list[Event]) -> OutgoingStream | None:
        """The stream, unless this was the end of it."""
        if stream.received > self._window:
            message = "the server sent more than the stream's window"
            control.give_up(self.outbox, stream, FLOW_CONTROL_ERROR, message, events)
            return None
        self.outbox.hurry(frames.window_update(stream.number, stream.received))
        stream.received = 0
        return stream

    def _data_head(self, flags: int, number: int, length: int, data: bytes, start: int, events: list[Event]) -> int:
        """A DATA frame that is padded or has not come whole."""
        padding = 0
        if flags & PADDED:
            padding = _padding(DATA, length, data[start] if length else 0)
            length -= 1
            start += 1
        self._data_stream, self._data_flags, self._data_left, self._data_padding = number, flags, length, padding
        return self._data_part(data, start, events)

    def _data_part(self, data: bytes, at: int, events: list[Event]) -> int:
        """Pass on what there is of the DATA frame that we are in; END_STREAM when all of it is there."""
        there = min(len(data) - at, self._data_left)
        body = min(there, max(self._data_left - self._data_padding, 0))
        self._data_left -= there
        end = not self._data_left and self._data_flags & END_STREAM == END_STREAM
        stream = self._streams.get(self._data_stream)
        if stream is not None and (body or end):
            events.append(Data(self._data_stream, data[at : at + body], end))
            if end:
                self.outbox.finish(stream)
        return at + there

    # --- headers ---

    def _on_headers(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        start, stop = 0, len(payload)
        if flags & PADDED:
            stop -= _padding(HEADERS, stop, payload[0] if payload else 0)
            start = 1
        if flags & PRIORITIZED:
            start += 5
            if start > stop:
                raise Http2Error(FRAME_SIZE_ERROR, "the server sent HEADERS without room for the priority in it")
        if flags & END_HEADERS:
            self._on_block(number, payload[start:stop], flags & END_STREAM, events)
        else:
            if number not in self._streams:
                control.check_closed(self.outbox, HEADERS, number)
            self._block.append(payload[start:stop])
            self._block_flags = flags
            self._expects, self._expects_on = CONTINUATION, number

    def _on_continuation(self, flags: int, number: int, payload: bytes, events: list[Event]) -> None:
        if self._expects != CONTINUATION:
            raise Http2Error(
                PROTOCOL_ERROR, f"the server sent CONTINUATION on stream {number} without HEADERS before it"
            )
        self._block.append(payload)
        size = sum(map(len, self._block))
        if len(self._block) > _MAX_CONTINUATIONS or size > self._max_list * _BLOCK_FACTOR:
            raise Http2Error(
                frames.ENHANCE_YOUR_CALM,
                f"the server's headers do not end: {size} bytes in {len(self._block)} frames so far",
            )
        if flags & END_HEADERS:
            self._expects = _ANY
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
                    frames.COMPRESSION_ERROR, f"the server sent headers that cannot be read: {error}"
                ) from None
        stream = self._streams.get(number)
        if stream is None:
            control.check_closed(self.outbox, HEADERS, number)
        elif block.fault:
            control.give_up(self.outbox, stream, block.code, block.fault, events)
        elif stream.is_answered:
            if block.status or not end:
                what = "a second :status" if block.status else "trailers that do not end the answer"
                control.give_up(self.outbox, stream, PROTOCOL_ERROR, "the server sent " + what, events)
            else:
                events.append(Headers(number, block.headers, True))
                self.outbox.finish(stream)
        elif block.status >= 200:
            stream.is_answered = True
            events.append(Headers(number, block.headers, end == END_STREAM))
            if end:
                self.outbox.finish(stream)
        elif not block.status or end or block.status == 101:
            what = "headers without a :status" if not block.status else f"a status {block.status} as its answer"
            control.give_up(self.outbox, stream, PROTOCOL_ERROR, "the server sent " + what, events)

    # --- the rest ---

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        is_ack = control.on_settings(self.outbox, flags, number, payload)
        if is_ack and not self.settings_received:
            raise Http2Error(PROTOCOL_ERROR, "the server acknowledged our SETTINGS before it sent its own")
        self.settings_received = True
        if self._expects == SETTINGS:
            self._expects = _ANY


def _padding(kind: int, length: int, padding: int) -> int:
    if not length:
        raise Http2Error(FRAME_SIZE_ERROR, f"the server sent an empty {kind_name(kind)} that claims to be padded")
    if padding >= length:
        raise Http2Error(PROTOCOL_ERROR, f"the server sent {kind_name(kind)} with more padding than there is frame")
    return padding


def _not_http2(data: bytes, kind: int = SETTINGS) -> Http2Error:
    """What it is instead, as far as the first bytes say."""
    if data[:5] == b"HTTP/":
        line = bounded(data.partition(b"\n")[0].decode("latin-1"))
        return Http2Error(PROTOCOL_ERROR, f"the server does not speak HTTP/2: it answered '{line}'")
    if is_tls(data):
        return Http2Error(PROTOCOL_ERROR, "the server does not speak HTTP/2 in the clear: it answered with TLS")
    return Http2Error(
        PROTOCOL_ERROR,
        f"the server does not speak HTTP/2: it began with {kind_name(kind)} where SETTINGS has to be: {data[:16]!r}",
    )
