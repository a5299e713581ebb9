"""Every datatype converts from numpy to bytes and JSON and back; data of the wrong size is an error that names both sizes."""

import contextlib
import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tensor_maker import random

from inferometer.errors import UserError
from inferometer.tensors import (
    DATATYPES,
    Tensor,
    TensorSpec,
    check,
    elements,
    from_json,
    from_numpy,
    misfit,
    to_json,
    to_numpy,
    zeros,
)

NUMERIC = [name for name, kind in DATATYPES.items() if kind.dtype is not None]
IN_JSON = [name for name in DATATYPES if name not in ("FP16", "BF16")]
SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@st.composite
def array_of(draw: st.DrawFn, datatype: str, finite: bool = False, text: bool = False) -> Any:
    shape = draw(SHAPES)
    kind = DATATYPES[datatype]
    if datatype == "BYTES":
        count = math.prod(shape)
        one = st.text(max_size=9).map(str.encode) if text else st.binary(max_size=9)
        array = np.empty(count, dtype=object)
        array[:] = draw(st.lists(one, min_size=count, max_size=count))
        return array.reshape(shape)
    assert kind.dtype is not None
    if kind.dtype.kind == "f":
        floats = st.floats(width=kind.size * 8, allow_nan=not finite, allow_infinity=not finite)  # type: ignore[arg-type]
        return draw(arrays.arrays(kind.dtype, shape, elements=floats))
    return draw(arrays.arrays(kind.dtype, shape))


def same(one: Any, other: Any) -> bool:
    if one.dtype != object and one.dtype.kind == "f":
        return one.shape == other.shape and np.array_equal(one, other, equal_nan=True)
    return bool(one.shape == other.shape and one.tolist() == other.tolist())


@pytest.mark.parametrize("datatype", [*NUMERIC, "BYTES"])
@given(st.data())
def test_numpy_to_tensor_and_back_is_the_same_array(datatype: str, data: st.DataObject) -> None:
    array = data.draw(array_of(datatype))
    tensor = from_numpy("x", array)
    assert (tensor.datatype, tensor.shape) == (datatype, array.shape)
    check(tensor)
    assert same(to_numpy(tensor), array)


@pytest.mark.parametrize("datatype", IN_JSON)
@given(st.data())
def test_tensor_to_json_text_and_back_is_the_same_tensor_flat_or_nested(datatype: str, data: st.DataObject) -> None:
    array = data.draw(array_of(datatype, finite=True, text=True))
    tensor = from_numpy("x", array)
    flat = json.loads(json.dumps(to_json(tensor)))
    assert from_json("x", datatype, tensor.shape, flat) == tensor
    nested = array.tolist() if datatype != "BYTES" else np.array(flat, dtype=object).reshape(array.shape).tolist()
    assert from_json("x", datatype, tensor.shape, nested) == tensor


def float_of(bits: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return value


NEAR_A_TIE = st.builds(
    lambda upper, lower: float_of(upper << 16 | lower),
    st.integers(0, 0xFFFF).filter(lambda upper: upper & 0x7FFF < 0x7F7F),  # values that round to infinity are errors
    st.sampled_from([0, 0x7FFF, 0x8000, 0x8001, 0xFFFF]),
)
SPECIAL = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0])


@given(st.lists(NEAR_A_TIE | SPECIAL, max_size=9).map(lambda values: np.array(values, np.float32)))
def test_bf16_rounds_to_nearest_with_ties_to_even(array: Any) -> None:
    tensor = from_numpy("x", array, "BF16")
    halves = struct.unpack(f"<{len(array)}H", tensor.data)
    back = to_numpy(tensor)
    assert back.dtype == np.float32
    for value, half, wide in zip(array.tolist(), halves, back.tolist(), strict=True):
        if math.isnan(value):
            assert math.isnan(wide)
            continue
        if math.isinf(value):
            assert wide == value
            continue
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        below = bits >> 16  # towards zero
        assert half in (below, below + 1)
        low = float_of(below << 16)
        ulp = 2.0 ** (max((below >> 7 & 0xFF), 1) - 127 - 7)
        over = (abs(value) - abs(low)) / ulp
        assert half == below + (over > 0.5 or (over == 0.5 and below % 2 == 1))


def test_data_is_little_endian_and_row_major_and_strings_have_a_length_prefix() -> None:
    assert from_numpy("x", np.array([[1, 2], [3, 258]], np.uint16)).data == bytes([1, 0, 2, 0, 3, 0, 2, 1])
    assert from_numpy("x", np.array([[1, 2], [3, 258]], np.uint16).T).data == bytes([1, 0, 3, 0, 2, 0, 2, 1])
    assert from_numpy("x", np.array([1, 258], ">i4")).data == bytes([1, 0, 0, 0, 2, 1, 0, 0])
    assert from_numpy("x", np.array([True, False])).data == b"\1\0"
    assert from_numpy("x", np.array([1.0, -2.0]), "BF16").data == bytes([0x80, 0x3F, 0x00, 0xC0])
    assert from_numpy("x", np.array([1.0]), "FP16").data == bytes([0x00, 0x3C])
    assert from_numpy("x", np.array(["hé", ""])).data == b"\3\0\0\0h\xc3\xa9\0\0\0\0"
    assert from_numpy("x", np.array([b"a\0b"], dtype=object)).data == b"\3\0\0\0a\0b"


@pytest.mark.parametrize(
    ("array", "datatype", "words"),
    [
        (np.array([300]), "INT8", "300 does not fit into INT8"),
        (np.array([-1]), "UINT64", "-1 does not fit"),
        (np.array([2**64 - 1], np.uint64), "INT64", "does not fit"),
        (np.array([2]), "BOOL", "2 does not fit into BOOL"),
        (np.array([1.5]), "INT32", "float64 values cannot become INT32"),
        (np.array([1e300]), "FP32", "1e+300 does not fit"),
        (np.array([70000.0]), "FP16", "does not fit"),
        (np.array([1e39]), "BF16", "does not fit"),
        (np.array([1.0, np.finfo("f4").max], "f4"), "BF16", "e+38 does not fit into BF16"),
        (np.array(["a"]), "FP32", "cannot become FP32"),
        (np.array([1j]), None, "complex128"),
        (np.array([object()]), None, "neither text nor bytes"),
        (np.array(["\ud800"], dtype=object), None, "surrogate"),
        (np.array([1]), "FLOAT", "FLOAT"),
    ],
)
def test_a_value_that_the_datatype_cannot_hold_is_an_error(array: Any, datatype: str | None, words: str) -> None:
    with pytest.raises(UserError, match="tensor x") as error:
        from_numpy("x", array, datatype)
    assert words in error.value.what


def test_integers_are_converted_to_floats_and_booleans() -> None:
    assert to_numpy(from_numpy("x", np.array([1, 2]), "FP32")).tolist() == [1.0, 2.0]
    assert to_numpy(from_numpy("x", np.array([0, 1]), "BOOL")).tolist() == [False, True]
    assert to_numpy(Tensor("x", "BOOL", (3,), b"\0\1\2")).tolist() == [False, True, True]


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (Tensor("x", "FP32", (2, 3), bytes(20)), ["FP32 [2, 3]", "24 bytes", "20"]),
        (Tensor("x", "FP32", (), b""), ["4 bytes", "0"]),
        (Tensor("x", "FP32", (-1, 3), b""), ["[-1, 3]"]),
        (Tensor("x", "FP31", (1,), b""), ["FP31", "FP32"]),
        (Tensor("x", "BYTES", (2,), b"\1\0\0\0a"), ["2 elements", "5 bytes", "1 complete"]),
        (Tensor("x", "BYTES", (1,), b"\1\0\0\0ab"), ["1 more bytes"]),
        (Tensor("x", "BYTES", (1,), b"\xff\xff\xff\xffab"), ["0 complete"]),
        (Tensor("x", "BYTES", (1,), b"\1\0\0"), ["0 complete"]),
        (Tensor("x", "BYTES", (0,), b"\0\0\0\0"), ["0 elements"]),
    ],
)
def test_data_that_does_not_fit_the_shape_is_an_error_with_both_sizes(tensor: Tensor, words: list[str]) -> None:
    for use in (check, to_numpy):
        with pytest.raises(UserError) as error:
            use(tensor)
        for word in words:
            assert word in str(error.value)


@given(st.sampled_from(list(DATATYPES)), st.lists(st.integers(-1, 5), max_size=4), st.binary(max_size=60))
def test_any_bytes_give_a_tensor_or_a_user_error(datatype: str, shape: list[int], data: bytes) -> None:
    tensor = Tensor("x", datatype, tuple(shape), data)
    try:
        check(tensor)
    except UserError:
        with pytest.raises(UserError):
            to_numpy(tensor)
    else:
        assert to_numpy(tensor).shape == tuple(shape)


def test_shapes_that_numpy_does_not_support_are_user_errors() -> None:
    for shape in ((1,) * 99, (0, 2**70)):
        with pytest.raises(UserError, match="numpy has no array"):
            to_numpy(zeros("x", "INT8", shape))


def test_number_of_elements_of_scalar_empty_and_dynamic_shapes() -> None:
    assert elements(()) == 1
    assert elements((3, 0)) == 0
    assert elements((3, 4)) == 12
    with pytest.raises(UserError, match="any size"):
        elements((-1, 4))


# --- JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_floats_cannot_be_sent_as_json_but_can_be_read_from_it(datatype: str) -> None:
    tensor = from_json("x", datatype, (2,), [1.0, 2.5])
    assert to_numpy(tensor).tolist() == [1.0, 2.5]
    with pytest.raises(UserError, match="Triton rejects") as error:
        to_json(tensor)
    assert "binary" in error.value.remedy


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_json_has_no_nan_and_no_infinity(value: float) -> None:
    with pytest.raises(UserError, match="NaN"):
        to_json(from_numpy("x", np.array([value])))


def test_bytes_that_are_not_utf8_cannot_be_sent_as_json() -> None:
    with pytest.raises(UserError, match="UTF-8"):
        to_json(Tensor("x", "BYTES", (1,), b"\1\0\0\0\xff"))


def test_null_is_read_as_nan_and_0_and_1_as_booleans() -> None:
    assert np.isnan(to_numpy(from_json("x", "FP32", (2,), [None, 1]))).tolist() == [True, False]
    assert to_numpy(from_json("x", "BOOL", (3,), [0, 1, True])).tolist() == [False, True, True]
    assert to_numpy(from_json("x", "INT32", (), 7)).tolist() == 7


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "words"),
    [
        ("INT32", (2,), [1], ["[2]", "2 elements", "1 were given"]),
        ("INT32", (1,), [1.5], ["1.5"]),
        ("INT32", (1,), [True], ["True"]),
        ("INT32", (1,), [None], ["None"]),
        ("INT8", (1,), [128], ["128 does not fit into INT8"]),
        ("INT64", (1,), [2**63], ["does not fit"]),
        ("UINT64", (1,), [-1], ["-1 does not fit"]),
        ("UINT64", (2,), [-1, 2**63], ["-1"]),
        ("INT64", (1,), [10**40], ["does not fit"]),
        ("FP32", (1,), ["1"], ["'1'"]),
        ("FP32", (1,), [1e39], ["does not fit into FP32"]),
        ("FP64", (1,), [10**400], ["does not fit into FP64"]),
        ("BOOL", (1,), [2], ["2"]),
        ("BYTES", (1,), [5], ["5"]),
        ("BYTES", (1,), ["\ud800"], ["surrogate"]),
        ("FP32", (1,), {"a": 1}, ["not a number"]),
    ],
)
def test_json_values_of_another_datatype_are_errors(datatype: str, shape: Any, data: Any, words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        from_json("x", datatype, shape, data)
    for word in ["tensor x", *words]:
        assert word in error.value.what


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=8,
)


@given(st.sampled_from(list(DATATYPES)), st.lists(st.integers(-1, 3), max_size=3), JSON)
def test_any_json_gives_a_tensor_or_a_user_error(datatype: str, shape: list[int], data: Any) -> None:
    with contextlib.suppress(UserError):
        check(from_json("x", datatype, shape, data))


def test_deeply_nested_lists_are_read() -> None:
    data: Any = 1
    for _ in range(5_000):
        data = [data]
    assert to_numpy(from_json("x", "INT8", (1,), data)).tolist() == [1]


# --- generated -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", DATATYPES)
def test_generated_tensors_have_their_shape_and_range(datatype: str) -> None:
    for shape in ((), (0,), (3, 500)):
        nothing = zeros("x", datatype, shape)
        check(nothing)
        assert set(to_numpy(nothing).reshape(-1).tolist()) <= {0, b""}
        tensor = random("x", datatype, shape, np.random.default_rng(7))
        check(tensor)
        assert tensor == random("x", datatype, shape, np.random.default_rng(7))
    values = to_numpy(tensor).reshape(-1).tolist()
    if datatype == "BYTES":
        assert all(1 <= len(value) <= 16 and value.isalnum() for value in values)
        assert len(set(values)) > 1_000
    elif datatype == "BOOL":
        assert set(values) == {False, True}
    elif "INT" in datatype:
        assert (min(values), max(values)) == (0, 127)
    else:
        assert min(values) < 0.01
        assert 0.99 < max(values) < 1


# --- a model's expectations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("datatype", "shape", "words"),
    [
        ("FP32", (7, 4), []),
        ("FP32", (1, 4), []),
        ("FP64", (1, 4), ["expects FP32", "FP64 was given"]),
        ("FP32", (1, 5), ["[-1, 4]", "[1, 5]"]),
        ("FP32", (4,), ["[-1, 4]", "[4]"]),
    ],
)
def test_misfit_says_why_a_tensor_does_not_match_the_model(datatype: str, shape: Any, words: list[str]) -> None:
    problem = misfit(zeros("x", datatype, shape), TensorSpec("x", "FP32", (-1, 4)))
    assert bool(problem) == bool(words)
    for word in words:
        assert word in problem


def test_a_tensor_with_another_name_does_not_match() -> None:
    assert "called y; x was given" in misfit(zeros("x", "FP32", (1,)), TensorSpec("y", "FP32", (1,)))
