"""The reference server compared with the limit of Python, Triton and MLServer; the gain of batching; the cost of protocols.

    python -m bench.server [--seconds 2] [--rounds 3] [--only identity,batching,protocols]

identity    A model that returns its input (FP32 [1, 16]), over gRPC and over HTTP with binary tensors. Each server has the same
            single core for all of its threads and processes; the client, the same for all, has the other core. The echo servers
            (echo_server.py) do only what any Python server with that library must do: they send a fixed response. Triton and
            MLServer are included if they are installed. Triton's model runs in its python backend, a separate process that
            batches (this build has no other backend).
batching    The built-in classifier (PyTorch, one thread, one instance) with 32 requests in flight over HTTP, with the pixels in
            shared memory, batched and not batched. Server and model share a core.
protocols   `inferometer compare-protocols` on the reference server.

`CPU` is the CPU time of all processes of the server from the start to the end of the client, per request. `server` and
`client` show how busy the two cores were: if the server is well below 100 %, something else was the bottleneck, and the rate is
not the server's limit. `VALID` counts the runs with that verdict. Servers take turns in each round. A ratio is the median of the
ratios of the rounds, and `by CPU` is the same for the CPU time per request.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bench.common import CLIENT_CORE, HERE, RESULTS, SERVER_CORE, Line, measure, median, percentile, show
from inferometer import compare_protocols
from inferometer.report import protocol_comparison as protocols_report
from inferometer.serve import background
from inferometer.serve.settings import Settings

ROOT = HERE.parent
INSTALLED = Path(os.environ.get("INFEROMETER_REAL") or Path.home() / ".cache/inferometer/real")
PARTS = ("identity", "batching", "protocols")
OURS = "inferometer"
IDENTITY = "identity", {"INPUT0": [1, 16]}
IN_FLIGHT = (1, 16, 64)
HELD = {"grpc.aio echo": 0.5}
"""Targets with 64 requests in flight: our requests per second divided by those of an echo server."""
BATCHING_GAIN = 1.5
BATCHED_IN_FLIGHT = 32
SIZES = (1_000, 100_000, 10_000_000)
JSON_S = 5.0
"""Minimum duration of a run: 10 MB as JSON take long."""


class Server(msgspec.Struct):
    """A running server, and the model that is requested."""

    name: str
    pid: int
    urls: dict[str, str]
    """URLs by protocol: grpc, http."""
    model: str
    shape: dict[str, list[int]]
    """Shape of its input."""


class Result(msgspec.Struct):
    """The result of one run."""

    rate: float
    p50: float
    p99: float
    cpu: float
    """CPU seconds of the server per request."""
    client: float
    """Share of its core that the client used while it was sending, from its own check."""
    verdict: str
    not_passed: list[str]
    """Names of the checks that did not pass."""


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of each run")
    parser.add_argument("--rounds", type=int, default=3, help="runs per server")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run, separated by commas")
    options = parser.parse_args(arguments)
    wanted = options.only.split(",")
    lines: list[Line] = []
    facts: dict[str, Any] = {"seconds": options.seconds, "rounds": options.rounds}
    with tempfile.TemporaryDirectory(prefix="inferometer-") as folder:
        if "identity" in wanted:
            lines += _identity(folder, options.seconds, options.rounds, facts)
        if "batching" in wanted:
            lines += _batching(folder, options.seconds, options.rounds, facts)
    if "protocols" in wanted:
        lines += _protocols(options.seconds, facts)
    return show("server", lines, **facts)


# --- identity --------------------------------------------------------------------------------------------------------


def _identity(folder: str, seconds: float, rounds: int, facts: dict[str, Any]) -> list[Line]:
    lines: list[Line] = []
    with contextlib.ExitStack() as held:
        servers = [held.enter_context(started) for started in (_ours(), *map(_echo, ECHOES), *_real())]
        missing = [name for name in REAL if not _is_installed(name)]
        lines += [Line(name, "not installed", f"tools/real_servers/install.sh {name}") for name in missing]
        for protocol in ("grpc", "http"):
            speaking = [server for server in servers if protocol in server.urls]
            for in_flight in IN_FLIGHT:
                found = _in_turn(folder, speaking, protocol, in_flight, seconds, rounds)
                facts[f"{protocol}, {in_flight} in flight"] = found
                lines += _identity_lines(protocol, in_flight, found)
    return lines


def _identity_lines(protocol: str, in_flight: int, found: dict[str, list[Result]]) -> list[Line]:
    what = f"{protocol}, {in_flight} in flight"
    lines = [Line(f"{what}: {name}", _words(runs), _cores(runs)) for name, runs in found.items()]
    for peer in (name for name in found if name != OURS):
        ratios = [ours.rate / theirs.rate for ours, theirs in zip(found[OURS], found[peer], strict=True)]
        cpu = median([theirs.cpu / ours.cpu for ours, theirs in zip(found[OURS], found[peer], strict=True)])
        ratio, hold = median(ratios), HELD.get(peer) if in_flight == max(IN_FLIGHT) else None
        held = ("", None) if hold is None else (f">= {hold:g}", ratio >= hold)
        words = f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f}), by CPU {cpu:.2f}"
        lines.append(Line(f"{what}: {OURS} / {peer}", words, *held))
    return lines


def _words(runs: list[Result]) -> str:
    rate, p99, cpu = (median([getattr(run, name) for run in runs]) for name in ("rate", "p99", "cpu"))
    return f"{rate:7,.0f}/s  p99 {p99 * 1e3:6.2f} ms  CPU {cpu * 1e6:4.0f} us"


def _cores(runs: list[Result]) -> str:
    server, client = median([run.rate * run.cpu for run in runs]), median([run.client for run in runs])
    valid = sum(run.verdict == "VALID" for run in runs)
    return f"server {server:.0%} client {client:.0%} VALID {valid}/{len(runs)}"


def _in_turn(
    folder: str, servers: list[Server], protocol: str, in_flight: int, seconds: float, rounds: int, **more: object
) -> dict[str, list[Result]]:
    """Measure every server once per round, starting with another one each time."""
    found: dict[str, list[Result]] = {server.name: [] for server in servers}
    for turn in range(rounds):
        first = turn % len(servers)
        for server in (*servers[first:], *servers[:first]):
            found[server.name].append(_measure(folder, server, protocol, in_flight, seconds, **more))
    return found


def _measure(folder: str, server: Server, protocol: str, in_flight: int, seconds: float, **more: object) -> Result:
    before = _cpu(server.pid)
    found = measure(
        folder,
        server.urls[protocol],
        *("--model", server.model, "--concurrency", str(in_flight), "--duration", f"{seconds:g}s"),
        server__api="kserve",
        data__type="tensors",
        data__shape=server.shape,
        **more,
    )
    spent = _cpu(server.pid) - before
    summary = found.summary
    assert summary["counts"]["failed"] == 0, (server.name, summary["counts"])
    e2e, failed = summary["metrics"]["e2e_service"], [c["name"] for c in summary["checks"] if c["status"] != "pass"]
    p50, p99 = (percentile(e2e, name) for name in ("p50", "p99"))
    requests = len(found.run.records.rows)
    rate = summary["throughput"]["requests"] or 0.0
    client = next((check["value"] for check in summary["checks"] if check["name"] == "cpu"), None) or 0.0
    return Result(rate, p50, p99, spent / requests, client, summary["verdict"], failed)


def _cpu(pid: int) -> float:
    """CPU seconds that a process and its children have used."""
    top = psutil.Process(pid)
    total = 0.0
    for process in (top, *top.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


# --- batching --------------------------------------------------------------------------------------------------------

BATCHED = {
    "not batched": ("max_batch_size=1",),
    "batched, no delay": ("max_batch_size=32",),
    "batched, 2 ms": ("max_batch_size=32", "dynamic_batching.max_queue_delay_microseconds=2000"),
}


def _batching(folder: str, seconds: float, rounds: int, facts: dict[str, Any]) -> list[Line]:
    if importlib.util.find_spec("torch") is None:
        return [Line("batching", "skipped: torch is not installed", "pip install 'inferometer[torch]'")]
    shape = {"pixels": [1, 3, 224, 224]}
    with contextlib.ExitStack() as held:
        servers = [held.enter_context(_ours(name, "classifier", shape, config)) for name, config in BATCHED.items()]
        found = _in_turn(folder, servers, "http", BATCHED_IN_FLIGHT, seconds, rounds, server__shared_memory=True)
    facts["batching"] = found
    plain = found["not batched"]
    lines = [Line(f"classifier: {name}", _words(runs), _cores(runs)) for name, runs in found.items()]
    for name in ("batched, no delay", "batched, 2 ms"):
        gains = [on.rate / off.rate for on, off in zip(found[name], plain, strict=True)]
        gain = median(gains)
        held_gain = (f">= {BATCHING_GAIN:g}", gain >= BATCHING_GAIN) if name == "batched, no delay" else ("", None)
        lines.append(
            Line(f"classifier: {name} / not", f"{gain:.2f} ({min(gains):.2f} to {max(gains):.2f})", *held_gain)
        )
    return lines


# --- protocols -------------------------------------------------------------------------------------------------------


def _protocols(seconds: float, facts: dict[str, Any]) -> list[Line]:
    with _ours() as server, _on(CLIENT_CORE):
        options = compare_protocols.ComparisonOptions(
            http=server.urls["http"], grpc=server.urls["grpc"], sizes=SIZES, duration=max(seconds, JSON_S)
        )
        found = compare_protocols.compare(options)
    table = protocols_report.render(found)
    print(table)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "server_protocols.txt").write_text(table, encoding="utf-8")
    facts["protocols"] = msgspec.to_builtins(found)
    return [_protocols_line(found, size) for size in SIZES]


def _protocols_line(found: Any, size: int) -> Line:
    mean = {cell.protocol: cell.mean or cell.e2e.mean for cell in found.cells if cell.size == size}
    words = "  ".join(f"{name} {value / mean['grpc']:.2f}" for name, value in mean.items())
    return Line(f"mean time, {protocols_report.format_size(size)}, relative to gRPC unary", words)


# --- the servers -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _on(core: int) -> Iterator[None]:
    """Restrict the processes that are started within the block, with all of their threads and children, to this core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def _ours(
    name: str = OURS,
    model: str = IDENTITY[0],
    shape: dict[str, list[int]] = IDENTITY[1],
    config: tuple[str, ...] = (),
) -> Iterator[Server]:
    with _on(SERVER_CORE):
        running = background.start(Settings(models=(model,), config=config, http=0, grpc=0))
    try:
        urls = {"http": running.url, "grpc": running.grpc}
        yield Server(name, running.pid, urls, model, shape)
    finally:
        running.stop()


ECHOES = {"grpc.aio echo": "aio", "grpcio threads echo": "threads", "httptools echo": "http"}


@contextlib.contextmanager
def _echo(name: str) -> Iterator[Server]:
    kind = ECHOES[name]
    protocol = "http" if kind == "http" else "grpc"
    with _process(sys.executable, "-P", HERE / "echo_server.py", kind) as (port, pid):  # -P: this folder has a grpc.py
        yield Server(name, pid, {protocol: f"{protocol}://127.0.0.1:{int(port)}"}, *IDENTITY)


@contextlib.contextmanager
def _installed(name: str, model: str, shape: dict[str, list[int]]) -> Iterator[Server]:
    """A real server from tools/real_servers."""
    script, models = ROOT / f"tools/real_servers/{name}/serve.py", ROOT / f"tests/real/{name}_models"
    with _process(INSTALLED / name / "bin/python", script, "--models", models, model) as (line, _):
        started = json.loads(line)
        urls = {protocol: started[protocol] for protocol in REAL[name]}
        yield Server(name, started["pid"], urls, model, shape)


REAL = {"triton": ("grpc", "http"), "mlserver": ("grpc",)}
"""The protocols that are measured: MLServer responds to a binary tensor over HTTP with 500."""


def _real() -> list[contextlib.AbstractContextManager[Server]]:
    models = {"triton": IDENTITY, "mlserver": ("echo", {"x": [4, 4]})}
    return [_installed(name, *of) for name, of in models.items() if _is_installed(name)]


def _is_installed(name: str) -> bool:
    return (INSTALLED / name / "installed.txt").exists()


@contextlib.contextmanager
def _process(*command: object) -> Iterator[tuple[str, int]]:
    """A process on the server's core that prints one line when it is ready, and ends when its standard input is closed."""
    with tempfile.TemporaryFile("w+") as log:
        with _on(SERVER_CORE):
            process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        with process:
            assert process.stdin is not None and process.stdout is not None
            line = process.stdout.readline()
            if not line:
                log.seek(0)
                raise SystemExit(f"{command[-1]} did not start:\n{log.read()[-4000:]}")
            try:
                yield line, process.pid
            finally:
                process.stdin.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
