"""What is to be written: the streams, the server's windows, and the order of frames.

Three queues, emptied in this order:

    urgent    answers to pings, updates of our windows, the GOAWAY: they depend on nothing
    ordered   HEADERS with small bodies, RST_STREAM, and the acknowledgement of SETTINGS. A stream is opened before it is
              reset; what was made under the old settings goes before the acknowledgement of the new ones
    ready     streams whose bodies are large or had to wait, in turns of one frame, as far as the windows allow

A body in `ready` is never copied but into the bytes that `take` returns.
"""

from collections import OrderedDict, deque

import msgspec

from inferometer.wire.http2 import frames
from inferometer.wire.http2.events import Http2Error
from inferometer.wire.http2.frames import DATA, DEFAULT_TABLE, DEFAULT_WINDOW, MAX_NUMBER, MIN_MAX_FRAME, head
from inferometer.wire.http2.hpack import NO_TABLE

_TURN = 64 << 10
"""Bytes that a stream may send before the next has its turn, where the server's frame size allows more."""
_SLIVER = 1 << 10
"""Room at the end of a take that is not worth a frame."""
_MAX_ANSWERS = 10_000
"""Answers that wait to be written. A server that asks for more without reading means no good."""


class OutgoingStream(msgspec.Struct, gc=False):
    number: int
    window: int
    """Bytes of body that the server still allows; below 0 after it lowered INITIAL_WINDOW_SIZE."""
    is_ended: bool
    """No more body will be given (there may still be some in the queue)."""
    queue: deque[memoryview] | None = None
    """Body that waits, never empty pieces."""
    is_answered: bool = False
    """The answer's headers have come."""
    received: int = 0
    """Bytes of the answer that our window was not yet topped up for."""


class Outbox:
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
        self._window = DEFAULT_WINDOW  # of the connection
        self._urgent: list[bytes] = []
        self._ordered: deque[bytes] = deque()
        self._ordered_size = 0
        self._ready: OrderedDict[int, OutgoingStream] = OrderedDict()
        self._has_table = True  # the server believes that our encoder uses a table of the default size
        self._prefix = b""  # of the next header block

    # --- what is asked for ---

    def request(self, block: bytes, body: bytes, end: bool) -> int:
        if self.is_closing:
            raise RuntimeError("no new request on a connection that is closing")
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
            self._body(stream, body, end)
        else:
            stream.is_ended = end
        return number

    def send(self, number: int, body: bytes, end: bool) -> None:
        stream = self.streams.get(number)
        if stream is not None:
            if stream.is_ended:
                raise RuntimeError("the body of this stream was ended before")
            self._body(stream, body, end)
        elif not 0 < number < self.next or not number & 1:
            raise RuntimeError(f"there never was a stream {number}")

    def _body(self, stream: OutgoingStream, body: bytes, end: bool) -> None:
        size = len(body)
        stream.is_ended = end
        if stream.queue:
            self._wait(stream, body)
        elif not size:
            if end:
                self.put(head(DATA, frames.END_STREAM, stream.number))
        elif size <= MIN_MAX_FRAME and size <= self._window and size <= stream.window and not self._ready:
            self._window -= size
            stream.window -= size
            self.put(head(size << 8, end, stream.number) + body)
        else:
            self._wait(stream, body)

    def _wait(self, stream: OutgoingStream, body: bytes) -> None:
        if body:
            if stream.queue is None:
                stream.queue = deque()
            stream.queue.append(memoryview(body))
            self.blocked += len(body)
            self._wake(stream)

    def _wake(self, stream: OutgoingStream) -> None:
        if stream.window > 0 and stream.queue:
            self._ready[stream.number] = stream

    def put(self, piece: bytes) -> None:
        """To be written in order."""
        self._ordered.append(piece)
        self._ordered_size += len(piece)

    def hurry(self, piece: bytes) -> None:
        """To be written first."""
        if len(self._urgent) >= _MAX_ANSWERS:
            raise _flood()
        self._urgent.append(piece)

    def acknowledge(self) -> None:
        """SETTINGS were applied."""
        if len(self._ordered) >= _MAX_ANSWERS and self._ordered.count(frames.SETTINGS_ACK) >= _MAX_ANSWERS:
            raise _flood()
        self.put(frames.SETTINGS_ACK)

    # --- the end of a stream ---

    def finish(self, stream: OutgoingStream) -> None:
        """The answer is complete. What is left of the request is of no use any more, and the server may forget it."""
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
        """The connection is over: nothing but the GOAWAY is left to say."""
        self.is_closing = True
        self._ordered.clear()
        self._ready.clear()
        self._ordered_size = self.blocked = 0
        self._urgent.append(frames.goaway(code, message.encode()[:256]))

    # --- what the server allows ---

    def widen(self, increment: int) -> None:
        """The connection's window."""
        self._window += increment
        if self._window > MAX_NUMBER:
            raise Http2Error(frames.FLOW_CONTROL_ERROR, "the server opened the connection's window beyond 2^31-1 bytes")

    def widen_stream(self, stream: OutgoingStream, increment: int) -> bool:
        """False: more than a window may be."""
        stream.window += increment
        if stream.window > MAX_NUMBER:
            return False
        if stream.queue:
            self._wake(stream)
        return True

    def set_initial_window(self, size: int) -> None:
        difference = size - self.initial_window
        self.initial_window = size
        for stream in self.streams.values():
            if not self.widen_stream(stream, difference):
                raise Http2Error(
                    frames.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE {size} makes a window of more than 2^31-1 bytes"
                )
            if stream.window <= 0 and stream.queue:
                self._ready.pop(stream.number, None)

    def set_table_size(self, size: int) -> None:
        """An encoder has to say so when it may no longer have the table that it had. Ours has none to lose."""
        if size < DEFAULT_TABLE and self._has_table:
            self._has_table = False
            self._prefix = NO_TABLE

    # --- what is written ---

    @property
    def has_more(self) -> bool:
        """Whether `take` may give something."""
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
            self._wake(stream)


def _flood() -> Http2Error:
    return Http2Error(
        frames.ENHANCE_YOUR_CALM, f"the server asked for more than {_MAX_ANSWERS} answers without reading one"
    )
