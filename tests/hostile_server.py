"""A server that misbehaves in as many ways as its URL can name: `http://HOST:PORT/CASE/v1/completions`."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import msgspec

OK = b"HTTP/1.1 200 OK\r\n"
OPEN = OK + b"\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
SSE = OK + b"Content-Type: text/event-stream\r\n\r\n"
TOKEN = b'data: {"choices": [{"text": "x"}]}\n\n'
DONE = b'data: {"choices": [{"text": "x", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
MODELS = b'{"data": [{"id": "m"}]}'
_LONGEST_S = 120


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def sized(body: bytes, head: bytes = OK) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


class Case(msgspec.Struct, frozen=True):
    """What the server responds with: `start`, then `again` over and over."""

    start: bytes = b""
    again: bytes = b""
    pause: float = 0
    """Seconds between two times of `again`."""
    hangs: bool = False
    """Keep the connection open after `start` rather than close it."""
    stream: bool = True


def _both(case: Case, name: str) -> dict[str, Case]:
    """The case as fast as it goes, and trickled."""
    slow = msgspec.structs.replace(case, again=case.again[:64], pause=0.05)
    return {name: case, f"{name}-trickled": slow}


ENDLESS_LISTS = {
    "body": Case(OPEN, b'{"id": "m"}, ' * 5000),
    "chunks": Case(CHUNKED, chunk(b'{"id": "m"}, ' * 5000)),
    "list": Case(OPEN + b'{"data": [', b'{"id": "m"},' * 5000),
    "headers": Case(OK, b"X-More: " + b"x" * 60_000 + b"\r\n"),
    "hints": Case(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2000),
    "announced": Case(OK + b"Content-Length: 99999999999\r\n\r\n", b"x" * 60_000),
    "trickled-body": Case(OPEN, b"x", 0.05),
    "trickled-headers": Case(OK, b"X: y\r\n", 0.05),
    "silent": Case(hangs=True),
    "deep": Case(sized(b"[" * 10_000_000)),
}
"""Of `/v1/models` and `/metrics`."""

ENDLESS = {
    "tokens": Case(SSE, TOKEN * 500),
    "token-chunks": Case(OK + b"Transfer-Encoding: chunked\r\n\r\n", chunk(TOKEN) * 500),
    "slow-tokens": Case(SSE, TOKEN, 0.02),
    "comments": Case(SSE, b": still here\n\n" * 5000),
    "line": Case(SSE + b"data: ", b"x" * 60_000),
    "blank-lines": Case(SSE, b"\n" * 60_000),
    "after-done": Case(SSE + DONE, b": more\n\n" * 5000),
    "headers": Case(OK, b"X-More: " + b"x" * 60_000 + b"\r\n"),
    "error-body": Case(b"HTTP/1.1 500 Oops\r\n\r\n", b"x" * 60_000),
    "body": Case(OPEN, b" " * 60_000, stream=False),
}
"""Of `/v1/completions`."""

FAULTY = {
    "closes": Case(),
    "hangs": Case(hangs=True),
    "hangs-after-status": Case(OK, hangs=True),
    "hangs-after-headers": Case(SSE, hangs=True),
    "hangs-after-token": Case(SSE + TOKEN, hangs=True),
    "trickles-headers": Case(OK, b"X: y\r\n", 0.05),
    "trickles-comments": Case(SSE, b":\n", 0.05),
    "trickles-line": Case(SSE + b"data: ", b"x", 0.05),
    "cut-status": Case(b"HTTP/1."),
    "cut-headers": Case(OK + b"X-Cut"),
    "cut-chunk": Case(CHUNKED + b"ff\r\nabc"),
    "cut-body": Case(OK + b"Content-Length: 1000\r\n\r\n{"),
    "cut-stream": Case(SSE + TOKEN),
    "no-stream": Case(SSE),
    "bad-chunk-size": Case(CHUNKED + b"xyz\r\n"),
    "huge-chunk-size": Case(CHUNKED + b"f" * 40 + b"\r\n"),
    "negative-length": Case(OK + b"Content-Length: -5\r\n\r\n"),
    "two-lengths": Case(OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
    "garbage": Case(bytes(range(256)) * 4),
    "http2": Case(b"\0\0\0\x04\0\0\0\0\0"),
    "tls": Case(b"\x15\x03\x03\0\x02\x02\x46"),
    "switches": Case(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"),
    "redirects": Case(sized(b"", b"HTTP/1.1 302 Found\r\nLocation: /\r\n")),
    "no-content": Case(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "web-page": Case(sized(b"<html></html>")),
    "not-utf8": Case(sized(b"data: \xff\xfe\n\n" + DONE)),
    "deep-json": Case(sized(b'data: {"x": ' + b"[" * 200_000 + b"\n\n" + DONE)),
    "deep-error": Case(sized(b"[" * 200_000, b"HTTP/1.1 500 Oops\r\n")),
    "wrong-types": Case(sized(b'data: {"choices": {"text": 1}, "usage": []}\n\n' + DONE)),
    "huge-usage": Case(sized(TOKEN + b'data: {"choices": [], "usage": {"completion_tokens": 1e300}}\n\n' + DONE)),
    "negative-usage": Case(sized(TOKEN + b'data: {"choices": [], "usage": {"completion_tokens": -7}}\n\n' + DONE)),
    "twice": Case(sized(DONE) * 2),
}
"""Of `/v1/completions`."""


@contextlib.contextmanager
def serving(cases: dict[str, Case]) -> Iterator[str]:
    """Serve the cases, each below its name: GET with a case whose name starts with `GET-`, anything else with the case itself; and a list of
    models, and 404, for what a case does not say."""
    loop = asyncio.new_event_loop()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, path, _ = head.split(" ", 2)
                lengths = [
                    line.split(":")[1] for line in head.lower().split("\r\n") if line.startswith("content-length:")
                ]
                await reader.readexactly(int(lengths[0]) if lengths else 0)
                case = cases.get(f"{method} {path}")
                if case is None:
                    writer.write(sized(b"", b"HTTP/1.1 404 Not Found\r\n"))
                    continue
                writer.write(case.start)
                await writer.drain()
                until = loop.time() + _LONGEST_S
                while (case.again or case.hangs) and loop.time() < until and not reader.at_eof():
                    writer.write(case.again)
                    await writer.drain()
                    await asyncio.sleep(case.pause or (0.2 if case.hangs else 0))
                break
        writer.close()

    server = loop.run_until_complete(asyncio.start_server(handle, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
