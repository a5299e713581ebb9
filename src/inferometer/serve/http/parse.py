"""Parses HTTP/1.1 requests, one at a time. Sans-IO: no socket and no clock; the arrival time is passed in with the bytes.

A request arrived when its last bytes did. A body of known length goes into one buffer of that length: what arrived with
the headers is copied there, and for the rest `room` is where the socket may write directly (`filled` reports how much
it wrote). Invalid or too many bytes raise a Problem, after which nothing more can be parsed. An Upgrade is declined by
ignoring it, as the standard allows.
"""

import re

import msgspec

from inferometer.serve.memory import untouched
from inferometer.serve.settings import Limits

_USED = frozenset(
    (
        b"accept", b"accept-encoding", b"authorization", b"connection", b"content-encoding", b"content-length",
        b"content-type", b"expect", b"inference-header-content-length", b"transfer-encoding", b"x-api-key",
        b"x-request-id", b"x-sim-fault",
    )
)  # fmt: skip
_LINE = rb"(?:\r\n)?([A-Z]+) ([!-~\x80-\xff]+) HTTP/1\.([01])"
_FIRST_LINE = re.compile(_LINE + rb"\r\n")
_HEAD = re.compile(_LINE + rb"((?:\r\n[!#$%&'*+.^_`|~\w-]+:[\t -~\x80-\xff]*)*)")
_DIGITS, _HEX_DIGITS = re.compile(rb"\d{1,18}"), re.compile(rb"[0-9a-fA-F]{1,15}")
_HOST = re.compile(rb"https?://[^/]*", re.IGNORECASE)
_FRAMING = (b"content-length", b"transfer-encoding")
_CHUNKED = -1


class Request(msgspec.Struct, eq=False):
    """A parsed HTTP request."""

    method: bytes = b""
    path: bytes = b""
    """Without the query, and without scheme and host of an absolute URL."""
    headers: dict[bytes, bytes] = {}
    """Lower-case names; only headers that the server uses."""
    body: bytes | memoryview = b""
    keep_alive: bool = True
    http10: bool = False
    id: bytes = b""
    """The header X-Request-Id."""
    began: int = 0
    arrived: int = 0
    """When its headers and its last bytes arrived."""


class Problem(Exception):  # noqa: N818  (a response)
    """An error response; after one of the parser's, the connection cannot be parsed further and is closed."""

    def __init__(self, status: int, message: str, headers: bytes = b"") -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers


_Head = tuple[bytes, bytes, dict[bytes, bytes], bool, bool, int]
"""Method, path, headers, whether the connection is kept, whether it is HTTP/1.0, and the size of the body or _CHUNKED."""


class RequestParser:
    """The parser of one connection."""

    __slots__ = (
        "_body", "_expected", "_left", "_length", "_max_body", "_max_head", "_trailers", "kept_at", "request", "rest", "room",
        "wants_continue",
    )  # fmt: skip

    def __init__(self, limits: Limits | None = None) -> None:
        self.request: Request | None = None
        """The request that is incomplete or not valid, as far as it is known."""
        self.room: memoryview | None = None
        """Buffer for the rest of a body."""
        self.wants_continue = False
        """Whether the client waits for `100 Continue` before it sends the body."""
        self.kept_at = 0
        """When the last bytes in `rest` arrived."""
        self.rest = b""
        """Bytes that are not parsed yet."""
        limits = limits or Limits()
        self._max_head, self._max_body = limits.head, limits.message
        self._length = 0
        self._body: memoryview | bytearray = memoryview(b"")
        self._left = self._trailers = 0  # bytes of a chunk that are still to come; bytes of trailers
        self._expected = "size"  # the next line of a chunked body: size, end (of a chunk) or trailer

    @property
    def is_in_head(self) -> bool:
        """Whether a request has begun and its headers are incomplete."""
        return self.request is None and bool(self.rest)

    @property
    def is_partial(self) -> bool:
        """Whether a request has begun and is incomplete."""
        return self.request is not None or bool(self.rest)

    def keep(self, data: bytes, arrived: int) -> None:
        """Take bytes that will be parsed by the next call of `feed`."""
        self.rest += data
        self.kept_at = arrived

    def feed(self, data: bytes, arrived: int) -> Request | None:
        """Return the request that `data` completes, or None. What follows it is kept: call again with b""."""
        if self.rest:
            data, self.rest = self.rest + data, b""
        at, self.kept_at = 0, arrived
        if self.request is None:
            at = data.find(b"\r\n\r\n") + 4
            if not 4 <= at <= self._max_head:
                self._check_start(data, at)
                return None
            try:
                request, length = _parse(data[: at - 4])
            except Problem:
                self.request = _started(data)
                raise
            request.began = request.arrived = arrived
            if length == len(data) - at and length <= self._max_body:  # the common case: nothing else
                request.body = data[at:]
                return request
            self.request, self._length = request, length
            if length > self._max_body:
                raise self._too_large()
            self.wants_continue = b"expect" in request.headers
        if self._length == _CHUNKED:
            return self._take_chunks(data, at, arrived)
        end = at + self._length
        if len(data) >= end:
            self.rest = data[end:]
            return self._complete(data[at:end], arrived)
        self._make_room(memoryview(data)[at:])
        return None

    def filled(self, count: int, arrived: int) -> Request | None:
        """Note that `count` bytes were written to `room`; return the request if it is complete."""
        assert self.room is not None
        self.room = self.room[count:]
        if self.room:
            return None
        self.room = None
        return self._complete(memoryview(self._body), arrived)

    def _complete(self, body: bytes | memoryview, arrived: int) -> Request | None:
        """Return the request and keep no reference to it: a body may be large, and the connection idle for long."""
        request, self.request, self._body = self.request, None, memoryview(b"")
        assert request is not None
        request.body, request.arrived = body, arrived
        self.wants_continue = False
        return request

    # --- headers ---

    def _check_start(self, data: bytes, end: int) -> None:
        """Keep the start of a request, unless it is too long or not HTTP."""
        if len(data) > self._max_head or end > 4:
            self.request = _started(data)
            raise Problem(431, f"the request headers are larger than {self._max_head} bytes")
        if data and not (data[:1].isalpha() or data.startswith(b"\r")):
            raise Problem(400, "not a valid HTTP/1.1 request")
        self.rest = data

    # --- bodies ---

    def _make_room(self, start: memoryview) -> None:
        try:
            self._body = body = untouched(self._length)
        except MemoryError:
            raise Problem(413, f"not enough memory for a request body of {self._length} bytes") from None
        body[: len(start)] = start
        self.room = body[len(start) :]

    def _take_chunks(self, data: bytes, at: int, arrived: int) -> Request | None:
        if not isinstance(self._body, bytearray):
            self._body, self._expected, self._trailers = bytearray(), "size", 0
        while True:
            if self._left:
                piece = data[at : at + self._left]
                self._body += piece
                self._left -= len(piece)
                at += len(piece)
                if len(self._body) > self._max_body:
                    raise self._too_large()
            end = data.find(b"\r\n", at)
            if self._left or end < 0:
                if len(data) - at > self._max_head:
                    raise Problem(431, f"a line of the chunked body is larger than {self._max_head} bytes")
                self.rest = data[at:]
                return None
            is_complete = self._take_line(data[at:end])
            at = end + 2
            if is_complete:
                self.rest = data[at:]
                return self._complete(memoryview(self._body), arrived)

    def _take_line(self, line: bytes) -> bool:
        """Take the line before, after or behind the chunks; return whether it was the last."""
        if self._expected == "trailer":
            self._trailers += len(line)
            if self._trailers > self._max_head:
                raise Problem(431, f"the trailers are larger than {self._max_head} bytes")
            return not line
        size = line.partition(b";")[0].strip()
        if line if self._expected == "end" else not _HEX_DIGITS.fullmatch(size):
            raise Problem(400, "the chunked body is not valid")
        if self._expected == "end":
            self._expected = "size"
        else:
            self._left = int(size, 16)
            self._expected = "end" if self._left else "trailer"
        return False

    def _too_large(self) -> Problem:
        return Problem(413, f"the request body is larger than {self._max_body} bytes")


# --- the headers of a request ----------------------------------------------------------------------------------------

_ID = b"\r\nX-Request-Id: "
_known: dict[bytes, _Head] = {}
"""Headers that were parsed before, without their X-Request-Id: clients send the same again and again."""
_MOST_KNOWN, _REMEMBERED = 1024, 2048


def _parse(head: bytes) -> tuple[Request, int]:
    """Return the request with this first line and headers, and the size of its body, or _CHUNKED; raises Problem."""
    before, _, after = head.partition(_ID)
    id_, _, rest = after.partition(b"\r\n")
    if id_.replace(b"-", b"").isalnum():
        head = before + b"\r\n" + rest
    else:
        id_ = b""
    method, path, headers, keep_alive, http10, length = _known.get(head) or _remember(head)
    id_ = id_ or headers.get(b"x-request-id", b"")
    return Request(method, path, headers, b"", keep_alive, http10, id_), length


def _remember(head: bytes) -> _Head:
    known = _parse_all(head.removesuffix(b"\r\n"))
    if len(head) <= _REMEMBERED:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[head] = known
    return known


def _parse_all(head: bytes) -> _Head:
    found = _HEAD.fullmatch(head)
    if found is None:
        raise Problem(400, "not a valid HTTP/1.1 request")
    headers: dict[bytes, bytes] = {}
    for line in found[4].split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        name = name.lower()
        if name in _FRAMING and name in headers:
            raise Problem(400, f"the header {name.decode()} is repeated")
        if name in _USED:
            headers[name] = value.strip()
    http10 = found[3] == b"0"
    options = headers.pop(b"connection", b"").lower().replace(b" ", b"").split(b",")
    keep_alive = not http10 and b"close" not in options
    return found[1], _path(found[2]), headers, keep_alive, http10, _length(headers)


def _length(headers: dict[bytes, bytes]) -> int:
    """Return the size of the body, or _CHUNKED."""
    coding, size = headers.pop(b"transfer-encoding", b""), headers.get(b"content-length")
    if coding and coding.lower() != b"chunked":
        why = f"unsupported Transfer-Encoding {coding.decode('latin-1')!r:.60}: only 'chunked' is supported"
        raise Problem(501, why)
    if (coding and size is not None) or (size is not None and not _DIGITS.fullmatch(size)):
        raise Problem(400, "the size of the request body is not clear: send one Content-Length, or chunks")
    return _CHUNKED if coding else int(size or 0)


def _started(data: bytes) -> Request:
    """Return what is known of a request that is incomplete or not valid."""
    line = _FIRST_LINE.match(data)
    return Request(line[1], _path(line[2])) if line else Request()


def _path(target: bytes) -> bytes:
    """Return the path of a request target without the query; absolute URLs are accepted (RFC 9112, 3.2.2)."""
    path = target.partition(b"?")[0]
    if not path.startswith(b"/") and (host := _HOST.match(path)):
        return path[host.end() :] or b"/"
    return path
