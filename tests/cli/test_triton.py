"""`inferometer triton`: flags and output of Triton's simple performance client, against a small KServe server."""

import contextlib
import csv
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from command import Result, assert_one_line, cli
from helpers import Client, scripted

from inferometer import conduct, triton_client

Shape = list[int]


class Model:
    """A server with one model, which records its requests."""

    def __init__(self) -> None:
        self.inputs: list[tuple[str, str, Shape]] = [("IN", "FP32", [-1, -1])]
        self.outputs: list[tuple[str, str, Shape]] = [("OUT", "FP32", [-1, -1])]
        self.max_batch = 8
        self.decoupled = False
        self.fails_from = 1 << 30
        self.stops_after = 1 << 30
        self.seen: list[tuple[str, bytes]] = []
        self._lock = threading.Lock()

    def serve(self, client: Client) -> None:
        while len(self.seen) < self.stops_after and (request := client.request()):
            first, headers, body = request
            status, tree = self._respond(first.split()[1], headers, body)
            content = json.dumps(tree).encode() if tree is not None else b""
            client.send(f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)

    def _respond(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        if path.endswith(("/live", "/ready")):
            return 200, None
        if path == "/v2":
            return 200, {"name": "test", "version": "1", "extensions": []}
        if path.endswith("/infer"):
            time.sleep(0.01)
            with self._lock:
                self.seen.append((path, body))
                failed = len(self.seen) > self.fails_from
            return (500, {"error": "told to"}) if failed else (200, {"model_name": "m", "outputs": []})
        if path.endswith("/config"):
            policy = {"decoupled": self.decoupled}
            return 200, {"name": "m", "max_batch_size": self.max_batch, "model_transaction_policy": policy}
        if path.startswith("/v2/models/m") and not path.endswith("/stats"):
            return 200, {"name": "m", "versions": ["1"], "platform": "test"} | {
                kind: [{"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape in tensors]
                for kind, tensors in (("inputs", self.inputs), ("outputs", self.outputs))
            }
        return 404, {"error": "unknown"}


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def served(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL."""
    monkeypatch.chdir(tmp_path)
    with scripted(model.serve) as url:
        yield url


@pytest.fixture
def url(served: str, in_this_process: None) -> str:
    """The same, with the client in this process."""
    return served


def triton(url: str, *more: str | Path) -> Result:
    return cli("triton", "-m", "m", "-u", url, "-c", "12", "-w", "5", *more)


def sent(model: Model) -> tuple[Shape, bytes]:
    """The shape and the bytes of the last request's tensor."""
    body = model.seen[-1][1]
    (one,) = json.JSONDecoder().raw_decode(body.decode("latin-1"))[0]["inputs"]
    assert (one["name"], one["datatype"]) == ("IN", "FP32")
    return one["shape"], body[-one["parameters"]["binary_data_size"] :]


# --- measurements ----------------------------------------------------------------------------------------------------


@pytest.fixture
def valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every measurement is VALID, even if the machine that runs the tests is busy."""
    measure = conduct.measure

    def kind(*arguments: Any) -> Any:
        run, summary = measure(*arguments)
        return run, msgspec.structs.replace(summary, verdict="VALID")

    monkeypatch.setattr(conduct, "measure", kind)


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which temporary folders are made."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.mark.usefixtures("valid")
def test_the_output_is_that_of_the_simple_client_and_nothing_is_left_behind(
    served: str, model: Model, tmp_path: Path, temporary: Path
) -> None:
    result = triton(served)
    assert result.status == 0, result.err
    number = r"\d+\.\d{5,} ms\n"  # the simple client does not round
    assert re.fullmatch(
        rf"Throughput: \d+\.\d{{5,}} infer/sec\nLatencies:\n\tAvg: {number}\tp50: {number}\tp90: {number}\tp95: {number}\tp99: {number}",
        result.out,
    ), result.out
    assert not result.err or result.err.startswith("inferometer: Mean in flight 0."), "what the rest of the time is"
    assert len(model.seen) == 17
    assert [*tmp_path.iterdir(), *temporary.iterdir()] == []


def test_warm_up_requests_do_not_count_and_records_are_kept_on_request(url: str, tmp_path: Path) -> None:
    result = triton(url, "--output", tmp_path / "runs")
    run, summary = conduct.open_run(str(tmp_path / "runs" / "LATEST"))
    assert summary.window.requests == {"warmup": 5, "steady": 12, "cooldown": 0}
    assert result.out == triton_client.text(run)
    rows = run.records.rows
    counted = rows[run.records.phase == 1]
    span = (counted["done"].max() - counted["sent"].min()) / 1e9
    throughput = re.search(r"Throughput: (.*) infer/sec", result.out)
    assert throughput is not None
    assert float(throughput[1]) == pytest.approx(12 / span, rel=1e-9)
    assert set(run.manifest.observer_cpu) == {"kserve"}, "nothing else disturbs the measurement"


@pytest.mark.parametrize("warmups", [0, 5])
def test_every_measured_request_counts_and_percentiles_are_numpys(url: str, tmp_path: Path, warmups: int) -> None:
    result = cli("triton", "-m", "m", "-u", url, "-c", "60", "-w", str(warmups), "--output", tmp_path / "runs")
    rows = conduct.open_run(str(tmp_path / "runs" / "LATEST"))[0].records.rows[warmups:]
    latencies = (rows["done"] - rows["sent"]) / 1e6
    assert len(latencies) == 60
    expected = [latencies.mean(), *np.percentile(latencies, [50, 90, 95, 99])]
    assert [float(one) for one in re.findall(r": ([\d.]+) ms", result.out)] == pytest.approx(expected, rel=1e-9)


def test_the_csv_has_a_header_and_a_row_in_microseconds(url: str, tmp_path: Path) -> None:
    result = triton(url, "--csv", tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == "Concurrency,Inferences/Second,p50 latency,p90 latency,p95 latency,p99 latency"
    (line,) = csv.DictReader(lines)
    assert line["Concurrency"] == "1"
    assert f"Throughput: {line['Inferences/Second']} infer/sec" in result.out
    printed = re.search(r"p50: (.*) ms", result.out)
    assert printed is not None
    assert float(printed[1]) == pytest.approx(float(line["p50 latency"]) / 1000, rel=1e-12)
    assert float(line["p99 latency"]) >= 10_000


def test_zeros_of_batch_and_shape_for_a_model_that_takes_batches(url: str, model: Model) -> None:
    assert triton(url, "-b", "3", "-s", "5").status in (0, 1)
    assert sent(model) == ([3, 5], bytes(60))
    assert {path for path, _ in model.seen} == {"/v2/models/m/infer"}


def test_zeros_of_the_shape_for_a_model_that_takes_no_batches(url: str, model: Model) -> None:
    model.max_batch = 0
    model.inputs, model.outputs = [("IN", "FP32", [-1])], [("OUT", "FP32", [-1])]
    assert triton(url, "--shape", "5", "-x", "7").status in (0, 1)
    assert sent(model) == ([5], bytes(20))
    assert {path for path, _ in model.seen} == {"/v2/models/m/versions/7/infer"}


@pytest.mark.usefixtures("valid")
def test_without_a_scheme_it_is_http_and_verbose_names_the_folder(url: str, tmp_path: Path) -> None:
    result = triton(url.removeprefix("http://"), "-v", "-i", "HTTP", "--output", tmp_path / "runs")
    assert result.status == 0, result.err
    assert result.out.startswith("Throughput: ") and len(result.out.splitlines()) == 7
    (folder,) = (tmp_path / "runs").glob("2*")
    assert " VALID " in result.err and str(folder) in result.err
    assert triton(url, "-v").err.splitlines()[-1] == " records not kept: --output FOLDER keeps them"


@pytest.mark.slow
def test_an_invalid_run_exits_with_1_and_its_reasons_go_to_standard_error(url: str, model: Model) -> None:
    model.fails_from = 10
    result = triton(url)
    assert result.status == 1
    assert result.out.startswith("Throughput: ")
    assert result.err.startswith("inferometer: INVALID\n") and "failures: " in result.err


def test_without_responses_there_are_no_latencies(url: str, model: Model, tmp_path: Path) -> None:
    model.fails_from = 0
    result = triton(url, "-w", "0", "-c", "2", "--csv", tmp_path / "out.csv")
    assert result.status == 1
    assert result.out.splitlines()[0] == "Throughput: 0.0 infer/sec"
    assert result.out.splitlines()[2] == "\tAvg: - ms"
    assert (tmp_path / "out.csv").read_text().splitlines()[1] == "1,0.0,,,,"


# --- what is not -----------------------------------------------------------------------------------------------------


def shapes(inputs: list[Shape], outputs: list[Shape], max_batch: int = 8) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        model.inputs = [(f"IN{index}", "FP32", shape) for index, shape in enumerate(inputs)]
        model.outputs = [(f"OUT{index}", "FP32", shape) for index, shape in enumerate(outputs)]
        model.max_batch = max_batch

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (shapes([[-1, -1]] * 2, [[-1, -1]]), ("expecting 1 input", "has 2: IN0, IN1")),
        (shapes([[-1, -1]], [[-1, -1]] * 3), ("expecting 1 output", "has 3: OUT0, OUT1, OUT2")),
        (shapes([], [[-1, -1]]), ("expecting 1 input", "has 0")),
        (shapes([[-1, 3, -1]], [[-1, -1]]), ("input with 2 dimensions", "IN0", "has 3: [-1, 3, -1]")),
        (shapes([[-1, -1]], [[-1]]), ("output with 2 dimensions", "OUT0", "has 1: [-1]")),
        (shapes([[-1, -1]], [[-1, -1]], 0), ("input with 1 dimension,", "has 2: [-1, -1]")),
        (shapes([[-1, 16]], [[-1, -1]]), ("input of a variable size", "IN0", "[-1, 16]")),
        (shapes([[-1]], [[16]], 0), ("output of a variable size", "OUT0", "[16]")),
    ],
)
def test_a_model_that_does_not_fit_is_an_error(
    url: str, model: Model, change: Callable[[Model], None], words: tuple[str, ...]
) -> None:
    change(model)
    assert_one_line(triton(url), *words, "inferometer run")
    assert not model.seen


def test_a_decoupled_model_is_measured_by_run(url: str, model: Model) -> None:
    model.decoupled = True
    words = "inferometer run grpc://HOST:PORT --model m --set server.stream=true"
    assert_one_line(triton(url), "decoupled", words)
    model.inputs, model.outputs = [("text_input", "BYTES", [1])], [("text_output", "BYTES", [1])]
    assert_one_line(triton(url), "it streams text", f"inferometer run {url} --model m --set server.api=generate")


def test_records_that_cannot_be_kept(url: str, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    assert_one_line(triton(url, "--output", tmp_path / "runs"), "runs: not a folder", "--output FOLDER")


def test_the_current_folder_need_not_be_writable(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    create = os.mkdir

    def outside(path: str, *more: Any, **options: Any) -> None:
        assert not Path(path).resolve().is_relative_to(tmp_path.resolve())
        made.append(path)
        create(path, *more, **options)

    monkeypatch.setattr(os, "mkdir", outside)
    assert triton(url).status in (0, 1)
    assert made and not any(map(os.path.exists, made))


def test_records_go_to_memory_if_there_is_no_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    make = tempfile.mkdtemp

    def nowhere(prefix: str, dir: str | None = None) -> str:
        if dir is None:
            raise FileNotFoundError("No usable temporary directory found")
        return make(prefix=prefix, dir=dir)

    monkeypatch.setattr(tempfile, "mkdtemp", nowhere)
    with triton_client.folder_for_records(None) as folder:
        assert folder.startswith("/dev/shm/")
    assert not Path(folder).exists()


def test_a_server_that_stops_ends_the_run_soon(
    model: Model, in_this_process: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert triton_client.GIVEN_UP_AFTER <= 3
    monkeypatch.setattr(triton_client, "GIVEN_UP_AFTER", 0.2)
    model.stops_after = 20
    with contextlib.ExitStack() as server:

        def serve(client: Client) -> None:
            model.serve(client)
            if len(model.seen) >= model.stops_after:
                server.close()

        url = server.enter_context(scripted(serve))
        result = triton(url, "-c", "100000", "--csv", tmp_path / "out.csv")
    assert (result.status, result.out) == (1, "")
    what, next_step = result.err.splitlines()
    assert what.startswith("inferometer: the server could not be reached for 0.2 s, after ")
    assert what.endswith(" of 100,005 requests")
    assert next_step == "  next: check whether the server is still up"
    assert not (tmp_path / "out.csv").exists()


def test_batches_that_the_model_does_not_take(url: str, model: Model, tmp_path: Path) -> None:
    assert_one_line(triton(url, "-b", "9"), "-b 9", "batches of at most 8")
    shapes([[-1]], [[-1]], 0)(model)
    assert_one_line(triton(url, "-b", "2"), "-b 2", "takes no batches")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("flag", ["-b", "-s", "-c"])
def test_counts_are_at_least_1(flag: str) -> None:
    result = cli("triton", "-m", "m", flag, "0")
    assert result.status == 2 and "x>=1" in result.err


def test_the_model_is_required_and_the_csv_must_be_writable(url: str, tmp_path: Path) -> None:
    assert "--model-name" in cli("triton").err
    assert_one_line(triton(url, "--csv", tmp_path / "no" / "out.csv"), "out.csv")
    assert_one_line(cli("triton", "-m", "other", "-u", url), "other")


@pytest.mark.parametrize(
    ("url", "protocol", "found"),
    [
        (None, None, "http://127.0.0.1:8000"),
        (None, "http", "http://127.0.0.1:8000"),
        (None, "grpc", "grpc://127.0.0.1:8001"),
        ("host:1", "http", "http://host:1"),
        ("host:1", "grpc", "grpc://host:1"),
        ("https://host", "http", "https://host"),
        ("grpcs://host", "grpc", "grpcs://host"),
        ("grpc://host:1", None, "grpc://host:1"),
    ],
)
def test_the_url_and_the_protocol_complete_each_other(url: str | None, protocol: str | None, found: str) -> None:
    assert triton_client.url_of(url, protocol) == found


def test_a_url_without_scheme_and_protocol_is_what_the_port_speaks(url: str) -> None:
    assert triton_client.url_of(url.removeprefix("http://"), None) == url


def test_a_url_of_the_other_protocol_is_refused() -> None:
    assert_one_line(cli("triton", "-m", "m", "-u", "grpc://127.0.0.1:1", "-i", "http"), "-i", "http://HOST:PORT")
    assert_one_line(cli("triton", "-m", "m", "-u", "http://127.0.0.1:1", "-i", "gRPC"), "grpc://HOST:PORT")


# --- remedies name this command's options ----------------------------------------------------------------------------


def test_an_unknown_version_names_the_option(url: str, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = model._respond

    def response(path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        if path == "/v2/models/m/versions/9":
            return 404, {"error": "Request for unknown model: 'm' version 9 is not found"}
        if path == "/v2/repository/index":
            return 200, [{"name": "m", "version": version, "state": "READY"} for version in ("1", "3")]
        return usual(path, headers, body)

    monkeypatch.setattr(model, "_respond", response)
    assert_one_line(triton(url, "-x", "9"), "version 9 is not found", "next: check -x: the server has 1, 3")


def test_a_size_that_does_not_fit_into_memory(url: str, tmp_path: Path) -> None:
    result = triton(url, "-s", "99999999999999")
    assert_one_line(result, "IN: FP32 [1, 99999999999999] is 364 TiB", "use a smaller shape")
    assert not list(tmp_path.glob("runs/*/*"))


def test_a_server_that_does_not_speak_kserve(url: str, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_respond", lambda *_: (404, {"error": "not found"}))
    assert_one_line(triton(url), "it is not a KServe v2 server", "check -u")
