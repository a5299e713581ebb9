"""HTTP responses: status lines and headers, chunk framing, complete responses to a request, and errors."""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from inferometer.serve.http.connection import Connection
from inferometer.serve.models.types import Refused
from inferometer.serve.sockets.transport import Data
from inferometer.wire import server_timing
from inferometer.wire.http1_requests import Request

Write = Callable[..., None]
LAST_CHUNK = b"0\r\n\r\n"
JOINED = 64 * 1024
"""Responses up to this size are sent in one piece."""
END = {True: b"\r\n", False: b"Connection: close\r\n\r\n"}
"""The end of the headers, by whether the connection is kept."""
_EVENTS = (
    b"HTTP/1.1 200 OK\r\nServer: inferometer\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\n"
)
_CHUNKED = b"Transfer-Encoding: chunked\r\n"
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
    length, keep = sum(map(len, body)), request.keep_alive and not close
    first = head(status, length, keep, content_type, extra)
    send(connection, (first,) if request.method == b"HEAD" else (first, *body), length, keep)


def send(connection: Connection, parts: Sequence[Data], length: int, keep_alive: bool) -> None:
    """Send the head and the body, of `length` bytes, of a response."""
    if length <= JOINED:
        connection.write(b"".join(parts))
    else:
        connection.write(*parts)
    connection.finish(keep_alive)


def head(
    status: int, length: int, keep_alive: bool = True, content_type: bytes = b"application/json", extra: bytes = b""
) -> bytes:
    """Return the status line and headers before a body of `length` bytes."""
    return start(status, length, content_type, extra) + END[keep_alive]


def start(status: int, length: int, content_type: bytes = b"application/json", extra: bytes = b"") -> bytes:
    """Return what `head` does, without its end."""
    line = b"HTTP/1.1 %d %b\r\nServer: inferometer\r\n" % (status, _PHRASES.get(status, b"Unknown"))
    return b"%bContent-Type: %b\r\nContent-Length: %d\r\n%b" % (line, content_type, length, extra)


def start_stream(write: Write, request: Request, extra: bytes = b"") -> Write:
    """Send the status line and headers before a stream of server-sent events, and return what sends its chunks. HTTP/1.0,
    as proxies may use it, does not have chunks: only their data is sent, and the end of the connection is its end."""
    write(b"".join((_EVENTS, b"" if request.http10 else _CHUNKED, extra, END[request.keep_alive])))

    def write_data(chunks: bytes) -> None:
        data = b""
        while chunks:
            size, _, rest = chunks.partition(b"\r\n")
            end = int(size, 16)
            data, chunks = data + rest[:end], rest[end + 2 :]
        write(data)

    return write_data if request.http10 else write


def chunk(data: bytes) -> bytes:
    """Return one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def timing(queue_ns: int, compute_ns: int, total_ns: int) -> bytes:
    """Return the header Server-Timing. `total_ns` is from the request's receive stamp to now."""
    return _TIMING % (queue_ns * 1e-6, compute_ns * 1e-6, total_ns * 1e-6)


MESSAGES = b"/v1/messages"
"""The path of Anthropic's API."""
_TYPES = {
    401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error",
    503: "overloaded_error", 529: "overloaded_error",
}  # fmt: skip
"""Types of errors by status, as Anthropic names them."""


def check_method(request: Request, *allowed: bytes) -> None:
    """Raise Refused if the request has another method."""
    if request.method not in allowed:
        why = f"method {request.method.decode('latin-1')} is not allowed for {request.path.decode('latin-1')}"
        headers = b"Allow: %b\r\n" % b", ".join(allowed)
        raise Refused("UNIMPLEMENTED", why, status=405, label="method_not_allowed", headers=headers)


def refuse(connection: Connection, request: Request, refused: Refused, close: bool = False) -> None:
    """Send an error response."""
    body = msgspec.json.encode(error(request.path, refused))
    reply(connection, request, refused.status, body, extra=refused.headers, close=close)


def error(path: bytes, refused: Refused) -> dict[str, Any]:
    """Return the JSON of an error in the format of the path's API: Anthropic's, OpenAI's or KServe's."""
    kind = _TYPES.get(refused.status, "invalid_request_error" if refused.status < 500 else "api_error")
    if path == MESSAGES:
        return {"type": "error", "error": {"type": kind, "message": refused.message}}
    if path.startswith((b"/v1", b"/tokenize")):
        return {"error": {"message": refused.message, "type": kind, "code": refused.label}}
    return {"error": refused.message}
