"""The charts of `inference-perf --analyze`."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import synthetic_run as made
from report_specs import spec

from inferometer.compat.inference_perf import analyze, reports
from inferometer.records import StagePlan

BY_RATE = {"latency_vs_qps.png", "throughput_vs_qps.png", "throughput_vs_latency.png"}
BY_USERS = {"latency_vs_concurrency.png", "throughput_vs_concurrency.png"}
PNG = b"\x89PNG"


def report_folder(folder: Path, *, users: int = 0, **sections: Any) -> Path:
    """A folder with the reports of a run of two stages."""
    rows, chunks = made.closed_rows(80)
    rows["stage"][40:] = 1
    plan = StagePlan(type="closed", open=False, concurrency=8)
    stages = [{"rate": 10.0, "duration": 4, "num_requests": 40, "concurrency_level": users}] * 2
    load = {"type": "concurrent" if users else "constant", "stages": stages}
    run = made.run(rows, chunks, plan=(plan, plan))
    folder.mkdir()
    for name, text in reports.files(run, None, spec(load=load, **sections)).items():  # type: ignore[arg-type]
        (folder / name).write_bytes(bytes(text))
    return folder


def charts(folder: Path) -> set[str]:
    found = set(folder.glob("*.png"))
    assert all(path.read_bytes().startswith(PNG) for path in found)
    return {path.name for path in found}


@pytest.mark.matplotlib
def test_charts_of_a_folder(tmp_path: Path) -> None:
    folder = report_folder(tmp_path / "rates", report={"goodput": {"constraints": {"ttft": 0.05}}})
    assert analyze.analyze([folder])
    assert charts(folder) == BY_RATE | {"goodput_vs_qps.png"}


@pytest.mark.matplotlib
def test_charts_by_concurrency(tmp_path: Path) -> None:
    folder = report_folder(tmp_path / "users", users=8)
    assert analyze.analyze([folder])
    assert charts(folder) == BY_RATE | BY_USERS


@pytest.mark.matplotlib
def test_charts_of_several_folders_together(tmp_path: Path) -> None:
    folders = [report_folder(tmp_path / name) for name in ("one", "two")]
    unified = tmp_path / "unified"
    unified.mkdir()
    assert analyze.analyze(folders, unified)
    assert charts(unified) == BY_RATE and not charts(folders[0])
    legend = json.loads((unified / analyze.LEGEND).read_text())
    assert sorted(legend.values()) == [str(folder) for folder in folders]


@pytest.mark.matplotlib
def test_bad_folders_and_files_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = report_folder(tmp_path / "good")
    (good / "stage_7_lifecycle_metrics.json").write_text("{")
    (good / "stage_8_lifecycle_metrics.json").write_text('{"load_summary": null, "successes": {"latency": 3}}')
    assert not analyze.analyze([tmp_path / "nowhere", good])
    assert charts(good) == BY_RATE
    assert "nowhere: there are no stage_*_lifecycle_metrics.json" in caplog.text
    assert "stage_7_lifecycle_metrics.json: cannot be read" in caplog.text


@pytest.mark.matplotlib
def test_unified_folder_must_exist(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not analyze.analyze([report_folder(tmp_path / "one")], tmp_path / "nowhere")
    assert "nowhere: there is no such folder" in caplog.text


def test_missing_matplotlib_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not analyze.analyze([tmp_path])
    assert "pip install 'inferometer[inference-perf]'" in caplog.text
