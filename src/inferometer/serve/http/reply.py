"""Sends a complete response to a request."""

from inferometer.serve.http import answers
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.parse import Request
from inferometer.serve.sockets.transport import Data

JOINED = 64 * 1024
"""Responses up to this size are sent in one piece."""


def reply(
    connection: Connection,
    request: Request,
    status: int,
    *body: Data,
    content_type: bytes = b"application/json",
    extra: bytes = b"",
    close: bool = False,
) -> None:
    keep, length = request.keep_alive and not close, sum(map(len, body))
    promise = keep and request.http10
    head = answers.head(status, length, keep_alive=keep, content_type=content_type, extra=extra, promise=promise)
    if request.method == b"HEAD":
        connection.write(head)
    elif length <= JOINED:
        connection.write(b"".join((head, *body)))
    else:
        connection.write(head, *body)
    connection.finish(keep)
