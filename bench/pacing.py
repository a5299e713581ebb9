"""When are requests really sent? Lag at Poisson rates, and whether the gaps between sends are still exponential.

The KS test takes 2 000 gaps between actual sends, evenly spread over the run: more would find any timer's microseconds.
"""

import sys
import tempfile

import numpy as np
from scipy import stats

from bench.common import CLIENT_CORE, Line, awake, measure, null_server, show

RATES = (500, 5_000, 20_000)
GAPS = 2_000


def main() -> int:
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="inferometer-") as folder, null_server() as url, awake(CLIENT_CORE):
        for rate in RATES:
            options = ("--rate", str(rate), "--duration", "8s", "--input", "64", "--output", "1")
            found = measure(folder, url, *options, server__stream=False, server__api="completions")
            lag = found.summary["metrics"]["lag"]
            hold = {"hold": "<= 0.2 ms", "ok": bool(lag["p99"] <= 0.0002)} if rate == 5_000 else {}
            words = f"{lag['p50'] * 1e6:.0f} us p50  {lag['p99'] * 1e6:.0f} us p99  {found.summary['verdict']}"
            lines.append(Line(f"lag at {rate:,}/s", words, **hold))
            gaps = np.diff(np.sort(found.run.records.rows["sent"]))
            gaps = gaps[:: max(len(gaps) // GAPS, 1)] / 1e9
            test = stats.kstest(gaps, "expon", args=(0, 1 / rate))
            words = f"D = {test.statistic:.3f}, p = {test.pvalue:.2g}"
            lines.append(
                Line(f"gaps at {rate:,}/s against the exponential", words, "p > 0.01", bool(test.pvalue > 0.01))
            )
    return show("pacing", lines)


if __name__ == "__main__":
    sys.exit(main())
