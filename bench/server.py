"""The reference server compared with Triton and with the limit of Python; the simulator's ceiling; the gain of batching.

    python -m bench.server [--seconds 2] [--rounds 3] [--only identity,tokens,batching,processes] [--before CHECKOUT]

identity    A model that returns its input (FP32 [1, 16]), over gRPC and over HTTP with binary tensors. Each server has the same
            single core for all of its threads and processes; the client, the same for all, has the other core. The echo servers
            (echo_server.py) do only what any Python server with that library must do: they send a fixed response. Triton is
            included if it is installed. Its model runs in its python backend, a separate process that batches (this build has no
            other backend).
tokens      The simulator's ceiling: streamed tokens per second, of 128 streams that want more than one core can send.
batching    The built-in classifier (PyTorch, one thread, one instance) with 32 requests in flight over HTTP, with the pixels in
            shared memory, batched and not batched. Server and model share a core.
processes   identity on two cores with `--processes 2` compared with one process on one of them, 128 connections, the client on
            all other cores: at least 4 cores in all.

`CPU` is the CPU time of all processes of the server from the start to the end of the client, per request. `server` and
`client` show how busy the two cores were: if the server is well below 100 %, something else was the bottleneck, and the rate is
not the server's limit. `VALID` counts the runs with that verdict. Servers take turns in each round. A ratio is the median of the
ratios of the rounds. `--before` measures the server of another checkout of this repository, too, in the same turns.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bench.common import CORES, HERE, SERVER_CORE, Line, measure, median, percentile, show
from inferometer.serve.settings import Settings, simulator
from inferometer.serve.sim.settings import Fixed

ROOT = HERE.parent
INSTALLED = Path(os.environ.get("INFEROMETER_REAL") or Path.home() / ".cache/inferometer/real")
OURS, BEFORE, TRITON, ECHO = "inferometer", "before", "triton", "httptools echo"
IDENTITY = "identity", {"INPUT0": [1, 16]}
IN_FLIGHT = (1, 64)
BATCHING_GAIN = 1.5
BATCHED_IN_FLIGHT = 32
STREAMS, TOKENS = 128, 250
PROCESSES_GAIN = 1.7
PROCESSES_IN_FLIGHT = 128


class Server(msgspec.Struct):
    """A running server, and the model that is requested."""

    name: str
    pid: int
    urls: dict[str, str]
    """URLs by protocol: grpc, http."""
    model: str
    shape: dict[str, list[int]] = {}
    """Shape of its input."""


class Result(msgspec.Struct):
    """The result of one run."""

    rate: float
    """Requests per second; of the simulator, streamed tokens per second."""
    p50: float
    p99: float
    cpu: float
    """CPU seconds of the server per request or token."""
    client: float
    """Share of its core that the client used while it was sending, from its own check."""
    verdict: str
    not_passed: list[str]
    """Names of the checks that did not pass."""


class Bound(msgspec.Struct):
    """What our figure divided by a peer's must be, at least or at most."""

    protocol: str
    in_flight: int
    peer: str
    figure: str
    """A field of Result."""
    limit: float
    is_least: bool = False

    @property
    def words(self) -> str:
        return f">= {self.limit:g}" if self.is_least else f"<= {self.limit:g}"

    def holds(self, ratio: float) -> bool:
        return ratio >= self.limit if self.is_least else ratio <= self.limit


BOUNDS = (
    Bound("grpc", 64, TRITON, "rate", 1.5, is_least=True),
    Bound("http", 64, TRITON, "rate", 1.5, is_least=True),
    Bound("http", 64, ECHO, "cpu", 3.0),
    Bound("grpc", 1, TRITON, "p50", 1.0),
    Bound("http", 1, TRITON, "p50", 1.0),
)


class Bench(msgspec.Struct):
    """What all parts are measured with."""

    folder: str
    seconds: float
    rounds: int
    before: Path | None
    """Another checkout."""
    facts: dict[str, Any] = {}


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of each run")
    parser.add_argument("--rounds", type=int, default=3, help="runs per server")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run, separated by commas")
    parser.add_argument("--before", type=Path, help="another checkout, whose server is measured, too")
    options = parser.parse_args(arguments)
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="inferometer-") as folder:
        bench = Bench(folder, options.seconds, options.rounds, options.before)
        bench.facts |= {"seconds": options.seconds, "rounds": options.rounds}
        for name in options.only.split(","):
            lines += PARTS[name](bench)
    return show("server", lines, **bench.facts)


# --- identity --------------------------------------------------------------------------------------------------------


def _identity(bench: Bench) -> list[Line]:
    lines: list[Line] = []
    with contextlib.ExitStack() as held:
        own = _own(bench, _identity_settings(), *IDENTITY)
        servers = [held.enter_context(started) for started in (*own, *map(_echo, ECHOES), *_triton())]
        if not _is_installed(TRITON):
            lines.append(Line(TRITON, "not installed", "tools/real_servers/install.sh triton"))
        for protocol in ("grpc", "http"):
            speaking = [server for server in servers if protocol in server.urls]
            for in_flight in IN_FLIGHT:
                found = _in_turn(bench, speaking, partial(_measure, bench, protocol, in_flight))
                bench.facts[f"{protocol}, {in_flight} in flight"] = found
                lines += _identity_lines(protocol, in_flight, found)
    return lines


def _identity_lines(protocol: str, in_flight: int, found: dict[str, list[Result]]) -> list[Line]:
    what = f"{protocol}, {in_flight} in flight"
    lines = [Line(f"{what}: {name}", _words(runs), _cores(runs)) for name, runs in found.items()]
    for peer in (name for name in found if name != OURS):
        ratios = {figure: _ratio(found, peer, figure)[0] for figure in ("rate", "cpu", "p50")}
        words = ", ".join(f"{figure} {ratio:.2f}" for figure, ratio in ratios.items())
        lines.append(Line(f"{what}: {OURS} / {peer}", words))
    for bound in BOUNDS:
        if (bound.protocol, bound.in_flight) == (protocol, in_flight) and bound.peer in found:
            ratio, spread = _ratio(found, bound.peer, bound.figure)
            words = f"{ratio:.2f} ({spread})"
            lines.append(Line(f"{what}: {bound.figure} / {bound.peer}", words, bound.words, bound.holds(ratio)))
    return lines


def _ratio(found: dict[str, list[Result]], peer: str, figure: str) -> tuple[float, str]:
    """Our figure divided by the peer's: the median of the rounds, and their range."""
    pairs = zip(found[OURS], found[peer], strict=True)
    ratios = [getattr(ours, figure) / getattr(theirs, figure) for ours, theirs in pairs]
    return median(ratios), f"{min(ratios):.2f} to {max(ratios):.2f}"


def _words(runs: list[Result]) -> str:
    rate, p50, p99, cpu = (median([getattr(run, name) for run in runs]) for name in ("rate", "p50", "p99", "cpu"))
    return f"{rate:7,.0f}/s  p50 {p50 * 1e3:5.2f}  p99 {p99 * 1e3:6.2f} ms  CPU {cpu * 1e6:4.1f} us"


def _cores(runs: list[Result]) -> str:
    server, client = median([run.rate * run.cpu for run in runs]), median([run.client for run in runs])
    valid = sum(run.verdict == "VALID" for run in runs)
    return f"server {server:.0%} client {client:.0%} VALID {valid}/{len(runs)}"


def _in_turn(bench: Bench, servers: list[Server], run: Callable[[Server], Result]) -> dict[str, list[Result]]:
    """Measure every server once per round, starting with another one each time."""
    found: dict[str, list[Result]] = {server.name: [] for server in servers}
    for turn in range(bench.rounds):
        first = turn % len(servers)
        for server in (*servers[first:], *servers[:first]):
            found[server.name].append(run(server))
    return found


def _measure(bench: Bench, protocol: str, in_flight: int, server: Server, **more: object) -> Result:
    load = ("--model", server.model, "--concurrency", str(in_flight), "--duration", f"{bench.seconds:g}s")
    settings = {"server__api": "kserve", "data__type": "tensors", "data__shape": server.shape}
    return _result(bench, server, protocol, "requests", load, settings | more)


def _result(
    bench: Bench, server: Server, protocol: str, rate: str, load: Sequence[str], settings: dict[str, object]
) -> Result:
    """Run the client against a server; `rate` is the kind of throughput that counts."""
    before = _cpu(server.pid)
    found = measure(bench.folder, server.urls[protocol], *load, **settings)
    spent = _cpu(server.pid) - before
    summary, rows = found.summary, found.run.records.rows
    assert summary["counts"]["failed"] == 0, (server.name, summary["counts"])
    e2e, failed = summary["metrics"]["e2e_service"], [c["name"] for c in summary["checks"] if c["status"] != "pass"]
    p50, p99 = (percentile(e2e, name) for name in ("p50", "p99"))
    count = len(rows) if rate == "requests" else int(rows["n_out"].sum())
    client = next((check["value"] for check in summary["checks"] if check["name"] == "cpu"), None) or 0.0
    return Result(summary["throughput"][rate] or 0.0, p50, p99, spent / count, client, summary["verdict"], failed)


def _cpu(pid: int) -> float:
    """CPU seconds that a process and its children have used."""
    top = psutil.Process(pid)
    total = 0.0
    for process in (top, *top.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


# --- tokens ----------------------------------------------------------------------------------------------------------


def _tokens(bench: Bench) -> list[Line]:
    settings = simulator(timing=Fixed(ttft=0.001, itl=0.0002))
    load = ("--model", "sim", "--concurrency", str(STREAMS), "--duration", f"{bench.seconds:g}s", "--prompt", "hello")
    more = {"server__api": "completions", "data__output": TOKENS}
    with contextlib.ExitStack() as held:
        servers = [held.enter_context(started) for started in _own(bench, settings, "sim")]
        found = _in_turn(bench, servers, lambda server: _result(bench, server, "http", "output_tokens", load, more))
    bench.facts["tokens"] = found
    lines = [
        Line(f"simulator: {name}", f"{median([run.rate for run in runs]):,.0f} tokens/s", _cores(runs))
        for name, runs in found.items()
    ]
    if BEFORE in found:
        by_cpu = median([old.cpu / new.cpu for new, old in zip(found[OURS], found[BEFORE], strict=True)])
        ratio, spread = _ratio(found, BEFORE, "rate")
        lines.append(Line(f"simulator: {OURS} / {BEFORE}", f"{ratio:.2f} ({spread}), by CPU {by_cpu:.2f}"))
    return lines


# --- batching --------------------------------------------------------------------------------------------------------

BATCHED = {
    "not batched": ("max_batch_size=1",),
    "batched, no delay": ("max_batch_size=32",),
    "batched, 2 ms": ("max_batch_size=32", "dynamic_batching.max_queue_delay_microseconds=2000"),
}


def _batching(bench: Bench) -> list[Line]:
    if importlib.util.find_spec("torch") is None:
        return [Line("batching", "skipped: torch is not installed", "pip install 'inferometer[torch]'")]
    shape = {"pixels": [1, 3, 224, 224]}
    with contextlib.ExitStack() as held:
        servers = [
            held.enter_context(
                _started(name, Settings(models=("classifier",), config=config, http=0), "classifier", shape)
            )
            for name, config in BATCHED.items()
        ]
        run = partial(_measure, bench, "http", BATCHED_IN_FLIGHT, server__shared_memory=True)
        found = _in_turn(bench, servers, run)
    bench.facts["batching"] = found
    plain = found["not batched"]
    lines = [Line(f"classifier: {name}", _words(runs), _cores(runs)) for name, runs in found.items()]
    for name in ("batched, no delay", "batched, 2 ms"):
        gains = [on.rate / off.rate for on, off in zip(found[name], plain, strict=True)]
        gain = median(gains)
        held_gain = (f">= {BATCHING_GAIN:g}", gain >= BATCHING_GAIN) if name == "batched, no delay" else ("", None)
        words = f"{gain:.2f} ({min(gains):.2f} to {max(gains):.2f})"
        lines.append(Line(f"classifier: {name} / not", words, *held_gain))
    return lines


# --- processes -------------------------------------------------------------------------------------------------------


def _processes(bench: Bench) -> list[Line]:
    if len(CORES) < 4:
        return [Line("processes", f"skipped: {len(CORES)} cores", "needs 4: two for the server, two for the client")]
    names = {"one process": (1, CORES[:1]), "two processes": (2, CORES[:2])}
    client = {"cores": ",".join(map(str, CORES[2:])), "client__processes": min(len(CORES) - 2, 6)}
    lines: list[Line] = []
    with contextlib.ExitStack() as held:
        servers = [
            held.enter_context(_started(name, _identity_settings(count), *IDENTITY, cores=cores))
            for name, (count, cores) in names.items()
        ]
        for protocol in (
            "grpc",
            "http",
        ):  # connections, not requests, are spread over the processes: many, with few each
            more = client | {"client__connections": PROCESSES_IN_FLIGHT}
            found = _in_turn(bench, servers, partial(_measure, bench, protocol, PROCESSES_IN_FLIGHT, **more))
            bench.facts[f"processes, {protocol}"] = found
            lines += [Line(f"{protocol}: {name}", _words(runs), _cores(runs)) for name, runs in found.items()]
            gains = [two.rate / one.rate for one, two in zip(*found.values(), strict=True)]
            words = f"{median(gains):.2f} ({min(gains):.2f} to {max(gains):.2f})"
            is_held = median(gains) >= PROCESSES_GAIN
            lines.append(Line(f"{protocol}: two processes / one", words, f">= {PROCESSES_GAIN:g}", is_held))
    return lines


def _identity_settings(processes: int = 1) -> Settings:
    return Settings(models=(IDENTITY[0],), http=0, grpc=0, processes=processes)


PARTS: dict[str, Callable[[Bench], list[Line]]] = {
    "identity": _identity, "tokens": _tokens, "batching": _batching, "processes": _processes,
}  # fmt: skip


# --- the servers -----------------------------------------------------------------------------------------------------

_SERVE = """
import sys, msgspec
from inferometer.serve import background
from inferometer.serve.settings import Settings
running = background.serving(msgspec.json.decode(sys.argv[1], type=Settings))
print(msgspec.json.encode({"http": running.url, "grpc": running.grpc, "pid": running.pid}).decode(), flush=True)
sys.stdin.read()
running.stop()
"""


@contextlib.contextmanager
def _on(cores: Sequence[int]) -> Iterator[None]:
    """Restrict the processes that are started within the block, with all of their threads and children, to these cores."""
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_cores)


def _own(
    bench: Bench, settings: Settings, model: str, shape: dict[str, list[int]] | None = None
) -> list[contextlib.AbstractContextManager[Server]]:
    """Our server, and that of the other checkout if there is one."""
    each = {OURS: ROOT} | ({BEFORE: bench.before.resolve()} if bench.before is not None else {})
    return [_started(name, settings, model, shape, root) for name, root in each.items()]


@contextlib.contextmanager
def _started(
    name: str,
    settings: Settings,
    model: str,
    shape: dict[str, list[int]] | None = None,
    root: Path = ROOT,
    cores: Sequence[int] = (SERVER_CORE,),
) -> Iterator[Server]:
    """The server of a checkout."""
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    command = (sys.executable, "-P", "-c", _SERVE, msgspec.json.encode(settings).decode())
    with _process(*command, env=environment, cores=cores) as (line, _):
        started = json.loads(line)
        urls = {protocol: started[protocol] for protocol in ("http", "grpc") if started[protocol]}
        yield Server(name, started["pid"], urls, model, shape or {})


ECHOES = {"grpc.aio echo": "aio", ECHO: "http"}


@contextlib.contextmanager
def _echo(name: str) -> Iterator[Server]:
    kind = ECHOES[name]
    protocol = "http" if kind == "http" else "grpc"
    with _process(sys.executable, "-P", HERE / "echo_server.py", kind) as (port, pid):  # -P: this folder has a grpc.py
        yield Server(name, pid, {protocol: f"{protocol}://127.0.0.1:{int(port)}"}, *IDENTITY)


@contextlib.contextmanager
def _installed(name: str) -> Iterator[Server]:
    """A real server from tools/real_servers."""
    script, models = ROOT / f"tools/real_servers/{name}/serve.py", ROOT / f"tests/real/{name}_models"
    with _process(INSTALLED / name / "bin/python", script, "--models", models, IDENTITY[0]) as (line, _):
        started = json.loads(line)
        yield Server(name, started["pid"], {protocol: started[protocol] for protocol in ("grpc", "http")}, *IDENTITY)


def _triton() -> list[contextlib.AbstractContextManager[Server]]:
    return [_installed(TRITON)] if _is_installed(TRITON) else []


def _is_installed(name: str) -> bool:
    return (INSTALLED / name / "installed.txt").exists()


@contextlib.contextmanager
def _process(
    *command: object, env: Mapping[str, str] | None = None, cores: Sequence[int] = (SERVER_CORE,)
) -> Iterator[tuple[str, int]]:
    """A process on these cores that prints one line when it is ready, and ends when its standard input is closed."""
    with tempfile.TemporaryFile("w+") as log:
        with _on(cores):
            words, pipe = [str(word) for word in command], subprocess.PIPE
            process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=log, text=True, env=env)
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
