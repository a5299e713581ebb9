"""HTTP responses: status lines and headers, chunk framing, and complete responses to a request."""

from http import HTTPStatus

from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.sockets.transport import Data
from inferometer.wire import server_timing

LAST_CHUNK = b"0\r\n\r\n"
JOINED = 64 * 1024
"""Responses up to this size are sent in one piece."""
_EVENTS = b"Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n"
_TIMING = b"Server-Timing: %b\r\n" % server_timing.FORMAT
_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus} | {499: b"Client Closed Request"}


def reply(
    connection: Connection,
    request: Request,
    status: int,
    *body: Data,
    content_type: bytes = b"application/json",
    extra: bytes = b"",
    close: bool = False,
) -> None:
    """Send a complete response."""
    keep, length = request.keep_alive and not close, sum(map(len, body))
    start = head(status, length, keep_alive=keep, content_type=content_type, extra=extra)
    if request.method == b"HEAD":
        connection.write(start)
    elif length <= JOINED:
        connection.write(b"".join((start, *body)))
    else:
        connection.write(start, *body)
    connection.finish(keep)


def head(
    status: int,
    length: int,
    *,
    keep_alive: bool = True,
    content_type: bytes = b"application/json",
    extra: bytes = b"",
    promise: bool = False,
) -> bytes:
    """Return the status line and headers before a body of `length` bytes. `promise` adds an explicit keep-alive."""
    body = b"Content-Type: %b\r\nContent-Length: %d\r\n" % (content_type, length)
    return _head(status, body + extra, keep_alive, promise)


def stream_head(keep_alive: bool, promise: bool = False, status: int = 200, extra: bytes = b"") -> bytes:
    """Return the status line and headers before a chunked stream of server-sent events."""
    return _head(status, _EVENTS + extra, keep_alive, promise)


def _head(status: int, headers: bytes, keep_alive: bool, promise: bool) -> bytes:
    line = b"HTTP/1.1 %d %b\r\nServer: inferometer\r\n" % (status, _PHRASES.get(status, b"Unknown"))
    last = b"Connection: close\r\n" if not keep_alive else b"Connection: keep-alive\r\n" if promise else b""
    return b"".join((line, headers, last, b"\r\n"))


def chunk(data: bytes) -> bytes:
    """Return one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def timing(queue_ns: int, compute_ns: int, total_ns: int) -> bytes:
    """Return the header Server-Timing. `total_ns` is from the request's receive stamp to now."""
    return _TIMING % (queue_ns * 1e-6, compute_ns * 1e-6, total_ns * 1e-6)
