"""One round trip: its instants are in order whatever the server does first, and events are passed on as they arrive."""

from itertools import pairwise

import pytest
from command import cli
from helpers import STREAM, Client, http_response, polite, scripted
from kserve_peers import over_grpc

from inferometer.errors import UserError
from inferometer.probe import roundtrip
from inferometer.probe.connect import Peer
from inferometer.probe.roundtrip import Instants
from inferometer.types import Fail, Received
from inferometer.wire.http1 import ResponseDecoder, request_head
from inferometer.wire.openai import EXTRACTOR
from inferometer.wire.target import parse
from inferometer.wire.text_body import body_decoder


def roundtrip_of(url: str, body: bytes = b"") -> tuple[Instants, Fail | None, Received]:
    decoder = ResponseDecoder(body_decoder(EXTRACTOR, True))
    head = request_head("POST", "/", "x", {"Content-Length": str(len(body))}) + b"\r\n"
    peer = Peer(parse(url), timeout=10)
    instants, fail = roundtrip.over_http(peer, head + body, decoder, lambda at, events: None)
    return instants, fail, decoder.received


def in_order(instants: Instants) -> bool:
    marks = [instants.connect_from, instants.connected, instants.written, instants.first_byte, instants.done]
    return all(early <= late for early, late in pairwise(marks)) and marks[0] > 0


def test_instants_are_in_order_and_bytes_counted() -> None:
    with scripted(polite) as url:
        instants, fail, received = roundtrip_of(url)
    assert fail is None
    assert in_order(instants)
    assert instants.bytes_in == len(http_response())
    assert received.counts == [1, 1]
    assert all(instants.connected <= at <= instants.done for at in received.arrivals)


def test_a_server_that_responds_before_it_has_read_the_request() -> None:
    def script(client: Client) -> None:
        client.sock.recv(100)
        client.send(b"HTTP/1.1 413 No\r\nContent-Length: 7\r\n\r\ntoo big")
        while client.sock.recv(1 << 20):
            pass

    with scripted(script) as url:
        instants, fail, _ = roundtrip_of(url, bytes(8 << 20))
    assert fail is not None and (fail.code, fail.message) == ("http_413", "too big")
    assert in_order(instants)
    assert instants.bytes_out > 8 << 20


def test_a_response_without_a_length_ends_with_its_last_byte() -> None:
    def script(client: Client) -> None:
        client.request()
        client.send(b"HTTP/1.1 200 OK\r\n\r\n" + STREAM)

    with scripted(script) as url:
        instants, fail, received = roundtrip_of(url)
    assert fail is None
    assert instants.done == received.arrivals[-1]


@pytest.mark.parametrize(
    "sent", [b"", b"\x00\x00\x00\x04\x00\x00\x00\x00\x00", b"\x00\x00\x12\x04\x00\x00\x00\x00\x00abc"]
)
def test_a_grpc_server_is_recognised_by_its_settings(sent: bytes) -> None:
    def script(client: Client) -> None:
        client.request()
        client.send(sent)

    with scripted(script) as url:
        if sent:
            with pytest.raises(UserError, match="speaks HTTP/2") as caught:
                roundtrip_of(url)
            assert url.replace("http", "grpc") in caught.value.remedy
        else:
            assert roundtrip_of(url)[1] == Fail("closed", "")


def test_megabytes_over_grpc_wait_for_the_servers_windows() -> None:
    with over_grpc() as url:
        result = cli("infer", url, "--model", "pair", "--fill", "zeros", "--shape", "A=90000,4", "--shape", "B=90000,4")
    assert result.status == 0, result
    assert "2.75 MiB" in result.out and "1.37 MiB" in result.out
    assert "[0 0 0 ... 0 0 0]" not in result.out and "..." in result.out
