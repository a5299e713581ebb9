"""Observers in whole runs: series from the client and the server, and no run that an observer can break."""

import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from command import cli, start
from helpers import Client, http_response, measure, polite, scripted
from waiting import until

from inferometer import store
from inferometer.conduct import observers
from inferometer.observe import observer, scrape
from inferometer.observe.observer import Observer
from inferometer.report import console
from inferometer.series import TimeSeries
from inferometer.serve.background import running, serving
from inferometer.serve.settings import Settings, simulator
from inferometer.serve.sim.settings import Fixed
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

    def end(self) -> Sequence[TimeSeries]:
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


@pytest.mark.slow
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


def test_the_metrics_of_the_measured_server_are_scraped_by_default(
    tmp_path: Path, sim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIM_KEY", "sk-very-secret")
    server = {"model": "sim", "api_key_env": "SIM_KEY"}
    observe = {"prometheus": "auto", "interval": "100ms"}
    run, _ = measure(tmp_path, sim, server=server, load=TWO_STAGES, observe=observe)
    scraped = [each for each in run.series() if each.source == "prometheus"]
    assert {each.labels["target"] for each in scraped} == {f"{sim}/metrics"}
    named = by_name(tuple(scraped), "prometheus")
    up, requests = named["up"], named["vllm:e2e_request_latency_seconds_count"]
    assert up.at[0] < 0 < up.at[-1] and up.value.min() == 1 and len(up.at) > 8
    assert requests.value[-1] - requests.value[0] == len(run.records.rows)
    buckets = named["vllm:e2e_request_latency_seconds_bucket"]
    assert len(buckets.at) <= 4 < len(requests.at), (
        "buckets are stored at the start, at the second stage and at the end"
    )
    assert run.manifest.observer_errors == {} and run.manifest.observer_cpu[f"{sim}/metrics"] > 0
    assert not any(b"sk-very-secret" in path.read_bytes() for path in run.folder.rglob("*") if path.is_file())


def test_replicas_are_scraped_each_for_itself(tmp_path: Path, sim: str) -> None:
    with running(simulator(timing=Fixed(ttft=0.001, itl=0.001))) as other:
        run, _ = measure(tmp_path, [sim, other], server={"model": "sim"}, observe={"prometheus": "auto"})
    ups = {each.labels["target"] for each in run.series() if each.name == "up"}
    assert ups == {f"{sim}/metrics", f"{other}/metrics"}


@pytest.mark.slow
def test_targets_that_fail_cost_a_line_and_not_the_run(
    tmp_path: Path, sim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape.fetch, "__defaults__", (0.3,))
    monkeypatch.setenv("SIM_KEY", "sk-very-secret")
    seen: list[str] = []

    def mortal(client: Client) -> None:
        """Respond to a few scrapes only."""
        request = client.request()
        seen.append(str(request))
        client.send(http_response(b"x 1") if client.number < 3 else b"")

    def slow(client: Client) -> None:
        client.request()
        client.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        client.request()

    def html(client: Client) -> None:
        client.request()
        client.send(http_response(b"<html>Hello"))

    with scripted(mortal) as dies, scripted(slow) as hangs, scripted(html) as page:
        observe = {"prometheus": [dies, hangs, f"{page}/x", "http://127.0.0.1:1/metrics"], "interval": "100ms"}
        run, summary = measure(
            tmp_path, sim, server={"model": "sim", "api_key_env": "SIM_KEY"}, load=TWO_STAGES, observe=observe
        )
    errors = dict(run.manifest.observer_errors)
    died = errors.pop(f"{dies}/metrics")
    assert "scrapes failed: the server closed the connection without sending a response" in died
    assert errors == {
        f"{hangs}/metrics": "timed out after 300 ms",
        f"{page}/x": "the page does not have metrics: it starts with '<html>Hello'",
        "http://127.0.0.1:1/metrics": "connection refused",
    }
    assert summary.counts.ok == len(run.records.rows) > 0
    assert f"{dies}/metrics: {died}" in " ".join(console.render(run, summary).split())
    assert not any("sk-very-secret" in request for request in seen)


def test_a_url_to_observe_that_is_not_one_is_an_error(tmp_path: Path, sim: str) -> None:
    result = cli("run", sim, "--requests", "1", "--prompt", "x", "--observe", "9100", "--set", f"output={tmp_path}")
    assert result.status == 2
    assert "--observe: " in result.err and "http://HOST:PORT/metrics" in result.err
    assert not list(tmp_path.iterdir())


def test_an_endpoint_of_another_program_is_named_with_what_to_do(tmp_path: Path, sim: str) -> None:
    def other(client: Client) -> None:
        if client.request():
            client.send(http_response(b"another_program_requests_total 1\n"))

    with scripted(other) as url:
        run, summary = measure(tmp_path, sim, server={"model": "sim"}, observe={"prometheus": [url]})
    text = " ".join(console.render(run, summary).split())
    assert f"none of the metrics of {url}/metrics is one that inferometer knows" in text
    assert "next: check" in text and "--observe" in text


@pytest.mark.parametrize("padding", [0, 30], ids=["whole", "truncated"])
def test_a_token_in_a_query_is_not_stored_although_the_page_echoes_it(tmp_path: Path, sim: str, padding: int) -> None:
    def echo(client: Client) -> None:
        if request := client.request():
            client.send(http_response(b"<html>" + b"x" * padding + request[0].encode()))

    with scripted(echo) as url:
        observe = {"prometheus": [f"{url}/m?token=s3cr3t%2Ftoken-of-many-characters-that-goes-on"]}
        run, summary = measure(tmp_path, sim, server={"model": "sim"}, observe=observe)
    assert "it starts with" in run.manifest.observer_errors[f"{url}/m"]
    assert "s3cr3t" not in console.render(run, summary)
    assert not any(b"s3cr3t" in path.read_bytes() for path in run.folder.rglob("*") if path.is_file())


def test_replicas_without_metrics_are_named_if_others_have_some(tmp_path: Path, sim: str) -> None:
    with scripted(polite) as other:
        run, summary = measure(tmp_path, [sim, other], server={"model": "sim"}, observe={})
    assert {each.labels["target"] for each in run.series() if each.name == "up"} == {f"{sim}/metrics"}
    why = run.manifest.observer_errors["prometheus"]
    assert other in why and sim not in why
    assert why in " ".join(console.render(run, summary).split())


def test_a_server_without_metrics_costs_no_line(tmp_path: Path) -> None:
    with scripted(polite) as url:
        run, _ = measure(tmp_path, url, server={"model": "sim"}, observe={})
    assert "prometheus" not in {each.source for each in run.series()} and run.manifest.observer_errors == {}


def test_a_named_endpoint_that_cannot_be_read_is_a_line_at_the_start(tmp_path: Path, sim: str) -> None:
    dead = ("--observe", "http://127.0.0.1:1", "--set", f"output={tmp_path}")
    result = cli("run", sim, "--requests", "2", "--prompt", "x", *dead)
    assert result.err.count("http://127.0.0.1:1/metrics: connection refused; its metrics will be missing\n") == 1


def test_metrics_that_were_not_asked_for_cost_no_line_at_the_start(tmp_path: Path) -> None:
    """A server that requires a key for its metrics."""

    def guarded(client: Client) -> None:
        while request := client.request():
            denied = b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n"
            client.send(denied if "/metrics" in request[0] else http_response())

    with scripted(guarded) as url:
        options = ("--model", "m", "--requests", "2", "--prompt", "x", "--set", f"output={tmp_path}")
        result = cli("run", url, "--concurrency", "1", *options)
    assert "will be missing" not in result.err
    assert f"{url}/metrics: HTTP status 401" in " ".join(result.out.split())
