"""Client processes that die, hang or cannot start: the run ends, reports it, and keeps what was recorded."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from command import cli
from helpers import jobs_of, measure, polite, scripted
from shard_processes import slow, when_recorded, workers
from waiting import until

from inferometer.conduct import measuring
from inferometer.config import from_mapping
from inferometer.errors import UserError
from inferometer.fleet import local, runner, supervisor
from inferometer.prepare.plans import whole_plan
from inferometer.records import ROW
from inferometer.store.spool import Control
from inferometer.units import NS

TWO = {"processes": 2, "grace": "1s"}
LONG = {"type": "closed", "concurrency": 4, "duration": "30s"}


def test_other_processes_finish_when_one_is_killed_and_its_requests_are_lost(tmp_path: Path) -> None:
    plan = {"type": "constant", "rate": 100, "duration": "1.2s"}
    with scripted(slow) as url:
        when_recorded(tmp_path, 4, lambda: workers()[1].send_signal(signal.SIGKILL))
        run, summary = measure(tmp_path, url, client=TWO, load=plan)
    assert run.manifest.outcome.errors[0].startswith("client process 1 was killed by signal 9")
    assert not run.manifest.outcome.interrupted
    rows = run.records.rows
    assert sorted(rows["id"].tolist()) == list(range(120))  # no planned request is missing
    own = rows["failure"] == 0
    assert rows["shard"][own].tolist().count(0) == 60
    assert 3 < rows["shard"][own].tolist().count(1) < 60
    lost = rows["failure"] > 0
    assert {run.records.failures[number - 1].code for number in rows["failure"][lost]} == {"lost"}
    assert (rows["intended"] == rows["id"] * 10_000_000).all()
    assert summary.verdict == "INVALID"
    failed = next(check for check in summary.checks if check.name == "workers")
    assert failed.status == "fail"
    assert "client process 1" in failed.message
    assert not workers()


@pytest.mark.slow
def test_command_reports_which_process_died_and_exits_with_1(tmp_path: Path) -> None:
    with scripted(slow) as url:
        when_recorded(tmp_path, 4, lambda: workers()[0].send_signal(signal.SIGKILL))
        result = cli(
            "run", url, "--model", "m", "--concurrency", "4", "--duration", "1s", "--prompt", "hi", "--set",
            f"output={tmp_path}", "--set", "client.processes=2", "--set", "client.grace=1s",
        )  # fmt: skip
    assert result.status == 1
    assert "INVALID" in result.out
    assert "client process 0 was killed by signal 9" in result.out
    assert cli("report", tmp_path / "LATEST").out == result.out


@pytest.mark.slow
def test_a_process_that_hangs_is_killed(tmp_path: Path) -> None:
    def hang() -> None:
        worker = workers()[0]
        worker.send_signal(signal.SIGSTOP)
        until(lambda: worker.status() == psutil.STATUS_STOPPED)
        (path,) = tmp_path.glob("*/spool/0.control")
        Control(path, create=False)["heartbeat"] -= 60 * NS  # as if it had hung for a minute

    with scripted(slow) as url:
        when_recorded(tmp_path, 4, hang)
        run, summary = measure(tmp_path, url, client=TWO, load=LONG | {"duration": "1s"})
    assert "client process 0 gave no sign of life" in run.manifest.outcome.errors[0]
    assert set(run.records.rows["shard"].tolist()) == {0, 1}
    assert summary.verdict == "INVALID"
    assert not workers()


def when_started(
    monkeypatch: pytest.MonkeyPatch, count: int, act: Callable[["subprocess.Popen[bytes]"], None]
) -> "list[subprocess.Popen[bytes]]":
    """Call `act` with a client process as soon as so many were started. Returns the processes."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: Any, **more: Any) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(*arguments, **more))
        if len(started) == count:
            act(started[-1])
        return started[-1]

    monkeypatch.setattr(local, "subprocess", SimpleNamespace(Popen=start))
    return started


def test_process_that_dies_before_the_start_is_a_clear_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    when_started(monkeypatch, 1, lambda worker: worker.kill())  # before it gets its job
    with scripted(polite) as url, pytest.raises(UserError, match="client process 0 was killed by signal 9"):
        measure(tmp_path, url, client=TWO, load=LONG)
    assert list(tmp_path.iterdir()) == []
    assert not workers()


@pytest.mark.slow
def test_process_that_dies_while_the_other_is_starting_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = when_started(monkeypatch, 2, lambda worker: worker.send_signal(signal.SIGSTOP))

    def control(shard: int, name: str) -> object:
        with contextlib.suppress(ValueError):  # the file exists but is still empty
            for path in tmp_path.glob(f"*/spool/{shard}.control"):
                found = Control(path, create=False)
                return found.state if name == "state" else found[name]
        return None

    def act() -> None:
        until(lambda: control(0, "state") == "ready")
        started[0].kill()
        until(lambda: control(1, "stop") == 1, "it is noticed")
        started[1].send_signal(signal.SIGCONT)

    acting = threading.Thread(target=act)
    acting.start()
    with scripted(polite) as url, pytest.raises(UserError, match="client process 0 was killed by signal 9"):
        measure(tmp_path, url, client=TWO, load=LONG)
    acting.join()
    assert not workers()


@pytest.mark.parametrize("processes", [0, 1, 2])
def test_errors_in_a_shards_setup_that_the_user_can_fix_are_reported(
    tmp_path: Path, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server accepts the probe and nothing more: the shards cannot open their connections."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)

        def once_it_has_left(*arguments: Any, **more: Any) -> supervisor.Supervisor:
            listener.close()
            return supervisor.Supervisor(*arguments, **more)

        monkeypatch.setattr(measuring, "Supervisor", once_it_has_left)
        with pytest.raises(UserError, match="nothing is listening") as caught:
            measure(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}", client={"processes": processes})
    assert caught.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_no_process_is_started_with_processes_0(tmp_path: Path) -> None:
    before = {child.pid for child in psutil.Process().children()}
    run, summary = measure(tmp_path, scripted(polite), client={"processes": 0})
    assert summary.counts.ok == 6
    assert {child.pid for child in psutil.Process().children()} <= before
    assert run.manifest.host["processes"] == 1


def test_shard_that_fails_in_this_process_is_reported_like_a_process_that_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(runner, "run_shard", broken)
    with scripted(polite) as url, pytest.raises(UserError, match="RuntimeError: no such luck"):
        measure(tmp_path, url, client={"processes": 0})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_client_processes_do_not_receive_the_terminals_ctrl_c(tmp_path: Path) -> None:
    """Not even while they start: they are in process groups of their own, and only the parent handles Ctrl-C."""
    groups: list[int] = []

    def look() -> None:
        groups.extend(os.getpgid(child.pid) for child in workers())
        os.kill(os.getpid(), signal.SIGINT)  # end the run: the test has what it needs

    with scripted(slow) as url:
        when_recorded(tmp_path, 4, look)
        measure(tmp_path, url, client=TWO, load=LONG)
    assert len(groups) == 2
    assert os.getpgid(0) not in groups


def test_error_of_a_worker_is_the_last_line_of_its_log() -> None:
    """Its standard input is still open, as it is while the parent lives."""
    command = [sys.executable, "-m", "inferometer.fleet.worker"]
    pipe, theirs = Pipe()
    with theirs, pipe, subprocess.Popen(command, stdin=theirs.fileno(), stderr=subprocess.PIPE) as worker:
        assert worker.stderr is not None
        pipe.send("not a job")
        assert worker.wait(60) == 1
        assert worker.stderr.read().splitlines()[-1].startswith(b"AttributeError: ")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 2])
def test_ctrl_c_ends_the_preparation_of_requests(tmp_path: Path, processes: int) -> None:
    """There is more to prepare than this test has time for."""
    endless = {"type": "closed", "concurrency": 4, "requests": 2_000_000}
    seen: list[float] = []

    class View(measuring.Show):
        def progress(self, snapshot: Any) -> None:
            assert not snapshot.started
            seen.append(snapshot.prepared)
            if snapshot.prepared:
                os.kill(os.getpid(), signal.SIGINT)

    with scripted(polite) as url, pytest.raises(KeyboardInterrupt):
        measure(
            tmp_path, url, View(), client={"processes": processes}, load=endless, data={"type": "synthetic", "input": 8}
        )
    assert 0 < seen[-1] < 0.5
    assert list(tmp_path.iterdir()) == []
    assert not workers()


def test_a_snapshot_has_the_rows_of_all_requests_that_ended_since_the_last(tmp_path: Path) -> None:
    config = from_mapping({"server": {"url": "http://127.0.0.1:1", "model": "m"}})
    handle: Any = SimpleNamespace(is_alive=lambda: True, silence=lambda: 0, wait=lambda _: None, kill=lambda: None)
    with jobs_of(config, tmp_path) as jobs:
        made = supervisor.Supervisor(jobs, lambda _: [handle], whole_plan(config))
    rows = np.zeros(50_000, ROW)
    rows["id"] = np.arange(50_000)
    rows.tofile(tmp_path / "0.rows")
    seen = []
    for count, snapshot in zip((7, 50_000, 50_000), made.watch(0.0), strict=False):
        Control(tmp_path / "0.control", create=False)["rows"] = count
        seen.append(snapshot.rows()["id"].tolist())
    assert seen == [list(range(7)), list(range(7, 50_000)), []]


def test_ctrl_c_after_the_last_response_does_not_interrupt_the_run(tmp_path: Path) -> None:
    """The shards may still count tokens, or store their chunks."""
    config = from_mapping({"server": {"url": "http://127.0.0.1:1", "model": "m"}})
    handle: Any = SimpleNamespace()
    with jobs_of(config, tmp_path, 2) as jobs:
        made = supervisor.Supervisor(jobs, lambda _: [handle, handle], whole_plan(config))
    controls = [Control(tmp_path / f"{shard}.control", create=False) for shard in range(2)]
    for control in controls:
        assert not made.interrupted
        control["ended"] = 1
    made.stop()
    assert not made.interrupted and made.stop_level == 0
    controls[1]["ended"] = 0
    made.stop()
    assert made.interrupted and made.stop_level == 2
