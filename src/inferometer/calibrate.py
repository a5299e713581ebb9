"""This machine's own ceiling and added latency: the whole pipeline against a server that does nothing.

What is found here bounds what a measurement from this machine can mean: latencies are not to be trusted below the added
latency, nor rates near the ceiling.
"""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from inferometer import conduct
from inferometer.analysis.summary import Summary
from inferometer.config import from_mapping
from inferometer.records import Run

_ITL_MS = 10
_CHUNKS = 100
_STREAMS = 200
RATES = (500, 5_000)


class Calibration(msgspec.Struct, frozen=True):
    """Seconds, requests and chunks a second, of one client process."""

    schema: int
    requests_per_second: float
    cpu_per_request: float
    cpu_per_chunk: float
    chunks_per_second: float
    """What one core's worth of time is enough for, by cpu_per_chunk."""
    added_latency_p50: float
    added_latency_p99: float
    """One request at a time: everything between handing it to the kernel and its answer's arrival, server included."""
    itl_error_p50: float
    itl_error_p99: float
    """How far the measured gaps are from the server's beat."""
    lag_p50: dict[str, float]
    lag_p99: dict[str, float]
    """How late requests are sent, at rates (a second) of a Poisson load."""
    stamps: str
    timer: str


STEPS = 3 + len(RATES)


def calibrate(seconds: float, note: Any = lambda step: None) -> Calibration:
    """Each of the steps takes so long; `note` is told which one begins."""
    with _null_server() as url, tempfile.TemporaryDirectory(prefix="inferometer-") as folder:

        def measure(step: str, load: dict[str, object], stream: bool) -> tuple[Run, Summary]:
            note(step)
            config = from_mapping(
                {
                    "server": {"url": url, "api": "completions", "stream": stream},
                    "data": {"type": "synthetic", "input": 64, "output": _CHUNKS},
                    "load": {"duration": seconds} | load,
                    "client": {"processes": 1},
                    "output": folder,
                }
            )
            return conduct.measure(config)

        one, alone = measure("added latency, one request at a time", {"type": "closed", "concurrency": 1}, False)
        full, most = measure("ceiling, 64 requests in flight", {"type": "closed", "concurrency": 64}, False)
        streamed, _ = measure(f"{_STREAMS} streams", {"type": "closed", "concurrency": _STREAMS}, True)
        paced = {rate: measure(f"pacing at {rate:,}/s", {"type": "poisson", "rate": rate}, False)[1] for rate in RATES}
        per_chunk = _cpu(streamed) / max(streamed.chunk_total, 1)
        errors = np.abs(_gaps(streamed) - _ITL_MS * 1e6) / 1e9
        return Calibration(
            schema=1,
            requests_per_second=most.throughput.requests or 0.0,
            cpu_per_request=_cpu(full) / max(len(full.records.rows), 1),
            cpu_per_chunk=per_chunk,
            chunks_per_second=1 / per_chunk,
            added_latency_p50=alone.metrics["e2e_service"].p50 or 0.0,
            added_latency_p99=alone.metrics["e2e_service"].p99 or 0.0,
            itl_error_p50=float(np.percentile(errors, 50)),
            itl_error_p99=float(np.percentile(errors, 99)),
            lag_p50={str(rate): summary.metrics["lag"].p50 or 0.0 for rate, summary in paced.items()},
            lag_p99={str(rate): summary.metrics["lag"].p99 or 0.0 for rate, summary in paced.items()},
            stamps=str(one.manifest.clock["stamps"]),
            timer=str(one.manifest.clock["timer"]),
        )


def _cpu(run: Run) -> float:
    """CPU seconds of the client while it ran."""
    at, total = 0, 0.0
    for sample in run.records.samples:
        total += sample.cpu * (sample.at - max(at, 0)) / 1e9
        at = sample.at
    return total


def _gaps(run: Run) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    arrival = np.concatenate([piece.arrival for piece in run.chunks()])
    first = np.zeros(len(arrival), bool)
    first[run.records.rows["chunk_start"][run.records.rows["chunk_count"] > 0]] = True
    return np.diff(arrival)[~first[1:]].astype(np.float64)


@contextlib.contextmanager
def _null_server() -> Iterator[str]:
    command = [sys.executable, "-m", "inferometer.serve.null", str(_ITL_MS), str(_CHUNKS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
