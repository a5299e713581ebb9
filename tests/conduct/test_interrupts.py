"""Ctrl-C while a run is measured that is only a part of something larger."""

from pathlib import Path

import pytest
import synthetic_run as made

from inferometer import conduct
from inferometer.analysis.summary import Summary, summarise
from inferometer.campaign import StartUp
from inferometer.conduct import measuring
from inferometer.conduct.capacity import Options, find, with_objectives
from inferometer.conduct.engine_server import RunningServer
from inferometer.config import from_mapping
from inferometer.config.engines import campaign_from, variants
from inferometer.engines.launching import Launch
from inferometer.records import Outcome, Run
from inferometer.report.capacity_view import SearchView

URL = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def interrupted_runs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every run is interrupted; the list has what was measured."""
    configs: list[object] = []

    def measure(config: object, *_: object) -> tuple[Run, Summary]:
        configs.append(config)
        run = made.run(*made.closed_rows(), outcome=Outcome(interrupted=True))
        return run, summarise(run)

    monkeypatch.setattr(measuring, "measure", measure)
    monkeypatch.setattr(conduct, "measure", measure)
    return configs


def test_the_sample_and_the_warm_up_of_an_engine_end_the_comparison(tmp_path: Path) -> None:
    """What an interrupted run did not send must not count as an engine's empty output."""
    tree = {"model": "sim", "engines": [{"type": "command", "name": "one", "url": URL}]}
    campaign = campaign_from(tree, (), "test")
    spec = variants(campaign)[0]
    server = RunningServer(campaign, spec, Launch(command=(), url=URL), None, StartUp(is_cold=True))
    (tmp_path / "sample.jsonl").write_text('{"prompt": "hi", "output": 4}\n')
    with pytest.raises(KeyboardInterrupt):
        server.complete(tmp_path / "sample.jsonl", 1, 4, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        server.warm_up(1, 1, tmp_path)


def test_the_first_requests_of_a_search_end_it(tmp_path: Path, interrupted_runs: list[object]) -> None:
    config = with_objectives(from_mapping({"server": {"url": URL}, "output": str(tmp_path)}))
    with pytest.raises(KeyboardInterrupt):
        find(config, Options(), SearchView("rate", quiet=True))
    assert len(interrupted_runs) == 1
