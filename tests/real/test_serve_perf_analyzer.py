"""NVIDIA's perf_analyzer against our server: it runs to its end and reports throughput and the server's own times."""

import csv
import json
import os
import subprocess
from pathlib import Path

import pytest
from command import cli
from needs import INSTALLED
from plain_client import get

from inferometer.serve.background import Running

pytestmark = pytest.mark.perf_analyzer
pytest_plugins = ["serve_server"]

WINDOW_MS = 500  # perf_analyzer fails if no response arrives in a window, as when the machine stalls
ALWAYS = ("--concurrency-range", "2", "--measurement-interval", WINDOW_MS, "-r", "3", "-s", "1000")
CASES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "http": ("http", "identity", ("--shape", "INPUT0:16")),
    "http, JSON": ("http", "add_sub", ("--input-tensor-format", "json", "--output-tensor-format", "json")),
    "http, shared memory": ("http", "add_sub", ("--shared-memory", "system", "--output-shared-memory-size", "64")),
    "http, async": ("http", "classifier", ("--async",)),
    "grpc": ("grpc", "identity", ("--shape", "INPUT0:16", "-b", "4")),
    "grpc, gzip": ("grpc", "add_sub", ("--async", "--grpc-compression-algorithm", "gzip")),
    "grpc, shared memory": ("grpc", "add_sub", ("--shared-memory", "system", "--output-shared-memory-size", "64")),
    "grpc, streaming": ("grpc", "identity", ("--shape", "INPUT0:16", "--streaming")),
    "grpc, streaming, decoupled": ("grpc", "square", ("--streaming",)),
}


def perf_analyzer(server: Running, protocol: str, model: str, *more: str | Path) -> subprocess.CompletedProcess[str]:
    folder = INSTALLED / "perf_analyzer"
    address = (server.url if protocol == "http" else server.grpc).partition("://")[2]
    command = [folder / "bin/perf_analyzer", "-m", model, "-u", address, "-i", protocol, *ALWAYS, *more]
    return subprocess.run(
        list(map(str, command)),
        env=os.environ | {"LD_LIBRARY_PATH": str(folder / "lib/perf_analyzer")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def request_counts(server: Running, model: str) -> tuple[int, int]:
    """Return the number of requests that succeeded, and of those that failed."""
    (stats,) = json.loads(get(server.url, f"/v2/models/{model}/stats"))["model_stats"]
    return stats["inference_stats"]["success"]["count"], stats["inference_stats"]["fail"]["count"]


@pytest.mark.parametrize(("protocol", "model", "more"), CASES.values(), ids=CASES)
def test_it_succeeds_and_reports(
    ours: Running, tmp_path: Path, protocol: str, model: str, more: tuple[str, ...]
) -> None:
    data = tmp_path / "five.json"
    data.write_text(json.dumps({"data": [{"N": [5]}]}))
    before = request_counts(ours, model)
    given = ("--input-data", data) if model == "square" else ()
    done = perf_analyzer(ours, protocol, model, "-f", tmp_path / "out.csv", *more, *given)
    assert done.returncode == 0, done.stdout + done.stderr
    after = request_counts(ours, model)
    assert after[0] > before[0] and after[1] == before[1]
    (line,) = csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
    assert float(line["Inferences/Second"]) > 0 and int(line["p50 latency"]) > 0
    assert int(line["Server Compute Infer"]) > 0 and int(line["Server Queue"]) > 0
    if model == "square":
        assert float(line["Response Throughput"]) == pytest.approx(5 * float(line["Inferences/Second"]), rel=0.2)
    assert json.loads(get(ours.url, "/v2/systemsharedmemory/status")) == []


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_both_run_the_same_command_line(
    ours: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """perf_analyzer, and `inferometer perf-analyzer` with the same options: both send requests and write the same kind of CSV."""
    monkeypatch.chdir(tmp_path)
    more = ("--shape", "INPUT0:16", "-b", "4", "-v", "-a")
    theirs = perf_analyzer(ours, protocol, "identity", "-f", "theirs.csv", *more)
    assert theirs.returncode == 0, theirs.stdout + theirs.stderr
    before = request_counts(ours, "identity")
    address = (ours.url if protocol == "http" else ours.grpc).partition("://")[2]
    options = ("-m", "identity", "-u", address, "-i", protocol, *ALWAYS, "-f", "ours.csv", *more)
    result = cli("perf-analyzer", *map(str, options))
    assert result.status in (0, 1), result  # a busy machine may make the run INVALID
    assert request_counts(ours, "identity")[0] > before[0]
    rows = [next(csv.DictReader(Path(name).read_text().splitlines())) for name in ("theirs.csv", "ours.csv")]
    assert rows[0].keys() <= rows[1].keys() | {"Server Excess"}
    assert rows[0]["Concurrency"] == rows[1]["Concurrency"] == "2"
    assert all(float(row["Inferences/Second"]) > 0 for row in rows)


def test_it_reads_our_metrics(ours: Running) -> None:
    """Without a GPU these metrics do not exist, nor do they on Triton; it prints that and continues."""
    page = ours.metrics.partition("://")[2]
    done = perf_analyzer(ours, "http", "add_sub", "--collect-metrics", "--metrics-url", page, "--verbose-csv")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Throughput: " in done.stdout


def test_an_unknown_model_is_one_error(ours: Running) -> None:
    done = perf_analyzer(ours, "http", "nosuch")
    assert done.returncode != 0
    assert "Request for unknown model: 'nosuch' is not found" in done.stdout + done.stderr
