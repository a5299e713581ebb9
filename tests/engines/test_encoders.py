"""The comparison of engines for an encoder: which sizes are measured, what goes wrong, and whether outputs agree."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_help import SCRIPTED, ours
from tiny_models import encoder

from inferometer.campaign import EngineRecord
from inferometer.conduct.campaign import run_campaign
from inferometer.conduct.campaign_reading import read_record
from inferometer.conduct.encoders import energy_of, reference_of
from inferometer.config.engines import Campaign, campaign_from
from inferometer.engines.inprocess import library as library_module
from inferometer.engines.inprocess.messages import Encoded
from inferometer.errors import UserError
from inferometer.report.engines_view import CampaignView
from inferometer.series import TimeSeries

SIZES = {"batch": [1, 3], "length": [4, 8], "measurements": 5, "warmup": 2}


def campaign(*engines: dict[str, Any], model: str = "a model", **more: Any) -> Campaign:
    return campaign_from({"model": model, "engines": list(engines), "encoder": SIZES} | more)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("torch", "onnxruntime"):
        monkeypatch.setitem(library_module.MODULES, kind, SCRIPTED)


with_script = pytest.mark.usefixtures("scripted")


def measured(tmp_path: Path, *engines: dict[str, Any], **more: Any) -> list[EngineRecord]:
    folder = run_campaign(campaign(*engines, output=str(tmp_path), **more), CampaignView(quiet=True))
    return list(read_record(folder).engines)


def stored(tmp_path: Path, name: str) -> np.ndarray:
    """The outputs of an engine, in the folder of the only campaign."""
    (path,) = tmp_path.glob(f"2*/outputs/{name}.npy")
    return np.load(path)


@with_script
def test_every_size_has_the_calls_that_were_asked_for(tmp_path: Path) -> None:
    (record,) = measured(tmp_path, {"type": "torch"})
    assert (record.status, record.version) == ("ok", "")
    assert [(level.batch, level.length) for level in record.encoder] == [(1, 4), (1, 8), (3, 4), (3, 8)]
    assert [level.seconds for level in record.encoder] == [(0.001,) * 5] * 2 + [(0.003,) * 5] * 2
    assert {level.memory for level in record.encoder} == {1 << 20}
    assert {level.difference for level in record.encoder} == {0.0}
    (start,) = record.starts
    assert list(start.phases) == ["imported", "weights loaded"]


@with_script
def test_outputs_are_compared_with_the_first_torch_engine_in_float32(tmp_path: Path) -> None:
    first = {"type": "onnxruntime", "args": {"off": 0.5}}
    records = measured(tmp_path, first, {"type": "torch", "dtype": "bfloat16"}, {"type": "torch", "dtype": "float32"})
    assert reference_of(records) == 2
    assert [{level.difference for level in record.encoder} for record in records] == [{0.5}, {0.0}, {0.0}]


@with_script
def test_outputs_of_another_shape_do_not_agree(tmp_path: Path) -> None:
    _, other = measured(tmp_path, {"type": "torch"}, {"type": "onnxruntime", "args": {"width": 3}})
    assert {level.difference for level in other.encoder} == {None}  # it is infinite, which JSON does not have
    assert "have the shape [1, 3], the reference's [1, 2]" in other.encoder[0].error


@with_script
def test_too_little_memory_at_one_size_does_not_stop_the_others(tmp_path: Path) -> None:
    sizes = SIZES | {"batch": [4, 2]}
    (record,) = measured(tmp_path, {"type": "torch", "args": {"memory-at": 4}}, encoder=sizes)
    assert record.status == "ok"
    assert ["no room for the batch" in level.error for level in record.encoder] == [True, True, False, False]
    assert [len(level.seconds) for level in record.encoder] == [0, 0, 5, 5]


@with_script
def test_an_engine_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    before = ours()
    broken = {"type": "torch", "name": "broken", "args": {"at-load": "missing package"}}
    dying = {"type": "torch", "name": "dying", "args": {"crash-at": 3}}
    records = measured(tmp_path, broken, dying, {"type": "onnxruntime", "name": "good"})
    assert [(each.status, each.reason) for each in records] == [
        ("failed", "not installed"),
        ("failed", "died"),
        ("ok", ""),
    ]
    assert "a_package_that_nobody_has" in records[0].message
    assert [len(level.seconds) for level in records[1].encoder] == [5, 5, 0]
    assert ours() - before == set()


@with_script
def test_an_engine_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not run encoders"):
        measured(tmp_path, {"type": "vllm"})


@with_script
def test_rounds_are_kept_apart(tmp_path: Path) -> None:
    records = measured(tmp_path, {"type": "torch"}, {"type": "onnxruntime"}, repeat=2)
    assert [[level.repeat for level in each.encoder] for each in records] == [[0] * 4 + [1] * 4] * 2
    assert [[start.is_cold for start in each.starts] for each in records] == [[True, False]] * 2


def test_energy_is_that_of_all_gpus_during_the_calls() -> None:
    at = np.arange(0, 2_000_000_001, 100_000_000)
    gpus = [TimeSeries("nvml", "gpu_power", {"gpu": str(n)}, at, np.full(len(at), 100.0 * n)) for n in (1, 2)]
    encoded = Encoded(seconds=(0.1,) * 5, began=500_000_000, ended=1_500_000_000)
    assert energy_of(gpus, encoded, 1.0) == pytest.approx(300)
    assert energy_of([], encoded, 1.0) is None
    short = Encoded(seconds=(0.1,), began=500_000_000, ended=650_000_000)
    assert energy_of(gpus, short, 1.0) is None  # one sample of power says nothing about 150 ms


@pytest.mark.transformers
@pytest.mark.onnx
@pytest.mark.slow
def test_torch_and_onnx_runtime_agree_on_a_classifier(tmp_path: Path) -> None:
    engines = [
        {"type": "torch", "dtype": "float32"},
        {"type": "torch", "dtype": "bfloat16"},
        {"type": "onnxruntime", "args": {"intra_op_num_threads": 1}},
    ]
    model = str(encoder(tmp_path / "model", labels=3))
    records = measured(tmp_path, *engines, model=model)
    assert [record.message for record in records] == ["", "", ""]
    exact, rounded, onnx = ([level.difference for level in record.encoder] for record in records)
    assert exact == [0.0] * 4
    assert all(0 < (each or 0) < 0.2 for each in rounded)
    assert all((each or 0) < 1e-4 for each in onnx)
    assert stored(tmp_path, "engine-1-batch-3-length-8").shape == (3, 3)
    assert all(len(level.seconds) == 5 for record in records for level in record.encoder)
    assert [record.facts["dtype"] for record in records] == ["float32", "bfloat16", "float32"]
    (exported,) = tmp_path.glob("2*/*/onnxruntime-model.onnx")
    engines = [{"type": "torch"}, {"type": "onnxruntime", "model": str(exported)}]
    _, given = measured(tmp_path / "other", *engines, model=model)
    assert given.message == ""
    assert all((level.difference or 0) < 1e-4 for level in given.encoder)


@pytest.mark.transformers
@pytest.mark.slow
def test_a_compiled_encoder_agrees_and_long_sequences_are_refused(tmp_path: Path) -> None:
    sizes = {"batch": [2], "length": [8, 100], "measurements": 2, "warmup": 1}
    engines = [{"type": "torch"}, {"type": "torch", "compile": True}]
    records = measured(tmp_path, *engines, model=str(encoder(tmp_path / "model")), encoder=sizes)
    assert [record.status for record in records] == ["ok", "ok"]
    assert (records[1].encoder[0].difference or 0) < 1e-4
    assert "longer than the model's 64" in records[0].encoder[1].error
    assert stored(tmp_path, "engine-2-batch-2-length-8").shape == (2, 8, 32)
    assert "compiled" in records[1].starts[0].phases
