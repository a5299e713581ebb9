"""`inferometer compare-protocols` with any model, its own data, and images; against the reference server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import Result, assert_one_line, cli
from PIL import Image

from inferometer.analysis.protocol_comparison import PROTOCOLS
from inferometer.serve.background import Running, serving
from inferometer.serve.settings import Settings

MODEL = """
import numpy as np
CONFIG = {{"max_batch_size": 8, "input": {inputs!r}, "output": [{{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}}]}}


def infer(inputs, parameters):
    return {{"OUT": np.zeros((len(next(iter(inputs.values()))), 1), np.int32)}}
"""
MODELS = {
    "pair": [("A", "INT32", [4]), ("input_ids", "INT64", [-1])],
    "pixels": [("IMAGE", "FP32", [3, 6, 5])],
    "half": [("X", "FP16", [10])],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    repository = tmp_path_factory.mktemp("models")
    for name, inputs in MODELS.items():
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        fields = [{"name": one, "data_type": f"TYPE_{kind}", "dims": dims} for one, kind, dims in inputs]
        (folder / "model.py").write_text(MODEL.format(inputs=fields))
    with serving(Settings(models=(str(repository),), http=0, grpc=0)) as server:
        yield server


def compare(server: Running, model: str, *more: str | Path) -> Result:
    return cli(
        "compare-protocols", server.url, "--grpc", server.grpc, "--model", model, "--requests", "9", "-q", *more
    )  # fmt: skip


def cells(server: Running, model: str, *more: str | Path) -> list[dict[str, Any]]:
    result = compare(server, model, "--json", "-", *more)
    assert result.status in (0, 1) and not result.err, result
    tree: dict[str, Any] = json.loads(result.out)
    assert all(cell["ok"] == 9 and not cell["failed"] for cell in tree["cells"])
    found: list[dict[str, Any]] = tree["cells"]
    return found


@pytest.mark.slow
def test_a_model_with_several_inputs_gets_random_ones(server: Running) -> None:
    found = cells(server, "pair")
    assert [(cell["protocol"], cell["size"]) for cell in found] == [(name, 4 * 4 + 8) for name in PROTOCOLS]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["text", pytest.param("file", marks=pytest.mark.slow)])
def test_the_data_section_is_that_of_a_run(server: Running, tmp_path: Path, how: str) -> None:
    section = "{batch: 2, length: 100, fill: {A: ones}}"
    path = tmp_path / "bench.yaml"
    path.write_text(f"server: {{url: x}}\ndata: {section}\n")
    found = cells(server, "pair", "--data", section if how == "text" else path)
    assert {cell["size"] for cell in found} == {2 * (4 * 4 + 8 * 100)}
    assert len(found) == len(PROTOCOLS)


@pytest.mark.slow
def test_fill_and_shape_have_options(server: Running) -> None:
    found = cells(server, "pair", "--fill", "zeros", "--shape", "input_ids=1,7", "--shape", "A=1,4")
    assert {cell["size"] for cell in found} == {4 * 4 + 8 * 7}


@pytest.mark.slow
def test_images_are_compared(server: Running, tmp_path: Path) -> None:
    Image.new("RGB", (9, 7), (1, 2, 3)).save(tmp_path / "a.png")
    found = cells(server, "pixels", "--image", tmp_path, "--scaling", "imagenet")
    assert [(cell["protocol"], cell["size"]) for cell in found] == [(name, 4 * 3 * 6 * 5) for name in PROTOCOLS]


@pytest.mark.slow
def test_json_is_left_out_if_it_cannot_carry_the_inputs(server: Running) -> None:
    result = compare(server, "half")
    assert "HTTP JSON was not measured: tensor X: FP16 cannot be sent as JSON" in result.out, result
    assert [cell["protocol"] for cell in cells(server, "half")] == ["grpc", "grpc-stream", "http"]


@pytest.mark.parametrize(
    ("model", "more", "words"),
    [
        ("pair", ("--sizes", "1kB"), ("expecting 1 input, the model pair has 2",)),
        ("pair", ("--sizes", "1kB", "--fill", "zeros"), ("--sizes does not go with data of your own",)),
        ("pair", ("--fill", "{B: ones}"), ("no input B", "its inputs are A, input_ids")),
        ("pair", ("--data", "{fil: ones}"), ("data.fil: unknown key", "data.fill")),
        ("pair", ("--data", "{"), ("--data '{' is not YAML",)),
        ("pair", ("--data", "/nowhere.yaml"), ("/nowhere.yaml",)),
        ("pixels", ("--image", "/nowhere.png"), ("--image", "No such file")),
        ("pixels", ("--crop", "5:5"), ("--crop needs --image",)),
    ],
)
def test_bad_data_is_one_line(server: Running, model: str, more: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert_one_line(compare(server, model, *more), *words)
