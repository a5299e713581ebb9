"""HTTP/1.1 requests out of bytes. Sans-IO: no socket, no clock; the instant of arrival is handed in with the bytes.

A request arrived when its last bytes did. Bytes that are not HTTP, or too many of them, end in a Problem, after which
nothing more is read from that connection. An Upgrade is declined by going on in HTTP/1.1, as the standard allows.
"""

from typing import Any

import httptools

MAX_HEAD = 64 * 1024
MAX_BODY = 64 * 1024 * 1024

_KEPT = frozenset((b"authorization", b"content-length", b"expect", b"x-request-id", b"x-sim-fault"))


class Request:
    __slots__ = ("arrived", "body", "headers", "http10", "keep_alive", "method", "path")

    def __init__(self) -> None:
        self.method = b""
        self.path = b""
        """Without the query."""
        self.headers: dict[bytes, bytes] = {}
        """Names in lower case; only those that the server knows."""
        self.body = b""
        self.keep_alive = True
        self.http10 = False
        self.arrived = 0


class Problem:
    """Why the connection cannot be understood further: the status to answer with before it is closed."""

    __slots__ = ("message", "status")

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.message = message


class RequestParser:
    """The parser of one connection. Callbacks of httptools are the methods without underscore from `on_url` on."""

    __slots__ = (
        "_body",
        "_done",
        "_head_bytes",
        "_in_body",
        "_parser",
        "_problem",
        "_request",
        "_size",
        "wants_continue",
    )

    def __init__(self) -> None:
        self.wants_continue = False
        """The client waits for `100 Continue` before it sends the body."""
        self._parser: Any = httptools.HttpRequestParser(self)
        self._problem: Problem | None = None
        self._done: list[Request | Problem] = []
        self._head_bytes = 0
        self.on_message_begin()

    def feed(self, data: bytes, arrived: int) -> list[Request | Problem]:
        """The requests that `data` completes; after a Problem, nothing more."""
        if self._problem is not None:
            return []
        self._done = []
        if not self._in_body:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._parser = httptools.HttpRequestParser(self)
            completed = self._done
            self._stamp(completed, arrived)
            return completed + self.feed(data[upgrade.args[0] :], arrived)
        except httptools.HttpParserError:
            self._refuse(400, "the bytes are not an HTTP/1.1 request")
        if not self._in_body and self._head_bytes > MAX_HEAD:
            self._refuse(431, f"the head is over {MAX_HEAD} bytes")
        self._stamp(self._done, arrived)
        if self._problem is not None:
            self._done.append(self._problem)
        return self._done

    def close(self) -> None:
        """Break the cycle with httptools' parser."""
        self._parser = None
        self._problem = Problem(400, "closed")

    def on_message_begin(self) -> None:
        self._request = Request()
        self._body: list[bytes] = []
        self._size = 0
        self._in_body = False

    def on_url(self, url: bytes) -> None:
        self._request.path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in _KEPT:
            self._request.headers[name] = value

    def on_headers_complete(self) -> None:
        request, parser = self._request, self._parser
        self._in_body = True
        self._head_bytes = 0
        request.method = parser.get_method()
        request.path = request.path.partition(b"?")[0]
        request.http10 = parser.get_http_version() == "1.0"
        request.keep_alive = parser.should_keep_alive()
        if int(request.headers.get(b"content-length", b"0")) > MAX_BODY:
            self._refuse(413, f"the body is over {MAX_BODY} bytes")
        self.wants_continue = request.headers.get(b"expect", b"").lower() == b"100-continue" and self._problem is None

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > MAX_BODY:
            self._refuse(413, f"the body is over {MAX_BODY} bytes")
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self.wants_continue = False
        if self._problem is None:
            self._request.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            self._done.append(self._request)

    def _refuse(self, status: int, message: str) -> None:
        if self._problem is None:
            self._problem = Problem(status, message)

    @staticmethod
    def _stamp(done: list[Request | Problem], arrived: int) -> None:
        for request in done:
            if isinstance(request, Request):
                request.arrived = arrived
