"""Measures the limits of this machine as a client: the whole pipeline against a server that does nothing.

The results bound what a measurement from this machine can show: do not trust latencies below the added latency, or rates
near the maximum.
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
from inferometer.analysis.percentiles import PERCENTILES, Distribution, distribution, needed
from inferometer.analysis.summary import Summary
from inferometer.config import from_mapping
from inferometer.config.observe import NO_OBSERVERS
from inferometer.records import Run
from inferometer.units import NS

_ITL_MS = 10
_CHUNKS = 100
_STREAMS = 200
RATES = (500, 5_000)


class Calibration(msgspec.Struct, frozen=True):
    """The limits of one client process. Durations are in seconds; None if there were too few values."""

    schema: int
    requests_per_second: float | None
    """Highest throughput, not streamed."""
    cpu_per_request: float | None
    """CPU seconds per request, not streamed."""
    cpu_per_chunk: float | None
    """CPU seconds per chunk of a stream."""
    chunks_per_second: float | None
    """1 / cpu_per_chunk: the chunks that one core can handle."""
    added_latency_p50: float | None
    added_latency_p99: float | None
    """Time from handing a request to the kernel to the arrival of its response, with one request in flight. It includes the
    server, which responds at once."""
    itl_error_p50: float | None
    itl_error_p99: float | None
    """How far the measured gaps between chunks are from those that the server keeps."""
    lag_p50: dict[str, float | None]
    lag_p99: dict[str, float | None]
    """How late requests are sent in a Poisson load, by its rate (requests per second)."""
    stamps: str
    timer: str


STEPS = 3 + len(RATES)


def calibrate(seconds: float, note: Any = lambda step: None) -> Calibration:
    """Run all steps, each for `seconds`; `note` is called with the name of each step as it starts.

    Ctrl-C raises KeyboardInterrupt, because the result of a step that was cut short would be meaningless.
    """
    with _null_server() as url, tempfile.TemporaryDirectory(prefix="inferometer-") as folder:

        def measure(step: str, load: dict[str, object], stream: bool) -> tuple[Run, Summary]:
            note(step)
            config = from_mapping(
                {
                    "server": {"url": url, "api": "completions", "stream": stream},
                    "data": {"type": "synthetic", "input": 64, "output": _CHUNKS},
                    "load": {"duration": seconds} | load,
                    "client": {"processes": 1, "probe": False},
                    "observe": dict(NO_OBSERVERS),
                    "output": folder,
                }
            )
            return conduct.measure_to_end(config)

        one, alone = measure("added latency, one request at a time", {"type": "closed", "concurrency": 1}, False)
        full, most = measure("maximum throughput, 64 requests in flight", {"type": "closed", "concurrency": 64}, False)
        streamed, _ = measure(f"{_STREAMS} streams", {"type": "closed", "concurrency": _STREAMS}, True)
        paced = {rate: measure(f"pacing at {rate:,}/s", {"type": "poisson", "rate": rate}, False)[1] for rate in RATES}
        per_chunk = _per(_cpu(streamed), streamed.chunk_total)
        errors = distribution(np.abs(_gaps(streamed) - _ITL_MS * 1e6), "seconds", scale=NS)
        added = alone.metrics["e2e_service"]
        return Calibration(
            schema=1,
            requests_per_second=most.throughput.requests,
            cpu_per_request=_per(_cpu(full), len(full.records.rows)),
            cpu_per_chunk=per_chunk,
            chunks_per_second=None if per_chunk is None else 1 / per_chunk,
            added_latency_p50=_percentile(added, "p50"),
            added_latency_p99=_percentile(added, "p99"),
            itl_error_p50=_percentile(errors, "p50"),
            itl_error_p99=_percentile(errors, "p99"),
            lag_p50={str(rate): _percentile(summary.metrics["lag"], "p50") for rate, summary in paced.items()},
            lag_p99={str(rate): _percentile(summary.metrics["lag"], "p99") for rate, summary in paced.items()},
            stamps=str(one.manifest.clock["stamps"]),
            timer=str(one.manifest.clock["timer"]),
        )


def _per(total: float, count: int) -> float | None:
    return total / count if total and count else None


def _cpu(run: Run) -> float:
    """CPU seconds that the client used during the run."""
    previous, total = 0, 0.0
    for sample in run.records.samples:
        total += sample.cpu * (sample.at - max(previous, 0)) / 1e9
        previous = sample.at
    return total


def _gaps(run: Run) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Nanoseconds between consecutive chunks of the same request."""
    arrival = np.concatenate([np.zeros(0, np.int64), *(piece.arrival for piece in run.chunks())])
    first = np.zeros(len(arrival), bool)
    first[run.records.rows["chunk_start"][run.records.rows["chunk_count"] > 0]] = True
    return np.diff(arrival)[~first[1:]].astype(np.float64)


@contextlib.contextmanager
def _null_server() -> Iterator[str]:
    """A server process that does nothing; yields its URL."""
    command = [sys.executable, "-m", "inferometer.null_server", str(_ITL_MS), str(_CHUNKS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def _percentile(found: Distribution, name: str) -> float | None:
    """A percentile, if there are enough values. They need not be independent: this says what the machine does, not what it may do."""
    return found.value(name) if found.count >= needed(PERCENTILES[name]) else None
