"""Joins the records of several runs, whose times then count from one common start. Chunks and texts pass through piece by piece."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.records import MISSING, NAMES, TIMES, Body, Chunks, Columns, Failure, Records, Sample
from inferometer.series import TimeSeries
from inferometer.store import bodies, reading
from inferometer.store.folder import BODIES, files_of
from inferometer.store.spool import renumbered


class Placed(msgspec.Struct, frozen=True):
    """A run's folder, and where its records go among those of all."""

    folder: Path
    shift: int
    """Nanoseconds from the common start to the run's own t=0."""
    first_shard: int
    """The number of its first client process."""


def joined_records(placed: Sequence[Placed]) -> Records:
    """Concatenate the records of all runs, without their phases. All rows are in memory once, and those of one run twice."""
    parts: list[dict[str, NDArray[Any]]] = []
    failures, replicas, samples = list[Failure](), list[str](), list[Sample]()
    classes: tuple[str, ...] = ()
    count = chunks = 0
    for each in placed:
        run = reading.read(each.folder)
        records = run.records
        columns = {name: records.rows[name].copy() for name in NAMES}
        for name in TIMES:
            columns[name][columns[name] != MISSING] += each.shift
        columns["chunk_start"] += chunks
        columns["shard"] += each.first_shard
        columns["failure"][columns["failure"] > 0] += len(failures)
        columns["replica"] = columns["replica"].astype(np.int32) + 1  # wide enough for the names of all runs
        columns["replica"][columns["replica"] > 0] += len(replicas)
        parts.append(columns)
        failures += records.failures
        replicas += records.replicas
        samples += (
            msgspec.structs.replace(sample, shard=sample.shard + each.first_shard, at=sample.at + each.shift)
            for sample in records.samples
        )
        classes = records.classes
        count, chunks = count + len(records.rows), chunks + run.chunk_total
        del run, records
    columns = {name: np.concatenate([part.pop(name) for part in parts]) for name in NAMES}
    columns["failure"], used = renumbered(columns["failure"], failures)
    replica, addresses = renumbered(columns["replica"], replicas)
    columns["replica"] = (replica - 1).astype(np.int16)
    rows = Columns(count, columns)
    return Records(rows, np.zeros(count, np.int8), used, tuple(samples), classes, addresses)


def joined_chunks(placed: Sequence[Placed]) -> Iterator[Chunks]:
    """Yield the chunks of all runs in the order of their rows, in pieces that fit into memory."""
    for each in placed:
        for piece in reading.chunks_of(each.folder):
            yield Chunks(piece.arrival + each.shift, piece.tokens)


def shifted_series(placed: Placed) -> list[TimeSeries]:
    """The series of one run, with times since the common start."""
    run = reading.series_of(placed.folder)
    return [msgspec.structs.replace(series, at=series.at + placed.shift) for series in run]


def joined_bodies(folders: Sequence[Path], classes: Sequence[str]) -> Iterator[Body] | None:
    """Yield the texts of all runs; None if no run kept them."""
    paths = [path for folder in folders for path in files_of(folder, BODIES)]
    return (body for path in paths for body in bodies.read_all(path, classes)) if paths else None
