"""What a model raises is the response to its batch, and the model continues; outputs are checked against the
configuration."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models_fakes import Call, asynchronous, fp32, served, serving, wants

from inferometer.serve import backends
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Loaded, Loading, Parameters, Refused, Tensors, reason
from inferometer.tensors import Tensor, from_numpy, to_numpy


class Raises(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise KeyError("x")


RAISED: dict[str, BaseException] = {
    "an error": ValueError("negative"),
    "no memory": MemoryError("no room for all"),
    "a refusal": Refused("INVALID_ARGUMENT", "negative"),
    "its exit": SystemExit(3),
    "an interruption": KeyboardInterrupt("negative"),
    "an error without a text": Raises(),
    "an unknown code": Refused("TEAPOT", "short and stout"),  # type: ignore[arg-type]
}
ERRORS = {
    "an error": ("INTERNAL", "ValueError: negative"),
    "no memory": ("INTERNAL", "MemoryError: no room for all"),
    "a refusal": ("INVALID_ARGUMENT", "negative"),
    "its exit": ("INTERNAL", "SystemExit: 3"),
    "an interruption": ("INTERNAL", "KeyboardInterrupt: negative"),
    "an error without a text": ("INTERNAL", "Raises"),
    "an unknown code": ("INTERNAL", "short and stout"),
}
CONFIG = """
max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 30000000 }
input [{ name: "INPUT0", data_type: TYPE_FP32, dims: [ 1 ] }]
output [{ name: "OUTPUT0", data_type: TYPE_FP32, dims: [ 1 ] }]
parameters { key: "warmup" value { string_value: "0" } }
"""


def picky(loading: Loading) -> Loaded:
    """Load a model that raises what the request says if there is a value below 0."""

    def compute(inputs: Tensors, parameters: Parameters) -> Tensors:
        values = to_numpy(inputs["INPUT0"])
        if (values < 0).any():
            raise RAISED[str(parameters["kind"])]
        return {"OUTPUT0": from_numpy("OUTPUT0", values * 2)}

    return Loaded(run=compute)


@pytest.fixture(autouse=True)
def models_of_this_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("picky", "loose"):
        monkeypatch.setitem(backends.LOADERS, name, f"{__name__}:{name}")


@served({"m": 'backend: "picky"' + CONFIG})
async def test_what_a_model_raises_is_the_response_to_its_batch(models: Models) -> None:
    for kind, expected in ERRORS.items():
        calls = [Call("m", fp32([value]), parameters={"kind": kind}).on(models) for value in (1, -1, 2, 3)]
        whys = [await call.refused() for call in calls]
        assert [(why.code, why.message) for why in whys] == [expected] * 4
        good = Call("m", fp32([1], [2], [3], [4]), parameters={"kind": kind}).on(models)
        assert (await good.outputs())["OUTPUT0"].tolist() == [[2], [4], [6], [8]]
    stats = models.find("m").counted.message()
    assert (stats.inference_stats.fail.count, stats.execution_count) == (4 * len(ERRORS), len(ERRORS))
    assert models.in_flight == 0


def test_a_long_error_keeps_its_beginning_and_end() -> None:
    message = reason(ValueError("it began so " + "and went on " * 1000 + "and ended so")).message
    assert message.startswith("ValueError: it began so and")
    assert message.endswith("went on and ended so")
    assert len(message) < 1010


# --- outputs ---------------------------------------------------------------------------------------------------------

TWO = """
backend: "loose"
input [{ name: "INPUT0", data_type: TYPE_FP32, dims: [ -1 ] }, { name: "MORE", data_type: TYPE_FP32, dims: [ 1 ], optional: true }]
output [{ name: "A", data_type: TYPE_FP32, dims: [ -1, 2 ] }, { name: "B", data_type: TYPE_FP32, dims: [ 3 ] }]
parameters { key: "warmup" value { string_value: "0" } }
"""


def loose(loading: Loading) -> Loaded:
    """Load a model with outputs of the requested shapes: A=5,2 B=3."""
    decoupled = loading.config.model_transaction_policy.decoupled

    def compute(inputs: Tensors, parameters: Parameters) -> Tensors | Iterator[Tensors]:
        made = {
            name: from_numpy(name, np.zeros([int(size) for size in shape.split(",") if size], np.float32))
            for name, _, shape in (one.partition("=") for one in str(parameters["gives"]).split())
        }
        return iter([made]) if decoupled else made

    return Loaded(run=compute)


def a_call(gives: str, *inputs: Tensor, **words: Any) -> Call:
    given = inputs or (from_numpy("INPUT0", np.zeros(1, np.float32)), from_numpy("MORE", np.zeros(1, np.float32)))
    return Call("m", *given, parameters={"gives": gives}, **words)


@pytest.mark.parametrize(
    ("gives", "why"),
    [
        ("A=5,2", "the model did not return output 'B', which its configuration lists"),
        ("", "the model did not return output 'A', 'B', which its configuration lists"),
        ("A=5,3 B=3", "the model returned output 'A' with shape [5, 3]; its configuration says [-1, 2]"),
        ("A=5,2 B=3,1", "the model returned output 'B' with shape [3, 1]; its configuration says [3]"),
        ("A=5,2 B=", "the model returned output 'B' with shape []; its configuration says [3]"),
        ("A=5,2 B=3 C=1", "the model returned output 'C' with shape [1], which its configuration does not list"),
    ],
)
@served({"m": TWO})
async def test_outputs_must_match_the_configuration(models: Models, gives: str, why: str) -> None:
    refused = await a_call(gives).on(models).refused()
    assert (refused.code, refused.message) == ("INTERNAL", why)
    found = await a_call("A=0,2 B=3").on(models).outputs()
    assert {name: array.shape for name, array in found.items()} == {"A": (0, 2), "B": (3,)}


@served({"m": TWO})
async def test_outputs_may_be_missing_if_not_requested_or_without_inputs(models: Models) -> None:
    assert list(await a_call("A=1,2", wanted=wants("A")).on(models).outputs()) == ["A"]
    refused = await a_call("A=1,2", wanted=wants("B")).on(models).refused()
    assert refused.message == "the model did not return output 'B', which was requested"
    without = from_numpy("INPUT0", np.zeros(1, np.float32))
    assert list(await a_call("B=3", without).on(models).outputs()) == ["B"]


@served({"m": TWO + "model_transaction_policy { decoupled: true }"})
async def test_responses_of_a_decoupled_model_may_omit_outputs(models: Models) -> None:
    assert list(await a_call("B=3").on(models).outputs()) == ["B"]
    assert "with shape [4]" in (await a_call("B=4").on(models).refused()).message


@pytest.mark.parametrize("count", [1, 2])
@asynchronous
async def test_outputs_must_have_the_rows_of_the_batch(tmp_path: Path, count: int) -> None:
    config = TWO.replace('"loose"', '"loose" max_batch_size: 2 dynamic_batching { max_queue_delay_microseconds: 1000 }')
    async with serving(tmp_path, {"m": config}) as models:
        inputs = fp32([0]), fp32([0], name="MORE")
        calls = [a_call("A=7,5,2 B=7,3", *inputs).on(models) for _ in range(count)]
        for call in calls:
            why = (await call.refused()).message
            assert why.startswith("the model returned output 'A' with shape [7, 5, 2]: ")
            assert why.endswith(f"the first dimension must be the batch size, {count}")


@pytest.fixture
def key() -> Iterator[str]:
    """A shared memory object of 4 bytes."""
    path = Path("/dev/shm") / f"inferometer-test-{uuid.uuid4().hex}"
    path.write_bytes(bytes(4))
    yield f"/{path.name}"
    path.unlink()


@served({"m": 'backend: "picky"' + CONFIG})
async def test_an_output_that_does_not_fit_its_region_fails_alone(models: Models, key: str) -> None:
    models.regions.register("r", key, 0, 4)
    wants_per_call = [(), wants("OUTPUT0", placed=models.regions.find("r", 2)), (), ()]
    calls = [Call("m", fp32([1]), wanted=wanted).on(models) for wanted in wants_per_call]
    why = await calls[1].refused()
    assert (why.code, why.message) == (
        "INTERNAL",
        "shared memory size specified with the request for output 'OUTPUT0' (2 bytes) should be at least 4 bytes to hold "
        "the results",
    )
    assert [(await calls[i].outputs())["OUTPUT0"].tolist() for i in (0, 2, 3)] == [[[2]]] * 3
