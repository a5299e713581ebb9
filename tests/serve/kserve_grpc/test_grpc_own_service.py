"""inferometer.Inference: one request with streamed responses, and tensors in chunks."""

from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import pytest
from grpc_peer import PATIENCE_S, Served, Stub, a_request, failure, serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import until

from inferometer.serve.kserve import messages
from inferometer.serve.kserve.chunked import PIECE
from inferometer.serve.settings import Limits
from inferometer.wire import server_timing

Chunk = messages.Chunk


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(limits=Limits(message=4 * PIECE, chunked=40 * PIECE)) as one:
        yield one


@pytest.fixture(scope="module")
def stub(served: Served) -> Iterator[Stub]:
    with grpc.insecure_channel(served.grpc_address) as channel:
        yield Stub(channel, messages.OWN_SERVICE)


# --- InferStream -----------------------------------------------------------------------------------------------------


def test_an_ordinary_model_sends_one_response(stub: Stub) -> None:
    call = stub.InferStream(a_request(id="one"))
    assert [one.id for one in call] == ["one"]
    timing = server_timing.parse(dict(call.trailing_metadata())["server-timing"].encode())
    assert timing is not None and timing.compute >= 0


def test_a_decoupled_model_sends_any_number_of_responses(stub: Stub) -> None:
    assert [one.id for one in stub.InferStream(a_request("many", id="x"))] == ["x"] * 3


@pytest.mark.parametrize(("model", "code"), [("nope", "NOT_FOUND"), ("failing", "INTERNAL")])
def test_an_error_is_the_calls_status(stub: Stub, model: str, code: str) -> None:
    assert failure(lambda: list(stub.InferStream(a_request(model))))[0] == code


@pytest.mark.parametrize("model", ["slow", "endless"])
def test_a_cancelled_stream_frees_its_work(served: Served, stub: Stub, model: str) -> None:
    call = stub.InferStream(a_request(model))
    until(lambda: served.in_flight() == 1)
    call.cancel()
    until(lambda: served.in_flight() == 0)


def test_a_deadline_ends_a_stream(served: Served, stub: Stub) -> None:
    assert failure(lambda: list(stub.InferStream(a_request("slow"), timeout=0.05)))[0] == "DEADLINE_EXCEEDED"
    until(lambda: served.in_flight() == 0)


# --- InferChunked ----------------------------------------------------------------------------------------------------


def in_pieces(request: Any, contents: Sequence[bytes], cuts: int) -> Iterator[Any]:
    """Yield a head and its data, cut every `size` bytes across the tensors' boundaries."""
    head = Chunk()
    head.head.request.CopyFrom(request)
    head.head.request.ClearField("raw_input_contents")
    head.head.sizes.extend(map(len, contents))
    yield head
    data = b"".join(contents)
    for start in range(0, len(data), cuts):
        yield Chunk(data=data[start : start + cuts])


def put_together(chunks: Iterator[Any]) -> list[tuple[Any, list[bytes]]]:
    """Return the responses and their raw contents."""
    found = []
    for chunk in chunks:
        assert chunk.WhichOneof("piece") == "head"
        sizes, data = list(chunk.head.sizes), b""
        while len(data) < sum(sizes):
            data += next(chunks).data
        parts = [data[sum(sizes[:i]) : sum(sizes[: i + 1])] for i in range(len(sizes))]
        assert b"".join(parts) == data
        found.append((chunk.head.response, parts))
    return found


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents=st.lists(st.binary(max_size=50), min_size=1, max_size=3), cuts=st.integers(1, 60))
def test_tensors_split_anywhere_arrive_complete(stub: Stub, contents: list[bytes], cuts: int) -> None:
    names = ["UINT8", "INT8", "BOOL"]
    request = messages.ModelInferRequest(model_name="all_types", id="c")
    for name, data in zip(names, contents, strict=False):
        request.inputs.add(name=f"IN_{name}", datatype=name, shape=[len(data)])
    ((response, parts),) = put_together(stub.InferChunked(in_pieces(request, contents, cuts)))
    assert (response.id, [one.name for one in response.outputs]) == ("c", [f"OUT_{n}" for n in names[: len(contents)]])
    assert parts == contents


def test_a_tensor_larger_than_a_message_arrives_complete(stub: Stub) -> None:
    data = bytes(range(256)) * (20 * PIECE // 256) + b"tail"
    ((response, parts),) = put_together(stub.InferChunked(in_pieces(a_request(values=data), [data], PIECE)))
    assert response.outputs[0].shape == [1, len(data) // 4]
    assert parts == [data]


def test_each_response_of_a_decoupled_model_has_a_head(stub: Stub) -> None:
    values = b"\0\0\x80?"
    responses = put_together(stub.InferChunked(in_pieces(a_request("many", values), [values], 3)))
    assert [parts for _, parts in responses] == [[values]] * 3


def _head(change: Any) -> list[Any]:
    chunks = list(in_pieces(a_request(), [b"\0\0\x80?"], 4))
    change(chunks)
    return chunks


WRONG = {
    "nothing at all": (lambda all: all.clear(), "INVALID_ARGUMENT", "the first chunk must be the head"),
    "data first": (lambda all: all.pop(0), "INVALID_ARGUMENT", "the first chunk must be the head"),
    "an empty chunk": (lambda all: all.insert(0, Chunk()), "INVALID_ARGUMENT", "the first chunk must be the head"),
    "no request": (
        lambda all: all[0].head.ClearField("request"),
        "INVALID_ARGUMENT",
        "must contain a ModelInferRequest",
    ),
    "two heads": (lambda all: all.append(all[0]), "INVALID_ARGUMENT", "must contain only data"),
    "too little": (lambda all: all.pop(), "INVALID_ARGUMENT", "4 bytes of raw contents, but 0 arrived"),
    "too much": (lambda all: all.append(all[1]), "INVALID_ARGUMENT", "at least 8 arrived"),
    "raw in the head": (
        lambda all: all[0].head.request.raw_input_contents.append(b"x"),
        "INVALID_ARGUMENT",
        "not in the head",
    ),
    "an unknown model": (
        lambda all: all[0].head.request.MergeFrom(messages.ModelInferRequest(model_name="nope")),
        "NOT_FOUND",
        "'nope' is not found",
    ),
    "over the limit": (lambda all: all[0].head.sizes.append(2**63), "RESOURCE_EXHAUSTED", "the server accepts at most"),
    "over all limits": (
        lambda all: all[0].head.sizes.extend([2**64 - 1] * 9),
        "RESOURCE_EXHAUSTED",
        "the server accepts at most",
    ),
    "a size too many": (lambda all: all[0].head.sizes.append(0), "INVALID_ARGUMENT", "2 raw_input_contents"),
    "garbage": (lambda all: all.insert(1, b"\xff\xff"), "INTERNAL", "is not a valid Chunk"),
}


@pytest.mark.parametrize("case", WRONG)
def test_invalid_chunks_are_explained(stub: Stub, case: str) -> None:
    change, code, words = WRONG[case]
    got, message = failure(lambda: list(stub.InferChunked(iter(_head(change)), timeout=PATIENCE_S)))
    assert (got, words in message) == (code, True), message
