"""A level of an in-process engine as an ordinary run: rows, statistics, checks, objectives and reports."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_help import SCRIPTED, started
from scripted_engine import FIRST, TOKEN

from inferometer import store
from inferometer.analysis.summary import Summary, summarise
from inferometer.conduct.library_run import as_run, measure_library
from inferometer.config import from_mapping
from inferometer.config.schema import Config
from inferometer.engines.inprocess import library as library_module
from inferometer.engines.inprocess.library import Library
from inferometer.engines.inprocess.messages import Generated
from inferometer.engines.launching import EngineError
from inferometer.errors import UserError
from inferometer.records import Run
from inferometer.report import console, markdown

N_OUT = 5


def config(folder: Path, concurrency: int = 1, **more: Any) -> Config:
    tree = {
        "server": {"url": "http://127.0.0.1:1", "model": "a model", "api": "completions"},
        "data": {"type": "prompts", "prompts": [f"word {n}" for n in range(200)], "output": N_OUT},
        "load": {"type": "closed", "concurrency": concurrency, "requests": 60},
        "output": str(folder),
        "slo": ["ttft.p50 < 31ms", "e2e.p99 < 1s"],
    }
    return from_mapping(tree | more)


def engine(folder: Path, mode: str) -> Library:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(library_module.MODULES, "transformers", SCRIPTED)
        return started(folder, mode=mode)


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    library = engine(tmp_path_factory.mktemp("serial"), "serial")
    yield library
    library.close()


@pytest.fixture(scope="module")
def batched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    library = engine(tmp_path_factory.mktemp("batched"), "batched")
    yield library
    library.close()


@pytest.fixture(scope="module")
def serial_run(serial: Library, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Summary, Generated]:
    return measure_library(config(tmp_path_factory.mktemp("runs")), serial)


@pytest.fixture(scope="module")
def batched_run(batched: Library, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Summary, Generated]:
    return measure_library(config(tmp_path_factory.mktemp("runs"), 8), batched)


def test_latencies_are_those_of_the_engine(serial_run: tuple[Run, Summary, Generated]) -> None:
    metrics = serial_run[1].metrics
    assert metrics["ttft"].mean == pytest.approx(FIRST / 1e9)
    assert metrics["tpot"].mean == pytest.approx(TOKEN / 1e9)
    assert metrics["itl"].mean == pytest.approx(TOKEN / 1e9)
    assert metrics["e2e"].mean == pytest.approx((FIRST + TOKEN * (N_OUT - 1)) / 1e9)
    assert metrics["lag"].mean == 0


def test_throughput_is_that_of_the_engine(serial_run: tuple[Run, Summary, Generated]) -> None:
    rates = serial_run[1].throughput
    assert rates.requests == pytest.approx(1e9 / (FIRST + TOKEN * (N_OUT - 1)))
    assert rates.output_tokens == pytest.approx(N_OUT * 1e9 / (FIRST + TOKEN * (N_OUT - 1)))


def test_a_static_batch_has_no_time_to_first_token(batched_run: tuple[Run, Summary, Generated]) -> None:
    summary = batched_run[1]
    metrics, rates = summary.metrics, summary.throughput
    assert (metrics["ttft"].count, metrics["tpot"].count, metrics["itl"].count) == (0, 0, 0)
    assert rates.output_tokens == pytest.approx(8 * N_OUT * 1e9 / (FIRST + TOKEN * (N_OUT - 1)), rel=0.01)
    undecided = {each.slo: each.status for each in summary.slos}
    assert undecided["ttft.p50 < 31ms"] != "met"


def test_an_engine_may_know_only_the_first_and_the_last_token(
    batched_run: tuple[Run, Summary, Generated], tmp_path: Path
) -> None:
    run, _, generated = batched_run
    rows = tuple(
        msgspec.structs.replace(row, first=row.sent + FIRST, last=row.sent + FIRST + (N_OUT - 1) * TOKEN)
        for row in generated.rows
    )
    summary = summarise(as_run(tmp_path, run.manifest, msgspec.structs.replace(generated, rows=rows)))
    assert summary.metrics["ttft"].mean == pytest.approx(FIRST / 1e9)
    assert summary.metrics["tpot"].mean == pytest.approx(TOKEN / 1e9)
    assert summary.metrics["itl"].count == 0  # there is no time of any token in between


def test_checks_of_a_network_client_do_not_apply(
    serial_run: tuple[Run, Summary, Generated], batched_run: tuple[Run, Summary, Generated]
) -> None:
    for _, summary, _ in (serial_run, batched_run):
        found = {check.name: check.status for check in summary.checks}
        assert not {"cpu", "lockstep", "stamps", "stalls", "read_delay", "merged_chunks", "clock_step"} & found.keys()
        assert found["concurrency"] == "pass"
        assert {name for name, status in found.items() if status != "pass"} <= {"sample_size"}
        assert summary.verdict == "VALID"


def test_the_manifest_names_the_engine(batched_run: tuple[Run, Summary, Generated]) -> None:
    manifest = batched_run[0].manifest
    assert manifest.server["name"] == "transformers"
    assert (manifest.server["version"], manifest.server["mode"], manifest.server["dtype"]) == (
        "1.2.3",
        "batched",
        "float32",
    )
    assert manifest.clock["stamps"] == "engine"
    assert manifest.workload["distinct"] == 60
    (plan,) = manifest.plan
    assert (plan.open, plan.concurrency, plan.requests, plan.ramp_up) == (False, 8, 60, 0)


def test_the_run_can_be_read_and_reported(
    serial_run: tuple[Run, Summary, Generated], batched_run: tuple[Run, Summary, Generated]
) -> None:
    for run, summary, _ in (serial_run, batched_run):
        read = store.read(run.folder)
        assert summarise(read).metrics["e2e"] == summary.metrics["e2e"]
        assert "(in-process)" in markdown.run_summary(run, summary)
        assert "(in-process)" in console.render(run, summary)


def test_the_resources_of_the_process_are_recorded(serial: Library, serial_run: tuple[Run, Summary, Generated]) -> None:
    labels = [each.labels for each in serial_run[0].series() if each.source == "process"]
    assert labels
    assert {each["process"] for each in labels} == {str(serial.pid)}


def test_failures_are_rows_with_the_reason(serial: Library, tmp_path: Path) -> None:
    prompts = [f"{'fail' if n % 5 == 4 else 'word'} {n}" for n in range(50)]
    data = {"type": "prompts", "prompts": prompts, "output": N_OUT}
    run, summary, _ = measure_library(config(tmp_path, data=data, load={"concurrency": 1, "requests": 50}), serial)
    assert summary.verdict == "INVALID"
    assert [(each.code, each.message) for each in run.records.failures] == [("engine_error", "this one cannot be done")]
    assert int((run.records.rows["failure"] > 0).sum()) == 10


def test_a_level_that_does_not_fit_leaves_no_run(serial: Library, tmp_path: Path) -> None:
    data = {"type": "prompts", "prompts": ["memory"], "output": N_OUT}
    with pytest.raises(EngineError, match="no room for the batch"):
        measure_library(config(tmp_path / "runs", 4, data=data), serial)
    assert not (tmp_path / "runs").exists()


def test_only_closed_loops_can_be_measured(serial: Library, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="closed loop"):
        measure_library(config(tmp_path, load={"type": "poisson", "rate": 5, "duration": "1s"}), serial)
