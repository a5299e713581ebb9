"""Runs that end early: by Ctrl-C, by a kill, by a full disk. What was recorded stays, and is reported."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil
import pyarrow.parquet as pq
import pytest
from command import assert_one_line, cli, start
from waiting import until

from inferometer.serve.background import running, serving
from inferometer.serve.settings import Settings, simulator
from inferometer.serve.sim.settings import Fixed
from inferometer.store.spool import Control

SLOW = ("--set", "server.headers={x-sim-fault: stall=20s}")
"""The simulator begins each response and then stalls for 20 seconds."""


def start_run(
    folder: Path, url: str, *more: str, output: Path | str | None = None, load: tuple[str, ...] = ("--concurrency", "4")
) -> "subprocess.Popen[str]":
    """Start `inferometer run` for 30 seconds."""
    arguments = ("--duration", "30s", "--prompt", "hello", "--output", "4", "--set", f"output={output or folder}")
    arguments += ("--set", "client.probe=false")
    return start("run", url, *load, *arguments, *more, cwd=folder)


def wait_until_recording(folder: Path, process: "subprocess.Popen[str]", name: str = "rows", count: int = 10) -> Path:
    """Wait until a number in the control file is at least `count`; return the run's folder."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        for path in folder.glob("*/spool/0.control"):
            with contextlib.suppress(ValueError):  # the file exists but is still empty
                if Control(path, create=False)[name] >= count:
                    return path.parents[1]
        time.sleep(0.01)
    raise AssertionError("the run did not start to record")


def control(folder: Path, shard: int = 0) -> Control:
    return Control(folder / "spool" / f"{shard}.control", create=False)


def finish(process: "subprocess.Popen[str]") -> tuple[str, str]:
    return process.communicate(timeout=90)


def failures(folder: Path) -> list[str]:
    return [code for code in pq.read_table(folder / "requests.parquet")["failure"].to_pylist() if code]


def assert_complete(folder: Path, report: str, verdict: str = "INVALID") -> None:
    """The folder has its files and no others, and the report comes again byte for byte."""
    names = {"manifest.json", "requests.parquet", "chunks.parquet", "samples.parquet", "series.parquet", "summary.json"}
    assert {path.name for path in folder.iterdir()} == names
    again = cli("report", folder)
    assert again.out == report
    assert json.loads((folder / "summary.json").read_bytes())["verdict"].startswith(verdict)


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------


def test_ctrl_c_waits_for_requests_in_flight_and_reports_what_was_recorded(tmp_path: Path, sim: str) -> None:
    process = start_run(tmp_path, sim)
    folder = wait_until_recording(tmp_path, process)
    process.send_signal(signal.SIGINT)
    out, err = finish(process)
    assert process.returncode == 1, err
    assert "interrupted" in out
    assert failures(folder) == []
    assert_complete(folder, out)


@pytest.mark.slow
def test_ctrl_c_cancels_requests_that_do_not_end_within_the_grace_period(tmp_path: Path, sim: str) -> None:
    process = start_run(tmp_path, sim, *SLOW, "--set", "client.grace=300ms")
    folder = wait_until_recording(tmp_path, process, "sent", 4)
    process.send_signal(signal.SIGINT)
    out, err = finish(process)
    assert process.returncode == 1, err
    assert failures(folder) == ["cancelled"] * 4
    assert_complete(folder, out)


@pytest.mark.slow
@pytest.mark.parametrize("first", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_second_ctrl_c_does_not_wait(tmp_path: Path, sim: str, first: signal.Signals) -> None:
    process = start_run(tmp_path, sim, *SLOW, "--set", "client.grace=60s")
    folder = wait_until_recording(tmp_path, process, "sent", 4)
    process.send_signal(first)
    until(lambda: control(folder)["interrupted"] == 1, "the first is received")  # before that, two would count as one
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = finish(process)
    assert process.returncode == 1, err
    assert failures(folder) == ["cancelled"] * 4
    assert_complete(folder, out)


@pytest.mark.slow
def test_ctrl_c_cancels_what_still_waits_for_the_cap(tmp_path: Path, sim: str) -> None:
    open_loop = ("--rate", "200", "--set", "load.max_concurrency=2")
    process = start_run(tmp_path, sim, *SLOW, "--set", "client.grace=100ms", load=open_loop)
    folder = wait_until_recording(tmp_path, process, "queued", 20)
    process.send_signal(signal.SIGINT)
    out, _ = finish(process)
    assert process.returncode == 1
    rows = pq.read_table(folder / "requests.parquet").to_pylist()
    assert {row["failure"] for row in rows} == {"cancelled"}
    assert sorted(row["id"] for row in rows) == list(range(len(rows)))
    assert len(rows) >= 22
    assert_complete(folder, out)


CTRL_C_AT_THE_END = """
import os, signal, time
from inferometer.cli.main import entry
from inferometer.observe.statistics import StatisticsWatch

def interrupted(self):
    time.sleep(0.7)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    time.sleep(60)

StatisticsWatch.end = interrupted
entry()
"""


@pytest.mark.slow
def test_ctrl_c_after_the_last_response_does_not_change_the_outcome(tmp_path: Path) -> None:
    options = ("--concurrency", "2", "--requests", "20", "--set", "server.api=kserve", "--set", f"output={tmp_path}")
    with serving(Settings(models=("identity",), http=0)) as server:
        command = [sys.executable, "-c", CTRL_C_AT_THE_END, "run", server.url, *options]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr  # so short a run may be invalid for other reasons
    assert "interrupted" not in done.stdout
    folder = (tmp_path / "LATEST").resolve()
    assert json.loads((folder / "summary.json").read_bytes())["counts"]["ok"] == 20
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert manifest["outcome"]["interrupted"] is False
    assert manifest["observer_errors"] == {"kserve": "ended by Ctrl-C"}
    assert "waiting for the observers: kserve" in done.stderr
    assert_complete(folder, done.stdout, verdict="")


def test_ctrl_c_before_the_start_leaves_nothing(tmp_path: Path, sim: str) -> None:
    process = start_run(tmp_path, sim)
    while not list(tmp_path.glob("*/spool/0.control")):
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    out, err = finish(process)
    assert "Traceback" not in err
    if process.returncode in (2, 130):  # the run had not begun
        assert out == ""
        assert list(tmp_path.iterdir()) == []
    else:
        assert process.returncode == 1
        assert "INVALID" in out


# --- a kill ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_run_ends_its_processes_and_its_records_can_be_recovered(tmp_path: Path, sim: str) -> None:
    process = start_run(tmp_path, sim, "--set", "client.processes=2")
    folder = wait_until_recording(tmp_path, process)
    until(lambda: control(folder, 1)["sent"] >= 2, "both of the other process's users have sent requests")
    children = psutil.Process(process.pid).children()
    assert len(children) == 2
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []
    result = cli("report", folder)
    assert result.status == 1
    assert "did not end. The records were kept" in result.out
    rows = pq.read_table(folder / "requests.parquet")
    assert sorted(rows["id"].to_pylist())[:5] == [0, 1, 2, 3, 4]
    assert len(rows) >= 10
    assert_complete(folder, result.out)


@pytest.mark.slow
def test_a_report_leaves_a_run_in_progress_alone(tmp_path: Path, sim: str) -> None:
    process = start_run(tmp_path, sim)
    folder = wait_until_recording(tmp_path, process)
    try:
        assert_one_line(cli("report", folder), "in progress")
    finally:
        process.send_signal(signal.SIGINT)
        out, _ = finish(process)
    assert process.returncode == 1
    assert_complete(folder, out)


@pytest.mark.parametrize("broken", [b"", b"{", b'{"manifest": 1}'])
def test_spool_that_cannot_be_read_is_a_clear_error(tmp_path: Path, broken: bytes) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "draft.json").write_bytes(broken)
    assert_one_line(cli("report", tmp_path))


# --- the disk --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """Mount a small file system."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_nothing_recorded_is_lost_when_the_disk_fills_up(tmp_path: Path, sim: str) -> None:
    """The spool's space is allocated before the start. What it did not need is freed when the client's process ends; the test then
    fills the disk, while the run is stopped, before the run writes its files: they no longer fit."""
    with mounted(tmp_path / "disk", "size=12m") as disk:
        process = start_run(tmp_path, sim, output=disk)
        folder = wait_until_recording(disk, process)
        (client,) = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGSTOP)
        try:
            control(folder)["stop"] = 1  # as the Ctrl-C below will do once the run continues
            until(lambda: client.status() == psutil.STATUS_ZOMBIE, "the client's process has ended")
            with (disk / "ballast").open("wb", buffering=0) as ballast:
                fill(ballast)
            process.send_signal(signal.SIGINT)
        finally:
            process.send_signal(signal.SIGCONT)
        out, err = finish(process)
        assert process.returncode == 2, (out, err)
        assert "requests" in out
        assert "INVALID" in out
        assert "full" in err
        assert f"inferometer report {folder}" in err
        assert "Traceback" not in err
        (disk / "ballast").unlink()
        again = cli("report", folder)
        assert again.status == 1
        assert again.out.splitlines()[-1] == out.splitlines()[-1]
        assert_complete(folder, again.out)


def fill(file: IO[bytes]) -> None:
    """Use up all free space of the disk."""
    with contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


@contextlib.contextmanager
def filling(path: Path) -> Iterator[None]:
    """Keep the disk full, including any space that becomes free."""
    over = threading.Event()

    def keep_full() -> None:
        with path.open("wb", buffering=0) as file:
            while not over.wait(0.001):
                fill(file)

    thread = threading.Thread(target=keep_full)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
def test_a_disk_without_room_for_the_spool_is_one_line_and_nothing_is_sent(tmp_path: Path, sim: str) -> None:
    with mounted(tmp_path / "disk", "size=64k") as disk:
        process = start_run(tmp_path, sim, "--quiet", output=disk)
        out, err = finish(process)
        assert (process.returncode, out) == (2, "")
        assert "the disk is full" in err
        assert len(err.splitlines()) == 2
        assert list(disk.iterdir()) == []


@pytest.mark.slow
def test_a_spool_that_cannot_grow_ends_the_run_and_keeps_what_was_recorded(tmp_path: Path) -> None:
    """Responses have 3000 chunks, there is little room, and many are in flight when it is used up. (This many streams are too many for
    the simulator that other tests share: it would be busy with them long after they are given up.)"""
    paced = simulator(timing=Fixed(ttft=0.01, itl=0.02))
    with mounted(tmp_path / "disk", "size=8m") as disk, running(paced) as url:
        more = ("--set", "data.output=3000", "--set", "client.grace=1s", "--set", "client.connections=1")
        process = start_run(tmp_path, url, *more, output=disk, load=("--concurrency", "250"))
        folder = wait_until_recording(disk, process, "sent", 1)
        with filling(disk / "ballast"):
            out, err = finish(process)
        assert "Traceback" not in err
        assert process.returncode in (1, 2)
        assert "the disk filled up" in out, out
        (disk / "ballast").unlink()
        again = cli("report", folder)
        assert again.status == 1
        assert "the disk filled up" in again.out
        rows = pq.read_table(folder / "requests.parquet").to_pylist()
        # Of the requests in flight, as many are recorded as there was room for.
        assert {row["failure"] for row in rows} <= {None, "cancelled"}


@pytest.mark.parametrize("folder", ["/proc/runs", "/dev/null/runs"])
def test_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path, sim: str, folder: str) -> None:
    assert_one_line(cli("run", sim, "--requests", "1", "--prompt", "hi", "--set", f"output={folder}"), folder)


def test_read_only_file_system_is_a_clear_error(tmp_path: Path, sim: str) -> None:
    with mounted(tmp_path / "disk", "size=64k,ro") as disk:
        assert_one_line(
            cli("run", sim, "--requests", "1", "--prompt", "hi", "--set", f"output={disk}/runs"), "permission"
        )


@pytest.mark.slow
def test_full_disk_during_an_export_is_a_clear_error_and_the_run_is_kept(tmp_path: Path, sim: str) -> None:
    process = start(
        "run", sim, "--requests", "2", "--concurrency", "1", "--prompt", "hi", "--output", "2", "--quiet",
        "--json", "/dev/full", "--set", f"output={tmp_path}", cwd=tmp_path,
    )  # fmt: skip
    out, err = finish(process)
    assert process.returncode == 2, out
    assert "No space left" in err
    assert "Traceback" not in err
    assert (tmp_path / "LATEST" / "manifest.json").exists()
