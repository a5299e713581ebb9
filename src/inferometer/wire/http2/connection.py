"""The receiving half that client and server share: splits received bytes into frames and passes them to the handlers.

The roles override four methods: `_on_block` and `_on_data` for what a header block and a DATA frame mean, `_on_body` for a piece
of a body, and `_check_first` for a peer that does not speak HTTP/2.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from inferometer.wire.http2 import control, frames
from inferometer.wire.http2.events import Http2Error
from inferometer.wire.http2.fields import Block, HeaderReader
from inferometer.wire.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEADERS,
    MAX_NUMBER,
    PADDED,
    SETTINGS,
    kind_name,
    unpack_head,
)
from inferometer.wire.http2.hpack import HpackError
from inferometer.wire.http2.outbox import Outbox, OutgoingStream

E = TypeVar("E")
ANY = -1
_HEADERS_FORM = END_HEADERS | PADDED | frames.PRIORITIZED
_MAX_CONTINUATIONS = 64
_BLOCK_FACTOR = 4
"""A header block may be this many times as large as the limit on header lists; a larger block is not even decoded."""


class Connection(Outbox, Generic[E]):
    """The state of one connection: what is being received, and (in the Outbox) the streams and what is to be sent."""

    __slots__ = (
        *("_block", "_block_flags", "_data_flags", "_data_left", "_data_padding", "_data_stream", "_error", "_expected"),
        *("_expected_stream", "_handlers", "_has_preface", "_kept", "_kept_size", "_known", "_max_frame", "_max_list"),
        *("_needed", "_reader", "_received", "_usual", "settings_received"),
    )  # fmt: skip

    def __init__(
        self, reader: HeaderReader, handlers: dict[int, Callable[..., None]], max_frame: int, is_server: bool
    ) -> None:
        super().__init__(reader.peer, is_server)
        if not frames.MIN_MAX_FRAME <= max_frame <= frames.MAX_MAX_FRAME:
            raise ValueError(f"max_frame must be between 16384 and 16777215 bytes (got {max_frame})")
        self.settings_received = False
        self._handlers = handlers
        self._reader = reader
        self._known = reader.known
        self._max_list = reader.limit
        self._max_frame = max_frame
        self._error: Http2Error | None = None
        self._has_preface = not is_server  # the client's preface has arrived
        self._received = 0  # bytes of DATA for which the connection's window was not yet topped up
        self._expected = SETTINGS  # the only kind of frame that may come next, or ANY
        self._expected_stream = 0  # and the stream that it must belong to
        self._kept: list[bytes] = []  # the beginning of an incomplete frame other than DATA
        self._kept_size = 0
        self._needed = 0  # number of bytes that must be there before it is parsed again
        self._data_stream = self._data_flags = 0  # the DATA frame that is being received,
        self._data_left = self._data_padding = 0  # the bytes of it still to come, and how many of them are padding
        self._block: list[bytes] = []  # a header block that still lacks a CONTINUATION
        self._block_flags = 0
        self._usual = -1  # client: length and kind of the HEADERS frame that responses usually begin with

    def _begin(self, preface: bytes, window: int, settings: dict[int, int]) -> None:
        """Queue our settings, and an update that opens the connection's window."""
        settings |= {frames.MAX_FRAME_SIZE: self._max_frame, frames.MAX_HEADER_LIST_SIZE: self._max_list}
        more = window - frames.DEFAULT_WINDOW
        self.put_urgent(preface + frames.settings(settings) + (frames.window_update(0, more) if more else b""))

    @property
    def mid_frame(self) -> bool:
        """Whether the bytes received so far end inside a frame or a header block."""
        return bool(self._kept or self._data_left or self._block)

    # --- received bytes ----------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> list[E]:
        """Return the events of `data`, which may be split anywhere.

        Raises Http2Error, whose `events` are those that precede the error.
        """
        if self._error is not None:
            raise self._error
        events: list[E] = []
        try:
            if self._kept:
                data = self._join(data)
            if not self._has_preface:
                data = self._without_preface(data)
            self._frames(data, events)
        except Http2Error as error:
            error.events = events
            self._break(error)
            raise
        return events

    def fail(self, code: int, message: str) -> None:
        """Give up the connection for a reason of the caller's: drop everything that waits and send a GOAWAY."""
        if self._error is None:
            self._break(Http2Error(code, message))

    def _break(self, error: Http2Error) -> None:
        self._error = error
        self._give_up(error.code, error.message)

    def _join(self, data: bytes) -> bytes:
        """Return the incomplete frame together with what has arrived now; b"" if it is still too short to be parsed."""
        self._kept.append(data)
        self._kept_size += len(data)
        if self._kept_size < self._needed:
            return b""
        data = b"".join(self._kept)
        self._kept.clear()
        return data

    def _without_preface(self, data: bytes) -> bytes:
        """Server: what follows the client's preface; b"" as long as it has not arrived completely."""
        raise NotImplementedError

    # --- frames ------------------------------------------------------------------------------------------------------

    def _frames(self, data: bytes, events: list[Any]) -> None:
        at = self._data_part(data, 0, events) if self._data_left else 0
        size = len(data)
        while size - at >= HEAD:
            word, flags, number = unpack_head(data, at)
            number &= MAX_NUMBER
            kind = word & 0xFF
            length = word >> 8
            start = at + HEAD
            stop = start + length
            if (self._expected != ANY or length > self._max_frame) and not self._is_allowed(kind, length, number, data):
                self._keep(data, size + 1)
                return
            if word == self._usual and flags == END_HEADERS:
                after = self._on_usual(number, data, start, events)
                if after:
                    at = after
                    continue
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

    def _on_frame(self, kind: int, flags: int, number: int, payload: bytes, events: list[Any]) -> None:
        handler = self._handlers.get(kind)
        if handler is not None:
            handler(self, flags, number, payload, events)
        elif kind == HEADERS:
            self._on_headers(flags, number, payload, events)
        elif kind == CONTINUATION:
            self._on_continuation(flags, number, payload, events)
        elif kind == SETTINGS:  # frames of unknown types must be ignored
            self._on_settings(flags, number, payload)

    def _on_usual(self, number: int, data: bytes, start: int, events: list[Any]) -> int:
        """Handle a complete response of the usual form; return where it ends, or 0 if `data` has another one."""
        raise NotImplementedError

    def _keep(self, rest: bytes, needed: int) -> None:
        self._kept.append(rest)
        self._kept_size = len(rest)
        self._needed = needed

    def _is_allowed(self, kind: int, length: int, number: int, data: bytes) -> bool:
        """Raise if the frame violates the protocol. Returns False if more bytes are needed to tell."""
        peer = self.peer
        if self._expected == SETTINGS and kind != SETTINGS:
            return self._check_first(kind, data)
        if length > self._max_frame:
            raise Http2Error(
                frames.FRAME_SIZE_ERROR,
                f"{peer} sent a frame ({kind_name(kind)}) of {length} bytes, but at most {self._max_frame} are allowed",
            )
        if self._expected == CONTINUATION and (kind != CONTINUATION or number != self._expected_stream):
            raise Http2Error(
                frames.PROTOCOL_ERROR,
                f"{peer} sent {kind_name(kind)} on stream {number} inside the headers of stream {self._expected_stream}",
            )
        return True

    def _check_first(self, kind: int, data: bytes) -> bool:
        """Raise for a first frame that is not SETTINGS; return False if more bytes are needed to describe it."""
        raise NotImplementedError

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        is_ack = control.on_settings(self, flags, number, payload)
        if is_ack and not self.settings_received:
            raise Http2Error(frames.PROTOCOL_ERROR, f"{self.peer} acknowledged our SETTINGS before it sent its own")
        self.settings_received = True
        if self._expected == SETTINGS:
            self._expected = ANY

    # --- DATA --------------------------------------------------------------------------------------------------------

    def _on_data(self, flags: int, number: int, length: int, data: bytes, start: int, events: list[Any]) -> int:
        """Handle a DATA frame; return the position in `data` where it, or the received part of it, ends."""
        raise NotImplementedError

    def _on_body(
        self, stream: OutgoingStream, data: bytes, start: int, stop: int, end: bool, events: list[Any]
    ) -> None:
        """Handle a piece of a stream's body."""
        raise NotImplementedError

    def _data_head(self, flags: int, number: int, length: int, data: bytes, start: int, events: list[Any]) -> int:
        """Start on a DATA frame that is padded or has not arrived completely."""
        padding = 0
        if flags & PADDED:
            padding = self._padding(DATA, length, data[start] if length else 0)
            length -= 1
            start += 1
        self._data_stream, self._data_flags, self._data_left, self._data_padding = number, flags, length, padding
        return self._data_part(data, start, events)

    def _data_part(self, data: bytes, at: int, events: list[Any]) -> int:
        """Pass on the received part of the current DATA frame; report END_STREAM once the frame is complete."""
        available = min(len(data) - at, self._data_left)
        body = min(available, max(self._data_left - self._data_padding, 0))
        self._data_left -= available
        end = not self._data_left and self._data_flags & END_STREAM == END_STREAM
        stream = self.streams.get(self._data_stream)
        if stream is not None and (body or end):
            self._on_body(stream, data, at, at + body, end, events)
        return at + available

    def _padding(self, kind: int, length: int, padding: int) -> int:
        peer = self.peer
        if not length:
            raise Http2Error(
                frames.FRAME_SIZE_ERROR, f"{peer} sent an empty {kind_name(kind)} that is flagged as padded"
            )
        if padding >= length:
            raise Http2Error(
                frames.PROTOCOL_ERROR, f"{peer} sent {kind_name(kind)} with more padding than the frame can hold"
            )
        return padding

    # --- headers -----------------------------------------------------------------------------------------------------

    def _on_headers(self, flags: int, number: int, payload: bytes, events: list[Any]) -> None:
        start, stop = 0, len(payload)
        if flags & PADDED:
            stop -= self._padding(HEADERS, stop, payload[0] if payload else 0)
            start = 1
        if flags & frames.PRIORITIZED:
            start += 5
            if start > stop:
                raise Http2Error(
                    frames.FRAME_SIZE_ERROR, f"{self.peer} sent HEADERS too short for their priority field"
                )
        if flags & END_HEADERS:
            self._on_block(number, payload[start:stop], flags & END_STREAM, events)
        else:
            if number not in self.streams and not (self._is_server and number & 1 and number >= self.next):
                control.check_was_open(self, HEADERS, number)
            self._block.append(payload[start:stop])
            self._block_flags = flags
            self._expected, self._expected_stream = CONTINUATION, number

    def _on_continuation(self, flags: int, number: int, payload: bytes, events: list[Any]) -> None:
        peer = self.peer
        if self._expected != CONTINUATION:
            raise Http2Error(
                frames.PROTOCOL_ERROR, f"{peer} sent CONTINUATION on stream {number} without HEADERS before it"
            )
        self._block.append(payload)
        size = sum(map(len, self._block))
        if len(self._block) > _MAX_CONTINUATIONS or size > self._max_list * _BLOCK_FACTOR:
            raise Http2Error(
                frames.ENHANCE_YOUR_CALM,
                f"{peer}'s headers are too long: {size} bytes in {len(self._block)} frames so far",
            )
        if flags & END_HEADERS:
            self._expected = ANY
            raw = b"".join(self._block)
            self._block.clear()
            self._on_block(number, raw, self._block_flags & END_STREAM, events)

    def _on_block(self, number: int, raw: bytes, end: int, events: list[Any]) -> None:
        """Handle a complete header block; `end` is not 0 if it ends the stream."""
        raise NotImplementedError

    def _read_block(self, raw: bytes) -> Block:
        """Decode and validate a block that is not among the known ones."""
        peer = self.peer
        if len(raw) > self._max_list * _BLOCK_FACTOR:
            raise Http2Error(frames.ENHANCE_YOUR_CALM, f"{peer} sent a header block of {len(raw)} bytes")
        try:
            return self._reader.read(raw)
        except HpackError as error:
            raise Http2Error(frames.COMPRESSION_ERROR, f"{peer} sent headers that cannot be decoded: {error}") from None
