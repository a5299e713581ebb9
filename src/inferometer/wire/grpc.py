"""gRPC on HTTP/2, the client's side: header blocks, message framing, and what a stream's frames mean.

A message is framed by a byte that says whether it is compressed and four of its length. An answer is headers, messages and
trailers; the trailers have grpc-status, and an answer that fails at once has trailers alone.
"""

import gzip
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import unquote_to_bytes

import msgspec

from inferometer.errors import UserError
from inferometer.types import ONE_TOKEN, End, Event, Fail
from inferometer.units import format_seconds
from inferometer.wire import server_timing
from inferometer.wire.failures import bounded
from inferometer.wire.http2 import encode

STATUS = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)

_FRAME = struct.Struct(">BI")
_UNSEEN = ((0, b""),)
_ONE_ARRIVAL = (ONE_TOKEN,)
_END = End(keep_alive=True)
_ENDED = (_END,)
_ARRIVED_AND_ENDED = (ONE_TOKEN, _END)
_UNITS = ((1_000_000_000, b"n"), (1_000_000, b"u"), (1_000, b"m"), (1, b"S"))
_MAX_TIMEOUT = 99_999_999
_NOT_METADATA = {
    *("connection", "content-length", "content-type", "host", "keep-alive", "proxy-connection", "te"),
    *("transfer-encoding", "upgrade", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding"),
}
"""Headers that belong to HTTP/1.1, or to gRPC itself."""

Check = Callable[[bytes], str]
"""Looks at a message of the answer: what is wrong with it, or nothing."""


# --- requests --------------------------------------------------------------------------------------------------------


def header_block(
    path: str, authority: str, tls: bool, metadata: Mapping[str, str], deadline: float = 0, compression: str = "none"
) -> bytes:
    """The HPACK block of a call's headers; it can be used on any connection, any number of times."""
    headers = [
        (b":method", b"POST"),
        (b":scheme", b"https" if tls else b"http"),
        (b":path", path.encode()),
        (b":authority", authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
    if deadline:
        headers.append((b"grpc-timeout", timeout(deadline)))
    if compression != "none":
        headers.append((b"grpc-encoding", compression.encode()))
    headers.append((b"grpc-accept-encoding", b"identity,deflate,gzip"))
    own = {name.lower(): value for name, value in metadata.items()}  # of two that differ in case alone, the last
    for name in own.keys() & _NOT_METADATA:
        remedy = "leave it out: HTTP/2 has its own framing, and gRPC has {server.deadline} and {server.compression}"
        raise UserError(f"{name} is not allowed in a gRPC call", remedy, "server.headers")
    headers += [(name.encode(), value.encode("latin-1")) for name, value in own.items()]
    return encode(headers)


def timeout(seconds: float) -> bytes:
    """As grpc-timeout has it: at most eight digits and a unit, the finest that fits."""
    for parts, unit in _UNITS:
        count = round(seconds * parts)
        if count <= _MAX_TIMEOUT:
            return b"%d%b" % (max(count, 1), unit)
    return b"%dS" % _MAX_TIMEOUT


def deadline_passed(seconds: float) -> Fail:
    """How a call ends whose answer is not complete by its deadline, which the client keeps as the server does."""
    what = f"the deadline of {format_seconds(seconds)} passed before the answer was complete"
    return Fail("grpc_DEADLINE_EXCEEDED", what, True)


def framed(message: bytes, compression: str = "none") -> bytes:
    """One message as it stands in the stream."""
    if compression == "none":
        return _FRAME.pack(0, len(message)) + message
    packed = gzip.compress(message, mtime=0) if compression == "gzip" else zlib.compress(message)
    return _FRAME.pack(1, len(packed)) + packed


# --- answers ---------------------------------------------------------------------------------------------------------


class MessageSplitter:
    """The messages of a stream, from its DATA as it comes. A large message's pieces are joined once.

    Where nobody looks at them (`keep`), those that are not compressed are counted and not kept: they come out empty.
    """

    __slots__ = ("_held", "_keep", "_pieces", "_skip", "_want")

    def __init__(self, keep: bool = True) -> None:
        self._keep = keep
        self._pieces: list[bytes] = []
        self._held = 0
        self._want = 5
        self._skip = 0  # bytes of a message that is not kept which are still to come

    def feed(self, data: bytes) -> Sequence[tuple[int, bytes]]:
        """The messages that `data` completes, each with its flag (1: compressed)."""
        if self._skip:
            return self._pass_over(data)
        if not self._held and len(data) >= 5:
            flag, length = _FRAME.unpack_from(data)
            if len(data) == 5 + length:
                return ((flag, data[5:]),) if self._keep or flag else _UNSEEN  # one whole message: nearly always
        self._pieces.append(data)
        self._held += len(data)
        if self._held < self._want:
            return ()
        return self._cut()

    def _pass_over(self, data: bytes) -> Sequence[tuple[int, bytes]]:
        if len(data) < self._skip:
            self._skip -= len(data)
            return ()
        rest, self._skip = data[self._skip :], 0
        return [*_UNSEEN, *self.feed(rest)] if rest else _UNSEEN

    def _cut(self) -> list[tuple[int, bytes]]:
        joined = b"".join(self._pieces)
        found = []
        at, self._want = 0, 5
        while len(joined) - at >= 5:
            flag, length = _FRAME.unpack_from(joined, at)
            if len(joined) - at < 5 + length:
                if not self._keep and not flag:
                    self._skip = 5 + length - (len(joined) - at)
                    at = len(joined)
                else:
                    self._want = 5 + length
                break
            found.append((flag, joined[at + 5 : at + 5 + length] if self._keep or flag else b""))
            at += 5 + length
        rest = joined[at:] if at else joined
        self._pieces = [rest] if rest else []
        self._held = len(rest)
        return found

    @property
    def is_within(self) -> bool:
        """A message has begun and is not complete."""
        return self._held > 0 or self._skip > 0


def unpacked(flag: int, message: bytes, encoding: bytes) -> bytes:
    """The message itself; ValueError where it cannot be had."""
    if not flag:
        return message
    try:
        if encoding == b"gzip":
            return gzip.decompress(message)
        if encoding == b"deflate":
            return zlib.decompress(message)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"a compressed message is broken: {error}") from None
    raise ValueError(f"a message is compressed by {encoding.decode('latin-1') or 'nobody knows what'!r}")


Fields = tuple[tuple[bytes, bytes], ...]


class _Seen:
    """The headers and trailers of the last answer that was well. The codec gives the same object for the same block, and
    servers send the same blocks again and again: nearly always it is enough to see that it is that object."""

    head: Fields = ()
    end: Fields = ()


class GrpcResponse(msgspec.Struct, gc=False):
    """What one stream's frames mean."""

    streamed: bool = False
    """Each message counts as an arrival."""
    check: Check | None = None
    """May call a message an error."""
    kept: list[bytes] | None = None
    """Where messages are kept; None: nowhere."""
    status: int = 0
    count: int = 0
    trailers: Fields = ()
    messages: MessageSplitter | None = None
    """Made where they do not come whole."""
    encoding: bytes = b""
    is_begun: bool = False

    @property
    def text(self) -> str:
        return ""

    def whole(self, headers: Fields, data: bytes, trailers: Fields) -> Sequence[Event]:
        """All of the answer at once."""
        if headers is _Seen.head and trailers is _Seen.end and self.check is None and self.kept is None:
            flag, length = _FRAME.unpack_from(data) if len(data) >= 5 else (1, 0)
            if not flag and len(data) == 5 + length:
                self.status, self.count, self.trailers = 200, 1, trailers
                return _ARRIVED_AND_ENDED if self.streamed else _ENDED
        return (*self.headers(headers, False), *self.data(data, False), *self.headers(trailers, True))

    def headers(self, headers: Fields, end: bool) -> Sequence[Event]:
        if self.is_begun or end:
            return self._finish(headers, end)
        self.is_begun = True
        if headers is _Seen.head:
            self.status = 200
            return ()
        kind = b""
        for name, value in headers:
            if name == b":status":
                self.status = int(value) if value.isdigit() else 0
            elif name == b"content-type":
                kind = value
            elif name == b"grpc-encoding":
                self.encoding = value
        if self.status != 200:
            return (_http_failure(self.status, headers),)
        if not kind.startswith(b"application/grpc"):
            shown = kind.decode("latin-1") or "no content type"
            return (Fail("not_grpc", bounded(f"the server answers with {shown}"), True),)
        if not self.encoding:
            _Seen.head = headers
        return ()

    def data(self, data: bytes, end: bool) -> Sequence[Event]:
        if self.messages is None:
            is_looked_at = self.check is not None or self.kept is not None
            if not is_looked_at and not end and len(data) >= 5:
                flag, length = _FRAME.unpack_from(data)
                if not flag and len(data) == 5 + length:  # one whole message: nearly always
                    self.count += 1
                    return _ONE_ARRIVAL if self.streamed else ()
            self.messages = MessageSplitter(keep=is_looked_at)
        events: list[Event] = []
        for flag, message in self.messages.feed(data):
            self.count += 1
            if flag or self.check is not None or self.kept is not None:
                wrong = self._look(flag, message)
                if wrong is not None:
                    events.append(wrong)
                    return events
            if self.streamed:
                events.append(ONE_TOKEN)
        if end:
            events.append(Fail("cut_short", "the stream ended without trailers", True))
        return events

    def _look(self, flag: int, message: bytes) -> Fail | None:
        try:
            message = unpacked(flag, message, self.encoding)
        except ValueError as error:
            return Fail("malformed_grpc", bounded(str(error)), True)
        if self.kept is not None:
            self.kept.append(message)
        said = self.check(message) if self.check is not None else ""
        return Fail("error_frame", bounded(said), True) if said else None

    def _finish(self, headers: Fields, end: bool) -> Sequence[Event]:
        """The trailers, which may be all there is."""
        self.trailers = headers
        if headers is _Seen.end and self.messages is None and (self.count == 1 or self.streamed):
            return _ENDED
        status = message = timing = None
        for name, value in headers:
            if name == b"grpc-status":
                status = value
            elif name == b"grpc-message":
                message = value
            elif name == server_timing.NAME:
                timing = value if timing is None else timing + b"," + value
            elif name == b":status":
                self.status = int(value) if value.isdigit() else 0
        if status == b"0":
            return self._ended_well(headers, timing)
        if status is None:
            if self.status not in (0, 200):
                return (_http_failure(self.status, headers),)
            return (Fail("malformed_grpc", "the answer has no grpc-status", True),)
        return (Fail(f"grpc_{status_name(status)}", _told(message or b""), True),)

    def _ended_well(self, headers: Fields, timing: bytes | None) -> Sequence[Event]:
        """The server says so: is the answer there?"""
        if self.messages is not None and self.messages.is_within:
            return (Fail("cut_short", "the stream ended in the middle of a message", True),)
        if self.count != 1 and not self.streamed:
            return (_not_one_answer(self.count),)
        said = server_timing.parse(timing) if timing is not None else None
        if said is not None:
            return (said, _END)
        _Seen.end = headers
        return _ENDED


def status_name(status: bytes) -> str:
    return STATUS[int(status)] if status.isdigit() and int(status) < len(STATUS) else bounded(status.decode("latin-1"))


def status_number(name: str) -> int:
    """The number that `status_name` has the name of; UNKNOWN for one that gRPC does not have."""
    return STATUS.index(name if name in STATUS else "UNKNOWN")


def _told(message: bytes) -> str:
    """grpc-message in words: it is UTF-8, percent-encoded."""
    return bounded(unquote_to_bytes(message).decode("utf-8", "replace"))


def _not_one_answer(count: int) -> Fail:
    if count:
        return Fail("malformed_grpc", "a call that has one answer was given several", True)
    return Fail("cut_short", "the call ended well but without an answer", True)


def _http_failure(status: int, headers: Fields) -> Fail:
    message = next((value for name, value in headers if name == b"grpc-message"), b"")
    return Fail(f"http_{status}", _told(message), True)
