"""HTTP/1.1, client side: request heads, and the framing of responses (parsed by httptools).

The body of a response goes piece by piece to a `BodyDecoder`, which interprets it. One `ResponseDecoder` serves a connection
for its whole lifetime: `reset` prepares it for the next response.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import httptools

from inferometer.types import End, Event, Fail
from inferometer.wire import server_timing
from inferometer.wire.failures import bounded, is_tls
from inferometer.wire.target import Target

_MAX_KEPT = 4096
"""Bytes of an error response that are kept for its message."""


HTTP2 = "the server speaks HTTP/2 (gRPC?), not HTTP/1.1"
TLS = "the server speaks TLS, not plain HTTP/1.1"
FRAME_HEAD = 9
"""Number of bytes that `is_http2` needs to decide."""
_SETTINGS = 4

_END_KEPT, _END = End(keep_alive=True), End(keep_alive=False)


class BodyDecoder(Protocol):
    """Interprets the body of a response with status 200."""

    def reset(self) -> None: ...

    def feed(self, piece: bytes, events: list[Event]) -> None:
        """Append the events of `piece`; a Fail ends the response."""

    def finish(self, events: list[Event]) -> Fail | None:
        """Handle the end of the body: append the last events, or return the reason if the response is a failure."""

    @property
    def text(self) -> str: ...


def is_http2(start: bytes) -> bool:
    """Whether the bytes begin with a SETTINGS frame on stream 0."""
    return len(start) >= FRAME_HEAD and start[3] == _SETTINGS and start[5:FRAME_HEAD] == bytes(4)


def request_head(method: str, path: str, host: str, headers: Mapping[str, str]) -> bytes:
    """Encode the request line and headers, without the blank line that ends them."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers.items())]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def numbered(
    targets: Sequence[Target],
    path: str,
    headers: Mapping[str, str],
    bodies: Iterable[tuple[Mapping[str, str], bytes]],
    tag: str,
) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Encode POST requests as the heads and tails that `types.Calls` describes.

    All requests share `headers`; each entry of `bodies` adds its own headers. The X-Request-Id of a request is TAG-ID. The
    tag is unique to the run because some servers use the header as a key and would mix up two runs that both count from 0.
    """
    return _heads(targets, path, headers, tag), tuple(tail(extra, body) for extra, body in bodies)


def tail(headers: Mapping[str, str], body: bytes) -> bytes:
    """Encode what follows a request's id: the remaining headers, and the body."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return b"\r\n%bContent-Length: %d\r\n\r\n%b" % (lines.encode("latin-1"), len(body), body)


def class_heads(
    targets: Sequence[Target],
    path: str,
    headers: Mapping[str, str],
    tag: str,
    class_headers: Sequence[Mapping[str, str]],
) -> tuple[tuple[bytes, ...], ...]:
    """Encode the heads of each traffic class, whose own headers override those that all requests share."""
    return tuple(_heads(targets, path, headers, tag, own) for own in class_headers)


def _heads(
    targets: Sequence[Target], path: str, headers: Mapping[str, str], tag: str, own: Mapping[str, str] | None = None
) -> tuple[bytes, ...]:
    own = own or {}
    own_names = {name.lower() for name in own}
    heads = []
    for target in targets:
        credentials = {"Authorization": target.credentials} if target.credentials else {}
        shared = {n: value for n, value in (credentials | dict(headers)).items() if n.lower() not in own_names}
        head = request_head("POST", target.prefix + path, target.authority, shared | dict(own))
        heads.append(head + f"X-Request-Id: {tag}-".encode())
    return tuple(heads)


class ResponseDecoder:
    """Decodes the responses of one connection, one after another, into events.

    The caller must stop reading events of a response at the first End or Fail.
    """

    __slots__ = ("_body", "_events", "_head", "_kept", "_parser", "status")

    def __init__(self, body: BodyDecoder) -> None:
        self._body = body
        self._events: list[Event] = []
        self._parser = httptools.HttpResponseParser(self)
        self.reset()

    def reset(self) -> None:
        """Prepare for the next response on the same connection."""
        self.status = 0
        self._head = b""  # the bytes before the body and the first piece of it
        self._kept = b""  # the start of the body if the status is not 200
        self._body.reset()

    @property
    def text(self) -> str:
        return self._body.text

    @property
    def finish_reason(self) -> str | None:
        """Why the generation ended, if the API and the server say so."""
        reason: str | None = getattr(self._body, "finish_reason", None)
        return reason

    @property
    def body(self) -> BodyDecoder:
        """The decoder of the body."""
        return self._body

    def feed(self, data: bytes) -> Sequence[Event]:
        events: list[Event] = []
        self._events = events
        if not self.status:
            self._head += data
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            events.append(Fail("malformed_http", "the server switched protocols"))
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None  # raised by a callback, such as KeyboardInterrupt
        except httptools.HttpParserError as error:
            details = f"{error}; the response starts with {self._head[:60]!r}"
            other_protocol = HTTP2 if is_http2(self._head) else TLS if is_tls(self._head) else ""
            events.append(Fail("malformed_http", bounded(other_protocol or details)))
        return events

    def eof(self) -> Sequence[Event]:
        """Handle the server's close: it properly ends a response without a length and truncates any other."""
        self._events = []
        if not self._head:
            return [Fail("closed", "")]
        head, end, _ = self._head.partition(b"\r\n\r\n")
        fields = head.lower()
        if not end or b"\r\ncontent-length:" in fields or b"\r\ntransfer-encoding:" in fields:
            return [Fail("cut_short", "")]
        self.on_message_complete()
        return self._events or [Fail("cut_short", "")]  # only a 1xx response arrived

    # --- called by httptools ---

    def on_body(self, piece: bytes) -> None:
        if self.status == 200:
            self._body.feed(piece, self._events)
            return
        self.status = self._parser.get_status_code()
        if self.status == 200:
            self._body.feed(piece, self._events)
        elif len(self._kept) < _MAX_KEPT:
            self._kept += piece[:_MAX_KEPT]

    def on_message_complete(self) -> None:
        keep_alive = self._parser.should_keep_alive()  # false if the response ends with the connection
        status = self.status or self._parser.get_status_code()
        if status == 200:
            failure = self._body.finish(self._events)
            if failure is None:
                self._events.append(_END_KEPT if keep_alive else _END)
            else:
                self._events.append(Fail(failure.code, failure.message, keep_alive))
        elif status >= 200:  # after a 1xx (100 Continue, 103 Early Hints) the response is still to come
            self._events.append(Fail(f"http_{status}", error_message(self._kept), keep_alive))
        self.status = status if status >= 200 else 0


class TimedResponseDecoder(ResponseDecoder):
    """A ResponseDecoder that also reads the Server-Timing header.

    It is a class of its own because a callback for every header costs time, which other APIs should not pay.
    """

    __slots__ = ("_timing",)

    def reset(self) -> None:
        super().reset()
        self._timing = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == len(server_timing.NAME) and name.lower() == server_timing.NAME:
            self._timing += b"," + value  # header lines of the same name form one list

    def on_message_complete(self) -> None:
        if self._timing:
            timing, self._timing = server_timing.parse(self._timing), b""
            if timing is not None:
                self._events.append(timing)
        super().on_message_complete()


class TokenResponseDecoder(ResponseDecoder):
    """A ResponseDecoder that also keeps the value of one header, the token of a session. A class of its own for the same reason."""

    __slots__ = ("_name", "token")

    def __init__(self, body: BodyDecoder, name: str) -> None:
        self._name = name.lower().encode()
        super().__init__(body)

    def reset(self) -> None:
        super().reset()
        self.token = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == len(self._name) and name.lower() == self._name:
            self.token = value


def error_message(body: bytes) -> str:
    """Extract the message of an error body: OpenAI's error.message, FastAPI's detail, or the text itself."""
    try:
        tree = json.loads(body)
    except ValueError:
        return bounded(body.decode("utf-8", "replace"))
    for key in ("error", "detail", "message"):
        if isinstance(tree, dict) and tree.get(key):
            inner = tree[key]
            if isinstance(inner, dict) and isinstance(inner.get("message"), str):
                return bounded(inner["message"])
            return bounded(inner if isinstance(inner, str) else json.dumps(inner))
    return bounded(body.decode("utf-8", "replace"))


def not_json(body: bytes, error: str) -> Fail:
    """Describe a body, or the data of an event, that is not the expected JSON."""
    if body.lstrip()[:1] in (b"{", b"["):
        return Fail("malformed_json", bounded(f"{error}: {body[:200].decode('utf-8', 'replace')}"))
    return Fail("not_json", bounded(body[:400].decode("utf-8", "replace")))
