"""The bytes of HTTP responses: status lines and headers, complete responses, chunk framing."""

from http import HTTPStatus

LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """Return one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def stream_head(keep_alive: bool, promise: bool = False, status: int = 200, extra: bytes = b"") -> bytes:
    """Return the status line and headers before a chunked stream of server-sent events."""
    return b"".join((_line(status), _EVENTS, extra, _connection(keep_alive, promise), b"\r\n"))


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
    return b"".join((_line(status), body, extra, _connection(keep_alive, promise), b"\r\n"))


def _line(status: int) -> bytes:
    return b"HTTP/1.1 %d %b\r\nServer: inferometer\r\n" % (status, _PHRASES.get(status, b"Unknown"))


def _connection(keep_alive: bool, promise: bool) -> bytes:
    return b"Connection: close\r\n" if not keep_alive else b"Connection: keep-alive\r\n" if promise else b""


def timing(queue_ns: int, compute_ns: int, total_ns: int) -> bytes:
    """Return the header Server-Timing in milliseconds. `total_ns` is from the request's receive stamp to now."""
    return b"Server-Timing: queue;dur=%.6f, compute;dur=%.6f, total;dur=%.6f\r\n" % (
        queue_ns * 1e-6, compute_ns * 1e-6, total_ns * 1e-6,
    )  # fmt: skip


_EVENTS = b"Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n"
_PHRASES = {status.value: status.phrase.encode() for status in HTTPStatus} | {499: b"Client Closed Request"}
