"""Are the reported latencies true? Compares TTFT and ITL with the simulator's own log of the same requests.

The server timestamps a request when the kernel receives it, and a token just before it is written. The difference is what the
client adds. A run that is not VALID is shown without a target, because the client itself does not trust it. Both cores are kept
awake: on a virtual machine, waking up either core would add to the times of both sides.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.common import CLIENT_CORE, SERVER_CORE, Line, Measured, awake, measure, percentile, show
from inferometer.analysis.percentiles import distribution
from inferometer.serve.background import serving
from inferometer.serve.settings import Settings, simulator
from inferometer.serve.sim import truth
from inferometer.serve.sim.settings import Fixed

CLOSED = ((100, 2_000, 0.01, 100), (256, 2_560, 0.01, 100), (500, 2_500, 0.05, 40), (500, 5_000, 0.01, 100))
"""Streams, requests, seconds between tokens, and tokens per request. The last one needs a core each for server and client."""
OPEN = ((500, 32), (2_000, 4), (2_000, 16))
"""Requests per second and tokens per request, 10 ms apart. The same holds for the last one."""
TTFT_S, ITL_S = 0.05, 0.01
WITHIN_S, WITHIN_SHARE = 0.0001, 0.01


def main() -> int:
    lines: list[Line] = []
    with (
        tempfile.TemporaryDirectory(prefix="inferometer-") as folder,
        awake(CLIENT_CORE),
        awake(SERVER_CORE, apart=True),  # the simulator runs in its own session
    ):
        for streams, requests, itl, tokens in CLOSED:
            options = ("--concurrency", str(streams), "--requests", str(requests), "--output", str(tokens))
            lines += _compare(f"{streams} streams, {itl * 1e3:.0f} ms", folder, itl, *options)
        for rate, tokens in OPEN:
            options = ("--rate", str(rate), "--duration", "10s", "--output", str(tokens))
            lines += _compare(f"{rate:,}/s of {tokens}", folder, ITL_S, *options)
        lines += _stall(folder)
    return show("truth", lines)


@contextlib.contextmanager
def _simulator(settings: Settings) -> Iterator[str]:
    server = serving(settings)
    os.sched_setaffinity(server.pid, {SERVER_CORE})
    try:
        yield server.url
    finally:
        server.stop()


def _compare(what: str, folder: str, itl: float, *options: str) -> list[Line]:
    log = Path(folder) / "truth.jsonl"
    with _simulator(simulator(timing=Fixed(ttft=TTFT_S, itl=itl), truth=str(log))) as url:
        found = measure(folder, url, "--input", "64", *options, server__api="completions")
    rows = truth.read(log)
    true = {
        "ttft": np.array([row.first - row.arrived for row in rows], np.int64),
        "itl": np.concatenate([np.diff(row.chunks) for row in rows]).astype(np.int64),
    }
    return [_line(what, found, name, values) for name, values in true.items()]


def _line(what: str, found: Measured, name: str, values: np.ndarray) -> Line:
    real = distribution(values, "s", scale=1e9)
    metric = found.summary["metrics"][name]
    pairs = [(percentile(metric, name), real.value(name) or 0.0) for name in ("p50", "p99")]
    valid = found.summary["verdict"] == "VALID"
    failed = ", ".join(check["name"] for check in found.summary["checks"] if check["status"] == "fail")
    ok = all(abs(reported - true) <= max(WITHIN_S, WITHIN_SHARE * true) for reported, true in pairs)
    words = "  ".join(f"{reported * 1e3:.3f} reported {true * 1e3:.3f} true" for reported, true in pairs)
    return Line(
        f"{what}: {name} p50, p99, ms",
        words,
        "within 0.1 ms or 1 %" if valid else f"no target: INVALID ({failed})",
        ok if valid else None,
    )


def _stall(folder: str) -> list[Line]:
    """The server stalls once for 2 s. With a cap on the requests in flight, those that wait behind it are sent late: the latency
    from the intended instant includes the wait, the latency from the send does not (except for requests that were in flight)."""
    settings = simulator(timing=Fixed(ttft=0.02, itl=0.002), faults=("freeze=2s@t=5s",))
    options = ("--rate", "200", "--duration", "15s", "--input", "64", "--output", "4")
    with _simulator(settings) as url:
        found = measure(folder, url, *options, server__api="completions", load__max_concurrency=16)
    metrics = found.summary["metrics"]
    intended, sent = (percentile(metrics[name], "p99") for name in ("ttft", "ttft_service"))
    return [
        Line("2 s stall: ttft p99 from intended", f"{intended * 1e3:.1f} ms", ">= 1000 ms", intended >= 1.0),
        Line("2 s stall: ttft p99 from sent", f"{sent * 1e3:.1f} ms", "<= 100 ms", sent <= 0.1),
    ]


if __name__ == "__main__":
    sys.exit(main())
