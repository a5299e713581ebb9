"""A server in virtual time: the simulator's timing engine without sockets, under open and closed loops, watched as a real probe is."""

import heapq
import math
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec
import numpy as np

from inferometer.analysis.metrics import METRICS
from inferometer.records import CANCELLED, MISSING, ROW, Columns, Failure, Snapshot
from inferometer.serve.sim.timing import NEVER, Job, Timing
from inferometer.units import NS

TICK = 0.25
"""Seconds between snapshots."""
FAILURES = (Failure(code=CANCELLED, message=""),)
Watch = Callable[[Snapshot], Literal["", "end", "stop"]]


class Lengths(msgspec.Struct, frozen=True):
    """A distribution of lengths: to draw from, and as the config has it."""

    draw: Callable[[np.random.Generator, int], np.ndarray]
    config: object


def constant(tokens: int) -> Lengths:
    return Lengths(lambda rng, count: np.full(count, tokens), tokens)


def uniform(low: int, high: int) -> Lengths:
    return Lengths(lambda rng, count: rng.integers(low, high + 1, count), {"type": "uniform", "min": low, "max": high})


def lognormal(mean: float, sigma: float) -> Lengths:
    """Lengths with this mean, most of them shorter."""
    shift, std = math.log(mean) - sigma**2 / 2, mean * math.sqrt(math.exp(sigma**2) - 1)

    def draw(rng: np.random.Generator, count: int) -> np.ndarray:
        return np.maximum(np.rint(np.exp(rng.normal(shift, sigma, count))), 1).astype(np.int64)

    return Lengths(draw, {"type": "lognormal", "mean": mean, "std": round(std, 2)})


def mixed(short: int, long: int, share: float) -> Lengths:
    config = {"type": "empirical", "values": [short, long], "weights": [1 - share, share]}
    return Lengths(lambda rng, count: np.where(rng.random(count) < share, long, short), config)


class TimedJob(Job):
    """A job that notes when its tokens were due."""

    __slots__ = ("ended", "first", "last")

    def __init__(self, n: int, n_in: int, n_out: int, arrived: int, ended: "list[TimedJob]") -> None:
        super().__init__(n, n_in, n_out, arrived)
        self.first = self.last = -1
        self.ended = ended

    def emit(self, count: int, due: int) -> None:
        if self.first < 0:
            self.first = due
        self.last = due
        if self.made == self.n_out:
            self.ended.append(self)


class Load(msgspec.Struct, frozen=True):
    """An open loop at a rate, or a closed one with users."""

    rate: float = 0.0
    users: int = 0
    think: float = 0.0
    ramp: float = 0.0
    """Seconds over which users start."""


class VirtualServer(msgspec.Struct, frozen=True):
    timing: Callable[[int], Timing]
    n_in: Lengths
    n_out: Lengths

    def run(self, load: Load, seconds: float, seed: int, watch: Watch | None = None) -> tuple[np.ndarray, float]:
        """Send for `seconds`, or until `watch` ends it; without a watch, wait for all responses. Return the rows of all requests, and when
        the last one ended."""
        return _Run(self, load, seconds, seed, watch).result()


class _Run:
    def __init__(self, server: VirtualServer, load: Load, seconds: float, seed: int, watch: Watch | None) -> None:
        self._server, self._load, self._watch = server, load, watch
        self._timing = server.timing(seed)
        self._rng = np.random.default_rng(seed)
        self._jobs: list[TimedJob] = []
        self._shown = 0
        self._ended: list[TimedJob] = []
        self._send_until = round(seconds * NS)
        self._stops = False
        self._arrivals = self._planned()

    def result(self) -> tuple[np.ndarray, float]:
        tick, now = round(TICK * NS) if self._watch else NEVER, 0
        users: list[int] = []
        if self._load.users:
            gap = self._load.ramp / self._load.users
            users = [round(index * gap * NS) for index in range(self._load.users)]
        arrival = next(self._arrivals, NEVER)
        while not self._stops:
            due = users[0] if users else NEVER
            sending = min(arrival, due)
            if sending >= self._send_until:
                sending = NEVER
            now = min(sending, self._timing.due, tick)
            if now == NEVER:
                break
            if now == self._timing.due:
                before = len(self._ended)
                self._timing.advance(now)
                if self._load.users:
                    for job in self._ended[before:]:
                        heapq.heappush(users, job.last + round(self._load.think * NS))
            elif now == tick:
                tick += round(TICK * NS)
                self._tell(now)
                if self._watch and now > self._send_until and len(self._ended) == len(self._jobs):
                    break
            else:
                if now == arrival:
                    arrival = next(self._arrivals, NEVER)
                else:
                    heapq.heappop(users)
                self._send(now)
        end = max(now if self._stops else max((job.last for job in self._ended), default=now), 0)
        return self._rows(self._jobs, end), end / NS

    def _planned(self) -> Iterator[int]:
        """The instants of an open loop: as many as expected, at random, as the client sends them."""
        count = round(self._load.rate * self._send_until / NS)
        yield from np.sort(self._rng.uniform(0, self._send_until, count)).astype(np.int64).tolist()

    def _send(self, now: int) -> None:
        n = len(self._jobs)
        if n % 1000 == 0:
            self._lengths = (
                self._server.n_in.draw(self._rng, 1000).tolist(),
                self._server.n_out.draw(self._rng, 1000).tolist(),
            )
        job = TimedJob(n + 1, self._lengths[0][n % 1000], self._lengths[1][n % 1000], now, self._ended)
        self._timing.advance(now)
        self._jobs.append(job)
        self._timing.add(job, now)

    def _flying(self) -> list[TimedJob]:
        return [job for job in self._jobs if job.made < job.n_out]

    def _tell(self, now: int) -> None:
        assert self._watch is not None
        new, self._shown = self._ended[self._shown :], len(self._ended)

        def rows() -> np.ndarray:
            raw = self._rows(new, now)
            for name in ("intended", "sent", "first_token", "last_token", "done"):
                raw[name] = np.where(raw[name] == MISSING, 0, raw[name] + NS)
            return raw

        def ages() -> np.ndarray:
            pairs = [(now - job.arrived, int(job.first >= 0)) for job in self._flying()]
            return np.array(pairs, np.int64).reshape(-1, 2)

        snapshot = Snapshot(
            started=True, elapsed=now / NS, sent=len(self._jobs), ok=len(self._ended), failed=0, in_flight=len(self._jobs) - len(self._ended), queued=0,
            stage=0, stopping=False, t0=NS, rows=rows, peeks=ages, ages=ages,
        )  # fmt: skip
        action = self._watch(snapshot)
        if action:
            self._send_until = min(self._send_until, now)
        self._stops = action == "stop"

    def _rows(self, jobs: list[TimedJob], end: int) -> np.ndarray:
        rows = np.zeros(len(jobs), ROW)
        rows["id"] = [job.n - 1 for job in jobs]
        rows["intended"] = rows["sent"] = [job.arrived for job in jobs]
        rows["first_token"] = [job.first if job.first >= 0 else MISSING for job in jobs]
        rows["last_token"] = [job.last if job.first >= 0 else MISSING for job in jobs]
        is_done = np.array([job.made == job.n_out for job in jobs], bool)
        rows["done"] = np.where(is_done, rows["last_token"], end)
        rows["failure"] = ~is_done
        rows["n_want"] = [job.n_out for job in jobs]
        rows["n_out"] = rows["streamed_tokens"] = rows["chunk_count"] = [job.made for job in jobs]
        rows["first_tokens"], rows["counted_by"] = 1, 1
        rows["open_loop"] = int(self._load.rate > 0)
        for name in (
            "turn",
            "turns",
            "session",
            "queue",
            "compute",
            "server_total",
            "rtt",
            "read_delay",
            "n_in",
            "cached",
            "reasoning",
        ):
            rows[name] = -1
        return rows


def violating(rows: np.ndarray, limits: dict[str, float], skip: float = 0.05) -> dict[str, float]:
    """The share of requests that violate each limit, after the first part of the run."""
    columns = Columns.of(rows[int(skip * len(rows)) :])
    shares = {}
    for name, limit in limits.items():
        compute = METRICS[name].values
        assert compute is not None
        values = compute(columns)
        shares[name] = float(np.mean(values[~np.isnan(values)] >= limit))
    return shares
