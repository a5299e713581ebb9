"""The null server: responds at once and does nothing else, so that measuring it shows the client's own overhead.

`python -m inferometer.null_server ITL_MS CHUNKS` listens on a free loopback port, prints its URL, and ends when its
standard input does. A streamed response has CHUNKS chunks, one every ITL_MS on a clock that all streams share. It
expects requests with a Content-Length and checks nothing.
"""

import asyncio
import sys
import threading
from typing import cast

from inferometer.timing.clock import now
from inferometer.timing.loop import run
from inferometer.timing.timer import deadline_timer

_JSON = (
    b'{"id":"0","object":"text_completion","model":"null","choices":[{"index":0,"text":" a","finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":1}}'
)
_MODELS = b'{"object":"list","data":[{"id":"null","object":"model"}]}'
_TOKEN = (
    b'{"id":"0","object":"text_completion","model":"null","choices":[{"index":0,"text":" a","finish_reason":null}]}'
)
_LAST = b'{"id":"0","choices":[{"index":0,"text":"","finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":%d}}'


def _whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def _frame(data: bytes) -> bytes:
    return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data)


_RESPONSE, _LIST, _CHUNK = _whole(_JSON), _whole(_MODELS), _frame(_TOKEN)
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Streams:
    """All streams in progress: each gets one chunk per tick."""

    def __init__(self, loop: asyncio.AbstractEventLoop, interval: int, chunks: int) -> None:
        self._left: dict[asyncio.Transport, int] = {}
        self._interval = interval
        self._chunks = chunks
        self._tail = _frame(_LAST % chunks) + _frame(b"[DONE]") + b"0\r\n\r\n"
        self._timer = deadline_timer(loop, self._beat)
        self._due = 0

    def begin(self, transport: asyncio.Transport) -> None:
        transport.write(_HEAD)
        if not self._left:
            self._due = now() + self._interval
            self._timer.arm(self._due)
        self._left[transport] = self._chunks

    def end(self, transport: asyncio.Transport) -> None:
        self._left.pop(transport, None)

    def _beat(self) -> None:
        for transport, left in list(self._left.items()):
            if left > 1:
                transport.write(_CHUNK)
                self._left[transport] = left - 1
            else:
                transport.write(_CHUNK + self._tail)
                del self._left[transport]
        if self._left:
            self._due += self._interval
            self._timer.arm(self._due)


class _Client(asyncio.Protocol):
    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class

    def connection_lost(self, exc: Exception | None) -> None:
        self._streams.end(self._transport)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        while data:
            head = data.find(b"\r\n\r\n") + 4
            if head < 4:
                break
            field = data.find(b"Content-Length: ", 0, head)
            end = head + (int(data[field + 16 : data.find(b"\r", field)]) if field >= 0 else 0)
            if len(data) < end:
                break
            if data[0] == 71:  # GET
                self._transport.write(_LIST)
            elif data.find(b'"stream":true', head, end) >= 0:
                self._streams.begin(self._transport)
            else:
                self._transport.write(_RESPONSE)
            data = data[end:]
        self._rest = data


async def serve(interval: int, chunks: int) -> None:
    loop = asyncio.get_running_loop()
    streams = Streams(loop, interval, chunks)
    server = await loop.create_server(lambda: _Client(streams), "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    over = loop.create_future()
    threading.Thread(
        target=lambda: (sys.stdin.read(), loop.call_soon_threadsafe(over.set_result, None)), daemon=True
    ).start()
    await over


if __name__ == "__main__":
    run(serve(int(float(sys.argv[1]) * 1e6), int(sys.argv[2])))
