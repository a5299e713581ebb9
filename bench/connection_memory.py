"""What does a connection, a stream or a session that waits cost the client? docs/how-to/scale-out.md multiplies these figures.

One client process holds N idle connections, N open streams, or N sessions whose users think, against the simulator. The memory per one is the
slope of the process's resident memory between the smallest and the largest N. The kernel's share is the sum of the objects that one TCP socket
takes, by /proc/slabinfo (which needs root), without the data that waits in it. Bytes per chunk are what the client received for streams of 200 tokens.
There is no bound: these are facts.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.common import CORES, Line, Measured, measure, show
from inferometer.records import ROW
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed

COUNTS = (500, 2_000, 6_000)
SECONDS = 12
SLABS = ("TCP", "sock_inode_cache", "filp", "dentry", "eventpoll_epi")
CONVERSATION = {
    "data__type": "conversation",
    "data__turns": 4,
    "data__input": 64,
    "data__output": 2,
    "data__think": "60s",
}


def main() -> int:
    lines = []
    with tempfile.TemporaryDirectory(prefix="inferometer-") as folder:
        with running(simulator(timing=Fixed(ttft=1.0, itl=2.0))) as url:
            lines.append(_slope("idle connection", [_idle(folder, url, count) for count in COUNTS]))
            lines.append(_slope("open stream", [_streams(folder, url, count) for count in COUNTS]))
        with running(simulator(timing=Fixed(ttft=0.01, itl=0.01))) as url:
            lines.append(_slope("session that thinks", [_sessions(folder, url, count) for count in COUNTS]))
        with running(simulator(timing=Fixed(ttft=0.01, itl=0.005))) as url:
            lines += [_bytes_per_chunk(folder, url, api) for api in ("chat", "completions")]
    lines.append(Line("kernel, one end of a TCP connection", _kernel()))
    lines.append(Line("recorded", f"{ROW.itemsize} B per request, 10 B per chunk"))
    return show("connection_memory", lines, counts=COUNTS)


def _cores() -> str:
    return ",".join(map(str, CORES))


def _run(folder: str, url: str, *options: str, **settings: object) -> Measured:
    own = {"client__processes": 1, "observe__prometheus": [], "load__ramp_up": "4s"} | settings
    return measure(folder, url, *options, "--duration", f"{SECONDS}s", cores=_cores(), **own)


def _idle(folder: str, url: str, count: int) -> Measured:
    """Connections that are opened before the run; one user sends now and then."""
    return _run(folder, url, "--concurrency", "1", "--output", "2", client__connections=count)


def _streams(folder: str, url: str, count: int) -> Measured:
    return _run(folder, url, "--concurrency", str(count), "--output", "6")


def _sessions(folder: str, url: str, count: int) -> Measured:
    return _run(folder, url, "--concurrency", str(count), **CONVERSATION)


def _slope(what: str, found: list[Measured]) -> Line:
    """Bytes of resident memory per one more, in the second half of the run, when all have started."""
    resident = [
        float(np.median([sample.rss for sample in each.run.records.samples if sample.at > SECONDS / 2 * 1e9]))
        for each in found
    ]
    failed = sum(int((each.run.records.rows["failure"] > 0).sum()) for each in found)
    per_one = (resident[-1] - resident[0]) / (COUNTS[-1] - COUNTS[0])
    shown = ", ".join(f"{count:,}: {size / 2**20:.1f} MiB" for count, size in zip(COUNTS, resident, strict=True))
    return Line(what, f"{per_one / 1024:.1f} KiB", f"{shown}; {failed} failed or cancelled")


def _bytes_per_chunk(folder: str, url: str, api: str) -> Line:
    found = measure(
        folder, url, "--concurrency", "8", "--requests", "64", "--output", "200", cores=_cores(),
        server__api=api, client__processes=1, observe__prometheus=[],
    )  # fmt: skip
    rows = found.run.records.rows
    per_chunk = rows["bytes_in"].sum() / rows["chunk_count"].sum()
    return Line(f"received per chunk of one token, {api}", f"{per_chunk:.0f} B")


def _kernel() -> str:
    path = Path("/proc/slabinfo")
    try:
        sizes = {line.split()[0]: int(line.split()[3]) for line in path.read_text().splitlines()[2:]}
    except OSError:
        return "not known: /proc/slabinfo cannot be read"
    own = {name: sizes[name] for name in SLABS if name in sizes}
    return f"{sum(own.values()) / 1024:.1f} KiB: " + ", ".join(f"{name} {size}" for name, size in own.items())


if __name__ == "__main__":
    sys.exit(main())
