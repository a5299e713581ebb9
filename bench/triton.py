"""Load per core and accuracy of the latencies on a real Triton, compared with tritonclient's asyncio clients and perf_analyzer.

    python -m bench.triton [--seconds 5] [--rounds 3]

All clients send to the same model (identity, FP32 [1, 16]) on the same server, in turn, on one core, over HTTP and gRPC.
Latencies are from the send to the end of the response.

`requests per CPU second` is the number of requests that the server counted, divided by the user and system time of all of the
client's processes up to the printed report. From both, the values of a run a fifth as long are subtracted, for every client:
the result is what the core can drive, independent of the duration. The value of the whole run, including imports and report, is
shown next to it; in a run of a few seconds they matter. The target applies to the first value, with 16 requests in flight; with one, no
client is at its limit. Packets are not recorded in these runs.

`reported` and `true` are the client's latencies and those of the same requests according to the packets (wire_truth.py). A
closed loop with responses so short that replacing a request takes as long is not VALID (concurrency); a moderate open loop can be.
"""

import argparse
import contextlib
import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from bench import wire_truth
from bench.common import CLIENT_CORE, HERE, SERVER_CORE, Line, measure, median, percentile, pinned, show
from inferometer.analysis.percentiles import distribution
from inferometer.records import PHASES

INSTALLED = Path(os.environ.get("INFEROMETER_REAL") or Path.home() / ".cache/inferometer/real")
ROOT = HERE.parent
MODEL = "identity"
PROTOCOLS = ("http", "grpc")
RATE = 500
SHORT = 0.2
"""Duration of the short run as a share of the full one."""
WITHIN_S, WITHIN_SHARE = 0.0001, 0.02
TIMES_ASYNCIO = 2.0
STEADY = PHASES.index("steady")

Addresses = dict[str, str]
"""URLs of `http` and `grpc`."""


class Reported(msgspec.Struct):
    """What a client reports about one run."""

    p50: float
    p99: float
    """Seconds."""
    requests: int = 0
    """Number of requests that it counted."""
    began: int = 0
    ended: int = 0
    """Start of the first of them and end of the last (wall clock, ns)."""
    not_valid: str = ""
    """Why the client itself does not trust the run."""


class Job(msgspec.Struct):
    """One run."""

    protocol: str
    addresses: Addresses
    folder: str
    seconds: float
    concurrency: int = 0
    """Closed loop; 0: open loop with RATE requests per second, Poisson."""
    on_record: bool = False
    """Packets are recorded, so the client has to report which requests it counted."""

    @property
    def address(self) -> str:
        """HOST:PORT"""
        return self.addresses[self.protocol].partition("://")[2]

    @property
    def what(self) -> str:
        load = f"{self.concurrency} in flight" if self.concurrency else f"{RATE}/s"
        return f"{self.protocol}, {load}"


class Load(msgspec.Struct):
    """The cost of one run."""

    requests: int
    cpu: float
    """CPU seconds of the client."""


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each run")
    parser.add_argument("--rounds", type=int, default=3, help="runs per client for the load")
    options = parser.parse_args(arguments)
    for name in ("triton", "perf_analyzer"):
        if not (INSTALLED / name / "installed.txt").exists():
            raise SystemExit(f"bench/triton needs {INSTALLED / name}: run tools/real_servers/install.sh {name}")
    lines: list[Line] = []
    loads: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="inferometer-") as folder, _triton() as addresses:
        jobs = [Job(protocol, addresses, folder, options.seconds) for protocol in PROTOCOLS]
        for job in jobs:
            lines += _load_lines(replace(job, concurrency=16), options.rounds, loads, hold=True)
            lines += _load_lines(replace(job, concurrency=1), options.rounds, loads, hold=False)
        if why := wire_truth.forbidden():
            lines.append(Line("true latencies", f"not recorded: {why}"))
        else:
            for job in jobs:
                for concurrency in (0, 16, 1):
                    lines += _truth_lines(replace(job, concurrency=concurrency, on_record=True))
    return show("triton", lines, seconds=options.seconds, rounds=options.rounds, loads=loads)


@contextlib.contextmanager
def _triton() -> Iterator[Addresses]:
    """Run Triton with the model on the server's core; yields its URLs."""
    script, models = ROOT / "tools/real_servers/triton/serve.py", ROOT / "tests/real/triton_models"
    command = pinned(SERVER_CORE, INSTALLED / "triton/bin/python", script, "--models", models, MODEL)
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        line = process.stdout.readline()
        if not line:
            log.seek(0)
            raise SystemExit(f"Triton did not start:\n{log.read()[-4000:]}")
        try:
            addresses = json.loads(line)
            _first_request(addresses)
            yield addresses
        finally:
            process.stdin.close()


def _first_request(addresses: Addresses) -> None:
    """Send the first request, which takes much longer than the others."""
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 16], "data": [0.5] * 16}
    body = json.dumps({"inputs": [tensor]}).encode()
    with urllib.request.urlopen(f"{addresses['http']}/v2/models/{MODEL}/infer", body, timeout=30) as response:
        response.read()


# --- load per core ----------------------------------------------------------------------------------------------------


def _load_lines(job: Job, rounds: int, found: dict[str, object], hold: bool) -> list[Line]:
    more: dict[str, list[float]] = {name: [] for name in CLIENTS}
    whole: dict[str, list[float]] = {name: [] for name in CLIENTS}
    for _ in range(rounds):
        for name, client in CLIENTS.items():
            short, full = _load(client, replace(job, seconds=job.seconds * SHORT)), _load(client, job)
            more[name].append((full.requests - short.requests) / (full.cpu - short.cpu))
            whole[name].append(full.requests / full.cpu)
    found[job.what] = {"more": more, "whole": whole}
    lines = []
    for name in CLIENTS:
        words = f"{median(more[name]):,.0f} requests per CPU second"
        lines.append(Line(f"{job.what}: {name}", words, f"({median(whole[name]):,.0f} for the whole run)"))
    for peer in (ASYNCIO, PERF_ANALYZER):
        ratios, wholes = _ratios(more, peer), _ratios(whole, peer)
        ratio, as_a_whole = median(ratios), f"({median(wholes):.1f} for the whole run)"
        held = (
            (f">= {TIMES_ASYNCIO:g} {as_a_whole}", ratio >= TIMES_ASYNCIO)
            if hold and peer == ASYNCIO
            else (as_a_whole,)
        )
        words = f"{ratio:.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
        lines.append(Line(f"{job.what}: {OURS} / {peer}", words, *held))
    return lines


def _ratios(found: dict[str, list[float]], to: str) -> list[float]:
    return [ours / theirs for ours, theirs in zip(found[OURS], found[to], strict=True)]


def _load(client: Callable[[Job], Reported], job: Job) -> Load:
    requests, before = _counted(job.addresses), resource.getrusage(resource.RUSAGE_CHILDREN)
    client(job)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Load(_counted(job.addresses) - requests, cpu)


def _counted(addresses: Addresses) -> int:
    """Requests that the server has completed: the same way of counting for all clients."""
    with urllib.request.urlopen(f"{addresses['http']}/v2/models/{MODEL}/stats", timeout=10) as response:
        return int(json.load(response)["model_stats"][0]["inference_stats"]["success"]["count"])


# --- the truth --------------------------------------------------------------------------------------------------------


class Compared(msgspec.Struct):
    reported: Reported
    p50: float
    p99: float
    """True latencies, from the packets."""

    @property
    def off(self) -> tuple[float, float]:
        return abs(self.reported.p50 - self.p50), abs(self.reported.p99 - self.p99)


def _truth_lines(job: Job) -> list[Line]:
    found = {name: _compare(client, job) for name, client in CLIENTS.items()}
    ours, theirs = found[OURS], found[ASYNCIO]
    within = all(
        off <= max(WITHIN_S, WITHIN_SHARE * true) for off, true in zip(ours.off, (ours.p50, ours.p99), strict=True)
    )
    nearer = all(our <= their for our, their in zip(ours.off, theirs.off, strict=True))
    trusted = not ours.reported.not_valid

    def held(ok: bool, hold: str) -> tuple[str, bool | None]:
        return (hold, ok) if trusted else (f"no target: INVALID ({ours.reported.not_valid})", None)

    off = f"{_milliseconds(ours.off)} off; {ASYNCIO} {_milliseconds(theirs.off)}"
    return [
        *(Line(f"{job.what}: {name} p50, p99, ms", _words(each)) for name, each in found.items() if name != OURS),
        Line(f"{job.what}: {OURS} p50, p99, ms", _words(ours), *held(within, "within 0.1 ms or 2 %")),
        Line(f"{job.what}: {OURS} is more accurate", off, *held(nearer, "both more accurate")),
    ]


def _words(found: Compared) -> str:
    pairs = ((found.reported.p50, found.p50), (found.reported.p99, found.p99))
    return "  ".join(f"{reported * 1e3:.3f} reported {true * 1e3:.3f} true" for reported, true in pairs)


def _milliseconds(pair: tuple[float, float]) -> str:
    return " ".join(f"{each * 1e3:.3f}" for each in pair)


def _compare(client: Callable[[Job], Reported], job: Job) -> Compared:
    with wire_truth.recording(int(job.address.rpartition(":")[2])) as packets:
        reported = client(job)
    exchanges = wire_truth.EXCHANGES[job.protocol](packets)
    latencies = [one.end - one.begin for one in exchanges if one.begin >= reported.began and one.end <= reported.ended]
    if abs(len(latencies) - reported.requests) > 0.01 * reported.requests + 2 * (job.concurrency or 16):
        raise RuntimeError(f"the client counted {reported.requests} requests, but {len(latencies)} were recorded")
    true = distribution(np.array(latencies, np.int64), "s", scale=1e9)
    return Compared(reported, true.value("p50") or 0.0, true.value("p99") or 0.0)


# --- the clients ------------------------------------------------------------------------------------------------------


def _asyncio(job: Job) -> Reported:
    python = INSTALLED / "triton/bin/python"
    script = (python, "-P", HERE / "triton_client.py")  # -P: this folder has a grpc.py
    load = ("closed", job.concurrency) if job.concurrency else ("open", RATE)
    return Reported(**json.loads(_run(*script, job.protocol, job.address, MODEL, *load, job.seconds)))


def _perf_analyzer(job: Job) -> Reported:
    """Run perf_analyzer with three windows and a stability threshold that always passes, so that it reports on all three.

    Only its profile tells which requests these are: it holds every request with all of its tensors, and is written at the end.
    """
    home, table, profile = INSTALLED / "perf_analyzer", Path(job.folder) / "pa.csv", Path(job.folder) / "pa.json"
    profile.unlink(missing_ok=True)
    window = round(job.seconds / 3 * 1000 / WINDOW_IS_LONGER)
    at_rate = ("--request-rate-range", RATE, "--request-distribution", "poisson")
    _run(
        home / "bin/perf_analyzer",
        *("-m", MODEL, "-u", job.address, "-i", job.protocol, "--shape", "INPUT0:16"),
        *(("--concurrency-range", job.concurrency) if job.concurrency else at_rate),
        *("--measurement-interval", window, "-r", 3, "-s", 1000, "-f", table),
        *(("--profile-export-file", profile) if job.on_record else ()),
        environment={"LD_LIBRARY_PATH": str(home / "lib/perf_analyzer")},
    )
    with table.open() as file:
        row = next(csv.DictReader(file))
    reported = Reported(float(row["p50 latency"]) / 1e6, float(row["p99 latency"]) / 1e6)
    if job.on_record:
        experiment = json.loads(profile.read_bytes())["experiments"][0]
        reported.requests, windows = len(experiment["requests"]), experiment["window_boundaries"]
        reported.began, reported.ended = min(windows), max(windows)
    return reported


WINDOW_IS_LONGER = 1.2
"""perf_analyzer's windows are longer than its --measurement-interval by this factor."""


def _inferometer(job: Job) -> Reported:
    load = ("--concurrency", str(job.concurrency)) if job.concurrency else ("--rate", str(RATE))
    options = ("--model", MODEL, *load, "--duration", f"{job.seconds:g}s")
    api = {"server__api": "kserve"} if job.protocol == "http" else {}
    url, shape = job.addresses[job.protocol], {"INPUT0": [1, 16]}
    found = measure(job.folder, url, *options, data__type="tensors", data__shape=shape, **api)
    assert found.summary["counts"]["failed"] == 0, found.summary["counts"]
    records, start = found.run.records, found.run.manifest.t0_wall_ns
    counted = records.rows[records.phase == STEADY]
    e2e = found.summary["metrics"]["e2e_service"]
    failed = ", ".join(check["name"] for check in found.summary["checks"] if check["status"] == "fail")
    return Reported(
        percentile(e2e, "p50"),
        percentile(e2e, "p99"),
        len(counted),
        start + int(counted["sent"].min()),
        start + int(counted["done"].max()),
        failed if found.summary["verdict"] != "VALID" else "",
    )


def _run(*command: object, environment: dict[str, str] | None = None) -> str:
    """Run a client on its core; return what it prints."""
    words = pinned(CLIENT_CORE, *command)
    done = subprocess.run(
        words, env=os.environ | (environment or {}), capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}\n{(done.stderr + done.stdout)[:2000]}")
    return done.stdout


ASYNCIO, PERF_ANALYZER, OURS = "tritonclient", "perf_analyzer", "inferometer"
CLIENTS: dict[str, Callable[[Job], Reported]] = {ASYNCIO: _asyncio, PERF_ANALYZER: _perf_analyzer, OURS: _inferometer}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
