"""When are requests really sent? The lag at Poisson rates, and whether the gaps between sends are still exponential.

The KS tests use 2,000 gaps between actual sends, evenly spread over the run: with more, they would detect the microseconds
of any timer.

Sending a request takes a time c, so any single-threaded client sends two requests that are due within c of each other c
apart. A share of rate * c of all gaps is therefore c, and the KS statistic D is at least that. Longer gaps are exact: an idle
client sends a request as soon as it is due. As the exponential distribution has no memory, the part of a gap beyond a time by
which everything that a send causes is done, including reading its response, is exponential for any c (the departures of an
M/G/1 queue). Both are tested; the first has a target only if c is small enough.

Next to each rate is the lag of a busy loop in C (bare_pacer.c), measured just before. If its p99 is above 0.1 ms, the machine
is not idle, and the target is twice the loop's lag instead of 0.2 ms.

    python -m bench.pacing --modes     lag and CPU by rate and client.awake; throughput x mean latency with one request in flight
    python -m bench.pacing --bursts    lag of requests that come due while a burst of 256 responses is handled
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from scipy import stats

from bench.common import CLIENT_CORE, Line, Measured, compiled, measure, median, null_server, percentile, pinned, show

RATES = (100, 500, 2_000, 5_000, 20_000)
MODES = ("off", "spin", "latency")
ROUNDS = 5
UNSTREAMED = {"server__stream": False, "server__api": "completions"}
GAPS = 2_000
BEYOND_S = 100e-6
"""By then the previous request is sent and its response, which takes 30 to 60 us here, is read."""
ROOM = 0.02
"""Maximum of rate * c for a target: with 2,000 gaps, D = 0.036 has p = 0.01."""


def main() -> int:
    lines: list[Line] = []
    with (
        tempfile.TemporaryDirectory(prefix="inferometer-") as folder,
        compiled("bare_pacer.c") as pacer,
        null_server() as url,
    ):
        for rate in RATES:
            bare = _bare(pacer, url, rate)
            options = ("--rate", str(rate), "--duration", "8s", "--input", "64", "--output", "1")
            found = measure(folder, url, *options, **UNSTREAMED)
            lines += [*_lag(rate, found, bare), *_gaps(rate, found)]
    return show("pacing", lines)


def _bare(pacer: Path, url: str, rate: int) -> tuple[float, float]:
    """The lag of the loop in C: p50 and p99 in us."""
    done = subprocess.run(
        pinned(CLIENT_CORE, pacer, urlsplit(url).port, rate, 4), capture_output=True, text=True, check=True, timeout=60
    )
    p50, p99 = map(float, done.stdout.split())
    return p50, p99


def _lag(rate: int, found: Measured, bare: tuple[float, float]) -> list[Line]:
    lag = found.summary["metrics"]["lag"]
    p50, p99 = (percentile(lag, name) * 1e6 for name in ("p50", "p99"))
    words = f"{p50:.0f} us p50  {p99:.0f} us p99  {found.summary['verdict']}"
    limit = 200.0 if bare[1] <= 100 else 2 * bare[1]
    held = (f"<= {limit:.0f} us p99", bool(p99 <= limit)) if rate == 5_000 else ("", None)
    return [
        Line(f"lag of a loop in C at {rate:,}/s", f"{bare[0]:.0f} us p50  {bare[1]:.0f} us p99"),
        Line(f"lag at {rate:,}/s", words, *held),
    ]


def _gaps(rate: int, found: Measured) -> list[Line]:
    rows = found.run.records.rows
    order = np.argsort(rows["sent"], kind="stable")
    sent, intended = rows["sent"][order] / 1e9, rows["intended"][order] / 1e9
    gaps = np.diff(sent)
    takes = float(np.median(gaps[intended[1:] < sent[:-1]]))  # the next one was already due
    beyond = gaps[gaps > BEYOND_S] - BEYOND_S
    valid = found.summary["verdict"] == "VALID"
    room = rate * takes <= ROOM
    why_not = "INVALID" if not valid else "" if room else f"a send takes {takes * 1e6:.0f} us: D >= {rate * takes:.3f}"
    return [
        _exponential(f"gaps at {rate:,}/s against the exponential", gaps, rate, why_not),
        _exponential(f"their parts beyond {BEYOND_S * 1e6:.0f} us", beyond, rate, "" if valid else "INVALID"),
    ]


def _exponential(what: str, gaps: "np.ndarray[Any, Any]", rate: int, why_not: str) -> Line:
    few = gaps[:: max(len(gaps) // GAPS, 1)]
    test = stats.kstest(few, "expon", args=(0, 1 / rate))
    words = f"D = {test.statistic:.3f}, p = {test.pvalue:.2g}"
    if why_not:
        return Line(what, words, f"no target: {why_not}")
    return Line(what, words, "p > 0.01", bool(test.pvalue > 0.01))


# --- keeping the processor awake -------------------------------------------------------------------------------------


def modes() -> int:
    """Measure the ways of keeping the processor awake in turn, ROUNDS times."""
    rates = (100, 500, 2_000, 0)  # 0: one request in flight
    found: dict[tuple[int, str], list[Measured]] = {(rate, mode): [] for rate in rates for mode in MODES}
    with tempfile.TemporaryDirectory(prefix="inferometer-") as folder, null_server() as url:
        for _ in range(ROUNDS):
            for (rate, mode), runs in found.items():
                load = ("--rate", str(rate)) if rate else ("--concurrency", "1")
                options = (*load, "--duration", "4s", "--input", "64", "--output", "1")
                runs.append(measure(folder, url, *options, client__awake=mode, **UNSTREAMED))
    return show("pacing_modes", [_mode(rate, mode, runs) for (rate, mode), runs in found.items()])


def _mode(rate: int, mode: str, runs: list[Measured]) -> Line:
    """The median over the runs, and the smallest p99 of the lag: other processes can only add to it."""
    samples = [sample for run in runs for sample in run.run.records.samples]
    cpu, spinning = (100 * float(np.mean([getattr(sample, of) for sample in samples])) for of in ("cpu", "spinning"))
    share = f"CPU {cpu:.0f} % + {spinning:.0f} % spinning"
    if not rate:
        return Line(f"1 in flight, {mode}", f"throughput x latency {median(list(map(_product, runs))):.3f}", share)
    p50, p99 = ([percentile(run.summary["metrics"]["lag"], of) * 1e6 for run in runs] for of in ("p50", "p99"))
    words = f"{median(p50):.0f} us p50  {median(p99):.0f} us p99 (least {min(p99):.0f})"
    return Line(f"lag at {rate:,}/s, {mode}", words, share)


def _product(found: Measured) -> float:
    """The throughput times the mean time from sending a request to the end of its response: the mean number in flight."""
    rows = found.run.records.rows
    return float((rows["done"] - rows["sent"]).sum() / (rows["done"].max() - rows["sent"].min()))


# --- bursts of responses ---------------------------------------------------------------------------------------------

BURST = 256
BURST_RATE = 1_000
AFTER_BURST_NS = 15_000_000
"""By then a burst is read, decoded and recorded."""


def bursts() -> int:
    """Measure the lag of requests that come due while a burst of responses is handled, and of all others."""
    interval_us = BURST * 1_000_000 // BURST_RATE
    lags: dict[str, list[float]] = {"during a burst": [], "at other times": []}
    with tempfile.TemporaryDirectory(prefix="inferometer-") as folder, null_server(interval_us, chunks=1) as url:
        options = ("--rate", str(BURST_RATE), "--duration", "10s", "--input", "64", "--output", "1")
        for _ in range(ROUNDS):
            found = measure(folder, url, *options, load__type="constant", server__api="completions")
            during, others = _lags(found)
            for name, lag in zip(lags, (during, others), strict=True):
                lags[name].append(float(np.percentile(lag, 99)))
    lines = [
        Line(f"lag {name} of {BURST} responses", f"{median(p99):.0f} us p99 (least {min(p99):.0f})")
        for name, p99 in lags.items()
    ]
    return show("pacing_bursts", lines)


def _lags(found: Measured) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]":
    """The lag in us of requests that came due during a burst, and of the others."""
    rows = found.run.records.rows
    done = np.sort(rows["done"])
    starts = done[np.flatnonzero(np.diff(done, prepend=done[0] - AFTER_BURST_NS) >= AFTER_BURST_NS)]
    since = rows["intended"] - starts[np.maximum(np.searchsorted(starts, rows["intended"], "right") - 1, 0)]
    during = (since >= 0) & (since < AFTER_BURST_NS)
    lag = (rows["sent"] - rows["intended"] - rows["held"]) / 1e3
    return lag[during], lag[~during]


if __name__ == "__main__":
    sys.exit(modes() if "--modes" in sys.argv else bursts() if "--bursts" in sys.argv else main())
