"""A real Prometheus server: it scrapes the simulator and a run in progress, and our client reads the metrics back from it."""

import contextlib
import re
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from helpers import Client, measure, scripted
from prometheus_server import Prometheus, free_port, prometheus, wait_for_scrapes

from inferometer.errors import UserError
from inferometer.records import Run
from inferometer.report import console
from inferometer.serve.background import running, serving
from inferometer.serve.settings import Settings, simulator
from inferometer.serve.sim.settings import Batch
from inferometer.server_metrics.figures import Figures, figures

pytestmark = pytest.mark.prometheus

TOKEN = "s3cr3t-token-of-this-test"
LOAD = {"type": "closed", "concurrency": 4, "duration": "2500ms", "ramp_up": 0}


class Scraped(NamedTuple):
    """What the Prometheus server scrapes, and nothing else listens at `live` and `dead`."""

    prometheus: Prometheus
    sim: str
    live: int
    """Port for the endpoint of a run."""
    dead: int

    @property
    def instance(self) -> str:
        return self.sim.removeprefix("http://")

    @property
    def promql(self) -> dict[str, Any]:
        return {"url": self.prometheus.url, "match": f'instance="{self.instance}"'}


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    live, dead = free_port(), free_port()
    with running(simulator(timing=Batch())) as sim:
        targets = [sim, *(f"http://127.0.0.1:{port}" for port in (live, dead))]
        with prometheus(tmp_path_factory.mktemp("prometheus"), targets) as started:
            wait_for_scrapes(started, 2)
            yield Scraped(started, sim, live, dead)


def run_beside(folder: Path, sim: str, promql: dict[str, Any], prometheus: Any = "auto", **sections: Any) -> Run:
    observe = {"prometheus": prometheus, "promql": promql, "interval": "250ms"}
    run, summary = measure(folder, sim, server={"model": "sim"}, observe=observe, **{"load": LOAD} | sections)
    assert summary.counts.ok == len(run.records.rows) > 0
    return run


def figures_of(run: Run, target: str) -> Figures:
    """The figures of the whole run, from the samples of one target."""
    series = [each for each in run.series() if each.source == "prometheus" and each.labels["target"] == target]
    return figures(series, 0, max(int(each.at[-1]) for each in series), "sim")


def test_direct_scrapes_and_prometheus_agree(tmp_path: Path, scraped: Scraped) -> None:
    queries = {"tokens per second": "rate(vllm:generation_tokens_total[3s])"}
    run = run_beside(tmp_path, scraped.sim, scraped.promql | {"queries": queries}, [scraped.sim])
    direct, read_back = figures_of(run, f"{scraped.sim}/metrics"), figures_of(run, scraped.instance)
    rows = run.records.rows
    assert read_back.counters == direct.counters and read_back.counters["requests"].delta == len(rows)
    assert read_back.counters["output_tokens"].delta == rows["n_out"].sum()
    assert read_back.histograms == direct.histograms and read_back.histograms["ttft"].count == len(rows)
    assert read_back.gauges.keys() == direct.gauges.keys()
    assert 0 < read_back.gauges["running"].max <= 4
    assert read_back.missing == direct.missing
    (rate,) = [each for each in run.series() if each.source == "promql"]
    assert rate.name == "tokens per second" and rate.labels["job"] == "servers" and rate.value.max() > 0
    assert not [name for name in run.manifest.observer_errors if name.startswith("promql")]


def test_the_measured_server_is_not_scraped_twice(tmp_path: Path, scraped: Scraped) -> None:
    run = run_beside(tmp_path, scraped.sim, {"url": scraped.prometheus.url}, load=LOAD | {"duration": "300ms"})
    targets = {each.labels["target"] for each in run.series() if each.source == "prometheus"}
    assert targets == {scraped.instance}, "without a selector: all model servers, and nothing else"
    counted = figures_of(run, *targets).counters
    assert counted["requests"].delta == len(run.records.rows), "one scrape before the run, and one after it"


def test_prometheus_scrapes_a_run_in_progress(tmp_path: Path, scraped: Scraped) -> None:
    stages = [
        {"type": "closed", "name": "first", "concurrency": 2, "requests": 40},
        {"type": "closed", "name": "second", "concurrency": 1, "duration": "2500ms"},
    ]
    sections: dict[str, Any] = {"load": {"stages": stages}, "export": {"metrics_port": scraped.live}}
    run, _ = measure(tmp_path, scraped.sim, server={"model": "sim"}, **sections)

    def scraped_value(name: str, stage: str) -> float:
        return scraped.prometheus.value(f'max_over_time(inferometer_{name}{{stage="{stage}"}}[10s])') or 0

    assert scraped_value("requests_completed_total", "first") == scraped_value("e2e_seconds_count", "first") == 40
    assert 0 < scraped_value("requests_completed_total", "second") <= len(run.records.rows) - 40


# --- promtool --------------------------------------------------------------------------------------------------------


def check_metrics(page: bytes) -> tuple[int, list[str]]:
    """Return promtool's exit status (1: not valid, 3: remarks) and its remarks."""
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
    return done.returncode, done.stderr.decode().splitlines()


def page_of(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as reply:
        return bytes(reply.read())


NAMES_OF_OTHERS = re.compile(
    r"vllm:\S+ metric names should not contain ':'"
    r'|nv_\S+ (counter metrics should have "_total" suffix'
    r"|metric names should not contain abbreviated units"
    r'|non-histogram and non-summary metrics should not have "_count" suffix)'
)
"""Remarks on the names that vLLM and Triton have given their metrics, which our servers share so that the same dashboards fit."""


def test_promtool_accepts_the_pages_of_our_servers(scraped: Scraped) -> None:
    with serving(Settings(models=("identity",), http=0)) as kserve:
        pages = [page_of(f"{url}/metrics") for url in (scraped.sim, kserve.url)]
    for page in pages:
        status, remarks = check_metrics(page)
        assert status in (0, 3), remarks
        assert [remark for remark in remarks if not NAMES_OF_OTHERS.fullmatch(remark)] == []


def test_promtool_accepts_the_page_of_a_run(tmp_path: Path, scraped: Scraped) -> None:
    port = free_port()
    pages = [b""]

    def read() -> None:
        while b"inferometer_requests_completed_total{" not in pages[-1]:
            with contextlib.suppress(OSError):
                pages.append(page_of(f"http://127.0.0.1:{port}/metrics"))
            time.sleep(0.05)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    sections: dict[str, Any] = {"load": LOAD, "export": {"metrics_port": port}}
    measure(tmp_path, scraped.sim, server={"model": "sim"}, **sections)
    reader.join(10)
    assert check_metrics(pages[-1]) == (0, []), pages[-1].decode()


# --- tokens, and a Prometheus that is not there ----------------------------------------------------------------------


@contextlib.contextmanager
def requiring_token(server: Prometheus) -> Iterator[str]:
    """Run a reverse proxy that passes only requests with the token; yield its URL."""

    def script(client: Client) -> None:
        while request := client.request():
            first, headers, body = request
            if headers.get("authorization") != f"Bearer {TOKEN}":
                client.send(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 12\r\n\r\nno such user")
                continue
            content = {"Content-Type": headers["content-type"]}
            passed_on = urllib.request.Request(server.url + first.split()[1], body, content)
            with urllib.request.urlopen(passed_on, timeout=10) as reply:
                text = reply.read()
            client.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text)

    with scripted(script) as url:
        yield url


def test_a_token_opens_the_way(tmp_path: Path, scraped: Scraped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_TOKEN", TOKEN)
    with requiring_token(scraped.prometheus) as url:
        promql = scraped.promql | {"url": url}
        with pytest.raises(UserError, match="HTTP 401: no such user") as caught:
            run_beside(tmp_path / "without", scraped.sim, promql)
        run = run_beside(tmp_path / "with", scraped.sim, promql | {"token_env": "PROMETHEUS_TOKEN"})
    assert "observe.promql.token_env" in str(caught.value)
    assert figures_of(run, scraped.instance).counters["requests"].delta == len(run.records.rows)
    stored = [path for path in (tmp_path / "with").rglob("*") if path.is_file()]
    assert stored and not any(TOKEN.encode() in path.read_bytes() for path in stored)


def test_a_prometheus_that_ends_midway_costs_a_line(tmp_path: Path, scraped: Scraped) -> None:
    with prometheus(tmp_path, [scraped.sim]) as started:
        threading.Timer(0.5, started.end).start()
        observe = {"prometheus": [], "promql": {"url": started.url}}
        run, summary = measure(tmp_path / "runs", scraped.sim, server={"model": "sim"}, load=LOAD, observe=observe)
    assert summary.counts.ok == len(run.records.rows) > 0
    assert run.manifest.observer_errors["promql"] == f"no metrics could be read: {started.url}: connection refused"
    assert f"promql: no metrics could be read: {started.url}" in " ".join(console.render(run, summary).split())


def test_a_server_that_prometheus_cannot_scrape_is_named(tmp_path: Path, scraped: Scraped) -> None:
    promql = scraped.promql | {"match": f'instance="127.0.0.1:{scraped.dead}"'}
    run = run_beside(tmp_path, scraped.sim, promql)
    expected = f"{scraped.prometheus.url} could not scrape 127.0.0.1:{scraped.dead}"
    assert run.manifest.observer_errors["promql"] == expected
