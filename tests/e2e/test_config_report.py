"""`report:` in the config does the same as the options of `run`, and the options override it."""

import csv
import json
from pathlib import Path

from command import Result, cli

from inferometer.report.exporters import EXPORTERS


def run(folder: Path, sim: str, report: str, *options: str | Path) -> Result:
    path = folder / "bench.yaml"
    path.write_text(
        f"server: {{url: '{sim}'}}\ndata: {{type: prompts, prompts: [hello], output: 4}}\n"
        f"load: {{concurrency: 4, requests: 60}}\nclient: {{processes: 0, probe: false}}\nobserve: {{prometheus: []}}\n"
        f"output: '{folder}/runs'\nreport: {report}\n"
    )
    return cli("run", path, "-q", *options)


def test_file_and_options_write_the_same(tmp_path: Path, sim: str) -> None:
    paths = {name.replace("-", "_"): str(tmp_path / f"by-file.{name}") for name in EXPORTERS}
    result = run(tmp_path, sim, json.dumps(paths | {"why": True, "histogram": True, "explain": True}))
    assert result.status in (0, 1), result.err
    options = [text for name in EXPORTERS for text in (f"--{name}", str(tmp_path / f"by-option.{name}"))]
    again = cli("report", tmp_path / "runs" / "LATEST", *options)
    assert again.out == result.out  # with what the file adds to the report
    for part in ("why the tail is slow", "ttft_service ", "█"):  # why, explain, histogram
        assert part in result.out
    for name in EXPORTERS:
        assert (tmp_path / f"by-file.{name}").read_bytes() == (tmp_path / f"by-option.{name}").read_bytes()


def test_option_wins_over_the_file(tmp_path: Path, sim: str) -> None:
    unused, used = tmp_path / "unused.json", tmp_path / "used.json"
    run(tmp_path, sim, f"{{json: {unused}, percentiles: [10]}}", "--json", used, "--percentiles", "50,75")
    assert not unused.exists()
    assert json.loads(used.read_bytes())["metrics"]["e2e"]["percentiles"]["p75"] > 0
    assert "p10" not in used.read_text()


def test_requested_percentiles_are_shown_everywhere(tmp_path: Path, sim: str) -> None:
    formats = {name: str(tmp_path / name) for name in ("json", "html", "perf_csv", "markdown")}
    result = run(tmp_path, sim, json.dumps(formats | {"percentiles": [99.99, 75, 50]}))
    header = next(line for line in result.out.splitlines() if line.lstrip().startswith("latency, ms"))
    assert [word for word in header.split() if word.startswith("p")] == ["p50", "p75", "p99.99", "p99.99,"]
    assert "46,050 for p99.99" in result.out  # too few values
    e2e = json.loads((tmp_path / "json").read_bytes())["metrics"]["e2e"]
    assert e2e["min"] <= e2e["percentiles"]["p75"] <= e2e["max"]
    assert e2e["unsupported"]["p9999"]["needs"] == 46_050
    assert "| latency, ms | mean | p50 | p75 | p99.99 | max | p99.99, 95 % CI |" in (tmp_path / "markdown").read_text()
    assert "p99.99, 95 % CI" in (tmp_path / "html").read_text()
    (row,) = csv.DictReader((tmp_path / "perf_csv").open())
    assert {"p50 latency", "p75 latency", "p99.99 latency"} <= row.keys()


def test_report_shows_the_percentiles_of_the_run_or_of_the_option(tmp_path: Path, sim: str) -> None:
    shown = run(tmp_path, sim, "{percentiles: [50, 80]}").out
    folder = tmp_path / "runs" / "LATEST"
    stored = (folder / "summary.json").read_bytes()
    assert cli("report", folder).out == shown
    assert "p80" in shown
    other = cli("report", folder, "--percentiles", "25,99")
    assert "p25" in other.out
    assert "p80" not in other.out
    assert (folder / "summary.json").read_bytes() == stored


def test_stages_have_the_requested_percentiles(tmp_path: Path, sim: str) -> None:
    out = tmp_path / "out.json"
    stages = ", ".join(f"{{type: closed, concurrency: {users}, requests: 40}}" for users in (2, 4))
    load = f"load={{type: stages, stages: [{stages}]}}"
    result = run(tmp_path, sim, "{percentiles: [60]}", "--set", load, "--json", out)
    assert "e2e p60" in result.out, result.err
    for stage in json.loads(out.read_bytes())["stages"]:
        assert stage["metrics"]["ttft"]["percentiles"]["p60"] > 0
