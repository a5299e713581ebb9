"""Does making the next turn of a session disturb pacing? The lag of 500 sessions, beside the same load without sessions.

Every session thinks for a second between turns, so about 500 turns per second come due, each its think time after the end of a response;
each prompt contains the turns before it. The other load is a Poisson process of the same rate, with prompts of the same sizes in bytes
that are all encoded before the run. Both send to the same null server, in turn. Lag: from the intended instant to the send.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.common import Line, Measured, measure, median, null_server, show

SESSIONS = 500
ROUNDS = 5
SECONDS = 10
CHUNKS = 16
TALK = {
    "data__type": "conversation",
    "data__turns": 10,
    "data__system": 1000,
    "data__input": 300,
    "data__output": CHUNKS,
    "data__think": "1s",
    "load__ramp_up": "1s",
}
LIMIT = 1.5


def main() -> int:
    lags: dict[str, list[float]] = {"with": [], "without": []}
    typical: dict[str, list[float]] = {"with": [], "without": []}
    facts = []
    with tempfile.TemporaryDirectory(prefix="inferometer-") as folder, null_server(chunks=CHUNKS) as url:
        for _ in range(ROUNDS):
            talks = measure(folder, url, "--concurrency", str(SESSIONS), "--duration", f"{SECONDS}s", **TALK)
            sizes, rate = _load(talks)
            path = Path(folder) / "prompts.jsonl"
            path.write_text("".join(json.dumps({"prompt": "x" * size}) + "\n" for size in sizes))
            plain = measure(
                folder, url, "--rate", str(rate), "--duration", f"{SECONDS}s",
                data__type="jsonl", data__path=str(path), data__output=CHUNKS,
            )  # fmt: skip
            facts.append(
                f"{rate:.0f} requests/s, {np.mean(sizes) / 1e3:.1f} kB on average, {max(sizes) / 1e3:.1f} kB at most"
            )
            for name, found in (("with", talks), ("without", plain)):
                p50, p99 = _lag(found)
                typical[name].append(p50)
                lags[name].append(p99)
    ratio = median(lags["with"]) / median(lags["without"])
    return show(
        "sessions",
        [
            Line(f"load of {SESSIONS} sessions", facts[-1]),
            *(
                Line(f"lag {name} sessions", f"{median(typical[name]):.0f} us p50  {median(p99):.0f} us p99 (least {min(p99):.0f})")
                for name, p99 in lags.items()
            ),
            Line("p99 with sessions / without", f"{ratio:.2f}", f"<= {LIMIT}", ratio <= LIMIT),
        ],
    )  # fmt: skip


def _load(found: Measured) -> tuple[list[int], float]:
    """The sizes of prompts that make requests as large as these, and the rate of the turns after the ramp-up."""
    rows = found.run.records.rows
    steady = rows[rows["intended"] > 2_000_000_000]
    overhead = 400  # of the head and the JSON around a prompt
    sizes = np.maximum(steady["bytes_out"] - overhead, 1)[:: max(len(steady) // 2_000, 1)].tolist()
    return sizes, 1e9 * len(steady) / float(steady["intended"].max() - steady["intended"].min())


def _lag(found: Measured) -> tuple[float, float]:
    """p50 and p99 in us; of sessions, that of the turns that came due after thinking."""
    rows = found.run.records.rows
    own = rows[(rows["intended"] > 2_000_000_000) & ((rows["turn"] > 0) | (rows["turn"] < 0))]
    p50, p99 = np.percentile((own["sent"] - own["intended"] - own["held"]) / 1e3, (50, 99))
    return float(p50), float(p99)


if __name__ == "__main__":
    sys.exit(main())
