"""`inferometer compare`, `ab` and `run --repeat` from the outside. Whether comparisons are right is tested on made-up runs; what
simulators measure depends on how busy the machine is."""

import json
import random
import shlex
import shutil
import signal
import socket
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
import synthetic_run as made
from command import LENIENT, Result, assert_one_line, cli, options, start
from waiting import until

from inferometer import store
from inferometer.records import Chunks
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed

LOAD = ("--concurrency", "4", "--requests", "20", "--input-tokens", "8", "--output-tokens", "4", "--quiet")
TIMES = ("intended", "sent", "first_byte", "first_token", "first_content", "last_token", "done")


@pytest.fixture(scope="module")
def slow() -> Iterator[str]:
    """A simulator that is much slower than the other, so that it also is on a busy machine."""
    with running(simulator(timing=Fixed(ttft=0.002, itl=0.04))) as url:
        yield url


@pytest.fixture(scope="module")
def fast() -> Iterator[str]:
    with running(simulator(timing=Fixed(ttft=0.002, itl=0.001), allow_fault_header=True)) as url:
        yield url


def settings(folder: Path | str) -> list[str]:
    return options(LENIENT | {"output": folder})


def run(folder: Path, url: str, *more: str) -> Result:
    return cli("run", url, *LOAD, *settings(folder), *more)


def write_run(base: Path, seed: int, scale: float, concurrency: int = 8) -> None:
    """A made-up run in which everything takes `scale` times as long."""
    rows, chunks = made.closed_rows(200, seed=seed)
    for name in TIMES:
        rows[name] = rows[name] * scale
    chunks = Chunks((chunks.arrival * scale).astype(np.int64), chunks.tokens)
    config = made.manifest().config | {"load": {"type": "closed", "concurrency": concurrency, "requests": 200}}
    made_up = made.run(rows, chunks, config=config, seeds={"seed": seed})
    folder = store.new_folder(base)
    store.write(folder, made_up.manifest, made_up.records, made_up.chunks())
    store.point_latest(folder)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up runs: a, b (four times as fast) and, with another load, c."""
    folder = tmp_path_factory.mktemp("stored")
    write_run(folder / "a", 0, 1.0)
    write_run(folder / "b", 1, 0.25)
    write_run(folder / "c", 2, 0.25, concurrency=9)
    return folder


def test_compare_finds_the_faster_server(stored: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = cli("compare", stored / "a" / "LATEST", stored / "b" / "LATEST", "--json", out)
    assert result.status == 0, result
    metrics = json.loads(out.read_text())["metrics"]
    assert metrics["tpot.p50"]["verdict"] == "better" and 0.23 < metrics["tpot.p50"]["ratio"] < 0.27
    assert metrics["tpot.p50"]["ci"][0] <= metrics["tpot.p50"]["ratio"] <= metrics["tpot.p50"]["ci"][1]
    assert metrics["e2e.p50"]["verdict"] == "better" and metrics["throughput.requests"]["verdict"] == "better"
    assert "TPOT p50 is" in result.out and "% lower" in result.out
    assert "does not cover run-to-run variation" in " ".join(result.out.split())
    assert "nan" not in result.out.lower()


def test_a_condition_gives_status_1_and_is_in_every_file(stored: Path, tmp_path: Path) -> None:
    markdown, junit, html = tmp_path / "out.md", tmp_path / "out.xml", tmp_path / "out.html"
    sides = (stored / "b", stored / "a")
    files = ("--markdown", markdown, "--junit", junit, "--html", html)
    result = cli("compare", *sides, "--fail-if", "tpot.p50 worse by 5%", *files)
    assert result.status == 1 and "fails" in result.out
    assert "| ❌ fails | `tpot.p50 worse by 5%` |" in markdown.read_text()
    page = html.read_text()
    assert ">FAILS<" in page and "tpot.p50 worse by 5%" in page and '"kind":"forest"' in page
    suite = ET.parse(junit).getroot()[0]
    assert suite.get("failures") == "1"
    assert suite[0].get("name") == "tpot.p50 worse by 5%" and suite[0].find("failure") is not None
    assert cli("compare", *reversed(sides), "--fail-if", "tpot.p50 worse by 5%").status == 0


def test_an_undecided_condition_counts_as_it_was_measured_unless_the_rule_is_strict(stored: Path) -> None:
    sides = (stored / "a", stored / "b")
    beyond = cli("compare", *reversed(sides), "--fail-if", "ttft.p99 worse by 1%")
    assert beyond.status == 1 and "beyond it as measured" in " ".join(beyond.out.split())
    within = ("compare", *sides, "--fail-if", "failure_rate worse by 0.1%")
    assert cli(*within).status == 0
    assert cli(*within, "--strict").status == 1


def test_runs_with_another_load_are_refused_and_can_be_forced(stored: Path) -> None:
    sides = (stored / "a", stored / "c")
    assert_one_line(cli("compare", *sides), "the load differs: load.concurrency 8 against 9", "--force")
    forced = cli("compare", *sides, "--force")
    assert forced.status == 0 and "compared by force: the load differs" in forced.out


def test_failure_rates_and_throughput_can_be_conditions(stored: Path) -> None:
    sides = (stored / "a", stored / "b")
    result = cli(
        "compare", *sides, "--fail-if", "throughput.requests worse by 5%", "--fail-if", "failure_rate worse by 10%"
    )
    assert result.status == 0 and result.out.count("✓ passes") == 2, result
    narrow = cli("compare", *sides, "--fail-if", "failure_rate worse by 0.1%")  # 200 requests cannot show that
    assert narrow.status == 0 and "undecided" in narrow.out and "more requests per side would show" in narrow.out


def test_report_lists_several_runs_that_differ(stored: Path, tmp_path: Path) -> None:
    html, out, markdown = tmp_path / "out.html", tmp_path / "out.json", tmp_path / "out.md"
    result = cli("report", stored / "a", f"{stored}/[bc]/2*", "--html", html, "--json", out, "--markdown", markdown)
    assert result.status == 0 and "3 runs, all VALID" in result.out and "not repeats of one config" in result.out, (
        result
    )
    runs = json.loads(out.read_text())["runs"]
    assert len(runs) == 3 and all(each["figures"]["e2e.p50"] > 0 for each in runs)
    assert "| run |" in markdown.read_text() and "load.concurrency" in html.read_text()


def test_report_of_a_folder_with_one_run_is_that_of_the_run(stored: Path) -> None:
    assert cli("report", stored / "a").out == cli("report", stored / "a" / "LATEST").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{a}/nothing*",), ("no folder matches",)),
        (("{a}", "{a}/nothing"), ("there is no such folder",)),
        (("{empty}",), ("there is no manifest.json",)),
        (("{a}", "{empty}"), ("there is no manifest.json",)),
        (("{a}", "{b}", "--csv", "-"), ("--csv is about a single run", "several runs")),
        (("{a}", "{b}", "--why"), ("--why is about a single run",)),
        (("{a}", "{b}", "--open"), ("--open of several runs", "--html PATH")),
        (("{a}", "{b}", "--slo", "ttft.p99 <"), ("--slo",)),
    ],
)
def test_bad_input_of_several_runs_takes_two_lines(
    stored: Path, tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    given = [each.format(a=stored / "a", b=stored / "b", empty=tmp_path) for each in arguments]
    assert_one_line(cli("report", *given), *words)


def test_several_sides_are_compared_with_the_first(stored: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = cli("compare", stored / "a", stored / "b", stored / "c", "--force", "--json", out)
    tree = json.loads(out.read_text())
    assert result.status == 0 and len(tree["comparisons"]) == 2
    assert tree["metrics"] == tree["comparisons"][0]["metrics"]
    assert all(each["a"]["label"].endswith("/a") for each in tree["comparisons"])


def test_a_glob_leaves_out_folders_without_a_finished_run(stored: Path, tmp_path: Path) -> None:
    for number, run in enumerate(sorted(path.parent for path in (stored / "a").glob("*/manifest.json"))[:2]):
        shutil.copytree(run, tmp_path / f"2026-{number}")
    (tmp_path / "2026-2").mkdir()
    result = cli("report", tmp_path / "2026*")
    assert result.status == 0 and "2 runs, all VALID" in result.out
    assert "left out: " in result.err and "2026-2" in result.err


def test_a_glob_has_a_numbered_row_per_run_and_names_the_other_folders(stored: Path, tmp_path: Path) -> None:
    for name in "ac":
        [run] = (path.parent for path in (stored / name).glob("2*/manifest.json"))
        for copy in (f"2026-{name}", "2026-repeats/1", "2026-repeats/2", "2026-search/probe"):
            shutil.copytree(run, tmp_path / copy, dirs_exist_ok=True)
    (tmp_path / "2026-search" / "capacity.json").write_text("{}")
    (tmp_path / "2026-failed").mkdir()
    (tmp_path / "2026-failed" / "campaign.json").write_text("{}")
    others = [tmp_path / f"2026-{name}" for name in ("failed", "repeats", "search")]
    for where in (tmp_path / "2026*", tmp_path):
        result = cli("report", where)
        assert result.status == 0 and [line[:9] for line in result.out.splitlines()[3:5]] == [" 1 2026-a", " 2 2026-c"]
        assert "probe" not in result.out
        assert result.err.splitlines() == [
            f"left out: {folder} is not a single run (see inferometer report {folder})" for folder in others
        ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{a}",), ("at least two sides",)),
        (("{a}", "{a}/nothing"), ("there is no such folder",)),
        (("{a}", "{a}/*nothing*"), ("no folder matches",)),
        (("{a}", "{b}", "--fail-if", "tpott.p50 worse by 5%"), ("column 1", "did you mean tpot.p50?")),
        (("{a}", "{b}", "--json", "-", "--junit", "-"), ("both write to standard output",)),
        (("{a}", "{b}", "--markdown", "/nothing/x.md"), ("does not exist",)),
    ],
)
def test_bad_input_takes_two_lines(stored: Path, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    given = [each.format(a=stored / "a", b=stored / "b") for each in arguments]
    assert_one_line(cli("compare", *given), *words)


def test_run_and_report_write_markdown_and_junit(stored: Path, tmp_path: Path) -> None:
    markdown, junit = tmp_path / "run.md", tmp_path / "run.xml"
    slo = ("--slo", "tpot.p50 < 1us", "--slo", "failure_rate < 90%")
    result = cli("report", stored / "a" / "LATEST", *slo, "--markdown", markdown, "--junit", junit)
    assert result.status == 1
    text = markdown.read_text()
    assert text.startswith("## VALID") and "| `tpot.p50 < 1us` | ❌ missed |" in text and "| tpot |" in text
    suite = ET.parse(junit).getroot()[0]
    outcomes = {case.get("name"): case.find("failure") is None for case in suite}
    assert outcomes["tpot.p50 < 1us"] is False and outcomes["failure_rate < 90%"] and outcomes["completed"]


def test_repeat_shows_the_variation_between_runs(tmp_path: Path, fast: str) -> None:
    out, html = tmp_path / "out.json", tmp_path / "out.html"
    result = run(tmp_path / "runs", fast, "--repeat", "3", "--json", str(out), "--html", str(html))
    assert result.status == 0, result
    tree = json.loads(out.read_text())
    assert len(tree["runs"]) == 3 and tree["verdicts"] == ["VALID"] * 3
    e2e = tree["metrics"]["e2e.mean"]
    assert len(e2e["values"]) == 3 and e2e["ci"][0] < e2e["mean"] < e2e["ci"][1]
    assert "between runs" in result.out and "within a run" in result.out
    assert f"3 repeats of {fast}" in html.read_text()
    again = cli("report", tmp_path / "runs" / "LATEST", "--html", html)
    assert again.status == 0 and again.out.splitlines()[:-1] == result.out.splitlines()[:-1]
    seeds = {json.loads((Path(each) / "manifest.json").read_text())["seeds"]["seed"] for each in tree["runs"]}
    assert seeds == {0, 1, 2}
    (repeats,) = (tmp_path / "runs").glob("2*")
    shutil.copytree(repeats, tmp_path / "copy", symlinks=True)
    compared = cli("compare", repeats, tmp_path / "copy")
    assert compared.status == 0 and "3 pairs of runs" in compared.out, compared
    assert_one_line(run(tmp_path / "x", fast, "--repeat", "2", "--csv", "-"), "--csv is about a single run")


@pytest.mark.slow
def test_ab_measures_interleaved_pairs_and_compares_them(tmp_path: Path, slow: str, fast: str) -> None:
    out = tmp_path / "out.json"
    result = cli("ab", slow, fast, "--pairs", "3", *LOAD, *settings(tmp_path / "runs"), "--json", out)
    assert result.status == 0, result
    metric = json.loads(out.read_text())["metrics"]["e2e.p50"]
    assert metric["method"] == "paired" and metric["ratio"] < 1 and metric["sign_flip"] == 0.25
    (folder,) = (tmp_path / "runs").glob("2*")
    runs = json.loads((folder / "runs.json").read_text())["runs"]
    assert "".join(each["settings"]["side"] for each in runs) == "ABBAAB"
    started = [json.loads((folder / each["run"] / "manifest.json").read_text())["started"] for each in runs]
    assert started == sorted(started)
    again = cli("compare", folder, "--json", "-")
    assert json.loads(again.out)["metrics"]["e2e.p50"] == metric
    latest, html = tmp_path / "runs" / "LATEST", tmp_path / "out.html"
    report = cli("report", latest, "--html", html)
    assert report.status == 0 and "E2E p50" in report.out and '"kind":"forest"' in html.read_text()
    assert_one_line(cli("report", latest, "--slo", "ttft.p99 < 1s"), "--slo is about ")


def free_port() -> int:
    """A port that connections of other tests do not get either: the kernel gives them those from 32768."""
    while True:
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port := random.SystemRandom().randrange(20_000, 32_000)))
            return port


def serve_command(port: int, itl: str) -> str:
    """A shell that starts a server and does something after it, so that the server is a grandchild."""
    options = f"--http {port} --grpc -1 --metrics -1 --ttft 2ms --itl {itl}"
    return f"{shlex.quote(sys.executable)} -m inferometer serve {options}; true"


@pytest.mark.slow
def test_ab_starts_and_stops_a_server_for_each_run(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    commands = ("--start-a", serve_command(port, "40ms"), "--start-b", serve_command(port, "1ms"))
    result = cli("ab", url, url, "--pairs", "2", *LOAD, *settings(tmp_path), *commands, "--json", tmp_path / "out.json")
    assert result.status == 0, result
    assert json.loads((tmp_path / "out.json").read_text())["metrics"]["e2e.p50"]["ratio"] < 1
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), 1):
        pass


def test_ab_shows_the_last_lines_of_a_server_that_does_not_start(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    commands = ("--start-a", "echo out of memory; exit 3", "--start-b", "true")
    result = cli("ab", url, url, *LOAD, *settings(tmp_path), *commands)
    assert result.status == 2 and "ended with status 3" in result.err and "out of memory" in result.err


def test_ab_refuses_to_start_a_server_beside_one_that_responds(tmp_path: Path, fast: str) -> None:
    result = cli("ab", fast, fast, *LOAD, *settings(tmp_path), "--start-a", "sleep 60")
    assert_one_line(result, "a server responds there already")


def test_ab_measures_nothing_if_one_of_the_servers_cannot_be_reached(tmp_path: Path, fast: str) -> None:
    result = cli("ab", fast, f"http://127.0.0.1:{free_port()}", *LOAD, *settings(tmp_path))
    assert_one_line(result, "onnection refused")
    assert not list(tmp_path.glob("2*"))


def test_ab_stops_after_two_pairs_if_the_same_check_fails_in_both(tmp_path: Path, fast: str) -> None:
    load = [word for word in LOAD if word != "--quiet"]
    fault = ("--set", "server.headers.x-sim-fault=reject=500")
    result = cli("ab", fast, fast, *load, *settings(tmp_path), *fault)
    assert result.status == 2 and result.out == ""
    lines = result.err.splitlines()
    assert [line[:14] for line in lines if line.startswith("run ")] == [f"run {n} of 16 · " for n in (1, 2, 3, 4)]
    assert sum(line.startswith("  INVALID · ") for line in lines) == 4
    assert "left" in next(line for line in lines if line.startswith("run 2"))
    assert "stopped after 2 of 8 pairs: A is INVALID in both" in lines[-2] and "--force" in lines[-1]


@pytest.mark.slow
def test_ctrl_c_compares_complete_pairs_and_ends_the_server(tmp_path: Path, fast: str) -> None:
    """B's server is started by a command; the signal comes in the third pair or later."""
    port = free_port()
    process = start(
        "ab", fast, f"http://127.0.0.1:{port}", "--pairs", "50", *LOAD, *settings("runs"),
        "--start-b", serve_command(port, "8ms"), "--start-timeout", "60s", cwd=tmp_path,
    )  # fmt: skip
    until(lambda: any(_pairs(each) >= 2 for each in tmp_path.glob("runs/2*/runs.json")), "two pairs", 180)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert "interrupted: comparing" in err and "E2E p50" in out and process.returncode == 0, (out, err)
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), 1):
        pass


def _pairs(path: Path) -> int:
    return len(msgspec.json.decode(path.read_bytes())["runs"]) // 2
