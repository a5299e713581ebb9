"""Tensors that are too large and numbers that do not fit their datatype are errors before anything is allocated or sent."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from inferometer import memory, tensors
from inferometer.config.data import TensorInput, Tensors
from inferometer.errors import UserError
from inferometer.infer import inputs
from inferometer.infer.flags import InferFlags
from inferometer.probe.kserve import ModelFacts
from inferometer.tensors import TensorSpec, from_numpy, to_numpy
from inferometer.wire.kserve.control import ModelMetadata, ServerMetadata
from inferometer.workload import tensors as workload

FLOATS = TensorSpec("A", "FP32", (-1, -1))
GIB = 2**30


@pytest.fixture(autouse=True)
def a_machine_with_64_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "limit", lambda: 64 * GIB)


def infer_inputs(url: str, *specs: TensorSpec, **more: Any) -> Any:
    return inputs.build(InferFlags(url, **more), ModelFacts(ServerMetadata("s"), ModelMetadata("m", inputs=specs)))


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_grpc_message", [True, False])
def test_a_run_with_a_shape_that_is_too_large_is_an_error(in_grpc_message: bool) -> None:
    spec = Tensors(shape={"A": [3, 99_999_999_999]})
    needs = "building the request needs about 4.37 TiB of memory, but only 64 GiB is available"
    limit = "a gRPC message holds at most 2 GiB" if in_grpc_message else needs
    with pytest.raises(
        UserError, match=re.escape(f"data.shape: A: FP32 [3, 99999999999] is 1.09 TiB; {limit}")
    ) as caught:
        workload.complete(spec, [FLOATS], 8, in_grpc_message)
    assert caught.value.remedy == "use a smaller shape or a smaller batch"


@pytest.mark.parametrize(
    ("url", "limit"),
    [
        ("grpc://x", "a gRPC message holds at most 2 GiB"),
        ("http://x", "building the request needs about 1.46 TiB of memory"),
    ],
)
@pytest.mark.parametrize("fill", ["zeros", "random"])
def test_infer_with_a_shape_that_is_too_large_is_an_error(url: str, limit: str, fill: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"--shape: A: FP32 [1, 99999999999] is 373 GiB; {limit}")):
        infer_inputs(url, FLOATS, shapes=("A=1,99999999999",), fill=fill)


def test_a_model_whose_own_shape_is_too_large_is_an_error() -> None:
    huge = TensorSpec("A", "FP64", (100_000, 100_000, 1_000))
    with pytest.raises(UserError, match="the model m: A: FP64"):
        infer_inputs("grpc://x", huge)
    with pytest.raises(UserError, match="data: A: FP64"):
        workload.complete(Tensors(), [huge], 0)


def test_resizing_an_image_beyond_memory_is_an_error(tmp_path: Path) -> None:
    picture = TensorSpec("A", "UINT8", (3, -1, -1))
    with pytest.raises(UserError, match=re.escape("--image: A: UINT8 [3, 999999, 999999] is 2.73 TiB")):
        infer_inputs("http://x", picture, images=(str(tmp_path / "not looked at.png"),), shapes=("A=3,999999,999999",))


def test_the_remedy_for_a_request_beyond_a_grpc_message_is_another_transport() -> None:
    half = TensorSpec("A", "FP32", (1, 300_000_000))
    with pytest.raises(UserError, match=r"is 1\.12 GiB, 2\.24 GiB with the other inputs; a gRPC message") as caught:
        tensors.check_room([half, TensorSpec("B", "FP32", half.shape)], "data", in_grpc_message=True)
    assert "HTTP" in caught.value.next_step and "server.shared_memory" in caught.value.next_step
    tensors.check_room([half], "data", in_grpc_message=True)
    tensors.check_room([half, half], "data", in_grpc_message=False)


def test_memory_is_the_limit_if_it_is_smaller_than_a_grpc_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "limit", lambda: GIB)
    with pytest.raises(UserError, match=r"about 1\.49 GiB of memory, but only 1 GiB is available"):
        tensors.check_room([TensorSpec("A", "FP32", (1, 100_000_000))], "data", in_grpc_message=True)


@pytest.mark.parametrize("shape", [(0, 2**63), (1, 10**400)])
def test_a_size_beyond_64_bits_is_an_error_even_without_elements(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="a size that does not fit into 64 bits"):
        workload.complete(Tensors(shape={"A": list(shape)}), [FLOATS], 0)


@given(st.lists(st.integers(0, 2**63 - 1), max_size=12), st.sampled_from(sorted(tensors.DATATYPES)))
def test_any_shape_fits_or_is_a_user_error(shape: list[int], datatype: str) -> None:
    spec = TensorSpec("A", datatype, tuple(shape))
    try:
        tensors.check_room([spec], "data", in_grpc_message=True)
    except UserError as error:
        assert tensors.size_of(spec) > tensors.GRPC_MESSAGE or datatype == "BYTES"
        assert error.what.startswith("data: A: ") and error.remedy
    else:
        assert tensors.size_of(spec) <= tensors.GRPC_MESSAGE


# --- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_that_contradicts_the_shape_is_an_error() -> None:
    with pytest.raises(
        UserError, match=re.escape("data.batch is 2, but data.shape has a batch of 3 for A: [3, 7]")
    ) as caught:
        workload.complete(Tensors(shape={"A": [3, 7]}, batch=2), [FLOATS], 8)
    assert caught.value.remedy == "write [2, 7], or leave data.batch out"


@pytest.mark.parametrize("batch", [1, 3])
def test_a_batch_may_repeat_that_of_the_shape_or_be_left_out(batch: int) -> None:
    full = workload.complete(Tensors(shape={"A": [3, 7]}, batch=batch), [FLOATS], 8)
    assert full.inputs == [TensorInput("A", "FP32", [3, 7])]


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1e400", "-1e400", "1,2,9e999"])
@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
def test_a_finite_number_that_would_become_infinite_is_an_error(text: str, datatype: str) -> None:
    with pytest.raises(UserError, match=rf"e\d+ does not fit into {datatype}"):
        infer_inputs("grpc://x", TensorSpec("A", datatype, (-1,)), inputs=(f"A={text}",))


def test_explicit_infinite_numbers_are_sent() -> None:
    (made,) = infer_inputs("grpc://x", TensorSpec("A", "FP32", (-1,)), inputs=("A=inf,-Infinity",))
    assert to_numpy(made.tensor).tolist() == [np.inf, -np.inf]


def test_a_number_in_a_json_file_that_no_datatype_holds_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text('{"data": [{"A": [1e400]}]}')
    with pytest.raises(UserError, match="1e400 does not fit into any datatype"):
        workload.complete(Tensors(fill=f"@{path}"), [FLOATS], 8)
    path = tmp_path / "meant.json"
    path.write_text('{"data": [{"A": [Infinity]}]}')
    full = workload.complete(Tensors(fill=f"@{path}"), [FLOATS], 8)
    assert to_numpy(workload.build(full, 0, [0])[0].payload[0]).tolist() == [[np.inf]]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "kind", "datatype", "nearest"),
    [
        (2**24 + 1, np.int64, "FP32", 2**24),
        (2**53 + 1, np.int64, "FP64", 2**53),
        (2**63 - 1, np.int64, "FP64", 2**63),
        (2**64 - 1, np.uint64, "FP64", 2**64),
        (2**64 - 1, np.uint64, "FP32", 2**64),
        (2049, np.int16, "FP16", 2048),
        (257, np.int16, "BF16", 256),
        (-257, np.int16, "BF16", -256),
    ],
)
def test_rounding_an_integer_is_an_error(value: int, kind: Any, datatype: str, nearest: int) -> None:
    with pytest.raises(UserError, match=f"{value} does not fit into {datatype}: the nearest is {nearest}"):
        from_numpy("A", np.array([1, value], kind), datatype)


@given(
    arrays.arrays(st.sampled_from([np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64]), 3),
    st.sampled_from(["FP16", "BF16", "FP32", "FP64"]),
)
def test_integers_are_converted_exactly_or_not_at_all(array: Any, datatype: str) -> None:
    try:
        made = from_numpy("A", array, datatype)
    except UserError:
        return
    assert [int(value) for value in to_numpy(made)] == [int(value) for value in array]


def test_floats_are_rounded_to_the_nearest_of_the_datatype() -> None:
    array = np.array([1.1, 1e-50, -0.3], np.float64)
    assert to_numpy(from_numpy("A", array, "FP32")).tolist() == array.astype(np.float32).tolist()
