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
from inferometer.analysis.percentiles import distribution
from inferometer.analysis.summary import Summary
from inferometer.config import from_mapping
from inferometer.records import Run
from inferometer.units import NS

_ITL_MS = 10
_CHUNKS = 100
_STREAMS = 200
RATES = (500, 5_000)


class Calibration(msgspec.Struct, frozen=True):
    """Seconds, requests and chunks a second, of one client process; null where there were too few values to tell."""

    schema: int
    requests_per_second: float | None
    cpu_per_request: float | None
    cpu_per_chunk: float | None
    chunks_per_second: float | None
    """What one core's worth of time is enough for, by cpu_per_chunk."""
    added_latency_p50: float | None
    added_latency_p99: float | None
    """One request at a time: everything between handing it to the kernel and its answer's arrival, server included."""
    itl_error_p50: float | None
    itl_error_p99: float | None
    """How far the measured gaps are from the server's beat."""
    lag_p50: dict[str, float | None]
    lag_p99: dict[str, float | None]
    """How late requests are sent, at rates (a second) of a Poisson load."""
    stamps: str
    timer: str


STEPS = 3 + len(RATES)


def calibrate(seconds: float, note: Any = lambda step: None) -> Calibration:
    """Each of the steps takes so long; `note` is told which one begins. Ctrl-C ends it: a step cut short tells nothing."""
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
            run, summary = conduct.measure(config, _Watchful())
            if run.manifest.outcome.interrupted:  # after the last snapshot
                raise KeyboardInterrupt
            return run, summary

        one, alone = measure("added latency, one request at a time", {"type": "closed", "concurrency": 1}, False)
        full, most = measure("ceiling, 64 requests in flight", {"type": "closed", "concurrency": 64}, False)
        streamed, _ = measure(f"{_STREAMS} streams", {"type": "closed", "concurrency": _STREAMS}, True)
        paced = {rate: measure(f"pacing at {rate:,}/s", {"type": "poisson", "rate": rate}, False)[1] for rate in RATES}
        per_chunk = _share(_cpu(streamed), streamed.chunk_total)
        errors = distribution(np.abs(_gaps(streamed) - _ITL_MS * 1e6), "seconds", scale=NS)
        added = alone.metrics["e2e_service"]
        return Calibration(
            schema=1,
            requests_per_second=most.throughput.requests,
            cpu_per_request=_share(_cpu(full), len(full.records.rows)),
            cpu_per_chunk=per_chunk,
            chunks_per_second=None if per_chunk is None else 1 / per_chunk,
            added_latency_p50=added.p50,
            added_latency_p99=added.p99,
            itl_error_p50=errors.p50,
            itl_error_p99=errors.p99,
            lag_p50={str(rate): summary.metrics["lag"].p50 for rate, summary in paced.items()},
            lag_p99={str(rate): summary.metrics["lag"].p99 for rate, summary in paced.items()},
            stamps=str(one.manifest.clock["stamps"]),
            timer=str(one.manifest.clock["timer"]),
        )


class _Watchful:
    """Shows nothing (a `conduct.Show`). A run ends well by Ctrl-C, with what it has; here nobody wants that."""

    def planned(self, *_: Any, **__: Any) -> None: ...

    def progress(self, snapshot: Any) -> None:
        if snapshot.stopping:
            raise KeyboardInterrupt

    def over(self) -> None: ...


def _share(total: float, count: int) -> float | None:
    return total / count if total and count else None


def _cpu(run: Run) -> float:
    """CPU seconds of the client while it ran."""
    at, total = 0, 0.0
    for sample in run.records.samples:
        total += sample.cpu * (sample.at - max(at, 0)) / 1e9
        at = sample.at
    return total


def _gaps(run: Run) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    arrival = np.concatenate([np.zeros(0, np.int64), *(piece.arrival for piece in run.chunks())])
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
