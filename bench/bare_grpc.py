"""The floor of a gRPC client in Python: a bare loop that sends prepared frames and reads responses with the kernel's stamps.

`bare_grpc.py ADDRESS CONCURRENCY CONNECTIONS SECONDS [MESSAGE]` keeps unary calls in flight and prints JSON as grpcio_client.py does, with
the part of the CPU time that the kernel took. A response counts when its trailers are there; nothing is checked, kept or recorded.
MESSAGE is a file with the request.
"""

import json
import resource
import select
import socket
import sys
import time
from pathlib import Path

from bench.grpc import MESSAGE, METHOD
from inferometer.timing.clock import CMSG_SPACE, enable_stamps, now, stamp_of, wall_offset
from inferometer.wire.grpc import header_block
from inferometer.wire.grpc_framing import framed
from inferometer.wire.http2.client import Http2Client
from inferometer.wire.http2.frames import DATA, END_HEADERS, END_STREAM, HEAD, HEADERS, PING, head, unpack_head


class Connection:
    def __init__(self, address: str, calls: int, message: bytes) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        enable_stamps(self.sock)
        client = Http2Client()
        client.start()
        self.sock.sendall(client.take())
        while not client.settings_received:
            client.feed(self.sock.recv(65536))
        self.sock.sendall(client.take())
        self.calls, self.next, self.rest = calls, 1, b""
        self.block, self.body = header_block(f"/{METHOD}", address, False, {}), framed(message)
        self.sent: dict[int, int] = {}

    def send(self, count: int) -> None:
        block, body, parts, at = self.block, self.body, list[bytes](), now()
        start, middle = len(block) << 8 | HEADERS, len(body) << 8 | DATA
        for number in range(self.next, self.next + 2 * count, 2):
            parts += (head(start, END_HEADERS, number), block, head(middle, END_STREAM, number), body)
            self.sent[number] = at
        self.next += 2 * count
        self.sock.sendall(b"".join(parts))

    def receive(self, latencies: list[int], offset: int) -> int:
        """Read once; return how many responses are complete."""
        data, ancillary, _, _ = self.sock.recvmsg(65536, CMSG_SPACE)
        stamp = stamp_of(ancillary) - offset
        if self.rest:
            data, self.rest = self.rest + data, b""
        at, size, ended = 0, len(data), 0
        while size - at >= HEAD:
            word, flags, number = unpack_head(data, at)
            end = at + HEAD + (word >> 8)
            if end > size:
                break
            if word & 0xFF == HEADERS and flags & END_STREAM:
                latencies.append(stamp - self.sent.pop(number))
                ended += 1
            elif word & 0xFF == PING and not flags:
                self.sock.sendall(head(word, 1, 0) + data[at + HEAD : end])
            at = end
        self.rest = data[at:]
        return ended


def run(address: str, concurrency: int, connections: int, seconds: float, message: bytes) -> list[int]:
    poll, latencies, offset = select.epoll(), list[int](), wall_offset()
    by_descriptor = {}
    for _ in range(connections):
        connection = Connection(address, concurrency // connections, message)
        by_descriptor[connection.sock.fileno()] = connection
        poll.register(connection.sock, select.EPOLLIN)
    for connection in by_descriptor.values():
        connection.send(connection.calls)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for descriptor, _ in poll.poll(1):
            connection = by_descriptor[descriptor]
            ended = connection.receive(latencies, offset)
            if ended:
                connection.send(ended)
    return latencies


if __name__ == "__main__":
    address, concurrency, connections = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    message = Path(sys.argv[5]).read_bytes() if len(sys.argv) > 5 else MESSAGE
    before = resource.getrusage(resource.RUSAGE_SELF)
    latencies = run(address, concurrency, connections, float(sys.argv[4]), message)
    after = resource.getrusage(resource.RUSAGE_SELF)
    kernel = after.ru_stime - before.ru_stime
    cpu = after.ru_utime - before.ru_utime + kernel
    p50 = sorted(latencies)[len(latencies) // 2] / 1e9
    print(json.dumps({"calls": len(latencies), "cpu": cpu, "kernel": kernel, "p50": p50}))
