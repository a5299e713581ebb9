"""Responses that are not valid gRPC, and servers at grpc:// URLs that speak something else."""

import socket
import ssl
import threading
from pathlib import Path

import numpy as np
import pytest
import trustme
from grpc_peers import HEAD, OK, GrpcPeer, failures_of, framed, one, run, scripted_grpc
from helpers import Client, measure, scripted

from inferometer.errors import UserError
from inferometer.records import MISSING

# --- responses that are not gRPC -------------------------------------------------------------------------------------


def plain(status: str, kind: str) -> list[tuple[str, str]]:
    return [(":status", status), ("content-type", kind)]


def trailers_only(peer: GrpcPeer, stream: int) -> None:
    peer.head(stream, [*HEAD, ("grpc-status", "5"), ("grpc-message", "no%20such%20thing")], end=True)


def without_trailers(peer: GrpcPeer, stream: int) -> None:
    peer.head(stream)
    peer.data(stream, framed(b"abc"), end=True)


def without_status(peer: GrpcPeer, stream: int) -> None:
    peer.respond(stream, b"abc", [("x-other", "1")])


def bare(peer: GrpcPeer, stream: int) -> None:
    peer.head(stream, end=True)


def cut_message(peer: GrpcPeer, stream: int) -> None:
    peer.head(stream)
    peer.data(stream, framed(b"abcdef")[:7])
    peer.head(stream, OK, end=True)


def no_message(peer: GrpcPeer, stream: int) -> None:
    peer.head(stream)
    peer.head(stream, OK, end=True)


def two_messages(peer: GrpcPeer, stream: int) -> None:
    peer.head(stream)
    peer.data(stream, framed(b"abc") * 2)
    peer.head(stream, OK, end=True)


def busy(peer: GrpcPeer, stream: int) -> None:
    peer.head(stream, plain("503", "text/plain"))
    peer.data(stream, b"come back later", end=True)


def not_found(peer: GrpcPeer, stream: int) -> None:
    peer.head(stream, plain("404", "text/plain"), end=True)


def web_page(peer: GrpcPeer, stream: int) -> None:
    peer.head(stream, plain("200", "text/html"))
    peer.data(stream, b"<html>", end=True)


def unknown_compression(peer: GrpcPeer, stream: int) -> None:
    peer.head(stream)
    peer.data(stream, b"\x01\x00\x00\x00\x03abc")
    peer.head(stream, OK, end=True)


def unknown_status(peer: GrpcPeer, stream: int) -> None:
    peer.head(stream, [*HEAD, ("grpc-status", "77")], end=True)


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        (trailers_only, "grpc_NOT_FOUND", "no such thing"),
        (without_trailers, "cut_short", "the stream ended without trailers"),
        (without_status, "malformed_grpc", "the response has no grpc-status"),
        (bare, "malformed_grpc", "the response has no grpc-status"),
        (cut_message, "cut_short", "the stream ended in the middle of a message"),
        (no_message, "cut_short", "the call ended with status OK but without a response message"),
        (two_messages, "malformed_grpc", "a unary call received more than one response message"),
        (busy, "http_503", ""),
        (not_found, "http_404", ""),
        (web_page, "not_grpc", "the server responded with text/html"),
        (unknown_compression, "malformed_grpc", "a message has an unsupported compression: 'none declared'"),
        (unknown_status, "grpc_77", ""),
    ],
)
def test_invalid_response_fails_only_its_own_call(tmp_path: Path, how, code: str, message: str) -> None:  # type: ignore[no-untyped-def]
    def script(peer: GrpcPeer) -> None:
        for count, stream in enumerate(peer.requests()):
            if count:
                peer.respond(stream)
            else:
                how(peer, stream)

    done, summary = run(tmp_path, scripted_grpc(script), client={"connections": 1}, load=one(requests=3))
    assert (summary.counts.ok, summary.counts.by_failure) == (2, {code: 1})
    assert failures_of(done) == {(code, message)}


# --- servers of another kind -----------------------------------------------------------------------------------------


def http1(client: Client) -> None:
    client.sock.recv(65536)
    client.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def test_http1_server_at_a_grpc_url_is_a_clear_error(tmp_path: Path) -> None:
    with scripted(http1) as url, pytest.raises(UserError) as caught:
        run(tmp_path, url.replace("http", "grpc", 1))
    assert "does not speak HTTP/2: it responded with 'HTTP/1.1 400 Bad Request'" in caught.value.what
    assert not list((tmp_path / "runs").glob("*/spool"))


def test_http1_server_at_a_grpc_url_is_a_clear_error_for_apis_that_probe_first(tmp_path: Path) -> None:
    with scripted(http1) as url, pytest.raises(UserError) as caught:
        measure(tmp_path, url.replace("http", "grpc", 1), data={"type": "tensors"})
    assert "it responded with 'HTTP/1.1 400 Bad Request'" in caught.value.what
    assert "http://" in caught.value.remedy


def test_status_line_that_never_ends_is_a_clear_error(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        client.sock.recv(65536)
        client.send(b"HTTP/1.1 400")

    with scripted(script) as url, pytest.raises(UserError, match=r"it responded with 'HTTP/1\.1 400'"):
        run(tmp_path, url.replace("http", "grpc", 1))


def test_grpc_server_at_an_http_url_is_a_clear_error(tmp_path: Path) -> None:
    with scripted_grpc(lambda peer: peer.polite()) as url, pytest.raises(UserError) as caught:
        measure(tmp_path, url.replace("grpc", "http", 1), server={"model": None})
    assert "speaks HTTP/2 (gRPC?), not HTTP/1.1" in caught.value.what
    assert url in caught.value.remedy


def test_server_that_accepts_and_stays_silent_is_an_error_before_the_start(tmp_path: Path) -> None:
    def silent(client: Client) -> None:
        while client.sock.recv(65536):
            pass

    with scripted(silent) as url, pytest.raises(UserError, match=r"no response on 2 of 2 connections within 0\.2 s"):
        run(tmp_path, url.replace("http", "grpc", 1), server={"timeouts": {"connect": "200ms"}})


def test_new_connection_that_stays_silent_during_the_run_is_a_connect_timeout(tmp_path: Path) -> None:
    """The second connection is accepted but gets no settings; the third one works again."""
    over = threading.Event()

    def script(client: Client) -> None:
        if client.number == 2:
            over.wait(30)
            return
        peer = GrpcPeer(client, {})
        for stream in peer.requests():
            if client.number == 1:
                peer.go_away(stream)
            peer.respond(stream)

    with scripted(script) as url:
        done, summary = run(
            tmp_path,
            url.replace("http", "grpc", 1),
            server={"timeouts": {"connect": "1s"}},
            client={"connections": 1},
            load=one(requests=4),
        )
    over.set()
    assert (summary.counts.ok, summary.counts.by_failure) == (3, {"connect_timeout": 1})
    rows = np.sort(np.asarray(done.records.rows), order="id")
    assert rows["sent"][1] == MISSING
    assert rows["done"][1] - rows["intended"][1] >= 1_000_000_000


@pytest.mark.usefixtures("stale_however_late")
def test_server_that_stops_during_the_run(tmp_path: Path) -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(8)

    def serve_one_and_stop() -> None:
        look, _ = listener.accept()
        first, _ = listener.accept()
        listener.close()
        look.close()
        peer = GrpcPeer(Client(first, 1), {})
        stream = peer.request()
        if stream is not None:
            peer.respond(stream)
            peer.request()
        first.close()

    threading.Thread(target=serve_one_and_stop, daemon=True).start()
    url = f"grpc://127.0.0.1:{listener.getsockname()[1]}"
    _, summary = run(tmp_path, url, client={"connections": 1}, load=one(requests=6))
    assert (summary.counts.ok, summary.counts.by_failure) == (1, {"connect_refused": 5})


def test_missing_client_certificate_that_the_server_reports(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    context.set_alpn_protocols(["h2"])
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server = {"tls": {"ca": str(tmp_path / "ca.pem")}}
    with scripted_grpc(lambda peer: peer.polite(), context) as url, pytest.raises(UserError) as caught:
        run(tmp_path, url, server=server)
    assert "certificate" in caught.value.what


def test_http2_is_negotiated_over_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    context.set_alpn_protocols(["http/1.1", "h2"])
    chosen: list[str | None] = []

    def script(peer: GrpcPeer) -> None:
        assert isinstance(peer.sock, ssl.SSLSocket)
        chosen.append(peer.sock.selected_alpn_protocol())
        peer.polite()

    with scripted_grpc(script, context) as url:
        assert run(tmp_path, url, server={"tls": {"verify": False}})[1].counts.ok == 6
    assert set(chosen) == {"h2"}
