"""Reports of the server's metrics, from a fake Prometheus server; tests/real has the same with a real one."""

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest
import synthetic_run as made
from report_fields import PROMETHEUS, problems
from report_specs import spec

from inferometer.compat.inference_perf.reports import prometheus
from inferometer.compat.inference_perf.reports.requests import collect

Query = dict[str, str]
NOWHERE = "http://127.0.0.1:9"
WAITED: list[float] = []


@contextlib.contextmanager
def fake(respond: Callable[[Query], tuple[int, Any]]) -> Iterator[str]:
    """A server of Prometheus' query API; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            status, body = respond({name: values[0] for name, values in form.items()})
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def value(number: str) -> tuple[int, Any]:
    return 200, {
        "status": "success",
        "data": {"resultType": "vector", "result": [{"metric": {}, "value": [1.0, number]}]},
    }


def reports(url: str, sleep: Callable[[float], None] = WAITED.append, **sections: Any) -> dict[str, Any]:
    rows, chunks = made.open_rows(40)
    rows["stage"][20:] = 1
    metrics = {"type": "prometheus", "prometheus": {"url": url, "scrape_interval": 3, "filters": ["job='x'"]}}
    wanted = {"prometheus": {"summary": True, "per_stage": True}}
    settings = spec(**{"metrics": metrics, "report": wanted} | sections)
    run = made.run(rows, chunks, plan=(made.OPEN, made.OPEN))
    return prometheus.reports(collect(run, settings), settings, sleep)


def test_files_have_every_field() -> None:
    queries: list[Query] = []

    def respond(query: Query) -> tuple[int, Any]:
        queries.append(query)
        return value("12.3456789")

    with fake(respond) as url:
        files = reports(url)
    assert list(files) == [f"{name}_prometheus_metrics.json" for name in ("summary", "stage_0", "stage_1")]
    for report in files.values():
        assert list(problems(report, PROMETHEUS)) == []
    assert files["summary_prometheus_metrics.json"]["successes"]["request_latency"]["p99"] == 12.345679
    texts = {query["query"] for query in queries}
    # The made-up run lasts 0.6 s: with 3 + 2 s for the last scrape, the window is 6 s when it is rounded.
    assert "sum(increase(vllm:request_success_total{model_name='my-model',job='x'}[6s]) or " in "".join(texts)
    times = {float(query["time"]) for query in queries}
    ended = 1_790_771_101 + 5
    assert all(ended < at < ended + 1 for at in times) and len(times) == 2


@pytest.mark.parametrize(("kind", "queue"), [("sglang", "sglang:num_queue_reqs"), ("tgi", "tgi_queue_size")])
def test_other_servers_have_their_own_metrics(kind: str, queue: str) -> None:
    texts: list[str] = []

    def respond(query: Query) -> tuple[int, Any]:
        texts.append(query["query"])
        return value("2")

    with fake(respond) as url:
        files = reports(url, server={"type": kind})
    report = files["summary_prometheus_metrics.json"]
    assert list(problems(report, PROMETHEUS)) == []
    assert (
        report["successes"]["queue_len"] == {"mean": 2.0} and report["successes"]["request_queue_time"]["mean"] == 0.0
    )
    (query,) = {text for text in texts if text.startswith(f"avg_over_time({queue}") and "[6s]" in text}
    assert ("model_name" in query) == (kind != "tgi")


def test_mean_lengths_are_per_request_unless_exact() -> None:
    def respond(query: Query) -> tuple[int, Any]:
        if "increase(vllm:request_success" in query["query"]:
            return value("10")
        return value("640" if "increase(vllm:prompt_tokens" in query["query"] else "7")

    with fake(respond) as url:
        right, exact = (reports(url, compat=compat)["summary_prometheus_metrics.json"] for compat in ("right", "exact"))
    assert right["successes"]["prompt_len"] == {"mean": 64.0, "rate": 7.0}
    assert exact["successes"]["prompt_len"] == {"mean": 7.0, "rate": 7.0}


def test_unreachable_server_gives_zeros_and_one_error(caplog: pytest.LogCaptureFixture) -> None:
    files = reports(NOWHERE)
    for report in files.values():
        assert list(problems(report, PROMETHEUS)) == []
        assert set(re.findall(r": ([\d.]+)", json.dumps(report))) == {"0.0"}
    assert len(caplog.records) == 1 and caplog.records[0].levelname == "ERROR"


@pytest.mark.parametrize(
    "reply",
    [
        (400, {"status": "error", "errorType": "bad_data", "error": "parse error"}),
        (500, {"status": "error"}),
        (200, "not what was queried"),
        (200, {"status": "success", "data": {"resultType": "vector", "result": []}}),
        (200, {"status": "success", "data": {"resultType": "string", "result": [1, "x"]}}),
        value("NaN"),
    ],
)
def test_value_that_is_not_there_is_zero(reply: tuple[int, Any]) -> None:
    with fake(lambda _: reply) as url:
        report = reports(url)["summary_prometheus_metrics.json"]
    assert list(problems(report, PROMETHEUS)) == []
    assert report["successes"]["request_latency"] == {"mean": 0.0, "median": 0.0, "p90": 0.0, "p99": 0.0}


def test_waits_for_the_last_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(prometheus.time, "time", lambda: 1_790_771_101 + 1.0)
    reports(NOWHERE, waited.append)
    assert len(waited) == 1 and 4.0 < waited[0] < 5.0, "3 + 2 s after the end of the run, which was 0.4 s ago"


@pytest.mark.parametrize(
    "sections",
    [
        {"metrics": None},
        {"metrics": {"type": "default", "prometheus": {"url": NOWHERE}}},
        {"metrics": {"type": "prometheus", "prometheus": None}},
        {"report": {"prometheus": None}},
        {"server": {"type": "mock"}},
    ],
)
def test_no_files_without_prometheus(sections: dict[str, Any]) -> None:
    assert reports(NOWHERE, **sections) == {}
