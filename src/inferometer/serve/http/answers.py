"""The bytes of HTTP responses: status lines and headers, complete responses, chunk framing."""

from http import HTTPStatus

LAST_CHUNK = b"0\r\n\r\n"
NO_EVENT = b"3\r\n:\n\n\r\n"
"""A chunk with an SSE comment, which clients ignore."""


def chunk(data: bytes) -> bytes:
    """Return one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream_head(keep_alive: bool, promise: bool = False) -> bytes:
    return _STREAM_HEAD + (b"" if keep_alive else b"Connection: close\r\n") + (_PROMISE if promise else b"") + b"\r\n"


def response(
    status: int,
    body: bytes,
    *,
    keep_alive: bool = True,
    content_type: bytes = b"application/json",
    extra: bytes = b"",
    promise: bool = False,
    with_body: bool = True,
) -> bytes:
    """Return a complete response. `promise` adds an explicit keep-alive header; `with_body` is False for HEAD."""
    start = head(status, len(body), keep_alive=keep_alive, content_type=content_type, extra=extra, promise=promise)
    return start + body if with_body else start


def head(
    status: int,
    length: int,
    *,
    keep_alive: bool = True,
    content_type: bytes = b"application/json",
    extra: bytes = b"",
    promise: bool = False,
) -> bytes:
    """Return the status line and headers before a body of `length` bytes."""
    return b"".join(
        (
            b"HTTP/1.1 %d %b\r\nServer: inferometer\r\n" % (status, _PHRASES.get(status, b"Unknown")),
            b"Content-Type: %b\r\nContent-Length: %d\r\n" % (content_type, length),
            extra,
            b"" if keep_alive else b"Connection: close\r\n",
            _PROMISE if promise else b"",
            b"\r\n",
        )
    )


def timing(queue_ns: int, compute_ns: int, total_ns: int) -> bytes:
    """Return the header Server-Timing in milliseconds. `total_ns` is from the request's receive stamp to now."""
    return b"Server-Timing: queue;dur=%.6f, compute;dur=%.6f, total;dur=%.6f\r\n" % (
        queue_ns * 1e-6, compute_ns * 1e-6, total_ns * 1e-6,
    )  # fmt: skip


def events_head(status: int, *, keep_alive: bool, extra: bytes = b"") -> bytes:
    """Return the status line and headers before a chunked stream of server-sent events."""
    line = b"HTTP/1.1 %d %b\r\n" % (status, _PHRASES.get(status, b"Unknown"))
    return b"".join((line, _EVENTS, extra, b"" if keep_alive else b"Connection: close\r\n", b"\r\n"))


_PROMISE = b"Connection: keep-alive\r\n"
_EVENTS = (
    b"Server: inferometer\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n"
)
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\n" + _EVENTS
_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus} | {499: b"Client Closed Request"}
