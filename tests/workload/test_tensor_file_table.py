"""Files in the formats of perf_analyzer run against the reference server, or give the error that the table names."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensor_file_table as table
from helpers import measure
from shared_data import SHARED, needs_shared

from inferometer import workload
from inferometer.config.data import Tensors
from inferometer.errors import UserError
from inferometer.records import Run
from inferometer.serve.background import serving
from inferometer.serve.models import configs
from inferometer.serve.settings import Settings
from inferometer.tensors import TensorSpec
from inferometer.workload import tensors

OWN = Path(__file__).parent / "perf_analyzer"
OTHERS = SHARED / "data" / "perf_analyzer"

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


def run(folder: Path, url: str, path: Path) -> Run:
    file = path.name
    settings = INPUT_DATA[file][1]
    found, _ = measure(
        folder,
        url,
        server={"model": name_of(file)},
        data={"type": "tensors", "fill": f"@{path}"} | settings,
        load={"concurrency": 1, "requests": 36},
    )
    return found


def check(folder: Path, url: str, path: Path) -> None:
    if path.name in table.ERRORS:
        with pytest.raises(UserError) as caught:
            run(folder, url, path)
        assert table.ERRORS[path.name][2] in str(caught.value)
        assert caught.value.remedy
        return
    done = run(folder, url, path)
    failures = [(failure.code, failure.message) for failure in done.records.failures]
    if path.name in table.WRONG:
        assert failures == [("wrong_output", table.WRONG[path.name][2])]
        assert (done.records.rows["failure"] > 0).sum() == 9
        return
    assert failures == []
    assert len(done.records.rows) in (35, 36)  # sequences are sent to their end, and no more are begun than fit
    assert done.manifest.workload["distinct"] == table.RUNS[path.name][2]


@pytest.mark.parametrize(
    "file", [pytest.param(file, marks=[pytest.mark.slow] if file in table.RUNS else []) for file in INPUT_DATA]
)
def test_a_file_runs_or_gives_its_error(tmp_path: Path, url: str, file: str) -> None:
    check(tmp_path, url, OWN / "input_data" / file)


@needs_shared
@pytest.mark.slow
def test_files_of_perf_analyzer_do_the_same(tmp_path: Path, url: str) -> None:
    for file in INPUT_DATA:
        check(tmp_path / file, url, OTHERS / "input_data" / file)


def metadata_of(config: Any) -> list[TensorSpec]:
    """The inputs of a model, as Triton's metadata has them: a `reshape` is the server's own business."""
    batch = [-1] if config.max_batch_size else []
    found = []
    for one in config.input:
        known = one.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[one.data_type].name
        datatype = known.removeprefix("TYPE_").replace("STRING", "BYTES")
        found.append(TensorSpec(one.name, datatype, (*batch, *one.dims), one.optional))
    return found


def check_config(path: Path) -> None:
    config = configs.read(path)
    if path.name in table.NOT_CONFIGS:
        assert not metadata_of(config)
        return
    full = tensors.complete(Tensors(), metadata_of(config), config.max_batch_size)
    (request,) = workload.build(full, 0, [0])
    assert isinstance(request.payload, tuple)
    shapes = {tensor.name: (tensor.datatype, list(tensor.shape)) for tensor in request.payload}  # type: ignore[union-attr]
    assert shapes == table.CONFIGS[path.name]


@pytest.mark.parametrize("file", [*table.CONFIGS, *table.NOT_CONFIGS])
def test_a_request_is_made_for_every_model_configuration(file: str) -> None:
    check_config(OWN / "config_pbtxt" / file)


@needs_shared
def test_the_configurations_of_triton_do_the_same() -> None:
    for file in (*table.CONFIGS, *table.NOT_CONFIGS):
        check_config(OTHERS / "config_pbtxt" / file)


@pytest.mark.parametrize("folder", [OWN, pytest.param(OTHERS, marks=needs_shared)], ids=["own", "others"])
def test_the_table_is_complete(folder: Path) -> None:
    assert {path.name for path in (folder / "input_data").iterdir()} == set(INPUT_DATA)
    assert {path.name for path in (folder / "config_pbtxt").iterdir()} == {*table.CONFIGS, *table.NOT_CONFIGS}
