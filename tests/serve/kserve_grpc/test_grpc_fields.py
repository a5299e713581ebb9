"""A request cannot make the event loop parse much: large contents are cut out of the message, or refused."""

import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from grpc_peer import PATIENCE_S, Served, Stub, a_request, failure
from hypothesis import given
from hypothesis import strategies as st

from inferometer.serve.kserve import grpc_codec, grpc_typed, messages
from inferometer.serve.kserve.grpc_fields import MOST, fields, length, varint
from inferometer.serve.kserve.messages import Chunk, InferTensorContents, ModelInferRequest
from inferometer.serve.models.shared_memory import Regions, RegionSlice
from inferometer.serve.models.types import Refused

WORDS = 40_000
STRINGS = b"\x42\x00" * WORDS
MODEL = b"\x0a\x09all_types"
UNKNOWN = {
    "a varint": b"\x78\x01",
    "8 bytes": b"\x79" + bytes(8),
    "4 bytes": b"\x7d" + bytes(4),
    "a long tag": b"\x82\x08\x01x",
}


def field(tag: int, value: bytes) -> bytes:
    return bytes((tag,)) + length(len(value)) + value


def an_input(name: str, contents: bytes, datatype: str = "BYTES", before: bytes = b"", count: int = WORDS) -> bytes:
    head = field(0x0A, name.encode()) + field(0x12, datatype.encode()) + field(0x1A, length(count))
    return field(0x2A, before + head + contents)


# --- fields ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([*UNKNOWN.values(), field(0x42, bytes(200)), b"\x08\xff\x01", b"\xba\x00\x00"])))
def test_fields_are_found_in_order(parts: list[bytes]) -> None:
    data = b"".join(parts)
    for sent in (data, memoryview(data)):
        assert [bytes(sent[begin:end]) for _, begin, _, end in fields(sent, len(parts))] == parts


def test_a_message_truncated_inside_a_field_is_malformed() -> None:
    parts = [*UNKNOWN.values(), field(0x42, bytes(200)), b"\x08\xff\x01"]
    data = b"".join(parts)
    borders = {sum(map(len, parts[:i])) for i in range(len(parts) + 1)}
    for end in range(len(data) + 1):
        if end in borders:
            assert sum(len(data[i:j]) for _, i, _, j in fields(data[:end], MOST)) == end
        else:
            with pytest.raises(DecodeError):
                list(fields(data[:end], MOST))


@pytest.mark.parametrize(
    "data",
    [
        b"\x0b\x0c",
        b"\x0c",
        b"\x0e",
        b"\x08" + b"\xff" * 11,
        b"\x0a" + b"\xff" * 11,
        b"\x8a" * 9,
        b"\x00\x01",
        b"\x80\x00\x01",
    ],
)
def test_groups_and_unterminated_numbers_are_malformed(data: bytes) -> None:
    with pytest.raises(DecodeError):
        list(fields(data, MOST))


@given(st.integers(0, 2**31 - 1))
def test_lengths_round_trip(size: int) -> None:
    assert varint(length(size), 0) == (size, len(length(size)))


# --- what is cut out -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("kind", UNKNOWN)
def test_large_contents_are_cut_out_despite_unknown_fields(kind: str, inside: bool) -> None:
    unknown = UNKNOWN[kind]
    one = an_input("x", field(0x2A, STRINGS), before=unknown if inside else b"")
    data = MODEL + (b"" if inside else unknown) + one + field(0x3A, b"raw")
    request, raw, typed = grpc_codec.parse(data)
    assert (list(map(bytes, raw)), {i: list(map(bytes, one)) for i, one in typed.items()}) == ([b"raw"], {0: [STRINGS]})
    assert not request.inputs[0].HasField("contents")
    expected = ModelInferRequest.FromString(data)
    assert (request.inputs[0].name, list(request.inputs[0].shape)) == ("x", list(expected.inputs[0].shape))


def test_inputs_that_are_large_together_are_cut_out() -> None:
    contents = field(0x2A, b"\x42\x00" * 1000)
    data = MODEL + b"".join(an_input(f"i{i}", contents, count=1000) for i in range(40))
    assert len(data) > grpc_codec.LARGE > len(contents)
    request, raw, typed = grpc_codec.parse(data)
    assert (sorted(typed), request.ByteSize() < 2000) == (list(range(40)), True)
    found, unread = grpc_codec.inputs(request, raw, typed, Regions())
    assert (len(found), [bytes(one.read()) for one in unread.values()]) == (40, [bytes(4000)] * 40)


def test_empty_contents_stay_empty_in_a_large_message() -> None:
    empty, other = an_input("empty", field(0x2A, b""), count=1), an_input("x", field(0x2A, STRINGS))
    request, raw, typed = grpc_codec.parse(MODEL + empty + other)
    assert (list(typed), request.inputs[0].HasField("contents")) == ([1], True)
    with pytest.raises(Refused, match="unable to find data for input tensor 'empty'"):
        grpc_codec.inputs(request, raw, typed, Regions())


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", [0x22, 0x2A, 0x32, 0x3A, 0x7A])
def test_a_request_with_too_many_fields_is_refused(tag: int) -> None:
    some = bytes((tag, 0)) * (MOST - 1)
    request, raw, _ = grpc_codec.parse(MODEL + some)
    assert request.model_name == "all_types"
    assert len(request.inputs) + len(request.outputs) + len(raw) == (MOST - 1 if tag in (0x2A, 0x32, 0x3A) else 0)
    with pytest.raises(Refused, match=f"the message has more than {MOST} fields") as refused:
        grpc_codec.parse(MODEL + some + bytes((tag, 0)))
    assert refused.value.code == "INVALID_ARGUMENT"


def test_the_fields_of_large_inputs_count_too() -> None:
    one = an_input("x", field(0x2A, STRINGS) + b"\x22\x00" * (MOST // 2))
    assert len(grpc_codec.parse(MODEL + one)[2]) == 1
    with pytest.raises(Refused, match=f"the message has more than {MOST} fields"):
        grpc_codec.parse(MODEL + one + one)


def test_a_request_that_is_large_without_its_contents_is_refused() -> None:
    def with_id(size: int) -> bytes:
        made = ModelInferRequest(id="x" * size, raw_input_contents=[bytes(4 << 20)])
        made.inputs.add(name="x", datatype="BYTES", shape=[WORDS]).contents.bytes_contents.extend([b"abc"] * WORDS)
        return bytes(made.SerializeToString())

    over = len(grpc_codec.parse(with_id(1 << 19))[0].SerializeToString()) - (1 << 19)
    assert len(grpc_codec.parse(with_id((1 << 20) - over))[0].id) == (1 << 20) - over
    with pytest.raises(
        Refused, match="1048577 bytes without its inputs' contents; the server accepts at most 1048576"
    ) as refused:
        grpc_codec.parse(with_id((1 << 20) - over + 1))
    assert refused.value.code == "RESOURCE_EXHAUSTED"


# --- typed contents, a piece at a time -------------------------------------------------------------------------------


class Pieces:
    """InferTensorContents that records how much it is given."""

    def __init__(self) -> None:
        self.largest = 0

    def FromString(self, data: bytes | memoryview) -> Any:  # noqa: N802  (protobuf's)
        self.largest = max(self.largest, len(data))
        return InferTensorContents.FromString(data)


NUMBERS = {
    "BOOL": lambda i: b"\x08" + bytes((i % 2,)),
    "INT32": lambda i: b"\x10" + length(i),
    "UINT64": lambda i: b"\x28" + length(i),
    "FP32": lambda i: b"\x35" + struct.pack("<f", i),
    "FP64": lambda i: b"\x39" + struct.pack("<d", i),
    "BYTES": lambda i: field(0x42, b"x" * (i % 5)),
}


@pytest.mark.parametrize("datatype", NUMBERS)
@pytest.mark.parametrize("is_packed", [True, False])
def test_large_contents_are_parsed_in_pieces_in_any_encoding(
    datatype: str, is_packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = Pieces()
    monkeypatch.setattr(grpc_typed, "InferTensorContents", pieces)
    one = NUMBERS[datatype]
    sent = UNKNOWN["4 bytes"] + b"".join(map(one, range(WORDS))) + UNKNOWN["a varint"]
    whole = InferTensorContents.FromString(sent)
    if is_packed:
        sent = whole.SerializeToString()
    expected = grpc_typed.raw("x", datatype, whole.ListFields())
    assert len(expected) >= WORDS
    assert bytes(grpc_typed.raw_of_sent("x", datatype, [memoryview(sent)])) == bytes(expected)
    assert 0 < pieces.largest < 40_000


@pytest.mark.parametrize(("datatype", "tag", "dtype"), [("FP32", 0x32, "<f4"), ("FP64", 0x3A, "<f8")])
def test_packed_floats_are_views_of_the_message(datatype: str, tag: int, dtype: str) -> None:
    values = np.arange(WORDS, dtype=dtype).tobytes()
    sent = memoryview(field(tag, values))
    found = grpc_typed.raw_of_sent("x", datatype, [sent])
    assert isinstance(found, memoryview) and found.obj is sent.obj
    assert bytes(found) == values
    with pytest.raises(Refused, match="not a valid ModelInferRequest: truncated packed numbers"):
        grpc_typed.raw_of_sent("x", datatype, [memoryview(field(tag, values[:-1]))])


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3000), st.integers(-(2**31), 2**31 - 1)), max_size=8))
def test_mixed_packed_and_unpacked_numbers_are_parsed_like_protobuf(runs: Any) -> None:
    sent = b""
    for is_packed, count, value in runs:
        packed = InferTensorContents(int_contents=[value] * count).SerializeToString()
        _, start = varint(packed, 1)
        sent += packed if is_packed else (b"\x10" + packed[start : start + (len(packed) - start) // count]) * count
    expected = np.array(InferTensorContents.FromString(sent).int_contents, "<i4").tobytes()
    assert len(expected) == 4 * sum(count for _, count, _ in runs)
    assert bytes(grpc_typed.raw_of_sent("x", "INT32", [memoryview(sent)])) == expected


def test_a_long_string_among_short_ones() -> None:
    words = [b"a", bytes(100_000), b"", b"bc"]
    contents = InferTensorContents(bytes_contents=words)
    expected = b"".join(struct.pack("<I", len(one)) + one for one in words)
    assert bytes(grpc_typed.raw_of_sent("x", "BYTES", [memoryview(contents.SerializeToString())])) == expected
    assert bytes(grpc_typed.raw("x", "BYTES", contents.ListFields())) == expected


def test_large_contents_of_the_wrong_type_are_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = Pieces()
    monkeypatch.setattr(grpc_typed, "InferTensorContents", pieces)
    with pytest.raises(grpc_typed.Mismatch, match="FP32"):
        grpc_typed.raw_of_sent("x", "INT32", [memoryview(field(0x32, bytes(400_000)))])
    assert pieces.largest == 0


# --- served ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def region(served: Served) -> Iterator[str]:
    key = f"inferometer-test-{uuid.uuid4().hex}"
    path = Path("/dev/shm", key)
    path.write_bytes(bytes(4096))

    async def register() -> None:
        served.models.regions.register(key, key, 0, 4096)

    async def unregister() -> None:
        served.models.regions.unregister(key)

    try:
        served.run(register)
        yield key
        served.run(unregister)
    finally:
        path.unlink()


def test_regions_are_read_only_for_inputs_of_the_model(
    stub: Stub, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    read = RegionSlice.read

    def noted(region_slice: RegionSlice) -> bytes:
        reads.append(region_slice.byte_size)
        return read(region_slice)

    monkeypatch.setattr(RegionSlice, "read", noted)
    request = ModelInferRequest(model_name="all_types")
    for name in ("IN_UINT8", *(f"i{i}" for i in range(100))):
        one = request.inputs.add(name=name, datatype="UINT8", shape=[4096])
        one.parameters["shared_memory_region"].string_param = region
        one.parameters["shared_memory_byte_size"].int64_param = 4096
    code, message = failure(lambda: stub.ModelInfer(request))
    assert (code, "but got 101 inputs" in message, reads) == ("INVALID_ARGUMENT", True, [])
    del request.inputs[1:]
    assert (list(stub.ModelInfer(request).raw_output_contents), reads) == ([bytes(4096)], [4096])


def test_a_request_with_an_unknown_field_and_many_strings_is_served(stub: Stub) -> None:
    data = MODEL + UNKNOWN["a varint"] + an_input("IN_BYTES", field(0x2A, STRINGS), before=UNKNOWN["8 bytes"])
    assert list(stub.ModelInfer(data).raw_output_contents) == [bytes(4 * WORDS)]


@pytest.mark.parametrize("position", ["head", "behind data"])
def test_a_large_chunk_with_more_than_data_is_refused(served: Served, position: str) -> None:
    head = Chunk()
    head.head.request.CopyFrom(a_request(id="x" * grpc_codec.LARGE))
    head.head.request.ClearField("raw_input_contents")
    large = head.SerializeToString()
    small = Chunk()
    small.head.request.CopyFrom(a_request())
    small.head.request.ClearField("raw_input_contents")
    small.head.sizes.append(4)
    chunks = [large] if position == "head" else [small, b"\x12\x00" + large]
    with grpc.insecure_channel(served.grpc_address) as channel:
        own = Stub(channel, messages.OWN_SERVICE)
        code, message = failure(lambda: list(own.InferChunked(iter(chunks), timeout=PATIENCE_S)))
    assert (code, f"the server accepts at most {grpc_codec.LARGE}" in message) == ("RESOURCE_EXHAUSTED", True)
