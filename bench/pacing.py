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
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from scipy import stats

from bench.common import CLIENT_CORE, Line, Measured, awake, compiled, measure, null_server, pinned, show

RATES = (500, 5_000, 20_000)
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
        awake(CLIENT_CORE),
    ):
        for rate in RATES:
            bare = _bare(pacer, url, rate)
            options = ("--rate", str(rate), "--duration", "8s", "--input", "64", "--output", "1")
            found = measure(folder, url, *options, server__stream=False, server__api="completions")
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
    words = f"{lag['p50'] * 1e6:.0f} us p50  {lag['p99'] * 1e6:.0f} us p99  {found.summary['verdict']}"
    limit = 200.0 if bare[1] <= 100 else 2 * bare[1]
    held = (f"<= {limit:.0f} us p99", bool(lag["p99"] * 1e6 <= limit)) if rate == 5_000 else ("", None)
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


if __name__ == "__main__":
    sys.exit(main())
