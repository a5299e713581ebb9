"""KServe v2 over gRPC: requests and responses as bytes. The expected bytes were derived by hand from the protocol."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensor_maker import random

from inferometer.errors import UserError
from inferometer.tensors import DATATYPES, Tensor, from_numpy, zeros
from inferometer.wire import protobuf
from inferometer.wire.context import ShmRef
from inferometer.wire.kserve import grpc
from inferometer.wire.kserve.infer import InferOptions, InferResponse, ShmOutput

X = Tensor("x", "INT32", (2,), b"\x01\x00\x00\x00\x02\x00\x00\x00")
X_INPUT = b"\x2a\x0d\x0a\x01x\x12\x05INT32\x1a\x01\x02"
X_RAW = b"\x3a\x08" + X.data


def message(name: str, **fields: Any) -> bytes:
    made = protobuf.bundled("kserve").message(f"inference.{name}")(**fields)
    return bytes(made.SerializeToString())


# --- requests --------------------------------------------------------------------------------------------------------


def test_bytes_of_a_request() -> None:
    data = grpc.infer_request("m", "3", [X], InferOptions(id="7"))
    assert data == b"\x0a\x01m\x12\x013\x1a\x017" + X_INPUT + X_RAW


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("sequence_id", 5, b"\x10\x05"),
        ("sequence_id", "abc", b"\x1a\x03abc"),
        ("sequence_end", True, b"\x08\x01"),
        ("sequence_end", False, b"\x08\x00"),
        ("temperature", 0.5, b"\x21\x00\x00\x00\x00\x00\x00\xe0\x3f"),
        ("n", -1, b"\x10" + b"\xff" * 9 + b"\x01"),
        ("n", 2**63, b"\x28" + b"\x80" * 9 + b"\x01"),
    ],
)
def test_parameter_goes_into_the_field_of_its_type(name: str, value: Any, field: bytes) -> None:
    entry = b"\x0a" + bytes([len(name)]) + name.encode() + b"\x12" + bytes([len(field)]) + field
    data = grpc.infer_request("m", "", [X], InferOptions(parameters={name: value}))
    assert data == b"\x0a\x01m" + b"\x22" + bytes([len(entry)]) + entry + X_INPUT + X_RAW


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, None, [1]])
def test_unsupported_parameter_is_named(value: Any) -> None:
    with pytest.raises(UserError, match="parameter n"):
        grpc.infer_request("m", "", [X], InferOptions(parameters={"n": value}))


def test_requested_outputs_and_their_classes() -> None:
    plain = grpc.infer_request("m", "", [X], InferOptions(outputs=("y", "z")))
    assert plain == b"\x0a\x01m" + X_INPUT + b"\x32\x03\x0a\x01y\x32\x03\x0a\x01z" + X_RAW
    classes = grpc.infer_request("m", "", [X], InferOptions(outputs=("y",), classification=3))
    entry = b"\x0a\x0eclassification\x12\x02\x10\x03"
    assert classes == b"\x0a\x01m" + X_INPUT + b"\x32\x19\x0a\x01y\x12\x14" + entry + X_RAW


def test_input_in_shared_memory_has_parameters_and_no_raw_contents() -> None:
    options = InferOptions(shm_inputs={"x": ShmRef("r", 8, 16)})
    y = Tensor("y", "UINT8", (1,), b"\x09")
    data = grpc.infer_request("m", "", [X, y], options)
    read = protobuf.decode(protobuf.bundled("kserve").message("inference.ModelInferRequest"), data)
    assert read["inputs"][0]["parameters"] == {
        "shared_memory_region": {"string_param": "r"},
        "shared_memory_byte_size": {"int64_param": "8"},
        "shared_memory_offset": {"int64_param": "16"},
    }
    assert "parameters" not in read["inputs"][1]
    assert data.endswith(b"\x3a\x01\x09") and data.count(X.data) == 0


def test_naming_an_output_for_shared_memory_requests_it() -> None:
    data = grpc.infer_request("m", "", [X], InferOptions(shm_outputs={"y": ShmRef("r", 8)}))
    read = protobuf.decode(protobuf.bundled("kserve").message("inference.ModelInferRequest"), data)
    assert read["outputs"] == [
        {
            "name": "y",
            "parameters": {
                "shared_memory_region": {"string_param": "r"},
                "shared_memory_byte_size": {"int64_param": "8"},
            },
        }
    ]


@pytest.mark.parametrize(
    ("tensors", "options", "expected"),
    [
        ([Tensor("x", "INT32", (2,), b"abc")], InferOptions(), "8 bytes, but 3 were given"),
        ([Tensor("x", "INT31", (2,), b"abc")], InferOptions(), "'INT31' is not known"),
        ([X], InferOptions(shm_inputs={"y": ShmRef("r", 8)}), "shared memory is given for y"),
        ([X], InferOptions(classification=2), "no output is named"),
        ([X], InferOptions(classification=2, shm_outputs={"y": ShmRef("r", 8)}), "output y: classes"),
    ],
)
def test_invalid_request_is_rejected(tensors: list[Tensor], options: InferOptions, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        grpc.infer_request("m", "", tensors, options)


def test_order_of_parameters_does_not_change_the_bytes() -> None:
    one = grpc.infer_request("m", "", [X], InferOptions(parameters={"a": 1, "b": "x", "c": True}))
    two = grpc.infer_request("m", "", [X], InferOptions(parameters={"c": True, "b": "x", "a": 1}))
    assert one == two


# --- responses -------------------------------------------------------------------------------------------------------

Y_OUTPUT = {"name": "x", "datatype": "INT32", "shape": [2]}
RESPONSE = b"\x0a\x01m\x12\x011\x1a\x017" + X_INPUT + b"\x32\x08" + X.data
"""Outputs are field 5, like inputs; raw_output_contents is field 6."""


def test_bytes_of_a_response() -> None:
    assert grpc.infer_response(RESPONSE) == InferResponse("m", "1", "7", [X])


@given(st.sampled_from(sorted(DATATYPES)), st.lists(st.integers(0, 4), max_size=3), st.integers(0, 2**32))
def test_raw_tensors_of_every_datatype_round_trip(datatype: str, shape: list[int], seed: int) -> None:
    tensors = [random("a", datatype, shape, np.random.default_rng(seed)), zeros("b", datatype, shape)]
    read = (
        protobuf.bundled("kserve")
        .message("inference.ModelInferRequest")
        .FromString(grpc.infer_request("m", "", tensors, InferOptions()))
    )
    outputs = [{"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in read.inputs]
    response = message("ModelInferResponse", outputs=outputs, raw_output_contents=read.raw_input_contents)
    assert grpc.infer_response(response).outputs == tensors


TYPED = {
    "BOOL": ("bool_contents", [True, False]),
    "INT8": ("int_contents", [-128, 127]),
    "INT16": ("int_contents", [-32768, 32767]),
    "INT32": ("int_contents", [-(2**31), 2**31 - 1]),
    "INT64": ("int64_contents", [-(2**63), 2**63 - 1]),
    "UINT8": ("uint_contents", [0, 255]),
    "UINT16": ("uint_contents", [0, 65535]),
    "UINT32": ("uint_contents", [0, 2**32 - 1]),
    "UINT64": ("uint64_contents", [0, 2**64 - 1]),
    "FP32": ("fp32_contents", [0.5, -1.25]),
    "FP64": ("fp64_contents", [0.1, -1e300]),
    "BYTES": ("bytes_contents", [b"", b"\xff\x00a"]),
}


@pytest.mark.parametrize("datatype", sorted(TYPED))
def test_typed_contents_give_the_same_tensor(datatype: str) -> None:
    field, values = TYPED[datatype]
    output = {"name": "y", "datatype": datatype, "shape": [2, 1], "contents": {field: values}}
    expected = from_numpy("y", np.array(values, dtype=DATATYPES[datatype].dtype or object).reshape(2, 1), datatype)
    assert grpc.infer_response(message("ModelInferResponse", outputs=[output])).outputs == [expected]


def test_response_may_mix_raw_and_typed_outputs() -> None:
    typed = {"name": "y", "datatype": "UINT8", "shape": [1], "contents": {"uint_contents": [9]}}
    data = message("ModelInferResponse", outputs=[typed, Y_OUTPUT], raw_output_contents=[X.data])
    assert grpc.infer_response(data).outputs == [Tensor("y", "UINT8", (1,), b"\x09"), X]


@pytest.mark.parametrize("raw", [[b"", X.data], [X.data]], ids=["an empty one for it", "none for it"])
def test_an_output_may_be_in_shared_memory(raw: list[bytes]) -> None:
    parameters = {"shared_memory_region": {"string_param": "r"}, "shared_memory_byte_size": {"int64_param": 16}}
    output = {"name": "y", "datatype": "FP32", "shape": [4], "parameters": parameters}
    data = message("ModelInferResponse", outputs=[output, Y_OUTPUT], raw_output_contents=raw)
    assert grpc.infer_response(data).outputs == [ShmOutput("y", "FP32", (4,), ShmRef("r", 16)), X]


def test_parameters_of_a_response_keep_their_types() -> None:
    parameters = {
        "a": {"bool_param": False},
        "b": {"int64_param": -1},
        "c": {"string_param": ""},
        "d": {"double_param": 0.5},
        "e": {"uint64_param": 2**63},
        "f": {},
    }
    response = grpc.infer_response(message("ModelInferResponse", parameters=parameters))
    assert response.parameters == {"a": False, "b": -1, "c": "", "d": 0.5, "e": 2**63, "f": None}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"outputs": [Y_OUTPUT]}, "8 bytes, but 0 were given"),
        ({"outputs": [Y_OUTPUT], "raw_output_contents": [b"abc"]}, "8 bytes, but 3 were given"),
        ({"outputs": [Y_OUTPUT], "raw_output_contents": [X.data, X.data]}, "1 outputs, but 2 raw contents"),
        ({"outputs": [Y_OUTPUT | {"datatype": "INT31"}], "raw_output_contents": [X.data]}, "'INT31' is not known"),
        ({"outputs": [Y_OUTPUT | {"shape": [-1]}], "raw_output_contents": [X.data]}, "a dimension of any size"),
        ({"outputs": [Y_OUTPUT | {"contents": {"int_contents": [1]}}]}, "2 elements, but int_contents contains 1"),
        ({"outputs": [Y_OUTPUT | {"contents": {"fp32_contents": [1, 2]}}]}, "2 elements, but int_contents contains 0"),
        ({"outputs": [Y_OUTPUT | {"datatype": "FP16", "contents": {"fp32_contents": [1, 2]}}]}, "FP16 can only be sent raw"),
        ({"outputs": [Y_OUTPUT | {"datatype": "INT8", "contents": {"int_contents": [1, 200]}}]}, "200 does not fit into INT8"),
        (
            {"outputs": [Y_OUTPUT | {"parameters": {"shared_memory_region": {"string_param": "r"}}}]},
            "output x: .*shared_memory_byte_size",
        ),
    ],
)  # fmt: skip
def test_inconsistent_response_is_an_error_with_a_reason(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        grpc.infer_response(message("ModelInferResponse", **fields))


@given(st.binary(max_size=80) | st.binary(max_size=20).map(lambda tail: RESPONSE[:-3] + tail))
def test_any_bytes_are_a_response_or_a_user_error(data: bytes) -> None:
    for read in (grpc.infer_response, grpc.stream_response, grpc.stream_error):
        try:
            read(data)
        except UserError as error:
            assert error.what


@pytest.mark.parametrize("size", range(len(RESPONSE)))
def test_truncated_response_is_an_error_or_lacks_outputs(size: int) -> None:
    try:
        response = grpc.infer_response(RESPONSE[:size])
    except UserError:
        return
    assert response.outputs == [], "a truncated response cannot contain a complete tensor"


# --- streams ---------------------------------------------------------------------------------------------------------


def test_response_in_a_stream() -> None:
    data = b"\x12" + bytes([len(RESPONSE)]) + RESPONSE
    assert grpc.stream_response(data) == InferResponse("m", "1", "7", [X])
    assert grpc.stream_error(data) == ""


def test_error_in_a_stream() -> None:
    data = b"\x0a\x04oops\x12\x03\x1a\x017"  # Triton sends the request's id along
    assert grpc.stream_response(data) == grpc.stream_error(data) == "oops"


def test_error_in_a_stream_is_one_bounded_line() -> None:
    data = message("ModelStreamInferResponse", error_message="a\nb " * 500)
    assert "\n" not in grpc.stream_error(data)
    assert len(grpc.stream_error(data)) <= 300


def test_empty_message_and_empty_error_are_not_errors() -> None:
    assert grpc.stream_error(b"") == ""
    assert grpc.stream_error(b"\x0a\x00\x12\x00") == ""


def test_malformed_error_is_still_an_error() -> None:
    assert "ModelStreamInferResponse" in grpc.stream_error(b"\x0a\x7fshort")


BARE_PARTS = {
    "model_name": "resnet" * 40,  # longer than a length of one byte can express
    "model_version": "1",
    "id": "7",
    "parameters": {"a": {"bool_param": True}},
    "outputs": [Y_OUTPUT],
    "raw_output_contents": [X.data],
}


@pytest.mark.parametrize("last", ["id", "parameters", "outputs"])
@pytest.mark.parametrize("without", ["", "model_version"])
def test_stream_of_bare_infer_responses_is_supported(last: str, without: str) -> None:
    """As MLServer sends them: the model's name is in the field in which other servers have the error message."""
    names = [name for name in BARE_PARTS if name != without]
    fields = {name: BARE_PARTS[name] for name in names[: names.index(last) + 1]}
    if last == "outputs":
        fields["raw_output_contents"] = BARE_PARTS["raw_output_contents"]
    data = message("ModelInferResponse", **fields)
    assert grpc.stream_error(data) == ""
    assert grpc.stream_response(data) == grpc.infer_response(data)
    assert isinstance(grpc.stream_response(data), InferResponse)


@given(st.text(min_size=1, max_size=300).filter(str.strip), st.booleans())
def test_error_is_never_mistaken_for_a_response(text: str, with_id: bool) -> None:
    fields = {"infer_response": {"id": text}} if with_id else {}
    data = message("ModelStreamInferResponse", error_message=text, **fields)
    assert grpc.stream_error(data) == grpc.stream_response(data) != ""


def test_stream_error_inspects_only_the_first_byte_of_a_response() -> None:
    assert grpc.stream_error(b"\x12\xff\xff not protobuf") == ""


def test_stream_error_does_not_decode_a_bare_response() -> None:
    assert grpc.stream_error(b"\x0a\x01m\x2a\xff\xff not protobuf") == ""
