"""The bytes to send: the open streams, the server's flow-control windows, and the order of frames.

There are three queues, emptied in this order:

    urgent    replies to PING, updates of our windows, GOAWAY: they depend on nothing else
    ordered   HEADERS with small bodies, RST_STREAM and the acknowledgement of SETTINGS. The order matters: a stream is opened
              before it is reset, and frames made under the old settings precede the acknowledgement of the new ones
    ready     streams with bodies that are large or had to wait; they take turns, one frame each, as far as the windows allow

A body in `ready` is copied only once, into the bytes that `take` returns.
"""

from collections import OrderedDict, deque

import msgspec

from inferometer.wire.http2 import frames
from inferometer.wire.http2.events import Http2Error
from inferometer.wire.http2.frames import DATA, DEFAULT_TABLE, DEFAULT_WINDOW, MAX_NUMBER, MIN_MAX_FRAME, head
from inferometer.wire.http2.hpack import NO_TABLE

_TURN = 64 << 10
"""Maximum number of bytes per turn of a stream while others wait, even if the server allows larger frames."""
_SLIVER = 1 << 10
"""Remaining room in a take that is too small to be worth another frame."""
_MAX_REPLIES = 10_000
"""Maximum number of replies waiting to be sent. A server that demands more without reading any is misbehaving."""


class OutgoingStream(msgspec.Struct, gc=False):
    """An open stream."""

    number: int
    window: int
    """Bytes of body that the server still accepts; negative after it lowered INITIAL_WINDOW_SIZE."""
    is_ended: bool
    """Whether the end of the request body was passed in (part of the body may still be in the queue)."""
    queue: deque[memoryview] | None = None
    """Parts of the body that wait to be sent; none of them is empty."""
    has_headers: bool = False
    """Whether the headers of the response have arrived."""
    received: int = 0
    """Bytes of the response for which our window was not yet topped up."""


class Outbox:
    """The queues of one connection and the state that decides what may be sent."""

    __slots__ = (
        *("_has_table", "_ordered", "_ordered_size", "_prefix", "_ready", "_urgent", "_window"),
        *("blocked", "initial_window", "is_closing", "max_frame", "max_streams", "next", "streams"),
    )

    def __init__(self) -> None:
        self.streams: dict[int, OutgoingStream] = {}
        self.next = 1
        self.is_closing = False
        self.blocked = 0
        self.max_streams = MAX_NUMBER
        self.max_frame = MIN_MAX_FRAME
        self.initial_window = DEFAULT_WINDOW
        self._window = DEFAULT_WINDOW  # the connection's window, as opposed to those of the streams
        self._urgent: list[bytes] = []
        self._ordered: deque[bytes] = deque()
        self._ordered_size = 0
        self._ready: OrderedDict[int, OutgoingStream] = OrderedDict()
        self._has_table = True  # the server assumes that our encoder has a dynamic table of the default size
        self._prefix = b""  # bytes that the next header block must start with

    # --- requests ---

    def request(self, block: bytes, body: bytes, end: bool) -> int:
        if self.is_closing:
            raise RuntimeError("cannot start a request on a connection that is closing")
        number = self.next
        self.next = number + 2
        if number + 2 > MAX_NUMBER:
            self.is_closing = True
        if self._prefix:
            block = self._prefix + block
            self._prefix = b""
        size, length = len(body), len(block)
        if (
            0 < size <= MIN_MAX_FRAME
            and length <= MIN_MAX_FRAME
            and size <= self._window
            and size <= self.initial_window
            and not self._ready
        ):
            piece = b"".join((head(length << 8 | 1, 4, number), block, head(size << 8, end, number), body))
            self._window -= size
            self.streams[number] = OutgoingStream(number, self.initial_window - size, end)
            self._ordered.append(piece)
            self._ordered_size += len(piece)
            return number
        stream = self.streams[number] = OutgoingStream(number, self.initial_window, is_ended=False)
        self.put(frames.headers(number, block, end and not size))
        if size:
            self._send_body(stream, body, end)
        else:
            stream.is_ended = end
        return number

    def send(self, number: int, body: bytes, end: bool) -> None:
        stream = self.streams.get(number)
        if stream is not None:
            if stream.is_ended:
                raise RuntimeError("the body of this stream has already ended")
            self._send_body(stream, body, end)
        elif not 0 < number < self.next or not number & 1:
            raise RuntimeError(f"stream {number} was never opened")

    def _send_body(self, stream: OutgoingStream, body: bytes, end: bool) -> None:
        size = len(body)
        stream.is_ended = end
        if stream.queue:
            self._enqueue(stream, body)
        elif not size:
            if end:
                self.put(head(DATA, frames.END_STREAM, stream.number))
        elif size <= MIN_MAX_FRAME and size <= self._window and size <= stream.window and not self._ready:
            self._window -= size
            stream.window -= size
            self.put(head(size << 8, end, stream.number) + body)
        else:
            self._enqueue(stream, body)

    def _enqueue(self, stream: OutgoingStream, body: bytes) -> None:
        if body:
            if stream.queue is None:
                stream.queue = deque()
            stream.queue.append(memoryview(body))
            self.blocked += len(body)
            self._mark_ready(stream)

    def _mark_ready(self, stream: OutgoingStream) -> None:
        if stream.window > 0 and stream.queue:
            self._ready[stream.number] = stream

    def put(self, piece: bytes) -> None:
        """Append to the ordered queue."""
        self._ordered.append(piece)
        self._ordered_size += len(piece)

    def put_urgent(self, piece: bytes) -> None:
        """Append to the urgent queue, which is sent first."""
        if len(self._urgent) >= _MAX_REPLIES:
            raise _flood()
        self._urgent.append(piece)

    def acknowledge(self) -> None:
        """Acknowledge SETTINGS that were applied."""
        if len(self._ordered) >= _MAX_REPLIES and self._ordered.count(frames.SETTINGS_ACK) >= _MAX_REPLIES:
            raise _flood()
        self.put(frames.SETTINGS_ACK)

    # --- the end of a stream ---

    def finish(self, stream: OutgoingStream) -> None:
        """Close a stream whose response is complete; drop the rest of the request, if any, and reset the stream then."""
        if stream.queue or not stream.is_ended:
            self.reset(stream, frames.NO_ERROR)
        else:
            del self.streams[stream.number]

    def reset(self, stream: OutgoingStream, code: int) -> None:
        self.drop(stream)
        self.put(frames.rst_stream(stream.number, code))

    def drop(self, stream: OutgoingStream) -> None:
        del self.streams[stream.number]
        if stream.queue:
            self.blocked -= sum(map(len, stream.queue))
            self._ready.pop(stream.number, None)

    def fail(self, code: int, message: str) -> None:
        """Give up the connection: drop everything that waits and send a GOAWAY."""
        self.is_closing = True
        self._ordered.clear()
        self._ready.clear()
        self._ordered_size = self.blocked = 0
        self._urgent.append(frames.goaway(code, message.encode()[:256]))

    # --- what the server allows ---

    def widen(self, increment: int) -> None:
        """Enlarge the connection's window."""
        self._window += increment
        if self._window > MAX_NUMBER:
            raise Http2Error(
                frames.FLOW_CONTROL_ERROR, "the server enlarged the connection's window beyond 2^31-1 bytes"
            )

    def widen_stream(self, stream: OutgoingStream, increment: int) -> bool:
        """Enlarge the window of a stream; return False if it exceeds the largest allowed window."""
        stream.window += increment
        if stream.window > MAX_NUMBER:
            return False
        if stream.queue:
            self._mark_ready(stream)
        return True

    def set_initial_window(self, size: int) -> None:
        difference = size - self.initial_window
        self.initial_window = size
        for stream in self.streams.values():
            if not self.widen_stream(stream, difference):
                raise Http2Error(
                    frames.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE {size} enlarges a window beyond 2^31-1 bytes"
                )
            if stream.window <= 0 and stream.queue:
                self._ready.pop(stream.number, None)

    def set_table_size(self, size: int) -> None:
        """Apply HEADER_TABLE_SIZE. An encoder must announce a smaller table; ours never uses one, so it announces 0."""
        if size < DEFAULT_TABLE and self._has_table:
            self._has_table = False
            self._prefix = NO_TABLE

    # --- sending ---

    @property
    def has_more(self) -> bool:
        """Whether `take` may return bytes (streams in `ready` may still be blocked by the connection's window)."""
        return bool(self._ordered or self._urgent or self._ready)

    def take(self, limit: int) -> bytes:
        ordered = self._ordered
        if self._ready or self._urgent or self._ordered_size > limit:
            return self._take(limit)
        if not ordered:
            return b""
        data = ordered[0] if len(ordered) == 1 else b"".join(ordered)
        ordered.clear()
        self._ordered_size = 0
        return data

    def _take(self, limit: int) -> bytes:
        pieces: list[bytes | memoryview] = [*self._urgent]
        self._urgent.clear()
        room = limit - sum(map(len, pieces))
        while self._ordered and (room > 0 or not pieces):
            piece = self._ordered.popleft()
            pieces.append(piece)
            room -= len(piece)
            self._ordered_size -= len(piece)
        if not self._ordered:
            self._take_bodies(pieces, room)
        return b"".join(pieces)

    def _take_bodies(self, pieces: list[bytes | memoryview], room: int) -> None:
        ready = self._ready
        while ready and self._window > 0 and (room > _SLIVER or not pieces):
            number, stream = ready.popitem(last=False)
            assert stream.queue
            size = min(max(room, 1), self._window, stream.window, self.max_frame)
            if ready and size > _TURN:
                size = _TURN
            piece = stream.queue[0]
            if size >= len(piece):
                size = len(piece)
                stream.queue.popleft()
            else:
                stream.queue[0] = piece[size:]
                piece = piece[:size]
            end = stream.is_ended and not stream.queue
            pieces += (head(size << 8, end, number), piece)
            room -= size
            self._window -= size
            self.blocked -= size
            stream.window -= size
            self._mark_ready(stream)


def _flood() -> Http2Error:
    return Http2Error(
        frames.ENHANCE_YOUR_CALM, f"the server demanded more than {_MAX_REPLIES} replies without reading any of them"
    )
