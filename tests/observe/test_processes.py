"""Server processes and their children: found by name, and read while they come and go."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from waiting import until

from inferometer.errors import UserError
from inferometer.observe.process_names import find, names_of
from inferometer.observe.processes import ProcessWatch, _Reading, lost
from inferometer.series import TimeSeries

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a Python script of a given name that obeys lines on its standard input."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str, name: str = "inferometer-test-server.py", *arguments: str) -> "subprocess.Popen[str]":
        script = tmp_path / name
        script.write_text(code)
        command = [sys.executable, *arguments, str(script)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield run
    for process in started:
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.communicate()


def tell(process: "subprocess.Popen[str]", line: str) -> str:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


SERVER = """
import os, subprocess, sys, time
def burn(seconds):
    while time.process_time() < seconds: pass
children = []
print("ready", flush=True)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "burn": burn(time.process_time() + float(rest[0]))
    if word == "allocate": kept = b"x" * int(rest[0])
    if word == "child":
        code = "import time\\nwhile time.process_time() < %s: pass\\nprint('burnt', flush=True)\\ntime.sleep(600)" % rest[0]
        children.append(subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE))
        children[-1].stdout.readline()
    if word == "reap":
        children[-1].kill()
        children.pop().wait()
    print("done", flush=True)
"""


def watch_of(*pids: int) -> ProcessWatch:
    return ProcessWatch(find(pids), 1.0)


def recorded(watch: ProcessWatch) -> dict[str, TimeSeries]:
    return {each.name: each for each in watch.end()}


def test_cpu_and_memory_of_a_process_and_its_children_are_added_up(start: Start) -> None:
    server = start(SERVER)
    watch = watch_of(server.pid)
    watch.start()
    tell(server, "burn 0.2")
    tell(server, "child 0.3")
    tell(server, f"allocate {64 << 20}")
    watch.sample()
    found = recorded(watch)
    assert found["cpu"].labels == {"process": str(server.pid), "name": psutil.Process(server.pid).name()}
    assert found["processes"].value.tolist() == [1, 2, 2]
    assert found["cpu"].value[1] - found["cpu"].value[0] >= 0.46, "two clock ticks may be missing of each"
    assert found["memory"].value[1] - found["memory"].value[0] >= 64 << 20
    assert {"threads", "disk_read", "disk_written"} <= set(found)
    assert watch.problems() == {}


def test_cpu_of_a_child_that_has_ended_is_not_lost_and_not_counted_twice(start: Start) -> None:
    server = start(SERVER)
    watch = watch_of(server.pid)
    watch.start()
    tell(server, "child 0.3")
    watch.sample()
    tell(server, "reap")
    watch.sample()
    tell(server, "child 0.2")
    tell(server, "reap")  # it came and went between two samples
    found = recorded(watch)
    assert found["processes"].value.tolist() == [1, 2, 1, 1]
    cpu = found["cpu"].value.tolist()
    assert all(first <= second for first, second in pairwise(cpu))
    everything = psutil.Process(server.pid).cpu_times()
    total = everything.user + everything.system + everything.children_user + everything.children_system
    assert cpu[-1] - cpu[0] >= 0.46 and abs(cpu[-1] - total) <= 0.05


IGNORING = SERVER.replace(
    "children = []", "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nchildren = []"
)


def test_cpu_of_a_child_that_nobody_waits_for_is_kept(start: Start) -> None:
    server = start(IGNORING)
    watch = watch_of(server.pid)
    watch.start()
    tell(server, "child 0.3")
    watch.sample()
    tell(server, "reap")
    cpu = recorded(watch)["cpu"].value.tolist()
    times = psutil.Process(server.pid).cpu_times()
    assert times.children_user + times.children_system == 0
    assert cpu[2] >= cpu[1] >= cpu[0] + 0.28


def test_a_child_stays_in_the_group_when_its_parent_has_ended(start: Start) -> None:
    server = start(SERVER + "\n")
    watch = watch_of(server.pid)
    watch.start()
    tell(server, "child 0.1")
    watch.sample()
    (child,) = psutil.Process(server.pid).children()
    server.kill()
    server.wait()
    watch.sample()
    child.kill()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the child has ended")
    found = recorded(watch)
    assert found["processes"].value.tolist()[:3] == [1, 2, 1]
    cpu = found["cpu"].value.tolist()
    assert all(first <= second for first, second in pairwise(cpu))
    (problem,) = watch.problems().values()
    assert problem.startswith(f"process {server.pid} (") and "ended during the run, before " in problem


def test_a_process_that_ends_has_no_more_values(start: Start) -> None:
    server = start(SERVER)
    watch = watch_of(server.pid)
    watch.start()
    server.kill()
    until(lambda: psutil.Process(server.pid).status() == psutil.STATUS_ZOMBIE, "it has ended, and nobody has waited")
    watch.sample()
    found = recorded(watch)
    assert all(len(each.at) == 1 for each in found.values())
    assert list(watch.problems()) == [f"process {server.pid}"]


def test_an_id_that_another_process_has_got_is_not_read(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(SERVER)
    watch = watch_of(server.pid)
    watch.start()
    monkeypatch.setattr(
        psutil.Process, "is_running", lambda self: self.pid != server.pid
    )  # as when create_time differs
    assert all(len(each.at) == 1 for each in recorded(watch).values())
    assert list(watch.problems()) == [f"process {server.pid}"]


def test_what_must_not_be_read_is_missing_with_a_reason(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(SERVER)

    def deny(self: psutil.Process) -> None:
        raise psutil.AccessDenied(self.pid)

    monkeypatch.setattr(psutil.Process, "io_counters", deny)
    watch = watch_of(server.pid)
    watch.start()
    assert "disk_read" not in (found := recorded(watch)) and "cpu" in found
    assert watch.problems() == {
        f"process {server.pid}: disk I/O": f"access to process {server.pid} was denied: run inferometer as the user of that process"
    }


WATCHING_ITS_PARENT = """
import os, psutil
from inferometer.observe.process_names import Found
from inferometer.observe.processes import ProcessWatch
watch = ProcessWatch({"parent": Found("parent", (psutil.Process(os.getppid()),))}, 1.0)
watch.start()
print({each.name: each.value.tolist() for each in watch.end()}["processes"])
"""


def test_this_process_is_not_counted_as_a_child_of_what_it_was_started_from() -> None:
    """The watch runs in the only child of a process that has nothing else to do."""
    parent = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', sys.argv[1]]).returncode)"
    command = [sys.executable, "-c", parent, WATCHING_ITS_PARENT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[1.0, 1.0]\n"


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "command", "known"),
    [
        ("llama-server", ["/opt/bin/llama-server", "-m", "model.gguf"], {"llama-server"}),
        ("python3.11", ["/usr/bin/python3.11", "/opt/bin/vllm", "serve"], {"python3.11", "vllm"}),
        (
            "python",
            ["python", "-X", "dev", "-u", "-m", "sglang.launch_server", "--port", "1"],
            {"python", "sglang", "sglang.launch_server"},
        ),
        ("python", ["python", "-c", "import vllm", "vllm"], {"python"}),
        ("tritonserver", [], {"tritonserver"}),
        ("a-name-of-15-ch", ["./a-name-of-15-characters"], {"a-name-of-15-ch", "a-name-of-15-characters"}),
    ],
)
def test_names_that_a_process_is_known_by(name: str, command: list[str], known: set[str]) -> None:
    assert names_of(name, command) == known


def test_all_processes_of_a_name_are_found(start: Start) -> None:
    name = f"server-{os.getpid()}.py"  # tests in other processes start servers, too
    servers = [start(SERVER, name, "-u") for _ in range(2)]
    found = find([name, str(servers[0].pid)])
    assert {process.pid for process in found[name].processes} == {each.pid for each in servers}
    assert [process.pid for process in found[str(servers[0].pid)].processes] == [servers[0].pid]


def test_this_process_is_not_found_by_name() -> None:
    own = psutil.Process().name()
    try:
        found = find([own])[own].processes
    except UserError:
        return
    assert os.getpid() not in {process.pid for process in found}


def test_a_name_without_a_process_is_an_error_that_names_the_closest(start: Start) -> None:
    start(SERVER)
    with pytest.raises(UserError) as caught:
        find(["inferometer-test-servr.py"])
    assert caught.value.what == "no process on this machine is called inferometer-test-servr.py"
    assert caught.value.remedy.startswith("start the server first, or give the process id; the closest names are ")
    assert "inferometer-test-server.py" in caught.value.remedy
    assert caught.value.key == "observe.processes"


@pytest.mark.parametrize("pid", [0x7FFFFFF0, 10**30, -1])
def test_an_id_without_a_process_is_an_error(pid: int) -> None:
    with pytest.raises(UserError, match=f"there is no process with the id {pid}"):
        find([pid])


# --- counters of processes that have ended ---------------------------------------------------------------------------


def reading(parent: int, own: float, of_children: float = 0.0) -> _Reading:
    return _Reading(parent, {"cpu": own + of_children}, {"cpu": of_children})


def test_counters_are_lost_unless_a_parent_or_grandparent_has_inherited_them() -> None:
    before = {1: reading(0, 5), 2: reading(1, 3), 3: reading(2, 2)}
    assert lost(before, before)["cpu"] == 0
    assert lost(before, {1: reading(0, 5), 2: reading(1, 3, 2.5)})["cpu"] == 0, "the parent has waited"
    assert lost(before, {1: reading(0, 6), 2: reading(1, 4)})["cpu"] == 2, "the parent has not"
    assert lost(before, {1: reading(0, 5, 6)})["cpu"] == 0, "both ended, one after the other"
    assert lost(before, {1: reading(0, 5, 4)})["cpu"] == 1
    assert lost(before, {})["cpu"] == 10, "nobody is left"
