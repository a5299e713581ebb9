"""Our own client against our own server, as against Triton: runs over every API, `infer`, `triton`, `compare-protocols`.

The queue and compute times that a run reports are those that the server sent with each request, and agree with its statistics.
"""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import pytest
from command import Result, assert_one_line, cli
from PIL import Image
from plain_client import get
from serve_server import HERE

from inferometer import conduct
from inferometer.analysis.breakdown import PER_REQUEST, breakdown
from inferometer.records import Run
from inferometer.serve.background import Running
from inferometer.tensors import DATATYPES
from inferometer.units import NS

pytest_plugins = ["serve_server"]

PROTOCOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "http": ("http", {"api": "kserve"}),
    "http json": ("http", {"api": "kserve-json"}),
    "http gzip": ("http", {"api": "kserve", "compression": "gzip"}),
    "http shared memory": ("http", {"api": "kserve", "shared_memory": True}),
    "grpc": ("grpc", {"api": "kserve"}),
    "grpc gzip": ("grpc", {"api": "kserve", "compression": "gzip"}),
    "grpc shared memory": ("grpc", {"api": "kserve", "shared_memory": True}),
    "grpc stream": ("grpc", {"api": "kserve", "stream": True}),
}
LABELS = (HERE / "triton_models/classifier/labels.txt").read_text().split()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def url_of(server: Running, protocol: str) -> str:
    return server.grpc if protocol.startswith("grpc") else server.url


def measured(server: Running, protocol: str, model: str, load: dict[str, Any], **data: Any) -> Run:
    _, settings = PROTOCOLS[protocol]
    run, _ = helpers.measure(
        Path("runs"),
        url_of(server, protocol),
        server={"model": model} | settings,
        data={"type": "tensors"} | data,
        load=load,
    )
    return run


def closed(concurrency: int, requests: int) -> dict[str, Any]:
    return {"type": "closed", "concurrency": concurrency, "requests": requests}


def entries(*each: dict[str, Any]) -> str:
    path = Path.cwd() / "data.json"
    path.write_text(json.dumps({"data": list(each)}))
    return f"@{path}"


def check_ok(run: Run, count: int) -> None:
    assert run.records.failures == ()
    assert sorted(run.records.rows["id"].tolist()) == list(range(count))
    assert (run.records.rows["status"] == 200).all()


def stats(server: Running, model: str) -> Counter[str]:
    (found,) = json.loads(get(server.url, f"/v2/models/{model}/stats"))["model_stats"]
    spent = {f"{name} {unit}": one[unit] for name, one in found["inference_stats"].items() for unit in ("count", "ns")}
    return Counter(spent | {"inferences": found["inference_count"], "executions": found["execution_count"]})


def statistics_of(run: Run) -> Counter[str]:
    """Return the server's counts according to the run's manifest."""
    (stage,) = run.manifest.statistics
    assert stage is not None
    spent = {f"{name} {unit}": getattr(getattr(stage, name), unit) for name in stage.__struct_fields__[2:] for unit in ("count", "ns")}  # fmt: skip
    return Counter(spent | {"inferences": stage.inferences, "executions": stage.executions})


# --- runs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_request_succeeds_and_is_counted(ours: Running, protocol: str) -> None:
    before = stats(ours, "identity")
    run = measured(ours, protocol, "identity", closed(4, 100), fill="random", shape={"INPUT0": [2, 50]})
    check_ok(run, 100)
    counted = statistics_of(run)
    assert (counted["success count"], counted["inferences"], counted["fail count"]) == (100, 200, 0)
    if PROTOCOLS[protocol][1].get("shared_memory"):  # one request before the run determines the size of the outputs
        assert (stats(ours, "identity") - before)["success count"] == 101
    else:
        assert +counted == stats(ours, "identity") - before
    assert run.manifest.server["name"] == "inferometer"
    assert run.manifest.server["max_batch_size"] == 64
    found = breakdown(run, run.records.rows["failure"] == 0)
    assert found is not None
    assert found.source == PER_REQUEST
    assert found.e2e == pytest.approx(found.client + found.overhead + found.queue + found.compute)
    assert found.queue == pytest.approx(counted["queue ns"] / 100 / NS, abs=2e-9)


@pytest.mark.parametrize("protocol", ["http", "grpc", "grpc stream"])
def test_the_times_in_the_responses_add_up_to_the_statistics(ours: Running, protocol: str) -> None:
    """Four at a time for a model that handles one request in 20 ms: three of them wait."""
    before = stats(ours, "slow")
    run = measured(ours, protocol, "slow", closed(4, 20), fill=entries({"DELAY_MS": [20]}))
    check_ok(run, 20)
    counted, rows = statistics_of(run), run.records.rows
    assert (stats(ours, "slow") - before)["success count"] in (20, 21)
    assert int(rows["queue"].sum()) == pytest.approx(counted["queue ns"], abs=20)
    computed = counted["compute_input ns"] + counted["compute_infer ns"] + counted["compute_output ns"]
    assert (rows["compute"] >= 20_000_000).all() and computed >= 20 * 20_000_000
    assert int(rows["compute"].sum()) >= computed  # includes the way back from the model's thread
    assert int(rows["compute"].sum()) == pytest.approx(computed, rel=1)
    assert (rows["queue"] + rows["compute"] <= rows["done"] - rows["sent"]).all()
    found = breakdown(run, rows["failure"] == 0)
    assert found is not None and found.source == PER_REQUEST
    assert found.queue > 0.02


def test_the_report_shows_the_split(ours: Running) -> None:
    data = entries({"DELAY_MS": [2]})
    result = cli(
        "run", ours.grpc, "--model", "slow", "--concurrency", "2", "--requests", "30", "-q", "--set", f'data.fill="{data}"'
    )  # fmt: skip
    assert result.status in (0, 1), result.err
    _, summary = conduct.open_run("runs/LATEST")
    assert (summary.counts.ok, summary.counts.failed) == (30, 0)
    assert summary.breakdown is not None and summary.breakdown.source == PER_REQUEST
    assert summary.metrics["queue"].count == summary.metrics["compute"].count
    assert "queue" in result.out and "compute" in result.out


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_open_loop(ours: Running, protocol: str) -> None:
    run = measured(ours, protocol, "add_sub", {"type": "constant", "rate": 100, "duration": "300ms"})
    check_ok(run, 30)


def test_one_arrival_per_response_of_a_decoupled_model(ours: Running) -> None:
    sizes = [0, 1, 5, 17]
    run = measured(ours, "grpc stream", "square", closed(2, 40), fill=entries(*({"N": [size]} for size in sizes)))
    check_ok(run, 40)
    rows = run.records.rows
    assert rows["chunk_count"].tolist() == [sizes[id % 4] for id in rows["id"].tolist()]
    assert statistics_of(run)["success count"] == statistics_of(run)["inferences"] == 40


@pytest.mark.parametrize("stream", [True, False])
def test_generate(ours: Running, stream: bool) -> None:
    count = 5 if stream else 1
    server = {"model": "generator", "api": "generate", "stream": stream, "parameters": {"delay_ms": 1}}
    data = {"type": "prompts", "prompts": ["la li lu"], "output": count}
    run, summary = helpers.measure(Path("runs"), ours.url, server=server, data=data, load=closed(2, 30))
    check_ok(run, 30)
    if stream:
        assert set(run.records.rows["chunk_count"].tolist()) == {5}
        assert (summary.metrics["ttft"].count, summary.metrics["itl"].count) == (30, 120)


def test_failures_are_rows_with_the_servers_message(ours: Running) -> None:
    data = entries({"INPUT0": ["fine"]}, {"INPUT0": ["INTERNAL"]}, {"INPUT0": ["UNAVAILABLE"]}, {"INPUT0": ["RAISE"]})
    load = {"type": "constant", "rate": 400, "requests": 20}
    codes = {}
    for protocol in ("http", "grpc"):
        records = measured(ours, protocol, "failing", load, fill=data).records
        failed = [records.failures[code_index - 1] for code_index in records.rows["failure"] if code_index]
        codes[protocol] = Counter(failure.code for failure in failed)
        assert {"told to fail with INTERNAL", "ValueError: told to raise"} <= {failure.message for failure in failed}
    assert codes["grpc"] == {"grpc_INTERNAL": 10, "grpc_UNAVAILABLE": 5}
    assert codes["http"].total() == 15


def test_a_deadline_that_both_sides_enforce(ours: Running) -> None:
    server = {"model": "slow", "api": "kserve", "deadline": "20ms"}
    data = {"type": "tensors", "fill": entries({"DELAY_MS": [100]})}
    run, _ = helpers.measure(
        Path("runs"), ours.grpc, server=server, data=data, load={"type": "constant", "rate": 100, "requests": 5}
    )
    assert {failure.code for failure in run.records.failures} == {"grpc_DEADLINE_EXCEEDED"}
    assert (run.records.rows["failure"] > 0).all()


# --- a single request ------------------------------------------------------------------------------------------------------


def infer(*words: str | Path) -> Any:
    result = cli("infer", *words, "--json", "-")
    assert result.status == 0, result
    return json.loads(result.out)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_infer_an_image(ours: Running, protocol: str) -> None:
    pixels = np.random.default_rng(7).integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(pixels).save("noise.png")
    image = (pixels.astype(np.float32) / np.float32(127.5) - np.float32(1)).transpose(2, 0, 1)
    scores = image.reshape(-1)[:190].reshape(10, 19).sum(axis=1)
    url = url_of(ours, protocol)
    tree = infer(url, "--model", "classifier", "--image", "noise.png", "--classes", "3")
    (best,) = tree["responses"][0]["classes"]["SCORES"]
    assert [one["index"] for one in best] == np.argsort(-scores)[:3].tolist()
    assert [one["label"] for one in best] == [LABELS[one["index"]] for one in best]
    assert tree["timing"]["server"]["compute"] > 0


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_infer_generates_all_types(ours: Running, protocol: str) -> None:
    shapes = [
        word for kind in DATATYPES for word in ("--shape", f"IN_{kind}=2")
    ]  # or only one of them, since all are optional
    tree = infer(url_of(ours, protocol), "--api", "kserve", "--model", "all_types", *shapes)
    types = [one["datatype"] for one in tree["inputs"]]
    assert len(types) == 14
    assert sorted(one["datatype"] for one in tree["responses"][0]["outputs"]) == sorted(types)


def test_infer_streams_a_decoupled_model(ours: Running) -> None:
    tree = infer(ours.grpc, "--model", "square", "--input", "N=5")
    assert [each["outputs"][0]["data"] for each in tree["responses"]] == [[0], [1], [4], [9], [16]]
    result = cli(
        "infer", ours.url, "--api", "generate", "--model", "generator", "--prompt", "la li", "--max-tokens", "3"
    )
    assert result.out.startswith(" la li la\n"), result


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--model", "nosuch"), ("unknown model", "the server has add_sub, all_types, classifier")),
        (("--model", "add_sub", "--input", "INPUT0=1"), ("expects the shape [-1, 16]; 1 elements",)),
        (("--model", "failing", "--input", "INTERNAL"), ("told to fail with INTERNAL",)),
        (("--model", "no_batch", "--version", "9"), ("no_batch", "9")),
        (("--model", "square", "--no-stream", "--input", "1"), ("decoupled",)),
    ],
)
def test_errors_are_one_line(ours: Running, protocol: str, words: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert_one_line(cli("infer", url_of(ours, protocol), "--api", "kserve", *words), *expected)


# --- other verbs ------------------------------------------------------------------------------------------------------------


def verb(model: str, address: str, *more: str) -> Result:
    return cli("triton", "-m", model, "-u", address, "-c", "60", "-w", "20", *more)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_triton_command(ours: Running, protocol: str) -> None:
    address = url_of(ours, protocol).partition("://")[2]
    result = verb("identity", address, "-i", protocol, "-b", "4", "-s", "100", "--csv", "out.csv", "--output", "runs")
    assert result.status in (0, 1), result.err
    assert result.out.startswith("Throughput: ")
    (line,) = csv.DictReader(Path("out.csv").read_text().splitlines())
    assert float(line["Inferences/Second"]) > 0 and float(line["p50 latency"]) > 0
    _, summary = conduct.open_run("runs/LATEST")
    assert (summary.counts.ok, summary.counts.failed) == (60, 0)
    assert_one_line(verb("add_sub", address, "-i", protocol), "expecting 1 input", "has 2: INPUT0, INPUT1")


@pytest.mark.slow
def test_compare_protocols(ours: Running) -> None:
    result = cli(
        "compare-protocols", ours.url, "--grpc", ours.grpc, "--model", "identity", "--sizes", "1kB", "--requests", "20",
        "--json", "out.json",
    )  # fmt: skip
    assert result.status in (0, 1), result.err
    cells = json.loads(Path("out.json").read_text())["cells"]
    assert len(cells) == 4
    for cell in cells:
        assert (cell["ok"], cell["failed"]) == (20, 0)
        assert cell["queue"] > 0 and cell["compute"] > 0
