"""`inferometer report` on 1 M requests x 100 chunks: wall time and peak memory. Targets: less than 10 s and 2 GiB.

    python bench/report.py [--requests 1000000] [--chunks 100] [--keep FOLDER]

The run is generated and streamed to a temporary folder. The report runs in its own process, whose peak memory is shown.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.common import Line, show
from inferometer import store
from inferometer.records import ROW, Chunks, Columns, Manifest, Records, Sample, StagePlan

SECOND = 1_000_000_000
HOLD_SECONDS, HOLD_BYTES = 10.0, 2 << 30


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="generate the run in this folder and keep it")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="inferometer-bench-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        make(folder, options.requests, options.chunks, options.stages)
        size = sum(file.stat().st_size for file in folder.iterdir())
        began = time.perf_counter()
        command = [sys.executable, "-m", "inferometer", "report", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wall = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout + done.stderr)
    what = f"{options.requests:,} requests x {options.chunks} chunks, {size / 1e6:,.0f} MB"
    lines = [
        Line(f"report of {what}", f"{wall:.1f} s", f"< {HOLD_SECONDS:.0f} s", wall < HOLD_SECONDS),
        Line(
            "peak memory of the report", f"{peak / 2**30:.2f} GiB", f"< {HOLD_BYTES / 2**30:.0f} GiB", peak < HOLD_BYTES
        ),
    ]
    return show("report", lines)


def make(folder: Path, requests: int, chunks: int, stages: int) -> None:
    """Generate an open-loop run at 10,000 requests/s: TTFT about 50 ms, then a chunk about every 10 ms."""
    rate = 10_000
    rng = np.random.default_rng(0)
    rows = np.zeros(requests, ROW)
    rows["id"] = np.arange(requests)
    rows["intended"] = np.sort(rng.uniform(0, requests / rate, requests) * SECOND).astype(np.int64)
    rows["sent"] = rows["intended"] + rng.exponential(20_000, requests).astype(np.int64)
    rows["first_token"] = rows["sent"] + rng.normal(50e6, 5e6, requests).astype(np.int64)
    rows["first_byte"] = rows["first_token"]
    rows["queue"] = rows["compute"] = rows["server_total"] = rows["rtt"] = rows["class"] = rows["replica"] = -1
    rows["read_delay"] = rng.exponential(100_000, requests).astype(np.int64)
    rows["chunk_start"], rows["chunk_count"] = np.arange(requests) * chunks, chunks
    rows["n_in"], rows["n_out"], rows["cached"], rows["reasoning"] = 64, chunks, -1, -1
    rows["stage"] = np.arange(requests) * stages // requests
    rows["status"], rows["counted_by"], rows["open_loop"] = 200, 1, 1
    duration = requests / rate
    samples = tuple(
        Sample(0, at, 0.5, 1 << 28, 0.4, 1_000_000, 0, 1000, 10_000)
        for at in range(SECOND // 4, round(duration * SECOND), SECOND // 4)
    )
    plan = StagePlan(type="poisson", open=True, rate=rate, duration=duration / stages)
    manifest = Manifest(
        inferometer="bench",
        started="2026-01-01T00:00:00+00:00",
        t0_wall_ns=0,
        config={"server": {"url": "http://127.0.0.1:8000", "model": "made-up", "api": "completions"}},
        plan=(plan,) * stages,
        workload={"distinct": requests, "output": chunks},
        clock={"stamps": "kernel"},
        seeds={"seed": 0},
        versions={},
        host={},
    )
    records = Records(Columns(requests, rows), np.ones(requests, np.int8), (), samples)
    store.write(folder, manifest, records, _chunks(rows, chunks, rng))


def _chunks(rows: np.ndarray, chunks: int, rng: np.random.Generator, piece: int = 10_000) -> Iterator[Chunks]:
    """Generate the chunks, and with them the ends of the requests."""
    for at in range(0, len(rows), piece):
        part = rows[at : at + piece]
        gaps = rng.normal(10e6, 1e6, (len(part), chunks)).astype(np.int64)
        gaps[:, 0] = part["first_token"]
        arrival = gaps.cumsum(1)
        part["last_token"] = arrival[:, -1]
        part["done"] = arrival[:, -1] + 20_000
        yield Chunks(arrival.reshape(-1), np.ones(arrival.size, np.uint16))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
