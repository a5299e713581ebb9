"""A model that fails to load affects no other model, and the index has the reason."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from models_fakes import WAIT_S, run

from inferometer.serve.kserve import control
from inferometer.serve.models.registry import Models
from inferometer.serve.models.types import Refused
from inferometer.serve.settings import Settings

TENSORS = (
    'input [{ name: "X", data_type: TYPE_FP32, dims: [ 1 ] }] output [{ name: "Y", data_type: TYPE_FP32, dims: [ 1 ] }]'
)
CODE = 'CONFIG = {{"input": [{x}], "output": [{x}]}}\ndef infer(inputs, parameters): return inputs\n'
HUGE = CODE.format(x='{"name": "X", "data_type": "TYPE_FP32", "dims": [9223372036854775807]}')
UNTYPED = CODE.format(x='{"name": "X", "data_type": 99, "dims": [1]}')
DEEP_YAML = "input: " + "[" * 700 + "]" * 700
DEEP_PBTXT = f'backend: "identity" {TENSORS} zzz ' + "{ a " * 1500 + "}" * 1500

IDENTITY = f'backend: "identity" {TENSORS}'
BROKEN = {
    "an unknown data_type": ("config.pbtxt", IDENTITY.replace("TYPE_FP32", "77"), "no data_type"),
    "an unknown data_type in CONFIG": ("1/model.py", UNTYPED, "no data_type"),
    "more than there can be": ("1/model.py", HUGE, "failed its warm-up"),
    "deep YAML": ("config.yaml", DEEP_YAML, "recursion depth exceeded"),
    "deep text": ("config.pbtxt", DEEP_PBTXT, "recursion depth exceeded"),
    "a reason that is not UTF-8": ("1/model.py", 'raise ValueError("caf\\udce9")', r"ValueError: caf\udce9"),
}


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def index_of(folder: Path) -> dict[str, tuple[str, str]]:
    """Return the repository index after the server has started."""
    found: dict[str, tuple[str, str]] = {}

    async def main() -> None:
        models = Models(asyncio.get_running_loop(), device="cpu")
        models.add(str(folder))
        await asyncio.wait_for(models.start(), WAIT_S)
        try:
            kind, start = control.methods(models, Settings())["RepositoryIndex"]
            made: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            start(kind(), made.set_result, made.set_exception)
            index = await made
            found.update(
                {one.name: (one.state, one.reason) for one in type(index).FromString(index.SerializeToString()).models}
            )
        finally:
            await models.close()

    run(main())
    return found


def test_other_models_are_served_and_the_index_has_the_reasons(tmp_path: Path) -> None:
    put(tmp_path / "good/config.pbtxt", IDENTITY)
    put(tmp_path / os.fsdecode(b"caf\xe9") / "config.pbtxt", IDENTITY)  # no client could name it
    for name, (file, text, _) in BROKEN.items():
        (tmp_path / name / "1").mkdir(parents=True)
        put(tmp_path / name / file, text)
    index = index_of(tmp_path)
    assert index.pop("good") == ("READY", "")
    expected = {name: message for name, (_, _, message) in BROKEN.items()}
    assert set(index) == set(expected)
    for name, (state, reason) in index.items():
        assert (state, expected[name] in reason) == ("UNAVAILABLE", True), (name, reason)


def test_a_load_with_a_configuration_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "m/config.pbtxt", IDENTITY)
    put(tmp_path / "other/config.pbtxt", IDENTITY)

    async def main() -> None:
        models = Models(asyncio.get_running_loop(), device="cpu")
        models.add(str(tmp_path))
        await models.start()
        try:
            with pytest.raises(Refused) as raised:
                await models.load("m", '{"a":' + "[" * 100_000 + "]" * 100_000 + "}")
            assert (raised.value.code, "recursion depth exceeded" in raised.value.message) == ("INTERNAL", True)
            assert models.is_ready("m")
        finally:
            await models.close()

    run(main())
