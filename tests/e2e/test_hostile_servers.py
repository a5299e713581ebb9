"""Servers that send faulty or endless responses: runs end in time, with bounded memory, and never with an internal error."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from command import options
from hostile_server import DONE, ENDLESS, ENDLESS_LISTS, FAULTY, OK, Case, serving, sized

from inferometer import store
from inferometer.cli.main import INTERNAL_ERROR
from inferometer.units import NS

MOST_MEMORY = 300 << 20
LONGEST = 60
"""Seconds after which a command counts as one that does not end. `server.timeouts.total` is ten times as long."""
LAST = 6
"""Seconds after which the last response must have ended or failed: the load's 0.5, `client.grace`, and 5 for a busy machine."""

QUICK = {"models-body", "models-deep", "metrics-body", "endless-tokens", "endless-body", "faulty-hangs-after-token"}
"""The cases that run in `make test`."""


def paths() -> Iterator[tuple[str, Case]]:
    """The requests that are responded to, and how."""
    for name, case in ENDLESS_LISTS.items():
        yield f"GET /models-{name}/v1/models", case
        yield f"GET /metrics-{name}/metrics", case
        yield f"POST /metrics-{name}/v1/completions", Case(sized(DONE, OK))
    for name, case in FAULTY.items():
        yield f"POST /faulty-{name}/v1/completions", case
    for name, case in ENDLESS.items():
        yield f"POST /endless-{name}/v1/completions", case


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    with serving(dict(paths())) as url:
        yield url


def cases(*tables: tuple[str, Mapping[str, Case]]) -> list[object]:
    names = [f"{prefix}-{name}" for prefix, table in tables for name in table]
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


def command(folder: Path, url: str, **settings: object) -> tuple[int, str]:
    """`inferometer run` for half a second of load, in one process; return its exit status and what it wrote."""
    common = {
        "server.api": "completions",
        "load": "{type: closed, concurrency: 4, duration: 500ms}",
        "data": "{type: prompts, prompts: [hello], output: 8}",
        "client": "{processes: 0, grace: 500ms, probe: false}",
        "output": folder,
    }
    return ended(folder, "run", url, *options(common | settings))


def ended(folder: Path, *command: str) -> tuple[int, str]:
    """Run a command in a process of its own; return the same. It fails the test if it takes too much time or memory."""
    arguments = [sys.executable, "-m", "inferometer", *command]
    memory, until = 0, time.monotonic() + LONGEST
    with (folder / "said").open("w+") as said:
        process = subprocess.Popen(arguments, stdout=said, stderr=said)
        try:
            while process.poll() is None:
                assert time.monotonic() < until, f"it did not end within {LONGEST} s"
                memory = max(memory, most_memory(process.pid))
                time.sleep(0.02)
        finally:
            process.kill()
            process.wait()
        said.seek(0)
        text = said.read()
    assert memory < MOST_MEMORY, f"{memory >> 20} MiB"
    assert process.returncode != INTERNAL_ERROR, text
    return process.returncode, text


def most_memory(process: int) -> int:
    """The most memory that a process has had, in bytes; 0 if it has ended, or on a system that does not say."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) << 10 if found else 0


@pytest.mark.parametrize("case", cases(("models", ENDLESS_LISTS)))
def test_a_list_of_models_without_an_end_is_a_clear_error(base: str, tmp_path: Path, case: str) -> None:
    code, said = command(tmp_path, f"{base}/{case}", **{"server.timeouts.connect": "1s"})
    assert code == 2
    assert f"{base}/{case}" in said


@pytest.mark.parametrize("case", cases(("metrics", ENDLESS_LISTS)))
def test_metrics_without_an_end_do_not_hold_up_the_run(base: str, tmp_path: Path, case: str) -> None:
    command(tmp_path, f"{base}/{case}", **{"server.model": "m", "observe.prometheus": f"[{base}/{case}/metrics]"})
    run = store.read(str(tmp_path / "LATEST"))
    assert (run.records.rows["failure"] == 0).all()
    assert list(run.manifest.observer_errors) == [f"{base}/{case}/metrics"]


@pytest.mark.slow
@pytest.mark.parametrize("case", ENDLESS)
def test_a_single_request_without_an_end_is_a_clear_error(base: str, tmp_path: Path, case: str) -> None:
    stream = "--stream" if ENDLESS[case].stream else "--no-stream"
    which = ("--api", "completions", "--model", "m", "--prompt", "hello", stream, "--timeout", "0.5")
    code, said = ended(tmp_path, "infer", f"{base}/endless-{case}", *which)
    assert code == 2 and "next: check" in said, said


@pytest.mark.parametrize("case", cases(("faulty", FAULTY), ("endless", ENDLESS)))
def test_a_run_ends_whatever_the_responses(base: str, tmp_path: Path, case: str) -> None:
    kind, _, name = case.partition("-")
    streams = (FAULTY | ENDLESS)[name].stream if kind == "endless" else True
    command(tmp_path, f"{base}/{case}", **{"server.model": "m", "server.stream": str(streams).lower()})
    records = store.read(str(tmp_path / "LATEST")).records
    assert "lost" not in {failure.code for failure in records.failures}  # the client process survives
    assert 0 < records.rows["done"].max() < LAST * NS
