"""The Grafana dashboard fits the page: it is valid, and its expressions are PromQL on metrics that exist."""

import subprocess
from itertools import combinations
from pathlib import Path

import pytest
import yaml
from dashboard import METRIC, dashboard, expressions
from prometheus_client.parser import text_string_to_metric_families
from spools import FakeShard, rows

from inferometer.publish.families import LiveFamilies, RunInfo
from inferometer.publish.live_counts import LiveCounts
from inferometer.publish.page import page


def test_panels_have_ids_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        apart = any(one[at] + one[size] <= other[at] or other[at] + other[size] <= one[at] for at, size in ("xw", "yh"))
        assert apart, (one, other)


def test_every_source_is_the_chosen_one() -> None:
    tree = dashboard()
    sources = [target["datasource"]["uid"] for panel in tree["panels"] for target in panel.get("targets", ())]
    assert set(sources) == {"${datasource}"}
    assert tree["templating"]["list"][0]["name"] == "datasource"


def test_expressions_use_metrics_that_the_page_has(tmp_path: Path) -> None:
    FakeShard(tmp_path, 0).record(rows(1, failure=1))
    families = LiveFamilies(LiveCounts(tmp_path, 1, ("only",)), RunInfo("", "", "", "", ""), lambda *_: 1.0)
    families.update()
    read = text_string_to_metric_families(page(families.read()).decode())
    names = {sample.name for metric in read for sample in metric.samples} | {"inferometer_client_cpu_ratio"}
    used = {name for expression in expressions("1m").values() for name in METRIC.findall(expression)}
    assert {name for name in used if not name.startswith("vllm:")} <= names
    unused = {name for name in names - used if not name.endswith(("_sum", "_count"))}
    assert not unused, "every metric is shown"


@pytest.mark.prometheus
def test_expressions_are_promql(tmp_path: Path) -> None:
    rules = [
        {"record": f"expression:{number}", "expr": expression}
        for number, expression in enumerate(expressions("1m").values())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}), encoding="utf-8")
    checked = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert f"{len(rules)} rules found" in checked.stdout
