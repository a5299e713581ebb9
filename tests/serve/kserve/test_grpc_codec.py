"""Our own cutting and encoding of messages gives the same result as protobuf."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.serve.grpc.call import parse
from inferometer.serve.kserve import grpc_codec
from inferometer.serve.kserve.messages import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from inferometer.serve.models.types import Inference, Refused
from inferometer.tensors import Tensor

texts = st.text(max_size=8)
contents = st.lists(st.binary(max_size=300) | st.just(bytes(20_000)), max_size=4)
LARGE = field = b"\x7a\x80\x80\x02" + bytes(1 << 15)
"""An unknown field, which makes a message large enough to be cut."""
UNKNOWN = {
    "a varint": b"\x78\xff\x01",
    "8 bytes": b"\x79" + bytes(8),
    "4 bytes": b"\x7d" + bytes(4),
    "a long tag": b"\x82\x08\x01x",
}


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


def parsed(data: bytes) -> Any:
    """The message as the server sees it: the parts together again."""
    head, id, raw = grpc_codec.cut(data)
    request = parse(ModelInferRequest, head)
    request.id = id
    request.raw_input_contents.extend(map(bytes, raw))
    request.DiscardUnknownFields()
    return request


@given(requests(), st.sampled_from([b"", *UNKNOWN.values()]))
def test_requests_are_parsed_like_protobuf(request: Any, unknown: bytes) -> None:
    data = unknown + request.SerializeToString()
    assert parsed(data) == request
    assert parsed(LARGE + data) == request


@given(requests(), st.integers(0, 200), st.binary(min_size=1, max_size=30))
def test_damaged_requests_are_parsed_like_protobuf_or_refused(request: Any, position: int, damage: bytes) -> None:
    data = request.SerializeToString()
    position = min(position, len(data))
    data = LARGE + data[:position] + damage + data[position:]
    try:
        expected = ModelInferRequest.FromString(data)
    except Exception:
        expected = None
    try:
        found = parsed(data)
    except Refused as refused:
        assert "is not a valid ModelInferRequest" in refused.message
        assert expected is None or "unsupported field" in refused.message  # the obsolete groups
        return
    if expected is None:  # whether protobuf accepts a field that runs past its message depends on what follows
        parse(ModelInferRequest, grpc_codec.cut(data)[0])
        return
    expected.DiscardUnknownFields()
    assert found == expected


def test_raw_contents_of_a_large_message_are_not_copied() -> None:
    data = ModelInferRequest(model_name="m", raw_input_contents=[bytes(20_000), b"x"]).SerializeToString()
    head, _, raw = grpc_codec.cut(data)
    assert [one.obj is data for one in raw] == [True, True]
    assert (ModelInferRequest.FromString(head).model_name, [len(one) for one in raw]) == ("m", [20_000, 1])


def test_truncated_requests_are_refused() -> None:
    data = ModelInferRequest(model_name="m", raw_input_contents=[bytes(20_000)]).SerializeToString()
    for broken in (data[:-1], data + b"\x3a", data + b"\x3a\x80", data + b"\x3a" + b"\xff" * 11, data + b"\x0b"):
        with pytest.raises(Refused, match="is not a valid ModelInferRequest") as refused:
            parsed(broken)
        assert refused.value.code == "INTERNAL"


def test_a_large_request_with_too_many_fields_is_refused() -> None:
    with pytest.raises(Refused, match="the message has more than 10000 fields"):
        grpc_codec.cut(b"\x2a\x00" * 10_001)
    assert len(parse(ModelInferRequest, grpc_codec.cut(b"\x2a\x00" * 9_999)[0]).inputs) == 9_999


def test_a_request_that_is_large_without_its_raw_contents_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_codec, "_MAX_TYPED", 30_000)
    data = ModelInferRequest(id="x" * 30_000, raw_input_contents=[bytes(1 << 20)]).SerializeToString()
    with pytest.raises(
        Refused, match="30008 bytes besides raw_input_contents; the server accepts at most 30000"
    ) as refused:
        grpc_codec.cut(data)
    assert refused.value.code == "RESOURCE_EXHAUSTED"


# --- responses -------------------------------------------------------------------------------------------------------

outputs = st.lists(st.tuples(texts, st.binary(max_size=400) | st.just(bytes(20_000)), st.booleans()), max_size=4)


def an_inference(id: str) -> Inference:
    return Inference("m", {}, responded=print, ended=print, arrived=0, version="1", id=id)


@given(texts | st.just("i" * 200), outputs, st.sampled_from([None, True, False]))
def test_responses_are_encoded_like_protobuf(id: str, given_outputs: Any, final: bool | None) -> None:
    made = [
        Tensor(name, "UINT8", (len(data),), memoryview(data) if viewed else data)
        for name, data, viewed in given_outputs
    ]
    expected = ModelInferResponse(model_name="m", model_version="1", id=id)
    if final is not None:
        expected.parameters["triton_final_response"].bool_param = final
    for name, data, _ in given_outputs:
        expected.outputs.add(name=name, datatype="UINT8", shape=[len(data)])
        expected.raw_output_contents.append(data)
    for _ in range(2):  # encoded, then from the cache
        parts = grpc_codec.response(an_inference(id), made, final)
        assert b"".join(parts) == expected.SerializeToString()
    streamed = ModelStreamInferResponse(infer_response=expected).SerializeToString()
    assert b"".join(grpc_codec.in_stream(parts)) == streamed
