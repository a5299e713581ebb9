"""Compare what the GPU observer records with nvidia-smi, and its energy with an integral taken by hand.

    PYTHONPATH=src python tools/check_gpu.py [--seconds 10] [--gpu 0]

It needs a GPU, nvidia-smi, and the packages torch, numpy, msgspec and nvidia-ml-py (pynvml). A child process loads the GPU with matrix
products: at full power, then in bursts, then at full power again. Meanwhile the observer records, as it does in a run, and so does
`nvidia-smi -lms 50`. The exit status is 1 if the energies differ by more than 3 %.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

from inferometer.analysis.energy import growth, longest_power_gap, trapezoid
from inferometer.observe.gpu import GpuWatch, open_nvml
from inferometer.observe.observer import Observers
from inferometer.series import TimeSeries
from inferometer.timing.clock import wall_offset
from inferometer.units import NS

ALLOWED = 0.03
IDLE_S = 2.0
INTERVAL_S = 1.0
QUERIES = ("power.draw.instant", "power.draw", "utilization.gpu", "memory.used", "temperature.gpu", "clocks.sm")
OURS = {
    "utilization.gpu": ("gpu_use", 100.0),
    "memory.used": ("gpu_memory", 1 / 2**20),
    "temperature.gpu": ("gpu_temperature", 1.0),
    "clocks.sm": ("gpu_clock", 1.0),
}
Samples = list[tuple[int, float]]
"""Instants (ns of CLOCK_MONOTONIC) and values."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the load")
    parser.add_argument("--gpu", type=int, default=0, help="index of the GPU, as nvidia-smi counts")
    parser.add_argument("--load", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        load(options.seconds)
        return 0
    with Observers({"gpu": GpuWatch(open_nvml(True), INTERVAL_S)}) as observers:
        observers.start()
        smi = Smi(options.gpu)
        window = loaded(options.seconds, options.gpu)
        time.sleep(IDLE_S)
        recorded = observers.end()
        theirs = smi.end()
    series = {each.name: each for each in recorded if each.labels["gpu"] == str(options.gpu)}
    for what, why in observers.errors.items():
        print(f"problem: {what}: {why}")
    taken = (window[1] - window[0]) / NS
    print(series["gpu_info"].labels)
    cost = observers.cpu_seconds["gpu"] / ((int(series["gpu_power"].at[-1]) - int(series["gpu_power"].at[0])) / NS)
    print(f"the load took {taken:.2f} s; observing took {100 * cost:.2f} % of a core\n")
    compare_values(series, theirs, window)
    margin = round(IDLE_S / 2 * NS)
    with_idle = (window[0] - margin, window[1] + margin)
    good = [compare_energy(series, theirs, window, "the load alone")]
    good.append(compare_energy(series, theirs, with_idle, f"with {IDLE_S / 2:g} s of rest on both sides"))
    return 0 if all(good) else 1


# --- the load --------------------------------------------------------------------------------------------------------


def loaded(seconds: float, gpu: int) -> tuple[int, int]:
    """Load the GPU from a child process; return when the load began and ended."""
    command = [sys.executable, __file__, "--load", "--seconds", str(seconds)]
    environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(gpu)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdin is not None and process.stdout is not None
    if process.stdout.readline().strip() != "ready":
        raise SystemExit("the load did not start: is torch installed with CUDA?")
    time.sleep(IDLE_S)
    process.stdin.write("go\n")
    process.stdin.flush()
    begin, end = map(int, process.stdout.readline().split())
    process.stdin.close()
    process.wait()
    return begin, end


def load(seconds: float) -> None:
    """Multiply matrices for 40 % of the time, then half of the time in bursts of half a second, then all of the time again."""
    import torch  # noqa: PLC0415 - only the child needs it

    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def work(until: float) -> None:
        while time.monotonic() < until:
            for _ in range(5):
                matrix @ matrix
            torch.cuda.synchronize()

    work(time.monotonic() + 0.5)  # warm up
    print("ready", flush=True)
    sys.stdin.readline()
    begin = time.monotonic_ns()
    start = begin / NS
    work(start + 0.4 * seconds)
    while time.monotonic() < start + 0.8 * seconds:
        work(time.monotonic() + 0.5)
        time.sleep(0.5)
    work(start + seconds)
    print(begin, time.monotonic_ns(), flush=True)
    sys.stdin.read()  # its context stays until the samples after the load are taken


# --- nvidia-smi ------------------------------------------------------------------------------------------------------


class Smi:
    """Samples of nvidia-smi, by its own time stamps: its output may be buffered."""

    def __init__(self, gpu: int) -> None:
        self._queries = [query for query in QUERIES if self._knows(query, gpu)]
        query = ",".join(["timestamp", *self._queries])
        command = ["nvidia-smi", f"--id={gpu}", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-lms", "50"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @staticmethod
    def _knows(query: str, gpu: int) -> bool:
        command = ["nvidia-smi", f"--id={gpu}", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode == 0 and done.stdout.strip().replace(".", "").isdecimal()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._lines += self._process.stdout

    def end(self) -> dict[str, Samples]:
        self._process.terminate()
        self._thread.join()
        samples: dict[str, Samples] = {query: [] for query in self._queries}
        offset = wall_offset()
        for line in self._lines:
            stamp, *values = (part.strip() for part in line.split(","))
            if len(values) != len(self._queries):  # the last line may be cut off
                continue
            at = round(datetime.strptime(stamp, "%Y/%m/%d %H:%M:%S.%f").astimezone().timestamp() * NS) - offset
            for query, value in zip(self._queries, values, strict=True):
                samples[query].append((at, float(value)))
        return samples


# --- comparisons -----------------------------------------------------------------------------------------------------


def compare_values(series: dict[str, TimeSeries], theirs: dict[str, Samples], window: tuple[int, int]) -> None:
    print(
        f"{'during the load':<20}{'ours: mean':>12}{'max':>10}{'samples':>9}{'nvidia-smi: mean':>18}{'max':>10}{'samples':>9}"
    )
    for query, (name, scale) in OURS.items():
        if name in series and query in theirs:
            own = [(at, value * scale) for at, value in samples_of(series[name])]
            row(query, within(own, window), within(theirs[query], window))
    for query in QUERIES[:2]:
        if query in theirs:
            row(query, within(samples_of(series["gpu_power"]), window), within(theirs[query], window))
    print()


def compare_energy(
    series: dict[str, TimeSeries], theirs: dict[str, Samples], window: tuple[int, int], what: str
) -> bool:
    """Print the energy of a window by all accounts; return whether ours agrees with nvidia-smi's."""
    power, counter = series["gpu_power"], series.get("gpu_energy")
    ours = trapezoid(power.at, power.value, *window, longest_power_gap(INTERVAL_S))
    print(f"energy, {what}, {(window[1] - window[0]) / NS:.2f} s")
    print(f"  {'ours (trapezoid)':<36}{ours if isinstance(ours, str) else f'{ours:12.1f} J'}")
    if isinstance(ours, str):
        return False
    by_hand = {
        f"by hand from nvidia-smi, {query}": integral(theirs[query], *window)
        for query in QUERIES[:2]
        if query in theirs
    }
    for name, joules in by_hand.items():
        print(f"  {name:<46}{joules:12.1f} J  ours differs by {100 * (ours / joules - 1):+.2f} %")
    if counter is not None:
        counted = growth(counter.at, counter.value, *window, 3 * INTERVAL_S)
        shown = (
            counted
            if isinstance(counted, str)
            else f"{counted:12.1f} J  ours differs by {100 * (ours / counted - 1):+.2f} %"
        )
        print(f"  {'energy counter of the GPU':<46}{shown}")
    print()
    return abs(ours / next(iter(by_hand.values())) - 1) <= ALLOWED


def samples_of(series: TimeSeries) -> Samples:
    return list(zip(series.at.tolist(), series.value.tolist(), strict=True))


def within(samples: Samples, window: tuple[int, int]) -> list[float]:
    return [value for at, value in samples if window[0] <= at <= window[1]]


def row(name: str, ours: Sequence[float], theirs: Sequence[float]) -> None:
    sides = [(sum(each) / len(each), max(each), len(each)) if each else (0.0, 0.0, 0) for each in (ours, theirs)]
    (mean, top, count), (their_mean, their_top, their_count) = sides
    print(f"{name:<20}{mean:>12.1f}{top:>10.1f}{count:>9}{their_mean:>18.1f}{their_top:>10.1f}{their_count:>9}")


def integral(samples: Samples, start: int, end: int) -> float:
    """The integral by hand: every piece between two samples, cut at the edges. None of the observer's code is used."""
    total = 0.0
    for (first, power), (second, next_power) in pairwise(samples):
        left, right = max(first, start), min(second, end)
        if left < right:
            slope = (next_power - power) / (second - first)
            middle = power + slope * ((left + right) / 2 - first)
            total += middle * (right - left) / NS
    return total


if __name__ == "__main__":
    sys.exit(main())
