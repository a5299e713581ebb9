"""Whether `capacity` with its defaults finds the truth on live servers: python -m bench.live_capacity [--seeds 3] [NAME ...]

The simulator serves the engines of bench/capacity.py in real time, so their truth is known from virtual time; one of them has a noisy
neighbour on its cores. The truth of a real engine comes from long open loops around what the searches found: the rate at which the
share of requests that violate an objective is what is allowed. A search whose interval lacks an end is a miss. Engines that are not
installed are skipped, and named (tools/real_servers/install.sh llama_cpp, and so on).
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench import capacity, text_models
from bench.common import Line, show
from inferometer.analysis.slo_expression import parse_all
from inferometer.capacity_search.objectives import Objectives
from inferometer.capacity_search.result import Capacity
from inferometer.conduct.capacity import Options, find, with_objectives
from inferometer.conduct.measuring import measure
from inferometer.config import from_mapping
from inferometer.probe.scheme import DISCOVERY
from inferometer.report.capacity_view import Quiet
from inferometer.serve.background import serving
from inferometer.serve.settings import Settings, simulator

ROOT = Path(__file__).parent.parent
INSTALLED = Path(os.environ.get("INFEROMETER_REAL") or Path.home() / ".cache/inferometer/real")
CLOSE = 1.03
"""A truth that is this close to an end of the interval counts as inside: it is itself known to that."""
AROUND = (0.75, 0.85, 0.95, 1.05, 1.15, 1.3)
BEYOND, MOST_RUNS = 1.25, 10
"""If all of these are fine, the rate is raised by this factor until one is not; and the maximum number of runs."""
LONG, SKIPPED = 45.0, 0.15
"""Seconds of each run for the truth, and the share of it that is left out at its start."""
BUSY, PERIOD, NEIGHBOUR_S = 0.3, 0.5, 1000.0
"""A noisy neighbour computes for this share of a period, in seconds; and ends by itself after this time."""

Started = AbstractContextManager[dict[str, Any]]


class Live(msgspec.Struct, frozen=True):
    name: str
    start: Callable[[], Started]
    """Starts the server; yields its config section `server`."""
    slos: tuple[str, ...]
    data: dict[str, Any]
    virtual: capacity.Server | None = None
    """The same in virtual time."""
    needs: str = ""
    """What must be installed."""

    @property
    def objectives(self) -> Objectives:
        return Objectives(parse_all(list(self.slos), percentile="p90"))


# --- servers ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _simulated(server: capacity.Server) -> Iterator[dict[str, Any]]:
    with serving(simulator(timing=server.spec)) as running:
        yield {"url": running.url}


@contextlib.contextmanager
def _beside_a_neighbour(server: capacity.Server) -> Iterator[dict[str, Any]]:
    """A neighbour computes in bursts while the server runs."""
    burst = f"""
import time
end = time.monotonic() + {NEIGHBOUR_S}
while time.monotonic() < end:
    until = time.monotonic() + {BUSY * PERIOD}
    while time.monotonic() < until: pass
    time.sleep({(1 - BUSY) * PERIOD})
"""
    neighbours = [subprocess.Popen([sys.executable, "-c", burst]) for _ in range(os.cpu_count() or 1)]
    try:
        with _simulated(server) as section:
            yield section
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()


@contextlib.contextmanager
def _other(name: str, *options: str, key: str = "url", **more: str) -> Iterator[dict[str, Any]]:
    """A server by other people, which prints a line of JSON when it is ready."""
    python, script = INSTALLED / name / "bin/python", ROOT / "tools/real_servers" / name / "serve.py"
    process = subprocess.Popen(
        [python, script, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield {"url": json.loads(process.stdout.readline())[key], **more}
    finally:
        process.stdin.close()
        process.wait(30)


@contextlib.contextmanager
def _text() -> Iterator[dict[str, Any]]:
    """Our own text server with a Llama of random weights."""
    with tempfile.TemporaryDirectory(prefix="inferometer-") as folder:
        text_models.make(Path(folder) / "tiny", "tiny")
        with serving(Settings(models=(str(Path(folder) / "tiny"),), http=0)) as running:
            yield {"url": running.url, "model": "tiny", "api": "completions"}


@contextlib.contextmanager
def _tensors() -> Iterator[dict[str, Any]]:
    """Our own tensor server with a convolutional network."""
    with serving(Settings(models=("classifier",), http=0, grpc=0)) as running:
        yield {"url": running.grpc, "model": "classifier"}


def _simulators() -> Iterator[Live]:
    for server in capacity.SERVERS:
        if server.name in (
            "batch 512, 2 ms steps",
            "reasoning",
        ):  # more chunks than two cores send and receive; minutes
            continue
        data = {"type": "synthetic", "input": server.n_in.config, "output": server.n_out.config}
        start = lambda server=server: _simulated(server)  # noqa: E731
        yield Live(server.name, start, server.slos, data, server)
        if server.name == "batch 64, mixed with 20 x longer":
            name = server.name + ", noise beside it"
            yield Live(name, lambda server=server: _beside_a_neighbour(server), server.slos, data, server)


TEXTS = {"type": "synthetic", "input": 32, "output": {"type": "lognormal", "mean": 40, "std": 25, "max": 200}}
LIVE = (
    *_simulators(),
    Live("our text server, tiny Llama", _text, capacity.CHAT, TEXTS, needs="torch"),
    Live("llama.cpp", lambda: _other("llama_cpp"), capacity.CHAT, TEXTS, needs="llama_cpp"),
    Live("vLLM on the CPU", lambda: _other("vllm", "--max-num-seqs", "16"), capacity.CHAT, TEXTS, needs="vllm"),
    Live(
        "Triton, gRPC",
        lambda: _other("triton", "--models", str(ROOT / "tests/real/triton_models"), "slow", key="grpc", model="slow"),
        ("e2e.p90 < 100ms",),
        {"type": "tensors", "fill": {"DELAY_MS": {"value": 8}}},
        needs="triton",
    ),
    Live("our tensor server, classifier", _tensors, ("e2e.p90 < 100ms",), {"type": "tensors"}, needs="torch"),
)


# --- searches and the truth ------------------------------------------------------------------------------------------


def search(live: Live, section: dict[str, Any], seed: int) -> Capacity:
    with tempfile.TemporaryDirectory(prefix="inferometer-") as folder:
        tree = {"server": section, "data": live.data, "slo": list(live.slos), "output": folder, "seed": 1000 * seed}
        return find(with_objectives(from_mapping(tree, [], "bench", DISCOVERY)), Options(), Quiet())[0]


def long_runs(live: Live, section: dict[str, Any], about: float) -> dict[float, float]:
    """The share of violations / the share that is allowed, by rate, in long open loops around a rate."""
    shares: dict[float, float] = {}
    rates = [about * factor for factor in AROUND]
    while rates:
        rate = rates.pop(0)
        with tempfile.TemporaryDirectory(prefix="inferometer-") as folder:
            load = {"type": "poisson", "rate": rate, "duration": f"{LONG}s"}
            tree = {"server": section, "data": live.data, "load": load, "slo": list(live.slos), "output": folder}
            run, _ = measure(from_mapping(tree, [], "bench", DISCOVERY))
            rows = run.records.rows[int(SKIPPED * len(run.records.rows)) :]
            shares[rate] = _violating(live, rows) / live.objectives.allowed
        if not rates and max(shares.values()) <= 1 and len(shares) < MOST_RUNS:
            rates = [rate * BEYOND]
    return shares


def _violating(live: Live, rows: Any) -> float:
    """The share of requests that violate the worst objective."""
    from inferometer.analysis.metrics import METRICS  # noqa: PLC0415

    failed, shares = rows["failure"] != 0, []
    for one in live.objectives.common:
        values = METRICS[one.name].values(rows)  # type: ignore[misc]
        shares.append(float(np.mean(failed | (values >= one.threshold.value))))
    return max(shares)


def crossing(shares: dict[float, float]) -> tuple[float, float]:
    """The rates between which the share of violations crosses what is allowed: the last run before the first that is over, and the first
    after the last that is fine. If something disturbed a run, there is more than one step between them."""
    rates = sorted(shares)
    first_over = next((rate for rate in rates if shares[rate] > 1), math.inf)
    last_fine = next((rate for rate in reversed(rates) if shares[rate] <= 1), 0.0)
    fine = [rate for rate in rates if rate < first_over]
    over = [rate for rate in rates if rate > last_fine]
    return max(fine, default=0.0), min(over, default=math.inf)


class Outcome(msgspec.Struct, frozen=True):
    name: str
    found: list[Capacity]
    truth: tuple[float, float]

    def is_inside(self, one: Capacity) -> bool:
        low, high = one.bracket.low, one.bracket.high
        return bool(low and high and low <= self.truth[1] * CLOSE and high * CLOSE >= self.truth[0])

    @property
    def line(self) -> Line:
        ends = ", ".join(
            f"{one.bracket.low:.3g}..{one.bracket.high:.3g}" if one.bracket.low and one.bracket.high else "open"
            for one in self.found
        )
        inside = sum(map(self.is_inside, self.found))
        low, high = self.truth
        true = f"{low:.3g}" if low == high else f"{low:.3g}..{high:.3g}"
        slowest = max(one.seconds / one.budget for one in self.found)
        return Line(
            self.name,
            f"{ends} ({slowest:.0%} of the budget)",
            f"truth {true}",
            inside == len(self.found) and slowest <= 1.1,
        )


def run(live: Live, seeds: int) -> Outcome:
    with live.start() as section:
        found = []
        for seed in range(1, seeds + 1):
            found.append(search(live, section, seed))
            print("  ", live.name, found[-1].bracket, f"{found[-1].seconds:.0f} s", flush=True)
        if live.virtual is not None:
            true = capacity.truth(live.virtual)
            return Outcome(live.name, found, (true, true))
        estimates = [one.bracket.estimate for one in found if one.bracket.estimate]
        shares = long_runs(live, section, statistics.median(estimates))
    print(
        "  ",
        live.name,
        "violations / allowed:",
        {round(rate, 2): round(share, 2) for rate, share in shares.items()},
        flush=True,
    )
    return Outcome(live.name, found, crossing(shares))


def _is_installed(live: Live) -> bool:
    if live.needs == "torch":
        import importlib.util  # noqa: PLC0415

        return importlib.util.find_spec("torch") is not None
    return not live.needs or (INSTALLED / live.needs / "installed.txt").exists()


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of the names of servers; default: all")
    parser.add_argument("--seeds", type=int, default=3, help="searches per server")
    options = parser.parse_args(arguments)
    outcomes = []
    for live in LIVE:
        if options.names and not any(name in live.name for name in options.names):
            continue
        if not _is_installed(live):
            print(f"skipped {live.name}: {live.needs} is not installed", flush=True)
            continue
        outcomes.append(run(live, options.seeds))
        print(outcomes[-1].line, flush=True)
    found = [one for outcome in outcomes for one in outcome.found]
    widths = sorted(
        one.bracket.high / one.bracket.low if one.bracket.low and one.bracket.high else math.inf for one in found
    )
    inside = sum(outcome.is_inside(one) for outcome in outcomes for one in outcome.found)
    both = sum(math.isfinite(width) for width in widths)
    nine = widths[math.ceil(0.9 * len(widths)) - 1]
    lines = [
        *(outcome.line for outcome in outcomes),
        Line("both ends", f"{both} of {len(found)}", ">= 35 of 36", both >= 35 / 36 * len(found)),
        Line("the truth is inside", f"{inside} of {len(found)}", ">= 33 of 36", inside >= 33 / 36 * len(found)),
        Line("median width", f"{statistics.median(widths):.2f}", "<= 1.3", statistics.median(widths) <= 1.3),
        Line("nine of ten", f"{nine:.2f}", "<= 1.6", nine <= 1.6),
    ]
    return show("live_capacity", lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
