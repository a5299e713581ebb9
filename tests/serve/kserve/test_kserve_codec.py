"""The server's HTTP codec and our client's agree, for all datatypes."""

import gzip
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.serve import compression
from inferometer.serve.kserve import http_codec
from inferometer.serve.models.types import Inference, Refused, Wanted
from inferometer.tensors import DATATYPES, Tensor, elements, from_bytes, from_json, to_json
from inferometer.wire.compression import compressed
from inferometer.wire.context import ShmRef
from inferometer.wire.kserve import http as client
from inferometer.wire.kserve.infer import InferOptions

GIB = 1 << 30
NAMES = st.text(min_size=1, max_size=8)
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


def no_memory(region: str, byte_size: int, offset: int) -> memoryview:
    raise Refused("NOT_FOUND", f"Unable to find shared memory region: '{region}'")


def raw(datatype: str, count: int) -> "st.SearchStrategy[bytes]":
    if datatype == "BYTES":
        joined = st.lists(st.binary(max_size=6), min_size=count, max_size=count)
        return joined.map(lambda all_: b"".join(len(one).to_bytes(4, "little") + one for one in all_))
    size = DATATYPES[datatype].size * count
    return st.binary(min_size=size, max_size=size)


def parse(body: bytes | memoryview, header: bytes, model: str, find: Any) -> Inference:
    """Parse a body with this value of Inference-Header-Content-Length."""
    return http_codec.request(body, http_codec.json_length(header, len(body)), model, "", find)


def response_body(
    outputs: list[Tensor], binary: bool = False, id: str = "", wanted: tuple[Wanted, ...] = ()
) -> list[bytes | memoryview]:
    """Return the parts of a response body: the JSON, and binary data."""
    made = Inference("m", {}, version="3", id=id, binary=binary, wanted=wanted, outputs=tuple(outputs))
    response = http_codec.response(made)
    assert response is not None
    start, body, size = response
    assert size == sum(map(len, body))
    assert f"Content-Length: {size}\r\n".encode() in start
    is_binary = f"Inference-Header-Content-Length: {len(body[0])}\r\n".encode() in start
    assert is_binary == (len(body) > 1)
    return body


@st.composite
def tensors(draw: Any, name: str, datatype: str) -> Tensor:
    shape = draw(SHAPES)
    return Tensor(name, datatype, shape, draw(raw(datatype, elements(shape))))


@st.composite
def requests(draw: Any) -> tuple[list[Tensor], InferOptions]:
    names = draw(st.lists(NAMES, unique=True, max_size=4))
    made = [draw(tensors(name, draw(st.sampled_from(list(DATATYPES))))) for name in names]
    keys = st.text(min_size=1, max_size=8).filter(lambda key: not key.startswith("triton_"))
    values = (
        st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.text(max_size=5)
        | st.floats(allow_nan=False, allow_infinity=False)
    )
    options = InferOptions(
        id=draw(st.text(max_size=5)),
        parameters=draw(st.dictionaries(keys, values, max_size=3)),
        outputs=tuple(draw(st.lists(NAMES, max_size=2, unique=True))),
        classification=draw(st.integers(0, 3)),
    )
    if not options.outputs:
        options = InferOptions(id=options.id, parameters=options.parameters)
    return made, options


def same(one: Tensor, other: Tensor) -> bool:
    return (one.name, one.datatype, one.shape, bytes(one.data)) == (
        other.name,
        other.datatype,
        other.shape,
        bytes(other.data),
    )


@given(requests())
@settings(max_examples=50, deadline=None)
def test_binary_requests_of_our_client_round_trip(made: tuple[list[Tensor], InferOptions]):
    given_tensors, options = made
    headers, body = client.encode(given_tensors, options)
    parsed = parse(memoryview(body), headers[client.JSON_LENGTH].encode(), "m", no_memory)
    assert list(parsed.inputs) == [tensor.name for tensor in given_tensors]
    assert all(same(parsed.inputs[tensor.name], tensor) for tensor in given_tensors)
    assert (parsed.id, parsed.parameters) == (options.id, options.parameters)
    assert parsed.wanted == tuple(Wanted(name, options.classification, None, True) for name in options.outputs)
    assert parsed.binary == (not options.outputs)


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name not in ("FP16", "BF16")])
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_json_round_trips_every_datatype(datatype: str, data: st.DataObject):
    shape = data.draw(SHAPES)
    count = elements(shape)
    values = data.draw(st.lists(VALUES[datatype], min_size=count, max_size=count))
    tensor = from_json("x", datatype, shape, values)
    _, body = client.encode([tensor], InferOptions(binary=False))
    parsed = parse(body, b"", "m", no_memory)
    assert same(parsed.inputs["x"], tensor)
    assert not parsed.binary
    made = response_body([tensor])
    assert len(made) == 1
    (back,) = client.decode(200, {}, made[0]).outputs
    assert isinstance(back, Tensor)
    assert same(back, tensor)
    assert json.loads(made[0])["outputs"][0]["data"] == to_json(tensor)


def test_bytes_that_are_not_text_are_base64_in_json() -> None:
    image = from_bytes("x", (2,), [b"\xff\xd8\xff", b"text"])
    _, body = client.encode([image], InferOptions(binary=False))
    (one,) = json.loads(body)["inputs"]
    assert one["parameters"] == {"content_type": "base64"} and one["data"] == ["/9j/", "dGV4dA=="]
    assert same(parse(body, b"", "m", no_memory).inputs["x"], image)
    response = json.dumps({"model_name": "m", "outputs": [one]}).encode()
    assert client.decode(200, {}, response).outputs == [image]
    with pytest.raises(Refused, match="an element is not base64"):
        parse(body.replace(b"/9j/", b"9j"), b"", "m", no_memory)


VALUES: dict[str, "st.SearchStrategy[Any]"] = {
    "BOOL": st.booleans(),
    "BYTES": st.text(max_size=5),
    "FP32": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "FP64": st.floats(allow_nan=False, allow_infinity=False),
    **{f"INT{bits}": st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64)},
}


@given(
    st.lists(st.sampled_from(list(DATATYPES)), max_size=4).flatmap(
        lambda kinds: st.tuples(*(tensors(f"o{index}", kind) for index, kind in enumerate(kinds)))
    ),
    st.text(max_size=5),
)
@settings(max_examples=100, deadline=None)
def test_our_client_reads_binary_responses(made: tuple[Tensor, ...], id_: str):
    response = response_body(list(made), True, id_)
    headers = {client.JSON_LENGTH: str(len(response[0]))} if response[1:] else {}
    back = client.decode(200, headers, b"".join(response))
    assert (back.model, back.version, back.id) == ("m", "3", id_)
    assert all(isinstance(one, Tensor) and same(one, other) for one, other in zip(back.outputs, made, strict=True))
    keys = ["id"] * bool(id_) + ["model_name", "model_version", "outputs"]
    assert list(json.loads(response[0])) == keys


def test_binary_tensors_are_not_copied():
    tensor = Tensor("x", "FP32", (2,), bytes(8))
    headers, body = client.encode([tensor], InferOptions())
    view = memoryview(bytearray(body))
    found = parse(view, headers[client.JSON_LENGTH].encode(), "m", no_memory).inputs["x"].data
    assert isinstance(found, memoryview)
    assert found.obj is view.obj
    (part,) = response_body([Tensor("y", "FP32", (2,), found)], True)[1:]
    assert part is found


def test_nested_lists_nan_and_infinity_round_trip():
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"data":[[NaN,1],[-Infinity,2.5]]}]}'
    found = parse(body, b"", "m", no_memory).inputs["x"]
    made = response_body([found])
    assert b'"data":[NaN,1.0,-Infinity,2.5]' in made[0]


def test_named_outputs_are_json_unless_they_request_binary():
    tensor = Tensor("x", "INT8", (1,), b"\x05")
    for wanted, parts in ((Wanted("x", 0, None, False), 0), (Wanted("x", 0, None, True), 1)):
        assert len(response_body([tensor], True, wanted=(wanted,))[1:]) == parts


def test_shared_memory_inputs_are_read_later_and_outputs_only_named():
    class Memory(msgspec.Struct):
        offset: int
        byte_size: int

        def read(self) -> bytes:
            return bytes(i % 256 for i in range(self.offset, self.offset + self.byte_size))

    def find(region: str, byte_size: int, offset: int) -> Memory:
        assert region in ("r", "s")
        return Memory(offset, byte_size)

    options = InferOptions(shm_inputs={"x": ShmRef("r", 8, 4)}, shm_outputs={"y": ShmRef("s", 8, 2)})
    headers, body = client.encode([Tensor("x", "FP32", (2,), bytes(8))], options)
    parsed = parse(body, headers[client.JSON_LENGTH].encode(), "m", find)
    assert (parsed.inputs["x"].data, parsed.unread["x"].byte_size) == (b"", 8)
    assert parsed.unread["x"].read() == bytes(range(4, 12))
    (wanted,) = parsed.wanted
    assert (wanted.name, wanted.placed) == ("y", Memory(2, 8))
    made = response_body([Tensor("y", "FP32", (2,), b"")], True, wanted=(wanted,))
    assert json.loads(made[0])["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [2]}]


# --- what is wrong -----------------------------------------------------------------------------------------------------

X = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}
BINARY = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}


@pytest.mark.parametrize(
    ("tree", "behind", "words"),
    [
        ({}, b"", "inputs"),
        ([], b"", "Expected `object`, got `array`"),
        ({"inputs": [X | {"shape": [-1]}]}, b"", "shape"),
        ({"inputs": [X | {"shape": [10**30]}]}, b"", "shape"),
        ({"inputs": [X | {"shape": [3]}]}, b"", "3 elements, but 2 were given"),
        ({"inputs": [X | {"datatype": "FP31"}]}, b"", "'FP31' is not known"),
        ({"inputs": [X | {"datatype": "FP16"}]}, b"", "receiving FP16 data via JSON is not supported"),
        ({"inputs": [X | {"datatype": "BF16"}]}, b"", "receiving BF16 data via JSON is not supported"),
        ({"inputs": [X | {"datatype": "BOOL"}]}, b"", "BOOL"),
        ({"inputs": [X | {"datatype": "BYTES"}]}, b"", "BYTES"),
        ({"inputs": [X | {"datatype": "INT8", "data": [1, 200]}]}, b"", "200 does not fit into INT8"),
        ({"inputs": [X | {"data": 5}]}, b"", "Expected `array | null`, got `int`"),
        ({"inputs": [X, X]}, b"", "input 'x' already exists in request"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2]}]}, b"", "But no field is set"),
        ({"inputs": [BINARY]}, bytes(7), "expected 8 bytes, got 7"),
        ({"inputs": [BINARY]}, bytes(9), "expected 8 bytes, got 9"),
        ({"inputs": [X], "id": 5}, b"", "$.id"),
        ({"inputs": [X], "parameters": {"a": [1]}}, b"", "parameter 'a' must be"),
        ({"inputs": [X], "parameters": {"a": None}}, b"", "parameter 'a' must be"),
        ({"inputs": [X], "parameters": {"a": 10**30}}, b"", "64-bit"),
        ({"inputs": [X], "outputs": [{}]}, b"", "$.outputs[0]"),
    ],
)
def test_invalid_requests_are_explained(tree: Any, behind: bytes, words: str):
    head = json.dumps(tree).encode()
    with pytest.raises(Refused) as caught:
        parse(head + behind, str(len(head)).encode() if behind else b"", "m", no_memory)
    assert caught.value.code == "INVALID_ARGUMENT"
    assert words in caught.value.message


@pytest.mark.parametrize("header", [b"x", b"-1", b"3", b"99999999999999999999", b"1.0", "²".encode("latin-1")])
def test_an_invalid_json_length_is_refused(header: bytes):
    with pytest.raises(Refused):
        parse(b"{}", header, "m", no_memory)


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_fp16_and_bf16_are_not_sent_as_json(datatype: str):
    with pytest.raises(Refused, match="sending"):
        response_body([Tensor("x", datatype, (1,), b"\0\0")])


def test_bytes_that_are_not_utf8_are_not_sent_as_json():
    with pytest.raises(Refused, match="not valid UTF-8"):
        response_body([Tensor("x", "BYTES", (1,), b"\1\0\0\0\xff")])


@given(st.binary(max_size=200), st.sampled_from([b"", b"0", b"5", b"200"]))
def test_random_bodies_are_parsed_or_refused(body: bytes, header: bytes):
    try:
        parse(body, header, "m", no_memory)
    except Refused as refused:
        assert refused.message


# --- compression -------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=2000))
def test_compression_round_trips_in_both_directions(body: bytes):
    for how in ("gzip", "deflate"):
        packed = compressed(body, how)
        assert unpacked(memoryview(packed), how.encode()) == body
        assert unpacked(compression.compress(how, [body[:7], memoryview(body)[7:]]), how.encode()) == body


def unpacked(body: bytes | memoryview, encoding: bytes, limit: int = GIB) -> bytes:
    return compression.decompress(compression.named(encoding), body, limit, "body", "INVALID_ARGUMENT")


def test_a_decompression_bomb_is_refused():
    bomb = gzip.compress(bytes(5_000_000))
    assert len(bomb) < 6_000
    assert len(unpacked(bomb, b"gzip", 5_000_000)) == 5_000_000
    for limit in (1000, 4_999_999):
        with pytest.raises(Refused, match="larger than"):
            unpacked(bomb, b"gzip", limit)


# Named, because gzip's header holds the second it was made in: the two workers of a run must collect the same names.
NOT_COMPRESSED_AS_DECLARED = {
    "nonsense": (b"nonsense", b"gzip"),
    "nothing": (b"", b"gzip"),
    "cut short": (gzip.compress(b"abc")[:-1], b"gzip"),
    "gzip called deflate": (gzip.compress(b"abc") + b"x", b"deflate"),
    "an unknown packing": (b"abc", b"br"),
    "compressed once, declared twice": (gzip.compress(b"abc"), b"gzip, gzip"),
}


@pytest.mark.parametrize(
    ("body", "encoding"), NOT_COMPRESSED_AS_DECLARED.values(), ids=NOT_COMPRESSED_AS_DECLARED.keys()
)
def test_invalid_compressed_data_is_refused(body: bytes, encoding: bytes):
    with pytest.raises(Refused):
        unpacked(body, encoding)


@pytest.mark.parametrize(
    ("accepted", "how"),
    [
        (b"", ""),
        (b"identity", ""),
        (b"*", ""),
        (b"br", ""),
        (b"gzip", "gzip"),
        (b"GZIP", "gzip"),
        (b"gzip, deflate", "gzip"),
        (b"br;q=1, deflate;q=0.5", "deflate"),
    ],
)
def test_responses_are_compressed_as_accepted(accepted: bytes, how: str):
    assert compression.choose(accepted) == how


@pytest.mark.parametrize(
    "body", [b'{"inputs":[],"parameters":{"p":1e400}}', b'{"inputs":[{"name":"x","data":[1e400]}]}']
)
def test_a_number_beyond_fp64_is_refused(body: bytes) -> None:
    with pytest.raises(Refused, match="Number out of range"):
        parse(body, b"", "m", no_memory)


def test_known_requests_do_not_share_their_data():
    """A JSON that was parsed before is not parsed again, but its tensors are those of the new body."""
    head = json.dumps({"inputs": [BINARY | {"name": name} for name in "xy"], "parameters": {"a": 1}}).encode()
    length = str(len(head)).encode()
    for value in range(3):
        data = bytes([value]) * 8 + bytes([value + 10]) * 8
        found = parse(head + data, length, "m", no_memory)
        assert {name: bytes(tensor.data) for name, tensor in found.inputs.items()} == {"x": data[:8], "y": data[8:]}
        assert found.parameters == {"a": 1}
        found.parameters["a"] = 2  # by a model
    for wrong in (data[1:], data + b"x"):
        with pytest.raises(Refused, match="unexpected"):
            parse(head + wrong, length, "m", no_memory)
