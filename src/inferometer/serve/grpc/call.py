"""One call: its messages in both directions, its deadline, and its status.

A method gets the call when its headers have arrived and sets what is to be called: `on_message` for each message,
`on_ended` when the client has sent everything, `on_cancelled` when the client or its time is gone. All callbacks are
called with the call itself, except `on_cancelled`; none is called after the call is over. A method that
raises ends its call with that error.

Memory is bounded in both directions: while a call is paused, the client cannot send more than its window, and messages
that the client does not read are counted in `unsent`.
"""

from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from inferometer.serve import compression
from inferometer.serve.grpc import headers
from inferometer.serve.grpc.headers import CallHead, Data
from inferometer.serve.models.types import NEVER, Refused, reason
from inferometer.wire.failures import bounded
from inferometer.wire.grpc_framing import PREFIX, MessageSplitter

if TYPE_CHECKING:
    from inferometer.serve.grpc.connection import Connection

_AHEAD = 1 << 20
"""Bytes of a call that are passed to the codec before the client has read them."""
_MAX_WAITING = 64 << 20
"""Bytes that wait to be sent, from which on the call is paused."""
_SMALL = 4096

_pack, _unpack, _size = PREFIX.pack, PREFIX.unpack_from, PREFIX.size


class Call:
    """A call from its headers to its status."""

    _messages: deque[tuple[int, Data]]

    __slots__ = (
        "_has_headers", "_is_ended", "_is_full", "_messages", "_outbox", "_pauses", "_splitter", "_trailers", "_unconsumed",
        "_waiting", "arrived", "began", "connection", "deadline", "head", "is_over", "on_cancelled", "on_ended",
        "on_message", "stream", "timer",
    )  # fmt: skip

    def __init__(self, connection: "Connection", stream: int, head: CallHead, arrived: int) -> None:
        self.connection, self.stream, self.head = connection, stream, head
        self.arrived = arrived
        """When the last part of the request arrived, as monotonic ns."""
        self.began = arrived
        self.deadline = arrived + head.timeout if head.timeout < NEVER else NEVER
        self.timer: TimerHandle | None = None
        """For the deadline, unless the call ends at once."""
        self.is_over = False
        self.on_message: Callable[[Call, Data], None] = _ignore
        self.on_ended: Callable[[Call], None] = _ignore
        self.on_cancelled: Callable[[], object] = _ignore
        self._splitter: MessageSplitter | None = None  # not needed for a message that arrives in one piece
        self._is_ended = False  # the client has sent everything, but not everything is taken
        self._pauses = self._unconsumed = 0
        self._has_headers = self._is_full = False  # full: paused, because too much waits to be sent
        self._outbox: deque[tuple[Data, ...]] | None = None
        self._waiting = 0  # bytes in the outbox
        self._trailers: tuple[bytes, str] | None = None

    def begin(self) -> None:
        """Start the method."""
        method = self.head.method
        assert method is not None
        if method.is_unary:
            self.on_message, self.on_ended = method.start, _no_message  # type: ignore[assignment]
        else:
            self._call(method.start)  # type: ignore[arg-type]

    # --- requests ----------------------------------------------------------------------------------------------------

    def received(self, data: Data, end: bool, arrived: int) -> None:
        """Take a piece of the request, and call back with the messages that are complete."""
        self.arrived = arrived
        size = len(data)
        if self._pauses:
            self._unconsumed += size
        elif size > _SMALL or not end:  # the codec counts the rest when the call is over
            self.connection.consumed(self.stream, size)
        if self._splitter is None:
            if size >= _size and _unpack(data) == (0, size - _size) and size - _size <= self.connection.max_message:
                self._deliver(bytes(data[_size:]))
                if end and not self.is_over:
                    self._call(self.on_ended)
                return
            if end and not size:
                self._call(self.on_ended)
                return
            self._split()
        try:
            self._messages += self._splitter.feed(data)  # type: ignore[union-attr]
        except ValueError as error:
            self.abort(Refused("RESOURCE_EXHAUSTED", str(error)))
            return
        self._is_ended = end
        self._advance()

    def _split(self) -> None:
        """Keep messages, and parts of them, from now on."""
        if self._splitter is None:
            self._splitter, self._messages = MessageSplitter(limit=self.connection.max_message), deque()

    @property
    def is_incomplete(self) -> bool:
        """Whether a message has begun to arrive and is not complete."""
        return self._splitter is not None and not self._pauses and self._splitter.is_mid_message

    def pause(self) -> None:
        """Take no more messages until `resume` was called as often."""
        self._pauses += 1
        self._split()

    def resume(self) -> None:
        self._pauses -= 1
        if not self._pauses and not self.is_over:
            self.connection.consumed(self.stream, self._unconsumed)
            self._unconsumed = 0
            self._advance()

    def _advance(self) -> None:
        """Take the messages that are complete."""
        while not self._pauses and not self.is_over and self._messages:
            self._take(*self._messages.popleft())
        if self._is_ended and not self._pauses and not self.is_over:
            self._is_ended = False
            if self.is_incomplete:
                self.abort(Refused("INTERNAL", "the call ended in the middle of a message"))
            else:
                self._call(self.on_ended)

    def _take(self, flag: int, message: Data) -> None:
        name, limit = self.head.encoding, self.connection.max_message
        if flag > 1:
            self.abort(Refused("INTERNAL", f"the prefix of a message starts with {flag}, not with 0 or 1"))
        elif len(message) > limit:
            why = f"the message has {len(message)} bytes; the server accepts at most {limit}"
            self.abort(Refused("RESOURCE_EXHAUSTED", why))
        elif not flag:
            self._deliver(message)
        elif not name:
            self.abort(Refused("INTERNAL", "a message is compressed, but the call has no grpc-encoding"))
        else:
            self.pause()
            work = partial(compression.decompress, name, message, limit, "message", "INTERNAL")
            self.connection.offload.run(compression.EXPANSION * len(message), work, self._decompressed)

    def _decompressed(self, message: Data | None, error: BaseException | None) -> None:
        if self.is_over:
            return
        if message is None:
            self.abort(reason(error or MemoryError()))
        else:
            self._deliver(message)
            self.resume()
        self.connection.wake()

    def _deliver(self, message: Data) -> None:
        on_message = self.on_message
        if self.head.method.is_unary:  # type: ignore[union-attr]
            self.on_message = self.on_ended = _ignore  # further messages have no meaning
        try:
            on_message(self, message)
        except Exception as error:
            self.abort(reason(error))

    def _call(self, function: Callable[["Call"], None]) -> None:
        try:
            function(self)
        except Exception as error:
            self.abort(reason(error))

    # --- responses ---------------------------------------------------------------------------------------------------

    def reply(self, parts: tuple[Data, ...], trailers: bytes = headers.OK) -> None:
        """Send the only message of the response, and end the call."""
        if self.is_over:
            return
        size = 0
        for part in parts:
            size += len(part)
        self.connection.http2.respond(self.stream, headers.RESPONSE, (_pack(0, size), *parts), trailers)
        self._over("OK")

    def send(self, *parts: Data) -> None:
        """Send one message."""
        if self.is_over:
            return
        if self._outbox is None:
            self._outbox = deque()
        self._outbox.append(parts)
        self._waiting += sum(map(len, parts))
        if len(self._outbox) == 1:
            self.advance()
        if self._waiting > _MAX_WAITING and not self._is_full:
            self._is_full = True
            self.pause()

    @property
    def unsent(self) -> int:
        """Bytes that wait because the client does not read them."""
        return self._waiting + self.connection.http2.unsent(self.stream)

    def advance(self) -> None:
        """Pass on messages while the client reads them."""
        http2 = self.connection.http2
        while self._outbox:
            if http2.unsent(self.stream) > _AHEAD:
                self.connection.blocked.add(self)
                break
            parts = self._outbox.popleft()
            size = sum(map(len, parts))
            self._waiting -= size
            if not self._has_headers:
                self._has_headers = True
                http2.headers(self.stream, headers.RESPONSE, False)
            http2.send(self.stream, _pack(0, size), *parts)
        if self._trailers and not self._outbox:
            self._close(*self._trailers)
        elif self._is_full and self._waiting <= _MAX_WAITING:
            self._is_full = False
            self.resume()
        self.connection.wake()

    # --- the end -----------------------------------------------------------------------------------------------------

    def finish(self, trailers: bytes = headers.OK, code: str = "OK") -> None:
        """End the call after all of its messages, with these trailers, which say `code`."""
        if not self.is_over:
            self._trailers = trailers, code
            self.advance()

    def refuse(self, refused: Refused) -> None:
        """End the call with an error; messages that wait are dropped."""
        if not self.is_over:
            self._close(headers.trailers(refused), refused.code)

    def abort(self, refused: Refused) -> None:
        """Refuse the call, and cancel its work."""
        cancelled = self.on_cancelled
        self.refuse(refused)
        cancelled()

    def cancel(self) -> None:
        """End the call because the client is gone."""
        cancelled = self.on_cancelled
        self._over("CANCELLED")
        cancelled()

    def expire(self) -> None:
        self.abort(Refused("DEADLINE_EXCEEDED", "Deadline Exceeded"))

    def _close(self, trailers: bytes, code: str) -> None:
        block = trailers if self._has_headers else headers.RESPONSE + trailers
        self.connection.http2.headers(self.stream, block, True)
        self._over(code)

    def _over(self, code: str) -> None:
        self.is_over = True
        self.on_message = self.on_ended = self.on_cancelled = _ignore  # break reference cycles
        if self._splitter is not None:
            self._messages.clear()
        self._splitter = self._outbox = None
        self.connection.over(self, code)


def parse(kind: Any, data: Data) -> Any:
    """Return a message of this class; raises Refused if the data is not one."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        why = f"the message is not a valid {kind.DESCRIPTOR.name}: {bounded(str(error))}"
        raise Refused("INTERNAL", why) from None


def _no_message(call: Call) -> None:
    raise Refused("INVALID_ARGUMENT", "the call contains no request")


def _ignore(*_: object) -> None:
    pass
