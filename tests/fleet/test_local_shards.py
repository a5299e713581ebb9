"""The messages between a parent and its shards on this machine: barriers, Ctrl-C, the loss of a shard, sessions."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import psutil
import pytest
from helpers import Client, http_response, polite, scripted
from shard_processes import slow, when_recorded, workers

from inferometer import conduct
from inferometer.analysis.summary import Summary
from inferometer.config import from_mapping
from inferometer.errors import UserError
from inferometer.records import Run, Snapshot


class Watched(conduct.Show):
    """A `conduct.Show` that keeps the snapshots."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []

    def progress(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)


def measure(
    folder: Path, url: str, processes: int, show: Watched | None = None, **sections: Any
) -> tuple[Run, Summary]:
    return helpers.measure(folder, url, show, client={"processes": processes, "grace": "1s"}, **sections)


# --- barriers --------------------------------------------------------------------------------------------------------

SLOW_THEN_FAST = {
    "type": "stages",
    "drain": True,
    "stages": [
        {"type": "constant", "rate": 100, "duration": "0.2s"},
        {"type": "closed", "concurrency": 4, "requests": 8},
        {"type": "constant", "rate": 100, "requests": 10},
    ],
}


def very_slow(client: Client) -> None:
    """Takes 150 ms per response: what one stage sends is still in flight when the next could start."""
    slow(client, 0.15)


def test_stage_behind_a_barrier_starts_when_all_shards_have_drained(tmp_path: Path) -> None:
    watched = Watched()
    run, summary = measure(tmp_path, scripted(very_slow), 2, watched, load=SLOW_THEN_FAST)
    rows = run.records.rows
    assert summary.counts.ok == len(rows) == 38
    assert all(
        snapshot.ok >= 20 for snapshot in watched.snapshots if snapshot.stage > 0
    )  # it is the next stage only then
    for before, after in ((0, 1), (1, 2)):
        drained = rows["done"][rows["stage"] == before].max()
        starts = [rows["intended"][(rows["stage"] == after) & (rows["shard"] == shard)].min() for shard in (0, 1)]
        assert min(starts) > drained
    instants = np.sort(rows["intended"][rows["stage"] == 2])
    assert np.abs(np.diff(instants) - 10_000_000).max() < 8_000_000  # both shards start the stage at one instant


@pytest.mark.parametrize("drain", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_next_stage_starts_after_the_pause_in_all_shards(tmp_path: Path, drain: bool) -> None:
    stages = [
        {"type": "constant", "rate": 100, "duration": "0.1s"},
        {"type": "closed", "concurrency": 4, "requests": 8, "ramp_up": "0"},
        {"type": "constant", "rate": 100, "requests": 6},
    ]
    watched = Watched()
    with scripted(very_slow) as url:
        load = {"type": "stages", "drain": drain, "pause": "300ms", "stages": stages}
        run, summary = measure(tmp_path, url, 2, watched, load=load)
    rows, pause = run.records.rows, 300_000_000
    assert summary.counts.ok == len(rows) == 24
    first, second, third = (rows[rows["stage"] == stage] for stage in range(3))
    end = first["done"].max() if drain else 100_000_000
    assert (second["intended"].min() >= end + pause) if drain else (second["intended"].min() == end + pause)
    assert second["intended"].min() < end + 2 * pause
    last = second["done"].max() if drain else max(second["sent"].max(), 0)
    assert last + pause <= third["intended"].min() < last + 2 * pause + 150_000_000
    assert [plan.pause for plan in run.manifest.plan] == [0, 0.3, 0.3]
    assert any(snapshot.pausing for snapshot in watched.snapshots)
    assert not watched.snapshots[-1].pausing


@pytest.mark.slow
def test_ctrl_c_during_a_pause_ends_the_run(tmp_path: Path) -> None:
    class Interrupt(Watched):
        def progress(self, snapshot: Snapshot) -> None:
            if snapshot.pausing and not snapshot.stopping:
                os.kill(os.getpid(), signal.SIGINT)
            super().progress(snapshot)

    stage = {"type": "constant", "rate": 100, "requests": 6}
    with scripted(very_slow) as url:
        load = {"type": "stages", "pause": "60s", "stages": [stage, stage]}
        run, summary = measure(tmp_path, url, 2, Interrupt(), load=load)
    assert summary.counts.ok == len(run.records.rows) == 6
    assert run.manifest.outcome.interrupted


@pytest.mark.slow
def test_barriers_do_not_wait_for_a_shard_that_was_lost(tmp_path: Path) -> None:
    with scripted(very_slow) as url:
        when_recorded(tmp_path, 1, lambda: workers()[1].kill())  # noqa: PLW0108 - the workers have not been started yet
        run, summary = measure(tmp_path, url, 2, load=SLOW_THEN_FAST)
    rows = run.records.rows
    assert set(rows["stage"][(rows["shard"] == 0) & (rows["failure"] == 0)].tolist()) == {0, 1, 2}
    assert "lost" in summary.counts.by_failure
    assert next(check.status for check in summary.checks if check.name == "workers") == "fail"
    assert not workers()


def stuck_once(client: Client) -> None:
    """Never respond to the request with the id 1; to others after 20 ms."""
    while request := client.request():
        if request[1]["x-request-id"].endswith("-000000000001"):
            client.request()  # until the client gives up
            return
        time.sleep(0.02)
        client.send(http_response())


@pytest.mark.slow
def test_drain_is_bounded_by_the_total_timeout(tmp_path: Path) -> None:
    load = {"type": "constant", "rate": "50:100:50", "requests": 6}
    watched = Watched()
    with scripted(stuck_once) as url:
        server = {"timeouts": {"total": "1200ms"}}
        run, summary = measure(tmp_path, url, 2, watched, server=server, load=load)
    rows = run.records.rows
    assert (summary.counts.ok, summary.counts.by_failure) == (11, {"total_timeout": 1})
    (timed_out,) = rows["done"][rows["failure"] > 0]
    assert rows["intended"][rows["stage"] == 1].min() > timed_out
    assert [plan.drain for plan in run.manifest.plan] == [False, True]
    assert any(snapshot.draining for snapshot in watched.snapshots)
    assert not watched.snapshots[-1].draining


@pytest.mark.slow
def test_ctrl_c_while_draining_loses_nothing(tmp_path: Path) -> None:
    class Interrupt(Watched):
        def progress(self, snapshot: Snapshot) -> None:
            if snapshot.draining and not snapshot.stopping and snapshot.ok >= 5:
                os.kill(os.getpid(), signal.SIGINT)
            super().progress(snapshot)

    with scripted(stuck_once) as url:
        load = {"type": "constant", "rate": "50:100:50", "requests": 6}
        run, summary = measure(tmp_path, url, 2, Interrupt(), load=load)
    assert run.manifest.outcome.interrupted
    rows = run.records.rows
    assert sorted(rows["id"].tolist()) == list(range(6)), "one row for every request that was sent"
    assert summary.counts.ok == 5
    assert run.records.failures[rows["failure"].max() - 1].code == "cancelled"
    assert not workers()


# --- requests that are dealt out --------------------------------------------------------------------------------------


def slow_for_odd_shards(client: Client) -> None:
    """Respond after 20 ms, or after 80 ms to the second shard. A shard's first requests have its own ids: even or odd ones."""
    delay = 0.0
    while request := client.request():
        delay = delay or (0.08 if int(request[1]["x-request-id"].rpartition("-")[2], 16) % 2 else 0.02)
        time.sleep(delay)
        client.send(http_response())


@pytest.mark.slow
def test_counted_closed_stage_ends_on_all_shards_together(tmp_path: Path) -> None:
    load = {"type": "closed", "concurrency": 4, "requests": 200, "ramp_up": 0}
    run, summary = measure(tmp_path, scripted(slow_for_odd_shards), 2, load=load)
    rows = run.records.rows
    assert summary.counts.ok == len(rows) == 200
    assert sorted(rows["id"].tolist()) == list(range(200))
    fast, slow = (rows[rows["shard"] == shard] for shard in (0, 1))
    assert len(fast) > 2 * len(slow)
    response = int(np.median(slow["done"] - slow["sent"]))
    assert abs(int(fast["sent"].max()) - int(slow["sent"].max())) < 3 * response  # 30 responses if each had a half


@pytest.mark.slow
def test_counted_stages_follow_each_other_without_a_drain(tmp_path: Path) -> None:
    stage = {"type": "closed", "concurrency": 4, "requests": 60}
    run, summary = measure(tmp_path, scripted(slow_for_odd_shards), 2, load={"stages": [stage, stage]})
    rows = run.records.rows
    assert summary.counts.ok == len(rows) == 120
    assert (rows["stage"] == rows["id"] // 60).all()
    assert sorted(rows["id"].tolist()) == list(range(120))


# --- Ctrl-C and the death of the parent ------------------------------------------------------------------------------


def test_ctrl_c_ends_the_run_with_what_was_recorded(tmp_path: Path) -> None:
    with scripted(polite) as url:
        when_recorded(tmp_path, 3, lambda: os.kill(os.getpid(), signal.SIGINT))
        run, summary = measure(tmp_path, url, 2, load={"type": "closed", "concurrency": 2, "duration": "30s"})
    assert run.manifest.outcome.interrupted
    assert summary.counts.ok >= 6
    assert set(run.records.rows["shard"].tolist()) == {0, 1}
    assert not workers()


PARENT = """
import sys
from inferometer import conduct
from inferometer.config import from_mapping

conduct.measure(from_mapping({
    "server": {"url": sys.argv[1], "model": "m"}, "data": {"prompts": ["hello"], "output": 2},
    "load": {"type": "closed", "concurrency": 2, "duration": "60s"}, "client": {"processes": 2}, "output": sys.argv[2],
}))
"""


def processes_of(marker: str) -> list[psutil.Process]:
    """Return all processes that were started with this word in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("INFEROMETER_TEST") == marker and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def kill_parent_after(seconds: float, url: str, folder: Path) -> None:
    """Kill a run's parent, and check that all of its processes are gone within a second."""
    marker = f"{folder}{seconds}"
    parent = psutil.Popen(
        [os.sys.executable, "-c", PARENT, url, str(folder)],  # type: ignore[attr-defined]
        env=os.environ | {"INFEROMETER_TEST": marker},
    )
    time.sleep(seconds)
    parent.kill()
    parent.wait()
    end = time.monotonic() + 1.0
    while (left := processes_of(marker)) and time.monotonic() < end + 4.0:  # a busy machine may take longer
        time.sleep(0.05)
    for process in left:
        process.kill()
    assert not left, f"after {seconds:.2f} s"


@pytest.mark.parametrize("seconds", [0.45, 1.2])
def test_no_process_outlives_a_killed_parent(tmp_path: Path, seconds: float) -> None:
    with scripted(polite) as url:
        kill_parent_after(seconds, url, tmp_path)


@pytest.mark.slow
def test_no_process_outlives_a_parent_that_is_killed_at_any_moment(tmp_path: Path) -> None:
    with scripted(polite) as url:
        for seconds in np.random.default_rng(20).uniform(0, 2, 20):
            kill_parent_after(float(seconds), url, tmp_path)


# --- sessions --------------------------------------------------------------------------------------------------------


def echo(client: Client) -> None:
    """Respond with `N turns received: LAST TEXT`, in two chunks."""
    while request := client.request():
        messages = json.loads(request[2])["messages"]
        text = f"{len(messages)} received: {messages[-1]['content']}"
        chunks = [{"choices": [{"delta": {"content": part}}]} for part in (text[:3], text[3:])]
        end = {
            "choices": [{"delta": {}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 2},
        }
        client.send(
            http_response(
                b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in (*chunks, end)) + b"data: [DONE]\n\n"
            )
        )


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize(
    "load",
    [
        {"type": "closed", "concurrency": 3, "requests": 12},
        pytest.param({"type": "constant", "rate": 60, "requests": 12}, marks=pytest.mark.slow),
    ],
)
def test_second_turn_of_a_session_contains_the_response_to_the_first(
    tmp_path: Path, processes: int, load: dict[str, Any]
) -> None:
    bodies: list[Any] = []

    def noting(client: Client) -> None:
        class Noting(Client):
            def request(self) -> tuple[str, dict[str, str], bytes] | None:
                found = super().request()
                if found is not None:
                    bodies.append(json.loads(found[2])["messages"])
                return found

        echo(Noting(client.sock, client.number))

    data = tmp_path / "talk.jsonl"
    data.write_text(json.dumps({"turns": ["hello", "go on"], "think": 0.02}) + "\n")
    with scripted(noting) as url:
        run, summary = measure(
            tmp_path, url, processes, data={"type": "jsonl", "path": str(data), "output": 2}, load=load
        )
    rows = run.records.rows
    assert summary.counts.ok == len(rows) == 24
    for session in set(rows["session"].tolist()):
        first, second = np.asarray(rows)[rows["session"] == session]
        if first["turn"] > second["turn"]:
            first, second = second, first
        assert (first["turn"], second["turn"]) == (0, 1)
        assert first["id"] == session
        assert first["shard"] == second["shard"]
        assert second["intended"] == first["done"] + 20_000_000
        assert second["sent"] >= second["intended"]
    assert sorted(map(len, bodies)) == [1] * 12 + [3] * 12
    for messages in bodies:
        if len(messages) == 3:
            assert [message["content"] for message in messages] == ["hello", "1 received: hello", "go on"]


def test_a_run_ends_while_users_think(tmp_path: Path) -> None:
    """The stage ends before the next turns are due: nothing is left to wait for."""
    data = tmp_path / "talk.jsonl"
    data.write_text(json.dumps({"turns": ["hello", "go on"], "think": 60}) + "\n")
    load = {"type": "closed", "concurrency": 2, "duration": "150ms"}
    run, summary = measure(tmp_path, scripted(echo), 0, data={"type": "jsonl", "path": str(data)}, load=load)
    assert summary.counts.ok == 2
    assert run.records.rows["turn"].tolist() == [0, 0]


def test_conversations_need_an_api_that_can_hold_them(tmp_path: Path) -> None:
    data = tmp_path / "talk.jsonl"
    data.write_text(json.dumps({"turns": ["hello", "go on"]}) + "\n")
    tree = {"server": {"url": "http://127.0.0.1:1", "api": "generate"}, "data": {"type": "jsonl", "path": str(data)}}
    with pytest.raises(UserError, match="cannot contain earlier turns") as caught:
        conduct.measure(from_mapping(tree | {"load": {"type": "closed", "requests": 1}}))
    assert caught.value.key == "data.path"
