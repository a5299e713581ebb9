"""Adds rows for the requests of a shard that died: those in flight then and, in open loop, those still to come in its plan.

The rows have the failure `lost`, so that every planned request is accounted for.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType

import msgspec
import numpy as np

from inferometer.records import LOST, NAMED, ROW, UNKNOWN, Failure
from inferometer.store.spool import Control, failures_of, rows_of
from inferometer.types import TURN_STEP, ClosedStage, OpenStage, Plan


def add_lost_rows(
    folder: Path,
    shard: int,
    plan: Plan,
    ended_early: Container[int] = (),
    granted: Mapping[int, Sequence[range]] = MappingProxyType({}),
    class_of: Callable[[Sequence[int]], Sequence[int]] | None = None,
) -> None:
    """Add the rows that are missing from a dead shard's spool. `plan` is the shard's own part of the plan.

    Of stages that `ended_early`, only requests in flight are lost: the others would not have been sent. `granted` are the ids that
    the parent has dealt out to the shard, by stage. `class_of` returns the traffic classes of ids, if there are classes.
    """
    control = Control(folder / f"{shard}.control", create=False)
    recorded = rows_of(folder, shard, control["rows"]) if control["rows"] else np.zeros(0, ROW)
    missing = list(_missing(plan, recorded, control, ended_early, granted))
    if not missing:
        return
    with (folder / f"{shard}.failures").open("ab") as file:
        file.write(msgspec.json.encode(Failure(LOST, "")) + b"\n")
    failure = len(failures_of(folder, shard))
    rows = np.zeros(len(missing), ROW)
    for name in (*UNKNOWN, *NAMED):
        rows[name] = -1
    rows["id"] = [id for id, _, _ in missing]
    if class_of is not None:
        rows["class"] = class_of(rows["id"].tolist())
    rows["stage"] = [stage for _, stage, _ in missing]
    rows["intended"] = [intended for _, _, intended in missing]
    rows["done"] = np.maximum(rows["intended"], control["heartbeat"])
    rows["open_loop"] = [isinstance(plan.stages[stage], OpenStage) for _, stage, _ in missing]
    rows["chunk_start"] = control["chunks"]
    rows["shard"], rows["failure"] = shard, failure
    path = folder / f"{shard}.rows"
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.seek(control["rows"] * ROW.itemsize)
        file.write(rows.tobytes())
    control["rows"] += len(rows)


Missing = tuple[int, int, int]
"""The id, the stage, and the intended instant by the shard's clock."""


def _missing(
    plan: Plan,
    recorded: np.ndarray[tuple[int], np.dtype[np.void]],
    control: Control,
    ended_early: Container[int],
    granted: Mapping[int, Sequence[range]],
) -> Iterable[Missing]:
    known = set((recorded["id"] % TURN_STEP).tolist())
    start, in_flight = control["t0"], control["in_flight"]
    for number, stage in enumerate(plan.stages):
        own = recorded[recorded["stage"] == number]
        start += stage.pause
        if isinstance(stage, OpenStage):
            start = _start(stage, own, start)
            ids = range(stage.first_id, stage.first_id + len(stage.instants) * stage.id_step, stage.id_step)
            most = max(in_flight, 0) if number in ended_early else len(ids)
            unrecorded = ((id, at) for id, at in zip(ids, stage.instants.tolist(), strict=True) if id not in known)
            for id, instant in islice(unrecorded, most):
                yield id, number, start + instant
                in_flight -= 1
            start += stage.duration
        elif number <= control["stage"]:
            issued = chain(_own_ids(stage), *granted.get(number, ()))
            for id in islice((id for id in issued if id not in known), max(in_flight, 0)):
                yield id, number, control["heartbeat"]
                in_flight -= 1
            start = max(start + stage.duration, int(own["done"].max()) if len(own) else 0)


def _start(stage: OpenStage, own: np.ndarray[tuple[int], np.dtype[np.void]], expected: int) -> int:
    """Return when the stage started: computed from one of its recorded requests, or else when it was expected to."""
    first_turns = own[own["id"] < TURN_STEP]
    if not len(first_turns):
        return expected
    index = (int(first_turns["id"][0]) - stage.first_id) // stage.id_step
    return int(first_turns["intended"][0]) - int(stage.instants[index])


def _own_ids(stage: ClosedStage) -> range:
    """Return the shard's own ids of a closed stage, in the order in which it issues them."""
    count = stage.granted or stage.requests or 1 << 40
    return range(stage.first_id, stage.first_id + count * stage.id_step, stage.id_step)
