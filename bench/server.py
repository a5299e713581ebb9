"""Our reference server: beside the ceiling for Python, a real Triton and MLServer; what batching gains; what protocols cost.

    python -m bench.server [--seconds 2] [--rounds 3] [--only identity,batching,protocols]

identity   The model that gives back what it is given (FP32 [1, 16]), over gRPC and over HTTP with binary tensors. Everyone has
           the same one core for all of its threads and processes, our own client has the other and is the same for all. The
           ceilings (echo_server.py) do no more than any Python server on that library must: they have their answer ready.
           Triton and MLServer are beside it where they are installed; Triton's model runs in its python backend, which is a
           process of its own and batches (this build has no other backend).
batching   The built-in classifier (PyTorch, one thread, one instance) with 32 in flight, pixels by HTTP with binary tensors,
           batched and not. Server and model share a core.
protocols  `inferometer compare-protocols` on ours.

`CPU` is what all of the server's processes used, from the client's start to its end, by request. `server` and `client` are how
busy the two cores were with them: where the server is well below 100 %, something else was the limit, and the rate is not the
server's own. `VALID` counts the runs that our client itself trusts. Rounds are taken in turn; a ratio is the median of the
rounds' ratios, and `by CPU` the same of the CPU that a request takes.
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

from bench.common import CLIENT_CORE, HERE, RESULTS, SERVER_CORE, Line, measure, median, show
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
"""With 64 in flight, our requests a second by those of the ceiling on the same library."""
BATCHING_GAIN = 1.5
BATCHED_IN_FLIGHT = 32
SIZES = (1_000, 100_000, 10_000_000)
JSON_S = 5.0
"""10 MB as JSON take their time."""


class Server(msgspec.Struct):
    """One that runs: where, as which process, and what it is asked for."""

    name: str
    pid: int
    urls: dict[str, str]
    """By protocol: grpc, http."""
    model: str
    shape: dict[str, list[int]]
    """Of its input."""


class Found(msgspec.Struct):
    """Of one run."""

    rate: float
    p50: float
    p99: float
    cpu: float
    """Seconds of the server, a request."""
    client: float
    """Share of its core that the client used while it sent, as its own check has it."""
    verdict: str
    warned: list[str]


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each run is")
    parser.add_argument("--rounds", type=int, default=3, help="how often each server is asked")
    parser.add_argument("--only", default=",".join(PARTS), help="which parts, with commas between")
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
            asked = [server for server in servers if protocol in server.urls]
            for in_flight in IN_FLIGHT:
                found = _in_turn(folder, asked, protocol, in_flight, seconds, rounds)
                facts[f"{protocol}, {in_flight} in flight"] = found
                lines += _identity_lines(protocol, in_flight, found)
    return lines


def _identity_lines(protocol: str, in_flight: int, found: dict[str, list[Found]]) -> list[Line]:
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


def _words(runs: list[Found]) -> str:
    rate, p99, cpu = (median([getattr(run, name) for run in runs]) for name in ("rate", "p99", "cpu"))
    return f"{rate:7,.0f}/s  p99 {p99 * 1e3:6.2f} ms  CPU {cpu * 1e6:4.0f} us"


def _cores(runs: list[Found]) -> str:
    server, client = median([run.rate * run.cpu for run in runs]), median([run.client for run in runs])
    valid = sum(run.verdict == "VALID" for run in runs)
    return f"server {server:.0%} client {client:.0%} VALID {valid}/{len(runs)}"


def _in_turn(
    folder: str, servers: list[Server], protocol: str, in_flight: int, seconds: float, rounds: int, **more: object
) -> dict[str, list[Found]]:
    """Every server once a round; another one begins each time."""
    found: dict[str, list[Found]] = {server.name: [] for server in servers}
    for turn in range(rounds):
        first = turn % len(servers)
        for server in (*servers[first:], *servers[:first]):
            found[server.name].append(_asked(folder, server, protocol, in_flight, seconds, **more))
    return found


def _asked(folder: str, server: Server, protocol: str, in_flight: int, seconds: float, **more: object) -> Found:
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
    p50, p99 = (e2e.get(name) or e2e["unsupported"].get(name, {}).get("value", 0.0) for name in ("p50", "p99"))
    requests = len(found.run.records.rows)
    rate = summary["throughput"]["requests"] or 0.0
    client = next((check["value"] for check in summary["checks"] if check["name"] == "cpu"), None) or 0.0
    return Found(rate, p50, p99, spent / requests, client, summary["verdict"], failed)


def _cpu(pid: int) -> float:
    """Seconds that a process and its children have used."""
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
        return [Line("batching", "left out: torch is not installed", "pip install 'inferometer[torch]'")]
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
    return Line(f"mean time, {protocols_report.format_size(size)}, by gRPC unary's", words)


# --- the servers -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _on(core: int) -> Iterator[None]:
    """What is started meanwhile has this core alone, with all of its threads and processes."""
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
    with _process(sys.executable, "-P", HERE / "echo_server.py", kind) as (said, pid):  # -P: this folder has a grpc.py
        yield Server(name, pid, {protocol: f"{protocol}://127.0.0.1:{int(said)}"}, *IDENTITY)


@contextlib.contextmanager
def _installed(name: str, model: str, shape: dict[str, list[int]]) -> Iterator[Server]:
    """A real server out of tools/real_servers."""
    script, models = ROOT / f"tools/real_servers/{name}/serve.py", ROOT / f"tests/real/{name}_models"
    with _process(INSTALLED / name / "bin/python", script, "--models", models, model) as (said, _):
        places = json.loads(said)
        yield Server(name, places["pid"], {way: places[way] for way in REAL[name]}, model, shape)


REAL = {"triton": ("grpc", "http"), "mlserver": ("grpc",)}
"""What they are asked over: MLServer answers a binary tensor over HTTP with 500."""


def _real() -> list[contextlib.AbstractContextManager[Server]]:
    models = {"triton": IDENTITY, "mlserver": ("echo", {"x": [4, 4]})}
    return [_installed(name, *of) for name, of in models.items() if _is_installed(name)]


def _is_installed(name: str) -> bool:
    return (INSTALLED / name / "installed.txt").exists()


@contextlib.contextmanager
def _process(*command: object) -> Iterator[tuple[str, int]]:
    """A process on the server's core that says one line once it is ready, and ends when its standard input does."""
    with tempfile.TemporaryFile("w+") as log:
        with _on(SERVER_CORE):
            process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        with process:
            assert process.stdin is not None and process.stdout is not None
            said = process.stdout.readline()
            if not said:
                log.seek(0)
                raise SystemExit(f"{command[-1]} did not start:\n{log.read()[-4000:]}")
            try:
                yield said, process.pid
            finally:
                process.stdin.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
