"""The bytes to send: the open streams, the peer's flow-control windows, and the order of frames. Client and server share it.

There are three queues, emptied in this order:

    urgent    replies to PING, updates of our windows, GOAWAY: they depend on nothing else
    ordered   HEADERS with small bodies, RST_STREAM and the acknowledgement of SETTINGS. The order matters: a stream is opened
              before it is reset, and frames made under the old settings precede the acknowledgement of the new ones
    ready     streams with bodies that are large or had to wait; they take turns, one frame each, as far as the windows allow

A body in `ready` is copied only once, into the bytes that `take` returns, and not at all by the server's `take_parts`.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

import msgspec

from inferometer.wire.http2 import frames
from inferometer.wire.http2.events import Http2Error
from inferometer.wire.http2.frames import DEFAULT_TABLE, DEFAULT_WINDOW, MAX_NUMBER, MIN_MAX_FRAME, head
from inferometer.wire.http2.hpack import NO_TABLE

_TURN = 64 << 10
"""Maximum number of bytes per turn of a stream while others wait, even if the peer allows larger frames."""
_SLIVER = 1 << 10
"""Remaining room in a take that is too small to be worth another frame."""
_MAX_REPLIES = 10_000
"""Maximum number of replies waiting to be sent. A peer that demands more without reading any is misbehaving."""


class OutgoingStream(msgspec.Struct, gc=False):
    """An open stream."""

    number: int
    window: int
    """Bytes of body that the peer still accepts; negative after it lowered INITIAL_WINDOW_SIZE."""
    is_ended: bool
    """Whether the end of what we send was passed in (part of the body may still be in the queue)."""
    queue: deque[memoryview] | None = None
    """Parts of the body that wait to be sent; none of them is empty."""
    unsent: int = 0
    """Bytes in the queue."""
    has_headers: bool = False
    """Client: whether the headers of the response have arrived. Server: whether those of the response were passed in."""
    received: int = 0
    """Bytes of DATA received for which our window was not yet topped up."""
    consumed: int = 0
    """Server: how many of these the application has consumed."""
    is_received: bool = False
    """Server: whether the request has arrived completely."""
    trailers: bytes = b""
    """Server: the block that ends the response after the queue."""


class Outbox:
    """The queues of one connection and the state that decides what may be sent."""

    __slots__ = (
        *(
            "_has_table",
            "_is_server",
            "_ordered",
            "_ordered_size",
            "_prefix",
            "_ready",
            "_urgent",
            "_window",
            "blocked",
        ),
        *("initial_window", "is_closing", "max_frame", "max_streams", "next", "peer", "released", "sent", "streams"),
    )

    def __init__(self, peer: str, is_server: bool = False) -> None:
        """`peer`: the other side, for messages."""
        self.peer = peer
        self._is_server = is_server
        self.streams: dict[int, OutgoingStream] = {}
        self.next = 1  # the id of the stream that the client opens next
        self.is_closing = False  # no new requests: after a GOAWAY or an error, or when the ids have run out
        self.blocked = 0  # bytes of bodies that wait for the peer's windows or for their turn
        self.released = 0  # server: bytes of DATA that were consumed, and for which the window was not yet topped up
        self.sent = 0  # server: number of DATA frames
        self.max_streams = MAX_NUMBER  # the number of open streams that the server allows
        self.max_frame = MIN_MAX_FRAME
        self.initial_window = DEFAULT_WINDOW
        self._window = DEFAULT_WINDOW  # the connection's window, as opposed to those of the streams
        self._urgent: list[bytes] = []
        self._ordered: deque[bytes] = deque()
        self._ordered_size = 0
        self._ready: OrderedDict[int, OutgoingStream] = OrderedDict()
        self._has_table = True  # the peer assumes that our encoder has a dynamic table of the default size
        self._prefix = b""  # bytes that the next header block must start with

    # --- requests ---

    def request(self, block: bytes, body: bytes, end: bool = True) -> int:
        """Queue a request and return the id of its stream. Not allowed once the connection `is_closing`."""
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

    # --- responses ---

    def accept(self, number: int, is_received: bool) -> OutgoingStream:
        """Open the stream of a request that has arrived."""
        self.next = number + 2
        stream = OutgoingStream(number, self.initial_window, False, is_received=is_received)
        self.streams[number] = stream
        return stream

    def respond(self, number: int, block: bytes, body: Sequence[bytes | memoryview], trailers: bytes) -> None:
        """Queue a complete response: headers, a body in parts, and trailers. Does nothing if the stream has closed in the meantime."""
        stream = self.streams.get(number)
        if stream is None:
            return
        size = sum(map(len, body))
        if (
            size <= MIN_MAX_FRAME
            and size <= self._window
            and size <= stream.window
            and stream.is_received
            and not self._ready
            and not self._prefix
            and not stream.has_headers
            and len(block) <= MIN_MAX_FRAME >= len(trailers)
        ):
            start, end = head(len(block) << 8 | 1, 4, number), head(len(trailers) << 8 | 1, 5, number)
            piece = b"".join((start, block, head(size << 8, 0, number), *body, end, trailers))
            self._window -= size
            self._ordered.append(piece)
            self._ordered_size += len(piece)
            self.released += stream.received - stream.consumed
            del self.streams[number]
            return
        self.headers(number, block, False)
        self.send(number, *body)
        self.headers(number, trailers, True)

    def headers(self, number: int, block: bytes, end: bool = False) -> None:
        """Queue the headers of a response or, after them, its trailers, which must end it. Does nothing if the stream has closed."""
        stream = self.streams.get(number)
        if stream is None:
            return
        if stream.is_ended:
            raise RuntimeError(f"the response of stream {number} has already ended")
        if stream.has_headers and not end:
            raise RuntimeError(f"trailers must end the response of stream {number}")
        stream.has_headers = True
        stream.is_ended = end
        if stream.queue:
            stream.trailers = block
            return
        self.put(self._headers(number, block, end))
        if end:
            self._close(stream, self.put)

    def _headers(self, number: int, block: bytes, end: bool) -> bytes:
        block, self._prefix = self._prefix + block, b""
        return frames.headers(number, block, end)

    def _close(self, stream: OutgoingStream, put: Callable[[bytes], None]) -> None:
        """Close a stream whose response is complete. A client that is still sending its request is told to stop."""
        del self.streams[stream.number]
        self.released += stream.received - stream.consumed
        if not stream.is_received:
            put(frames.rst_stream(stream.number, frames.NO_ERROR))

    # --- bodies ---

    def send(self, number: int, *parts: bytes | memoryview, end: bool = False) -> None:
        """Queue a part of a body, in parts of its own. Does nothing if the stream has closed in the meantime.

        Small parts share a frame; large ones are not copied and must not change.
        """
        stream = self.streams.get(number)
        if stream is None:
            if not 0 < number < self.next or not number & 1:
                raise RuntimeError(f"stream {number} was never opened")
            return
        if stream.is_ended:
            raise RuntimeError("the body of this stream has already ended")
        if len(parts) != 1 and sum(map(len, parts)) <= MIN_MAX_FRAME:
            parts = (b"".join(parts),)
        *others, last = parts
        for part in others:
            self._send_body(stream, part, False)
        self._send_body(stream, last, end)

    def _send_body(self, stream: OutgoingStream, body: bytes | memoryview, end: bool) -> None:
        size = len(body)
        stream.is_ended = end
        fits = size <= MIN_MAX_FRAME and size <= self._window and size <= stream.window and not self._ready
        if stream.queue or (size and not fits):
            self._enqueue(stream, body)
            return
        self._window -= size
        stream.window -= size
        self.sent += 1
        if size or end:
            self.put(b"".join((head(size << 8, end, stream.number), body)))
        if end and self._is_server:
            self._close(stream, self.put)

    def _enqueue(self, stream: OutgoingStream, body: bytes | memoryview) -> None:
        if body:
            if stream.queue is None:
                stream.queue = deque()
            stream.queue.append(memoryview(body))
            stream.unsent += len(body)
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
            raise self._flood()
        self._urgent.append(piece)

    def acknowledge(self) -> None:
        """Acknowledge SETTINGS that were applied."""
        if len(self._ordered) >= _MAX_REPLIES and self._ordered.count(frames.SETTINGS_ACK) >= _MAX_REPLIES:
            raise self._flood()
        self.put(frames.SETTINGS_ACK)

    # --- the end of a stream ---

    def finish(self, stream: OutgoingStream) -> None:
        """Close a stream whose response is complete; drop the rest of the request, if any, and reset the stream then."""
        if stream.queue or not stream.is_ended:
            self.reset_stream(stream, frames.NO_ERROR)
        else:
            del self.streams[stream.number]

    def reset(self, number: int, code: int = frames.CANCEL) -> None:
        """Give up a stream. Does nothing if it has closed in the meantime."""
        stream = self.streams.get(number)
        if stream is not None:
            self.reset_stream(stream, code)

    def reset_stream(self, stream: OutgoingStream, code: int) -> None:
        self.drop(stream)
        self.put(frames.rst_stream(stream.number, code))

    def drop(self, stream: OutgoingStream) -> None:
        del self.streams[stream.number]
        self.released += stream.received - stream.consumed
        if stream.queue:
            self.blocked -= stream.unsent
            self._ready.pop(stream.number, None)

    def _give_up(self, code: int, message: str) -> None:
        """Give up the connection: drop everything that waits and send a GOAWAY."""
        self.is_closing = True
        self._ordered.clear()
        self._ready.clear()
        self._ordered_size = self.blocked = 0
        if self._is_server:
            self.streams.clear()
        self._urgent.append(frames.goaway(code, message.encode()[:256], self.last))

    @property
    def open_streams(self) -> int:
        return len(self.streams)

    @property
    def max_push(self) -> int:
        """The largest allowed value of the peer's ENABLE_PUSH: only clients may enable it."""
        return 1 if self._is_server else 0

    @property
    def last(self) -> int:
        """The id of the last stream that the peer has opened; servers open none."""
        return max(self.next - 2, 0) if self._is_server else 0

    # --- what the peer allows ---

    def widen(self, increment: int) -> None:
        """Enlarge the connection's window."""
        self._window += increment
        if self._window > MAX_NUMBER:
            raise Http2Error(
                frames.FLOW_CONTROL_ERROR, f"{self.peer} enlarged the connection's window beyond 2^31-1 bytes"
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
    def backlog(self) -> int:
        """Bytes of small frames that can be sent now: responses, other than those that wait for the windows.

        Do not read more requests while this is large: the client sends them without reading our responses.
        """
        return self._ordered_size

    @property
    def has_more(self) -> bool:
        """Whether `take` may return bytes (streams in `ready` may still be blocked by the connection's window)."""
        return bool(self._ordered or self._urgent or self._ready)

    def take(self, limit: int = 1 << 20) -> bytes:
        """Return the next bytes to send, at most about `limit`; b"" if there is nothing to send now."""
        ordered = self._ordered
        if self._ready or self._urgent or self._ordered_size > limit:
            small, bodies = self._take(limit)
            return b"".join((*small, *bodies))
        if not ordered:
            return b""
        data = ordered[0] if len(ordered) == 1 else b"".join(ordered)
        ordered.clear()
        self._ordered_size = 0
        return data

    def _take(self, limit: int) -> tuple[list[bytes], list[bytes | memoryview]]:
        small, bodies = [*self._urgent], list[bytes | memoryview]()
        self._urgent.clear()
        room = limit - sum(map(len, small))
        while self._ordered and (room > 0 or not small):
            piece = self._ordered.popleft()
            small.append(piece)
            room -= len(piece)
            self._ordered_size -= len(piece)
        if not self._ordered:
            self._take_bodies(bodies, room, bool(small))
        return small, bodies

    def _take_bodies(self, pieces: list[bytes | memoryview], room: int, has_other: bool) -> None:
        ready = self._ready
        while ready and self._window > 0 and (room > _SLIVER or not (pieces or has_other)):
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
            pieces += (head(size << 8, end and not stream.trailers, number), piece)
            room -= size
            self._window -= size
            self.blocked -= size
            self.sent += 1
            stream.window -= size
            stream.unsent -= size
            self._mark_ready(stream)
            if end and self._is_server:
                if stream.trailers:
                    pieces.append(self._headers(number, stream.trailers, True))
                self._close(stream, pieces.append)

    def _flood(self) -> Http2Error:
        return Http2Error(
            frames.ENHANCE_YOUR_CALM,
            f"{self.peer} demanded more than {_MAX_REPLIES} replies without reading any of them",
        )
