"""Runs and stages that end early: by a limit of abort.on, or because a level is overloaded."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from command import assert_one_line, cli
from helpers import measure

from inferometer import conduct
from inferometer.analysis.checks import Check
from inferometer.analysis.summary import Summary
from inferometer.records import CANCELLED, Snapshot
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Fixed

NOW = {"grace": 0, "window": "1s"}


def check(summary: Summary, name: str = "abort") -> Check:
    return next(one for one in summary.checks if one.name == name)


def test_run_with_too_many_failures_is_ended_stored_and_reported(tmp_path: Path) -> None:
    with running(simulator(timing=Fixed(ttft=0.002, itl=0.0005), faults=("reject=503@50%",))) as url:
        result = cli(
            "run", url, "--rate", "200", "--duration", "60s", "--prompt", "hi", "--output", "2",
            "--abort-on", "failure_rate > 20%", "--set", "abort.grace=0s", "--set", "abort.window=1s",
            "--set", "client.processes=0", "--set", f"output={tmp_path}",
            "--json", tmp_path / "out.json", "--markdown", tmp_path / "out.md", "--junit", tmp_path / "out.xml",
            "--html", tmp_path / "out.html",
        )  # fmt: skip
    assert result.status == 1, result
    summary = json.loads((tmp_path / "out.json").read_bytes())
    [trip] = summary["ended_by"]
    assert trip["limit"] == "failure_rate > 20%" and trip["ended"] == "run"
    assert trip["at"] < 40 and 0.2 < trip["value"] < 1
    assert "by abort.on: failure_rate" in result.out and "by abort.on: failure_rate" in result.err
    for name in ("out.md", "out.xml", "out.html"):
        assert "by abort.on: failure_rate" in (tmp_path / name).read_text(), name
    assert cli("report", tmp_path / "LATEST").out == result.out


class Killing(conduct.Show):
    """Ends the server once it has served some requests."""

    def __init__(self, server: contextlib.ExitStack) -> None:
        self._server = server

    def progress(self, snapshot: Snapshot) -> None:
        if snapshot.ok >= 20:
            self._server.close()


@pytest.mark.parametrize(
    "load",
    [{"type": "closed", "concurrency": 4, "duration": "60s"}, {"type": "poisson", "rate": 100, "duration": "60s"}],
    ids=["closed", "open"],
)
def test_run_ends_soon_after_the_server_has_died(tmp_path: Path, load: dict[str, Any]) -> None:
    with contextlib.ExitStack() as server:
        url = server.enter_context(running(simulator(timing=Fixed(ttft=0.005, itl=0.001))))
        abort = NOW | {"on": ["consecutive_failures > 10"]}
        run, summary = measure(tmp_path, url, Killing(server), server={"model": "sim"}, load=load, abort=abort)
    assert check(summary).status == "fail" and "consecutive_failures" in check(summary).message
    assert run.manifest.outcome.trips[0].at < 40
    assert not run.manifest.outcome.interrupted
    assert summary.counts.ok >= 20


def test_request_that_never_ends_is_noticed_in_flight(tmp_path: Path, sim: str) -> None:
    run, summary = measure(
        tmp_path,
        sim,
        server={"model": "sim", "headers": {"x-sim-fault": "stall=60s"}},
        load={"type": "closed", "concurrency": 2, "requests": 4},
        client={"grace": "100ms"},
        abort=NOW | {"on": "e2e > 500ms"},
    )
    assert "for a request that is still in flight" in check(summary).message
    assert summary.counts.by_failure == {CANCELLED: 2}
    assert run.manifest.outcome.trips[0].at < 30


@pytest.mark.slow
def test_only_the_stage_is_ended_and_the_next_does_not_wait_for_what_hangs(tmp_path: Path, sim: str) -> None:
    one = {"type": "closed", "concurrency": 2, "requests": 4}
    run, summary = measure(
        tmp_path,
        sim,
        server={"model": "sim", "headers": {"x-sim-fault": "stall=60s"}},
        load={"type": "stages", "stages": [one, one], "drain": True},
        client={"grace": "100ms"},
        abort=NOW | {"on": "e2e > 500ms", "ends": "stage"},
    )
    assert [trip.stage for trip in run.manifest.outcome.trips] == [0, 1]
    assert summary.counts.by_failure == {CANCELLED: 4}
    assert "1 more stage was ended early too" in check(summary).message


@pytest.mark.slow
def test_overloaded_level_is_cut_short_and_the_next_level_runs(tmp_path: Path) -> None:
    """One request at a time of at least 5 ms: at most 200/s. The levels are 300/s and 400/s."""
    with running(simulator(timing=Fixed(ttft=0.005, itl=0.0, max_batch=1))) as url:
        run, summary = measure(
            tmp_path,
            url,
            server={"model": "sim"},
            data={"type": "prompts", "prompts": ["hi"], "output": 1},
            load={"type": "constant", "rate": "300:400:100", "duration": "6s"},
            limits={"rate": 0.5},  # requests are sent for less than half of the time that was planned
        )
    cut = run.manifest.outcome.cut_short
    assert [each.stage for each in cut] == [0, 1]
    assert all(each.after < each.planned == 6 for each in cut)
    assert [stage.overload.status for stage in summary.stages] == ["overloaded", "overloaded"]
    assert summary.stages[1].overload.cut_short == cut[1]
    assert check(summary, "rate").status == check(summary, "interrupted").status == "pass"
    assert "overloaded; cut short after" in cli("report", run.folder).out


class Counting(conduct.Show):
    """Counts the rows that it gets, twice per snapshot."""

    def __init__(self) -> None:
        self.seen = 0

    def progress(self, snapshot: Snapshot) -> None:
        assert snapshot.rows() is snapshot.rows()
        self.seen += len(snapshot.rows())


def test_view_and_limits_do_not_take_rows_from_each_other(tmp_path: Path, sim: str) -> None:
    view = Counting()
    load = {"type": "closed", "concurrency": 4, "requests": 200}
    run, summary = measure(
        tmp_path, sim, view, server={"model": "sim"}, load=load, abort=NOW | {"on": "failure_rate > 50%"}
    )
    assert view.seen == len(run.records.rows) == 200
    assert check(summary).status == "pass" and summary.ended_by == ()


def test_limit_that_unstreamed_responses_cannot_exceed_is_one_line(tmp_path: Path) -> None:
    flags = ("--set", "server.stream=false", "--abort-on", "ttft.p99 > 1s", "--set", f"output={tmp_path}")
    assert_one_line(cli("run", "http://127.0.0.1:1", *flags), "abort.on", "not streamed have no ttft")
