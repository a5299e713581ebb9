"""Simulated servers whose capacity is known: one queue, a number of slots, and service times from a distribution."""

import heapq

import numpy as np
import synthetic_run as made

from inferometer.records import Run, StagePlan

SERVICE = {
    "constant": lambda rng, mean, count: np.full(count, mean),
    "exponential": lambda rng, mean, count: rng.exponential(mean, count),
    "lognormal": lambda rng, mean, count: rng.lognormal(np.log(mean) - 0.5, 1.0, count),
}
"""Service times in seconds, of a given mean. The lognormal ones have a standard deviation of 1.3 times the mean."""


def arrivals(kind: str, rate: float, seconds: float, rng: np.random.Generator) -> np.ndarray:
    """Instants of a constant or a Poisson stage with the expected count, in seconds."""
    count = round(rate * seconds)
    return np.arange(count) / rate if kind == "constant" else np.sort(rng.uniform(0, seconds, count))


def serve(arrived: np.ndarray, service: np.ndarray, slots: int) -> np.ndarray:
    """When each request is done: first come, first served, at most `slots` at a time."""
    free = [0.0] * slots
    done = np.empty(len(arrived))
    for index, (at, time) in enumerate(zip(arrived.tolist(), service.tolist(), strict=True)):
        done[index] = max(heapq.heappop(free), at) + time
        heapq.heappush(free, float(done[index]))
    return done


def open_rows(arrived: np.ndarray, done: np.ndarray) -> np.ndarray:
    """Rows of an open loop, each request sent 50 us late."""
    rows = made.blank(len(arrived))
    rows["open_loop"] = 1
    rows["intended"] = np.rint(arrived * made.SECOND)
    rows["sent"] = rows["intended"] + 50_000
    rows["done"] = np.rint(done * made.SECOND) + 50_000
    return rows


def queue_rows(
    rate: float,
    capacity: float,
    seconds: float,
    seed: int = 0,
    slots: int = 1,
    kind: str = "poisson",
    service: str = "exponential",
) -> np.ndarray:
    """`rate` requests/s for a server that completes `capacity`/s."""
    rng = np.random.default_rng(seed)
    arrived = arrivals(kind, rate, seconds, rng)
    return open_rows(arrived, serve(arrived, SERVICE[service](rng, slots / capacity, len(arrived)), slots))


def session_rows(
    rate: float, seconds: float, slots: int, turns: int = 8, think: float = 1.0, mean: float = 0.3, seed: int = 0
) -> np.ndarray:
    """`rate` sessions/s; each turn but the first is intended `think` seconds after the end of the turn before."""
    rng = np.random.default_rng(seed)
    due = [(at, 0, session) for session, at in enumerate(arrivals("poisson", rate, seconds, rng).tolist())]
    free, ended = [0.0] * slots, []
    while due:
        at, turn, session = heapq.heappop(due)
        done = max(heapq.heappop(free), at) + float(rng.exponential(mean))
        heapq.heappush(free, done)
        ended.append((at, done, turn, session))
        if turn + 1 < turns:
            heapq.heappush(due, (done + think, turn + 1, session))
    at, done, turn, session = np.array(ended).T
    rows = open_rows(at, done)
    rows["turn"], rows["session"] = turn, session
    return rows


def closed_rows(
    users: int, seconds: float, mean: float, seed: int = 0, ramp: float = 0.0, service: str = "exponential"
) -> np.ndarray:
    """Users who start over `ramp` seconds and send the next request at once; `users / mean` are completed per second."""
    rng = np.random.default_rng(seed)
    free = [(ramp * user / users, user) for user in range(users)]
    instants = []
    while free[0][0] < seconds:
        at, user = free[0]
        done = at + float(SERVICE[service](rng, mean, 1)[0])
        instants.append((at, done))
        heapq.heapreplace(free, (done, user))
    rows = made.blank(len(instants))
    rows["intended"] = rows["sent"] = [round(at * made.SECOND) for at, _ in instants]
    rows["done"] = [round(done * made.SECOND) for _, done in instants]
    return rows


def stage(rate: float, seconds: float, kind: str = "poisson", **changes: object) -> StagePlan:
    return StagePlan(type=kind, open=True, rate=rate, duration=seconds, **changes)


def run(rows: np.ndarray, plan: StagePlan, **about: object) -> Run:
    return made.run(rows, plan=(plan,), **about)
