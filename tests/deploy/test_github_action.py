"""The GitHub action: its structure, and its scripts, run by bash as a runner does, against the simulator."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from command import LENIENT
from kubernetes_tools import ROOT, TOOLS

from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
EXAMPLE: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "github-actions" / "inference-gate.yml").read_text())
QUICK = "\n".join(["--rate 200", "--requests 40", *(f"--set {key}={value}" for key, value in LENIENT.items())])


@pytest.fixture(scope="module")
def sim() -> Iterator[str]:
    with running(simulator(timing=Fixed(ttft=0.001, itl=0.0001))) as url:
        yield url


class Outcome(NamedTuple):
    status: int
    """Of the script."""
    outputs: dict[str, str]
    summary: str
    log: str


def run_step(name: str, folder: Path, inputs: dict[str, str] | None = None, **variables: str) -> Outcome:
    """Run a step's script with the environment of a runner. The programs in `folder/bin` come first."""
    (step,) = [step for step in STEPS if step.get("name") == name]
    values = {key: str(value.get("default", "")) for key, value in ACTION["inputs"].items()} | (inputs or {})
    environment = {
        variable: re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda match: values[match[1]], expression)
        for variable, expression in step.get("env", {}).items()
    }
    script = folder / "script.sh"
    script.write_text(step["run"])
    files = {name: folder / name.lower() for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GITHUB_PATH")}
    for file in files.values():
        file.write_text("")
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", script],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | environment
        | {name: str(file) for name, file in files.items()}
        | {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "RUNNER_TEMP": str(folder),
            "GITHUB_ACTION_PATH": str(ROOT),
        }
        | variables,
    )
    outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
    return Outcome(done.returncode, outputs, files["GITHUB_STEP_SUMMARY"].read_text(), done.stdout + done.stderr)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder to run steps in, with the command `inferometer` as the step Install leaves it."""
    program(tmp_path, "inferometer", f'exec "{sys.executable}" -m inferometer "$@"')
    return tmp_path


def program(folder: Path, name: str, script: str) -> None:
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_structure() -> None:
    assert ACTION["runs"]["using"] == "composite"
    assert all(value["description"] for value in (*ACTION["inputs"].values(), *ACTION["outputs"].values()))
    scripts = [step for step in STEPS if "run" in step]
    assert all(step["shell"] == "bash" for step in scripts)
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"]) for step in STEPS if "run" not in step)


def test_expressions_name_inputs_and_outputs_that_exist() -> None:
    text = (ROOT / "action.yml").read_text()
    used = re.findall(r"inputs\.([a-z-]+)", text)
    assert set(used) == ACTION["inputs"].keys()
    written = set(re.findall(r'echo "([a-z]+)=', text))
    assert set(re.findall(r"steps\.measure\.outputs\.([a-z]+)", text)) == written == ACTION["outputs"].keys()


@pytest.mark.parametrize("steps", [STEPS, EXAMPLE["jobs"]["gate"]["steps"]], ids=["action", "example"])
def test_no_expression_is_part_of_a_script(steps: list[dict[str, Any]]) -> None:
    assert not any("${{" in step.get("run", "") for step in steps)


@pytest.mark.kubernetes
def test_the_linter_has_no_warnings(tmp_path: Path) -> None:
    """The action's scripts as the runner calls them, the workflow's, and those of this repository."""
    for number, step in enumerate(STEPS + EXAMPLE["jobs"]["gate"]["steps"]):
        (tmp_path / f"{number}.sh").write_text("#!/bin/bash\nset -eo pipefail\n" + step.get("run", ""))
    own = [ROOT / ".ci" / "run", *ROOT.glob("deploy/*.sh"), *ROOT.glob("tools/**/*.sh")]
    command = [TOOLS / "bin" / "shellcheck", "--severity=warning", *tmp_path.iterdir(), *own]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_example_gives_inputs_that_exist() -> None:
    uses = [step for step in EXAMPLE["jobs"]["gate"]["steps"] if step.get("uses", "").startswith("OWNER/inferometer@")]
    assert len(uses) == 2
    for step in uses:
        assert step["with"].keys() <= ACTION["inputs"].keys()


def test_install_takes_this_checkout_with_its_pinned_versions(folder: Path) -> None:
    # An environment takes a while to install, and the image's test does it: this records what would be run.
    record = 'echo "$0 $* constraint=$PIP_CONSTRAINT" >>calls'
    program(folder, "python", f'{record}; mkdir -p "$3/bin"; cp "$0" "$3/bin/python"')
    assert run_step("Install", folder).status == 0
    made, installed = (folder / "calls").read_text().splitlines()
    assert f"-m venv {folder}/inferometer" in made
    assert f" -m pip install --quiet --disable-pip-version-check {ROOT} " in installed
    assert installed.endswith(f" constraint={ROOT}/constraints.txt")
    assert (folder / "github_path").read_text() == f"{folder}/inferometer/bin\n"


def test_objectives_that_are_met(sim: str, folder: Path) -> None:
    slo = "ttft.p50 < 10s\n\n  failure_rate < 50%  "
    outcome = run_step("Measure", folder, {"url": sim, "slo": slo, "args": QUICK})
    assert outcome.status == 0, outcome
    assert outcome.outputs["status"] == "0" and outcome.outputs["verdict"] == "passed", outcome
    assert (Path(outcome.outputs["folder"]) / "manifest.json").exists()
    assert "VALID" in outcome.summary and "ttft.p50" in outcome.summary and "failure_rate" in outcome.summary
    assert run_step("Judge", folder, STATUS="0", VERDICT="passed") == Outcome(0, {}, "", "")


@pytest.mark.slow
def test_objectives_that_are_missed(sim: str, folder: Path) -> None:
    (folder / "bench.yaml").write_text(
        "server: {url: 'http://127.0.0.1:9'}\ndata: {type: synthetic, input: 8, output: 4}\n"
    )
    inputs = {"url": sim, "config": "bench.yaml", "slo": "ttft.p50 < 1us", "args": QUICK, "results": "kept/here"}
    outcome = run_step("Measure", folder, inputs)
    assert outcome.status == 0, "the step goes on, so that the run is kept"
    assert outcome.outputs["status"] == "1" and outcome.outputs["verdict"] == "failed", outcome
    assert Path(outcome.outputs["folder"]).parent == folder / "kept" / "here"
    assert "missed" in outcome.summary
    judged = run_step("Judge", folder, STATUS="1", VERDICT="failed")
    assert judged.status == 1 and "::error title=Inferometer::failed" in judged.log


@pytest.mark.slow
def test_capacity(sim: str, folder: Path) -> None:
    args = "--budget 10s\n--precision 50%\n--by concurrency\n--set client.processes=0\n--output-tokens 4"
    inputs = {"mode": "capacity", "url": sim, "at-least": "1", "slo": "e2e.p50 < 10s", "args": args}
    outcome = run_step("Measure", folder, inputs)
    assert outcome.outputs["status"] in ("0", "1"), outcome
    assert outcome.summary.startswith("## Capacity")
    assert Path(outcome.outputs["folder"]).parent == folder / "runs"


def test_a_server_that_cannot_be_reached(folder: Path) -> None:
    outcome = run_step("Measure", folder, {"url": "http://127.0.0.1:9", "args": "--requests 1"})
    assert outcome.outputs == {"status": "2", "verdict": "error", "folder": ""}, outcome
    assert outcome.summary.startswith("## Inferometer: not measured\n\n    inferometer: ")
    assert "127.0.0.1:9" in outcome.log


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "give url or config"),
        ({"mode": "sweep", "url": "u"}, "mode must be run or capacity"),
        ({"url": "u", "at-least": "3"}, "at-least needs mode capacity"),
    ],
)
def test_wrong_inputs(folder: Path, inputs: dict[str, str], message: str) -> None:
    outcome = run_step("Measure", folder, inputs)
    assert outcome.status == 2 and outcome.log == f"::error title=Inferometer::{message}\n"


def test_inputs_are_not_run_as_code(folder: Path) -> None:
    inputs = dict.fromkeys(("url", "config", "slo", "at-least", "args", "results"), '$(touch x) `touch x` "; touch x')
    outcome = run_step("Measure", folder, inputs | {"mode": "capacity"})
    assert outcome.outputs["verdict"] == "error", outcome
    assert not (folder / "x").exists()
