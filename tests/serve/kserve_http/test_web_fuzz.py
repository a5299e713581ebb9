"""Random bytes over a connection: a response or an orderly close, never an internal error, and the server continues."""

import json
import socket
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from raw_client import RawClient, request
from served import Served

X = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2]}
BINARY = json.dumps(
    {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}]}
)
SEEDS = [
    request(
        "/v2/models/identity/infer",
        {"id": "a", "inputs": [X], "outputs": [{"name": "OUTPUT0"}], "parameters": {"a": 1}},
    ),
    request("/v2/models/identity/infer", BINARY.encode() + bytes(8), Inference_Header_Content_Length=str(len(BINARY))),
    request(
        "/v2/models/all_types/infer",
        {"inputs": [{"name": "IN_BYTES", "datatype": "BYTES", "shape": [1], "data": ["x"]}]},
    ),
    request("/v2/models/echo/generate", {"text_input": "hi", "n": [1, 2], "parameters": {"x": True}}),
    request("/v2/models/words/generate_stream", {"text_input": "hi"}),
    request("/v2/models/identity/versions/1/config"),
    request("/v2/models/identity/stats"),
    request("/v2/repository/index", {"ready": True}),
    request("/v2/systemsharedmemory/region/fuzz/register", {"key": "/fuzz-none", "offset": 0, "byte_size": 4}),
    request("/v2/trace/setting", {"trace_rate": "1"}),
    request("/v1/completions", {"prompt": "a", "max_tokens": 2, "stream": True}),
    request("/metrics"),
    b"POST /v2/models/identity/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
]


@st.composite
def mutated(draw: Any) -> bytes:
    """One or two valid requests with bytes changed, removed, repeated or inserted."""
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(SEEDS), min_size=1, max_size=2))))
    for _ in range(draw(st.integers(0, 4))):
        position = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from(["change", "cut", "double", "insert"]))
        if kind == "change" and data:
            data[position] = draw(st.integers(0, 255))
        elif kind == "cut":
            del data[position : position + draw(st.integers(1, 20))]
        elif kind == "double":
            data[position:position] = data[position : position + draw(st.integers(1, 40))]
        else:
            data[position:position] = draw(
                st.binary(max_size=8) | st.sampled_from([b"-1", b"1e999", b"null", b'"', b"[[", b"\r\n\r\n", b"\xff"])
            )
    return bytes(data)


JSON: "st.SearchStrategy[Any]" = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def reshaped(draw: Any) -> bytes:
    """JSON that resembles an inference, with arbitrary values for the fields that matter."""
    tree = {
        "id": draw(st.just("a") | JSON),
        "inputs": [
            {
                "name": draw(st.just("INPUT0") | JSON),
                "datatype": draw(st.sampled_from(["FP32", "BYTES", "BOOL", "FP16", "INT64"]) | JSON),
                "shape": draw(st.lists(st.integers(-1, 2**64), max_size=3) | JSON),
                "data": draw(st.lists(st.floats(), max_size=3) | JSON),
                "parameters": draw(st.dictionaries(st.sampled_from(MEMORY_PARAMETERS), JSON, max_size=2)),
            }
        ],
        "outputs": draw(
            st.just([]) | st.lists(st.fixed_dictionaries({"name": st.just("OUTPUT0"), "parameters": JSON})) | JSON
        ),
        "parameters": draw(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=2) | JSON),
    }
    for key in draw(st.lists(st.sampled_from(list(tree)), max_size=2)):
        tree.pop(key, None)
    path = draw(st.sampled_from(["/v2/models/identity/infer", "/v2/models/echo/generate", "/v2/repository/index"]))
    return request(path, tree)


MEMORY_PARAMETERS = ["binary_data_size", "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"]
KEYS = ["sequence_id", "sequence_start", "timeout", "priority", "binary_data_output", "x"]


@given(st.binary(max_size=300) | mutated() | reshaped())
@settings(max_examples=100, deadline=None)
def test_random_bytes_get_a_response_or_a_close(server: Served, data: bytes):
    here, there = socket.socketpair()
    here.settimeout(30)
    server.call(lambda: server.listener.serve(there))
    with here:
        here.sendall(data)
        here.shutdown(socket.SHUT_WR)
        came = b""
        while more := here.recv(65536):
            came += more
    assert came == b"" or came.startswith(b"HTTP/1.1 ")
    assert b"internal server error" not in came
    assert server.errors == []
    with RawClient(server.url) as web:
        assert web.request("/v2/models/identity/infer", {"inputs": [X]}).status == 200
    server.until(lambda: server.listener.in_flight == 0)


@given(st.lists(mutated(), min_size=1, max_size=3), st.lists(st.integers(1, 60), max_size=6))
@settings(max_examples=60, deadline=None)
def test_requests_in_random_pieces_get_a_response_or_a_close(server: Served, datas: list[bytes], sizes: list[int]):
    here, there = socket.socketpair()
    here.settimeout(30)
    connection = server.call(lambda: server.listener.serve(there))
    with here:
        data = b"".join(datas)
        for size in sizes:
            try:
                here.sendall(data[:size])
            except ConnectionError:  # closed upon what came first
                break
            data = data[size:]
            server.call(lambda: None)
    server.until(lambda: connection.closed)
    assert server.errors == []
    server.until(lambda: server.listener.in_flight == 0)
