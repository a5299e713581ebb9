"""The live Prometheus endpoint of whole runs: scraped while requests are sent, and compared with what was stored."""

import socket
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import assert_one_line, cli
from helpers import measure
from prometheus_client.parser import text_string_to_metric_families
from ray_nodes import ray_cluster

from inferometer import conduct
from inferometer.conduct import observers
from inferometer.config import from_mapping
from inferometer.errors import UserError
from inferometer.observe.observer import Observer
from inferometer.prepare.setup import Setup
from inferometer.records import Records, Snapshot
from inferometer.report.live import Outline

TEXT = {"type": "prompts", "prompts": ["hello"], "output": 4}
BROKEN = {"headers": {"x-sim-fault": "reject=503"}}
MIX = {"type": "mix", "classes": [{"name": "good", "data": TEXT}, {"name": "broken", "data": TEXT} | BROKEN]}
TWO_STAGES = {
    "stages": [
        {"type": "constant", "rate": 60, "duration": "700ms", "name": "calm"},
        {"type": "closed", "concurrency": 3, "requests": 60},
    ]
}

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Scraper(conduct.Show):
    """A view that scrapes the endpoint whenever it is told how the run goes, and once after the last request."""

    def __init__(self) -> None:
        self.url = ""
        self.pages: list[Values] = []

    def planned(self, outline: Outline) -> None:
        self.url = outline.metrics_url

    def progress(self, snapshot: Snapshot) -> None:
        self.pages.append(scrape(self.url))

    def over(self) -> None:
        if self.url:
            self.pages.append(scrape(self.url))


def scrape(url: str) -> Values:
    with urllib.request.urlopen(url, timeout=10) as response:
        text = response.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for metric in text_string_to_metric_families(text)
        for sample in metric.samples
    }


def total(page: Values, name: str, **labels: str) -> float:
    return sum(value for (own, found), value in page.items() if own == name and labels.items() <= dict(found).items())


def run_scraped(folder: Path, url: str, processes: int = 0, **sections: Any) -> tuple[Records, Scraper]:
    scraper = Scraper()
    tree = {
        "server": {"url": url, "model": "sim"},
        "data": MIX,
        "load": TWO_STAGES,
        "client": {"processes": processes, "probe": False},
        "export": {"metrics_port": 0},
        "output": str(folder),
    }
    run, _ = conduct.measure(from_mapping(tree | sections), scraper)
    assert not run.manifest.observer_errors
    return run.records, scraper


@pytest.mark.parametrize("processes", [pytest.param(0, marks=pytest.mark.slow), 2], ids=["thread", "processes"])
def test_counters_rise_to_what_is_stored(tmp_path: Path, sim: str, processes: int) -> None:
    check_counters(*run_scraped(tmp_path, sim, processes))


@pytest.mark.ray
@pytest.mark.slow
def test_counters_of_shards_on_ray_rise_to_what_is_stored(tmp_path: Path, sim: str) -> None:
    """The parent has a copy of their records, which is always a little older."""
    with ray_cluster(1):
        fleet = {"type": "ray", "shards": 2, "cpus": 0.5}
        check_counters(*run_scraped(tmp_path, sim, fleet=fleet, client={"probe": False}))


def check_counters(records: Records, scraper: Scraper) -> None:
    """The last page has the numbers of the stored requests, and no counter has ever fallen."""
    rows, last = records.rows, scraper.pages[-1]
    assert total(last, "inferometer_requests_sent_total") == len(rows)
    for stage, name in enumerate(("calm", "2 closed 3")):
        for number, class_ in enumerate(("good", "broken")):
            labels = {"stage": name, "class": class_}
            own = rows[(rows["stage"] == stage) & (rows["class"] == number)]
            good = own[own["failure"] == 0]
            assert total(last, "inferometer_requests_completed_total", **labels) == len(good)
            codes = Counter(records.failures[failure - 1].code for failure in own["failure"].tolist() if failure)
            for code, count in codes.items():
                assert total(last, "inferometer_failures_total", code=code, **labels) == count
            assert total(last, "inferometer_output_tokens_total", **labels) == good["n_out"].sum()
            assert total(last, "inferometer_e2e_seconds_count", **labels) == len(good)
            assert total(last, "inferometer_client_lag_seconds_count", **labels) == len(own)
    assert total(last, "inferometer_failures_total") > 0 < total(last, "inferometer_requests_completed_total")
    assert total(last, "inferometer_in_flight") == 0
    for before, after in zip(scraper.pages, scraper.pages[1:], strict=False):
        for key, value in before.items():
            assert not key[0].endswith(("_total", "_bucket", "_count", "_sum")) or after[key] >= value, key


def test_gauges_follow_the_stages(tmp_path: Path, sim: str) -> None:
    _, scraper = run_scraped(tmp_path, sim, 1)
    stages = [total(page, "inferometer_stage") for page in scraper.pages]
    assert stages == sorted(stages) and {0, 1} == set(stages)
    rates = {total(page, "inferometer_target_rate") for page in scraper.pages if total(page, "inferometer_stage") == 0}
    assert rates <= {0, 60} and 60 in rates
    assert ("inferometer_target_rate", ()) not in scraper.pages[-1], "the last stage is a closed loop"
    (info,) = [dict(labels) for name, labels in scraper.pages[0] if name == "inferometer_run_info"]
    assert (info["url"], info["model"], info["api"]) == (sim, "sim", "chat")


def test_the_endpoint_listens_on_the_host_of_the_config(tmp_path: Path, sim: str) -> None:
    _, scraper = run_scraped(
        tmp_path,
        sim,
        0,
        load={"type": "closed", "concurrency": 1, "requests": 3},
        export={"metrics_port": 0, "metrics_host": "127.0.0.2"},
    )
    assert scraper.url.startswith("http://127.0.0.2:")
    assert total(scraper.pages[-1], "inferometer_requests_completed_total") > 0


def test_nothing_listens_after_the_run(tmp_path: Path, sim: str) -> None:
    _, scraper = run_scraped(tmp_path, sim, 0, load={"type": "closed", "concurrency": 1, "requests": 3})
    port = int(scraper.url.removesuffix("/metrics").rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.fixture
def used_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_port_in_use_is_reported_before_anything_is_sent(tmp_path: Path, sim: str, used_port: int) -> None:
    result = cli(
        "run", sim, "--requests", "5", "--metrics-port", str(used_port), "--set", f"output={tmp_path / 'runs'}"
    )
    assert_one_line(result, f"--metrics-port: port {used_port} on 127.0.0.1 is in use", "another port, or 0 for a free")
    assert not list((tmp_path / "runs").glob("*"))


def test_port_is_free_again_when_another_observer_cannot_be_made(
    tmp_path: Path, sim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(setup: Setup) -> dict[str, Observer]:
        raise UserError("there is no such process", key="observe.processes")

    monkeypatch.setattr(observers, "OBSERVERS", (observers._live_metrics, refuse))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(UserError, match="no such process"):
        measure(tmp_path, sim, server={"model": "sim"}, export={"metrics_port": port})
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.slow
def test_endpoint_is_named_unless_the_run_is_quiet(tmp_path: Path, sim: str) -> None:
    arguments = ("run", sim, "--requests", "3", "--metrics-port", "0", "--set", f"output={tmp_path}", "--set")
    shown = cli(*arguments, "client.processes=0")
    assert "live metrics at http://127.0.0.1:" in shown.err
    assert cli(*arguments, "client.processes=0", "--quiet").err == ""


def test_url_is_shown_without_its_password(tmp_path: Path, sim: str) -> None:
    scraper = Scraper()
    url = sim.replace("//", "//user:hunter22@")
    measure(tmp_path, url, scraper, server={"model": "sim"}, export={"metrics_port": 0})
    assert not any("hunter22" in str(key) for key in scraper.pages[-1])
