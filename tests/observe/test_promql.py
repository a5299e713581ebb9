"""Reading a server's metrics from a Prometheus server: a scripted one, whose scrapes are a function of time."""

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pytest
from helpers import Client, measure, polite, scripted

from inferometer.config.observe import PromQL
from inferometer.errors import UserError
from inferometer.observe import promql
from inferometer.observe.prometheus_api import PrometheusApi
from inferometer.observe.promql import PromQLQuery
from inferometer.series import TimeSeries
from inferometer.timing.clock import now
from inferometer.units import NS

RUNNING = "vllm:num_requests_running"
DONE = "vllm:request_success_total"
Respond = Callable[[str, dict[str, str]], tuple[int, str]]
"""From the path and the form to the status and the body."""


class ScriptedPrometheus:
    """Scrapes `a:80` every `interval` seconds of its life: requests are counted at each scrape, and one is always running."""

    def __init__(self, interval: float = 0.1, ahead: float = 0.0, max_range: float = 1e9) -> None:
        self.interval, self.ahead, self.max_range = interval, ahead, max_range
        self.first = time.time() + ahead - 20.5 * interval
        self.warnings: list[str] = []

    def __call__(self, path: str, form: dict[str, str]) -> tuple[int, str]:
        expression = form["query"]
        if expression == "time()":
            at = time.time() + self.ahead
            return self._success("scalar", [at, f"{at:.3f}"])
        if path.endswith("query_range"):
            values = [[float(form["start"]), "1"], [float(form["start"]) + float(form["step"]), "NaN"]]
            return self._success("matrix", [{"metric": {"__name__": "x", "a": "b"}, "values": values}])
        if expression.startswith("count("):
            return self._success("vector", [])
        seconds = re.search(r"\[(\d+)s\]$", expression)
        assert seconds and 'job="servers"' in expression
        if int(seconds[1]) > self.max_range:
            error = {
                "status": "error",
                "errorType": "execution",
                "error": "query processing would load too many samples",
            }
            return 422, json.dumps(error)
        until = min(float(form["time"]), time.time() + self.ahead)
        return self._success("matrix", list(self._series(float(form["time"]) - int(seconds[1]), until)))

    def _success(self, kind: str, result: Any) -> tuple[int, str]:
        body = {"status": "success", "data": {"resultType": kind, "result": result}, "warnings": self.warnings}
        return 200, json.dumps(body)

    def _series(self, since: float, until: float) -> Iterator[dict[str, Any]]:
        first, last = (math.floor((at - self.first) / self.interval) for at in (since, until))
        scrapes = [
            (number, round(self.first + number * self.interval, 3)) for number in range(max(first + 1, 0), last + 1)
        ]
        if not scrapes:
            return
        for name, value in {"up": lambda _: 1, RUNNING: lambda _: 1, DONE: lambda number: number}.items():
            metric = {"__name__": name, "instance": "a:80", "job": "servers"}
            yield {"metric": metric, "values": [[at, str(value(number))] for number, at in scrapes]}
        for name in ("up", "process_start_time_seconds"):
            metric = {"__name__": name, "instance": "exporter:81", "job": "servers"}
            yield {"metric": metric, "values": [[at, "1"] for _, at in scrapes]}


@contextmanager
def prometheus(respond: Respond, seen: list[dict[str, str]] | None = None) -> Iterator[str]:
    """Yield the base URL of a server that responds to queries."""

    def script(client: Client) -> None:
        while request := client.request():
            first, headers, body = request
            if seen is not None:
                seen.append(headers | {":path": first.split()[1]})
            form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
            status, text = respond(first.split()[1], form)
            client.send(f"HTTP/1.1 {status} X\r\nContent-Length: {len(text.encode())}\r\n\r\n{text}".encode())

    with scripted(script) as url:
        yield url


def observer(url: str, token: str = "", **settings: Any) -> PromQLQuery:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    api = PrometheusApi(url, headers, (token,) if token else ())
    return PromQLQuery(api, PromQL(url=url, match='job="servers"', **settings), "vllm:.+", 1.0)


def observed(watch: PromQLQuery, seconds: float = 0.32) -> tuple[list[TimeSeries], int, int]:
    """Let it observe a run; return the series, and when the run began and ended."""
    watch.start()
    begin = now()
    time.sleep(seconds)
    end = now()
    return list(watch.end()), begin, end


def named(series: list[TimeSeries], name: str) -> TimeSeries:
    (found,) = [each for each in series if each.name == name]
    return found


def test_samples_are_stored_as_if_they_had_been_scraped() -> None:
    with prometheus(ScriptedPrometheus()) as url:
        watch = observer(url)
        watch.check()
        before = now()
        series, begin, end = observed(watch)
    scrapes, running, done = (named(series, name) for name in ("up", RUNNING, DONE))
    assert {each.source for each in series} == {"prometheus"}
    assert done.labels == {"instance": "a:80", "job": "servers", "target": "a:80"}
    assert scrapes.labels == {"target": "a:80"}
    assert scrapes.at.tolist() == done.at.tolist()
    assert len(running.at) == 1, "only changes are stored"
    assert (np.diff(done.value) == 1).all()
    assert before < done.at[0] <= begin < done.at[1], "from the last scrape before the run, which was waited for"
    assert end < done.at[-1], "to one after it"
    assert watch.problems() == {}


def test_samples_read_during_the_run_are_stored_once() -> None:
    with prometheus(ScriptedPrometheus()) as url:
        watch = observer(url)
        watch.start()
        for _ in range(3):
            time.sleep(0.15)
            watch.sample()
        done = named(list(watch.end()), DONE)
    assert (np.diff(done.value) == 1).all()
    assert len(done.at) >= 5


def test_exporters_without_known_metrics_are_left_out() -> None:
    with prometheus(ScriptedPrometheus()) as url:
        series, _, _ = observed(observer(url))
    assert {each.labels["target"] for each in series} == {"a:80"}


@pytest.mark.parametrize("ahead", [100, -100])
def test_times_are_corrected_for_the_difference_between_the_clocks(ahead: float) -> None:
    with prometheus(ScriptedPrometheus(ahead=ahead)) as url:
        watch = observer(url)
        series, begin, end = observed(watch)
    done = named(series, DONE)
    # To within the round trip in which the clock was read, which is long on a busy machine.
    assert begin - 30 * NS < done.at[0] < done.at[-1] < end + 30 * NS
    side = "ahead of" if ahead > 0 else "behind"
    assert re.search(
        rf"^the clock of {url} is 1m40s {side} ours; times are corrected to within", watch.problems()["promql clock"]
    )


def test_a_scrape_that_is_not_due_soon_is_not_waited_for() -> None:
    with prometheus(ScriptedPrometheus(interval=40)) as url:
        watch = observer(url)
        watch.start()
        watch._begin -= 25_000_000_000  # the run began 5 s before the last scrape
        series = list(watch.end())
    assert len(named(series, DONE).at) == 2
    assert watch.problems() == {"promql a:80": "the last scrape was 20 s before the end of the run"}


def test_a_result_with_too_many_samples_is_read_in_pieces() -> None:
    with prometheus(ScriptedPrometheus(max_range=40)) as url:
        watch = observer(url)
        series, begin, end = observed(watch)
    done = named(series, DONE)
    assert (np.diff(done.value) == 1).all()
    assert done.at[0] <= begin and done.at[-1] >= end
    assert watch.problems() == {}


def test_a_server_that_matches_only_exact_names_is_read_name_by_name() -> None:
    """Google's managed service rejects a regular expression for names with status 400."""
    server = ScriptedPrometheus()

    def respond(path: str, form: dict[str, str]) -> tuple[int, str]:
        if path.endswith("/label/__name__/values"):
            return 200, json.dumps({"status": "success", "data": ["go_threads", "up", "vllm:request_success_total"]})
        if "=~" in form["query"]:
            return 400, json.dumps(
                {"status": "error", "errorType": "bad_data", "error": "=~ is an unsupported matchtype"}
            )
        if name := re.search(r'__name__="(.+)"', form["query"]):
            found = json.loads(server(path, form)[1])
            matrix = found["data"]["result"]
            found["data"]["result"] = [one for one in matrix if one["metric"]["__name__"] == name[1]]
            return 200, json.dumps(found)
        return server(path, form)

    with prometheus(respond) as url:
        watch = observer(url)
        watch.check()
        series, begin, end = observed(watch)
    assert {each.name for each in series} == {"up", DONE}
    assert named(series, DONE).at[0] <= begin < end < named(series, DONE).at[-1]
    assert watch.problems() == {}


def test_expressions_become_series() -> None:
    with prometheus(ScriptedPrometheus()) as url:
        watch = observer(url, queries={"load": "sum(x)"})
        series, begin, _ = observed(watch)
    (load,) = [each for each in series if each.source == "promql"]
    assert (load.name, load.labels) == ("load", {"a": "b"})
    assert load.value.tolist() == [1.0], "without the value that is not a number"
    assert abs(load.at[0] - begin) < 100_000_000


def test_warnings_are_reported() -> None:
    server = ScriptedPrometheus()
    server.warnings = ["a store did not respond"]
    with prometheus(server) as url:
        watch = observer(url)
        observed(watch)
    assert watch.problems() == {"promql warning": f"{url}: a store did not respond"}


def test_a_server_without_such_metrics_is_a_problem() -> None:
    server = ScriptedPrometheus()
    server.first = time.time() + 1000
    with prometheus(server) as url:
        watch = observer(url)
        series, _, _ = observed(watch, 0)
    assert series == []
    expected = f'{url} has no metrics of a known model server that match job="servers" from the time of the run'
    assert watch.problems() == {"promql": expected}


def test_a_prefix_belongs_to_the_url() -> None:
    seen: list[dict[str, str]] = []
    with prometheus(ScriptedPrometheus(), seen) as url:
        for suffix in ("/v1/projects/p/prometheus/", "/prom/v1", "/prom/api/v1"):
            observer(url + suffix).check()
    paths = [request[":path"] for request in seen]
    assert paths == ["/v1/projects/p/prometheus/api/v1/query", "/prom/v1/api/v1/query", "/prom/api/v1/query"]


PROMETHEUS_ERROR = '{"status": "error", "errorType": "bad_data", "error": "1:9: parse error: unexpected end"}'


@pytest.mark.parametrize(
    ("status", "body", "key", "what"),
    [
        (400, PROMETHEUS_ERROR, "observe.promql.match", "HTTP 400: bad_data: 1:9: parse error: unexpected end"),
        (401, "no: s3cr3t-token", "observe.promql", "HTTP 401: no: (removed)"),
        (403, "", "observe.promql", "HTTP 403: an empty body instead of a result"),
        (404, "<html>", "observe.promql", "HTTP 404: a web page instead of a result"),
        (200, "<!doctype html>", "observe.promql", "HTTP 200: a web page instead of a result"),
        (302, "", "observe.promql", "HTTP 302: it redirects to nowhere"),
    ],
)
def test_a_wrong_setting_is_an_error_before_the_run(status: int, body: str, key: str, what: str) -> None:
    seen: list[dict[str, str]] = []
    with prometheus(lambda *_: (status, body), seen) as url, pytest.raises(UserError) as caught:
        observer(url, token="s3cr3t-token").check()
    assert (caught.value.key, caught.value.what) == (key, f"{url}: {what}")
    assert seen[0]["authorization"] == "Bearer s3cr3t-token"


def test_a_wrong_expression_is_an_error_before_the_run() -> None:
    def respond(_: str, form: dict[str, str]) -> tuple[int, str]:
        return (400, PROMETHEUS_ERROR) if form["query"] == "sum(" else (200, '{"status": "success", "data": {}}')

    with prometheus(respond) as url, pytest.raises(UserError) as caught:
        observer(url, queries={"good": "sum(a)", "load": "sum("}).check()
    assert caught.value.key == "observe.promql.queries.load"


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (503, "Service Unavailable", "HTTP 503: Service Unavailable"),
        (
            200,
            '{"status": "error", "errorType": "timeout", "error": "query timed out"}',
            "HTTP 200: timeout: query timed out",
        ),
        (
            200,
            '{"status": "success", "data": {"resultType": "vector", "result": []}}',
            "the result is not what was queried",
        ),
    ],
)
def test_a_server_in_trouble_is_a_problem_of_the_report(status: int, body: str, reason: str) -> None:
    with prometheus(lambda *_: (status, body)) as url:
        watch = observer(url, queries={"load": "sum(a)"})
        watch.check()
        series, _, _ = observed(watch, 0)
    assert series == []
    assert watch.problems()["promql"].startswith("no metrics could be read: ") and reason in watch.problems()["promql"]
    assert watch.problems()["promql load"] == "not evaluated: the Prometheus server did not respond"


def test_a_server_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promql, "_END_BUDGET", 1.2)
    with scripted(lambda client: time.sleep(5)) as url:
        watch = observer(url)
        observed(watch, 0)
    assert "no metrics could be read: " in watch.problems()["promql"]
    assert "timed out after" in watch.problems()["promql"]


def test_a_run_is_fine_when_prometheus_is_down(tmp_path: Path) -> None:
    with prometheus(ScriptedPrometheus()) as down:
        pass
    with scripted(polite) as server:
        run, summary = measure(tmp_path, server, observe={"promql": {"url": down}})
    assert summary.counts.ok == 6
    assert run.manifest.observer_errors["promql"] == f"no metrics could be read: {down}: connection refused"


@pytest.mark.parametrize(
    ("setting", "value", "what"),
    [
        ("token_env", "NOT_SET_FOR_THIS_TEST", "the variable NOT_SET_FOR_THIS_TEST is not set"),
        ("token_file", "empty", "the token is empty"),
        ("token_file", "missing", "missing: No such file or directory"),
        ("url", "localhost:9090", "'localhost:9090' does not start with a known scheme"),
        ("url", "grpc://localhost:9090", "grpc://localhost:9090: Prometheus does not speak gRPC"),
    ],
)
def test_settings_that_cannot_work_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, value: str, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").write_text(" \n", encoding="utf-8")
    with scripted(polite) as server, pytest.raises(UserError) as caught:
        measure(tmp_path / "runs", server, observe={"promql": {"url": "http://127.0.0.1:1", setting: value}})
    assert (caught.value.key, caught.value.what) == (f"observe.promql.{setting}", what)
    assert list((tmp_path / "runs").glob("*")) == []
