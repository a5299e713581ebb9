"""How much load one core can drive, compared with wrk (C, the upper limit) and aiohttp, in turn on the same null server.

`full pipeline` includes everything from t=0 to the printed report: sending, timestamping, recording, storing, reading back,
metrics, report.

`CPU per chunk` is measured on streams of 100 chunks per second. It is the CPU time of all processes of `inferometer run`,
minus that of a run of one second, which starts up and builds as many prompts. Neighbors on the host disturb the caches of a
core, which can add half within seconds for the same code, and never reduces it. So the minimum over several rounds is
compared with the minimum of the bare client.

`most chunks per second` is measured on streams that the null server itself can hardly send: it is a lower bound for the client.
"""

import re
import shutil
import subprocess
import sys
import tempfile

from bench.common import CLIENT_CORE, HERE, Line, measure, median, null_server, pinned, show

ROUNDS = 3
CHUNK_ROUNDS = 6
SECONDS = 6
CONNECTIONS = 64
STREAMS = 200


def main() -> int:
    if shutil.which("wrk") is None:
        raise SystemExit("bench/ceiling needs wrk (Debian: apt-get install wrk)")
    wrk, aiohttp, inferometer, full = [], [], [], []
    with tempfile.TemporaryDirectory(prefix="inferometer-") as folder:
        with null_server() as url:
            for _ in range(ROUNDS):
                wrk.append(_wrk(url))
                aiohttp.append(_aiohttp(url))
                rate, whole = _inferometer(folder, url)
                inferometer.append(rate)
                full.append(whole)
        with null_server(interval_us=10_000, chunks=100) as url:
            bare, cpu = [], []
            for _ in range(CHUNK_ROUNDS):
                bare.append(_bare(url))
                cpu.append(_cpu_per_chunk(folder, url))
        with null_server(interval_us=1_500, chunks=100) as url:
            most = [_chunks_per_second(folder, url) for _ in range(ROUNDS)]
    to_bare = min(cpu) / min(bare)
    to_bare_median = median([ours / theirs for ours, theirs in zip(cpu, bare, strict=True)])
    to_wrk = median([ours / theirs for ours, theirs in zip(full, wrk, strict=True)])
    to_aiohttp = median([ours / theirs for ours, theirs in zip(full, aiohttp, strict=True)])
    chunk_ok = min(cpu) <= 8 if min(bare) <= 5 else None
    lines = [
        Line("wrk -t1 -c64", f"{median(wrk):,.0f} requests/s"),
        Line("aiohttp on uvloop, 64 tasks", f"{median(aiohttp):,.0f} requests/s"),
        Line("inferometer, while sending", f"{median(inferometer):,.0f} requests/s"),
        Line("inferometer, full pipeline", f"{median(full):,.0f} requests/s"),
        Line("full pipeline / wrk", f"{to_wrk:.2f}", ">= 0.4", to_wrk >= 0.4),
        Line("full pipeline / aiohttp", f"{to_aiohttp:.1f}", ">= 6", to_aiohttp >= 6),
        Line("bare sockets and httptools, CPU per read", _spread(bare)),
        Line(f"CPU per streamed chunk, {STREAMS} streams", _spread(cpu), "<= 8 us if bare takes 5", chunk_ok),
        Line("CPU per chunk / bare, minimum of each", f"{to_bare:.2f}", "<= 1.6", to_bare <= 1.6),
        Line("CPU per chunk / bare, median of pairs", f"{to_bare_median:.2f}"),
        Line("most chunks per second, client or server", f"{median(most):,.0f}", ">= 100,000", median(most) >= 100_000),
    ]
    facts = {"wrk": wrk, "aiohttp": aiohttp, "inferometer": inferometer, "full": full, "bare": bare, "cpu": cpu}
    return show("ceiling", lines, most=most, **facts)


def _spread(values: list[float]) -> str:
    return f"{min(values):.2f} us  ({median(values):.2f} median, {max(values):.2f} max)"


def _wrk(url: str) -> float:
    command = pinned(
        CLIENT_CORE, "wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", "-s", HERE / "post.lua", f"{url}/v1/completions"
    )
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
    assert rate is not None, output
    return float(rate[1])


def _aiohttp(url: str) -> float:
    command = pinned(
        CLIENT_CORE, sys.executable, HERE / "aiohttp_client.py", f"{url}/v1/completions", CONNECTIONS, SECONDS
    )
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _bare(url: str) -> float:
    command = pinned(CLIENT_CORE, sys.executable, HERE / "bare_client.py", url, STREAMS, STREAMS * SECONDS)
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _inferometer(folder: str, url: str) -> tuple[float, float]:
    options = (
        "--concurrency",
        str(CONNECTIONS),
        "--duration",
        f"{2 * SECONDS}s",
        "--prompt",
        "hello " * 190,
        "--output",
        "1",
    )
    found = measure(folder, url, *options, server__stream=False, server__api="completions")
    rows = found.run.records.rows
    assert found.summary["counts"]["failed"] == 0, found.summary["counts"]
    return found.summary["throughput"]["requests"], len(rows) / (rows["done"].max() / 1e9 + found.after)


def _chunks_per_second(folder: str, url: str) -> float:
    options = ("--concurrency", str(STREAMS), "--input", "256", "--output", "100", "--duration", f"{SECONDS}s")
    summary = measure(folder, url, *options, server__api="completions").summary
    assert summary["counts"]["failed"] == 0, summary["counts"]
    return float(summary["throughput"]["output_tokens"])


def _cpu_per_chunk(folder: str, url: str) -> float:
    options = ("--concurrency", str(STREAMS), "--input", "256", "--output", "100")
    startup = measure(folder, url, *options, "--duration", "1s", server__api="completions")
    found = measure(folder, url, *options, "--duration", f"{SECONDS + 1}s", server__api="completions")
    assert found.summary["counts"]["failed"] == 0, found.summary["counts"]
    return (found.cpu - startup.cpu) / (found.run.chunk_total - startup.run.chunk_total) * 1e6


if __name__ == "__main__":
    sys.exit(main())
