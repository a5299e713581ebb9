"""A streaming server that does not set TCP_NODELAY, like one that was never tried over a real network.

It writes each event in two parts. Nagle's algorithm holds the second part back until the client has acknowledged the first, and
the client's kernel delays that by up to 40 ms: events that were written 5 ms apart arrive together.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

GAP_S = 0.005
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@contextlib.contextmanager
def nagle_server() -> Iterator[str]:
    """Serve /v1/models and /v1/completions on any free port; yields the URL."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def _accept(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_serve, args=(connection,), daemon=True).start()


def _serve(connection: socket.socket) -> None:
    with contextlib.suppress(OSError), connection, connection.makefile("rb") as reader:
        while line := reader.readline():
            headers = {}
            while (header := reader.readline().strip()) != b"":
                name, _, value = header.partition(b":")
                headers[name.lower()] = value.strip()
            body = reader.read(int(headers.get(b"content-length", b"0")))
            if line.startswith(b"POST"):
                _stream(connection, json.loads(body).get("max_tokens", 16))
            else:
                models = json.dumps({"object": "list", "data": [{"id": "nagle", "object": "model"}]}).encode()
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(models) + models)


def _stream(connection: socket.socket, tokens: int) -> None:
    connection.sendall(_HEAD)
    for number in range(tokens):
        reason = "length" if number == tokens - 1 else None
        _event(connection, {"choices": [{"index": 0, "text": f" {number}", "finish_reason": reason}]})
        time.sleep(GAP_S)
    _event(connection, {"choices": [], "usage": {"prompt_tokens": 64, "completion_tokens": tokens}})
    data = b"data: [DONE]\n\n"
    connection.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))


def _event(connection: socket.socket, event: object) -> None:
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    connection.sendall(b"%x\r\n" % len(data))
    connection.sendall(data + b"\r\n")
