"""One call: its headers, its messages in both directions, its deadline, and its status.

A method gets the call when its headers have arrived and sets what is to be called: `on_message` for each message,
`on_ended` when the client has sent everything, `on_drained` when the server stops, if the call would not end by itself,
and last `on_over` when the call is over, whatever its end: what is still in progress is then cancelled. A method that
raises ends its call with that error.

Memory is bounded in both directions: while a call is paused, the client cannot send more than its window. A call whose
client is too far behind in reading is refused.
"""

from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from google.protobuf.message import DecodeError

from inferometer.serve import access, compression
from inferometer.serve.bounded_cache import BoundedCache
from inferometer.serve.models.types import NEVER, Refused, ignore, reason
from inferometer.serve.offload import LARGE, UNREAD, not_read
from inferometer.wire import grpc_framing, server_timing
from inferometer.wire.failures import bounded
from inferometer.wire.grpc_framing import PREFIX, MessageSplitter
from inferometer.wire.http2 import hpack
from inferometer.wire.http2.events import Fields
from inferometer.wire.http2.frames import ENHANCE_YOUR_CALM

if TYPE_CHECKING:
    from inferometer.serve.grpc.server import Connection

Data = bytes | memoryview

_MAX_BEFORE_ERROR = 1 << 20
"""Unread bytes that are still sent before an error; a call with more is reset instead."""
_SMALL = 4096
_END = -1  # stands among the messages for the end of the request
_NONE: deque[tuple[int, Data]] = deque()
_pack, _unpack, _size = PREFIX.pack, PREFIX.unpack_from, PREFIX.size

OK = hpack.encode([(b"grpc-status", b"0")])
_TIMING = OK + b"\x00\x0dserver-timing%c%b"  # a literal field without indexing; its value is shorter than 127 bytes
_ACCEPTED = ",".join(("identity", *compression.FORMATS)).encode()
RESPONSE = hpack.encode(
    [(b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-accept-encoding", _ACCEPTED)]
)
"""The headers of all responses."""


def timed(queue_ns: int, compute_ns: int, total_ns: int) -> bytes:
    """Return the trailers of a successful call, with the server's own times."""
    value = server_timing.FORMAT % (queue_ns * 1e-6, compute_ns * 1e-6, total_ns * 1e-6)
    return _TIMING % (len(value), value)


def trailers(refused: Refused) -> bytes:
    return grpc_framing.trailers(refused.code, refused.message)


class Method(msgspec.Struct, frozen=True):
    """A method of a service: `start(call, message)` responds to the only message, now or later. That of a stream is
    `start(call)`, which sets the callbacks of a call that has begun. An open method requires no token."""

    start: Callable[..., object]
    is_stream: bool = False
    is_open: bool = False


def refusing(refused: Refused) -> Method:
    """Return the method of a call that is refused at once."""
    return Method(lambda call: call.refuse(refused), is_stream=True)


class CallHead(msgspec.Struct, frozen=True):
    """What the headers of a call say."""

    path: str
    method: Method
    timeout: int = NEVER  # ns
    encoding: str = ""  # compression of the request's messages, if they are compressed


class CallHeads:
    """Parses headers, each block once: clients send the same again and again, and the codec returns the same object."""

    def __init__(self, methods: Mapping[str, Method], token: str | None) -> None:
        self._methods, self._token = methods, token
        self._known: BoundedCache[int, tuple[Fields, CallHead]] = BoundedCache(1024)

    def head(self, headers: Fields) -> CallHead:
        known = self._known.get(id(headers))
        if known is not None and known[0] is headers:
            return known[1]
        return self._known.keep(id(headers), (headers, self._parse(dict(headers))))[1]

    def _parse(self, fields: dict[bytes, bytes]) -> CallHead:
        path = fields.get(b":path", b"").decode("latin-1")
        method = self._methods.get(path)
        try:
            if not fields.get(b"content-type", b"").startswith(b"application/grpc"):
                raise Refused("INTERNAL", "the content-type of a call must be application/grpc")
            is_open = method is not None and method.is_open
            if not is_open and (why := access.why_not(self._token, fields.get(b"authorization", b""))):
                raise Refused("UNAUTHENTICATED", why)
            if method is None:
                raise Refused("UNIMPLEMENTED", f"unknown method {path}")
            encoding = compression.named(fields.get(b"grpc-encoding", b""))
            timeout = grpc_framing.parse_timeout(fields[b"grpc-timeout"]) if b"grpc-timeout" in fields else NEVER
            return CallHead(path, method, timeout, encoding)
        except (Refused, ValueError) as error:
            code = error.code if isinstance(error, Refused) else "INTERNAL"
            return CallHead(path, refusing(Refused(code, str(error))))


class Call:
    """A call from its headers, which start its method, to its status."""

    __slots__ = (
        "_has_headers", "_messages", "_pauses", "_splitter", "_unconsumed", "arrived", "began", "connection", "deadline",
        "head", "is_over", "on_drained", "on_ended", "on_message", "on_over", "stream", "timer",
    )  # fmt: skip

    def __init__(self, connection: "Connection", stream: int, head: CallHead, arrived: int) -> None:
        self.connection, self.stream, self.head = connection, stream, head
        self.began = self.arrived = arrived  # when the first and the last part of the request arrived, as monotonic ns
        self.deadline = arrived + head.timeout if head.timeout < NEVER else NEVER
        self.timer: TimerHandle | None = None  # for the deadline, unless the call ends at once
        self.is_over = self._has_headers = False
        self.on_drained: Callable[[], object] = ignore
        self.on_over: Callable[[], object] = ignore
        self._splitter: MessageSplitter | None = None  # not needed for a message that arrives in one piece
        self._messages = _NONE  # those that are not taken yet, with their flags
        self._pauses = self._unconsumed = 0
        connection.calls[stream] = self
        self.on_message: Callable[[Call, Data], object] = head.method.start
        self.on_ended: Callable[[Call], object] = _no_message
        if head.method.is_stream:
            self.on_message = self.on_ended = ignore
            self._call(head.method.start, self)

    def received(self, data: Data, end: bool, arrived: int) -> None:
        """Take a piece of the request, and call back with the messages that are complete."""
        self.arrived = arrived
        size = len(data)
        if self._pauses:
            self._unconsumed += size
        elif size > _SMALL or not end:  # the codec counts the rest when the call is over
            self.connection.consumed(self.stream, size)
        limit = self.connection.max_message
        if self._splitter is None:
            if size >= _size and _unpack(data) == (0, size - _size) and size - _size <= limit and not self._pauses:
                self._deliver(bytes(data[_size:]))
                if end and not self.is_over:
                    self._call(self.on_ended, self)
                return
            self._splitter, self._messages = MessageSplitter(limit=limit), deque()
        try:
            self._messages += self._splitter.feed(data)
        except ValueError as error:
            self.refuse(Refused("RESOURCE_EXHAUSTED", str(error)))
            return
        if end:
            self._messages.append((_END, b""))
        self._advance()

    @property
    def is_incomplete(self) -> bool:
        """Whether a message has begun to arrive and is not complete."""
        return self._splitter is not None and not self._pauses and self._splitter.is_mid_message

    def pause(self) -> None:
        """Take no more messages until `resume` was called as often."""
        self._pauses += 1

    def resume(self) -> None:
        self._pauses -= 1
        if not self._pauses and not self.is_over:
            self.connection.consumed(self.stream, self._unconsumed)
            self._unconsumed = 0
            self._advance()

    def _advance(self) -> None:
        """Take the messages that are complete."""
        while self._messages and not self._pauses:
            flag, message = self._messages.popleft()
            if not flag:
                self._deliver(message)
            elif flag == _END and self.is_incomplete:
                self.refuse(Refused("INTERNAL", "the call ended in the middle of a message"))
            elif flag == _END:
                self._call(self.on_ended, self)
            elif not (encoding := self.head.encoding):
                why = "a message is flagged as compressed, but the call has no grpc-encoding"
                self.refuse(Refused("INTERNAL", why))
            else:
                size, limit = compression.EXPANSION * len(message), self.connection.max_message
                work = partial(compression.decompress, encoding, message, limit, "message", "INTERNAL")
                if is_large := size > LARGE:
                    self.pause()
                self.offload(size, work, partial(self._decompressed, is_large))

    def _decompressed(self, is_large: bool, message: Data) -> None:
        self._deliver(message)
        if is_large:
            self.resume()

    def offload(self, size: int, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Continue with the result of work on `size` bytes unless the call is over by then."""

        def done(result: Any, error: BaseException | None) -> None:
            if error is not None:
                self.refuse(reason(error))
            elif not self.is_over:
                self._call(then, result)
            self.connection.wake()

        self.connection.offload.run(size, work, done)

    def _deliver(self, message: Data) -> None:
        on_message = self.on_message
        if not self.head.method.is_stream:
            self.on_message = self.on_ended = ignore  # further messages have no meaning
        try:
            on_message(self, message)
        except Exception as error:
            self.refuse(reason(error))

    def _call(self, function: Callable[[Any], object], argument: Any) -> None:
        try:
            function(argument)
        except Exception as error:
            self.refuse(reason(error))

    def reply(self, parts: tuple[Data, ...], trailers: bytes = OK) -> None:
        """Send the only message of the response, and end the call."""
        if self.is_over:
            return
        size = 0
        for part in parts:
            size += len(part)
        self.connection.http2.respond(self.stream, RESPONSE, (_pack(0, size), *parts), trailers)
        self.end("OK")

    def send(self, *parts: Data) -> None:
        if self.is_over:
            return
        http2 = self.connection.http2
        if not self._has_headers:
            self._has_headers = True
            http2.headers(self.stream, RESPONSE, False)
        http2.send(self.stream, _pack(0, sum(map(len, parts))), *parts)
        if http2.unsent(self.stream) > UNREAD:
            self.refuse(not_read())
        self.connection.wake()

    def finish(self, trailers: bytes = OK, code: str = "OK") -> None:
        """End the call after all of its messages, with these trailers, which say `code`."""
        if not self.is_over:
            block = trailers if self._has_headers else RESPONSE + trailers
            self.connection.http2.headers(self.stream, block, True)
            self.end(code)

    def refuse(self, refused: Refused) -> None:
        """End the call with an error. If much is unread, the call is reset: the error would come too late."""
        if not self.is_over and self.connection.http2.unsent(self.stream) > _MAX_BEFORE_ERROR:
            self.connection.http2.reset(self.stream, ENHANCE_YOUR_CALM)
            self.end(refused.code)
        else:
            self.finish(trailers(refused), refused.code)

    def end(self, code: str) -> None:
        """Forget the call, and cancel what is in progress. `code` is for the access log: the client gets nothing."""
        connection, on_over, self.is_over = self.connection, self.on_over, True
        self.on_message = self.on_ended = self.on_drained = self.on_over = ignore  # break reference cycles
        self._splitter, self._messages = None, _NONE
        del connection.calls[self.stream]
        if self.timer is not None:
            self.timer.cancel()
        if connection.is_logged:
            access.log(connection.peer, "GRPC", self.head.path, code, self.began)
        connection.wake()
        on_over()


def parse(kind: Any, data: Data) -> Any:
    """Return a message of this class; raises Refused if the data is not one."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        why = f"the message is not a valid {kind.DESCRIPTOR.name}: {bounded(str(error))}"
        raise Refused("INTERNAL", why) from None


def _no_message(call: Call) -> None:
    raise Refused("INVALID_ARGUMENT", "the call contains no request")
