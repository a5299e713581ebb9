"""Points, knees and the verdict of a sweep, from made-up runs."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import synthetic_run as made

from inferometer.analysis.summary import Summary, summarise
from inferometer.analysis.sweep import MeasuredCell, Sweep, Unmeasured, problems, summarise_sweep
from inferometer.records import Run, StagePlan

LIMITS = {"limits": {"effect_fail": 1e9, "failures": 1}}


def queue(rate: float, stage: int, capacity: float, start: int, seconds: float = 40.0) -> np.ndarray:
    """A server that takes exactly 1 / capacity per request, one at a time, and requests at Poisson instants."""
    rng = np.random.default_rng(stage)
    count = round(rate * seconds)
    rows = made.blank(count)
    intended = np.sort(rng.uniform(0, seconds, count) * made.SECOND).astype(np.int64) + start
    done = np.zeros(count, np.int64)
    free = start
    for n, at in enumerate(intended):
        free = done[n] = max(free, int(at)) + round(made.SECOND / capacity)
    rows["intended"] = rows["sent"] = intended
    rows["first_byte"] = rows["done"] = done
    rows["stage"], rows["open_loop"], rows["n_out"] = stage, 1, -1
    return rows


def run(name: str, rates: list[float], capacity: float, **config: Any) -> tuple[Run, Summary]:
    """One stage of 40 s per rate, with a pause between them."""
    parts, start = [], 0
    for stage, rate in enumerate(rates):
        parts.append(queue(rate, stage, capacity, start))
        start = int(parts[-1]["done"].max()) + made.SECOND
    rows = np.concatenate(parts)
    rows["id"] = np.arange(len(rows))
    plan = tuple(
        StagePlan(type="poisson", open=True, rate=rate, duration=40.0, name=f"{rate:g}/s", drain=True) for rate in rates
    )
    found = made.run(rows, plan=plan, sampled=(), config=made.manifest().config | LIMITS | config)
    found = msgspec.structs.replace(found, folder=Path("/runs/sweep") / name)
    return found, summarise(found)


@pytest.fixture(scope="module")
def cells() -> list[MeasuredCell]:
    rates = [4.0, 8.0, 12.0, 16.0, 19.0, 30.0]
    return [
        ({"data.input": 1024}, *run("a", rates, 20.0)),
        ({"data.input": 8192}, *run("b", [1.0, 2.0, 4.0], 80.0)),
    ]


def sweep(cells: list[MeasuredCell], **more: Any) -> Sweep:
    return summarise_sweep("/runs/sweep", ["data.input"], cells, **more)


def test_each_stage_is_a_point_and_each_combination_has_an_answer(cells: list[MeasuredCell]) -> None:
    found = sweep(cells)
    assert [(point.run, point.stage, point.level) for point in found.points][::4] == [
        ("a", 0, 4),
        ("a", 4, 19),
        ("b", 2, 4),
    ]
    assert [point.is_overloaded for point in found.points] == [False] * 5 + [True] + [False] * 3
    (knee,) = found.knees
    assert knee.settings == {"data.input": 1024}
    assert knee.level == 12  # an M/D/1 queue bends at 0.586 of its capacity, which is 20
    assert [point.level for point in found.points if point.is_knee] == [12]
    assert found.answers[0].startswith("data.input 1024: the knee is at 12 requests/s (between ")
    assert found.answers[0].endswith("the server does not keep up with 30 requests/s")
    assert found.answers[1].startswith("data.input 8192: no knee up to 4 requests/s")


def test_runs_of_one_combination_are_put_together_by_level(cells: list[MeasuredCell]) -> None:
    """An adaptive sweep measures each level in a run of its own, and not in order."""
    alone: list[MeasuredCell] = [({}, *run(f"{rate:g}", [rate], 20.0)) for rate in (4.0, 16.0, 12.0, 8.0)]
    found = summarise_sweep("/runs/sweep", (), alone)
    assert [(point.run, point.level) for point in found.points] == [("4", 4), ("8", 8), ("12", 12), ("16", 16)]
    assert len(found.answers) == 1


def test_run_with_several_levels_has_a_knee_of_its_own(cells: list[MeasuredCell]) -> None:
    (_, _, first), (_, _, second) = cells
    assert first.knee is not None
    assert first.knee.level == 12
    assert second.knee is None
    assert "no knee up to 4" in (second.no_knee or "")


def test_combinations_of_one_level_are_compared_by_their_rate() -> None:
    alone: list[MeasuredCell] = [({"data.batch": rate}, *run(f"{rate:g}", [rate], 20.0)) for rate in (4.0, 8.0)]
    found = summarise_sweep("/runs/sweep", ["data.batch"], alone)
    assert "requests/s, mean latency" in found.answers[0]
    assert found.answers[-1] == "most requests/s: data.batch 8.0"


def test_overloaded_levels_do_not_fail_a_sweep(cells: list[MeasuredCell]) -> None:
    assert cells[0][2].verdict == "INVALID"
    assert problems(sweep(cells), cells) == []


def test_other_failed_checks_do(cells: list[MeasuredCell]) -> None:
    bad: list[MeasuredCell] = [
        ({"data.input": 1}, *run("c", [30.0, 4.0], 20.0, limits={"failures": 0.0, "effect_fail": 1e9}))
    ]
    rows = np.asarray(bad[0][1].records.rows)
    assert problems(sweep(bad), bad) == []
    made.fail(rows, np.flatnonzero(rows["stage"] == 1)[:20].tolist())
    failed = made.run(
        rows,
        plan=bad[0][1].manifest.plan,
        sampled=(),
        failures=(made.Failure("http_500", ""),),
        config=bad[0][1].manifest.config,
    )
    (problem,) = problems(sweep([({}, failed, summarise(failed))]), [({}, failed, summarise(failed))])
    assert "failures: 20 of 160 requests of stage 2 (4/s) failed" in problem


def test_missing_runs_fail_a_sweep(cells: list[MeasuredCell]) -> None:
    found = sweep(cells, unmeasured=[Unmeasured({"data.input": 5}, "no such model")], interrupted=True)
    assert problems(found, cells) == [
        "data.input 5: not measured: no such model",
        "interrupted: some runs are missing or incomplete",
    ]


def test_objectives_must_be_met_at_one_level_of_each_combination(cells: list[MeasuredCell]) -> None:
    def judged(slo: str) -> list[str]:
        again: list[MeasuredCell] = [(settings, run, summarise(run, [slo])) for settings, run, _ in cells]
        return problems(sweep(again), again)

    assert judged("e2e.p50 < 60ms") == []
    assert judged("e2e.p50 < 20ms") == ["data.input 1024: no level meets every objective"]


def test_a_single_level_that_the_server_does_not_keep_up_with_says_what_to_do() -> None:
    (answer,) = sweep([({}, *run("c", [30.0], 20.0))]).answers
    assert answer == "20 requests/s, overloaded: measure lower levels"
