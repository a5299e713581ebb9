"""A real Prometheus scrapes a run in progress and the simulator: every panel of the dashboard has data."""

import json
import math
import time
from pathlib import Path

import pytest
from command import start
from dashboard import expressions
from prometheus_server import Prometheus, free_port, prometheus
from waiting import until

from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Batch

pytestmark = pytest.mark.prometheus

CONFIG = """
server: {url: %s, model: sim, timeouts: {total: 50ms}}
data:
  type: mix
  classes:
    - {name: short, weight: 9, data: {type: synthetic, input: 20, output: 3}}
    - {name: long, weight: 1, data: {type: synthetic, input: 20, output: 500}}
load:
  stages:
    - {type: constant, name: slow, rate: 20, duration: 3s}
    - {type: poisson, name: fast, rate: 40, duration: 6s}
client: {probe: false}
"""


@pytest.mark.slow
def test_every_panel_shows_data_during_a_run(tmp_path: Path) -> None:
    port = free_port()
    with (
        running(simulator(timing=Batch())) as server,
        prometheus(tmp_path, [server, f"http://127.0.0.1:{port}"]) as scraping,
    ):
        (tmp_path / "mix.yaml").write_text(CONFIG % server, encoding="utf-8")
        until(lambda: has_data(scraping, "up == 1"), "Prometheus has scraped the server")
        run = start("run", "mix.yaml", "--metrics-port", str(port), "--quiet", cwd=tmp_path)
        missing = expressions("5s")
        try:
            while missing and run.poll() is None:
                missing = {name: each for name, each in missing.items() if not has_data(scraping, each)}
                time.sleep(0.2)
        finally:
            run.communicate(timeout=60)
        assert not missing
        (stored,) = tmp_path.glob("runs/2*/summary.json")
        ok = json.loads(stored.read_text(encoding="utf-8"))["counts"]["ok"]
        seen = scraping.value("max_over_time(sum(inferometer_requests_completed_total)[1m:1s])")
        assert seen is not None and 0.5 * ok < seen <= ok


def has_data(scraping: Prometheus, expression: str) -> bool:
    value = scraping.value(expression)
    return value is not None and not math.isnan(value)
