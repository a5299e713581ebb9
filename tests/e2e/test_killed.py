"""Runs that are killed (SIGKILL) at any moment, or lose their folder: the store stays readable, and `report` recovers what had been recorded."""

import json
import random
import resource
import shutil
import time
from pathlib import Path

import pytest
from command import LENIENT, assert_one_line, cli, options, start

MOMENTS = [random.Random(seed).uniform(0.2, 2.2) for seed in range(10)]
"""Seconds after the start of the command: from before its first file to after its last one."""


@pytest.mark.parametrize(
    "seconds",
    [pytest.param(moment, marks=[pytest.mark.slow] if number else []) for number, moment in enumerate(MOMENTS)],
)
def test_a_run_killed_at_a_random_moment_leaves_a_readable_store(tmp_path: Path, sim: str, seconds: float) -> None:
    load = ("--duration", "300ms", "--concurrency", "4", "--input", "4", "--output", "3", "--keep", "text", "--quiet")
    process = start("run", sim, *load, "--set", "client.probe=false", "--set", "client.processes=1", cwd=tmp_path)
    time.sleep(seconds)
    process.kill()
    process.communicate()
    runs = tmp_path / "runs"
    if not runs.exists():  # killed before the run had a folder
        return
    for entry in listed(runs):
        assert entry["state"] in ("complete", "incomplete")
        folder = Path(entry["folder"])
        has_draft = (folder / "spool/draft.json").exists() and (folder / "spool/draft.json").stat().st_size
        result = cli("report", folder)
        if entry["state"] == "complete" or has_draft:
            assert result.status in (0, 1), result
            assert (folder / "manifest.json").exists()
            assert cli("report", folder).out == result.out
        else:  # killed before anything could be recorded
            assert_one_line(result, str(folder))
    assert all(cli("runs", runs, "--json").status == 0 for _ in range(2))


def test_a_killed_run_is_listed_as_incomplete_until_it_is_recovered(tmp_path: Path, sim: str) -> None:
    load = ("--duration", "30s", "--concurrency", "4", "--input", "4", "--output", "3", "--quiet")
    process = start("run", sim, *load, "--set", "client.probe=false", cwd=tmp_path)
    runs = tmp_path / "runs"
    end = time.monotonic() + 30
    while not (runs.exists() and [entry["state"] for entry in listed(runs)] == ["running"]):
        assert time.monotonic() < end, process.communicate()
        time.sleep(0.05)
    process.kill()
    process.communicate()
    (entry,) = listed(runs)
    assert (entry["state"], entry["model"], entry["verdict"]) == ("incomplete", "sim", "")
    assert cli("report", entry["folder"]).status == 1
    (entry,) = listed(runs)
    assert (entry["state"], entry["verdict"]) == ("complete", "INVALID")


def listed(runs: Path) -> list[dict[str, str]]:
    entries: list[dict[str, str]] = json.loads(cli("runs", runs, "--json").out)
    return entries


def test_a_run_killed_before_its_summary_gets_it_from_report(tmp_path: Path, sim: str) -> None:
    """Its other files are complete, and its spool is still there."""
    load = ("--requests", "8", "--input", "4", "--output", "3", "--quiet")
    assert cli("run", sim, *load, *options(LENIENT | {"output": tmp_path})).status == 0
    (folder,) = tmp_path.glob("2*")
    summary = (folder / "summary.json").read_bytes()
    (folder / "summary.json").unlink()
    (folder / "spool").mkdir()
    assert cli("report", folder).status == 0
    assert (folder / "summary.json").read_bytes() == summary and not (folder / "spool").exists()


def test_a_folder_that_is_deleted_during_the_run_is_no_bug(
    tmp_path: Path, sim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete(spool: Path, *_: object) -> None:
        shutil.rmtree(spool.parent)

    monkeypatch.setattr("inferometer.conduct.measuring.spool_series", delete)
    load = ("--requests", "8", "--input", "4", "--output", "3", "--quiet")
    assert_one_line(cli("run", sim, *load, *options(LENIENT | {"output": tmp_path})), "was deleted")


def test_a_limit_on_the_size_of_files_is_named(tmp_path: Path, sim: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        result = cli("run", sim, "--duration", "1s", *options(LENIENT | {"output": tmp_path}), "--quiet")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_one_line(result, "a file is too large", "ulimit -f")
