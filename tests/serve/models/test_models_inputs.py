"""What a request may omit, and whose event loop it runs in."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from models_fakes import TENSORS, Call, asynchronous, flat, serving

from inferometer.tensors import from_numpy

MAYBE = """
backend: "identity"
input [{ name: "A", data_type: TYPE_FP32, dims: [ -1 ], optional: true }, { name: "B", data_type: TYPE_STRING, dims: [ 1 ], optional: true }]
output [{ name: "OUT_A", data_type: TYPE_FP32, dims: [ -1 ] }, { name: "OUT_B", data_type: TYPE_STRING, dims: [ 1 ] }]
"""
MODELS = {"identity": f'backend: "identity" {TENSORS}', "maybe": MAYBE}


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
            await Call("identity", flat(1)).on(models).outputs()

    asyncio.run(test())
