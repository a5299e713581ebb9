"""One blocking round trip: how it ends, which events it passes on, and what it leaves behind."""

import socket
import ssl
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import trustme
from grpc_peers import HEAD, OK, GrpcPeer, framed, scripted_grpc
from helpers import Client, http_response, polite, scripted

from inferometer.errors import UserError
from inferometer.probe import query, roundtrip
from inferometer.probe.connect import Peer, connect
from inferometer.types import Event, Fail, Received
from inferometer.wire.grpc import GrpcResponse, header_block
from inferometer.wire.http1 import ResponseDecoder, request_head
from inferometer.wire.openai import EXTRACTOR
from inferometer.wire.target import parse
from inferometer.wire.text_body import body_decoder

REQUEST = request_head("POST", "/", "x", {"Content-Length": "0"}) + b"\r\n"


def ignore(at: int, events: Sequence[Event]) -> None:
    pass


def over_http(url: str, request: bytes = REQUEST, timeout: float = 30.0, context: ssl.SSLContext | None = None):  # type: ignore[no-untyped-def]
    peer = Peer(parse(url), context, timeout=timeout)
    return roundtrip.over_http(peer, request, ResponseDecoder(body_decoder(EXTRACTOR, True)), ignore)


def over_grpc(url: str, timeout: float = 30.0):  # type: ignore[no-untyped-def]
    peer = Peer(parse(url), timeout=timeout)
    kept: list[bytes] = []
    block = header_block("/t.S/Down", "x", False, {})
    return *roundtrip.over_grpc(peer, block, framed(b""), GrpcResponse(True, None, kept), ignore), kept


def test_a_response_that_was_complete_before_a_protocol_error_counts() -> None:
    def script(peer: GrpcPeer) -> None:
        stream = peer.request()
        if stream is not None:
            peer.h2.send_headers(stream, HEAD)
            peer.h2.send_data(stream, framed(b"abc"))
            peer.h2.send_headers(stream, OK, end_stream=True)
            peer.sock.sendall(
                peer.h2.data_to_send() + b"\x00\x00\x01\x09\x04\x00\x00\x00\x01x"
            )  # CONTINUATION of nothing
            peer.request()

    with scripted_grpc(script) as url:
        _, fail, kept = over_grpc(url)
    assert fail is None
    assert kept == [b"abc"]


def test_events_before_a_protocol_error_are_passed_on() -> None:
    def script(peer: GrpcPeer) -> None:
        stream = peer.request()
        if stream is not None:
            peer.h2.send_headers(stream, HEAD)
            peer.h2.send_data(stream, framed(b"abc"))
            peer.sock.sendall(peer.h2.data_to_send() + b"\x00\x00\x01\x09\x04\x00\x00\x00\x01x")
            peer.request()

    kept: list[bytes] = []
    with scripted_grpc(script) as url, pytest.raises(UserError, match="CONTINUATION"):
        peer = Peer(parse(url), timeout=30)
        roundtrip.over_grpc(
            peer, header_block("/t.S/Down", "x", False, {}), framed(b""), GrpcResponse(True, None, kept), ignore
        )
    assert kept == [b"abc"]


def test_a_stream_that_closes_in_the_middle() -> None:
    def script(peer: GrpcPeer) -> None:
        stream = peer.request()
        if stream is not None:
            peer.head(stream, HEAD)
            peer.data(stream, framed(b"abc"))

    with scripted_grpc(script) as url, pytest.raises(UserError, match="closed in the middle of the response"):
        over_grpc(url)


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_server_that_stops_in_the_middle_of_a_response(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()
    read = roundtrip._Wire.read

    def read_once_begun(wire: roundtrip._Wire) -> tuple[bytes, int]:
        assert begun.wait(30)
        return read(wire)

    def http(client: Client) -> None:
        client.request()
        client.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
        begun.set()
        client.request()

    def grpc(peer: GrpcPeer) -> None:
        stream = peer.request()
        if stream is not None:
            peer.head(stream, HEAD)
            begun.set()
            peer.request()

    monkeypatch.setattr(roundtrip._Wire, "read", read_once_begun)
    with pytest.raises(UserError, match="sent nothing more within 100") as caught:
        if kind == "http":
            with scripted(http) as url:
                over_http(url, timeout=0.1)
        else:
            with scripted_grpc(grpc) as url:
                over_grpc(url, timeout=0.1)
    assert "server.timeouts.connect" in caught.value.remedy


def test_settings_in_pieces_that_the_decoder_fails_at_later() -> None:
    class Patient:
        """Fails when the server closes."""

        status, text, ending, received = 0, "", b"", Received()

        def reset(self) -> None: ...

        def feed(self, pieces: Sequence[bytes], stamps: Sequence[int]) -> None:
            return None

        def eof(self) -> Fail:
            return Fail("cut_short", "")

    def script(client: Client) -> None:
        client.request()
        for at in range(9):
            client.send(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"[at : at + 1])
            threading.Event().wait(0.005)

    with scripted(script) as url, pytest.raises(UserError, match="speaks HTTP/2"):
        roundtrip.over_http(Peer(parse(url)), REQUEST, Patient(), ignore)


@pytest.mark.slow
def test_the_timeout_applies_to_each_write_not_to_the_whole_request() -> None:
    body = bytes(40 << 20)

    def script(client: Client) -> None:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)  # else the kernel may take in all of it
        left = len(body) + len(REQUEST) - 10
        while left > 0:
            left -= len(client.sock.recv(1 << 20))
            threading.Event().wait(0.05)
        client.send(http_response())

    with scripted(script) as url:
        instants, fail = over_http(url, REQUEST + body, timeout=1)
    assert fail is None
    assert instants.written - instants.sent > 1_000_000_000
    assert instants.bytes_out == len(REQUEST) + len(body)


def test_only_bytes_that_were_sent_are_counted() -> None:
    body = bytes(64 << 20)

    def script(client: Client) -> None:
        client.sock.recv(100)
        client.send(b"HTTP/1.1 413 No\r\nContent-Length: 7\r\n\r\ntoo big")

    with scripted(script) as url:
        instants, fail = over_http(url, REQUEST + body)
    assert fail is not None
    assert instants.bytes_out < len(body)
    assert instants.connected <= instants.written <= instants.first_byte <= instants.done


def test_kernel_timestamps_are_used_without_tls() -> None:
    with scripted(polite) as url:
        instants, _ = over_http(url)
    assert instants.by_kernel and not instants.tls


def test_tls_alerts_are_explained() -> None:
    authority = trustme.CA()
    mine = authority.issue_cert("127.0.0.1")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    wanting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    mine.configure_cert(wanting)
    authority.configure_trust(wanting)
    wanting.verify_mode = ssl.CERT_REQUIRED
    with scripted(polite, wanting) as url, pytest.raises(UserError) as caught:
        over_http(url, context=context)
    assert "certificate required" in caught.value.what
    assert "server.tls" in caught.value.remedy


def test_no_socket_is_leaked_if_the_connection_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []  # and kept, so that none is closed by being collected

    class Noted(socket.socket):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            if threading.current_thread() is threading.main_thread():  # and not a server of an earlier test
                made.append(self)

    monkeypatch.setattr(socket, "socket", Noted)
    with pytest.raises(UserError, match="refused"):
        over_http("http://127.0.0.1:1")
    assert made and all(sock.fileno() == -1 for sock in made)


def test_bytes_after_a_complete_response_are_ignored() -> None:
    def script(client: Client) -> None:
        client.request()
        client.send(http_response(b"abc", "Connection: close\r\n") + b"garbage")

    with scripted(script) as url:
        reply = query.http(Peer(parse(url)), "GET", "/", {})
    assert (reply.status, reply.body) == (200, b"abc")


def test_a_response_that_ends_with_the_connection_is_done_with_its_last_byte() -> None:
    def script(client: Client) -> None:
        client.request()
        client.send(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        threading.Event().wait(0.05)

    with scripted(script) as url:
        reply = query.http(Peer(parse(url)), "GET", "/", {})
    assert reply.done == reply.pieces[-1][0]


def test_addresses_of_unsupported_families_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def found(*arguments: Any, **more: Any) -> list[Any]:
        return [(9999, socket.SOCK_STREAM, 6, "", ("::1", 1, 0, 0)), *real(*arguments, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    with scripted(polite) as url:
        sock, (family, _) = connect(Peer(parse(url)))
        sock.close()
    assert family == socket.AF_INET


def test_only_addresses_of_unsupported_families_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(9999, socket.SOCK_STREAM, 6, "", ("::1", 1, 0, 0))])
    with pytest.raises(UserError, match="http://x:1: Address family not supported"):
        connect(Peer(parse("http://x:1")))
