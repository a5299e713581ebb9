"""What live metrics take from the config: the labels of stages, and the planned rate."""

from typing import Any

import numpy as np
import pytest

from inferometer import manifest, schedule
from inferometer.conduct.live_families import stage_labels, target_rate
from inferometer.config import from_mapping
from inferometer.config.loads import Replay, StageSpec, stages_of
from inferometer.prepare.plans import whole_plan


def stages(load: dict[str, Any]) -> list[StageSpec]:
    return stages_of(from_mapping({"server": {"url": "http://x"}, "load": load}).load)


POISSON = {"type": "poisson", "rate": 10, "duration": "2s"}
CLOSED = {"type": "closed", "concurrency": 2, "requests": 5}


@pytest.mark.parametrize(
    ("load", "labels"),
    [
        (POISSON, ["1 poisson 10/s"]),
        ({"stages": [POISSON, CLOSED, POISSON]}, ["1 poisson 10/s", "2 closed 2", "3 poisson 10/s"]),
        (
            {"stages": [POISSON | {"name": "calm"}, CLOSED, POISSON | {"name": "calm"}]},
            ["1 calm", "2 closed 2", "3 calm"],
        ),
        ({"type": "closed", "concurrency": "1:3", "duration": "1s"}, [f"concurrency {level}" for level in (1, 2, 3)]),
    ],
)
def test_labels_of_stages_are_the_names_in_reports_and_distinct(load: dict[str, Any], labels: list[str]) -> None:
    config = from_mapping({"server": {"url": "http://x"}, "load": load})
    plans = manifest.stage_plans(config, whole_plan(config))
    assert stage_labels([plan.name for plan in plans]) == labels


@pytest.mark.parametrize(
    ("load", "seconds", "rate"),
    [
        (POISSON, 1.9, 10),
        (POISSON, 2.1, 0),
        ({"type": "constant", "rate": 10, "requests": 5}, 0.4, 10),
        ({"type": "constant", "rate": 10, "requests": 5}, 0.6, 0),
        ({"type": "ramp", "start": 0, "end": 20, "duration": "2s"}, 1.0, 10),
        (CLOSED, 0.0, None),
    ],
)
def test_target_rate_is_that_of_the_plan_and_ends_with_it(
    load: dict[str, Any], seconds: float, rate: float | None
) -> None:
    assert target_rate(stages(load), 0.0, None, 0, seconds) == rate


def test_target_rate_of_sessions_counts_their_requests() -> None:
    assert target_rate(stages(POISSON), 3.0, None, 0, 1.0) == 30
    assert target_rate(stages(POISSON | {"unit": "requests"}), 3.0, None, 0, 1.0) == 10


def test_target_rate_of_a_trace_is_that_of_its_arrivals() -> None:
    plan = schedule.plan(Replay(), 0, arrivals=np.array([0, 900, 1000, 1100, 5000]) * 1_000_000)
    assert target_rate([Replay()], 0.0, plan, 0, 1.0) == 3
