"""Sweeps from the outside: `inferometer run` with lists of values, and `inferometer report` on the folder that it made."""

import csv
import io
import json
import signal
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import LENIENT, Result, assert_one_line, cli, options, start
from helpers import Client, http_response, scripted

from inferometer import conduct
from inferometer.serve.background import Running, serving
from inferometer.serve.settings import Settings
from inferometer.serve.sim.settings import Fixed, Sim

TEXT = ("--input-tokens", "8", "--output-tokens", "4", "--requests", "40", "--concurrency", "1,4")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    quick = Sim(timing=Fixed(ttft=0.004, itl=0.001))
    with serving(Settings(models=("identity",), sim=quick, http=0, grpc=0)) as running:
        yield running


def run(folder: Path, source: str | Path, *more: str | Path) -> Result:
    return cli("run", source, *options(LENIENT | {"output": folder}), *more)


def sweep_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "LATEST" / "runs.json").read_text())
    return found


def test_grid_is_one_folder_and_one_report(tmp_path: Path, server: Running) -> None:
    exports = {name: tmp_path / f"out.{name}" for name in ("json", "csv", "markdown", "junit")}
    files = [part for name, path in exports.items() for part in (f"--{name}", path)]
    result = run(tmp_path / "runs", server.url, *TEXT, "--set", "data.output=[2, 8]", *files)
    assert result.status == 0, result.out
    assert "sweep of 2 runs: data.output [2, 8]" in result.err
    assert "run 2 of 2 · data.output 8" in result.err
    assert [line.split()[:4] for line in result.out.splitlines() if " in flight " in line] == [
        [output, level, "in", "flight"] for output in ("2", "8") for level in ("1", "4")
    ]
    found = json.loads(exports["json"].read_bytes())
    assert found["keys"] == ["data.output"]
    assert [(point["settings"], point["level"]) for point in found["points"]] == [
        ({"data.output": output}, level) for output in (2, 8) for level in (1, 4)
    ]
    assert [point["counts"]["ok"] for point in found["points"]] == [40] * 4
    rows = list(csv.DictReader(io.StringIO(exports["csv"].read_text())))
    assert [(row["data.output"], row["level"], row["ok"]) for row in rows][1] == ("2", "4.0", "40")
    assert all(float(row["e2e_p50_s"]) > 0 for row in rows)
    assert "| output | level | req/s |" in exports["markdown"].read_text()
    assert ET.parse(exports["junit"]).getroot().attrib["failures"] == "0"
    # the same report again, and no difference in the files
    (folder,) = (tmp_path / "runs").glob("2*")
    again = cli("report", folder, "--csv", tmp_path / "again.csv")
    assert (again.out, again.status) == (result.out, 0)
    # and as a version without runs.json stored it
    tree = json.loads((folder / "runs.json").read_text())
    (folder / "runs.json").rename(folder / "sweep.json")
    (folder / "sweep.json").write_text(
        json.dumps({name: tree[name] for name in ("schema", "keys", "runs", "interrupted")})
    )
    assert cli("report", folder).out == result.out
    assert (tmp_path / "again.csv").read_bytes() == exports["csv"].read_bytes()
    assert cli("report", tmp_path / "runs" / "LATEST").status == 0
    assert cli("report", folder, "--slo", "e2e.p50 < 1us").status == 1


def test_batch_sizes_of_tensors_are_compared(tmp_path: Path, server: Running) -> None:
    few = ["--model", "identity", "--requests", "60", "--concurrency", "2", "-q"]
    result = run(tmp_path, server.grpc, *few, "--set", "data.batch=[1, 2, 8]")
    assert result.status == 0, result.out
    assert not result.err
    assert "data.batch 8: " in result.out
    assert "most inferences/s: data.batch" in result.out
    assert "ttft" not in result.out
    assert [each["settings"] for each in sweep_of(tmp_path)["runs"]] == [{"data.batch": size} for size in (1, 2, 8)]


def test_adaptive_range_measures_levels_one_by_one(tmp_path: Path, server: Running) -> None:
    few = "--input-tokens 8 --output-tokens 2 --requests 30 --concurrency 1:4:adaptive"
    result = run(tmp_path, server.url, *few.split())
    assert result.status == 0, result.out
    assert "sweep of at most 12 runs" in result.err
    assert "level 2 of at most 12 · concurrency 2" in result.err
    assert len(sweep_of(tmp_path)["runs"]) >= 2  # which levels come next depends on the speed of the machine


def test_levels_alone_are_one_run_with_a_knee(tmp_path: Path, server: Running) -> None:
    result = run(tmp_path, server.url, *TEXT)
    assert result.status == 0, result.out
    assert "knee" in result.out  # where it is, or why none is shown
    summary = json.loads((tmp_path / "LATEST" / "summary.json").read_text())
    assert [stage["name"] for stage in summary["stages"]] == ["concurrency 1", "concurrency 4"]


# --- sweeps that do not complete -------------------------------------------------------------------------------------


def interrupt_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ctrl-C end the second run of a sweep before its first request."""
    measure, calls = conduct.measure, []

    def second_fails(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(*args)

    monkeypatch.setattr(conduct, "measure", second_fails)


def test_interrupted_sweep_reports_what_was_measured(
    tmp_path: Path, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_second(monkeypatch)
    result = run(tmp_path, server.url, *TEXT, "--set", "data.output=[2, 4, 8]")
    assert result.status == 1
    assert "interrupted: some runs are missing" in result.out
    assert "data.output 2: " in result.out
    known = sweep_of(tmp_path)
    assert known["interrupted"]
    assert [each["settings"] for each in known["runs"]] == [{"data.output": 2}]
    again = cli("report", tmp_path / "LATEST")
    assert again.status == 1
    assert "interrupted" in again.out


@pytest.mark.slow
def test_ctrl_c_keeps_the_run_that_it_interrupts(tmp_path: Path) -> None:
    seen, second_run = [], threading.Event()

    def script(client: Client) -> None:
        while client.request():
            seen.append(client.number)
            if len(seen) > 30:
                second_run.set()
            client.send(http_response())

    settings = LENIENT | {"load.requests": "[5, 1000000]", "server.model": "m"}
    with scripted(script) as url:
        process = start("run", url, *options(settings), "--prompt", "hello", "--output-tokens", "2", "-q", cwd=tmp_path)
        assert second_run.wait(90)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1, (out, err)
    assert "interrupted: some runs are missing or incomplete" in out
    assert "load.requests 5: " in out
    assert "load.requests 1000000: " in out
    assert len(sweep_of(tmp_path / "runs")["runs"]) == 2


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (("--repeat", "2"), "--repeat repeats one run"),
        (("--perf-csv", "-"), "--perf-csv is about a single run"),
        (("--why",), "--why: the report of a single run has that"),
        (("--percentiles", "75"), "--percentiles: the report of a single run has that"),
        (("--set", f"seed={list(range(150))}"), "the grid has 300 runs"),
        (("--set", "data.input=[1, some]"), "data.input: must be a whole number"),
        (("--rate", "1:8:x0.5"), "the factor must be more than 1"),
    ],
)
def test_bad_sweeps_are_one_line(tmp_path: Path, flags: tuple[str, ...], what: str) -> None:
    assert_one_line(run(tmp_path, "http://127.0.0.1:1", "--set", "data.output=[2, 4]", *flags), what)


def test_bad_sweep_folders_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_text("{")
    assert_one_line(cli("report", tmp_path), "runs.json: cannot be read")
    (tmp_path / "runs.json").write_text('{"kind": "sweep", "keys": []}')
    assert_one_line(cli("report", tmp_path), "the experiment has no runs")
    assert_one_line(cli("report", tmp_path, "--why"), "is about a single run")
