"""Is a trace replayed as it was recorded? The whole Azure conversation trace at 60 times its speed, against the simulator.

The instants and lengths that the run must have are read from the file here, without the code that the run uses. The file is not
part of the repository: AZURE_TRACE names it, by default ../shared/data/traces/AzureLLMInferenceTrace_conv.csv.
"""

import csv
import os
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from bench.common import CLIENT_CORE, HERE, SERVER_CORE, Line, Measured, awake, measure, percentile, show
from inferometer.records import COUNTED_BY
from inferometer.serve.background import serving
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed

TRACE = Path(os.environ.get("AZURE_TRACE") or HERE.parents[1] / "shared/data/traces/AzureLLMInferenceTrace_conv.csv")
SPEED = 60
TOKENS_PER_CHUNK = 64
LAG_S = 0.001


def main() -> int:
    if not TRACE.exists():
        print(f"\ntrace_replay\n  {TRACE} does not exist: name the file with AZURE_TRACE")
        return 0
    times, inputs, outputs = _read()
    settings = simulator(timing=Fixed(ttft=0.05, itl=0.01), tokens_per_chunk=TOKENS_PER_CHUNK)
    with (
        tempfile.TemporaryDirectory(prefix="inferometer-") as folder,
        awake(CLIENT_CORE),
        awake(SERVER_CORE, apart=True),  # the simulator runs in its own session
    ):
        server = serving(settings)
        os.sched_setaffinity(server.pid, {SERVER_CORE})
        try:
            data: dict[str, Any] = {"data__type": "trace", "data__path": str(TRACE), "data__speed": SPEED}
            found = measure(folder, server.url, load__type="trace", **data)
        finally:
            server.stop()
    rows = np.sort(np.asarray(found.run.records.rows), order="id")
    planned = [(2 * (time - times[0]) + SPEED) // (2 * SPEED) for time in times]
    by_server = int((rows["counted_by"] == COUNTED_BY.index("server")).sum())
    lines = [
        _equal("requests", len(rows), len(times)),
        _equal("instants equal to the file's", int((rows["intended"] == planned).sum()), len(times)),
        _lag(found),
        _equal("input tokens", int(rows["n_in"].sum()), sum(inputs)),
        _equal("output tokens", int(rows["n_out"].sum()), sum(outputs)),
        _equal(
            "rows with the file's lengths",
            int(((rows["n_in"] == inputs) & (rows["n_out"] == outputs)).sum()),
            len(times),
        ),
        _equal("responses counted by the server", by_server, len(times)),
    ]
    return show("trace_replay", lines)


def _read() -> tuple[list[int], list[int], list[int]]:
    """Times in nanoseconds, and tokens of the prompts and the responses."""
    with TRACE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return (
        [_nanoseconds(row["TIMESTAMP"]) for row in rows],
        [int(row["ContextTokens"]) for row in rows],
        [int(row["GeneratedTokens"]) for row in rows],
    )


def _nanoseconds(stamp: str) -> int:
    second, _, fraction = stamp.partition(".")
    since = datetime.fromisoformat(second) - datetime(2023, 1, 1)
    return (since.days * 86_400 + since.seconds) * 10**9 + int(fraction.ljust(9, "0"))


def _lag(found: Measured) -> Line:
    """The lag, or what the run says about it: on a busy machine, the client is held up, and the run must not be silent about it."""
    lag = found.summary["metrics"]["lag"]
    p50, p99 = (percentile(lag, name) for name in ("p50", "p99"))
    words = f"{p50 * 1e3:.3f} ms p50  {p99 * 1e3:.3f} ms p99  {found.summary['verdict']}"
    reasons = [check["name"] for check in found.summary["checks"] if check["status"] in ("fail", "warn")]
    if p99 < LAG_S or "lag" not in reasons:
        return Line("lag", words, f"< {LAG_S * 1e3:g} ms p99", p99 < LAG_S)
    return Line("lag", words, f"no target: the run says why ({', '.join(reasons)})")


def _equal(what: str, found: int, wanted: int) -> Line:
    return Line(what, f"{found:,}", f"= {wanted:,}", found == wanted)


if __name__ == "__main__":
    sys.exit(main())
