"""Shared by the benchmarks: a core each for client and server, the null server, one run of the CLI, and the table."""

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from inferometer import store
from inferometer.records import Run

HERE = Path(__file__).parent
RESULTS = HERE / "results"
CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, CLIENT_CORE = CORES[0], CORES[-1]


class Line(msgspec.Struct):
    """One result of a benchmark."""

    what: str
    found: str
    """The measured value."""
    hold: str = ""
    """Its target, or a note."""
    ok: bool | None = None
    """Whether the target was met; None if there is none."""


def show(name: str, lines: list[Line], **facts: object) -> int:
    """Print and store the results. Returns 1 if a target was missed, otherwise 0."""
    print(f"\n{name}")
    for line in lines:
        mark = {True: "ok  ", False: "MISS", None: "    "}[line.ok]
        print(f"  {mark}  {line.what:46s} {line.found:38s} {line.hold}")
    RESULTS.mkdir(exist_ok=True)
    stamp = {"at": time.strftime("%Y-%m-%dT%H:%M:%S"), "cores": len(CORES), "load": os.getloadavg()} | facts
    (RESULTS / f"{name}.json").write_bytes(
        msgspec.json.format(
            msgspec.json.encode({"lines": lines, **stamp}, enc_hook=lambda value: value.item()), indent=2
        )
    )
    return int(any(line.ok is False for line in lines))


def pinned(core: int | str, *command: object) -> list[str]:
    """The command, restricted to this core (or to several, such as 2-5)."""
    return ["taskset", "-c", str(core), *map(str, command)]


@contextlib.contextmanager
def null_server(interval_us: int = 0, chunks: int = 100) -> Iterator[str]:
    """Run the C server, which is never the bottleneck; yields its URL."""
    with compiled_server("null_server.c", 0, interval_us, chunks) as port:
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def compiled_server(source: str, *arguments: int) -> Iterator[int]:
    """Compile a server of this folder and run it on the server's core; yields the port that it prints."""
    with (
        compiled(source) as binary,
        subprocess.Popen(pinned(SERVER_CORE, binary, *arguments), stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


@contextlib.contextmanager
def compiled(source: str) -> Iterator[Path]:
    """Compile a program of this folder; yields the binary."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit(f"this benchmark needs a C compiler (cc) for {source}")
    with tempfile.TemporaryDirectory(prefix="inferometer-") as folder:
        binary = Path(folder) / Path(source).stem
        subprocess.run([compiler, "-O2", "-o", binary, HERE / source, "-lm"], check=True)
        yield binary


@contextlib.contextmanager
def awake(core: int, apart: bool = False) -> Iterator[None]:
    """Keep the host from putting a virtual core to sleep: the time to wake it up would count as the client's or the server's.

    A busy loop at idle priority keeps the core awake. It yields at once, but if the kernel groups tasks by session
    (autogroup), only to its own session, and shares the core with others. `apart` is for a core on which processes of other
    sessions run: the loop then has its own session with the highest niceness.
    """
    command = pinned(core, "chrt", "-i", 0, sys.executable, "-c", "while True: pass")
    with subprocess.Popen(command, start_new_session=apart) as process:
        group = Path(f"/proc/{process.pid}/autogroup")
        if apart and group.exists():
            group.write_text("19")
        try:
            yield
        finally:
            process.kill()


class Measured(msgspec.Struct):
    """One run of the CLI and its cost in seconds."""

    run: Run
    summary: dict[str, Any]
    wall: float
    cpu: float
    after: float
    """Seconds from the last response to the end of the process: records, metrics and report."""


def measure(folder: str, url: str, *options: str, cores: int | str = CLIENT_CORE, **settings: object) -> Measured:
    """Run `inferometer run URL` on the client's core or cores. A setting `load__rate=500` becomes `--set load.rate=500`."""
    json_path = Path(folder) / "summary.json"
    sets = [f"--set={key.replace('__', '.')}={json.dumps(value)}" for key, value in settings.items()]
    inferometer = Path(sys.executable).with_name("inferometer")
    command = pinned(
        cores,
        inferometer,
        "run",
        url,
        "-q",
        *options,
        *sets,
        f"--set=output={folder}/runs",
        "--set=client.probe=false",
        f"--json={json_path}",
    )
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    end, after = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    run = store.read(f"{folder}/runs/LATEST")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    last = (run.manifest.t0_wall_ns + int(run.records.rows["done"].max())) / 1e9
    return Measured(run, json.loads(json_path.read_bytes()), end - start, cpu, end - last)


def percentile(metric: dict[str, Any], name: str) -> float:
    """A percentile from summary.json; it may be "inf"."""
    return float(metric[name])


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
