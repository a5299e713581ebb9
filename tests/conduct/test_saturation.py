"""Whether overloaded stages are noticed while they are in progress, on simulated queues whose capacity is known."""

from itertools import pairwise

import numpy as np
import pytest
import queues

from inferometer.analysis.overload import overload, overload_of_cut
from inferometer.conduct.saturation import Saturation
from inferometer.records import Columns, CutShort, StagePlan
from inferometer.types import OpenStage

SECONDS = 30


def cut(rows: np.ndarray, looks: float = 0.25, missing: int = 0) -> CutShort | None:
    """Look at a stage four times per second; `missing` rows at the start never arrive."""
    plan = StagePlan(type="poisson", open=True, rate=len(rows) / SECONDS, duration=SECONDS)
    stage = OpenStage(instants=rows["intended"].astype(np.int64), duration=SECONDS * 10**9)
    watching = Saturation([plan], [stage], 0.02)
    order = rows[np.argsort(rows["done"])]
    ends = np.searchsorted(order["done"] / 1e9, np.arange(0, SECONDS, looks)).tolist()
    for number, (first, end) in enumerate(pairwise(ends), 1):
        new = Columns.of(order[max(first, missing) : max(end, missing)])
        if (found := watching.look(new, number * looks, 0, end)) is not None:
            return found
    return None


@pytest.mark.parametrize(("service", "slots"), [("exponential", 1), ("lognormal", 8), ("constant", 16)])
@pytest.mark.parametrize("load", [0.7, 0.9])
def test_server_that_keeps_up_is_left_alone(load: float, service: str, slots: int) -> None:
    made = (queues.queue_rows(100, 100 / load, SECONDS, seed, slots, service=service) for seed in range(6))
    assert [cut(rows) for rows in made] == [None] * 6


@pytest.mark.slow
def test_fewer_than_one_stage_in_a_hundred_is_cut_by_mistake() -> None:
    kinds = [("exponential", 1), ("lognormal", 8), ("constant", 16)]
    alarms = total = 0
    for load in (0.7, 0.8, 0.9):
        for service, slots in kinds:
            for seed in range(60):
                total += 1
                alarms += cut(queues.queue_rows(100, 100 / load, SECONDS, seed, slots, service=service)) is not None
    assert alarms < total / 100


@pytest.mark.parametrize(("load", "within"), [(1.2, 15), (1.5, 6), (3.0, 4)])
@pytest.mark.parametrize(("service", "slots"), [("exponential", 1), ("constant", 16)])
def test_overload_is_noticed_soon_and_the_report_agrees(load: float, within: float, service: str, slots: int) -> None:
    for seed in range(3):
        rows = queues.queue_rows(100, 100 / load, SECONDS, seed, slots, service=service)
        found = cut(rows)
        assert found is not None and found.after <= within and found.planned == SECONDS
        kept = Columns.of(rows[rows["intended"] <= found.after * 1e9])
        plan = StagePlan(type="poisson", open=True, rate=100, duration=SECONDS)
        assert overload(kept, plan).status == "overloaded"
        assert overload_of_cut(kept, plan, found).cut_short == found


def test_rows_that_were_skipped_are_not_taken_for_a_queue() -> None:
    rows = queues.queue_rows(100, 200, SECONDS)
    assert cut(rows, missing=1500) is None


def test_closed_loops_and_changing_rates_are_not_judged() -> None:
    rows = queues.queue_rows(100, 50, SECONDS)
    stage = OpenStage(instants=rows["intended"].astype(np.int64), duration=SECONDS * 10**9)
    early = Columns.of(rows[rows["done"] < 20 * 10**9])
    for plan, stages in (
        (StagePlan(type="closed", open=False, concurrency=4), None),
        (StagePlan(type="ramp", open=True, rate=100.0, duration=SECONDS), stage),
    ):
        watching = Saturation([plan], [stages], 0.02)
        assert [watching.look(early, at, 0, 0) for at in (5.0, 10.0, 15.0, 20.0)] == [None] * 4
