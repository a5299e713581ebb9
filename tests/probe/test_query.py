"""One request and its complete response, over HTTP/1.1 and gRPC: bodies, instants, and errors."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
import trustme
from grpc_peers import BIG, HEAD, OK, GrpcPeer, framed, grpcio, scripted_grpc
from helpers import Client, http_response, scripted

from inferometer.errors import UserError
from inferometer.probe import query, roundtrip
from inferometer.probe.connect import Peer
from inferometer.probe.query import Reply
from inferometer.types import Fail
from inferometer.wire.target import parse

ECHO = "/t.S/Unary"


def peer(url: str, **more: object) -> Peer:
    return Peer(parse(url), **({"timeout": 30.0, "connect_timeout": 30.0} | more))  # type: ignore[arg-type]


def instants(reply: Reply) -> list[int]:
    return [reply.connect_from, reply.connected, reply.sent, reply.first_byte, reply.done]


def are_in_order(reply: Reply) -> bool:
    found = instants(reply)
    return found == sorted(found) and found[0] > 0 and reply.sent <= reply.written


def sends(*parts: bytes) -> object:
    """A script that responds to a request with these bytes, and closes."""

    def script(client: Client) -> None:
        if client.request():
            for part in parts:
                client.send(part)

    return script


# --- HTTP/1.1 --------------------------------------------------------------------------------------------------------


def test_one_request_over_http() -> None:
    received: list[tuple[str, dict[str, str], bytes]] = []

    def script(client: Client) -> None:
        if request := client.request():
            received.append(request)
            client.send(http_response(b'{"a": 1}', "X-Other: Yes\r\n"))

    with scripted(script) as url:
        reply = query.http(peer(url + "/prefix"), "POST", "/v2/x", {"X-Mine": "1"}, b"question")
    (first, headers, body) = received[0]
    assert first == "POST /prefix/v2/x HTTP/1.1"
    assert (headers["x-mine"], headers["connection"], body) == ("1", "close", b"question")
    assert (reply.status, reply.body, reply.headers["x-other"]) == (200, b'{"a": 1}', "Yes")
    assert are_in_order(reply)


@pytest.mark.parametrize(
    ("parts", "body"),
    [
        ((b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b"4\r\ndefg\r\n0\r\n\r\n"), b"abcdefg"),
        ((b"HTTP/1.1 200 OK\r\n\r\nall of it", b" until the end"), b"all of it until the end"),
        ((b"HTTP/1.0 200 OK\r\n\r\n",), b""),
        ((b"HTTP/1.1 204 No Content\r\n\r\n",), b""),
        ((b"HTTP/1.1 100 Continue\r\n\r\n", http_response(b"abc")), b"abc"),
        ((b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + http_response(b"abc"),), b"abc"),
    ],
)
def test_bodies_may_be_chunked_or_end_with_the_connection_or_follow_early_hints(
    parts: tuple[bytes, ...], body: bytes
) -> None:
    with scripted(sends(*parts)) as url:  # type: ignore[arg-type]
        reply = query.http(peer(url), "GET", "/", {})
    assert reply.body == body
    assert reply.status in (200, 204)
    assert "link" not in reply.headers
    assert are_in_order(reply)


def test_ctrl_c_in_the_middle_of_a_response_is_not_a_malformed_response(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with scripted(sends(http_response(b"{}"))) as url:
        monkeypatch.setattr(query._HttpResponse, "on_header", interrupted)
        with pytest.raises(KeyboardInterrupt):
            query.http(peer(url), "GET", "/", {})


def test_big_bodies_over_http() -> None:
    def script(client: Client) -> None:
        if request := client.request():
            client.send(http_response(request[2]))

    body = bytes(range(256)) * 16_000
    with scripted(script) as url:
        reply = query.http(peer(url), "POST", "/", {}, body)
    assert reply.body == body
    assert reply.sent_bytes > len(body)
    assert are_in_order(reply)
    stamps = [at for at, _ in reply.pieces]
    assert stamps == sorted(stamps)
    assert reply.first_byte <= stamps[0]
    assert stamps[-1] <= reply.done


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ((), "closed the connection without sending a response"),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",), "closed in the middle"),
        ((b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",), "closed in the middle"),
        ((b"HTTP/1.1 200 OK\r\nX-Cut",), "closed in the middle"),
        ((b"HTTP/1.1 100 Continue\r\n\r\n",), "closed in the middle"),
        ((b"SSH-2.0-OpenSSH\r\n",), "not valid HTTP/1.1: Expected HTTP"),
    ],
)
def test_invalid_responses_over_http_are_errors(parts: tuple[bytes, ...], what: str) -> None:
    with scripted(sends(*parts)) as url, pytest.raises(UserError) as caught:  # type: ignore[arg-type]
        query.http(peer(url), "GET", "/x", {})
    assert what in caught.value.what
    assert url in caught.value.what


ALERT = b"\x15\x03\x03\x00\x02\x02\x46"


@pytest.mark.parametrize("kind", ["http", "grpc"])
@pytest.mark.parametrize("split", range(2, len(ALERT) + 1))
def test_a_tls_alert_leads_to_the_right_url(kind: str, split: int) -> None:
    def script(client: Client) -> None:
        client.sock.recv(65536)
        client.send(ALERT[:split])
        client.send(ALERT[split:])

    with scripted(script) as url, pytest.raises(UserError) as caught:
        server = peer(url.replace("http", kind, 1))
        query.http(server, "GET", "/", {}) if kind == "http" else query.grpc(server, ECHO, [b""], {})
    assert "TLS" in caught.value.what
    assert caught.value.remedy == f"write {url.replace('http', f'{kind}s', 1)}"


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_server_that_closes_without_a_byte_may_speak_tls(kind: str) -> None:
    with scripted(lambda client: None) as url, pytest.raises(UserError) as caught:
        server = peer(url.replace("http", kind, 1))
        query.http(server, "GET", "/", {}) if kind == "http" else query.grpc(server, ECHO, [b""], {})
    assert "closed the connection without sending a response" in caught.value.what
    assert f"write {url.replace('http', f'{kind}s', 1)} if it speaks TLS" in caught.value.remedy


def test_a_server_that_breaks_off_does_not_speak_tls() -> None:
    with scripted(sends(b"HTTP/1.1 200 OK\r\nX-Cut")) as url, pytest.raises(UserError) as caught:  # type: ignore[arg-type]
        query.http(peer(url), "GET", "/", {})
    assert "TLS" not in str(caught.value)


def test_a_status_other_than_200_is_a_reply() -> None:
    with scripted(sends(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")) as url:  # type: ignore[arg-type]
        reply = query.http(peer(url), "GET", "/", {})
    assert (reply.status, reply.body) == (503, b"busy")


def test_grpcio_behind_an_http_url_is_recognised() -> None:
    with grpcio(Unary=lambda message, _: message) as url, pytest.raises(UserError) as caught:
        query.http(peer(url.replace("grpc", "http", 1)), "GET", "/v2", {})
    assert "HTTP/2" in caught.value.what
    assert url in caught.value.remedy


def silent(client: Client) -> None:
    while client.sock.recv(65536):
        pass


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_waiting_for_a_silent_server_ends_with_the_timeout(kind: str) -> None:
    with scripted(silent) as url, pytest.raises(UserError, match="did not respond within 100"):
        target = peer(url.replace("http", kind, 1), timeout=0.1)
        if kind == "http":
            query.http(target, "GET", "/", {})
        else:
            query.grpc(target, ECHO, [b""], {})


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_waiting_for_a_server_that_does_not_read_ends_with_the_timeout(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    greeted, over = threading.Event(), threading.Event()
    read = roundtrip._Wire.read

    def read_once_greeted(wire: roundtrip._Wire) -> tuple[bytes, int]:
        assert greeted.wait(30)
        return read(wire)

    def deaf(client: Client) -> None:
        if kind == "grpc":  # settings that allow all at once, and more of the connection
            client.send(b"\0\0\x06\x04\0\0\0\0\0\0\x04\x7f\xff\xff\xff\0\0\x04\x08\0\0\0\0\0\x7f\0\0\0")
            greeted.set()
        over.wait(30)

    monkeypatch.setattr(roundtrip._Wire, "read", read_once_greeted)
    with scripted(deaf) as url, pytest.raises(UserError, match="did not read the request within 100"):
        target = peer(url.replace("http", kind, 1), timeout=0.1)
        body = bytes(30_000_000)
        if kind == "http":
            query.http(target, "POST", "/", {}, body)
        else:
            query.grpc(target, ECHO, [body], {})
    over.set()


def endless(*parts: bytes, pause: float = 0) -> Callable[[Client], None]:
    """A script that responds with the first part and repeats the others until the client closes, or for 30 s."""

    def script(client: Client) -> None:
        client.request()
        client.sock.sendall(parts[0])
        until = time.monotonic() + 30
        while time.monotonic() < until:
            for part in parts[1:]:
                client.sock.sendall(part)
                time.sleep(pause)

    return script


OPEN = b"HTTP/1.1 200 OK\r\n\r\n"
NAMES = b'{"id": "m"}, ' * 5000


@pytest.mark.parametrize(
    ("script", "what"),
    [
        (endless(OPEN, NAMES), "larger than 16 MiB"),
        (endless(b"HTTP/1.1 200 OK\r\n", b"X-More: " + b"x" * 60_000 + b"\r\n"), "more than 1 MiB of headers"),
        (endless(OPEN, b"x", pause=0.02), "timed out after 200 ms"),
        (endless(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", pause=0.02), "timed out after 200 ms"),
    ],
    ids=["body", "headers", "trickle", "hints"],
)
def test_a_response_without_an_end_is_given_up(script: Callable[[Client], None], what: str) -> None:
    with scripted(script) as url, pytest.raises(UserError, match=what):
        query.http(peer(url, timeout=0.1 if "ms" in what else 30.0), "GET", "/v1/models", {})


def test_a_grpc_call_without_an_end_is_given_up() -> None:
    def endless_calls(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        while context.is_active():
            yield bytes(60_000)

    with grpcio(Both=endless_calls) as url, pytest.raises(UserError, match="larger than 16 MiB"):
        query.grpc(peer(url), "/t.S/Both", [b""], {})


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_connection_refused(kind: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"{kind}://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(UserError, match="connection refused"):
            query.http(peer(url), "GET", "/", {})
    with pytest.raises(UserError, match="does not resolve"):
        query.http(peer(f"{kind}://no-such-host.invalid"), "GET", "/", {})


# --- gRPC ------------------------------------------------------------------------------------------------------------


def test_one_call_over_grpc() -> None:
    seen: dict[str, str | bytes] = {}

    def echo(message: bytes, context: grpc.ServicerContext) -> bytes:
        seen.update(dict(context.invocation_metadata()))
        context.send_initial_metadata([("x-early", "1")])
        context.set_trailing_metadata([("x-late", "2")])
        return message + b"!"

    with grpcio(Unary=echo) as url:
        reply = query.grpc(peer(url), ECHO, [b"hello"], {"X-Mine": "1"})
    assert reply.fail is None
    assert (reply.body, reply.status, seen["x-mine"]) == (b"hello!", 200, "1")
    assert (reply.headers["x-early"], reply.headers["x-late"]) == ("1", "2")
    assert are_in_order(reply)


def test_the_first_byte_is_that_of_the_response_not_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server sends its settings at once, and the response later."""
    is_written = threading.Event()
    all_written = roundtrip._Wire.all_written

    def noted(wire: roundtrip._Wire) -> None:
        all_written(wire)
        is_written.set()

    def slow(message: bytes, context: grpc.ServicerContext) -> bytes:
        is_written.wait(30)
        threading.Event().wait(0.1)
        return message

    monkeypatch.setattr(roundtrip._Wire, "all_written", noted)
    with grpcio(Unary=slow) as url:
        reply = query.grpc(peer(url), ECHO, [b"hello"], {})
    assert reply.first_byte - reply.sent >= 100_000_000
    assert reply.written - reply.sent < reply.first_byte - reply.sent


@pytest.mark.parametrize("compression", ["none", "gzip", "deflate"])
def test_streams_both_ways(compression: str) -> None:
    def both(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.set_compression(grpc.Compression.Gzip)
        for message in messages:
            yield message * 2

    with grpcio(Both=both) as url:
        reply = query.grpc(peer(url), "/t.S/Both", [b"ab" * 200, b"", b"cd"], {}, compression=compression)
    assert [message for _, message in reply.pieces] == [b"ab" * 400, b"", b"cdcd"]
    assert are_in_order(reply)


def test_big_messages_both_ways() -> None:
    body = bytes(range(256)) * 80_000
    with grpcio(BIG, Unary=lambda message, _: message) as url:
        reply = query.grpc(peer(url), ECHO, [body], {}, max_size=2 * len(body))
    assert reply.fail is None
    assert reply.body == body
    assert reply.sent_bytes > len(body)
    assert are_in_order(reply)


def test_a_call_that_fails_is_a_reply_with_the_reason() -> None:
    def fail(message: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.NOT_FOUND, "kein Modell „x“")

    with grpcio(Unary=fail) as url:
        reply = query.grpc(peer(url), ECHO, [b""], {})
    assert reply.fail == Fail("grpc_NOT_FOUND", "kein Modell „x“", True)
    assert reply.done >= reply.sent


def test_a_deadline() -> None:
    def slow(message: bytes, context: grpc.ServicerContext) -> bytes:
        over = threading.Event()
        if context.add_callback(over.set):  # and it is not over yet
            over.wait(30)
        return b""

    with grpcio(Unary=slow) as url:
        reply = query.grpc(peer(url), ECHO, [b""], {}, deadline=0.1)
    assert reply.fail is not None
    assert reply.fail.code in ("grpc_DEADLINE_EXCEEDED", "stream_reset")


def test_a_stream_that_is_reset_is_a_reply() -> None:
    def script(peer: GrpcPeer) -> None:
        stream = peer.request()
        if stream is not None:
            peer.reset(stream, 2)
            peer.request()

    with scripted_grpc(script) as url:
        reply = query.grpc(peer(url), ECHO, [b""], {})
    assert reply.fail is not None
    assert reply.fail.code == "stream_reset"
    assert "INTERNAL_ERROR" in reply.fail.message


def begun_then_closed(peer: GrpcPeer) -> None:
    stream = peer.request()
    if stream is not None:
        peer.head(stream, HEAD)
        peer.data(stream, framed(b"abc")[:6])


def web_page(peer: GrpcPeer) -> None:
    stream = peer.request()
    if stream is not None:
        peer.head(stream, [(":status", "200"), ("content-type", "text/html")])
        peer.data(stream, b"<html>", end=True)
        peer.request()


def nothing(peer: GrpcPeer) -> None:
    peer.request()


@pytest.mark.parametrize(
    ("script", "what"),
    [
        (begun_then_closed, "closed in the middle"),
        (web_page, "responded with text/html: it does not speak gRPC"),
        (nothing, "closed the connection without sending a response"),
    ],
)
def test_invalid_responses_over_grpc_are_errors(script, what: str) -> None:  # type: ignore[no-untyped-def]
    with scripted_grpc(script) as url, pytest.raises(UserError) as caught:
        query.grpc(peer(url), ECHO, [b""], {})
    assert what in caught.value.what


def test_a_server_that_goes_away_may_still_respond() -> None:
    def script(peer: GrpcPeer) -> None:
        stream = peer.request()
        if stream is not None:
            peer.go_away(stream)
            peer.head(stream)
            peer.data(stream, framed(b"abc"))
            peer.head(stream, OK, end=True)
            peer.request()

    with scripted_grpc(script) as url:
        assert query.grpc(peer(url), ECHO, [b""], {}).body == b"abc"


@pytest.mark.parametrize("start", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"HTTP/1.1 400 Bad Request"])
def test_an_http1_server_behind_grpc(start: bytes) -> None:
    def script(client: Client) -> None:
        client.sock.recv(65536)
        client.send(start)

    with scripted(script) as url, pytest.raises(UserError) as caught:
        query.grpc(peer(url.replace("http", "grpc", 1)), ECHO, [b""], {})
    assert "it responded with 'HTTP/1.1 400 Bad Request'" in caught.value.what
    assert url in caught.value.remedy


# --- TLS -------------------------------------------------------------------------------------------------------------


def test_over_tls_with_and_without_the_required_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    mine = authority.issue_cert("127.0.0.1")
    pair = (mine.private_key_pem.bytes(), b"".join(blob.bytes() for blob in mine.cert_chain_pems))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    context.set_alpn_protocols(["h2"])
    with grpcio(credentials=grpc.ssl_server_credentials([pair]), Unary=lambda message, _: message) as url:
        reply = query.grpc(peer(url, context=context), ECHO, [b"hello" * 10_000], {})
    assert reply.body == b"hello" * 10_000
    assert are_in_order(reply)
    wanting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    mine.configure_cert(wanting)
    authority.configure_trust(wanting)
    wanting.verify_mode = ssl.CERT_REQUIRED
    wanting.set_alpn_protocols(["h2"])
    with scripted_grpc(lambda peer: peer.polite(), wanting) as url, pytest.raises(UserError) as caught:
        query.grpc(peer(url, context=context), ECHO, [b""], {})
    assert "127.0.0.1" in caught.value.what
