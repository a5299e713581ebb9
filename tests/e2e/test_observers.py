"""Observers in whole runs: series from the client and the server, and no run that an observer can break."""

import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from command import cli, start
from helpers import measure
from waiting import until

from inferometer import store
from inferometer.conduct import observers
from inferometer.observe import observer
from inferometer.observe.observer import Observer
from inferometer.report import console
from inferometer.series import SeriesRow, TimeSeries
from inferometer.serve.background import serving
from inferometer.serve.settings import Settings
from inferometer.store.spool import Control

TWO_STAGES = {"stages": [{"type": "closed", "concurrency": 1, "duration": "600ms"} for _ in range(2)]}


def by_name(series: tuple[TimeSeries, ...], source: str) -> dict[str, TimeSeries]:
    return {each.name: each for each in series if each.source == source}


def test_a_run_has_series_of_the_client_and_of_the_server(tmp_path: Path) -> None:
    with serving(Settings(models=("identity",), http=0)) as server:
        run, _ = measure(
            tmp_path,
            server.url,
            server={"api": "kserve", "model": "identity"},
            data={"type": "tensors"},
            load=TWO_STAGES,
        )
    health, statistics = (by_name(run.series(), source) for source in ("client", "kserve"))
    assert {"cpu", "rss", "in_flight"} <= set(health)
    assert health["cpu"].labels == {"shard": "0"} and health["cpu"].at.min() > 0
    counted = statistics["inference_count"]
    assert counted.labels == {"model": "identity", "version": "1", "url": server.url}
    assert counted.value[-1] - counted.value[0] == len(run.records.rows)
    assert counted.at[0] < 0 < counted.at[1] < counted.at[-1], "before the start, between the stages, and at the end"
    assert sum(stage.inferences for stage in run.manifest.statistics if stage) == len(run.records.rows)


class Broken(Observer):
    def __init__(self, method: str) -> None:
        self._method = method

    def start(self) -> None:
        self._fail("start")

    def mark(self, stage: int) -> None:
        self._fail("mark")

    def end(self) -> Sequence[SeriesRow]:
        self._fail("end")
        return ()

    def _fail(self, method: str) -> None:
        if method == self._method:
            raise RuntimeError(f"out of order in {method}")


class Hanging(Broken):
    def _fail(self, method: str) -> None:
        if method == self._method:
            threading.Event().wait()


def test_observers_that_fail_or_hang_cost_a_line_and_not_the_run(
    tmp_path: Path, sim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer.Observers.end, "__defaults__", (0.05,))
    made = {"broken": Broken("start"), "hanging": Hanging("end")}
    monkeypatch.setattr(observers, "OBSERVERS", (lambda _: made, lambda _: {}))
    load = {"type": "closed", "concurrency": 1, "requests": 5}
    run, summary = measure(tmp_path, sim, server={"model": "sim"}, load=load)
    assert summary.counts.ok == 5
    errors = {"broken": "RuntimeError: out of order in start", "hanging": "did not end within 0.05 s"}
    assert run.manifest.observer_errors == errors
    assert {each.source for each in run.series()} == {"client"}
    assert "observer broken: RuntimeError: out of order in start" in console.render(run, summary)


def test_a_killed_run_has_the_clients_series(tmp_path: Path, sim: str) -> None:
    arguments = ("--concurrency", "4", "--duration", "30s", "--prompt", "hello", "--output", "4")
    process = start("run", sim, *arguments, "--set", f"output={tmp_path}", cwd=tmp_path)
    until(lambda: any(path.stat().st_size for path in tmp_path.glob("*/spool/0.samples")), "there is a sample")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (folder,) = tmp_path.glob("2*")
    until(lambda: bool(Control(folder / "spool" / "0.control", create=False)["ended"]), "the shard has noticed")
    assert cli("report", folder).status == 1
    assert "cpu" in by_name(store.read(folder).series(), "client")
