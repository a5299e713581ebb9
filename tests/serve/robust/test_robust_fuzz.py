"""Random input over real sockets to a server in a process of its own: it stays up, prints nothing, its memory does not
grow, and the next request is served.

FUZZ_EXAMPLES=5000 runs longer.
"""

import contextlib
import json
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import grpc
import hpack
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from robust_peer import (
    MIB,
    MODEL_INFER,
    PORTS,
    STREAM_INFER,
    Child,
    Http,
    child,
    dialled,
    http_request,
    infer_head,
    responds,
    small,
    write_models,
)
from served import CONFIGS, PATIENCE_S, a_request, delayed

from inferometer.serve.kserve.messages import ModelInferRequest
from inferometer.tensors import DATATYPES
from inferometer.wire.protobuf import bundled

FUZZED = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "40")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
GROWTH = 96 * MIB
TEXT = """
backend: "identity"
input [{ name: "text_input" data_type: TYPE_STRING dims: [ -1 ] }, { name: "n" data_type: TYPE_INT32 dims: [ -1 ] optional: true }]
output [{ name: "text_output" data_type: TYPE_STRING dims: [ -1 ] }, { name: "m" data_type: TYPE_INT32 dims: [ -1 ] }]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    models = write_models(
        tmp_path_factory.mktemp("models"),
        text=TEXT,
        all_types=CONFIGS["all_types"],
        late=delayed("1ms", slots=0),
        words=delayed("1ms", slots=0, responses=3),
    )
    with child("identity", "sim", models, *PORTS, "--max-message=1MiB", "--allow-control") as one:
        responds(one)
        yield one


@pytest.fixture(autouse=True)
def unharmed(server: Child) -> Iterator[None]:
    before = server.memory()
    yield
    assert server.process.poll() is None
    assert server.errors() == ""
    assert server.memory() - before <= GROWTH
    assert responds(server)


# --- bytes -----------------------------------------------------------------------------------------------------------


def talk(address: tuple[str, int], data: bytes, first: int = 0) -> bytes:
    """Send the data, perhaps in two pieces, and return what arrives until the server closes, which is part of the test."""
    received = b""
    with socket.create_connection(address, timeout=PATIENCE_S) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(data[:first])
        sock.sendall(data[first:])
        sock.shutdown(socket.SHUT_WR)
        while more := sock.recv(65536):
            received += more
    return received


VALID = [
    small(),
    small("late"),
    http_request("POST", "/v2/models/words/generate_stream", b'{"INPUT0": [1.5]}'),
    http_request(
        "POST",
        "/v2/models/text/infer",
        b'{"id":"1","inputs":[{"name":"text_input","datatype":"BYTES","shape":[1],"data":["\\u00e9"]}],"outputs":[{"name":"text_output"}]}',
    ),
    http_request("POST", "/v2/models/text/generate", b'{"text_input": "hi", "n": [1, 2], "parameters": {"x": 1e3}}'),
    http_request("POST", "/v2/repository/index", b'{"ready": true}'),
    http_request("POST", "/v2/repository/models/nope/load", b'{"parameters": {"config": "{}"}}'),
    http_request("POST", "/v2/systemsharedmemory/region/r/register", b'{"key": "/none", "byte_size": 4, "offset": 0}'),
    http_request("POST", "/v1/completions", b'{"model": "sim", "prompt": "a", "max_tokens": 2}'),
    http_request("GET", "/v2/models/identity/versions/1/stats"),
    http_request("GET", "/metrics"),
    b"POST /v2/models/identity/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}   \r\n0\r\n\r\n",
]
SPLICES = [
    b"-1", b"1e999", b"NaN", b"Infinity", b"null", b"18446744073709551616", b"9" * 400, b'"', b"[" * 300, b'{"a":' * 300,
    b"\r\n\r\n", b"\r\nContent-Length: 5", b"\r\nTransfer-Encoding: chunked", b"\r\nContent-Encoding: gzip",
    b"\r\nExpect: 100-continue", b"\r\nUpgrade: h2c\r\nConnection: upgrade", b"\xff\xfe", b"\0", b"\xed\xa0\x80", b"%00%2f..",
]  # fmt: skip


@st.composite
def mutated(draw: Any, seeds: list[bytes], most: int = 2) -> bytes:
    """One or more of the seeds, with bytes changed, removed, repeated or inserted."""
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(seeds), min_size=1, max_size=most))))
    for _ in range(draw(st.integers(0, 5))):
        position = draw(st.integers(0, max(len(data) - 1, 0)))
        match draw(st.sampled_from(["change", "cut", "double", "insert"])):
            case "change" if data:
                data[position] = draw(st.integers(0, 255))
            case "cut":
                del data[position : position + draw(st.integers(1, 30))]
            case "double":
                data[position:position] = data[position : position + draw(st.integers(1, 60))]
            case _:
                data[position:position] = draw(st.binary(max_size=8) | st.sampled_from(SPLICES))
    return bytes(data)


@FUZZED
@given(data=st.binary(max_size=200) | mutated(VALID), first=st.integers(0, 300))
def test_random_bytes_over_http(server: Child, data: bytes, first: int) -> None:
    received = talk(server.address, data, first)
    assert received == b"" or received.startswith(b"HTTP/1.1 ")
    assert b"internal server error" not in received


@FUZZED
@given(claimed=st.integers(0, 3000), sent=st.integers(0, 300), split=st.integers(-20, 400))
def test_wrong_content_lengths(server: Child, claimed: int, sent: int, split: int) -> None:
    """Content-Length and Inference-Header-Content-Length that do not match the body."""
    body = small().partition(b"\r\n\r\n")[2]
    data = (
        f"POST /v2/models/identity/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {claimed}\r\n"
        f"Inference-Header-Content-Length: {split}\r\n\r\n"
    ).encode() + (body * 3)[:sent]
    received = talk(server.address, data)
    assert not received.startswith(b"HTTP/1.1 5")


# --- JSON ------------------------------------------------------------------------------------------------------------

NUMBERS = st.sampled_from([2**31, 2**62, 2**63 - 1, 2**63, 2**64, -1, -(2**63), 0, 1, 1.5, 1e308, 10**400])
NUMBERS |= st.integers(-3, 5)
ANY: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=10,
)
PARAMETER_NAMES = (
    "binary_data_size", "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset", "classification",
    "binary_data", "timeout", "priority", "sequence_id", "sequence_start", "binary_data_output", "triton_x", "x",
)  # fmt: skip
parameters = st.dictionaries(st.sampled_from(PARAMETER_NAMES), NUMBERS | ANY, max_size=3)
shapes = st.lists(NUMBERS, max_size=4) | st.sampled_from([[2**62, 4], [2**32, 2**32], [-1, -1], [1] * 500]) | ANY


@st.composite
def trees(draw: Any) -> Any:
    """JSON that resembles an inference, with arbitrary values for the fields that matter."""
    one = {
        "name": draw(st.sampled_from(["INPUT0", "text_input", "n"]) | ANY),
        "datatype": draw(st.sampled_from(["FP32", "BYTES", "BOOL", "FP16", "INT64", "INT32"]) | ANY),
        "shape": draw(shapes),
        "data": draw(st.lists(NUMBERS, max_size=4) | ANY),
        "parameters": draw(parameters),
    }
    for key in draw(st.sets(st.sampled_from([*one]), max_size=2)):
        del one[key]
    return {
        "id": draw(st.just("a") | ANY),
        "inputs": [one] * draw(st.integers(0, 2)) if draw(st.booleans()) else draw(ANY),
        "outputs": [{"name": draw(st.just("OUTPUT0") | ANY), "parameters": draw(parameters)}],
        "parameters": draw(parameters | ANY),
    }


@FUZZED
@given(
    tree=trees() | st.dictionaries(st.sampled_from(["INPUT0", "text_input", "n", "id"]), ANY),
    model=st.sampled_from(["identity", "text", "late"]),
    verb=st.sampled_from(["infer", "generate"]),
    doubled=st.booleans(),
)
def test_random_json_never_causes_an_internal_error(
    server: Child, tree: Any, model: str, verb: str, doubled: bool
) -> None:
    body = json.dumps(tree).encode()  # NaN and Infinity as Python writes them
    if doubled and len(tree) > 0:
        body = body[:-1] + b"," + body[1:]  # every key twice
    with Http(server.url) as client:
        status, response = client.request(http_request("POST", f"/v2/models/{model}/{verb}", body))
    assert status in (200, 400, 404, 501, 504), response


@FUZZED
@given(
    depth=st.integers(1, 100_000),
    opening=st.sampled_from([b"[", b'{"inputs":', b'{"inputs":[{"data":', b'{"a":[']),
    end=st.booleans(),
)
@example(depth=60_000, opening=b"[", end=True)
def test_deeply_nested_json(server: Child, depth: int, opening: bytes, end: bool) -> None:
    body = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":' + (opening * depth)[: MIB // 2]
    body += b"]" * min(depth, MIB // 4) + b"}]}" if end else b""
    with Http(server.url) as client:
        status, _ = client.request(http_request("POST", "/v2/models/identity/infer", body))
    assert status == 400


def test_requests_in_many_small_pieces(server: Child) -> None:
    with Http(server.url) as client:
        for at in range(len(data := small())):
            client.sock.sendall(data[at : at + 1])
        assert client.read_response()[0] == 200


def test_announced_bodies_that_never_arrive_take_no_memory(server: Child) -> None:
    """100 connections announce 1 MiB each and disconnect: their buffers are freed."""
    clients = [Http(server.url) for _ in range(100)]
    for client in clients:
        client.sock.sendall(infer_head("identity", MIB - 1000, [1, 2]))
    for client in clients:
        client.sock.close()


# --- gRPC ------------------------------------------------------------------------------------------------------------

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def headers(path: str, *more: tuple[str, str]) -> bytes:
    usual = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x")]
    return hpack.Encoder().encode([*usual, ("content-type", "application/grpc"), ("te", "trailers"), *more])


def message(data: bytes, compressed: int = 0) -> bytes:
    return struct.pack(">BI", compressed, len(data)) + data


SETTINGS = frame(4, 0, 0, b"")
CALL = frame(1, 4, 1, headers(MODEL_INFER)) + frame(0, 1, 1, message(a_request().SerializeToString()))
STREAM = frame(1, 4, 3, headers(STREAM_INFER)) + frame(0, 0, 3, message(a_request("words").SerializeToString()))
FRAMES = [
    PREFACE + SETTINGS + CALL,
    PREFACE + SETTINGS + STREAM + CALL,
    PREFACE + SETTINGS + frame(1, 4, 1, headers(MODEL_INFER, ("grpc-timeout", "1n"))),
    PREFACE
    + SETTINGS
    + frame(1, 4, 1, headers("/no/where", ("grpc-encoding", "gzip")))
    + frame(0, 1, 1, message(b"x", 1)),
    PREFACE + SETTINGS + frame(1, 4, 1, headers(MODEL_INFER, *[("k" * 50, "v" * 900)] * 80)),
    PREFACE
    + SETTINGS
    + CALL
    + frame(3, 0, 1, b"\0\0\0\x08")
    + frame(8, 0, 0, b"\x7f\xff\xff\xff")
    + frame(7, 0, 0, bytes(8)),
]


@st.composite
def any_frames(draw: Any) -> bytes:
    made = PREFACE + SETTINGS
    for _ in range(draw(st.integers(1, 5))):
        payload = draw(st.binary(max_size=40) | st.just(headers(MODEL_INFER)) | st.just(message(b"\x0a\x01a")))
        made += frame(draw(st.integers(0, 12)), draw(st.integers(0, 255)), draw(st.integers(0, 6)), payload)
    return made


@FUZZED
@given(
    data=st.binary(max_size=100)
    | st.binary(max_size=100).map(lambda more: PREFACE + more)
    | any_frames()
    | mutated(FRAMES, 1)
)
def test_random_frames_over_grpc(server: Child, data: bytes) -> None:
    host, port = server.grpc_address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as sock, contextlib.suppress(OSError):
        sock.sendall(data)
        sock.settimeout(0.005)
        while sock.recv(65536):
            pass


def resets(count: int) -> bytes:
    head, cancelled = headers(MODEL_INFER), b"\0\0\0\x08"
    return b"".join(frame(1, 4, number, head) + frame(3, 0, number, cancelled) for number in range(1, 2 * count, 2))


FLOODS = {
    "pings": frame(6, 0, 0, bytes(8)) * 50_000,
    "continued headers": frame(1, 0, 1, b"") + frame(9, 0, 1, b"") * 50_000,
    "calls that are cancelled": resets(50_000),
}


@pytest.mark.parametrize("name", FLOODS)
def test_floods_end_the_connection(server: Child, name: str) -> None:
    host, port = server.grpc_address.rsplit(":", 1)
    received = b""
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as sock:
        try:
            sock.sendall(PREFACE + SETTINGS + FLOODS[name])
            while data := sock.recv(65536):
                received += data
        except ConnectionError:  # the server waited a second for the client to read the reason
            return
    enhance_your_calm = b"\0\0\0\x0b"
    assert enhance_your_calm in received[-120:]


@pytest.fixture(scope="module")
def channel(server: Child) -> Iterator[grpc.Channel]:
    with dialled(server.grpc_address) as one:
        yield one


MESSAGES = [
    a_request().SerializeToString(),
    a_request(values=bytes(20_000)).SerializeToString(),
    a_request("late", id="1").SerializeToString(),
    a_request("text").SerializeToString(),
]


PATHS = sorted(f"/{name}" for set_of in ("kserve", "health", "reflection_v1alpha") for name in bundled(set_of).methods)


@FUZZED
@given(
    path=st.sampled_from([MODEL_INFER, STREAM_INFER]) | st.sampled_from(PATHS),
    sent=st.lists(mutated(MESSAGES, 2) | st.binary(max_size=60), min_size=1, max_size=3),
)
def test_random_messages_over_grpc(channel: grpc.Channel, path: str, sent: list[bytes]) -> None:
    """Sent as a stream, which every method is to the server. UNKNOWN would be an unhandled exception."""
    is_endless = path.endswith("/Watch")
    try:
        for _ in channel.stream_stream(path)(iter(sent), timeout=0.05 if is_endless else PATIENCE_S):
            pass
    except grpc.RpcError as error:
        assert error.code().name != "UNKNOWN", error.details()
        assert is_endless or error.code().name != "DEADLINE_EXCEEDED"


names = st.sampled_from(["", "INPUT0", "OUTPUT0", "IN_FP32", "IN_BYTES", "OUT_BYTES", "x", "\0", "é"])
_SHARED = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")
_OTHERS = ("classification", "timeout", "priority", "sequence_id", "sequence_start", "binary_data", "y")
_TRITONS = ("triton_enable_empty_final_response", "triton_x")
parameter_names = st.sampled_from([*_SHARED, *_OTHERS, *_TRITONS])
sizes = st.integers(-2, 5) | st.integers(-(2**63), 2**63 - 1)


@st.composite
def grpc_parameters(draw: st.DrawFn, field: Any) -> None:
    for name in draw(st.lists(parameter_names, max_size=3)):
        kind = draw(st.sampled_from(["bool_param", "int64_param", "string_param", "double_param", "uint64_param", ""]))
        value = {
            "bool_param": True,
            "int64_param": draw(sizes),
            "string_param": draw(names),
            "double_param": draw(st.floats()),
            "uint64_param": 2**64 - 1,
        }
        if kind:
            setattr(field[name], kind, value[kind])
        else:
            field[name].SetInParent()


@st.composite
def infer_requests(draw: st.DrawFn) -> Any:
    models = st.sampled_from(["identity", "all_types", "text", "late", "words", "", "nope"])
    made = ModelInferRequest(model_name=draw(models), model_version=draw(st.sampled_from(["", "", "1", "-1", "x"])))
    made.id = draw(st.text(max_size=4))
    draw(grpc_parameters(made.parameters))
    for name in draw(st.lists(names, max_size=3)):
        one = made.inputs.add(name=name, datatype=draw(st.sampled_from([*DATATYPES, "", "FP8"])))
        one.shape.extend(draw(st.lists(sizes, max_size=3)))
        draw(grpc_parameters(one.parameters))
        if draw(st.booleans()):
            one.contents.int_contents.extend(draw(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3)))
            one.contents.bytes_contents.extend(draw(st.lists(st.binary(max_size=4), max_size=2)))
    for name in draw(st.lists(names, max_size=2)):
        draw(grpc_parameters(made.outputs.add(name=name).parameters))
    made.raw_input_contents.extend(draw(st.lists(st.binary(max_size=24), max_size=3)))
    return made


@FUZZED
@given(sent=st.lists(infer_requests(), min_size=1, max_size=4))
def test_infer_requests_in_a_stream(channel: grpc.Channel, sent: list[Any]) -> None:
    """Each ordinary request has one response, and the stream ends with OK."""
    data = [one.SerializeToString() for one in sent]
    responses = list(channel.stream_stream(STREAM_INFER)(iter(data), timeout=PATIENCE_S))
    if all(one.model_name != "words" for one in sent):
        assert len(responses) == len(sent)
