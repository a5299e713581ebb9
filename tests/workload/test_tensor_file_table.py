"""Every file of shared/data/perf_analyzer runs against the reference server, or gives the error that the table names."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensor_file_table as table
from helpers import measure

from inferometer import workload
from inferometer.config.data import Tensors
from inferometer.errors import UserError
from inferometer.records import Run
from inferometer.serve.background import serving
from inferometer.serve.models import configs
from inferometer.serve.settings import Settings
from inferometer.tensors import TensorSpec
from inferometer.workload import tensors

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "perf_analyzer"
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason=f"{FOLDER} does not exist")

INPUT_DATA = {**table.RUNS, **table.ERRORS, **table.WRONG}

MODEL = """
import numpy as np

CONFIG = {config!r}


def infer(inputs, parameters):
    if "OUTPUT" in {outputs!r}:
        return {{"OUTPUT": inputs["INPUT"]}}
    if "OUTPUT0" in {outputs!r}:
        return {{"OUTPUT0": inputs["INPUT0"] - inputs["INPUT1"], "OUTPUT1": inputs["INPUT0"] + inputs["INPUT1"]}}
    (first, *_) = inputs.values()
    return {{"COUNT": np.full((len(first), 1), len(inputs), np.int32)}}
"""


def outputs_of(inputs: table.Inputs) -> table.Inputs:
    if inputs == table.NUMBERS:
        return {"OUTPUT0": ("INT32", [16]), "OUTPUT1": ("INT32", [16])}
    return {"OUTPUT": ("BYTES", [1])} if inputs == table.WORD else {"COUNT": ("INT32", [1])}


def fields(tensors: table.Inputs) -> list[dict[str, Any]]:
    types = {"BYTES": "STRING"}
    return [
        {"name": name, "data_type": f"TYPE_{types.get(datatype.rstrip('?'), datatype.rstrip('?'))}", "dims": sizes}
        | ({"optional": True} if datatype.endswith("?") else {})
        for name, (datatype, sizes) in tensors.items()
    ]


def name_of(file: str) -> str:
    return file.partition(".")[0]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a model for each file."""
    repository = tmp_path_factory.mktemp("models")
    for file, (inputs, _, _) in INPUT_DATA.items():
        outputs = outputs_of(inputs)
        config = {"max_batch_size": 4, "input": fields(inputs), "output": fields(outputs)}
        folder = repository / name_of(file) / "1"
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(MODEL.format(config=config, outputs=list(outputs)))
    with serving(Settings(models=(str(repository),), http=0, grpc=0)) as server:
        yield server.grpc


def run(folder: Path, url: str, file: str) -> Run:
    path = FOLDER / "input_data" / file
    settings = INPUT_DATA[file][1]
    found, _ = measure(
        folder,
        url,
        server={"model": name_of(file)},
        data={"type": "tensors", "fill": f"@{path}"} | settings,
        load={"concurrency": 1, "requests": 36},
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("file", table.RUNS)
def test_a_file_runs(tmp_path: Path, url: str, file: str) -> None:
    found = run(tmp_path, url, file)
    assert [one.message for one in found.records.failures] == []
    assert len(found.records.rows) in (35, 36)  # sequences are sent to their end, and no more are begun than fit
    assert found.manifest.workload["distinct"] == table.RUNS[file][2]


@pytest.mark.parametrize("file", table.WRONG)
def test_a_file_with_wrong_outputs_has_failures(tmp_path: Path, url: str, file: str) -> None:
    found = run(tmp_path, url, file)
    assert [(one.code, one.message) for one in found.records.failures] == [("wrong_output", table.WRONG[file][2])]
    assert (found.records.rows["failure"] > 0).sum() == 9


@pytest.mark.parametrize("file", table.ERRORS)
def test_a_file_that_cannot_run_is_an_error(tmp_path: Path, url: str, file: str) -> None:
    with pytest.raises(UserError) as caught:
        run(tmp_path, url, file)
    assert table.ERRORS[file][2] in str(caught.value)
    assert caught.value.remedy


def metadata_of(config: Any) -> list[TensorSpec]:
    """The inputs of a model, as Triton's metadata has them: a `reshape` is the server's own business."""
    batch = [-1] if config.max_batch_size else []
    found = []
    for one in config.input:
        known = one.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[one.data_type].name
        datatype = known.removeprefix("TYPE_").replace("STRING", "BYTES")
        found.append(TensorSpec(one.name, datatype, (*batch, *one.dims), one.optional))
    return found


@pytest.mark.parametrize("file", table.CONFIGS)
def test_a_request_is_made_for_every_model_configuration(file: str) -> None:
    config = configs.read(FOLDER / "config_pbtxt" / file)
    full = tensors.complete(Tensors(), metadata_of(config), config.max_batch_size)
    (request,) = workload.build(full, 0, [0])
    assert isinstance(request.payload, tuple)
    assert {one.name: (one.datatype, list(one.shape)) for one in request.payload} == table.CONFIGS[file]  # type: ignore[union-attr]


def test_the_table_is_complete() -> None:
    assert {path.name for path in (FOLDER / "input_data").iterdir()} == set(INPUT_DATA)
    assert {path.name for path in (FOLDER / "config_pbtxt").iterdir()} == {*table.CONFIGS, *table.NOT_CONFIGS}
    for file in table.NOT_CONFIGS:
        assert not metadata_of(configs.read(FOLDER / "config_pbtxt" / file))
