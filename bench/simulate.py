"""Runs of simulated servers, in memory, whose true percentiles are known: what bench/coverage and its test measure against.

A queue (`queue`) is M/M/1: Poisson arrivals, exponential service, one server, in its steady state from the first request on. The
time in the system is exponential with rate (service rate - arrival rate), so every percentile has a closed form.

For decisions about objectives there are more kinds of servers, of which requests cluster in other ways: a queue whose service is lognormal
(`lognormal`), a server with short bursts of slow requests (`calm`), batches that start and end together (`waves`), slow phases (`phases`),
and long-tailed, independent responses (`heavy`). Their true percentiles come from long simulations.

A quiet server (`quiet`) has no queue. Its latencies drift together, by so little that every percentile is known.

An engine (`engine`) computes in steps, as servers for language models do: each step generates one token for every one of its
slots. A slot whose response is complete takes the next request, whose prompt makes that step longer. So all slots share each
step's duration, and 32 gaps of one step say as much as one. Its true percentiles come from many long simulations.
"""

import math
from pathlib import Path

import numpy as np

from inferometer.records import MISSING, ROW, Chunks, Columns, Manifest, Records, Run, StagePlan
from inferometer.units import NS

Array = np.ndarray

SERVICE = 0.010
"""Mean service time of the queue in seconds."""
QUIET = 0.050
"""Latency of the server without a queue in seconds."""
SLOTS = 32
STEP = 0.010
PREFILL = 0.015
LENGTH = (50, 350)
"""Tokens per response: uniform."""


def independent(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Arrivals at 100/s and independent, exponential latencies, in seconds."""
    return np.sort(rng.uniform(0, count * SERVICE, count)), rng.exponential(SERVICE, count)


def queue(rng: np.random.Generator, load: float, count: int) -> tuple[Array, Array]:
    """Arrivals and times in the system of M/M/1 at this load, in seconds."""
    gaps, service = rng.exponential(SERVICE / load, count), rng.exponential(SERVICE, count)
    first = rng.exponential(SERVICE / (1 - load)) if rng.random() < load else 0.0
    return np.cumsum(gaps), _in_system(gaps, service, first)


def lognormal(rng: np.random.Generator, load: float, count: int, skipped: int = 600) -> tuple[Array, Array]:
    """The same with lognormal service, of which the squared coefficient of variation is 1.7, after `skipped` requests."""
    gaps = rng.exponential(SERVICE / load, count + skipped)
    service = SERVICE * rng.lognormal(-0.5, 1.0, count + skipped)
    return np.cumsum(gaps)[skipped:], _in_system(gaps, service)[skipped:]


def _in_system(gaps: Array, service: Array, first: float = 0.0) -> Array:
    """The times in the system of a queue; `first` is how long the first request waits.

    By Lindley, wait_k+1 = max(wait_k + service_k - gap_k+1, 0): a random walk minus its lowest point so far, if that is
    below 0.
    """
    walk = np.cumsum(np.concatenate([[first], service[:-1] - gaps[1:]]))
    return walk - np.minimum(np.minimum.accumulate(walk), 0) + service


def calm(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """50 requests per second of 20 ms and a little more; every 3 s or so, those of 0.15 s are slower by 30 ms on average."""
    at = np.cumsum(rng.exponential(1 / 50, count))
    times = 0.020 + rng.exponential(0.0005, count)
    for begin in rng.uniform(-0.15, at[-1], rng.poisson((at[-1] + 0.15) / 3)):
        times[slice(*np.searchsorted(at, [begin, begin + 0.15]))] += rng.exponential(0.030)
    return at, times


def waves(rng: np.random.Generator, count: int, slots: int = 16, skipped: int = 200) -> tuple[Array, Array]:
    """40 requests per second at a server that takes up to 16 waiting ones whenever it is free, and completes them together."""
    at = np.cumsum(rng.exponential(1 / 40, count + skipped))
    instants, done, free, first = at.tolist(), [], 0.0, 0
    for length in rng.lognormal(math.log(0.15) - 0.125, 0.5, count + skipped).tolist():
        free = max(free, instants[first])
        size = max(min(int(np.searchsorted(at[first : first + slots], free, "right")), slots), 1)
        free += length * (0.5 + 0.5 * size / slots) + 0.005 * size
        done += [free] * size
        first += size
        if first == len(at):
            break
    return at[skipped:], (np.array(done) - at)[skipped:]


def phases(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """50 requests per second of 50 ms (gamma); in slow phases of 0.2 s, about one per 1.2 s, of 250 ms."""
    at = np.cumsum(rng.exponential(1 / 50, count))
    times = 0.050 * rng.gamma(4, 0.25, count)
    lengths = rng.exponential(np.array([[1.0, 0.2]]), (math.ceil(at[-1] / 0.6) + 10, 2))
    is_slow_first = rng.random() < 1 / 6
    ends = np.cumsum(lengths.ravel()[is_slow_first:])
    times[np.searchsorted(ends, at) % 2 != is_slow_first] *= 5
    return at, times


def heavy(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """20 requests per second of independent lengths: 0.2 s, and 20 ms for each of a lognormal number of tokens (median 150)."""
    return np.cumsum(rng.exponential(1 / 20, count)), 0.2 + 0.020 * rng.lognormal(math.log(150), 1.2, count)


def quiet(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Arrivals at 100/s at a server without a queue, and latencies of QUIET that drift by 0.2 %; 0.3 % of them take up to twice as long."""
    at = np.sort(rng.uniform(0, count * SERVICE, count))
    drift = np.sin(2 * np.pi * (at / 30 + rng.random()))
    slow = np.where(rng.random(count) < 0.003, 1 + rng.random(count), 1.0)
    return at, QUIET * (1 + 0.002 * drift + rng.normal(0, 0.001, count)) * slow


def exponential_quantile(share: float, mean: float) -> float:
    return -math.log(1 - share) * mean


def engine(rng: np.random.Generator, seconds: float, tokens: int = 1) -> tuple[Array, Array, Array]:
    """Chunks of a step-synchronous engine in a closed loop: arrivals (ns), and where each response's chunks start and end.

    `tokens` per chunk: the server sends a chunk when it has generated this many tokens.
    """
    steps = math.ceil(seconds / STEP)
    begins = [_starts(rng, steps) for _ in range(SLOTS)]
    joined = np.zeros(steps)
    for each in begins:
        joined[each[:-1]] += 1
    age = np.concatenate([np.arange(steps) - np.repeat(each[:-1], np.diff(each)) for each in begins])
    context = age.reshape(SLOTS, steps).mean(0)
    noise = np.exp(rng.normal(0, 0.05, steps))
    duration = (STEP * (0.8 + context / 1000) + PREFILL * joined * rng.uniform(0.5, 1.5, steps)) * noise
    ends = np.cumsum(np.rint(duration * NS).astype(np.int64))
    chunks, starts, at = [], [], 0
    for each in begins:
        for first, last in zip(each[1:-2].tolist(), each[2:-1].tolist(), strict=True):  # complete responses
            own = ends[first + tokens - 1 : last : tokens]
            if len(own):
                chunks.append(own)
                starts.append(at)
                at += len(own)
    return np.concatenate(chunks), np.array(starts, np.int64), np.array([*starts[1:], at], np.int64)


def _starts(rng: np.random.Generator, steps: int) -> Array:
    """The steps at which a slot takes a new request, from 0 to `steps`; the first response began before."""
    mean = sum(LENGTH) / 2
    lengths = rng.integers(*LENGTH, math.ceil(steps / mean * 1.5) + 10)
    inside = np.cumsum(lengths) - rng.integers(0, LENGTH[1])
    return np.concatenate([[0], inside[(inside > 0) & (inside < steps)], [steps]])


def requests_run(at: Array, latency: Array) -> Run:
    """An open-loop run of requests that were sent when they were intended and took `latency` seconds."""
    columns = _columns(len(at))
    columns["intended"] = columns["sent"] = np.rint(at * NS).astype(np.int64)
    columns["done"] = columns["sent"] + np.rint(latency * NS).astype(np.int64)
    columns["open_loop"] = np.ones(len(at), np.int8)
    return _run(columns, None)


def chunks_run(arrival: Array, start: Array, end: Array) -> Run:
    """A run of responses whose chunks are arrival[start:end]."""
    columns = _columns(len(start))
    columns["intended"] = columns["sent"] = columns["first_token"] = arrival[start]
    columns["last_token"] = columns["done"] = arrival[end - 1]
    columns["chunk_start"], columns["chunk_count"] = start, (end - start).astype(np.int32)
    return _run(columns, Chunks(arrival, np.ones(len(arrival), np.uint16)))


def _columns(count: int) -> dict[str, Array]:
    columns = {name: np.zeros(count, ROW[name]) for name in ROW.names or ()}
    columns["id"] = np.arange(count)
    for name in ("first_byte", "first_token", "last_token"):
        columns[name] = np.full(count, MISSING)
    for name in ("read_delay", "queue", "compute", "n_in", "n_out", "cached", "reasoning", "class", "replica"):
        columns[name] = np.full(count, -1, ROW[name])
    return columns


def _run(columns: dict[str, Array], chunks: Chunks | None) -> Run:
    count = len(columns["id"])
    plan = (StagePlan(type="poisson", open=chunks is None),)
    manifest = Manifest(
        inferometer="simulated", started="", t0_wall_ns=0, config={}, plan=plan,
        workload={}, clock={}, seeds={}, versions={}, host={},
    )  # fmt: skip
    records = Records(Columns(count, columns), np.ones(count, np.int8), (), ())
    total = 0 if chunks is None else len(chunks.arrival)
    return Run(Path("simulated"), manifest, records, total, lambda: iter(() if chunks is None else (chunks,)))
