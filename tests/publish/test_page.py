"""The page of a run in progress, read back with prometheus_client's parser and checked by promtool."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from spools import CODES, MS, T0, FakeShard, rows

from inferometer.publish.families import LiveFamilies, RunInfo
from inferometer.publish.live_counts import BOUNDS, LiveCounts
from inferometer.publish.page import page

INFO = RunInfo("20260101-000000-abcd", "http://127.0.0.1:8000", 'a "model"\\of\nmine', "chat", "1.0")


def families_of(
    folder: Path, shards: int = 1, target_rate: Callable[[int, float], float | None] = lambda _stage, _seconds: None
) -> LiveFamilies:
    return LiveFamilies(LiveCounts(folder, shards, ("first", "second"), ("chat", "batch")), INFO, target_rate)


def read(families: LiveFamilies) -> dict[str, Metric]:
    families.update()
    return {each.name: each for each in text_string_to_metric_families(page(families.read()).decode())}


def value(metrics: dict[str, Metric], name: str, **labels: str) -> float:
    """The value of the one sample with this name and these labels."""
    (found,) = [
        sample.value
        for metric in metrics.values()
        for sample in metric.samples
        if sample.name == f"inferometer_{name}" and labels.items() <= sample.labels.items()
    ]
    return float(found)


def a_run(folder: Path) -> FakeShard:
    """A shard with three successes, one of them of another class, and two failures."""
    shard = FakeShard(folder, 0)
    shard.start()
    shard.record(rows(2, **{"class": 0}))
    shard.record(rows(1, **{"class": 1}))
    shard.record(rows(2, **{"class": 0, "failure": 1 + CODES.index("http_503")}))
    shard.control["sent"], shard.control["in_flight"], shard.control["heartbeat"] = 7, 2, T0 + 1500 * MS
    return shard


def test_page_has_what_was_counted(tmp_path: Path) -> None:
    a_run(tmp_path)
    metrics = read(families_of(tmp_path))
    assert all(name.startswith("inferometer_") and metric.documentation for name, metric in metrics.items())
    assert value(metrics, "requests_sent_total") == 7
    assert value(metrics, "in_flight") == 2
    assert value(metrics, "run_elapsed_seconds") == 1.5
    first = {"stage": "first", "class": "chat"}
    assert value(metrics, "requests_completed_total", **first) == 2
    assert value(metrics, "requests_completed_total", stage="first", **{"class": "batch"}) == 1
    assert value(metrics, "failures_total", **first) == 2, "it has one code"
    assert value(metrics, "failures_total", code="http_503") == 2
    assert value(metrics, "input_tokens_total", **first) == 10
    assert value(metrics, "output_tokens_total", **first) == 22


def test_buckets_are_cumulative_and_include_their_bound(tmp_path: Path) -> None:
    a_run(tmp_path)
    metrics = read(families_of(tmp_path))
    labels = {"stage": "first", "class": "chat"}
    ttft = {
        sample.labels["le"]: sample.value
        for sample in metrics["inferometer_ttft_seconds"].samples
        if sample.name.endswith("_bucket") and labels.items() <= sample.labels.items()
    }
    assert len(ttft) == len(BOUNDS) + 1
    assert list(ttft.values()) == sorted(ttft.values())
    assert (ttft["0.016"], ttft["0.025"], ttft["+Inf"]) == (0, 2, 2), "20 ms"
    assert value(metrics, "ttft_seconds_count", **labels) == 2
    assert value(metrics, "ttft_seconds_sum", **labels) == pytest.approx(0.04)
    tpot = [sample for sample in metrics["inferometer_tpot_seconds"].samples if sample.labels.get("le") == "0.01"]
    assert sum(sample.value for sample in tpot) == 3, "10 ms is in the bucket up to 10 ms"
    assert value(metrics, "client_lag_seconds_count", **labels) == 4, "failed requests were sent too"


def test_target_rate_is_that_of_the_stage_in_progress(tmp_path: Path) -> None:
    shard = a_run(tmp_path)
    families = families_of(tmp_path, target_rate=lambda stage, seconds: 100 * stage + seconds)
    assert value(read(families), "target_rate") == 1.5
    families.mark(1)
    shard.control["heartbeat"] += 500 * MS
    assert value(read(families), "target_rate") == 100.5
    shard.control["reached"] = 2
    assert value(read(families), "target_rate") == 0, "the shard waits for the next stage"


def test_stage_is_that_of_the_shards_that_are_alive(tmp_path: Path) -> None:
    """The parent announces stages without regard to shards that died. One that it did not announce is noticed too."""
    dead, alive = FakeShard(tmp_path, 0), FakeShard(tmp_path, 1)
    families = families_of(tmp_path, shards=2)
    assert value(read(families), "stage") == 0
    alive.control["stage"] = 1
    families.mark(1)
    assert value(read(families), "stage") == 1
    dead.control["stage"] = 1
    assert value(read(families_of(tmp_path, shards=2)), "stage") == 1


def test_closed_loop_has_no_target_rate(tmp_path: Path) -> None:
    a_run(tmp_path)
    assert not read(families_of(tmp_path))["inferometer_target_rate"].samples


def test_run_is_described_whatever_its_names_contain(tmp_path: Path) -> None:
    (info,) = read(families_of(tmp_path))["inferometer_run_info"].samples
    assert info.labels["model"] == INFO.model and info.labels["url"] == INFO.url


def test_reference_page_lists_every_metric(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "live-metrics.md").read_text(encoding="utf-8")
    table = [[cell.strip("` ") for cell in line.split("|")] for line in text.splitlines() if line.startswith("| `")]
    listed = {name: (kind, labels.replace("`", "")) for _, name, kind, labels, *_ in table}
    assert listed == {
        family.name + "_total" * (family.kind == "counter"): (family.kind, ", ".join(family.label_names))
        for family in families_of(tmp_path).read()
    }


@pytest.mark.prometheus
@pytest.mark.parametrize("has_started", [False, True])
def test_promtool_accepts_the_page(tmp_path: Path, has_started: bool) -> None:
    if has_started:
        a_run(tmp_path)
    families = families_of(tmp_path, target_rate=lambda _stage, _seconds: 10.0)
    families.update()
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=page(families.read()), capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
