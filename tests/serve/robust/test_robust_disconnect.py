"""A client that disconnects cancels its work: the slot is free for the next request at once."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from robust_peer import (
    MODEL_INFER,
    PORTS,
    STREAM_INFER,
    Child,
    Http,
    child,
    dialled,
    http_request,
    infer,
    infer_head,
    pending,
    responds,
    write_models,
)
from served import PATIENCE_S, a_request, delayed
from waiting import until

from inferometer.serve.kserve.messages import ModelInferRequest

DELAY_S, ROWS = 60, 1000
PER_ROW = f'parameters {{ key: "per_row" value {{ string_value: "{DELAY_S * 1000 // ROWS}ms" }} }}'
LONG = delayed("0s", slots=1, more=f"max_batch_size: {ROWS}\n{PER_ROW}\n")
"""Requests with many rows take longer than any test waits; those with one row are quick."""
WAITING = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    folder = tmp_path_factory.mktemp("models")
    models = write_models(folder, long=LONG, words=delayed("50ms", slots=1, responses=1000))
    with child("identity", models, *PORTS, "--allow-control") as one:
        responds(one)
        yield one


def long_head() -> bytes:
    return infer_head("long", 4 * ROWS, [ROWS, 1])


def long_over_http() -> bytes:
    return long_head() + bytes(4 * ROWS)


def a_long_request(rows: int = ROWS) -> Any:
    made = ModelInferRequest(model_name="long", raw_input_contents=[bytes(4 * rows)])
    made.inputs.add(name="INPUT0", datatype="FP32", shape=[rows, 1])
    return made


def closed_http(server: Child, stack: contextlib.ExitStack) -> Callable[[], None]:
    client = stack.enter_context(Http(server.url))
    client.sock.sendall(long_over_http())
    return client.sock.close


def closed_channel(server: Child, stack: contextlib.ExitStack) -> Callable[[], None]:
    """Close the whole connection."""
    channel = grpc.insecure_channel(server.grpc_address, options=[("grpc.use_local_subchannel_pool", 1)])
    call = channel.unary_unary(MODEL_INFER).future(a_long_request().SerializeToString())

    def close() -> None:
        channel.close()
        until(call.done)  # and it is kept until here: a call without references cancels itself

    return close


def cancelled_call(server: Child, stack: contextlib.ExitStack) -> Callable[[], None]:
    channel = stack.enter_context(dialled(server.grpc_address))
    return channel.unary_unary(MODEL_INFER).future(a_long_request().SerializeToString()).cancel


def cancelled_stream(server: Child, stack: contextlib.ExitStack) -> Callable[[], None]:
    channel = stack.enter_context(dialled(server.grpc_address))
    return channel.stream_stream(STREAM_INFER)(iter([a_long_request().SerializeToString()])).cancel


LEAVING = [closed_http, closed_channel, cancelled_call, cancelled_stream]


def executing(server: Child) -> bool:
    """Whether the model's only slot is taken: a request that may not be queued is then refused, otherwise served."""
    request = a_long_request(rows=1)
    request.parameters["timeout"].int64_param = 1
    with dialled(server.grpc_address) as channel:
        try:
            infer(channel, request)
        except grpc.RpcError as error:
            assert "Request timeout expired" in error.details(), error.details()
            return True
    return False


@pytest.mark.parametrize("leave", LEAVING, ids=lambda leave: leave.__name__)
def test_a_slot_is_freed_when_its_client_disconnects(server: Child, leave: Callable[..., Callable[[], None]]) -> None:
    with contextlib.ExitStack() as stack:
        go = leave(server, stack)
        until(lambda: executing(server), "the request is in progress")
        go()
        until(lambda: not executing(server), "its slot is free", DELAY_S / 2)
        assert pending(server, "long") == 0
        assert server.errors() == ""


@pytest.mark.parametrize("leave", LEAVING, ids=lambda leave: leave.__name__)
def test_queued_requests_of_disconnected_clients_leave_the_queue(
    server: Child, leave: Callable[..., Callable[[], None]]
) -> None:
    with contextlib.ExitStack() as stack:
        gone = [leave(server, stack) for _ in range(WAITING + 1)]
        until(lambda: pending(server, "long") == WAITING, "one request runs and the others are queued")
        for go in gone:
            go()
        until(lambda: pending(server, "long") == 0, "none waits", DELAY_S / 2)
        until(lambda: not executing(server), "none executes", DELAY_S / 2)
        assert responds(server)


def test_the_next_request_starts_at_once(server: Child) -> None:
    """The first request takes 60 s and disconnects; the second, queued behind it, starts at once."""
    with Http(server.url) as second:
        with Http(server.url) as first:
            first.sock.sendall(long_over_http())
            until(lambda: executing(server), "the first is in progress")
            second.sock.sendall(long_over_http())
            until(lambda: pending(server, "long") == 1, "the second is queued")
        until(lambda: pending(server, "long") == 0, "the second has begun", DELAY_S / 2)
        assert executing(server)
    until(lambda: not executing(server), "its slot is free", DELAY_S / 2)


def test_an_incomplete_request_occupies_no_slot(server: Child) -> None:
    data = long_over_http()
    for cut in (*range(1, len(long_head()) + 7, 7), len(data) - 1):
        with Http(server.url) as client:
            client.sock.sendall(data[:cut])
    assert not executing(server)
    assert server.errors() == ""


def test_an_event_stream_ends_when_its_reader_disconnects(server: Child) -> None:
    """generate_stream of a model that runs for 50 s: its slot is free for the next request."""
    request = http_request("POST", "/v2/models/words/generate_stream", b'{"INPUT0": [1.0]}')
    for _ in range(3):
        with Http(server.url, DELAY_S / 2) as client:
            client.sock.sendall(request)
            assert client.sock.recv(4096).startswith(b"HTTP/1.1 200")
    assert server.errors() == ""


def test_a_client_that_stops_reading_does_not_block_others(server: Child) -> None:
    with dialled(server.grpc_address) as channel:
        idle = channel.stream_stream(STREAM_INFER)(iter([a_request("words").SerializeToString()]), timeout=PATIENCE_S)
        next(idle)
        assert responds(server)
        idle.cancel()


def test_a_change_is_made_even_if_its_client_does_not_wait(server: Child) -> None:
    for operation, status in (("unload", 400), ("load", 200)) * 2:
        with Http(server.url) as client:
            client.sock.sendall(http_request("POST", f"/v2/repository/models/identity/{operation}"))
        with Http(server.url) as other:
            ready = http_request("GET", "/v2/models/identity/ready")
            until(lambda: other.request(ready)[0] == status, operation)  # noqa: B023  (called at once)
