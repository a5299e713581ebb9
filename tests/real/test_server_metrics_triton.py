"""Triton's own metrics, which are on a port of their own, beside ours: `--observe URL`."""

from pathlib import Path

import pytest
from command import cli
from triton_server import Triton

from inferometer import conduct
from inferometer.analysis.server_view import ServerView

pytestmark = pytest.mark.triton
pytest_plugins = ["triton_server"]

USERS, REQUESTS, DELAY_MS = 8, 40, 20


@pytest.fixture(scope="module")
def queued(triton: Triton, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The report of a run against a model that serves one request at a time, and the run's folder."""
    folder = tmp_path_factory.mktemp("queued")
    (folder / "data.json").write_text(f'{{"data": [{{"DELAY_MS": [{DELAY_MS}]}}]}}')
    result = cli(
        "run", triton.http, "--model", "slow", "--observe", triton.metrics, "--quiet",
        "--concurrency", str(USERS), "--requests", str(REQUESTS), "--set", "load.ramp_up=0",
        "--set", "server.api=kserve", "--set", "data.type=tensors", "--set", f"data.fill='@{folder / 'data.json'}'",
        "--set", "observe.interval=50ms", "--set", f"output={folder}",
    )  # fmt: skip
    assert result.status in (0, 1), result  # on a shared machine it may be INVALID
    return result.out, folder / "LATEST"


def test_the_report_has_pending_requests(queued: tuple[str, Path]) -> None:
    text, folder = queued
    view = _view(folder)
    assert 0 < view.figures.gauges["waiting"].mean <= view.figures.gauges["waiting"].max <= USERS
    assert list(view.figures.servers.values()) == ["triton"]
    assert "waiting" in text
    assert any("queued" in note for note in view.notes), view.notes


def test_the_server_counts_what_the_client_counts(queued: tuple[str, Path]) -> None:
    """Of this model: the other models of the server are left out."""
    view = _view(queued[1])
    counters = view.figures.counters
    assert counters["requests"].delta == counters["inferences"].delta == counters["executions"].delta == REQUESTS
    assert view.comparison["requests"].client == view.comparison["requests"].server == REQUESTS
    assert counters["failures"].delta == 0


def test_queue_and_compute_seconds(queued: tuple[str, Path]) -> None:
    run, _ = conduct.open_run(queued[1])
    counters = _view(queued[1]).figures.counters
    rows = run.records.rows
    waited = float((rows["done"] - rows["sent"]).sum()) / 1e9
    compute, queue = counters["compute_seconds"].delta, counters["queue_seconds"].delta
    assert REQUESTS * DELAY_MS / 1e3 <= compute < waited
    assert compute < queue < waited, "with 8 users and one instance, a request waits longer than it computes"
    assert compute + queue <= waited + 2 * REQUESTS * 1e-6, "Triton rounds each of its times to microseconds"


def test_a_machine_without_gpus_has_no_gpu_figures(queued: tuple[str, Path]) -> None:
    figures = _view(queued[1]).figures
    gpu = {name for name in (*figures.gauges, *figures.counters) if name.startswith("gpu_")}
    assert not gpu or Path("/dev/nvidia0").exists()


def _view(folder: Path) -> ServerView:
    _, summary = conduct.open_run(folder)
    assert summary.server is not None
    return summary.server
