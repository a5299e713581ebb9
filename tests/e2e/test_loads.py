"""Every kind of load against a simulator: each planned request has exactly one row, at exactly the instant of the plan."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Client, http_response, measure, scripted
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from inferometer import schedule
from inferometer.analysis.summary import Summary
from inferometer.config import from_mapping
from inferometer.fleet.runner import run_shard
from inferometer.prepare.jobs import prepared_jobs
from inferometer.prepare.plans import whole_plan
from inferometer.prepare.setup import Setup
from inferometer.probe import reach
from inferometer.records import MISSING, PHASES, Run
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed
from inferometer.store.spool import Control, merge
from inferometer.timing.clock import now
from inferometer.types import OpenStage, Plan

SERVER = {"model": "sim"}


def planned(load: dict[str, Any], seed: int = 0) -> Plan:
    return schedule.plan(from_mapping({"server": {"url": "http://x"}, "load": load, "seed": seed}).load, seed)


def run_load(folder: Path, url: str | list[str], load: dict[str, Any], **more: Any) -> tuple[Run, Summary]:
    server = SERVER | more.pop("server", {})
    return measure(folder, url, server=server, load=load, **more)


def by_id(run: Run) -> Any:
    return np.sort(run.records.rows, order="id")


OPEN_LOADS: dict[str, dict[str, Any]] = {
    "constant": {"type": "constant", "rate": 200, "duration": "200ms"},
    "constant by requests": {"type": "constant", "rate": 400, "requests": 30},
    "poisson": {"type": "poisson", "rate": 200, "duration": "200ms"},
    "gamma": {"type": "gamma", "rate": 200, "burstiness": 0.3, "requests": 30},
    "ramp": {"type": "ramp", "start": 0, "end": 400, "duration": "200ms"},
    "steps": {"type": "steps", "rates": [50, 400], "duration": "200ms", "arrivals": "constant"},
    "bursts": {"type": "bursts", "rate": 500, "on": "20ms", "off": "30ms", "duration": "150ms"},
}


@pytest.mark.parametrize("load", OPEN_LOADS.values(), ids=OPEN_LOADS)
def test_open_loop_has_one_row_per_planned_instant(tmp_path: Path, sim: str, load: dict[str, Any]) -> None:
    run, summary = run_load(tmp_path, sim, load, seed=3)
    stage = planned(load, 3).stages[0]
    assert isinstance(stage, OpenStage)
    rows = by_id(run)
    assert len(stage.instants) > 5
    assert rows["id"].tolist() == list(range(len(stage.instants)))
    assert rows["intended"].tolist() == stage.instants.tolist()
    assert (rows["sent"] >= rows["intended"]).all()
    assert (rows["open_loop"] == 1).all()
    assert summary.counts.ok == len(rows)


CLOSED_LOADS: dict[str, dict[str, Any]] = {
    "by requests": {"type": "closed", "concurrency": 5, "requests": 23},
    "fewer requests than users": {"type": "closed", "concurrency": 9, "requests": 4},
    "by duration": {"type": "closed", "concurrency": 3, "duration": "200ms"},
    "whichever comes first": {"type": "closed", "concurrency": 3, "duration": "30s", "requests": 8},
    "with ramp-up": {"type": "closed", "concurrency": 4, "requests": 16, "ramp_up": "80ms"},
    "with think time": {"type": "closed", "concurrency": 3, "requests": 9, "think": "20ms"},
}


@pytest.mark.parametrize("load", CLOSED_LOADS.values(), ids=CLOSED_LOADS)
def test_closed_loop_has_ids_without_gaps_and_never_exceeds_its_concurrency(
    tmp_path: Path, sim: str, load: dict[str, Any]
) -> None:
    run, summary = run_load(tmp_path, sim, load)
    rows = by_id(run)
    assert rows["id"].tolist() == list(range(len(rows)))
    assert len(rows) == load.get("requests", len(rows)) > 0
    assert (rows["open_loop"] == 0).all()
    assert summary.counts.ok == len(rows)
    assert most_in_flight(rows) <= load["concurrency"]


def most_in_flight(rows: Any) -> int:
    """Return the largest number in flight by the records. A request that ended exactly when another was sent does not overlap it."""
    events = sorted([(at, 1) for at in rows["sent"].tolist()] + [(at, -1) for at in rows["done"].tolist()])
    count = most = 0
    for _, change in events:
        count += change
        most = max(most, count)
    return most


def test_ramp_up_starts_users_evenly(tmp_path: Path, sim: str) -> None:
    load = CLOSED_LOADS["with ramp-up"]
    run, _ = run_load(tmp_path, sim, load)
    starts = np.sort(run.records.rows["intended"])
    assert {0, 20_000_000, 40_000_000, 60_000_000} <= set(starts.tolist())


def test_user_thinks_before_sending_again(tmp_path: Path, sim: str) -> None:
    run, _ = run_load(tmp_path, sim, {"type": "closed", "concurrency": 1, "requests": 4, "think": "20ms"})
    rows = by_id(run)
    assert (rows["intended"][1:] - rows["done"][:-1] == 20_000_000).all()


def test_next_request_without_think_time_is_due_when_the_response_arrived(tmp_path: Path, sim: str) -> None:
    run, _ = run_load(tmp_path, sim, {"type": "closed", "concurrency": 1, "requests": 4})
    rows = by_id(run)
    assert (rows["intended"][1:] == rows["done"][:-1]).all()


def test_stages_run_in_order_and_their_ids_continue(tmp_path: Path, sim: str) -> None:
    stages = [
        {"type": "constant", "rate": 100, "duration": "100ms"},
        {"type": "closed", "concurrency": 2, "requests": 7},
        {"type": "poisson", "rate": 200, "requests": 12},
    ]
    run, summary = run_load(tmp_path, sim, {"stages": stages})
    rows = by_id(run)
    assert rows["id"].tolist() == list(range(29))
    assert rows["stage"].tolist() == [0] * 10 + [1] * 7 + [2] * 12
    ends = [rows["intended"][rows["stage"] == stage].max() for stage in range(3)]
    assert ends == sorted(ends)
    assert (rows["intended"][rows["stage"] == 1] >= 100_000_000).all()
    third = rows["intended"][rows["stage"] == 2]
    closed_ended = rows["done"][rows["stage"] == 1].max()
    assert (third - third[0]).tolist() == (
        np.asarray((last := planned({"stages": stages}).stages[2]).instants) - last.instants[0]  # type: ignore[union-attr]
    ).tolist()
    assert third[0] >= closed_ended
    assert [stage.counts.ok for stage in summary.stages] == [10, 7, 12]


def test_responses_to_an_earlier_stage_do_not_add_requests_to_the_current_one(tmp_path: Path) -> None:
    waiting: list[Client] = []
    one_by_one = threading.Lock()

    def together(client: Client) -> None:
        """Respond to the first requests of both stages together, once all five have arrived; to the others after a while."""
        if client.request():
            with one_by_one:  # otherwise two threads might both see the fifth
                waiting.append(client)
                is_last = len(waiting) == 5
            for each in waiting if is_last else ():
                each.send(http_response())
        while client.request():
            time.sleep(0.05)
            client.send(http_response())

    stages = [
        {"type": "closed", "concurrency": 2, "duration": "100ms"},
        {"type": "closed", "concurrency": 3, "requests": 9},
    ]
    with scripted(together) as url:
        run, _ = run_load(tmp_path, url, {"stages": stages})
    rows = by_id(run)
    assert rows["stage"].tolist() == [0] * 2 + [1] * 9
    first, second = (rows[rows["stage"] == stage] for stage in range(2))
    assert second["sent"].min() < first["done"].min(), "they overlap"
    for at in second["sent"]:
        assert ((second["sent"] <= at) & (at < second["done"])).sum() <= 3


# --- ranges and the start of users -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slow_sim() -> Any:
    """A simulator whose responses take about 100 ms."""
    with running(simulator(timing=Fixed(ttft=0.09, itl=0.01))) as url:
        yield url


@pytest.mark.parametrize("drain", [True, False])
def test_level_of_a_range_starts_when_the_level_before_has_drained(tmp_path: Path, slow_sim: str, drain: bool) -> None:
    load = {"type": "constant", "rate": "50:100:50", "requests": 5} | ({} if drain else {"drain": False})
    run, summary = run_load(tmp_path, slow_sim, load)
    rows = by_id(run)
    assert summary.counts.ok == 10
    first, second = (rows[rows["stage"] == stage] for stage in (0, 1))
    assert (second["sent"].min() > first["done"].max()) == drain
    assert [plan.drain for plan in run.manifest.plan] == [False, drain]


@pytest.mark.slow
def test_users_are_not_in_lockstep(tmp_path: Path, slow_sim: str) -> None:
    run, _ = run_load(
        tmp_path, slow_sim, {"type": "closed", "concurrency": 8, "duration": "1s"}, client={"processes": 2}
    )
    rows, (plan,) = by_id(run), run.manifest.plan
    starts = np.sort(rows["intended"][rows["id"] < plan.first_id + plan.concurrency])
    assert len(starts) == 8
    response = int(np.median(rows["done"] - rows["sent"]))
    assert starts[-1] - starts[0] > response / 2
    for start in starts:
        assert ((starts >= start) & (starts < start + response // 4)).sum() <= 4  # all 8 if they started together


def test_users_start_at_once_without_ramp_up(tmp_path: Path, sim: str) -> None:
    run, _ = run_load(tmp_path, sim, {"type": "closed", "concurrency": 8, "requests": 16, "ramp_up": 0})
    assert (by_id(run)["intended"][:8] == 0).all()


@pytest.mark.slow
def test_two_processes_finish_a_number_of_requests_together(tmp_path: Path, slow_sim: str) -> None:
    load = {"type": "closed", "concurrency": 6, "requests": 60}
    run, summary = run_load(tmp_path, slow_sim, load, client={"processes": 2})
    rows = by_id(run)
    assert summary.counts.ok == 60
    assert rows["id"].tolist() == list(range(60))
    ends = [int(rows["sent"][rows["shard"] == shard].max()) for shard in (0, 1)]
    assert abs(ends[0] - ends[1]) < 2 * int(np.median(rows["done"] - rows["sent"]))


# --- the cap ---------------------------------------------------------------------------------------------------------

OVERLOAD = {"type": "constant", "rate": 200, "duration": "250ms", "max_concurrency": 2}
"""Fifty requests at 200 per second with a cap of 2, which allows some 160 per second."""


def test_requests_queue_at_the_cap_and_their_latency_includes_the_wait(tmp_path: Path, sim: str) -> None:
    run, summary = run_load(tmp_path, sim, OVERLOAD)
    rows = by_id(run)
    assert rows["intended"].tolist() == [index * 5_000_000 for index in range(50)]
    assert most_in_flight(rows) <= 2
    assert summary.counts.ok == 50
    late = rows["sent"] - rows["intended"]
    assert rows["held"].max() > 10_000_000
    assert (rows["held"] <= late).all()
    assert summary.counts.dropped == 0
    assert (summary.metrics["ttft"].max or 0) > (summary.metrics["ttft_service"].max or 0)


def test_requests_are_dropped_at_the_cap_if_configured_and_the_run_is_invalid(tmp_path: Path, sim: str) -> None:
    run, summary = run_load(tmp_path, sim, OVERLOAD | {"when_full": "drop"})
    rows = by_id(run)
    assert rows["id"].tolist() == list(range(50))
    assert rows["intended"].tolist() == [index * 5_000_000 for index in range(50)]
    assert summary.counts.dropped > 0
    assert summary.counts.ok + summary.counts.dropped == 50
    assert summary.counts.by_failure == {}
    dropped = rows[rows["failure"] > 0]
    assert len(dropped) == summary.counts.dropped
    assert {name: set(dropped[name].tolist()) for name in ("sent", "done", "status")} == {
        "sent": {MISSING}, "done": {MISSING}, "status": {0},
    }  # fmt: skip
    assert summary.verdict == "INVALID"
    assert [check.status for check in summary.checks if check.name == "dropped"] == ["fail"]


def test_cap_that_is_never_reached_changes_nothing(tmp_path: Path, sim: str) -> None:
    load = {"type": "constant", "rate": 50, "duration": "200ms", "max_concurrency": 50}
    run, _ = run_load(tmp_path, sim, load, client={"connections": 10})
    assert (run.records.rows["held"] == 0).all()


# --- several processes, several URLs ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "load",
    [
        pytest.param({"type": "poisson", "rate": 200, "requests": 31}, marks=pytest.mark.slow),
        pytest.param({"type": "closed", "concurrency": 5, "requests": 21, "ramp_up": "50ms"}, marks=pytest.mark.slow),
        {"stages": [{"type": "constant", "rate": 200, "requests": 9}, {"type": "closed", "concurrency": 3, "requests": 8}]},
    ],
    ids=["open", "closed", "stages"],
)  # fmt: skip
def test_two_processes_send_exactly_what_one_would(tmp_path: Path, sim: str, load: dict[str, Any]) -> None:
    run, summary = run_load(tmp_path, sim, load, client={"processes": 2}, seed=5)
    rows = by_id(run)
    assert set(rows["shard"].tolist()) == {0, 1}
    assert rows["id"].tolist() == list(range(schedule.total_requests(planned(load, 5)) or 0))
    assert summary.counts.ok == len(rows)
    first = planned(load, 5).stages[0]
    if isinstance(first, OpenStage):
        mine = rows[rows["stage"] == 0]
        assert mine["intended"].tolist() == first.instants.tolist()
        assert (mine["shard"] == mine["id"] % 2).all()
    assert run.manifest.host["processes"] == 2
    chunks = sum(len(piece.arrival) for piece in run.chunks())
    assert chunks == run.chunk_total == rows["chunk_count"].sum()


@pytest.mark.slow
def test_every_process_sends_to_several_base_urls_in_turn(tmp_path: Path, sim: str) -> None:
    with running(simulator(timing=Fixed(ttft=0.002, itl=0.001))) as other:
        load = {"type": "closed", "concurrency": 4, "requests": 24}
        run, summary = run_load(tmp_path, [sim, other], load, client={"processes": 2})
    rows = by_id(run)
    assert summary.counts.ok == 24
    assert (rows["url"] == rows["id"] % 2).all()


# --- what is left out ------------------------------------------------------------------------------------------------


def test_warm_up_and_cool_down_by_count_are_marked_and_excluded(tmp_path: Path, sim: str) -> None:
    load = {"type": "constant", "rate": 200, "requests": 30}
    run, summary = run_load(tmp_path, sim, load, measure={"warmup": 5, "cooldown": 3})
    phase = run.records.phase[np.argsort(run.records.rows["id"])]
    names = [PHASES[index] for index in phase]
    assert names == ["warmup"] * 5 + ["steady"] * 22 + ["cooldown"] * 3
    assert summary.counts.ok == summary.metrics["ttft"].count == 22
    assert summary.window.requests == {"warmup": 5, "steady": 22, "cooldown": 3}


def test_warm_up_and_cool_down_by_time(tmp_path: Path, sim: str) -> None:
    load = {"type": "constant", "rate": 100, "requests": 30}
    run, _ = run_load(tmp_path, sim, load, measure={"warmup": "50ms", "cooldown": "100ms"})
    phase = run.records.phase[np.argsort(run.records.rows["id"])]
    assert phase.tolist() == [0] * 5 + [1] * 15 + [2] * 10


# --- any plan --------------------------------------------------------------------------------------------------------


def test_single_shard_records_exactly_its_part(tmp_path: Path, sim: str) -> None:
    """Calls the function that a client process runs, in this process."""
    config = from_mapping(
        {
            "server": {"url": sim, "model": "sim"},
            "data": {"prompts": ["hello"], "output": 2},
            "load": {"rate": 300, "requests": 30},
        }
    )
    controls = [Control(tmp_path / f"{shard}.control", create=True) for shard in range(3)]
    setup = Setup(config, reach.reach(config.server), 3, tmp_path, "tag")
    with prepared_jobs(setup, whole_plan(config)) as jobs:
        worker = threading.Thread(target=run_shard, args=(jobs[1],))
        worker.start()
        while controls[1].state != "ready":
            assert worker.is_alive()
            time.sleep(0.001)
        controls[1]["t0"] = now() + 20_000_000
        worker.join(20)
    controls[0]["t0"] = controls[2]["t0"] = 1
    records, _ = merge(tmp_path, 3)
    assert sorted(records.rows["id"].tolist()) == list(range(1, 30, 3))


@hypothesis_settings(max_examples=10)
@given(
    st.lists(
        st.one_of(
            st.fixed_dictionaries({"type": st.just("constant"), "rate": st.integers(200, 2000), "requests": st.integers(1, 20)}),
            st.fixed_dictionaries({"type": st.just("poisson"), "rate": st.integers(200, 2000), "requests": st.integers(1, 20), "max_concurrency": st.integers(0, 3)}),
            st.fixed_dictionaries({"type": st.just("closed"), "concurrency": st.integers(1, 6), "requests": st.integers(1, 12)}),
        ),
        min_size=1,
        max_size=3,
    )
)  # fmt: skip
def test_any_plan_has_one_row_per_request(
    tmp_path_factory: pytest.TempPathFactory, sim: str, stages: list[dict[str, Any]]
) -> None:
    run, summary = run_load(tmp_path_factory.mktemp("any"), sim, {"stages": stages})
    rows = by_id(run)
    assert rows["id"].tolist() == list(range(sum(stage["requests"] for stage in stages)))
    assert summary.counts.ok == len(rows)
    plan = planned({"stages": stages})
    start = 0
    for number, stage in enumerate(plan.stages):
        if not isinstance(stage, OpenStage):
            break
        assert rows["intended"][rows["stage"] == number].tolist() == (stage.instants + start).tolist()
        start += stage.duration
