"""Do more shards send more, and what does Ray add? 1, 2 and 4 shards as local processes and as actors of a Ray cluster, in turn.

Each run has two stages against the null server: a closed loop with USERS users per shard, for the rate that is reached, and an open loop
of RATE requests per second and shard, for the lag. Linear is what one local process reaches, times the number of shards; on this machine,
it ends where the client's cores do. The start-up is from the command to t=0. Ray has one node, on the client's cores, which is up before.

    python bench/fleet.py [--rounds 2]
"""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.common import CORES, Line, Measured, measure, median, null_server, pinned, show

SHARDS = (1, 2, 4)
ROUNDS = 2
SECONDS = 2
USERS, RATE = 64, 300
START_S = 60.0
ADDRESS = "127.0.0.2"
CLIENT_CORES = f"{CORES[min(1, len(CORES) - 1)]}-{CORES[-1]}"
SETTINGS = {
    "server__stream": False,
    "data__type": "prompts",
    "data__prompts": ["hello"],
    "load__drain": True,
    "observe__prometheus": [],
    "limits__effect_fail": 10.0,
}
LEAST_RATE, MOST_LAG_MS = 0.8, 0.5


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args(arguments).rounds
    found: dict[tuple[str, int], list[Measured]] = {}
    with tempfile.TemporaryDirectory(prefix="ib") as folder, null_server() as url, ray_head(folder) as address:
        kinds = {"local": ([], "client__processes"), "ray": (["--fleet", f"ray://{address}"], "fleet__shards")}
        for _ in range(rounds):
            for shards in SHARDS:
                stages = [
                    {"type": "closed", "concurrency": USERS * shards, "duration": f"{SECONDS}s", "ramp_up": "0"},
                    {"type": "constant", "rate": RATE * shards, "duration": f"{SECONDS}s"},
                ]
                for kind, (options, count) in kinds.items():
                    more = {"load__stages": stages, count: shards}
                    run = measure(folder, url, *options, cores=CLIENT_CORES, **SETTINGS, **more)
                    found.setdefault((kind, shards), []).append(run)
    linear = median([_rate(run) for run in found["local", 1]])
    lines = [_line(kind, shards, runs, linear) for (kind, shards), runs in found.items()]
    for shards in SHARDS:
        local, ray = (found[kind, shards] for kind in ("local", "ray"))
        ratio = median([_rate(run) for run in ray]) / median([_rate(run) for run in local])
        lines.append(
            Line(f"{shards} shards: rate on Ray / local", f"{ratio:.2f}", f">= {LEAST_RATE}", ratio >= LEAST_RATE)
        )
        added = min(_lag(run)[1] for run in ray) - min(_lag(run)[1] for run in local)
        lines.append(
            Line(
                f"{shards} shards: lag p99 that Ray adds",
                f"{added:.3f} ms",
                f"<= {MOST_LAG_MS} ms",
                added <= MOST_LAG_MS,
            )
        )
    return show("fleet", lines, rounds=rounds, users=USERS, rate=RATE, seconds=SECONDS)


def _line(kind: str, shards: int, runs: list[Measured], linear: float) -> Line:
    rate = median([_rate(run) for run in runs])
    p50, p99 = (min(_lag(run)[each] for run in runs) for each in (0, 1))
    start = min(run.wall - run.after - float(run.run.records.rows["done"].max()) / 1e9 for run in runs)
    bound = max((node["bound_ns"] for run in runs for node in run.run.manifest.clock.get("nodes", [])), default=0) / 1e6  # type: ignore[attr-defined]
    clock = f", clock within {bound:.2f} ms" if bound else ""
    return Line(
        f"{kind}, {shards} shards",
        f"{rate:,.0f}/s, {rate / linear / shards:.2f} of linear; lag p50 {p50:.3f}, p99 {p99:.3f} ms; t=0 after {start:.1f} s{clock}",
    )


def _rate(measured: Measured) -> float:
    """Requests per second of the closed loop, from its first send to its last response."""
    rows = measured.run.records.rows
    own = rows[(rows["stage"] == 0) & (rows["failure"] == 0)]
    return 1e9 * len(own) / float(own["done"].max() - own["sent"].min())


def _lag(measured: Measured) -> tuple[float, float]:
    """p50 and p99 of the open loop's lag, in ms."""
    rows = measured.run.records.rows
    own = rows[rows["stage"] == 1]
    p50, p99 = np.percentile((own["sent"] - own["intended"] - own["held"]) / 1e6, (50, 99))
    return float(p50), float(p99)


@contextlib.contextmanager
def ray_head(folder: str) -> Iterator[str]:
    """Start Ray on the client's cores; yields its address."""
    with socket.create_server((ADDRESS, 0)) as free:
        port = free.getsockname()[1]
    os.environ |= {
        "RAY_TMPDIR": folder,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_worker_niceness": "0",
    }
    ray = Path(sys.executable).with_name("ray")
    options = [
        f"--node-ip-address={ADDRESS}",
        f"--port={port}",
        f"--num-cpus={max(SHARDS)}",
        "--object-store-memory=200000000",
    ]
    command = pinned(CLIENT_CORES, ray, "start", "--head", *options, "--include-dashboard=false", "--block")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        _await(port)
        yield f"{ADDRESS}:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _await(port: int) -> None:
    """Wait until the head accepts connections, and a little longer until its node is registered."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        try:
            socket.create_connection((ADDRESS, port), 1).close()
        except OSError:
            time.sleep(0.2)
            continue
        time.sleep(5)
        return
    raise SystemExit("Ray did not start")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
