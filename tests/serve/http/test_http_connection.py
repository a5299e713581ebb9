"""Connections seen from the other end of the socket, with a handler that echoes what it receives."""

import asyncio
import contextlib
import hashlib
import inspect
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from inferometer.serve.http.connection import Connection
from inferometer.serve.http.responses import reply
from inferometer.serve.settings import Limits
from inferometer.serve.sockets.listener import Listener
from inferometer.timing.clock import now
from inferometer.timing.loop import run
from inferometer.wire.http1_requests import Problem, Request

MIB = 1 << 20


class Echo:
    """Echoes requests; /wait gets no response, and /parts gets one in several pieces."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.gone = 0

    def handle(self, connection: Connection, request: Request) -> None:
        self.requests.append(request)
        if request.path == b"/wait":
            connection.gone = self._gone
        elif request.path == b"/parts":
            body = memoryview(request.body)
            third = len(body) // 3
            reply(connection, request, 200, b"small", body[:third], b"", body[third:], bytearray(b"end"))
        else:
            reply(connection, request, 200, request.body)

    def problem(self, connection: Connection, request: Request, problem: Problem) -> None:
        reply(connection, request, problem.status, problem.message.encode(), close=True)

    async def begun(self) -> None:
        while not self.requests:
            await asyncio.sleep(0)

    def _gone(self) -> None:
        self.gone += 1


class Peer:
    """A client on one end of a socket pair."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._rest = b""
        sock.setblocking(False)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def some(self) -> bytes:
        async with asyncio.timeout(30):
            return await asyncio.get_running_loop().sock_recv(self.sock, 1 << 18)

    async def response(self) -> tuple[int, bytes]:
        data = bytearray(self._rest)
        while b"\r\n\r\n" not in data:
            more = await self.some()
            assert more, data
            data += more
        head, _, _ = bytes(data).partition(b"\r\n\r\n")
        start = len(head) + 4
        end = start + int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while len(data) < end:
            more = await self.some()
            assert more, len(data)
            data += more
        self._rest = bytes(data[end:])
        return int(head.split()[1]), bytes(data[start:end])


@contextlib.contextmanager
def peer(listener: Listener):
    here, there = socket.socketpair()
    listener.serve(there)
    with here:
        yield Peer(here)


def listening(limits: Limits | None = None) -> Callable[[Any], Any]:
    """Run a test in a loop of its own; it may have the parameters listener, echo, and client, which is connected."""
    used = limits or Limits()

    def decorated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        wanted = inspect.signature(test).parameters
        fixtures = [one for name, one in wanted.items() if name not in ("listener", "echo", "client")]

        def run_test(**words: Any) -> None:
            async def main() -> None:
                echo, sock = Echo(), socket.create_server(("127.0.0.1", 0))
                sock.setblocking(False)
                listener = Listener(sock, lambda transport: Connection(transport, echo, used), used, None)
                ours: dict[str, Any] = {"listener": listener, "echo": echo}
                try:
                    with contextlib.ExitStack() as clients:
                        if "client" in wanted:
                            ours["client"] = clients.enter_context(peer(listener))
                        await test(**words, **{name: one for name, one in ours.items() if name in wanted})
                finally:
                    listener.close()
                assert listener.connections == []

            run(main())

        run_test.__signature__ = inspect.Signature(fixtures)  # type: ignore[attr-defined]
        return run_test

    return decorated


def s(seconds: float) -> int:
    return int(seconds * 1e9)


def post(path: str, body: bytes, *lines: str) -> bytes:
    head = "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *lines])
    return head.encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize("size", [0, 1, 1000, 70_000, 3 * MIB])
@pytest.mark.parametrize("path", ["/", "/parts"])
@listening()
async def test_bodies_round_trip(client: Peer, size: int, path: str):
    body = hashlib.shake_128(b"seed").digest(size)
    for _ in range(2):
        sending = asyncio.ensure_future(client.send(post(path, body)))
        status, back = await client.response()
        await sending
        assert status == 200
        assert back == (body if path == "/" else b"small" + body + b"end")


@listening()
async def test_a_large_body_is_never_copied(client: Peer, listener: Listener, echo: Echo):
    size = 8 * MIB
    sending = asyncio.ensure_future(client.send(post("/", bytes(size))))
    status, back = await client.response()
    await sending
    assert (status, len(back)) == (200, size)
    body = echo.requests[0].body
    assert isinstance(body, memoryview)
    assert len(body.obj) == size
    assert [connection.transport.unsent for connection in listener.connections] == [0]


@listening()
async def test_a_request_split_at_any_byte_is_served(listener: Listener):
    data = post("/", b"hello, world")
    for at in range(1, len(data)):
        with peer(listener) as client:
            await client.send(data[:at])
            await asyncio.sleep(0)
            await client.send(data[at:])
            assert await client.response() == (200, b"hello, world")


@listening()
async def test_pipelined_requests_wait_for_the_previous_response(client: Peer, listener: Listener, echo: Echo):
    body = bytes(8 * MIB)
    await client.send(post("/", body) + post("/", b"next"))
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert len(echo.requests) == 1
    assert listener.in_flight == 1
    assert await client.response() == (200, body)
    assert await client.response() == (200, b"next")
    assert listener.in_flight == 0


@listening()
async def test_a_large_pipelined_request_may_go_on_before_its_start_is_parsed(client: Peer, listener: Listener):
    (connection,) = listener.connections
    body = bytes(range(256)) * 1024
    data = post("/", b"first") + post("/", body)
    connection.received(data[:1000], now())
    connection.received(data[1000:2000], now())  # before the loop continues with the rest of the first part
    sending = asyncio.ensure_future(client.send(data[2000:]))
    assert [await client.response() for _ in range(2)] == [(200, b"first"), (200, body)]
    await sending


@listening()
async def test_requests_in_one_segment_have_arrived_at_the_same_time(client: Peer, echo: Echo):
    for _ in range(2):
        await client.send(post("/", b"first") + post("/", b"second"))
        assert [await client.response() for _ in range(2)] == [(200, b"first"), (200, b"second")]
    times = [(one.began, one.arrived) for one in echo.requests]
    assert times[0] == times[1] < times[2] == times[3]


@listening()
async def test_reading_ahead_of_responses_is_bounded(client: Peer, echo: Echo):
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    await client.send(post("/wait", b""))
    await echo.begun()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await client.send(post("/", b"a" * 600) * 2000)
    assert len(echo.requests) == 1


@pytest.mark.parametrize("start", [b"P", b"POST / HTTP/1.1\r\nContent-Le", post("/", b"hello")[:-1]])
@listening()
async def test_a_stalled_request_is_closed(listener: Listener, start: bytes):
    with peer(listener) as client, peer(listener) as idle:
        await client.send(start)
        while not any(one._parser.is_partial for one in listener.connections):
            await asyncio.sleep(0)
        listener.sweep(now() + s(59))
        assert len(listener.connections) == 2
        listener.sweep(now() + s(61))
        assert await client.some() == b""
        await idle.send(post("/", b"I was only idle"))
        assert await idle.response() == (200, b"I was only idle")


@listening(Limits(idle=100, stalled=10))
async def test_an_idle_connection_is_closed_after_the_limit_and_not_before(listener: Listener):
    with peer(listener) as fresh, peer(listener) as used:
        await used.send(post("/", b"hello"))
        assert await used.response() == (200, b"hello")
        listener.sweep(min(one.moved for one in listener.transports) + s(99))
        assert len(listener.connections) == 2
        listener.sweep(now() + s(101))
        assert await fresh.some() == await used.some() == b""
        assert listener.connections == []


@listening()
async def test_idle_time_starts_at_the_end_of_the_response(client: Peer, listener: Listener, echo: Echo):
    await client.send(post("/wait", b"") + b"POST / HT")  # and the next one has begun
    await echo.begun()
    (connection,) = listener.connections
    connection.transport.moved -= s(1_000_000)
    listener.sweep(now())
    reply(connection, echo.requests[0], 200, b"at last")
    listener.sweep(connection.transport.moved + s(59))
    assert await client.response() == (200, b"at last")
    await client.send(post("/", b"next")[9:])
    assert await client.response() == (200, b"next")


@pytest.mark.parametrize("is_complete", [True, False])
@listening()
async def test_a_response_that_the_client_does_not_read_is_given_up(
    client: Peer, listener: Listener, echo: Echo, is_complete: bool
):
    await client.send(post("/wait", b""))
    await echo.begun()
    (connection,) = listener.connections
    if is_complete:
        reply(connection, echo.requests[0], 200, bytes(32 * MIB))
    else:
        connection.write(bytes(32 * MIB))
    assert connection.transport.unsent
    listener.sweep(connection.transport.moved + s(59))
    assert not connection.transport.closed
    listener.sweep(now() + s(61))
    assert connection.transport.closed
    assert listener.in_flight == 0
    assert echo.gone == (0 if is_complete else 1)
    with contextlib.suppress(ConnectionResetError):
        while await client.some():
            pass


@listening()
async def test_a_slow_reader_is_not_given_up(client: Peer, listener: Listener):
    body = bytes(8 * MIB)
    sending = asyncio.ensure_future(client.send(post("/", body)))
    (connection,) = listener.connections
    while not connection.transport.unsent:
        await asyncio.sleep(0)
    await sending
    rest = connection.transport.unsent
    while connection.transport.unsent:
        connection.transport.moved -= s(40)  # twice is too late
        listener.sweep(now())
        assert not connection.transport.closed
        client._rest += await client.some()
        while connection.transport.unsent == rest:
            await asyncio.sleep(0)
            client._rest += await client.some()
        rest = connection.transport.unsent
    assert await client.response() == (200, body)


@listening(Limits(idle=0, stalled=0))
async def test_without_limits_the_sweep_gives_up_on_nobody(client: Peer, listener: Listener):
    listener.sweep(now() + s(1_000_000))
    await client.send(post("/", b"hello"))
    assert await client.response() == (200, b"hello")


@listening()
async def test_the_sweep_closes_connections_that_were_reset(listener: Listener):
    """uvloop reports a reset once, and then there may still be something to read."""
    address = listener._sock.getsockname()
    with socket.create_connection(address) as client:
        while not listener.transports:
            await asyncio.sleep(0.001)
        client.sendall(post("/", bytes(1 << 20))[: 1 << 18])
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await asyncio.sleep(0.05)
    listener.sweep(now())
    assert not listener.transports


@listening(Limits(idle=0.02, stalled=0))
async def test_the_sweep_runs_periodically(listener: Listener):
    with peer(listener) as client:
        assert await client.some() == b""
    with peer(listener) as client:
        assert await client.some() == b""


@listening()
async def test_a_pipelined_request_gets_its_100_continue(client: Peer, listener: Listener, echo: Echo):
    waiting = post("/wait", b"")
    late = post("/", b"late", "Expect: 100-continue")
    await client.send(waiting + late[:-4])
    await echo.begun()
    (connection,) = listener.connections
    reply(connection, echo.requests[0], 200, b"")
    received = b""
    while b"100 Continue\r\n\r\n" not in received:
        received += await client.some()
    assert received.startswith(b"HTTP/1.1 200 OK")
    await client.send(late[-4:])
    assert await client.response() == (200, b"late")


@listening()
async def test_stop_accepting_takes_the_backlog_first(listener: Listener):
    address = listener._sock.getsockname()
    with contextlib.ExitStack() as clients:
        for _ in range(300):
            clients.enter_context(socket.create_connection(address))
        listener.stop_accepting()
        assert len(listener.connections) == 300


@pytest.mark.parametrize("start", [b"", b"POST / HT", post("/", b"hello")[:-1], post("/wait", b"")])
@listening()
async def test_end_of_file_before_the_response_closes(client: Peer, listener: Listener, echo: Echo, start: bytes):
    await client.send(start)
    client.sock.shutdown(socket.SHUT_WR)
    assert await client.some() == b""
    assert listener.connections == []
    assert echo.gone == (start == post("/wait", b""))


@pytest.mark.parametrize("headers", ["", "Connection: close\r\n"])
@listening()
async def test_end_of_file_after_the_request_does_not_truncate_the_response(client: Peer, headers: str):
    body = bytes(8 * MIB)
    request = post("/", body).replace(b"\r\n\r\n", f"\r\n{headers}\r\n".encode(), 1)
    await client.send(request)
    client.sock.shutdown(socket.SHUT_WR)
    await asyncio.sleep(0.05)
    assert await client.response() == (200, body)
    assert await client.some() == b""
