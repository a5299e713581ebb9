"""The bytes of HTTP answers: heads, whole responses, chunk framing."""

from http import HTTPStatus

LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
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
    """A whole response. `promise` says keep-alive outright; `with_body` is off for HEAD."""
    return b"".join(
        (
            b"HTTP/1.1 %d %b\r\nServer: inferometer\r\n" % (status, HTTPStatus(status).phrase.encode()),
            b"Content-Type: %b\r\nContent-Length: %d\r\n" % (content_type, len(body)),
            extra,
            b"" if keep_alive else b"Connection: close\r\n",
            _PROMISE if promise else b"",
            b"\r\n",
            body if with_body else b"",
        )
    )


_PROMISE = b"Connection: keep-alive\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: inferometer\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n"
)
