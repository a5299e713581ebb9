"""`run` and `report` with objectives, from the outside: the exit status, the report's last lines, and errors in an expression."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from command import Result, assert_one_line, cli

from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed

FEW = ("--requests", "5", "--concurrency", "1", "--prompt", "hello", "--output-tokens", "2", "--quiet")
LENIENT = {
    "client.processes": 0,
    "client.probe": "false",
    "server.stream": "false",
    "limits": "{lag: 1s, cpu: 1, stalls: 1}",
    "load.think": "1ms",
}
"""What makes a run VALID on a busy machine."""
MET, MISSED, WITHIN, BEYOND = (
    "e2e.mean < 10s",
    "e2e.p99 < 1us",
    "failure_rate < 0.1%",
    "goodput(output_tokens>2.5) > 40%",
)
FAR = "e2e.p99 < 100s"
"""With five requests: shown by an interval, by counting, undecided on either side of the limit, and met with margin."""


@pytest.fixture(scope="module")
def sim() -> Iterator[str]:
    with running(simulator(timing=Fixed(ttft=0.005, itl=0.001))) as url:
        yield url


def run(folder: Path, source: str | Path, *more: str) -> Result:
    settings = [part for key, value in LENIENT.items() for part in ("--set", f"{key}={value}")]
    return cli("run", source, *FEW, *settings, "--set", f"output={folder}", *more)


def objectives(*slos: str) -> list[str]:
    return [part for slo in slos for part in ("--slo", slo)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, sim: str) -> Path:
    """A stored run without objectives."""
    path = tmp_path_factory.mktemp("runs")
    result = run(path, sim)
    assert result.status == 0, result.out
    assert "objectives" not in result.out
    return path / "LATEST"


@pytest.mark.parametrize(
    ("slos", "more", "status"),
    [
        ((MET,), (), 0),
        ((MISSED,), (), 1),
        ((MET,), ("--strict",), 0),
        ((MET, WITHIN), (), 0),
        ((MET, WITHIN), ("--strict",), 1),
        ((FAR,), (), 0),
        ((FAR,), ("--strict",), 1),
        ((MET, BEYOND), (), 1),
    ],
)
def test_a_stored_run_can_be_judged_by_other_objectives(
    folder: Path, slos: tuple[str, ...], more: tuple[str, ...], status: int
) -> None:
    before = (folder / "summary.json").read_bytes()
    result = cli("report", folder, *objectives(*slos), *more)
    assert result.status == status, result.out
    assert (folder / "summary.json").read_bytes() == before
    for slo in slos:
        assert slo in result.out


@pytest.mark.parametrize(
    ("slos", "more", "status"),
    [
        ([MET], (), 0),
        (MET, (), 0),
        ([MET, MISSED], (), 1),
        ([WITHIN, FAR], (), 0),
        ([WITHIN], ("--strict",), 1),
        ([FAR], ("--strict",), 1),
        ([MISSED], ("--slo", MET), 0),
    ],
)
def test_exit_status_of_a_run_with_objectives_in_its_file(
    tmp_path: Path, sim: str, slos: object, more: tuple[str, ...], status: int
) -> None:
    path = tmp_path / "bench.yaml"
    path.write_text(yaml.safe_dump({"server": {"url": sim}, "slo": slos}))
    result = run(tmp_path / "runs", path, *more)
    assert result.status == status, result.out
    again = cli("report", tmp_path / "runs" / "LATEST", *(part for part in more if part == "--strict"))
    assert (again.status, again.out) == (status, result.out)


def test_last_lines_say_what_was_missed_and_how_much_longer_to_run(tmp_path: Path, sim: str) -> None:
    result = run(tmp_path, sim, *objectives(MET, MISSED, WITHIN, FAR))
    lines = [line.strip() for line in result.out.splitlines()]
    at = next(number for number, line in enumerate(lines) if line.startswith("objectives"))
    head, met, why_met, missed, why_missed, undecided, *why_undecided, far, why_far, goodput, _, _ = lines[at:]
    assert head.strip() == "objectives   1 missed, 1 undecided, 2 met"
    assert met.split()[:2] == ["✓", "met"]
    assert why_met.strip().startswith("95 % confidence interval ")
    assert missed.split()[:5] == ["✗", "missed", "e2e.p99", "<", "1us"]
    assert why_missed.strip() == "100% of 5 requests violate it, 1% may, and they count as 4 independent ones"
    assert undecided.split()[:2] == ["?", "undecided"]
    assert " ".join(why_undecided).startswith(
        "too close to the limit for 5 requests: 0 % is within it; 0% of 5 requests failed, 0.1% may; run about "
    )
    assert far.split()[:2] == ["✓", "met"]
    assert re.fullmatch(r"met with margin: the limit is [0-9,]+ times the slowest of 5 requests", why_far.strip())
    assert goodput.strip().startswith("goodput   0.000 requests/s, 0.00 % of the requests met e2e<1us & e2e<100s")
    assert max(len(line) for line in result.out.splitlines()) <= 100


def test_json_has_the_results_and_the_manifest_the_objectives(tmp_path: Path, sim: str) -> None:
    tree = json.loads(run(tmp_path, sim, *objectives(MET, WITHIN, FAR), "--json", "-").out)
    found = [(slo["slo"], slo["status"], slo["by"], slo["within"]) for slo in tree["slos"]]
    assert found == [(MET, "met", "interval", True), (WITHIN, "undecided", "", True), (FAR, "met", "margin", True)]
    assert tree["slos"][1]["more_seconds"] > 0
    assert tree["goodput"]["attainment"] == 1.0
    assert tree["goodput"]["slos"] == ["e2e<100s"]
    manifest = json.loads((tmp_path / "LATEST" / "manifest.json").read_text())
    assert manifest["config"]["slo"] == [MET, WITHIN, FAR]


def test_an_invalid_run_exits_with_1_even_if_it_meets_its_objectives(tmp_path: Path, sim: str) -> None:
    result = run(tmp_path, sim, "--model", "nonsense", *objectives("throughput.offered > 0.001"))
    assert "INVALID" in result.out
    assert "1 met" in result.out
    assert result.status == 1


def test_an_error_in_an_objective_is_reported_before_anything_is_sent(tmp_path: Path, folder: Path) -> None:
    wrong = "there is no metric 'ttfft' (column 1 of 'ttfft.p99 < 5ms')"
    nowhere = "http://127.0.0.1:1"
    assert_one_line(cli("run", nowhere, "--slo", "ttfft.p99 < 5ms"), f"--slo: {wrong}", "did you mean ttft?")
    assert_one_line(cli("report", folder, "--slo", "ttfft.p99 < 5ms"), f"--slo: {wrong}", "did you mean ttft?")
    path = tmp_path / "bench.yaml"
    path.write_text(f"server: {{url: {nowhere}}}\nslo: ['ttft.p99 < 1s', 'ttfft.p99 < 5ms']\n")
    assert_one_line(cli("run", path), f"{path}: slo: {wrong}", "did you mean ttft?")
