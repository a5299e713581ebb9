"""Rows for the requests of a shard that died."""

from pathlib import Path

import numpy as np

from inferometer.engine.inflight import Flight
from inferometer.fleet.lost import add_lost_rows
from inferometer.records import LOST
from inferometer.store.spool import Control, Spool, merge
from inferometer.types import ClosedStage, OpenStage, Plan

T0 = 1_000
FIRST = OpenStage(np.array([0, 10, 20, 30], np.int64), 40, first_id=0, id_step=2)
SECOND = OpenStage(np.array([5, 15], np.int64), 20, first_id=100, id_step=2)


def recorded(folder: Path, *flights: Flight, **numbers: int) -> None:
    """A spool with these requests, whose shard died."""
    Control(folder / "0.control", create=True)["t0"] = T0
    spool = Spool(folder, 0, 0, 0)
    spool.add(flights)
    spool.publish()
    for name, value in numbers.items():
        spool.control[name] = value


def rows_after(folder: Path, plan: Plan, ended_early: set[int] | None = None) -> list[tuple[int, int, int, str]]:
    """Id, stage, intended instant since t=0, and failure of each row."""
    add_lost_rows(folder, 0, plan, ended_early or set())
    records, _ = merge(folder, 1)
    codes = ["", *(failure.code for failure in records.failures)]
    rows = records.rows
    return [
        (int(id), int(stage), int(at), codes[failure])
        for id, stage, at, failure in zip(rows["id"], rows["stage"], rows["intended"], rows["failure"], strict=True)
    ]


def test_all_unrecorded_requests_of_open_stages_are_lost_at_their_instants(tmp_path: Path) -> None:
    recorded(
        tmp_path, Flight(id=2, intended=T0 + 12, done=T0 + 13), in_flight=1, heartbeat=T0 + 25
    )  # the stage began 2 late
    assert rows_after(tmp_path, Plan((FIRST, SECOND))) == [
        (2, 0, 12, ""), (0, 0, 2, LOST), (4, 0, 22, LOST), (6, 0, 32, LOST), (100, 1, 47, LOST), (102, 1, 57, LOST),
    ]  # fmt: skip


def test_only_requests_in_flight_are_lost_of_a_stage_that_ended_early(tmp_path: Path) -> None:
    recorded(tmp_path, Flight(id=0, intended=T0, done=T0 + 1), in_flight=1, heartbeat=T0 + 15, stage=1)
    lost = [row for row in rows_after(tmp_path, Plan((FIRST, SECOND)), {0}) if row[3]]
    assert [id for id, *_ in lost] == [2, 100, 102]


def test_requests_in_flight_are_lost_in_a_closed_loop(tmp_path: Path) -> None:
    plan = Plan((ClosedStage(concurrency=2, requests=9, first_id=1, id_step=3),))
    done = [Flight(id=id, intended=T0, done=T0 + 1, open_loop=0) for id in (1, 7)]
    recorded(tmp_path, *done, in_flight=2, heartbeat=T0 + 50)
    lost = [row for row in rows_after(tmp_path, plan) if row[3]]
    assert lost == [(4, 0, 50, LOST), (10, 0, 50, LOST)]


def test_requests_that_were_dealt_out_are_lost_after_the_shards_own(tmp_path: Path) -> None:
    plan = Plan((ClosedStage(concurrency=2, requests=9, granted=2, first_id=1, id_step=3),))
    recorded(tmp_path, Flight(id=1, intended=T0, done=T0 + 1, open_loop=0), in_flight=2, heartbeat=T0 + 50)
    add_lost_rows(tmp_path, 0, plan, (), {0: [range(20, 25)]})
    assert merge(tmp_path, 1)[0].rows["id"].tolist() == [1, 4, 20]


def test_a_shard_that_recorded_nothing(tmp_path: Path) -> None:
    Control(tmp_path / "0.control", create=True)["t0"] = T0
    assert [row[3] for row in rows_after(tmp_path, Plan((FIRST,)))] == [LOST] * 4
