"""HTTP/1.1, server side: parses requests, one at a time. Sans-IO: no socket and no clock; the arrival time is passed in with the
bytes.

A request arrived when its last bytes did. A body of known length goes into one buffer of that length: what arrived with
the headers is copied there, and for the rest `room` is where the socket may write directly (`filled` reports how much
it wrote). Invalid or too many bytes raise a Problem, after which nothing more can be parsed. An Upgrade is declined by
ignoring it, as the standard allows.
"""

import re

import msgspec
import numpy as np

_USED = frozenset(
    (
        b"accept", b"accept-encoding", b"authorization", b"connection", b"content-encoding", b"content-length",
        b"content-type", b"expect", b"host", b"inference-header-content-length", b"transfer-encoding", b"x-api-key",
        b"x-request-id", b"x-sim-fault",
    )
)  # fmt: skip
_HEAD = re.compile(
    rb"([A-Z]+) ([!-~\x80-\xff]+) HTTP/1\.([01])"  # the request line
    rb"((?:\r\n[!#$%&'*+.^_`|~\w-]+:[\t -~\x80-\xff]*)*)"  # the headers
)
_DIGITS, _CHUNK_LINE = re.compile(rb"\d{1,18}"), re.compile(rb"([0-9a-fA-F]{1,15})(?:;[\t -~\x80-\xff]*)?")
_CHUNKED = -1


class Request(msgspec.Struct, eq=False):
    """A parsed HTTP request."""

    method: bytes = b""
    path: bytes = b""
    """Without the query."""
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

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class RequestParser:
    """The parser of one connection, with the maximum sizes of a request's headers and body."""

    __slots__ = (
        "_body", "_chunk_left", "_length", "_max_body", "_max_head", "kept_at", "request", "rest", "room", "wants_continue",
    )  # fmt: skip

    def __init__(self, max_head: int, max_body: int) -> None:
        self.request: Request | None = None
        """The request whose headers are complete and whose body is not."""
        self.room: memoryview | None = None
        """Buffer for the rest of a body."""
        self.wants_continue = False
        """Whether the client waits for `100 Continue` before it sends the body."""
        self.kept_at = 0
        """When the last bytes in `rest` arrived."""
        self.rest = b""
        """Bytes that are not parsed yet."""
        self._max_head, self._max_body = max_head, max_body
        self._length = 0
        self._body: memoryview | bytearray = memoryview(b"")
        self._chunk_left = 0  # bytes of a chunk that are still to come, with the line break after it

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
                self._keep_start(data, at)
                return None
            request, length = _parse(data[: at - 4])
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

    def _keep_start(self, data: bytes, end: int) -> None:
        """Keep the start of a request, unless it is too long or not HTTP."""
        if len(data) > self._max_head or end > 4:
            raise Problem(431, f"the request headers are larger than {self._max_head} bytes")
        if data and not data[:1].isalpha():
            raise Problem(400, "not a valid HTTP/1.1 request")
        self.rest = data

    # --- bodies ---

    def _make_room(self, start: memoryview) -> None:
        """Allocate the body, uninitialised. The system provides large buffers page by page as they are written, so that
        an announced body alone costs neither memory nor time."""
        try:
            self._body = body = np.empty(self._length, np.uint8).data
        except MemoryError:
            raise Problem(413, f"not enough memory for a request body of {self._length} bytes") from None
        body[: len(start)] = start
        self.room = body[len(start) :]

    def _take_chunks(self, data: bytes, at: int, arrived: int) -> Request | None:
        if not isinstance(self._body, bytearray):
            self._body = bytearray()
        while True:
            if self._chunk_left:
                at = self._take_chunk(self._body, data, at)
            end = data.find(b"\r\n", at)
            if self._chunk_left or end < 0:
                break
            line = _CHUNK_LINE.fullmatch(data, at, end)
            if line is None:
                raise Problem(400, "the chunked body is not valid")
            length = int(line[1], 16)
            if not length:  # the last chunk; trailers are ignored
                end = data.find(b"\r\n\r\n", end)
                if end < 0:
                    break
                self.rest = data[end + 4 :]
                return self._complete(memoryview(self._body), arrived)
            if len(self._body) + length > self._max_body:
                raise self._too_large()
            at, self._chunk_left = end + 2, length + 2
        if len(data) - at > self._max_head:
            raise Problem(431, f"a line of the chunked body is larger than {self._max_head} bytes")
        self.rest = data[at:]
        return None

    def _take_chunk(self, body: bytearray, data: bytes, at: int) -> int:
        """Take what has arrived of a chunk and the line break after it; return where it ends."""
        piece = data[at : at + self._chunk_left]
        body += piece
        self._chunk_left -= len(piece)
        if not self._chunk_left:
            if not body.endswith(b"\r\n"):
                raise Problem(400, "the chunked body is not valid")
            del body[-2:]
        return at + len(piece)

    def _too_large(self) -> Problem:
        return Problem(413, f"the request body is larger than {self._max_body} bytes")


# --- the headers of a request ----------------------------------------------------------------------------------------

_Head = tuple[bytes, bytes, dict[bytes, bytes], bool, bool, int]
"""Method, path, headers, whether the connection is kept, whether it is HTTP/1.0, and the size of the body or _CHUNKED."""
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
        name, value = name.lower(), value.strip()
        if name in _USED:  # a repeated header is a list: no valid size of a body
            headers[name] = headers[name] + b"," + value if name in headers else value
    http10, host = found[3] == b"0", headers.pop(b"host", None)
    if not http10 and (host is None or b"," in host):
        raise Problem(400, "an HTTP/1.1 request needs one Host header")
    options = headers.pop(b"connection", b"").lower().replace(b" ", b"").split(b",")
    keep_alive = not http10 and b"close" not in options
    return found[1], found[2].partition(b"?")[0], headers, keep_alive, http10, _length(headers)


def _length(headers: dict[bytes, bytes]) -> int:
    """Return the size of the body, or _CHUNKED."""
    coding, size = headers.pop(b"transfer-encoding", None), headers.get(b"content-length")
    if coding is None:
        if size is None:
            return 0
        if _DIGITS.fullmatch(size):
            return int(size)
    elif coding.lower() == b"chunked" and size is None:
        return _CHUNKED
    raise Problem(
        400, "the size of the request body is not clear: send one Content-Length, or Transfer-Encoding: chunked"
    )
