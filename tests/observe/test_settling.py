"""Whether the current stage is stable, read from spools as they grow: at the time at which the report finds it, too."""

from pathlib import Path

import numpy as np
import pytest

from inferometer.analysis import stability
from inferometer.engine.inflight import Flight
from inferometer.observe.settling import Settling
from inferometer.records import StagePlan
from inferometer.store.spool import Control, Spool, merge
from inferometer.units import NS

MS = NS // 1000
T0 = 1_000 * NS
PLAN = StagePlan(type="closed", open=False, concurrency=1, duration=60.0, stable=0.1, window=1.0)


class Shards:
    """Spools written by the test; the clock is what they publish as recorded."""

    def __init__(self, folder: Path, count: int, *plans: StagePlan) -> None:
        self.folder, self.count = folder, count
        for shard in range(count):
            Control(folder / f"{shard}.control", create=True)
        self.spools = [Spool(folder, shard, 1, 1) for shard in range(count)]
        for spool in self.spools:
            spool.control["t0"] = T0
            spool.control.state = "running"
        self.settling = Settling(folder, count, plans)

    def respond(self, at: int, service: int = 5 * MS, stage: int = 0, shard: int = 0, failure: int = 0) -> None:
        start = at - service
        ended = Flight(id=0, intended=start, sent=start, done=at, stage=stage, shard=shard, failure=failure)
        self.spools[shard].add([ended])

    def beat(self, at: int, *shards: int) -> None:
        for shard in shards or range(self.count):
            self.spools[shard].publish()
            self.spools[shard].control["recorded"] = at

    def stage(self, number: int, *shards: int) -> None:
        for shard in shards or range(self.count):
            self.spools[shard].control["stage"] = number


def seconds(shards: Shards, *numbers: int, stage: int = 0, shard: int = 0, each: int = 10) -> None:
    """`each` responses in each of these seconds, the first at the start of the second."""
    for number in numbers:
        for index in range(each):
            shards.respond(T0 + number * NS + index * NS // each, stage=stage, shard=shard)


def test_three_equal_windows_end_the_stage_once_they_are_recorded(tmp_path: Path) -> None:
    shards = Shards(tmp_path, 1, PLAN)
    assert shards.settling.look() is None
    seconds(shards, 0, 1, 2)
    shards.beat(T0 + 3 * NS - 1)
    assert shards.settling.look() is None
    shards.beat(T0 + 3 * NS)
    assert shards.settling.look() == 0


def test_the_slowest_shard_that_has_not_ended_decides(tmp_path: Path) -> None:
    shards = Shards(tmp_path, 2, PLAN)
    seconds(shards, 0, 1, 2)
    shards.beat(T0 + 4 * NS, 0)
    shards.beat(T0 + 2 * NS, 1)
    assert shards.settling.look() is None
    shards.spools[1].control["ended"] = T0 + 2 * NS
    assert shards.settling.look() == 0


def test_a_lost_shard_does_not_hold_up_the_others(tmp_path: Path) -> None:
    shards = Shards(tmp_path, 2, PLAN, PLAN)
    shards.stage(1, 0)
    seconds(shards, 1, 2, 3, 4, stage=1)
    shards.beat(T0 + NS, 1)  # the last sign of life of shard 1
    shards.beat(T0 + 5 * NS, 0)
    assert shards.settling.look() is None
    assert shards.settling.look(lost=[1]) == 1


def test_responses_of_a_shard_that_is_ahead_count_when_the_others_follow(tmp_path: Path) -> None:
    """Shard 1 is already in the second stage; its first response there begins the windows for both."""
    shards = Shards(tmp_path, 2, PLAN, PLAN)
    shards.stage(1, 1)
    shards.respond(T0 + NS // 2, stage=1, shard=1)
    shards.beat(T0 + NS)
    assert shards.settling.look() is None
    shards.stage(1)
    seconds(shards, 1, 2, 3, stage=1)
    shards.beat(T0 + 3 * NS + 600 * MS)
    shards.settling.look()
    live = shards.settling._good[1]
    assert min(int(part["done"].min()) for part in live) == NS // 2


def test_stages_without_the_rule_do_not_end_early_and_failures_do_not_count(tmp_path: Path) -> None:
    plain = StagePlan(type="closed", open=False, concurrency=1)
    shards = Shards(tmp_path, 1, plain, PLAN)
    seconds(shards, 0, 1, 2, 3)
    shards.beat(T0 + 5 * NS)
    assert shards.settling.look() is None
    shards.stage(1)
    for number in range(5, 9):
        shards.respond(T0 + number * NS, stage=1, failure=1)
    shards.beat(T0 + 10 * NS)
    assert shards.settling.look() is None
    seconds(shards, 10, 11, 12, stage=1)
    shards.beat(T0 + 14 * NS)
    assert shards.settling.look() == 1


@pytest.mark.parametrize("seed", range(12))
def test_the_report_finds_the_windows_that_ended_the_stage(tmp_path: Path, seed: int) -> None:
    """Rate and latency drift and then settle, over two shards; `look` is called every 50 ms."""
    rng = np.random.default_rng(seed)
    shards = Shards(tmp_path, 2, PLAN)
    at, ended = T0 + int(rng.integers(NS)), None
    beat = T0
    for number in range(6000):
        settled = min(at - T0, 6 * NS) / (6 * NS)
        at += int(rng.exponential(2 * MS * (4 - 3 * settled)))
        service = int(5 * MS * (3 - 2 * settled) * rng.uniform(0.9, 1.1))
        while beat + 50 * MS < at:
            beat += 50 * MS
            shards.beat(beat)
            if ended is None and shards.settling.look() is not None:
                ended = beat
        if ended is not None and at > ended + 30 * MS:
            break
        shards.respond(at, service, shard=number % 2)
    assert ended is not None
    for spool in shards.spools:
        spool.close()
    found = stability.of_stage(merge(tmp_path, 2)[0].rows, 0, PLAN)
    assert found is not None and found.settled is not None
    assert 0 <= (ended - T0) - found.settled[1] <= 50 * MS
