"""A client that closes its sending side and waits gets its response; the handler learns of one that is gone."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar

import pytest
import trustme
from test_http_connection import MIB, Echo, Peer, listening, peer, post
from test_http_tls import client
from test_http_tls import listening as listening_with_tls
from waiting import until as wait_until

from inferometer.serve.http import answers
from inferometer.serve.http.connection import Connection
from inferometer.serve.http.reply import reply
from inferometer.serve.settings import Tls
from inferometer.serve.sockets.listener import Listener
from inferometer.timing.loop import run

T = TypeVar("T")

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
OLD = b"POST /wait HTTP/1.0\r\nContent-Length: 0\r\n\r\n"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


async def dialled(listener: Listener) -> Peer:
    """Connect over TCP, where end-of-file looks the same whether a client is gone or waits."""
    address = listener._sock.getsockname()
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, address)
    return Peer(sock)


async def rest(one: Peer) -> bytes:
    """Return everything until end-of-file."""
    data = b""
    while more := await one.some():
        data += more
    return data


def has_ended(listener: Listener) -> bool:
    return any(one.has_ended for one in listener.transports)


async def waiting(listener: Listener, echo: Echo, data: bytes) -> tuple[Peer, Connection]:
    """Return a client that sent `data`, closed its sending side, and waits."""
    one = await dialled(listener)
    await one.send(data)
    await until(lambda: bool(echo.requests))
    one.sock.shutdown(socket.SHUT_WR)
    await until(lambda: has_ended(listener))
    (connection,) = listener.connections
    return one, connection


@pytest.mark.parametrize(("data", "interim"), [(post("/wait", b""), CONTINUE), (OLD, b"")], ids=["1.1", "1.0"])
def test_a_delayed_response_arrives(data: bytes, interim: bytes):
    async def main() -> None:
        async with listening() as (listener, echo):
            one, connection = await waiting(listener, echo, data)
            with one.sock:
                assert listener.in_flight == 1
                reply(connection, echo.requests[0], 200, b"late")
                came = await rest(one)
                assert came.startswith(interim + b"HTTP/1.1 200 OK\r\n")
                assert came.endswith(b"\r\n\r\nlate")
            await until(lambda: not listener.connections)
            assert echo.gone == 0

    run(main())


def test_a_response_larger_than_the_socket_buffer_arrives_complete():
    async def main() -> None:
        async with listening() as (listener, echo):
            one, connection = await waiting(listener, echo, post("/wait", b"", "Connection: close"))
            with one.sock:
                reply(connection, echo.requests[0], 200, bytes(16 * MIB))
                assert connection.unsent
                assert len(await rest(one)) > 16 * MIB
            await until(lambda: not listener.connections)

    run(main())


def test_the_client_may_half_close_during_a_large_response():
    async def main() -> None:
        async with listening() as (listener, echo):
            one = await dialled(listener)
            with one.sock:
                await one.send(post("/wait", b"", "Connection: close"))
                await until(lambda: bool(echo.requests))
                (connection,) = listener.connections
                reply(connection, echo.requests[0], 200, bytes(16 * MIB))
                assert connection.unsent
                one.sock.shutdown(socket.SHUT_WR)
                await until(lambda: has_ended(listener))
                came = await rest(one)
                assert came.startswith(b"HTTP/1.1 200 OK\r\n")
                assert len(came) > 16 * MIB

    run(main())


def test_all_pipelined_requests_get_responses():
    async def main() -> None:
        async with listening() as (listener, echo):
            one, connection = await waiting(
                listener, echo, post("/wait", b"") + post("/", b"two") + post("/", b"three")
            )
            with one.sock:
                reply(connection, echo.requests[0], 200, b"one")
                came = await rest(one)
                assert [part.rpartition(b"\r\n")[2] for part in came.split(b"HTTP/1.1 200 OK")] == [
                    b"",
                    b"one",
                    b"two",
                    b"three",
                ]

    run(main())


def test_a_stream_continues_after_a_comment():
    async def main() -> None:
        async with listening() as (listener, echo):
            one = await dialled(listener)
            with one.sock:
                await one.send(post("/wait", b""))
                await until(lambda: bool(echo.requests))
                (connection,) = listener.connections
                connection.write(answers.stream_head(keep_alive=True) + answers.chunk(b"data: 1\n\n"))
                connection.between = answers.NO_EVENT
                one.sock.shutdown(socket.SHUT_WR)
                await until(lambda: has_ended(listener))
                connection.write(answers.chunk(b"data: 2\n\n") + answers.LAST_CHUNK)
                connection.finish()
                _, _, body = (await rest(one)).partition(b"\r\n\r\n")
                chunks = [answers.chunk(each) for each in (b"data: 1\n\n", b":\n\n", b"data: 2\n\n")]
                assert body == b"".join(chunks) + answers.LAST_CHUNK
            assert echo.gone == 0

    run(main())


@pytest.mark.parametrize("begun", [False, True])
def test_the_handler_learns_that_the_client_is_gone(begun: bool):
    async def main() -> None:
        async with listening() as (listener, echo):
            one = await dialled(listener)
            with one.sock:
                await one.send(post("/wait", b""))
                await until(lambda: bool(echo.requests))
                (connection,) = listener.connections
                if begun:
                    connection.write(answers.stream_head(keep_alive=True))
                    connection.between = answers.NO_EVENT
                    await one.some()  # a client that goes with something unread resets by itself
            await until(lambda: bool(echo.gone))
            assert (echo.gone, connection.closed, listener.connections) == (1, True, [])

    run(main())


def test_a_client_that_goes_later_is_noticed_when_the_response_is_sent():
    async def main() -> None:
        async with listening() as (listener, echo):
            one, connection = await waiting(listener, echo, post("/wait", b""))
            assert await one.some() == CONTINUE
            one.sock.close()
            connection.write(answers.stream_head(keep_alive=True))
            await until(lambda: bool(echo.gone))
            assert listener.connections == []

    run(main())


@pytest.mark.parametrize("start", [b"", b"POST / HT", post("/", b"hello")[:-1]])
def test_an_incomplete_request_at_end_of_file_closes(start: bytes):
    async def main() -> None:
        async with listening() as (listener, _):
            with peer(listener) as one:
                await one.send(start)
                one.sock.shutdown(socket.SHUT_WR)
                assert await one.some() == b""
                assert listener.connections == []

    run(main())


class TlsClient:
    """TLS by hand, because Python's own socket cannot close one side alone."""

    def __init__(self, context: ssl.SSLContext, sock: socket.socket) -> None:
        self.sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self.do(self.tls.do_handshake)

    def do(self, step: Callable[[], T]) -> T:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                self.flush()
                if data := self.sock.recv(65536):
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
            finally:
                self.flush()

    def flush(self) -> None:
        if data := self._outgoing.read():
            self.sock.sendall(data)

    def say_goodbye(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):  # for the other's, which is still to come
            self.tls.unwrap()
        self.flush()

    def rest(self) -> bytes:
        data = b""
        with contextlib.suppress(ssl.SSLZeroReturnError):
            while more := self.do(lambda: self.tls.read(65536)):
                data += more
        return data


@pytest.mark.parametrize("kind", ["TLS", "TCP"])
def test_half_close_over_tls(authority: trustme.CA, files: dict[str, str], kind: str):
    with (
        listening_with_tls(Tls(files["cert"], files["key"])) as (listener, port, echo),
        socket.create_connection(("127.0.0.1", port), timeout=30) as sock,
    ):
        one = TlsClient(client(authority), sock)
        one.do(lambda: one.tls.write(post("/wait", b"")))
        wait_until(lambda: bool(echo.requests))
        if kind == "TLS":
            one.say_goodbye()
        else:
            sock.shutdown(socket.SHUT_WR)
        wait_until(lambda: has_ended(listener))
        (connection,) = listener.connections
        listener.loop.call_soon_threadsafe(reply, connection, echo.requests[0], 200, b"late")
        came = one.rest()
        assert came.startswith(CONTINUE + b"HTTP/1.1 200 OK\r\n")
        assert came.endswith(b"late")
        wait_until(lambda: not listener.connections)
        assert echo.gone == 0
