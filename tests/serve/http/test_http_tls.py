"""TLS and mutual TLS, and invalid certificates."""

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from test_http_connection import Echo, post

from inferometer.errors import UserError
from inferometer.serve.http.connection import Connection
from inferometer.serve.settings import Limits, Tls
from inferometer.serve.sockets.listener import Listener
from inferometer.serve.sockets.transport import tls_context
from inferometer.timing.clock import now
from inferometer.timing.loop import new_loop

MIB = 1 << 20


@contextlib.contextmanager
def listening(tls: Tls) -> Iterator[tuple[Listener, int, Echo]]:
    loop, echo = new_loop(), Echo()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)

    async def start() -> Listener:
        return Listener(sock, lambda transport: Connection(transport, echo, Limits()), Limits(), tls_context(tls))

    async def end() -> None:
        listener.close()

    listener = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    try:
        yield listener, sock.getsockname()[1], echo
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def client(authority: trustme.CA) -> ssl.SSLContext:
    made = ssl.create_default_context()
    authority.configure_trust(made)
    return made


def exchange(port: int, made: ssl.SSLContext, *bodies: bytes, path: str = "/") -> list[bytes]:
    responses = []
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        made.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        for body in bodies:
            sock.sendall(post(path, body))
            with sock.makefile("rb") as file:
                assert file.readline() == b"HTTP/1.1 200 OK\r\n"
                length = 0
                while (line := file.readline()) != b"\r\n":
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                responses.append(file.read(length))
    return responses


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_over_tls(authority: trustme.CA, files: dict[str, str], version: ssl.TLSVersion):
    made = client(authority)
    made.minimum_version = made.maximum_version = version
    with listening(Tls(files["cert"], files["key"])) as (_, port, _):
        bodies = [b"", b"hello", bytes(range(256)) * 1000, bytes(5 * MIB)]
        assert exchange(port, made, *bodies) == bodies
        assert exchange(port, made, b"abcdef", path="/parts") == [b"smallabcdefend"]


def test_mutual_tls_requires_a_certificate_of_the_authority(authority: trustme.CA, files: dict[str, str]):
    with listening(Tls(files["cert"], files["key"], files["ca"])) as (_, port, _):
        known = client(authority)
        authority.issue_cert("me@example.org").configure_cert(known)
        assert exchange(port, known, b"hello") == [b"hello"]
        stranger = client(authority)
        trustme.CA().issue_cert("them@example.org").configure_cert(stranger)
        for refused in (stranger, client(authority)):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                exchange(port, refused, b"hello")
        assert exchange(port, known, b"and on") == [b"and on"]


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x00\x05nonsense", b"\xff" * 5000]
)
def test_bytes_that_are_not_tls_close_the_connection(authority: trustme.CA, files: dict[str, str], data: bytes):
    with listening(Tls(files["cert"], files["key"])) as (_, port, _):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
            sock.sendall(data)
            with contextlib.suppress(ConnectionResetError):
                while sock.recv(4096):
                    pass
        assert exchange(port, client(authority), b"hello") == [b"hello"]


def test_a_handshake_that_does_not_end_is_idle(authority: trustme.CA, files: dict[str, str]):
    with (
        listening(Tls(files["cert"], files["key"])) as (listener, port, _),
        socket.create_connection(("127.0.0.1", port), timeout=30) as sock,
    ):
        assert exchange(port, client(authority), b"hello") == [b"hello"]  # so that the other one was accepted, too
        late = now() + int((Limits().idle + 1) * 1e9)
        listener.loop.call_soon_threadsafe(listener.sweep, late)
        assert sock.recv(1) == b""


def test_a_reset_at_the_end_of_a_handshake_is_noticed(authority: trustme.CA, files: dict[str, str]):
    with (
        listening(Tls(files["cert"], files["key"])) as (listener, port, _),
        socket.create_connection(("127.0.0.1", port), timeout=30) as sock,
    ):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        shaking = client(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
        while True:
            try:
                shaking.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(outgoing.read())
                incoming.write(sock.recv(65536))
        listener.loop.call_soon_threadsafe(time.sleep, 0.3)  # so that the last message and the reset are found together
        time.sleep(0.1)
        sock.sendall(outgoing.read())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        assert exchange(port, client(authority), b"hello") == [b"hello"]
        deadline = time.monotonic() + 10
        while listener.transports and time.monotonic() < deadline:
            listener.loop.call_soon_threadsafe(listener.sweep, now())
            time.sleep(0.01)
        assert not listener.transports


@pytest.mark.parametrize(
    ("cert", "key", "ca", "named"),
    [
        ("missing", "key", "", "missing"),
        ("cert", "missing", "", "missing"),
        ("cert", "key", "missing", "missing"),
        ("nonsense", "key", "", "nonsense"),
        ("cert", "nonsense", "", "nonsense"),
        ("cert", "key", "nonsense", "nonsense"),
        ("cert", "other", "", "other"),
    ],
)
def test_invalid_files_are_named(files: dict[str, str], cert: str, key: str, ca: str, named: str):
    with pytest.raises(UserError) as caught:
        tls_context(Tls(files[cert], files[key], files[ca] if ca else ""))
    assert f"{named}.pem" in caught.value.what
    assert caught.value.remedy


def test_an_encrypted_key_is_named(authority: trustme.CA, files: dict[str, str], tmp_path: Path):
    key = serialization.load_pem_private_key(Path(files["key"]).read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(UserError, match=r"locked\.pem"):
        tls_context(Tls(files["cert"], str(locked)))
