"""Processes of engines: what they start is ended with them, whatever happens."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from waiting import until

from inferometer.engines.launching import EngineError, free_port
from inferometer.engines.process import check_port, running
from inferometer.engines.readiness import LogReader

FAMILY = "sleep 601 & (setsid sleep 602 &); trap '' TERM; echo started; sleep 603"
"""A shell that ignores SIGTERM, with a child, and a grandchild that has left the group and lost its parent."""


def descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def sleeps(processes: list[psutil.Process]) -> int:
    return sum(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


def test_everything_that_a_command_started_is_ended(tmp_path: Path) -> None:
    with running(FAMILY, tmp_path / "log", grace=0.3) as process:
        until(lambda: process.tail == ("started",))
        keeper = psutil.Process(process.pid).ppid()
        until(lambda: len(descendants(keeper)) == 4)
        family = descendants(keeper)
    assert sleeps(family) == 0


def test_a_parent_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    code = (
        "import time; from pathlib import Path; from inferometer.engines.process import running\n"
        f"with running({FAMILY!r}, Path({str(tmp_path / 'log')!r}), grace=0.3) as p: print(p.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        until(lambda: len(descendants(parent.pid)) == 5)  # with the keeper
        family = descendants(parent.pid)
        os.kill(parent.pid, signal.SIGKILL)
    until(lambda: sleeps(family) == 0)


def test_a_command_that_ends_leaves_its_status_and_its_last_output(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of an earlier start\n")
    with running("echo no memory; exit 3", log) as process:
        until(lambda: process.status is not None)
    assert process.status == 3
    assert process.tail == ("no memory",)


def test_a_log_is_read_as_it_grows_and_a_line_counts_when_it_is_complete(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running("exec sleep 605", log) as process:
        reader = LogReader(process)
        for text, lines in (
            ("one\ntw", ["one"]),
            ("o\rthree\n", ["one", "two", "three"]),
            ("", ["one", "two", "three"]),
        ):
            with log.open("a") as file:
                file.write(text)
            reader.look()
            assert [line for _, line in reader.lines] == lines


def test_the_status_of_a_server_that_has_just_ended_is_waited_for(tmp_path: Path) -> None:
    with running("exec sleep 604", tmp_path / "log") as process:
        until(lambda: psutil.Process(process.pid).name() == "sleep")
        server = psutil.Process(process.pid)
        keeper = server.ppid()
        assert process.settled_status() is None
        os.kill(keeper, signal.SIGSTOP)  # it is slow to notice
        server.kill()
        until(lambda: server.status() == psutil.STATUS_ZOMBIE)
        assert process.status is None
        threading.Timer(0.1, os.kill, (keeper, signal.SIGCONT)).start()
        assert process.settled_status() == 128 + signal.SIGKILL


def test_a_program_that_does_not_exist_says_so_in_the_log(tmp_path: Path) -> None:
    with running(["no-such-program"], tmp_path / "log") as process:
        until(lambda: process.status is not None)
    assert process.status == 127
    assert "No such file" in process.tail[0]


def test_a_ctrl_c_while_a_server_is_ended_does_not_leave_it_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt), running(["sleep", "604"], tmp_path / "log", grace=0.3) as process:
        until(lambda: psutil.Process(process.pid).name() == "sleep")
        own = psutil.Process(process.pid)
        end, calls = process.end, []

        def interrupted() -> None:
            calls.append(time.monotonic())
            if len(calls) == 1:
                raise KeyboardInterrupt
            end()

        monkeypatch.setattr(process, "end", interrupted)
    assert not own.is_running()


def test_a_port_that_is_taken_is_found_before_the_engine_starts() -> None:
    import socket  # noqa: PLC0415

    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(EngineError) as caught:
        check_port("127.0.0.1", listener.getsockname()[1])
    assert caught.value.reason == "port taken"
    check_port("127.0.0.1", free_port())
