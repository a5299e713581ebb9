"""Parses HTTP/1.1 requests. Sans-IO: no socket and no clock; the arrival time is passed in with the bytes.

A request arrived when its last bytes did. A body of known length goes into one buffer of that length: what arrived with
the headers is copied there, and for the rest `room` is where the socket may write directly (`filled` reports how much
it wrote). Invalid or too many bytes result in a Problem, after which nothing more is read from the connection. An
Upgrade is declined by continuing with HTTP/1.1, as the standard allows; the request keeps its body.

Most requests on a connection have the same headers, except for X-Request-Id. `repeated` recognizes such a request by
comparing bytes, without parsing it again.
"""

from typing import Any

import httptools

from inferometer.serve.memory import untouched
from inferometer.serve.settings import Limits

_KEPT = frozenset(
    (
        b"accept", b"accept-encoding", b"authorization", b"content-encoding", b"content-length", b"content-type", b"expect",
        b"inference-header-content-length", b"x-api-key", b"x-request-id", b"x-sim-fault",
    )
)  # fmt: skip
_USUAL = Limits()
_ID = b"x-request-id"
_ID_CHARACTERS = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-._:/"
_LONGEST_ID = 128
_CHUNKS_FOLLOW = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


class Request:
    """A parsed HTTP request."""

    __slots__ = ("arrived", "body", "headers", "http10", "keep_alive", "method", "path", "was_let_in")

    def __init__(
        self,
        method: bytes = b"",
        path: bytes = b"",
        headers: dict[bytes, bytes] | None = None,
        body: bytes | memoryview = b"",
    ) -> None:
        self.method = method
        self.path = path
        """Without the query, and without scheme and host of an absolute URL."""
        self.headers = {} if headers is None else headers
        """Lower-case names; only headers that the server uses."""
        self.body = body
        self.keep_alive = True
        self.http10 = False
        self.arrived = 0
        self.was_let_in = False
        """Whether its headers arrived before new requests were refused."""


_NONE = Request()


class Problem:
    """An error after which the connection cannot be parsed further, with the status to respond with before closing."""

    __slots__ = ("message", "request", "status")

    def __init__(self, status: int, message: str, request: Request) -> None:
        self.status = status
        self.message = message
        self.request = request
        """The request as far as it is known; its headers may be incomplete."""


class RequestParser:
    """The parser of one connection. The methods from `on_url` on are callbacks of httptools."""

    __slots__ = (
        "_buffer", "_codings", "_done", "_fed", "_head", "_in_body", "_last", "_last_start", "_last_tail", "_length",
        "_limits", "_parser", "_pieces", "_problem", "_request", "_size", "is_partial", "room", "wants_continue",
    )  # fmt: skip

    def __init__(self, limits: Limits = _USUAL) -> None:
        self.wants_continue = False
        """Whether the client waits for `100 Continue` before it sends the body."""
        self.is_partial = False
        """Whether a request has begun and is incomplete."""
        self.room: memoryview | None = None
        """Buffer for the rest of a body."""
        self._limits = limits
        self._parser: Any = httptools.HttpRequestParser(self)
        self._problem: Problem | None = None
        self._done: list[Request | Problem] = []
        self._fed = 0  # bytes since the last headers or piece of a body
        self._last: tuple[bytes, bytes, dict[bytes, bytes]] | None = None  # method, path and headers
        self._last_start = self._last_tail = b""  # its headers up to the value of X-Request-Id, and the rest
        self.on_message_begin()
        self.is_partial = False

    @property
    def is_in_head(self) -> bool:
        """Whether a request has begun and its headers are incomplete."""
        return self.is_partial and not self._in_body

    @property
    def is_let_in(self) -> bool:
        """Whether an incomplete request will be served although new ones are refused."""
        return self.is_partial and self._request.was_let_in

    def let_in(self) -> None:
        """Admit a request whose headers have arrived: new requests are refused from now on."""
        if self.is_partial and self._in_body:
            self._request.was_let_in = True

    def repeated(self, data: bytes) -> Request | None:
        """Return the request if `data` is one that differs from the last one in its X-Request-Id and body only, and if
        nothing else is expected. (`feed` returns the same, but takes longer.)"""
        last, start = self._last, self._last_start
        if last is None or self.is_partial or not data.startswith(start):
            return None
        at, (method, path, headers) = len(start), last
        if tail := self._last_tail:
            end = data.find(b"\r", at)
            name = data[at:end]
            is_plain = len(name) <= _LONGEST_ID and not name.translate(None, _ID_CHARACTERS)
            if not (name and is_plain and data.startswith(tail, end)):
                return None
            at = end + len(tail)
            headers = headers.copy()
            headers[_ID] = name
        if len(data) - at != self._length:
            return None
        return Request(method, path, headers, data[at:])

    def _remember(self, request: Request, data: bytes) -> None:
        """Prepare `repeated` for requests like this one, if that is all that `data` contains."""
        end = len(data) - self._length
        head, lower = data[:end], data[:end].lower()
        if self._codings or b"expect" in request.headers or request.http10 or not request.keep_alive:
            return
        is_single = lower.find(b"\r\n\r\n") == end - 4 and lower.count(_ID) == (_ID in request.headers)
        if not is_single or b"\r\nupgrade:" in lower:
            return
        start, tail = head, b""
        if name := request.headers.get(_ID):
            before, _, tail = head.partition(b" %b\r\n" % name)
            start, tail = before + b" ", b"\r\n" + tail
            if not start.lower().endswith(_ID + b": "):
                return
        self._last = request.method, request.path, request.headers
        self._last_start, self._last_tail = start, tail

    def feed(self, data: bytes | memoryview, arrived: int) -> list[Request | Problem]:
        """Return the requests that `data` completes; after a Problem, nothing more."""
        is_new, self._last = not self.is_partial, None
        taken = self._take(data, arrived)
        done = self._handed_over()
        if is_new and len(done) == 1 and not self.is_partial and taken == len(data) and isinstance(done[0], Request):
            self._remember(done[0], bytes(data))
        while taken < len(data):
            data = memoryview(data)[taken:]
            taken = self._take(data, arrived)
            done += self._handed_over()
        return done

    def _take(self, data: bytes | memoryview, arrived: int) -> int:
        """Return how many bytes were processed; what follows a body or an Upgrade is left over."""
        if self._problem is not None:
            return len(data)
        if self.room is not None:
            count = min(len(self.room), len(data))
            self.room[:count] = data[:count]
            self._fill(count, arrived)
            return count
        self._fed += len(data)
        taken = len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade()
            taken = int(upgrade.args[0])
        except httptools.HttpParserError:
            self._refuse(400, "not a valid HTTP/1.1 request")
        if self._fed > self._limits.head:
            self._refuse(431, f"the request headers are larger than {self._limits.head} bytes")
        if self._problem is not None:
            self._done.append(self._problem)
        elif self._in_body and self._length:
            self._make_room()
        self._stamp(self._done, arrived)
        return taken

    def filled(self, count: int, arrived: int) -> list[Request | Problem]:
        """Note that `count` bytes were written to `room`; return the completed requests."""
        self._fill(count, arrived)
        return self._handed_over()

    def _fill(self, count: int, arrived: int) -> None:
        assert self.room is not None
        self._size += count
        self.room = self.room[count:]
        if self.room:
            return
        self.room = None
        self._parser = httptools.HttpRequestParser(self)  # the old parser still expects this body
        self.on_message_complete()
        self._stamp(self._done, arrived)

    def _handed_over(self) -> list[Request | Problem]:
        """Return what is complete and keep no reference to it: a body may be large, and the connection idle for long."""
        done, self._done = self._done, []
        return done

    def give_up(self, status: int, message: str, arrived: int) -> Problem:
        """Stop waiting for the rest of the current request."""
        self._refuse(status, message)
        assert self._problem is not None
        self._stamp([self._problem], arrived)
        return self._problem

    def close(self) -> None:
        """Break the reference cycle with httptools' parser."""
        self._parser = None
        self.room = None
        self._problem = Problem(400, "closed", _NONE)

    def on_message_begin(self) -> None:
        self._request = Request()
        self._codings: list[bytes] = []
        self._head = 0
        self._length = 0
        self._size = 0
        self._in_body = False
        self._buffer: memoryview | None = None  # for a body of known length
        self._pieces: bytearray | None = None  # for a chunked body
        self.is_partial = True

    def on_url(self, url: bytes) -> None:
        self._request.path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head += len(name) + len(value) + 4
        if self._in_body:
            return  # a trailer
        name = name.lower()
        if name in _KEPT:
            self._request.headers[name] = value
        elif name == b"transfer-encoding":
            self._codings += [coding.strip().lower() for coding in value.split(b",")]

    def on_headers_complete(self) -> None:
        request, parser = self._request, self._parser
        self._in_body = True
        self._fed = 0
        if self._head + len(request.path) > self._limits.head:
            self._refuse(431, f"the request headers are larger than {self._limits.head} bytes")
        request.method = parser.get_method()
        request.path = _path(request.path)
        request.http10 = parser.get_http_version() == "1.0"
        request.keep_alive = parser.should_keep_alive()
        self._length = int(request.headers.get(b"content-length", b"0"))
        if self._codings not in ([], [b"chunked"]):
            given = b", ".join(self._codings).decode("latin-1")
            self._refuse(501, f"unsupported Transfer-Encoding {given!r:.60}: only a single 'chunked' is supported")
        if self._length > self._limits.message:
            self._too_long()
        self.wants_continue = request.headers.get(b"expect", b"").lower() == b"100-continue" and self._problem is None

    def on_body(self, body: bytes) -> None:
        self._fed = 0
        size = self._size + len(body)
        if size > self._limits.message or self._problem is not None:
            self._too_long()
        elif size == self._length and not self._size:
            self._request.body = body
        elif self._length:
            buffer = self._make_buffer()
            buffer[self._size : size] = body
        else:
            if self._pieces is None:
                self._pieces = bytearray()
            self._pieces += body
        self._size = size

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade() and (self._length or self._codings):
            return  # only the headers are complete: see `_decline_upgrade`
        self._in_body = False
        self.is_partial = False
        self.wants_continue = False
        self._fed = 0
        if self._problem is None:
            if self._buffer is not None:
                self._request.body = self._buffer[: self._size]
            elif self._pieces is not None:
                self._request.body = memoryview(self._pieces)
            self._buffer = self._pieces = None
            self._done.append(self._request)
            self._request = _NONE

    def _decline_upgrade(self) -> None:
        """Read the body ourselves: after an Upgrade, httptools leaves everything behind the headers to the caller. A
        body of known length goes into `room`; a chunked one to a new parser."""
        self._parser = httptools.HttpRequestParser(self)
        if self._in_body and self._codings and self._problem is None:
            request, wants_continue = self._request, self.wants_continue
            self._parser.feed_data(_CHUNKS_FOLLOW)
            self._request, self.wants_continue = request, wants_continue

    def _make_room(self) -> None:
        try:
            self.room = self._make_buffer()[self._size :]
        except MemoryError:
            self._refuse(413, f"not enough memory for a request body of {self._length} bytes")
            self._done.append(self._problem)  # type: ignore[arg-type]

    def _make_buffer(self) -> memoryview:
        if self._buffer is None:
            self._buffer = untouched(self._length)
        return self._buffer

    def _too_long(self) -> None:
        self._refuse(413, f"the request body is larger than {self._limits.message} bytes")

    def _refuse(self, status: int, message: str) -> None:
        self.room = None
        self.is_partial = False
        self._buffer = self._pieces = None
        if self._problem is None:
            request = Request() if self._request is _NONE else self._request
            if request.path and not request.method:  # the headers are incomplete
                request.method = self._parser.get_method()
            self._problem = Problem(status, message, request)

    @staticmethod
    def _stamp(done: list[Request | Problem], arrived: int) -> None:
        for one in done:
            (one if isinstance(one, Request) else one.request).arrived = arrived


def _path(target: bytes) -> bytes:
    """Return the path of a request target without the query; absolute URLs are accepted (RFC 9112, 3.2.2)."""
    path = target.partition(b"?")[0]
    if path.startswith(b"/"):
        return path
    scheme, is_url, rest = path.partition(b"://")
    if not is_url or scheme.lower() not in (b"http", b"https"):
        return path
    return b"/" + rest.partition(b"/")[2]
