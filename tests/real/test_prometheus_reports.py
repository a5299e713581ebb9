"""inference-perf's reports of the server's metrics, from a real Prometheus server that scrapes the simulator."""

import json
from pathlib import Path

import pytest
from helpers import measure
from prometheus_server import INTERVAL, prometheus, wait_for_scrapes
from report_fields import PROMETHEUS, problems
from report_specs import spec

from inferometer.compat.inference_perf import reports
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Batch

pytestmark = [pytest.mark.prometheus, pytest.mark.slow]


def test_reports_agree_with_the_run(tmp_path: Path) -> None:
    (tmp_path / "prometheus").mkdir()
    with running(simulator(timing=Batch())) as url, prometheus(tmp_path / "prometheus", [url]) as server:
        # The first request makes the counters appear, so that they grow from a known value during the run.
        measure(
            tmp_path / "runs", url, server={"model": "sim"}, load={"type": "closed", "concurrency": 1, "requests": 1}
        )
        wait_for_scrapes(server, 3)
        load = {"type": "closed", "concurrency": 4, "duration": "3s", "ramp_up": 0}
        run, summary = measure(tmp_path / "runs", url, server={"model": "sim"}, load=load)
        metrics = {"type": "prometheus", "prometheus": {"url": server.url, "scrape_interval": INTERVAL, "filters": []}}
        wanted = {"prometheus": {"summary": True, "per_stage": True}}
        files = reports.files(run, summary, spec(metrics=metrics, report=wanted, load={"type": "concurrent"}))
    found = [json.loads(bytes(files[f"{name}_prometheus_metrics.json"])) for name in ("summary", "stage_0")]
    lifecycle = json.loads(bytes(files["summary_lifecycle_metrics.json"]))["successes"]
    for report in found:
        assert list(problems(report, PROMETHEUS)) == []
        successes = report["successes"]
        # `increase` extrapolates to the whole window, by up to a scrape interval at either end.
        assert successes["count"] == pytest.approx(lifecycle["count"], rel=0.5)
        assert successes["prompt_len"]["mean"] == pytest.approx(lifecycle["prompt_len"]["mean"], rel=0.1)
        assert successes["output_len"]["mean"] == pytest.approx(lifecycle["output_len"]["mean"], rel=0.1)
        assert successes["request_latency"]["mean"] == pytest.approx(
            lifecycle["latency"]["request_latency"]["mean"], rel=0.5
        )
        assert 0 < successes["num_requests_running"]["mean"] <= 4
