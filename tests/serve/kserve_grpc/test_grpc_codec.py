"""Our own parsing and encoding of messages gives the same result as protobuf."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from inferometer.serve.kserve import grpc_codec, grpc_typed
from inferometer.serve.kserve.grpc_fields import length
from inferometer.serve.kserve.messages import InferTensorContents, ModelInferRequest, ModelStreamInferResponse
from inferometer.serve.models.shared_memory import Regions
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
def test_requests_are_parsed_like_protobuf(request: Any, is_cut: bool) -> None:
    data = request.SerializeToString()
    if is_cut:
        rest, raw, _ = grpc_codec._cut(data)
        read = ModelInferRequest.FromString(rest)
    else:
        read, raw, _ = grpc_codec.parse(data)
    assert [bytes(one) for one in raw] == list(request.raw_input_contents)
    without = ModelInferRequest()
    without.CopyFrom(request)
    read_without = ModelInferRequest()
    read_without.CopyFrom(read)
    for one in (without, read_without):
        one.ClearField("raw_input_contents")
    assert read_without == without


@given(requests(), st.integers(0, 200), st.binary(min_size=1, max_size=30))
def test_damaged_requests_are_parsed_like_protobuf_or_refused(request: Any, position: int, damage: bytes) -> None:
    data = request.SerializeToString()
    position = min(position, len(data))
    data = data[:position] + damage + data[position:]
    try:
        expected = ModelInferRequest.FromString(data)
    except Exception:
        expected = None
    try:
        rest, raw, _ = grpc_codec._cut(data)
        read = ModelInferRequest.FromString(rest)
    except DecodeError as error:
        assert expected is None or "wire type 3" in str(error)
        return
    assert expected is not None
    assert [bytes(one) for one in raw] == list(expected.raw_input_contents)
    read.raw_input_contents.extend(map(bytes, raw))
    expected.DiscardUnknownFields()
    read.DiscardUnknownFields()
    assert read == expected


def test_truncated_requests_are_refused() -> None:
    data = ModelInferRequest(model_name="m", raw_input_contents=[bytes(20_000)]).SerializeToString()
    for cut in (data[:-1], data + b"\x3a", data + b"\x3a\x80", data + b"\x3a" + b"\xff" * 11):
        with pytest.raises(Refused, match="is not a valid ModelInferRequest"):
            grpc_codec.parse(cut)


outputs = st.lists(st.tuples(texts, st.binary(max_size=400) | st.just(bytes(20_000)), st.booleans()), max_size=4)


@given(texts, outputs, st.sampled_from([None, True, False]))
def test_responses_are_encoded_like_protobuf(id: str, given_outputs: Any, final: bool | None) -> None:
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


def test_memory_views_of_any_format_are_sent_as_bytes() -> None:
    view = memoryview(b"abcdefgh").cast("I")
    head = grpc_codec.head("m", "1", "", (), (0, 0))
    read = type(head).FromString(grpc_codec.joined(head, [Output(Tensor("t", "UINT32", (2,), view))]))
    assert read.raw_output_contents == [b"abcdefgh"]


# --- typed contents --------------------------------------------------------------------------------------------------

NUMBERS = {
    "BOOL": ("bool_contents", st.booleans()),
    "INT8": ("int_contents", st.integers(-(2**7), 2**7 - 1)),
    "INT32": ("int_contents", st.integers(-(2**31), 2**31 - 1)),
    "INT64": ("int64_contents", st.integers(-(2**63), 2**63 - 1)),
    "UINT16": ("uint_contents", st.integers(0, 2**16 - 1)),
    "UINT64": ("uint64_contents", st.integers(0, 2**64 - 1)),
    "FP32": ("fp32_contents", st.floats(width=32)),
    "FP64": ("fp64_contents", st.floats()),
    "BYTES": ("bytes_contents", st.binary(max_size=200)),
}


def typed_request(datatype: str, values: list[Any]) -> Any:
    made = ModelInferRequest(model_name="m")
    one = made.inputs.add(name="x", datatype=datatype, shape=[len(values)])
    getattr(one.contents, NUMBERS[datatype][0]).extend(values)
    one.parameters["p"].bool_param = True
    return made


@given(st.sampled_from(sorted(NUMBERS)), st.data())
def test_large_typed_contents_equal_small_ones(datatype: str, data: st.DataObject) -> None:
    some = data.draw(st.lists(NUMBERS[datatype][1], min_size=1, max_size=20))
    request = typed_request(datatype, some)
    (small,) = grpc_codec.inputs(request, (), {}, Regions())[0].values()
    times = grpc_codec.LARGE // max(len(some), request.inputs[0].contents.ByteSize() // 3) + 1
    read, raw, typed = grpc_codec.parse(typed_request(datatype, some * times).SerializeToString())
    assert not read.inputs[0].HasField("contents")
    found, unread = grpc_codec.inputs(read, raw, typed, Regions())
    assert (found["x"].datatype, found["x"].shape, found["x"].data) == (datatype, (len(some) * times,), b"")
    assert bytes(unread["x"].read()) == bytes(small.data) * times


def test_repeated_and_unpacked_contents_are_merged_like_protobuf() -> None:
    head = b"\x0a\x01x" + b"\x12\x05INT32"
    packed = InferTensorContents(int_contents=[1, 300] * 20_000).SerializeToString()
    unpacked = b"\x10\x05" * 40_000
    for parts in ([packed, packed], [packed, unpacked], [unpacked, packed]):
        one = head + b"".join(b"\x2a" + length(len(part)) + part for part in parts)
        data = b"\x0a\x01m" + b"\x2a" + length(len(one)) + one
        expected = np.array(ModelInferRequest.FromString(data).inputs[0].contents.int_contents, "<i4").tobytes()
        read, raw, typed = grpc_codec.parse(data)
        _, unread = grpc_codec.inputs(read, raw, typed, Regions())
        assert bytes(unread["x"].read()) == expected


@pytest.mark.parametrize(
    ("datatype", "sent", "code", "message"),
    [
        ("FP32", "BYTES", "INVALID_ARGUMENT", "of type 'BYTES', expected datatype 'FP32'"),
        ("INT8", "INT32", "INVALID_ARGUMENT", "300 does not fit into INT8"),
        ("INT32", "", "INTERNAL", "the message is not a valid ModelInferRequest"),
    ],
)
def test_invalid_large_typed_contents_are_refused(datatype: str, sent: str, code: str, message: str) -> None:
    if sent:
        request = typed_request(sent, [b"ab"] * 40_000 if sent == "BYTES" else [300] * 40_000)
        request.inputs[0].datatype = datatype
        read, raw, typed = grpc_codec.parse(request.SerializeToString())
        _, unread = grpc_codec.inputs(read, raw, typed, Regions())
        read_it = unread["x"].read
    else:
        sent = [memoryview(b"\x12\x03\x80\x80\x80")]
        read_it = partial(grpc_codec._turned, grpc_typed.raw_of_sent, "x", datatype, sent, "m")
    with pytest.raises(Refused) as raised:
        read_it()
    assert raised.value.code == code
    assert message in raised.value.message
