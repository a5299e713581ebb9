"""gRPC over HTTP/2, client side: header blocks, and the interpretation of a stream's frames.

A response consists of headers, messages and trailers. The trailers carry grpc-status; a response that fails at once consists
of trailers only.
"""

from collections.abc import Callable, Mapping, Sequence
from urllib.parse import unquote_to_bytes

import msgspec

from inferometer.errors import UserError
from inferometer.types import ONE_TOKEN, End, Event, Fail
from inferometer.units import format_seconds
from inferometer.wire import server_timing
from inferometer.wire.failures import bounded
from inferometer.wire.grpc_framing import PREFIX, MessageSplitter, plain, status_name, timeout
from inferometer.wire.http2.hpack import encode

_ONE_ARRIVAL = (ONE_TOKEN,)
_END = End(keep_alive=True)
_ENDED = (_END,)
_ARRIVED_AND_ENDED = (ONE_TOKEN, _END)
_NOT_METADATA = {
    *("connection", "content-length", "content-type", "host", "keep-alive", "proxy-connection", "te"),
    *("transfer-encoding", "upgrade", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding"),
}
"""Headers that belong to HTTP/1.1 or to gRPC itself."""

Check = Callable[[bytes], str]
"""Inspects a message of the response; returns the error that it carries, or an empty string."""


# --- requests --------------------------------------------------------------------------------------------------------


def header_block(
    path: str, authority: str, tls: bool, metadata: Mapping[str, str], deadline: float = 0, compression: str = "none"
) -> bytes:
    """Encode the headers of a call as an HPACK block, which can be sent on any connection, any number of times."""
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


def deadline_passed(seconds: float) -> Fail:
    """The failure of a call whose response is not complete by its deadline, which the client enforces like the server."""
    what = f"the deadline of {format_seconds(seconds)} passed before the response was complete"
    return Fail("grpc_DEADLINE_EXCEEDED", what, True)


# --- responses -------------------------------------------------------------------------------------------------------


Fields = tuple[tuple[bytes, bytes], ...]


class _LastSuccess:
    """The headers and trailers of the last successful response.

    Servers send the same header blocks again and again, and the HTTP/2 codec returns the same object for the same block, so
    nearly always an identity comparison is enough.
    """

    head: Fields = ()
    end: Fields = ()


class GrpcResponse(msgspec.Struct, gc=False):
    """Interprets the frames of one stream as a gRPC response."""

    streamed: bool = False
    """Whether each message counts as an arrival."""
    check: Check | None = None
    """Decides whether a message is an error."""
    kept: list[bytes] | None = None
    """Collects the messages; None: they are not kept."""
    status: int = 0
    count: int = 0
    trailers: Fields = ()
    messages: MessageSplitter | None = None
    """Created only if a DATA frame is not exactly one message, or if the messages must be inspected."""
    encoding: bytes = b""
    has_headers: bool = False

    @property
    def text(self) -> str:
        return ""

    @property
    def content(self) -> tuple[tuple[str, ...], bytes]:
        """The first message if it is kept, as kserve/validation.py compares it."""
        return (), self.kept[0] if self.kept else b""

    def complete(self, headers: Fields, data: bytes, trailers: Fields) -> Sequence[Event]:
        """Interpret a response that arrived all at once."""
        if headers is _LastSuccess.head and trailers is _LastSuccess.end and self.check is None and self.kept is None:
            flag, length = PREFIX.unpack_from(data) if len(data) >= 5 else (1, 0)
            if not flag and len(data) == 5 + length:
                self.status, self.count, self.trailers = 200, 1, trailers
                return _ARRIVED_AND_ENDED if self.streamed else _ENDED
        return (*self.headers(headers, False), *self.data(data, False), *self.headers(trailers, True))

    def headers(self, headers: Fields, end: bool) -> Sequence[Event]:
        if self.has_headers or end:
            return self._finish(headers, end)
        self.has_headers = True
        if headers is _LastSuccess.head:
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
            return (Fail("not_grpc", bounded(f"the server responded with {shown}"), True),)
        if not self.encoding:
            _LastSuccess.head = headers
        return ()

    def data(self, data: bytes, end: bool) -> Sequence[Event]:
        if self.messages is None:
            must_inspect = self.check is not None or self.kept is not None
            if not must_inspect and not end and len(data) >= 5:
                flag, length = PREFIX.unpack_from(data)
                if not flag and len(data) == 5 + length:  # exactly one message: nearly always
                    self.count += 1
                    return _ONE_ARRIVAL if self.streamed else ()
            self.messages = MessageSplitter(keep=must_inspect)
        events: list[Event] = []
        for flag, message in self.messages.feed(data):
            self.count += 1
            if flag or self.check is not None or self.kept is not None:
                failure = self._inspect(flag, message)
                if failure is not None:
                    events.append(failure)
                    return events
            if self.streamed:
                events.append(ONE_TOKEN)
        if end:
            events.append(Fail("cut_short", "the stream ended without trailers", True))
        return events

    def _inspect(self, flag: int, message: bytes) -> Fail | None:
        try:
            message = plain(flag, message, self.encoding)
        except ValueError as error:
            return Fail("malformed_grpc", bounded(str(error)), True)
        if self.kept is not None:
            self.kept.append(message)
        error_text = self.check(message) if self.check is not None else ""
        return Fail("error_frame", bounded(error_text), True) if error_text else None

    def _finish(self, headers: Fields, end: bool) -> Sequence[Event]:
        """Interpret the trailers, which may be the only part of the response."""
        self.trailers = headers
        if headers is _LastSuccess.end and self.messages is None and (self.count == 1 or self.streamed):
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
            return self._succeed(headers, timing)
        if status is None:
            if self.status not in (0, 200):
                return (_http_failure(self.status, headers),)
            return (Fail("malformed_grpc", "the response has no grpc-status", True),)
        return (Fail(f"grpc_{status_name(status)}", _status_message(message or b""), True),)

    def _succeed(self, headers: Fields, timing: bytes | None) -> Sequence[Event]:
        """Handle status OK: check that the response is complete."""
        if self.messages is not None and self.messages.is_mid_message:
            return (Fail("cut_short", "the stream ended in the middle of a message", True),)
        if self.count != 1 and not self.streamed:
            return (_wrong_count(self.count),)
        spent = server_timing.parse(timing) if timing is not None else None
        if spent is not None:
            return (spent, _END)
        _LastSuccess.end = headers
        return _ENDED


def _status_message(message: bytes) -> str:
    """Decode grpc-message, which is percent-encoded UTF-8."""
    return bounded(unquote_to_bytes(message).decode("utf-8", "replace"))


def _wrong_count(count: int) -> Fail:
    if count:
        return Fail("malformed_grpc", "a unary call received more than one response message", True)
    return Fail("cut_short", "the call ended with status OK but without a response message", True)


def _http_failure(status: int, headers: Fields) -> Fail:
    message = next((value for name, value in headers if name == b"grpc-message"), b"")
    return Fail(f"http_{status}", _status_message(message), True)
