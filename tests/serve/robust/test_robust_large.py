"""Large tensors there and back: the server's memory is bounded by a multiple of their size, and is given back.

The multiples: over HTTP and in chunks a tensor is there once. gRPC has a message in its own slices, in the bytes that it makes of
them and in the answer, and grpcio's own echo server takes three times the size; ours is held to five. `python -m bench soak` does
the same with 1 GiB.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from robust_peer import (
    LARGE,
    MIB,
    MODEL_INFER,
    PATIENCE_S,
    PORTS,
    PYTHON,
    STREAM_INFER,
    Child,
    Http,
    a_request,
    answers,
    child,
    dialled,
    http_request,
    infer_head,
    small,
    write_models,
)
from waiting import until

from inferometer.serve.kserve.messages import OWN_SERVICE, ModelStreamInferResponse

pytestmark = pytest.mark.slow
SIZE = 96 * MIB
TIMES = {"HTTP": 1.1, "gRPC": 5.0, "gRPC in chunks": 1.5}
BESIDES = 24 * MIB
"""Buffers, sockets, what the allocator keeps."""


@pytest.fixture(scope="module")
def server() -> Iterator[Child]:
    with child("identity", *PORTS) as one:
        answers(one)
        yield one


@pytest.mark.parametrize("way", LARGE)
def test_a_large_tensor_takes_a_bounded_multiple_of_its_size(server: Child, way: str) -> None:
    before = server.memory()
    server.forget_peak()
    LARGE[way](server, SIZE)
    assert server.peak() - before <= TIMES[way] * SIZE + BESIDES
    assert server.errors() == ""


@pytest.mark.parametrize("way", ["HTTP", "gRPC in chunks"])
def test_the_memory_of_many_is_that_of_one(server: Child, way: str) -> None:
    """Nothing is left behind that would be found only by the garbage collector."""
    LARGE[way](server, SIZE // 4)
    before = server.memory()
    server.forget_peak()
    for _ in range(6):
        LARGE[way](server, SIZE // 4)
    assert server.peak() - before <= TIMES[way] * SIZE // 4 + BESIDES


def test_the_requests_of_a_stream_leave_nothing_behind(server: Child) -> None:
    size, count = 8 * MIB, 48
    message = a_request(values=bytes(size)).SerializeToString()
    with dialled(server.place) as channel:
        before = server.memory()
        server.forget_peak()
        call = channel.stream_stream(STREAM_INFER)(iter([message] * count), timeout=4 * PATIENCE_S)
        for data in call:
            assert not ModelStreamInferResponse.FromString(data).error_message
            count -= 1
    assert not count
    # Up to 64 MiB of answers wait, and gRPC reads ahead; all requests and answers would be 96 times the size.
    assert server.peak() - before <= 24 * size + BESIDES


def test_a_message_over_the_limit_is_refused_before_it_is_taken() -> None:
    with child("identity", *PORTS, "--max-message=1MiB") as server:
        answers(server)
        server.forget_peak()
        before = server.memory()
        with Http(server.address) as client:
            status, body = client.ask(infer_head("identity", 2048 * MIB, [1, 512 * MIB]) + bytes(MIB))
        assert status == 413
        assert b"1048576" in body
        with dialled(server.place) as channel, pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(MODEL_INFER)(bytes(64 * MIB), timeout=PATIENCE_S)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "1048576" in refused.value.details()
        assert server.peak() - before <= BESIDES
        assert answers(server)


def test_tensors_as_large_as_the_limit_fit() -> None:
    """The limit is of the whole message: of 4 MiB, tensors may have all but the names around them."""
    with child("identity", *PORTS, "--max-message=4MiB") as server, dialled(server.place) as channel:
        largest = 4 * MIB - 64
        message = a_request(values=bytes(largest)).SerializeToString()
        assert len(message) <= 4 * MIB
        assert len(channel.unary_unary(MODEL_INFER)(message, timeout=PATIENCE_S)) > largest
        with pytest.raises(grpc.RpcError):
            channel.unary_unary(MODEL_INFER)(message + bytes(4 * MIB + 1 - len(message)), timeout=PATIENCE_S)


def test_what_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    """A refusal is an exception, which knows the frames that it went through: none of them keeps the request's data."""
    models, size, count = write_models(tmp_path, failing=PYTHON), 4 * MIB, 16
    (tmp_path / "failing/1/model.py").write_text("def infer(inputs, parameters):\n    raise ValueError('no')\n")
    with child("identity", models, *PORTS) as server:
        answers(server)
        before = server.memory()
        with Http(server.address) as client, dialled(server.place) as channel:
            for _ in range(count):
                assert client.ask(small("failing", bytes(size)))[0] == 500
                assert client.ask(small("nope", bytes(size)))[0] == 404
                assert client.ask(http_request("POST", "/v2/models/identity/infer", b"[" * size))[0] == 400
                assert client.ask(infer_head("identity", size, [1, 7]) + bytes(size))[0] == 400
                for model in ("failing", "nope"):
                    message = a_request(model, bytes(size)).SerializeToString()
                    for path in (MODEL_INFER, f"/{OWN_SERVICE}/InferStream", STREAM_INFER):
                        with contextlib.suppress(grpc.RpcError):
                            list(channel.stream_stream(path)(iter([message]), timeout=PATIENCE_S))
        # Of 160 x size that it was given. (The last answer is out before all of it is let go.)
        until(lambda: server.memory() - before <= 8 * size + BESIDES, "the memory is given back")
        assert server.errors() == ""
