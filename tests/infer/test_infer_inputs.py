"""Inputs from the command line: given, generated, and refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from inferometer.errors import GIVE_KEY, UserError, named
from inferometer.infer import flags, inputs
from inferometer.infer.flags import InferFlags
from inferometer.probe.kserve import ModelFacts
from inferometer.tensors import TensorSpec, to_numpy
from inferometer.wire.kserve.control import ModelConfig, ModelMetadata, ServerMetadata
from inferometer.workload import input_files


def facts(*specs: TensorSpec, **config: Any) -> ModelFacts:
    known = ModelConfig("m", raw=config) if config else None
    return ModelFacts(ServerMetadata("s"), ModelMetadata("m", inputs=specs), known)


def arrays(model: ModelFacts, *given: str, **more: Any) -> dict[str, Any]:
    built = inputs.build(InferFlags("grpc://x", inputs=given, **more), model)
    return {one.tensor.name: to_numpy(one.tensor) for one in built}


INTS = TensorSpec("A", "INT32", (-1, 4))
FLOATS = TensorSpec("B", "FP32", (-1,))
WORDS = TensorSpec("C", "BYTES", (1,))
FLAGS = TensorSpec("D", "BOOL", (2,))


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "text", "expected"),
    [
        (INTS, "1,2,3,4", [[1, 2, 3, 4]]),
        (INTS, "[[1, 2, 3, 4], [5, 6, 7, -8]]", [[1, 2, 3, 4], [5, 6, 7, -8]]),
        (FLOATS, "1.5,-2,1e3", [1.5, -2, 1000]),
        (FLOATS, "inf", [np.inf]),
        (FLAGS, "true,0", [True, False]),
        (TensorSpec("E", "UINT64", (1,)), str(2**64 - 1), [2**64 - 1]),
        (TensorSpec("E", "FP32", ()), "7", 7),
        (WORDS, "hello, world", [b"hello, world"]),
        (TensorSpec("C", "BYTES", (-1, 1)), "a=b", [[b"a=b"]]),
        (TensorSpec("C", "BYTES", (1,)), "猫", ["猫".encode()]),
    ],
)
def test_values_on_the_command_line(spec: TensorSpec, text: str, expected: Any) -> None:
    assert arrays(facts(spec), f"{spec.name}={text}")[spec.name].tolist() == expected


def test_the_name_may_be_left_out_if_there_is_one_input(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([[1, 2, 3, 4]], np.int32))
    assert arrays(facts(INTS), "1,2,3,4")["A"].tolist() == [[1, 2, 3, 4]]
    assert arrays(facts(INTS), f"@{tmp_path}/a.npy")["A"].tolist() == [[1, 2, 3, 4]]


def test_an_array_gets_the_missing_batch_dimension_and_the_models_datatype(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(4, dtype=np.int64))
    np.save(tmp_path / "b.npy", np.array([0.5, 1.5]))
    found = arrays(facts(INTS, FLOATS), f"A=@{tmp_path}/a.npy", f"B=@{tmp_path}/b.npy")
    assert (found["A"].shape, found["A"].dtype) == ((1, 4), np.int32)
    assert (found["B"].tolist(), found["B"].dtype) == ([0.5, 1.5], np.float32)


def test_an_array_of_strings_from_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array(["la"]))
    assert arrays(facts(WORDS), f"C=@{tmp_path}/a.npy")["C"].tolist() == [b"la"]


def test_another_file_is_an_element_of_bytes_or_raw_data(tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(np.array([1, 2, 3, 4], "<i4").tobytes())
    assert arrays(facts(WORDS), f"C=@{tmp_path}/raw")["C"].tolist() == [(tmp_path / "raw").read_bytes()]
    assert arrays(facts(INTS), f"A=@{tmp_path}/raw")["A"].tolist() == [[1, 2, 3, 4]]


def test_a_shape_orders_the_elements() -> None:
    spec = TensorSpec("A", "INT32", (-1, -1))
    assert arrays(facts(spec), "A=1,2,3,4,5,6", shapes=("A=2,3",))["A"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert arrays(facts(spec), "A=1,2,3,4,5,6")["A"].shape == (1, 6)


@pytest.mark.parametrize(
    ("shape", "count", "expected"),
    [((-1, 16), 16, (1, 16)), ((-1, 16), 48, (3, 16)), ((-1,), 5, (5,)), ((-1, -1), 5, (1, 5)), ((2, 3), 6, (2, 3)),
     ((-1, 3, -1), 12, (1, 3, 4)), ((), 1, ()), ((-1,), 0, (0,))],
)  # fmt: skip
def test_elements_find_their_shape(shape: tuple[int, ...], count: int, expected: tuple[int, ...]) -> None:
    assert input_files.fitting(TensorSpec("X", "FP32", shape), count) == expected


# --- made up ---------------------------------------------------------------------------------------------------------


def test_without_inputs_all_are_random_and_open_dimensions_are_1() -> None:
    built = inputs.build(InferFlags("grpc://x"), facts(INTS, FLOATS, WORDS))
    assert [(one.tensor.name, one.tensor.shape, one.source) for one in built] == [
        ("A", (1, 4), "random"), ("B", (1,), "random"), ("C", (1,), "random"),
    ]  # fmt: skip


def test_fill_and_shape_control_generated_inputs() -> None:
    found = arrays(facts(INTS, FLOATS), "B=5", fill="zeros", shapes=("A=2,4",))
    assert (found["A"].tolist(), found["B"].tolist()) == ([[0] * 4] * 2, [5])


def test_optional_inputs_are_omitted() -> None:
    model = facts(INTS, FLOATS, input=[{"name": "A"}, {"name": "B", "optional": True}])
    assert list(arrays(model)) == ["A"]
    assert list(arrays(model, "A=1,2,3,4")) == ["A"]
    assert list(arrays(model, "A=1,2,3,4", shapes=("B=3",), fill="zeros")) == ["A", "B"]


def test_if_all_inputs_are_optional_one_is_generated() -> None:
    def all_optional(*specs: TensorSpec) -> ModelFacts:
        return facts(*specs, input=[{"name": spec.name, "optional": True} for spec in specs])

    assert list(arrays(all_optional(INTS))) == ["A"]
    assert list(arrays(all_optional(WORDS, FLOATS, INTS))) == ["B"]
    assert list(arrays(all_optional(WORDS))) == ["C"]
    assert list(arrays(all_optional(WORDS, FLOATS, INTS), shapes=("A=1,4",))) == ["A"]
    assert list(arrays(all_optional(WORDS, FLOATS), "C=x")) == ["C"]


# --- images ----------------------------------------------------------------------------------------------------------


def test_an_image_goes_to_the_input_that_takes_one(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4), (255, 255, 255)).save(tmp_path / "x.png")
    pixels = TensorSpec("P", "FP32", (-1, 3, 2, 2))
    found = arrays(facts(FLOATS, pixels), "B=1", images=(str(tmp_path / "x.png"),))
    assert (found["P"].tolist(), found["B"].tolist()) == ([[[[1, 1], [1, 1]]] * 3], [1])
    chosen = arrays(facts(FLOATS, pixels), images=(str(tmp_path / "x.png"),), fill="zeros")
    assert list(chosen) == ["B", "P"]
    sized = arrays(
        facts(TensorSpec("P", "FP32", (-1, -1, -1, -1))), images=(str(tmp_path / "x.png"),), shapes=("1,3,5,6",)
    )
    assert sized["P"].shape == (1, 3, 5, 6)


FILE = TensorSpec("image", "BYTES", (-1, 1), optional=True)
PIXELS = TensorSpec("pixels", "FP32", (-1, 3, 4, 4), optional=True)
TEXT = TensorSpec("text", "BYTES", (-1, 1), optional=True)


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ((FILE, PIXELS), "image"),
        ((PIXELS, FILE), "image"),
        ((TEXT, PIXELS), "pixels"),
        ((TEXT, FILE), "image"),
        ((FILE, TensorSpec("pixels", "FP32", (-1, 3, 4, 4))), "pixels"),
    ],
)
def test_if_file_and_pixels_are_optional_the_file_is_sent(
    tmp_path: Path, specs: tuple[TensorSpec, ...], expected: str
) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    made = arrays(facts(*specs), images=(str(tmp_path / "a.png"),))
    assert list(made) == [expected]
    if expected == "image":
        assert made["image"].tolist() == [[(tmp_path / "a.png").read_bytes()]]


def test_an_image_that_fits_two_inputs_is_refused(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "x.png")
    two = [TensorSpec(name, "FP32", (3, 2, 2)) for name in "PQ"]
    with pytest.raises(UserError, match="not clear which one the image is for"):
        arrays(facts(*two), images=(str(tmp_path / "x.png"),))


# --- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("X=1",), "the model has no input 'X'"),
        (("1,2",), "does not name an input, and the model has 2"),
        (("@a.npy",), "does not name an input, and the model has 2"),
        (("A=1,2,3",), r"expects the shape \[-1, 4\]; 3 elements were given"),
        (("A=1,2,3,x",), "expects INT32; '1,2,3,x' was given"),
        (("A=1.5,2,3,4",), "expects INT32; '1.5,2,3,4' was given"),
        (("A=1,2,3,99999999999",), "99999999999 does not fit into INT32"),
        (("A=1,2,3,4",), r"also takes B \(FP32 \[-1\]\)"),
        (("A=1,2,3,4", "A=1,2,3,4"), "A is given twice"),
        (("A=@/nowhere.npy",), "No such file"),
    ],
)
def test_wrong_inputs_are_reported_with_what_was_expected_and_given(given: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        arrays(facts(INTS, FLOATS), *given)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (np.zeros((2, 3), np.int32), r"expects the shape \[-1, 4\]; \[2, 3\] was given"),
        (np.zeros((1, 4), np.float32), "float32 values cannot become INT32"),
    ],
)
def test_arrays_of_another_shape_or_type_are_refused(tmp_path: Path, saved: Any, words: str) -> None:
    np.save(tmp_path / "a.npy", saved)
    with pytest.raises(UserError, match=words):
        arrays(facts(INTS), f"A=@{tmp_path}/a.npy")


def test_broken_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY nonsense")
    (tmp_path / "raw").write_bytes(b"12345")
    with pytest.raises(UserError, match="cannot be read"):
        arrays(facts(INTS), f"A=@{tmp_path}/a.npy")
    with pytest.raises(UserError, match="not a whole number of INT32"):
        arrays(facts(INTS), f"A=@{tmp_path}/raw")


@pytest.mark.parametrize(
    ("shape", "words"),
    [("A=1,3", r"expects the shape \[-1, 4\]; \[1, 3\]"), ("A=x", "is not a shape"), ("A=-1,4", "is not a shape"),
     ("Z=1", "no input 'Z'"), ("1,4", "does not name an input")],
)  # fmt: skip
def test_wrong_shapes_are_refused(shape: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        arrays(facts(INTS, FLOATS), shapes=(shape,))


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "api"),
    [
        ({"url": "http://x", "prompt": "hi"}, "chat"),
        ({"url": "grpc://x"}, "kserve"),
        ({"url": "http://x", "images": ("shapes.jpg",)}, "kserve"),
        ({"url": "http://x", "inputs": ("A=1",)}, "kserve"),
        ({"url": "grpc://x", "method": "a.B/C"}, "grpc"),
        ({"url": "http://x", "api": "kserve-json", "prompt": "hi"}, "kserve-json"),
    ],
)
def test_the_api_follows_from_the_other_flags(given: dict[str, Any], api: str) -> None:
    assert flags.api_of(InferFlags(**given)) == api


def test_parameters_are_parsed_as_json_and_go_to_the_apis_section() -> None:
    given = InferFlags("http://x", parameters=("a=5", "b=0.5", "c=true", "d=text", 'e="7"'), header={"X-Own": "a:b"})
    tree = {"a": 5, "b": 0.5, "c": True, "d": "text", "e": "7"}
    assert flags.server_section(given, "chat").body == tree
    server = flags.server_section(given, "kserve")
    assert (server.parameters, server.headers) == (tree, {"X-Own": "a:b"})


def test_errors_name_the_flag_of_a_key() -> None:
    with pytest.raises(UserError) as caught, named(flags.NAMES, fallback=flags.HELP):
        raise UserError("bad", GIVE_KEY, key="server.tls.ca")
    assert caught.value.line == "--ca: bad"
    assert caught.value.next_step == "give the API key with --api-key-env or --api-key-file"
