"""Cutting and joining by hand is what protobuf does: any request is read the same, any answer written the same."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.serve.kserve import grpc_codec
from inferometer.serve.kserve.messages import ModelInferRequest, ModelStreamInferResponse
from inferometer.serve.models.types import Output, Refused
from inferometer.tensors import Tensor

texts = st.text(max_size=8)
contents = st.lists(st.binary(max_size=300) | st.just(bytes(20_000)), max_size=4)


@st.composite
def requests(draw: st.DrawFn) -> Any:
    made = ModelInferRequest(model_name=draw(texts), model_version=draw(texts), id=draw(texts))
    for name in draw(st.lists(texts, max_size=3)):
        one = made.inputs.add(name=name, datatype=draw(texts), shape=draw(st.lists(st.integers(-1, 2**40), max_size=3)))
        one.contents.fp32_contents.extend(draw(st.lists(st.floats(width=32, allow_nan=False), max_size=3)))
        one.parameters["p"].int64_param = draw(st.integers(-(2**63), 2**63 - 1))
    made.parameters["text"].string_param = draw(texts)
    made.outputs.add(name=draw(texts))
    made.raw_input_contents.extend(draw(contents))
    return made


@given(requests(), st.booleans())
def test_a_request_is_read_as_protobuf_reads_it(request: Any, is_cut: bool) -> None:
    data = request.SerializeToString()
    if is_cut:
        rest, raw = grpc_codec._cut(data)
        read = ModelInferRequest.FromString(rest)
    else:
        read, raw = grpc_codec.parse(data)
    assert [bytes(one) for one in raw] == list(request.raw_input_contents)
    without = ModelInferRequest()
    without.CopyFrom(request)
    read_without = ModelInferRequest()
    read_without.CopyFrom(read)
    for one in (without, read_without):
        one.ClearField("raw_input_contents")
    assert read_without == without


@given(requests(), st.integers(0, 200), st.binary(min_size=1, max_size=30))
def test_a_damaged_request_is_cut_as_protobuf_reads_it_or_refused(request: Any, place: int, damage: bytes) -> None:
    data = request.SerializeToString()
    place = min(place, len(data))
    data = data[:place] + damage + data[place:]
    try:
        expected = ModelInferRequest.FromString(data)
    except Exception:
        expected = None
    try:
        rest, raw = grpc_codec._cut(data)
        read = ModelInferRequest.FromString(rest)
    except Exception:
        read = None
    assert (read is None) == (expected is None)
    if expected is not None:
        assert [bytes(one) for one in raw] == list(expected.raw_input_contents)


def test_bytes_that_end_too_early_are_refused() -> None:
    data = ModelInferRequest(model_name="m", raw_input_contents=[bytes(20_000)]).SerializeToString()
    for cut in (data[:-1], data + b"\x3a", data + b"\x3a\x80", data + b"\x3a" + b"\xff" * 11):
        with pytest.raises(Refused, match="is no ModelInferRequest"):
            grpc_codec.parse(cut)


outputs = st.lists(st.tuples(texts, st.binary(max_size=400) | st.just(bytes(20_000)), st.booleans()), max_size=4)


@given(texts, outputs, st.sampled_from([None, True, False]))
def test_an_answer_is_written_as_protobuf_writes_it(id: str, given_outputs: Any, final: bool | None) -> None:
    made = [
        Output(Tensor(name, "UINT8", (len(data),), memoryview(data) if viewed else data))
        for name, data, viewed in given_outputs
    ]
    head = grpc_codec.head("m", "1", id, made, (1, 2**40), final)
    whole = type(head)()
    whole.CopyFrom(head)
    whole.raw_output_contents.extend(data for _, data, _ in given_outputs)
    assert type(head).FromString(grpc_codec.joined(head, made)) == whole
    assert ModelStreamInferResponse.FromString(grpc_codec.in_stream(head, made)).infer_response == whole


def test_a_view_of_wider_elements_is_sent_as_its_bytes() -> None:
    view = memoryview(b"abcdefgh").cast("I")
    head = grpc_codec.head("m", "1", "", (), (0, 0))
    read = type(head).FromString(grpc_codec.joined(head, [Output(Tensor("t", "UINT32", (2,), view))]))
    assert read.raw_output_contents == [b"abcdefgh"]
