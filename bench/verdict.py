"""Is the verdict right in both directions? Runs that are sick in a known way, and healthy ones on a machine that is busy.

Every run is live against the simulator (or a real tensor model of the reference server). A sick run must have the expected
verdict for the expected reason: the check that failed, or warned. A healthy run takes place while two busy loops compete for the
cores. It must be VALID; if the simulator's own log says that the client made a printed figure wrong by more than 5 %, it must be
INVALID instead.
"""

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil

from bench.common import Line, show
from bench.nagle_server import nagle_server
from inferometer.analysis.percentiles import rank
from inferometer.serve.background import serving
from inferometer.serve.settings import Settings, simulator
from inferometer.serve.sim import truth
from inferometer.serve.sim.settings import Batch, Fixed

CAPACITY = 80.0
"""Requests per second of QUEUE: 8 at a time, 100 ms each."""
QUEUE = Fixed(ttft=0.05, itl=0.01, max_batch=8)
LENGTH = ("--input", "64", "--output", "6")
WRONG = 0.05
LEAST_S = 0.0001

During = Callable[[int], None]
"""Does something to the client while it runs; called with its process id."""


class Case(msgspec.Struct, kw_only=True):
    name: str
    timing: Fixed | Batch = Fixed(ttft=0.1, itl=0.01)
    options: tuple[str, ...]
    faults: tuple[str, ...] = ()
    max_queue: int | None = None
    tokens_per_chunk: int = 1
    tensors: str = ""
    """`http` or `grpc`: serve a tensor model that takes 20 ms instead of the simulator."""
    during: During | None = None
    patch: str = ""
    """Python that the client runs first, to inject what cannot be done to a real machine."""
    before: int = 0
    """Runs of the same kind before the one that counts."""
    status: str = ""
    """Sick: `fail` or `warn`, of the check `because`; healthy: empty."""
    because: tuple[str, ...] = ()
    also: Callable[[dict[str, Any]], str] = lambda summary: ""
    """Returns what else is wrong with the summary."""


# --- what is done to the client --------------------------------------------------------------------------------------


def _workers(pid: int) -> list[psutil.Process]:
    """The processes that send: the client's children, or itself if it has none."""
    client = psutil.Process(pid)
    return client.children(recursive=True) or [client]


def squeeze(pid: int) -> None:
    """Let the workers run for a fifth of the time: 10 ms of every 50."""
    time.sleep(2.0)
    with contextlib.suppress(psutil.NoSuchProcess):
        workers = _workers(pid)
        end = time.monotonic() + 12
        while time.monotonic() < end:
            for worker in workers:
                worker.suspend()
            time.sleep(0.04)
            for worker in workers:
                worker.resume()
            time.sleep(0.01)


def pause(pid: int) -> None:
    """Stop the workers once, for half a second."""
    time.sleep(6.0)
    with contextlib.suppress(psutil.NoSuchProcess):
        workers = _workers(pid)
        for worker in workers:
            worker.suspend()
        time.sleep(0.5)
        for worker in workers:
            worker.resume()


_STEPPED = """
import time
from inferometer.engine import reader, self_monitor
offset, unpack, begin = self_monitor.wall_offset, reader.unpack_stamp, time.monotonic()
def step():
    since = time.monotonic() - begin - 4
    return round(-20e6 * ({steps}))
self_monitor.wall_offset = lambda: offset() + step()
reader.unpack_stamp = lambda data: (unpack(data)[0], unpack(data)[1] + step())
"""
"""The wall clock is set back, and the kernel's timestamps with it."""
ONE_STEP = _STEPPED.format(steps="since > 0")
MANY_STEPS = _STEPPED.format(steps="max(0, since // 0.25)")


def _quotable(latency: bool, throughput: bool) -> Callable[[dict[str, Any]], str]:
    def check(summary: dict[str, Any]) -> str:
        expected = {"latency": latency, "throughput": throughput}
        return "" if summary["quotable"] == expected else f"quotable: {summary['quotable']}"

    return check


def _saturated(summary: dict[str, Any]) -> str:
    rate = summary["throughput"]["requests"]
    if rate is None or abs(rate / CAPACITY - 1) > 0.03:
        return f"{rate} requests/s, capacity {CAPACITY}"
    return _quotable(latency=False, throughput=True)(summary)


def _infinite(summary: dict[str, Any]) -> str:
    return "" if summary["metrics"]["ttft"]["p99"] == "inf" else "the p99 of ttft is not inf"


def _second_stage(summary: dict[str, Any]) -> str:
    """Only the second stage is affected."""
    return "" if [stage["quotable"]["latency"] for stage in summary["stages"]] == [True, False] else "quotable stages"


# --- the cases -------------------------------------------------------------------------------------------------------

SICK = [
    Case(name="overload, 1.05 x capacity", timing=QUEUE, options=("--rate", "84", "--duration", "60s", *LENGTH),
         status="fail", because=("overload",), also=_saturated),
    Case(name="overload, 1.3 x capacity", timing=QUEUE, options=("--rate", "104", "--duration", "15s", *LENGTH),
         status="fail", because=("overload",), also=_saturated),
    Case(name="client squeezed to 20 % of a core", options=("--rate", "50", "--duration", "10s", *LENGTH), during=squeeze,
         status="fail", because=("lag", "read_delay", "stalls")),
    Case(name="client paused for 0.5 s", options=("--rate", "50", "--duration", "15s", *LENGTH), during=pause,
         status="fail", because=("lag", "stalls")),
    Case(name="wall clock set back by 20 ms every 0.25 s", options=("--rate", "50", "--duration", "12s", "--set", "client.processes=0", *LENGTH),
         patch=MANY_STEPS, status="fail", because=("clock_step",)),
    Case(name="wall clock set back by 20 ms once, which changes no percentile", patch=ONE_STEP, status="warn", because=("clock_step",),
         options=("--rate", "50", "--duration", "12s", "--set", "client.processes=0", *LENGTH)),
    Case(name="30 % failures", options=("--rate", "50", "--duration", "10s", *LENGTH), faults=("reject=503@30%",),
         status="fail", because=("failures",)),
    Case(name="2 % failures in one stage only", options=("--rate", "50:100:50", "--duration", "8s", *LENGTH),
         faults=tuple(f"reject=503@#{n}" for n in range(500, 1200, 50)), status="fail", because=("failures",), also=_second_stage),
    Case(name="empty responses", options=("--concurrency", "8", "--requests", "100", *LENGTH), faults=("empty",),
         status="fail", because=("failures", "completed")),
    Case(name="the slowest are refused", timing=Fixed(ttft=0.05, itl=0.01, max_batch=8, service="exponential"), max_queue=2,
         options=("--rate", "56", "--duration", "30s", *LENGTH), status="fail", because=("failures",), also=_infinite),
    Case(name="too short to tell", timing=Fixed(ttft=2.0, itl=0.2), options=("--rate", "10", "--duration", "5s", *LENGTH),
         status="fail", because=("overload",)),
    Case(name="requests dropped at the cap", timing=QUEUE, status="fail", because=("dropped",),
         options=("--rate", "100", "--duration", "10s", "--set", "load.max_concurrency=8", "--set", "load.when_full=drop", *LENGTH)),
    Case(name="warm prefix cache", timing=Batch(prefix_cache=True), before=1, status="warn",
         because=("cached_tokens",),
         options=("--rate", "20", "--duration", "10s", "--set", "data.salt=none", "--input", "256", "--output", "6")),
    Case(name="lockstep", status="warn", because=("lockstep",),
         options=("--concurrency", "16", "--duration", "10s", "--set", "load.ramp_up=0", *LENGTH)),
]  # fmt: skip

HEALTHY = [
    Case(name="Poisson, 20/s", options=("--rate", "20", "--duration", "12s", *LENGTH)),
    Case(name="constant, 50/s", options=("--rate", "50", "--duration", "12s", "--set", "load.type=constant", *LENGTH)),
    Case(name="bursty gamma, 20/s", options=("--rate", "20", "--duration", "12s", "--set", "load.type=gamma", "--set", "load.burstiness=0.5", *LENGTH)),
    Case(name="closed, 1 user", options=("--concurrency", "1", "--duration", "10s", *LENGTH)),
    Case(name="closed, 8 users", options=("--concurrency", "8", "--duration", "10s", *LENGTH)),
    Case(name="closed, 64 users", options=("--concurrency", "64", "--duration", "12s", *LENGTH)),
    Case(name="100 tokens per response", options=("--rate", "5", "--duration", "15s", "--input", "64", "--output", "100")),
    Case(name="4 tokens per chunk", tokens_per_chunk=4, options=("--rate", "20", "--duration", "12s", "--input", "64", "--output", "32")),
    Case(name="not streamed", options=("--rate", "20", "--duration", "12s", "--set", "server.stream=false", *LENGTH)),
    Case(name="times vary by 50 %", timing=Fixed(ttft=0.1, itl=0.01, jitter=0.5), options=("--rate", "20", "--duration", "12s", *LENGTH)),
    Case(name="0.8 x capacity, random service times", timing=Fixed(ttft=0.05, itl=0.01, max_batch=8, service="exponential"),
         options=("--rate", "64", "--duration", "30s", *LENGTH)),
    Case(name="0.95 x capacity, constant arrivals", timing=QUEUE, options=("--rate", "76", "--duration", "20s", "--set", "load.type=constant", *LENGTH)),
    Case(name="batch engine at half load", timing=Batch(), options=("--rate", "10", "--duration", "15s", "--input", "256", "--output", "32")),
    Case(name="sweep of three rates", options=("--rate", "10:30:10", "--duration", "8s", *LENGTH)),
    Case(name="tensors over HTTP", tensors="http", options=("--concurrency", "4", "--duration", "8s", "--set", "server.api=kserve")),
    Case(name="tensors over gRPC", tensors="grpc", options=("--concurrency", "4", "--duration", "8s")),
]  # fmt: skip


def main() -> int:
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="inferometer-") as folder:
        lines += [_judge(case, Path(folder)) for case in SICK]
        lines.append(_nagle(Path(folder)))
        with _busy(2):
            lines += [_judge(case, Path(folder)) for case in HEALTHY]
    return show("verdict", lines)


def _judge(case: Case, folder: Path) -> Line:
    log = folder / "truth.jsonl"
    with _server(case, log) as url:
        for _ in range(case.before):
            _run(case, url, folder)
        summary = _run(case, url, folder)
    line = _line(case, summary, None if case.tensors or case.status else _error(summary, log))
    print(f"{'ok  ' if line.ok else 'MISS'}  {line.what}: {line.found}", flush=True)
    return line


def _line(case: Case, summary: dict[str, Any], wrong: float | None) -> Line:
    by_status = {status: [c["name"] for c in summary["checks"] if c["status"] == status] for status in ("fail", "warn")}
    reasons = ", ".join([*by_status["fail"], *(f"{name} (warning)" for name in by_status["warn"])]) or "no warning"
    expected = "INVALID" if case.status == "fail" else "VALID"
    if not case.status and wrong is not None and wrong > WRONG:
        expected = "INVALID"
    problem = case.also(summary)
    for_reason = not case.because or bool(set(case.because) & set(by_status[case.status]))
    ok = summary["verdict"] == expected and for_reason and not problem
    hold = expected + (f" by {' or '.join(case.because)}" if case.because else "")
    if wrong is not None and not case.status:
        hold += f"; the client is off by {wrong:.1%} at most"
    return Line(case.name, f"{summary['verdict']}: {reasons}"[:60], f"{hold} {problem}".strip(), ok)


def _nagle(folder: Path) -> Line:
    """A server that does not set TCP_NODELAY: its chunks arrive together, after the client's delayed ACK."""
    case = Case(
        name="chunks merged by the network",
        options=("--concurrency", "4", "--requests", "60", "--input", "64", "--output", "24"),
        status="warn",
        because=("merged_chunks",),
    )
    with nagle_server() as url:
        line = _line(case, _run(case, url, folder), None)
        print(f"{'ok  ' if line.ok else 'MISS'}  {line.what}: {line.found}", flush=True)
        return line


# --- running ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _server(case: Case, log: Path) -> Iterator[str]:
    if case.tensors:
        settings = Settings(models=(_delayed(log.parent),), http=0, grpc=0)
        with serving(settings) as server:
            yield server.grpc if case.tensors == "grpc" else server.url
        return
    settings = simulator(
        timing=case.timing,
        faults=case.faults,
        max_queue=case.max_queue,
        tokens_per_chunk=case.tokens_per_chunk,
        truth=str(log),
    )
    with serving(settings) as server:
        yield server.url


def _delayed(folder: Path) -> str:
    """A model repository with one model, which takes 20 ms for each request."""
    repository = folder / "models"
    (repository / "delay" / "1").mkdir(parents=True, exist_ok=True)
    (repository / "delay" / "config.pbtxt").write_text(_DELAY)
    return str(repository)


_DELAY = """
backend: "sim"
max_batch_size: 8
input  [{ name: "INPUT0", data_type: TYPE_FP32, dims: [ 16 ] }]
output [{ name: "OUTPUT0", data_type: TYPE_FP32, dims: [ 16 ] }]
parameters { key: "delay" value { string_value: "20ms" } }
parameters { key: "slots" value { string_value: "0" } }
"""


def _run(case: Case, url: str, folder: Path) -> dict[str, Any]:
    """Run the client as a user would, and return its summary."""
    path = folder / "summary.json"
    path.unlink(missing_ok=True)
    api = () if case.tensors else ("--set", "server.api=completions")
    arguments = ["run", url, "-q", *case.options, *api, "--set", f"output={folder}/runs", "--json", str(path)]
    program = f"{case.patch}\nfrom inferometer.cli.main import entry\nentry()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    if case.during is not None:
        threading.Thread(target=case.during, args=(process.pid,), daemon=True).start()
    _, errors = process.communicate(timeout=180)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{case.name}: {errors.decode()}")
    summary: dict[str, Any] = json.loads(path.read_bytes())
    if (summary["verdict"] == "INVALID") != (process.returncode == 1):
        raise SystemExit(f"{case.name}: {summary['verdict']}, but exit status {process.returncode}")
    return summary


@contextlib.contextmanager
def _busy(loops: int) -> Iterator[None]:
    """Processes that compute all the time."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _error(summary: dict[str, Any], log: Path) -> float | None:
    """The largest relative error of a printed percentile of ttft or itl against the server's log; None if stages differ."""
    if summary["stages"]:
        return None
    logged = [row for row in truth.read(log) if row.first is not None]
    run = (logged[-1].id or "").rpartition("-")[0]  # the requests before it were estimates of the client's load
    rows = [row for row in logged if (row.id or "").startswith(run)]
    true = {
        "ttft": np.sort([row.first - row.arrived for row in rows]) / 1e9,
        "itl": np.sort(np.concatenate([np.diff(row.chunks) for row in rows])) / 1e9,
    }
    worst = 0.0
    for name, values in true.items():
        metric = summary["metrics"][name]
        for percentile, thousandths in (("p50", 500), ("p90", 900), ("p99", 990)):
            reported = metric[percentile]
            if isinstance(reported, float) and len(values):
                real = float(values[rank(thousandths, len(values)) - 1])
                off = abs(reported - real)
                worst = max(worst, off / real if off > LEAST_S else 0.0)
    return worst


if __name__ == "__main__":
    sys.exit(main())
