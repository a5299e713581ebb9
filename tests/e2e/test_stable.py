"""Stages that end early once they are stable, against the simulator: only the stable part counts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import cli
from helpers import measure

from inferometer.analysis.checks import Check
from inferometer.analysis.summary import Summary

SETTLING = {"type": "closed", "concurrency": 2, "stable": 1.0, "window": "150ms", "duration": "60s", "ramp_up": 0}


def check(summary: Summary) -> Check:
    return next(one for one in summary.checks if one.name == "stability")


@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "load", [SETTLING, {"type": "poisson", "rate": 200, "stable": 2.0, "window": "150ms", "duration": "60s"}]
)
def test_each_stage_ends_soon_after_it_is_stable(
    tmp_path: Path, sim: str, processes: int, load: dict[str, Any]
) -> None:
    two = {"type": "stages", "stages": [load, load]}
    run, summary = measure(tmp_path, sim, server={"model": "sim"}, load=two, client={"processes": processes})
    assert check(summary).status == "pass", check(summary).message
    rows = run.records.rows
    assert int(rows["done"].max()) < 40e9, "each may take a minute"
    for stage in summary.stages:
        assert stage.window.span == pytest.approx(0.45)
        assert stage.counts.ok > 0
        assert stage.window.requests["cooldown"] > 0
    first, second = (rows[rows["stage"] == stage] for stage in (0, 1))
    ends = [int(first["intended"][first["shard"] == shard].max()) for shard in range(max(processes, 1))]
    begins = [int(second["intended"][second["shard"] == shard].min()) for shard in range(max(processes, 1))]
    assert all(end < begin for end, begin in zip(ends, begins, strict=True))
    settled = summary.stages[0].window.end * 1e9
    assert (np.array(begins) > settled).all()


@pytest.mark.slow
def test_stage_that_never_becomes_stable_runs_to_its_end_and_is_invalid(tmp_path: Path, sim: str) -> None:
    result = cli(
        "run", sim, "--concurrency", "1:2", "--prompt", "hi", "--output", "2", "-q",
        "--set", "load.stable=0.000000001", "--set", "load.window=50ms", "--set", "load.duration=1s",
        "--set", "client.processes=0", "--set", f"output={tmp_path}",
    )  # fmt: skip
    assert result.status == 1, result
    assert "stability" in result.out and "load.window" in result.out
    assert "concurrency 1" in result.out and "concurrency 2" in result.out
    assert cli("report", tmp_path / "LATEST").out == result.out
