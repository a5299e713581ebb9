"""Synthetic runs, made from a seed, in which every number is known."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from inferometer.records import (
    MISSING,
    NAMED,
    ROW,
    Chunks,
    Columns,
    Failure,
    Manifest,
    Outcome,
    Records,
    Run,
    Sample,
    StagePlan,
)

MS = 1_000_000
SECOND = 1_000_000_000

CLOSED = StagePlan(type="closed", open=False, concurrency=8, requests=600)
OPEN = StagePlan(type="poisson", open=True, rate=100.0, duration=6.0)


def manifest(**changes: object) -> Manifest:
    made = Manifest(
        inferometer="0.1.0",
        started="2026-09-30T14:25:01+02:00",
        t0_wall_ns=1_790_771_101_000_000_000,
        config={
            "server": {"url": "http://127.0.0.1:8000", "model": "my-model", "api": "completions", "stream": True},
            "data": {"type": "synthetic", "input": 64, "output": 10},
            "measure": {"warmup": "0", "cooldown": "0", "failures_as_inf": False},
        },
        plan=(CLOSED,),
        workload={"distinct": 600, "digest": "sha256:0"},
        clock={"stamps": "kernel"},
        seeds={"seed": 0},
        versions={"python": "3.11"},
        host={"cpus": 2, "has_server": True},
    )
    return msgspec.structs.replace(made, **changes)


def blank(count: int) -> np.ndarray:
    """Rows of successful requests; set whatever else a test needs."""
    rows = np.zeros(count, ROW)
    rows["id"] = np.arange(count)
    for name in ("first_byte", "first_token", "first_content", "last_token"):
        rows[name] = MISSING
    own = (
        "cached",
        "reasoning",
        "first_tokens",
        "streamed_tokens",
        "read_delay",
        "queue",
        "compute",
        "server_total",
        "rtt",
    )
    for name in (*own, *NAMED):
        rows[name] = -1
    rows["status"], rows["counted_by"], rows["attempts"] = 200, 1, 1
    return rows


def closed_rows(count: int = 600, users: int = 8, chunks: int = 10, seed: int = 0) -> tuple[np.ndarray, Chunks]:
    """`users` that send the next request 50 us after each response: TTFT about 50 ms, then a chunk every 10 ms."""
    rng = np.random.default_rng(seed)
    rows = blank(count)
    ttft = rng.normal(50 * MS, 2 * MS, count).astype(np.int64)
    gaps = rng.normal(10 * MS, MS // 2, (count, chunks - 1)).astype(np.int64)
    free = np.zeros(users, np.int64)
    for n in range(count):
        user = n % users
        rows["intended"][n] = free[user]
        rows["sent"][n] = free[user] + 50_000
        free[user] += 50_000 + ttft[n] + gaps[n].sum() + 20_000
        rows["done"][n] = free[user]
    arrival = (rows["sent"] + ttft)[:, None] + np.concatenate([np.zeros((count, 1), np.int64), gaps.cumsum(1)], 1)
    rows["first_token"], rows["last_token"] = arrival[:, 0], arrival[:, -1]
    rows["first_byte"] = rows["first_content"] = rows["first_token"]
    rows["n_in"], rows["n_out"], rows["n_want"] = 64, chunks, chunks
    rows["first_tokens"], rows["streamed_tokens"] = 1, chunks
    rows["chunk_start"], rows["chunk_count"] = np.arange(count) * chunks, chunks
    rows["bytes_out"], rows["bytes_in"] = 400, 200 * chunks
    rows["read_delay"], rows["cached"] = 60_000, 0
    return rows, Chunks(arrival.reshape(-1), np.ones(count * chunks, np.uint16))


def open_rows(count: int = 600, rate: float = 100.0, seed: int = 1) -> tuple[np.ndarray, Chunks]:
    """The same responses at Poisson instants, each request sent 100 us late."""
    rng = np.random.default_rng(seed)
    rows, chunks = closed_rows(count, seed=seed)
    instants = np.sort(rng.uniform(0, count / rate, count) * SECOND).astype(np.int64)
    move = instants + 100_000 - rows["sent"]
    for name in ("sent", "first_byte", "first_token", "first_content", "last_token", "done"):
        rows[name] += move
    rows["intended"], rows["open_loop"] = instants, 1
    return rows, Chunks(chunks.arrival + np.repeat(move, rows["chunk_count"]), chunks.tokens)


def samples(seconds: float = 6.0, shard: int = 0, **changes: float) -> tuple[Sample, ...]:
    made = (
        Sample(shard, at, 0.25, 100 << 20, 0.4, 2 * MS, 0, 1000, 8)
        for at in range(SECOND // 4, round(seconds * SECOND), SECOND // 4)
    )
    return tuple(msgspec.structs.replace(sample, **changes) for sample in made)


def run(
    rows: np.ndarray,
    chunks: Chunks | None = None,
    *,
    failures: tuple[Failure, ...] = (),
    phase: np.ndarray | None = None,
    piece: int = 1 << 20,
    sampled: tuple[Sample, ...] | None = None,
    classes: tuple[str, ...] = (),
    replicas: tuple[str, ...] = (),
    **about: object,
) -> Run:
    """A Run in memory, of copies of the rows; its chunks arrive in pieces of `piece`."""
    chunks = chunks or Chunks(np.zeros(0, np.int64), np.zeros(0, np.uint16))
    if phase is None:
        phase = np.ones(len(rows), np.int8)
    records = Records(Columns.of(rows), phase, failures, samples() if sampled is None else sampled, classes, replicas)
    return Run(Path("/runs/made"), manifest(**about), records, len(chunks.arrival), lambda: pieces(chunks, piece))


def pieces(chunks: Chunks, size: int) -> Iterator[Chunks]:
    for at in range(0, len(chunks.arrival), size):
        yield Chunks(chunks.arrival[at : at + size], chunks.tokens[at : at + size])


def fail(rows: np.ndarray, which: slice | list[int], number: int = 1) -> None:
    """Make these requests fail without a response."""
    rows["failure"][which] = number
    rows["status"][which] = 503
    for name in ("first_token", "last_token"):
        rows[name][which] = MISSING
    rows["n_out"][which], rows["counted_by"][which] = -1, 0


def never_sent(rows: np.ndarray, which: slice | list[int], number: int) -> None:
    """Make these requests fail (dropped or cancelled) before they are sent."""
    fail(rows, which, number)
    rows["status"][which] = 0
    for name in ("sent", "first_byte"):
        rows[name][which] = MISSING
    rows["attempts"][which] = 0


INTERRUPTED = Outcome(interrupted=True)
