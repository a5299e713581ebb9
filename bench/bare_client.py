"""The limit of what Python can do: raw sockets on uvloop, recvmsg with kernel timestamps, httptools, and nothing else.

`bare_client.py URL STREAMS REQUESTS` requests streams and prints the CPU microseconds per read. Everything else that
inferometer does (server-sent events, JSON, tokens, records, metrics, report) comes on top.
"""

import asyncio
import json
import socket
import sys
import time
from urllib.parse import urlsplit

import httptools
import uvloop

from inferometer.timing.clock import CMSG_SPACE, enable_stamps, stamp_of


class Stream:
    def __init__(self, loop: asyncio.AbstractEventLoop, address: tuple[str, int], request: bytes, work: "Work") -> None:
        self.sock = socket.create_connection(address)
        self.sock.setblocking(False)
        enable_stamps(self.sock)
        self.loop, self.request, self.work = loop, request, work
        self.parser = httptools.HttpResponseParser(self)
        loop.add_reader(self.sock.fileno(), self.readable)
        self.start()

    def start(self) -> None:
        if self.work.left:
            self.work.left -= 1
            self.stamps: list[int] = []
            self.sock.send(self.request)
        else:
            self.loop.remove_reader(self.sock.fileno())
            self.sock.close()
            self.work.ended()

    def readable(self) -> None:
        data, ancillary, _, _ = self.sock.recvmsg(65536, CMSG_SPACE)
        self.stamps.append(stamp_of(ancillary))
        self.work.reads += 1
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.start()


class Work:
    def __init__(self, requests: int, streams: int, done: "asyncio.Future[None]") -> None:
        self.left, self.open, self.done, self.reads = requests, streams, done, 0

    def ended(self) -> None:
        self.open -= 1
        if not self.open:
            self.done.set_result(None)


async def main(url: str, streams: int, requests: int) -> float:
    parts = urlsplit(url)
    body = json.dumps({"model": "null", "prompt": "hello " * 190, "stream": True}, separators=(",", ":")).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(body)}\r\n\r\n"
    loop = asyncio.get_running_loop()
    work = Work(requests, streams, loop.create_future())
    begin = time.process_time()
    for _ in range(streams):
        Stream(loop, (str(parts.hostname), int(parts.port or 80)), head.encode() + body, work)
    await work.done
    return (time.process_time() - begin) / work.reads * 1e6


if __name__ == "__main__":
    print(uvloop.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
