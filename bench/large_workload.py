"""Large workloads: how long preparing the requests of a run takes, and how much memory it needs, also while they are sent.

    python -m bench large_workload

Each case is a process of its own that builds synthetic prompts of 512 tokens with the built-in tokenizer, encodes them for chat, and
then makes every request as the pacer does. Targets: 100,000 in 10 s on one core; 1,000,000 below 1 GiB, and 1.8 times as fast on two cores
as on one, or 0.95 of what two processes reach that have nothing to do with each other: virtual cores may share a real one and its memory.
"""

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.common import Line, pinned, show
from inferometer.config.data import Synthetic
from inferometer.engine.requests import NO_USER, Requests
from inferometer.prepare.requests import Source, prepare
from inferometer.store.request_file import RequestWriter
from inferometer.types import Calls
from inferometer.wire.context import CallContext
from inferometer.wire.target import parse

TOKENS = 512
HOLD_SECONDS, HOLD_BYTES = 10.0, 1 << 30


def main() -> int:
    cores = len(os.sched_getaffinity(0))
    lines, took = [], {}
    for count, used in (
        (100_000, 1),
        (1_000_000, 1),
        *((1_000_000, used) for used in sorted({2, cores}) if 1 < used <= cores),
    ):
        case = _in_process(count, used)
        name = f"{count:,} prompts of {TOKENS} tokens on {used} core{'s' * (used > 1)}"
        found = f"{case['seconds']:.1f} s ({case['cpu']:.1f} s of CPU), {case['bytes'] / 1e9:.2f} GB"
        is_judged = count == 100_000  # by the CPU time, because other processes may use the core
        hold = f"< {HOLD_SECONDS:.0f} s of CPU" if is_judged else ""
        lines.append(Line(f"prepare {name}", found, hold, case["cpu"] < HOLD_SECONDS if is_judged else None))
        lines.append(Line("  making each of the requests", f"{case['make'] * 1e6:.2f} us of CPU"))
        peak = f"{case['peak'] / 2**20:.0f} MiB"
        lines.append(Line("  peak memory of a process", peak, f"< {HOLD_BYTES >> 30} GiB", case["peak"] < HOLD_BYTES))
        took[count, used] = case["seconds"]
    if cores > 1:
        gain = took[1_000_000, 1] / took[1_000_000, 2]
        ceiling = 2 * took[1_000_000, 1] / _two_at_once(1_000_000)
        lines.append(Line("two independent processes, one core each", f"{ceiling:.2f} x"))
        least = min(1.8, 0.95 * ceiling)
        lines.append(
            Line("two cores prepare 1,000,000 faster than one", f"{gain:.2f} x", f">= {least:.2f} x", gain >= least)
        )
    return show("large_workload", lines)


def _in_process(count: int, cores: int) -> dict[str, float]:
    return _result(_start(count, cores))


def _two_at_once(count: int) -> float:
    """How long two processes take that prepare as much each, on a core each."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    processes = [_start(count, 1, core) for core in (first, second)]
    return max(_result(process)["seconds"] for process in processes)


def _start(count: int, cores: int, core: int | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.large_workload", str(count), str(cores)]
    if core is not None:
        command = pinned(core, *command)
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def _result(process: subprocess.Popen[bytes]) -> dict[str, float]:
    case: dict[str, float] = json.loads(process.communicate()[0])
    return case


def measure(count: int, cores: int) -> dict[str, float]:
    """Prepare and make this many requests in this process."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    context = CallContext(api="chat", model="m", targets=(parse("http://127.0.0.1:1"),), tag="ab")
    ids = range(count)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(RequestWriter(Path(folder))) as writer:
        prepare(Source(Synthetic(input=TOKENS), 0, context), [ids], writer, Path(folder), builders=cores)
        mapped = writer.finish().mapped()
    seconds = time.perf_counter() - started
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    calls = Calls((b"",), mapped.tails, mapped.n_in, mapped.n_out, decoder=object, ids=(ids,))  # type: ignore[arg-type]
    requests = Requests(calls, 0, 1)
    started = time.process_time()
    for id in ids:
        requests.make(0, [id], [(NO_USER, 0)])
        if id % 50 == 0:
            requests.prefault()
    make = (time.process_time() - started) / count
    return {
        "seconds": seconds,
        "cpu": sum(usage.ru_utime + usage.ru_stime for usage in usages),
        "bytes": mapped.tails.offsets[-1],
        "make": make,
        "peak": max(usages[1].ru_maxrss, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) << 10,
    }


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
