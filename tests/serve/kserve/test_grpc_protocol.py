"""gRPC over HTTP/2 as its specification says: headers, framing, compression, and what is not gRPC."""

import gzip
import socket
import struct
import warnings
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from raw_grpc import RawGrpc, headers
from served import PATIENCE_S, Served, Stub, a_request, serving
from waiting import until

from inferometer.serve.kserve import messages
from inferometer.serve.settings import Limits

INFER = f"/{messages.KSERVE_SERVICE}/ModelInfer"
STREAM = f"/{messages.KSERVE_SERVICE}/ModelStreamInfer"
LIVE = f"/{messages.KSERVE_SERVICE}/ServerLive"
REQUEST = a_request(id="7").SerializeToString()


def framed(message: bytes, is_compressed: int = 0) -> bytes:
    return struct.pack(">BL", is_compressed, len(message)) + message


@pytest.fixture
def raw(server: Served) -> Iterator[RawGrpc]:
    with RawGrpc(server.grpc_address) as one:
        yield one


# --- what is not gRPC ------------------------------------------------------------------------------------------------


def test_http1_is_told_that_the_port_serves_http2(server: Served) -> None:
    host, port = server.grpc_address.split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        response = sock.makefile("rb").read()
    assert response.endswith(b"the client does not speak HTTP/2: it began with 'GET / HTTP/1.1'")


@pytest.mark.parametrize(
    ("metadata", "code", "words"),
    [
        ((("content-type", "application/json"),), "13", "content-type of a call must be application/grpc"),
        ((("grpc-timeout", "1x"),), "13", "grpc-timeout must be"),
        ((("grpc-timeout", "123456789S"),), "13", "grpc-timeout must be"),
        ((("grpc-encoding", "br"),), "12", "Unsupported compression type 'br'"),
    ],
)
def test_invalid_headers_are_refused(raw: RawGrpc, metadata: Any, code: str, words: str) -> None:
    fields, _ = raw.exchange(headers(INFER, *metadata), [framed(REQUEST)])
    assert (fields[":status"], fields["grpc-status"]) == ("200", code)
    assert words in fields["grpc-message"]
    assert fields["grpc-accept-encoding"] == "identity,gzip,deflate"


def test_status_messages_are_percent_encoded(raw: RawGrpc) -> None:
    fields, _ = raw.exchange(headers(INFER), [framed(a_request("né%").SerializeToString())])
    assert fields["grpc-message"] == "Request for unknown model: 'n%C3%A9%25' is not found"


# --- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_call_may_arrive_in_any_pieces(raw: RawGrpc, size: int) -> None:
    data = framed(REQUEST)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    fields, body = raw.exchange(headers(INFER), [*pieces, b""])
    assert fields["grpc-status"] == "0"
    assert messages.ModelInferResponse.FromString(body[5:]).id == "7"


def test_a_response_does_not_wait_for_the_end_of_the_request(raw: RawGrpc) -> None:
    fields, _ = raw.exchange(headers(INFER), [framed(REQUEST)], end=False)
    assert fields["grpc-status"] == "0"
    assert raw.request(INFER) != 0  # the connection continues


def test_a_call_that_is_cancelled_in_the_same_segment_leaves_nothing(raw: RawGrpc) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stream = raw.http.get_next_available_stream_id()
        raw.http.send_headers(stream, headers(LIVE))
        raw.http.send_data(stream, framed(b""), end_stream=True)
        raw.http.reset_stream(stream)
        raw.send()
        assert raw.request(LIVE) == 0
    assert [str(one.message) for one in caught] == []  # such as of a coroutine that was never awaited


@pytest.mark.parametrize(
    ("pieces", "code", "words"),
    [
        ([], "3", "the call contains no request"),
        ([framed(REQUEST)[:-1]], "13", "in the middle of a message"),
        ([b"\x00\x00"], "13", "in the middle of a message"),
        ([framed(REQUEST, 1)], "13", "has no grpc-encoding"),
        ([struct.pack(">BL", 0, 1 << 31)], "8", "2147483648 bytes; the server accepts at most 1073807360"),
        ([framed(REQUEST), framed(REQUEST)], "0", ""),
    ],
)
def test_invalid_messages_end_the_call(raw: RawGrpc, pieces: list[bytes], code: str, words: str) -> None:
    fields, _ = raw.exchange(headers(INFER), pieces)
    assert (fields["grpc-status"], words in fields.get("grpc-message", "")) == (code, True), fields


# --- compression -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [10, 200_000])
@pytest.mark.parametrize("name", ["gzip", "deflate"])
def test_requests_may_be_compressed(server: Served, name: str, count: int) -> None:
    """Small messages are decompressed in the loop, large ones in a thread."""
    values = bytes(4 * count)
    with grpc.insecure_channel(server.grpc_address) as channel:
        call = channel.unary_unary(INFER, response_deserializer=messages.ModelInferResponse.FromString)
        how = getattr(grpc.Compression, name.capitalize())
        response = call(a_request(values=values).SerializeToString(), compression=how, timeout=PATIENCE_S)
    assert response.raw_output_contents == [values]


@pytest.mark.parametrize(
    "data", [b"nonsense", gzip.compress(REQUEST, mtime=0)[:-9], b""], ids=["nonsense", "truncated", "empty"]
)
def test_invalid_compressed_data_is_refused(raw: RawGrpc, data: bytes) -> None:
    fields, _ = raw.exchange(headers(INFER, ("grpc-encoding", "gzip")), [framed(data, 1)])
    assert (fields["grpc-status"], "not valid gzip data" in fields["grpc-message"]) == ("13", True)


def test_decompressed_messages_are_limited() -> None:
    bomb = framed(gzip.compress(bytes(50 << 20)), 1)
    pieces = [bomb[at : at + 16_000] for at in range(0, len(bomb), 16_000)]
    with serving(limits=Limits(message=1 << 20)) as one, RawGrpc(one.grpc_address) as raw:
        fields, _ = raw.exchange(headers(INFER, ("grpc-encoding", "gzip")), pieces)
    assert fields["grpc-status"] == "8"
    assert fields["grpc-message"] == "the decompressed message is larger than 1048576 bytes"


def test_a_stream_with_large_compressed_messages_keeps_its_order(server: Served) -> None:
    with grpc.insecure_channel(server.grpc_address, compression=grpc.Compression.Gzip) as channel:
        sent = [a_request(id=str(i), values=bytes(4 << (18 if i % 2 else 2))) for i in range(8)]
        responses = [one.infer_response for one in Stub(channel).ModelStreamInfer(iter(sent), timeout=PATIENCE_S)]
    assert [one.id for one in responses] == [str(i) for i in range(8)]
    assert [one.raw_output_contents for one in responses] == [one.raw_input_contents for one in sent]


# --- flow control ----------------------------------------------------------------------------------------------------


def test_a_large_message_in_both_directions(server: Served) -> None:
    values = bytes(20_000_000)
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.grpc_address, options=unlimited) as channel:
        response = Stub(channel).ModelInfer(a_request(values=values), timeout=4 * PATIENCE_S)
    assert response.raw_output_contents == [values]


def test_a_client_that_does_not_read_cannot_send_without_limit(server: Served) -> None:
    """Requests of 1 MB whose responses nobody reads: the server stops taking them."""
    request = framed(a_request(values=bytes(1 << 20)).SerializeToString())
    with RawGrpc(server.grpc_address) as raw:
        stream = raw.http.get_next_available_stream_id()
        raw.http.send_headers(stream, headers(STREAM))
        sent = 0
        raw.sock.settimeout(0.5)
        try:
            for _ in range(400):
                for at in range(0, len(request), 16384):
                    piece = request[at : at + 16384]
                    while raw.http.local_flow_control_window(stream) < len(piece):
                        raw.events()
                    raw.http.send_data(stream, piece)
                    raw.send()
                    sent += len(piece)
        except TimeoutError:
            pass
        assert (64 << 20) <= sent < (200 << 20)
    until(lambda: server.in_flight() == 0)
