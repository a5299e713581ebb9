"""Large tensors: the server's memory is bounded by a multiple of their size, and is freed."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from robust_peer import (
    LARGE,
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
from served import PATIENCE_S, PYTHON, a_request, delayed
from waiting import until

from inferometer.serve.kserve.messages import ModelStreamInferResponse

pytestmark = pytest.mark.slow
SIZE = 48 * MIB
TIMES = 1.1
BESIDES = 24 * MIB
"""Allowance for buffers, sockets and the allocator."""


@pytest.fixture(scope="module")
def server() -> Iterator[Child]:
    with child("identity", *PORTS) as one:
        responds(one)
        yield one


@pytest.mark.parametrize("way", LARGE)
def test_a_large_tensor_needs_a_bounded_multiple_of_its_size(server: Child, way: str) -> None:
    before = server.memory()
    server.forget_peak()
    LARGE[way](server, SIZE)
    assert server.peak() - before <= TIMES * SIZE + BESIDES
    assert server.errors() == ""


@pytest.mark.parametrize("way", LARGE)
def test_a_tensor_of_1_gib_needs_at_most_1_3_times_its_size(way: str) -> None:
    """The client sends and compares it in pieces, so that this process never holds all of it."""
    size = 1024 * MIB
    with child("identity", *PORTS) as server:
        responds(server)
        before = server.memory()
        server.forget_peak()
        LARGE[way](server, size)
        assert server.peak() - before <= 1.3 * size
        until(lambda: server.memory() - before <= 2 * BESIDES, "the memory is freed")
        assert server.errors() == ""


@pytest.mark.parametrize("way", LARGE)
def test_repeated_large_tensors_need_no_more_memory_than_one(server: Child, way: str) -> None:
    """Nothing is left behind for the garbage collector."""
    LARGE[way](server, SIZE // 4)
    before = server.memory()
    server.forget_peak()
    for _ in range(6):
        LARGE[way](server, SIZE // 4)
    assert server.peak() - before <= TIMES * SIZE // 4 + BESIDES


def test_requests_of_a_stream_are_freed(server: Child) -> None:
    size, count = 8 * MIB, 32
    message = a_request(values=bytes(size)).SerializeToString()
    with dialled(server.grpc_address) as channel:
        before = server.memory()
        server.forget_peak()
        call = channel.stream_stream(STREAM_INFER)(iter([message] * count), timeout=4 * PATIENCE_S)
        for data in call:
            assert not ModelStreamInferResponse.FromString(data).error_message
            count -= 1
    assert not count
    # Up to 64 MiB of responses wait; all requests and responses would be 64 times the size.
    assert server.peak() - before <= 24 * size + BESIDES


def test_messages_up_to_the_limit_are_accepted_and_larger_ones_are_refused_unread() -> None:
    """The limit applies to the whole message: of 4 MiB, tensors may use all but the names around them."""
    with child("identity", *PORTS, "--max-message=4MiB") as server:
        largest = 4 * MIB - 64
        message = a_request(values=bytes(largest)).SerializeToString()
        assert len(message) <= 4 * MIB
        with dialled(server.grpc_address) as channel:
            assert len(channel.unary_unary(MODEL_INFER)(message, timeout=PATIENCE_S)) > largest
            with pytest.raises(grpc.RpcError):
                channel.unary_unary(MODEL_INFER)(message + bytes(4 * MIB + 1 - len(message)), timeout=PATIENCE_S)
        server.forget_peak()
        before = server.memory()
        with Http(server.url) as client:
            status, body = client.request(infer_head("identity", 2048 * MIB, [1, 512 * MIB]) + bytes(MIB))
        assert status == 413
        assert b"4194304" in body
        with dialled(server.grpc_address) as channel, pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(MODEL_INFER)(bytes(64 * MIB), timeout=PATIENCE_S)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "4194304" in refused.value.details()
        assert server.peak() - before <= BESIDES
        assert responds(server)


def test_refused_requests_are_freed(tmp_path: Path) -> None:
    """An exception references the frames it passed through: none of them may keep the request's data."""
    models, size, count = write_models(tmp_path, failing=PYTHON), 2 * MIB, 8
    (tmp_path / "failing/1/model.py").write_text("def infer(inputs, parameters):\n    raise ValueError('no')\n")
    with child("identity", models, *PORTS) as server:
        responds(server)
        before = server.memory()
        with Http(server.url) as client, dialled(server.grpc_address) as channel:
            for _ in range(count):
                assert client.request(small("failing", bytes(size)))[0] == 500
                assert client.request(small("nope", bytes(size)))[0] == 404
                assert client.request(http_request("POST", "/v2/models/identity/infer", b"[" * size))[0] == 400
                assert client.request(infer_head("identity", size, [1, 7]) + bytes(size))[0] == 400
                for model in ("failing", "nope"):
                    message = a_request(model, bytes(size)).SerializeToString()
                    for path in (MODEL_INFER, STREAM_INFER):
                        with contextlib.suppress(grpc.RpcError):
                            list(channel.stream_stream(path)(iter([message]), timeout=PATIENCE_S))
        # The server received 64 x size. (The last response is sent before all of it is freed.)
        until(lambda: server.memory() - before <= 8 * size + BESIDES, "the memory is freed")
        assert server.errors() == ""


def test_memory_is_flat_after_cancellations(tmp_path: Path) -> None:
    """Calls that were cancelled, expired, or lost with their connection, at every stage, leave nothing behind."""
    models = write_models(tmp_path, late=delayed("20ms", slots=0))
    message = a_request("late", bytes(256 * 1024)).SerializeToString()

    def rude(server: Child) -> None:
        for timeout in (0.001, 0.015, 0.02, 0.025):
            with dialled(server.grpc_address) as channel:
                calls = [channel.unary_unary(MODEL_INFER).future(message, timeout=timeout) for _ in range(20)]
                for call in calls[::2]:
                    call.cancel()
                streams = [channel.stream_stream(STREAM_INFER)(iter([message] * 3)) for _ in range(10)]
                for stream in streams[::2]:
                    next(stream)
                for stream in streams:
                    stream.cancel()

    with child("identity", models, *PORTS) as server:
        for _ in range(3):
            rude(server)
        before, files = server.memory(), server.files()
        for _ in range(12):
            rude(server)
        until(lambda: server.memory() - before <= 16 * MIB, "the memory is freed")
        until(lambda: server.files() <= files, "no more files are open than before")
        assert responds(server)
        assert server.errors() == ""
