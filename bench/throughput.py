"""Are the reported rates those of the server? Compares them with servers whose capacity is known.

First simulated records, 20 seeds of each case: one queue, 16 slots, service times that are constant, exponential or lognormal,
in stages of 20 times the p90 of the end-to-end time. The mean of the seeds has to be within 0.5 % of the offered rate and within
2 % of the completed one. Then a few live runs against the simulator of `inferometer serve`, each of which is right if it is
within 2 %, or if its 95 % confidence interval has the true rate.
"""

import heapq
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from bench.common import CLIENT_CORE, SERVER_CORE, Line, awake, measure, show
from inferometer.analysis.overload import Overload, overload
from inferometer.analysis.throughput import Throughput, stage_rates
from inferometer.records import MISSING, ROW, Columns, Manifest, Records, Run, StagePlan
from inferometer.serve.background import serving
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed

SECOND = 1_000_000_000
SEEDS, SLOTS, CAPACITY = 20, 16, 100.0
OFFERED_WITHIN, COMPLETED_WITHIN = 0.005, 0.02
Sampler = Callable[[np.random.Generator, float, int], NDArray[np.float64]]
SERVICE: dict[str, Sampler] = {
    "constant": lambda rng, mean, count: np.full(count, mean),
    "exponential": lambda rng, mean, count: rng.exponential(mean, count),
    "lognormal": lambda rng, mean, count: rng.lognormal(np.log(mean) - 0.5, 1.0, count),
}
LOADS = (0.5, 0.8, 0.95, 1.2, 3.0)
"""Offered rates as shares of the capacity."""
LIVE_LOADS = (0.7, 1.3)
LIVE_SECONDS = 20
LIVE_SLOTS, LIVE_TTFT, LIVE_ITL, LIVE_TOKENS = 8, 0.01, 0.001, 10


def main() -> int:
    lines = [line for service in SERVICE for kind in ("constant", "poisson") for line in _open(service, kind)]
    lines += [_closed(service, ramp) for service in SERVICE for ramp in (0.0, 1.0)]
    with tempfile.TemporaryDirectory(prefix="inferometer-") as folder:
        lines += [_live(folder, service, load) for service in SERVICE for load in LIVE_LOADS]
    return show("throughput", lines)


# --- simulated records -----------------------------------------------------------------------------------------------


def _open(service: str, kind: str) -> list[Line]:
    lines = []
    for load in LOADS:
        rate = load * CAPACITY
        pairs = [_simulate(service, kind, rate, seed) for seed in range(SEEDS)]
        offered, completed = (
            float(np.mean([getattr(rates, name) or 0.0 for rates, _ in pairs])) for name in ("offered", "requests")
        )
        overloaded = sum(found.status == "overloaded" for _, found in pairs)
        true = min(rate, CAPACITY)
        ok = abs(offered / rate - 1) <= OFFERED_WITHIN and abs(completed / true - 1) <= COMPLETED_WITHIN
        ok = ok and (overloaded == SEEDS if load > 1 else overloaded <= (SEEDS // 20 if load > 0.9 else 0))
        lines.append(
            Line(
                f"{kind}, {service}, {load:g} of the capacity",
                f"{offered:.1f} of {rate:.0f} offered, {completed:.1f} of {true:.0f} completed",
                f"within 0.5 % and 2 %; {overloaded} of {SEEDS} overloaded",
                ok,
            )
        )
    return lines


def _simulate(service: str, kind: str, rate: float, seed: int) -> tuple[Throughput, Overload]:
    """A stage of 20 times the p90 of the end-to-end time; with overload, which has no such p90, of the time of a response."""
    rng = np.random.default_rng(seed)
    seconds = 60.0
    for _ in range(2):
        count = round(rate * seconds)
        arrived = np.arange(count) / rate if kind == "constant" else np.sort(rng.uniform(0, seconds, count))
        times = SERVICE[service](rng, SLOTS / CAPACITY, count)
        done = _queue(arrived, times)
        seconds = max(20 * float(np.quantile(times if rate > CAPACITY else done - arrived, 0.9)), 20.0)
    plan = StagePlan(type=kind, open=True, rate=rate, duration=seconds)
    return _rates(arrived, done, plan)


def _queue(arrived: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """When each request is done: first come, first served, SLOTS at a time."""
    free = [0.0] * SLOTS
    done = np.empty(len(arrived))
    for index, (at, time) in enumerate(zip(arrived.tolist(), times.tolist(), strict=True)):
        done[index] = max(heapq.heappop(free), at) + time
        heapq.heappush(free, float(done[index]))
    return done


def _closed(service: str, ramp: float) -> Line:
    """SLOTS users without think time, who start at once or over the time of a response."""
    mean = SLOTS / CAPACITY
    found = []
    for seed in range(SEEDS):
        rng = np.random.default_rng(seed)
        seconds = max(20 * float(np.quantile(SERVICE[service](rng, mean, 10_000), 0.9)), 20.0)
        users = [(ramp * mean * user / SLOTS, user) for user in range(SLOTS)]
        sent, done = [], []
        while users[0][0] < seconds:
            at, user = users[0]
            sent.append(at)
            done.append(at + float(SERVICE[service](rng, mean, 1)[0]))
            heapq.heapreplace(users, (done[-1], user))
        plan = StagePlan(type="closed", open=False, concurrency=SLOTS, duration=seconds, ramp_up=ramp * mean)
        found.append(_rates(np.array(sent), np.array(done), plan)[0].requests or 0.0)
    completed = float(np.mean(found))
    ok = abs(completed / CAPACITY - 1) <= COMPLETED_WITHIN
    what = f"closed, {service}, {'spread' if ramp else 'together'}"
    return Line(what, f"{completed:.1f} of {CAPACITY:.0f} completed", "within 2 %", ok)


def _rates(sent: NDArray[np.float64], done: NDArray[np.float64], plan: StagePlan) -> tuple[Throughput, Overload]:
    rows = np.zeros(len(sent), ROW)
    rows["id"], rows["open_loop"] = np.arange(len(sent)), plan.open
    rows["intended"] = rows["sent"] = np.rint(sent * SECOND)
    rows["done"] = np.rint(done * SECOND)
    for name in ("first_byte", "first_token", "last_token"):
        rows[name] = MISSING
    manifest = Manifest(
        inferometer="bench", started="", t0_wall_ns=0, config={}, plan=(plan,), workload={}, clock={}, seeds={}, versions={}, host={}
    )  # fmt: skip
    records = Records(Columns.of(rows), np.ones(len(rows), np.int8), (), ())
    run = Run(Path(), manifest, records, 0, lambda: iter(()))
    found = overload(records.rows, plan)
    ((_, rates),) = stage_rates(run, {}, [found])
    return rates, found


# --- live runs -------------------------------------------------------------------------------------------------------


def _live(folder: str, service: str, load: float) -> Line:
    """One run against the simulator, whose requests take a known time and are served LIVE_SLOTS at a time."""
    timing: dict[str, Any] = {"ttft": LIVE_TTFT, "itl": LIVE_ITL, "max_batch": LIVE_SLOTS, "service": service}
    server = serving(simulator(timing=msgspec.convert(timing, Fixed)))
    capacity = LIVE_SLOTS / (LIVE_TTFT + (LIVE_TOKENS - 1) * LIVE_ITL)
    options = ("--rate", f"{load * capacity:.3f}", "--duration", f"{LIVE_SECONDS}s", "--output", str(LIVE_TOKENS))
    try:
        os.sched_setaffinity(server.pid, {SERVER_CORE})
        with awake(CLIENT_CORE), awake(SERVER_CORE, apart=True):
            summary = measure(folder, server.url, "--input", "64", *options, server__api="completions").summary
    finally:
        server.stop()
    rates, true = summary["throughput"], min(load, 1.0) * capacity
    low, high = rates["ci"]["requests"]
    status = summary["overload"]["status"]
    is_right = abs(rates["requests"] / true - 1) <= COMPLETED_WITHIN or low <= true <= high
    ok = is_right and (status == "overloaded") == (load > 1)
    return Line(
        f"live, {service}, {load:g} of the capacity",
        f"{rates['requests']:.1f} ({low:.1f} to {high:.1f}) of {true:.1f}",
        f"within 2 % or its interval; {status}",
        ok,
    )


if __name__ == "__main__":
    sys.exit(main())
