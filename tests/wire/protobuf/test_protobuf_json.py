"""JSON to message bytes and back, and the errors for values that do not fit."""

import base64
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.errors import UserError
from inferometer.wire import protobuf

EVERYTHING = """
syntax = "proto3";
package all;
import "google/protobuf/any.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/wrappers.proto";
service Echo { rpc Echo(Every) returns (Every); rpc Nothing(Empty) returns (Empty); rpc Raw(google.protobuf.Value) returns (Every); }
message Empty {}
enum Colour { NONE = 0; RED = 1; BLUE = -3; }
message Every {
  double d = 1; float f = 2; int32 i32 = 3; int64 i64 = 4; uint32 u32 = 5; uint64 u64 = 6; sint32 s32 = 7; sint64 s64 = 8;
  fixed32 f32 = 9; fixed64 f64 = 10; sfixed32 sf32 = 11; sfixed64 sf64 = 12; bool b = 13; string text = 14; bytes data = 15;
  Colour colour = 16; repeated int32 numbers = 17; repeated Every inner = 18; map<string, Every> by_name = 19;
  map<int64, bytes> by_number = 20; oneof choice { string left = 21; int32 right = 22; } optional int32 maybe_zero = 23;
  google.protobuf.Struct tree = 24; google.protobuf.Duration took = 25; google.protobuf.Int64Value wrapped = 26;
  google.protobuf.Any any = 27; repeated string words = 28;
}
"""


def everything() -> protobuf.Schema:
    """Compile the schema once: hypothesis calls a test many times."""
    if not _CACHE:
        import tempfile  # noqa: PLC0415

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "everything.proto")
            path.write_text(EVERYTHING)
            _CACHE.append(protobuf.load(path))
    return _CACHE[0]


_CACHE: list[protobuf.Schema] = []


def echo() -> protobuf.Method:
    return everything().method("all.Echo/Echo")


def encode(value: Any) -> bytes:
    return protobuf.encode(echo().input, value)


# --- round trips -----------------------------------------------------------------------------------------------------


def integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
BASE64 = st.binary(max_size=8).map(lambda raw: base64.b64encode(raw).decode())
FLAT: dict[str, st.SearchStrategy[Any]] = {
    "d": st.floats(allow_nan=False, allow_infinity=False),
    "f": st.floats(-(2.0**127), 2.0**127, width=32),  # protobuf rounds the largest up when it shows it, then refuses it
    **dict.fromkeys(("i32", "s32", "sf32"), integers(32, True)),
    **dict.fromkeys(("i64", "s64", "sf64"), integers(64, True) | integers(64, True).map(str)),
    **dict.fromkeys(("u32", "f32"), integers(32, False)),
    **dict.fromkeys(("u64", "f64"), integers(64, False) | integers(64, False).map(str)),
    "b": st.booleans(),
    "text": TEXT,
    "data": BASE64,
    "colour": st.sampled_from(["NONE", "RED", "BLUE", 1, 77]),
    "numbers": st.lists(integers(32, True), max_size=3),
    "by_number": st.dictionaries(integers(64, True).map(str), BASE64, max_size=3),
    "left": TEXT,
    "maybe_zero": integers(32, True) | st.none(),
    "tree": st.dictionaries(TEXT, TEXT | st.none() | st.booleans() | st.lists(TEXT, max_size=2), max_size=2),
    "took": st.sampled_from(["1.5s", "-3s", "0s"]),
    "wrapped": integers(64, True).map(str),
    "words": st.lists(TEXT, max_size=3),
}
EVERY = st.recursive(
    st.fixed_dictionaries({}, optional=FLAT),
    lambda inner: st.fixed_dictionaries(
        {}, optional=FLAT | {"inner": st.lists(inner, max_size=2), "by_name": st.dictionaries(TEXT, inner, max_size=2)}
    ),
    max_leaves=4,
)


@given(EVERY)
def test_json_to_bytes_to_json_to_bytes_gives_the_same_bytes(value: dict[str, Any]) -> None:
    data = encode(value)
    back = protobuf.decode(echo().output, data)
    assert encode(back) == data
    assert set(back) <= set(value)


@given(
    st.fixed_dictionaries(
        {}, optional={"text": TEXT.filter(bool), "words": st.lists(TEXT, min_size=1), "i32": st.integers(1, 9)}
    )
)
def test_values_that_json_represents_exactly_round_trip(value: dict[str, Any]) -> None:
    assert protobuf.decode(echo().output, encode(value)) == value


@given(st.permutations(list(string.ascii_lowercase[:6])))
def test_order_of_a_map_does_not_change_the_bytes(names: list[str]) -> None:
    expected = encode({"by_name": {name: {"text": name} for name in sorted(names)}})
    assert encode({"by_name": {name: {"text": name} for name in names}}) == expected


def test_encoded_bytes_are_protobuf() -> None:
    assert encode({"i32": 150, "text": "hi", "numbers": [1, 2]}) == b"\x18\x96\x01\x72\x02hi\x8a\x01\x02\x01\x02"


def test_proto_and_json_names_are_accepted_and_proto_names_returned() -> None:
    assert encode({"maybeZero": 0}) == encode({"maybe_zero": 0}) == b"\xb8\x01\x00"
    assert protobuf.decode(echo().output, b"\xb8\x01\x00") == {"maybe_zero": 0}


def test_defaults_are_shown_on_request() -> None:
    shown = protobuf.decode(echo().output, b"", defaults=True)
    assert shown["i64"] == "0" and shown["words"] == [] and "maybe_zero" not in shown
    assert protobuf.decode(echo().output, b"") == {}


def test_any_finds_its_type_in_the_pool_of_the_schema() -> None:
    value = {"any": {"@type": "type.googleapis.com/all.Every", "text": "x"}}
    assert protobuf.decode(echo().output, encode(value)) == value


def test_request_of_type_value_accepts_any_json() -> None:
    raw = everything().method("all.Echo/Raw")
    assert protobuf.encode(raw.input, "x") == b"\x1a\x01x"
    assert protobuf.encode(raw.input, [1]) != b""


def test_bytes_are_used_unchanged() -> None:
    unknown_field = b"\xa2\x06\x01x"
    assert encode(unknown_field) == unknown_field
    assert encode(b"") == b""


# --- what does not fit -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"nope": 1}, "no field 'nope'"),
        ({"inner": [{}, {"nope": 1}]}, r"Every.inner\[1\]: all.Every has no field 'nope'"),
        ({"i32": "x"}, "i32"),
        ({"i32": 2**31}, "i32"),
        ({"u32": -1}, "u32"),
        ({"b": 1}, r"Every\.b"),
        ({"text": 3}, "Every.text must be text, not 3"),
        ({"words": ["a", None]}, r"Every.words\[1\] must be text, not None"),
        ({"words": "a"}, "Every.words is repeated and must be a list, not 'a'"),
        ({"data": "!!"}, "Every.data is of type bytes"),
        ({"data": [1]}, "Every.data is of type bytes"),
        ({"data": "A"}, "data"),
        ({"colour": "PINK"}, "colour"),
        ({"inner": [[]]}, r"Every.inner\[0\] must be an object"),
        ({"inner": {}}, "Every.inner is repeated"),
        ({"by_name": []}, "Every.by_name is a map"),
        ({"by_name": {"a": {"b": {"text": 1}}}}, r"Every\.by_name\[a\]\.b"),
        ({"by_name": {"a": 1}}, r"Every.by_name\[a\] must be an object"),
        ({"by_number": {"x": "AA=="}}, "by_number"),
        ({"left": "a", "right": 1}, "choice"),
        ({"took": "soon"}, "took"),
        ({"any": {"@type": "type.googleapis.com/all.Unknown"}}, "all.Unknown"),
        ({1: 2}, "no field 1"),
        ([], "must be an object with the fields of all.Every, not"),
        (None, "not None"),
        ("text", "not 'text'"),
        (b"\xff", "1 bytes are not a valid all.Every"),
    ],
)
def test_value_that_does_not_fit_is_named(value: Any, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        encode(value)


def test_error_for_an_unknown_field_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="did you mean by_name or"):
        encode({"byname": {}})
    with pytest.raises(UserError, match="known names: d, f, i32"):
        encode({"zzzzzz": {}})
    with pytest.raises(UserError, match="the message has no fields"):
        protobuf.encode(everything().method("all.Echo/Nothing").input, {"a": 1})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["AA==", "1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*FLAT, "inner", "by_name", "any", "right"]) | st.text(max_size=3), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_encoded_or_a_user_error(value: Any) -> None:
    try:
        data = encode(value)
    except UserError as error:
        assert "\n" not in error.what
    else:
        assert encode(data) == data


def test_value_nested_too_deeply_is_an_error_and_not_a_crash() -> None:
    value: dict[str, Any] = {}
    for _ in range(5000):
        value = {"inner": [value]}
    with pytest.raises(UserError):
        encode(value)


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_a_user_error(data: bytes) -> None:
    try:
        protobuf.decode(echo().output, data)
    except UserError as error:
        assert "all.Every" in error.what


def test_error_for_a_response_of_another_type_shows_its_first_bytes() -> None:
    with pytest.raises(UserError, match=r"5 bytes are not a valid all.Every: .* they start with 3c 68 74 6d 6c"):
        protobuf.decode(echo().output, b"<html")
