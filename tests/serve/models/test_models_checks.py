"""Invalid requests are refused before they are queued, in Triton's words."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models_fakes import Call, asynchronous, fp32, served, serving, wants, why_not

from inferometer.serve.models.registry import Models
from inferometer.tensors import Tensor, from_numpy, zeros

TWO = """
backend: "identity" max_batch_size: 8
input [{ name: "INPUT0", data_type: TYPE_INT32, dims: [ 16 ] }, { name: "INPUT1", data_type: TYPE_INT32, dims: [ 16 ] }]
output [{ name: "OUTPUT0", data_type: TYPE_INT32, dims: [ 16 ] }, { name: "OUTPUT1", data_type: TYPE_INT32, dims: [ 16 ] }]
"""
MAYBE = """
backend: "identity"
input [{ name: "A", data_type: TYPE_FP32, dims: [ -1 ], optional: true }, { name: "B", data_type: TYPE_STRING, dims: [ 1 ], optional: true }]
output [{ name: "OUT_A", data_type: TYPE_FP32, dims: [ -1 ] }, { name: "OUT_B", data_type: TYPE_STRING, dims: [ 1 ] }]
"""
ONE = """
backend: "identity" max_batch_size: 64
input [{ name: "INPUT0", data_type: TYPE_FP32, dims: [ -1 ] }]
output [{ name: "OUTPUT0", data_type: TYPE_FP32, dims: [ -1 ] }]
"""
MODELS = {"identity": ONE, "two": TWO, "maybe": MAYBE}
UNKNOWN = "[request id: <id_unknown>] "


def int32(name: str, *shape: int) -> Tensor:
    return zeros(name, "INT32", shape)


def text(data: bytes) -> Tensor:
    return Tensor("B", "BYTES", (1,), data)


CASES: dict[str, tuple[str, tuple[Tensor, ...], dict[str, Any], str]] = {
    "unknown input": (
        "identity",
        (fp32([0], name="NOPE"),),
        {},
        "unexpected inference input 'NOPE' for model 'identity', which has 'INPUT0'",
    ),
    "no input": (
        "identity",
        (),
        {},
        UNKNOWN
        + "expected 1 inputs but got 0 inputs for model 'identity'. Got input(s) [], but missing required input(s) ['INPUT0']. "
        "Please provide all required input(s).",
    ),
    "one input missing": (
        "two",
        (int32("INPUT0", 1, 16),),
        {},
        UNKNOWN
        + "expected 2 inputs but got 1 inputs for model 'two'. Got input(s) ['INPUT0'], but missing required input(s) ['INPUT1']. "
        "Please provide all required input(s).",
    ),
    "one input too many": (
        "identity",
        (fp32([0]), fp32([0], name="X")),
        {},
        "unexpected inference input 'X' for model 'identity', which has 'INPUT0'",
    ),
    "datatype": (
        "identity",
        (int32("INPUT0", 1, 3),),
        {},
        UNKNOWN + "inference input 'INPUT0' data-type is 'INT32', but model 'identity' expects 'FP32'",
    ),
    "shape": (
        "two",
        (int32("INPUT0", 1, 3), int32("INPUT1", 1, 3)),
        {},
        UNKNOWN + "unexpected shape for input 'INPUT0' for model 'two'. Expected [-1,16], got [1,3]",
    ),
    "no batch dimension": (
        "identity",
        (zeros("INPUT0", "FP32", [3]),),
        {},
        UNKNOWN + "unexpected shape for input 'INPUT0' for model 'identity'. Expected [-1,-1], got [3]",
    ),
    "a size below zero": (
        "maybe",
        (Tensor("A", "FP32", (-1,), b""),),
        {},
        UNKNOWN + "unexpected shape for input 'A' for model 'maybe'. Expected [-1], got [-1]",
    ),
    "batch too large, with the request's id": (
        "identity",
        (fp32(*[[0.0]] * 65),),
        {"id": "rid"},
        "[request id: rid] inference request batch-size must be <= 64 for 'identity', got 65",
    ),
    "no rows": (
        "identity",
        (Tensor("INPUT0", "FP32", (0, 3), b""),),
        {},
        UNKNOWN + "inference request batch-size must be >= 1 for 'identity', got 0",
    ),
    "rows that differ": (
        "two",
        (int32("INPUT0", 2, 16), int32("INPUT1", 1, 16)),
        {},
        UNKNOWN + "input 'INPUT1' batch size does not match other inputs for 'two': expected 2, got 1",
    ),
    "too few bytes": (
        "identity",
        (Tensor("INPUT0", "FP32", (1, 3), b"\0" * 8),),
        {},
        UNKNOWN + "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 12, got 8",
    ),
    "half a length": (
        "maybe",
        (text(b"\0\0"),),
        {},
        UNKNOWN
        + "unexpected number of string elements 0 for inference input 'B' for model 'maybe', expecting 1 in 2 bytes",
    ),
    "half a string": (
        "maybe",
        (text(b"\5\0\0\0ab"),),
        {},
        UNKNOWN
        + "unexpected number of string elements 0 for inference input 'B' for model 'maybe', expecting 1 in 6 bytes",
    ),
    "a string too many": (
        "maybe",
        (text(b"\1\0\0\0a\1\0\0\0b"),),
        {},
        UNKNOWN
        + "unexpected number of string elements 2 for inference input 'B' for model 'maybe', expecting 1 in 10 bytes",
    ),
    "unknown output": (
        "identity",
        (fp32([0]),),
        {"wanted": wants("BAD")},
        "unexpected inference output 'BAD' for model 'identity', which has 'OUTPUT0'",
    ),
    "classes of strings": (
        "maybe",
        (text(b"\1\0\0\0a"),),
        {"wanted": wants("OUT_B", classes=1)},
        UNKNOWN + "classification is not possible for output 'OUT_B': its data-type is 'BYTES'",
    ),
}


@served(MODELS)
async def test_invalid_requests_are_refused_with_expected_and_actual_values(models: Models) -> None:
    for case, (model, inputs, words, expected) in CASES.items():
        why = why_not(models, Call(model, *inputs, **words))
        assert (case, why.code, why.message[: len(expected)]) == (case, "INVALID_ARGUMENT", expected)
    assert models.in_flight == 0
    assert (await Call("identity", fp32([1])).on(models).outputs())["OUTPUT0"].tolist() == [[1]]


@served(MODELS)
async def test_unknown_models_and_versions_are_not_found(models: Models) -> None:
    why = why_not(models, Call("nomodel", fp32([0])))
    assert (why.code, why.message) == ("NOT_FOUND", "Request for unknown model: 'nomodel' is not found")
    why = why_not(models, Call("identity", fp32([0]), version="7"))
    assert why.message == "Request for unknown model: 'identity' version 7 is not found"
    call = Call("identity", fp32([0])).on(models)
    assert call.inference.version == "1"


@pytest.mark.parametrize("given", [("A",), ("B",), ("A", "B"), ()])
@asynchronous
async def test_optional_inputs_may_be_omitted(tmp_path: Path, given: tuple[str, ...]) -> None:
    inputs = {"A": from_numpy("A", np.array([1.5], np.float32)), "B": from_numpy("B", np.array([b"x"], object))}
    async with serving(tmp_path, MODELS) as models:
        outputs = await Call("maybe", *[inputs[name] for name in given]).on(models).outputs()
        assert {name: array.tolist() for name, array in outputs.items()} == {
            f"OUT_{name}": {"A": [1.5], "B": [b"x"]}[name] for name in given
        }


def test_asyncios_own_loop_works(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, MODELS) as models:
            await Call("identity", fp32([1])).on(models).outputs()

    asyncio.run(test())
