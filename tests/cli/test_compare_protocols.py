"""`inferometer compare-protocols` against a small KServe server over HTTP. (tests/real has all protocols, against Triton.)"""

import importlib.util
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from command import Result, assert_one_line, cli
from helpers import Client, scripted

from inferometer import compare_protocols, conduct
from inferometer.analysis.protocol_comparison import PROTOCOLS
from inferometer.records import Outcome


class Identity:
    """A server whose model returns an empty response, and which records its requests."""

    def __init__(self) -> None:
        self.datatype, self.shape, self.max_batch = "FP32", [-1, -1], 8
        self.timing = "Server-Timing: queue;dur=0.01, compute;dur=0.04\r\n"
        self.json_fails = False
        self.decoupled = False
        self.seen: list[tuple[str, bytes]] = []
        """The kind of each request, and its body."""
        self._lock = threading.Lock()

    def serve(self, client: Client) -> None:
        while request := client.request():
            first, headers, body = request
            status, tree, extra = self._respond(first.split()[1], headers, body)
            content = json.dumps(tree).encode() if tree is not None else b""
            client.send(f"HTTP/1.1 {status} X\r\n{extra}Content-Length: {len(content)}\r\n\r\n".encode() + content)

    def _respond(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any, str]:
        if path.endswith(("/live", "/ready", "/v2")):
            return 200, {"name": "test", "version": "1.2", "extensions": []}, ""
        if path.endswith("/infer"):
            kind = "http" if "inference-header-content-length" in headers else "http-json"
            with self._lock:
                self.seen.append((kind, body))
            if kind == "http-json" and self.json_fails:
                return 400, {"error": "no JSON here"}, ""
            return 200, {"model_name": "identity", "outputs": []}, self.timing
        if path.endswith("/config"):
            policy = {"decoupled": self.decoupled}
            return 200, {"name": "identity", "max_batch_size": self.max_batch, "model_transaction_policy": policy}, ""
        if path.startswith("/v2/models/identity") and not path.endswith("/stats"):
            tensor = {"datatype": self.datatype, "shape": self.shape}
            return 200, {
                "name": "identity", "versions": ["1"], "platform": "test",
                "inputs": [{"name": "IN"} | tensor], "outputs": [{"name": "OUT"} | tensor],
            }, ""  # fmt: skip
        return 404, {"error": "unknown"}, ""


@pytest.fixture
def model() -> Identity:
    return Identity()


@pytest.fixture
def served(model: Identity, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL."""
    monkeypatch.chdir(tmp_path)
    with scripted(model.serve) as url:
        yield url


@pytest.fixture
def url(served: str, in_this_process: None) -> str:
    """The same, with the client in this process."""
    return served


def compare(url: str, *more: str | Path) -> Result:
    return cli("compare-protocols", url, "--sizes", "40", "--requests", "9", *more)


def numbers(url: str, *more: str | Path) -> dict[str, Any]:
    result = compare(url, "--json", "-", "-q", *more)
    assert result.status in (0, 1) and result.err == "", result.err
    tree: dict[str, Any] = json.loads(result.out)
    return tree


# --- measurements ----------------------------------------------------------------------------------------------------


def test_every_cell_has_a_row_and_progress_goes_to_standard_error(url: str) -> None:
    result = compare(url, "--sizes", "40,1kB")
    assert result.status in (0, 1), result.err
    assert result.err.splitlines() == [
        "1/4 HTTP binary, 40 B", "2/4 HTTP JSON, 40 B", "3/4 HTTP JSON, 1 kB", "4/4 HTTP binary, 1 kB",
    ]  # fmt: skip
    assert result.out.startswith(f" identity · test 1.2 · {url}\n")
    assert result.out.count("HTTP JSON") >= 4 and "gRPC unary" not in result.out
    assert "grpc was not measured" in result.out
    assert "as the server reported them for each request" in result.out


def test_all_protocols_send_the_same_tensor_every_time(url: str, model: Identity) -> None:
    compare(url, "--sizes", "40,1kB")
    assert Counter(kind for kind, _ in model.seen) == {"http": 2 * 10, "http-json": 2 * 10}
    sent: dict[int, set[bytes]] = {10: set(), 250: set()}
    for kind, body in model.seen:
        tree, end = json.JSONDecoder().raw_decode(body.decode("latin-1"))
        (one,) = tree["inputs"]
        batch, count = one["shape"]
        assert (one["datatype"], batch) == ("FP32", 1)
        data = body[end:] if kind == "http" else np.array(one["data"], "<f4").tobytes()
        sent[count].add(data)
    assert [len(found) for found in sent.values()] == [1, 1]
    assert [len(found.pop()) for found in sent.values()] == [40, 1000]


def test_the_json_has_the_figures_without_the_first_request(url: str) -> None:
    found = numbers(url, "--sizes", "40,1kB")
    assert (found["model"], found["server"], found["http"], found["grpc"]) == ("identity", "test 1.2", url, None)
    assert [(cell["protocol"], cell["size"]) for cell in found["cells"]] == [
        ("http", 40), ("http-json", 40), ("http", 1000), ("http-json", 1000),
    ]  # fmt: skip
    for cell in found["cells"]:
        assert (cell["ok"], cell["failed"], cell["source"], cell["runs"]) == (9, 0, "each request", [])
        assert cell["server"] == pytest.approx(50e-6)
        assert cell["mean"] + cell["excess"] == pytest.approx(cell["server"] + cell["overhead"])
        assert cell["mean"] == pytest.approx(cell["e2e"]["mean"])
        assert cell["bytes_out"] > cell["size"]


def test_rounds_are_summed_up(url: str) -> None:
    found = numbers(url, "--rounds", "2")
    assert [cell["ok"] for cell in found["cells"]] == [18, 18]
    assert found["rounds"] == 2


def test_credentials_in_the_url_are_not_repeated(url: str, tmp_path: Path) -> None:
    result = compare(url.replace("://", "://me:hush@"), "--json", tmp_path / "out.json", "--out", tmp_path / "kept")
    assert result.status in (0, 1), result.err
    assert url in result.out and json.loads((tmp_path / "out.json").read_text())["http"] == url
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert "hush" not in result.out + result.err and b"hush" not in written
    assert_one_line(cli("compare-protocols", url, "--grpc", "http://me:hush@127.0.0.1:1"), "--grpc http://...")


def test_a_model_without_batches_gets_one_dimension(url: str, model: Identity) -> None:
    model.max_batch, model.shape = 0, [-1]
    assert [cell["ok"] for cell in numbers(url)["cells"]] == [9, 9]
    assert json.JSONDecoder().raw_decode(model.seen[0][1].decode("latin-1"))[0]["inputs"][0]["shape"] == [10]


def test_runs_are_kept_in_the_given_folder(url: str, tmp_path: Path) -> None:
    found = numbers(url, "--out", tmp_path / "kept")
    assert not (tmp_path / "runs").exists()
    for cell in found["cells"]:
        (folder,) = cell["runs"]
        assert Path(folder).parent == tmp_path / "kept"
        run, summary = conduct.open_run(folder)
        assert summary.counts.ok == 9 and summary.verdict == cell["verdict"]
        assert run.manifest.config["server"]["api"] == PROTOCOLS[cell["protocol"]].api  # type: ignore[index]
        assert set(run.manifest.observer_cpu) == {"kserve"}, "nothing else disturbs the measurement"
    again = cli("report", tmp_path / "kept")
    assert "protocol http, size 40: " in again.out and "protocol http-json, size 40: " in again.out, again


def test_a_protocol_that_the_server_rejects_is_invalid_with_a_reason(url: str, model: Identity) -> None:
    model.json_fails = True
    result = cli("compare-protocols", url, "--sizes", "40", "--requests", "2")
    assert result.status == 1
    assert "no successful response" in result.out and "no JSON here" in result.out


def test_a_server_that_does_not_report_its_time_has_no_split(url: str, model: Identity) -> None:
    model.timing = ""
    result = compare(url)
    assert f"-: the server's statistics could not be read: {url}: " in " ".join(result.out.split())
    assert "not split" in result.out


@pytest.mark.slow
def test_a_duration_ends_a_cell(served: str) -> None:
    """In its own process: a client that shares this process with the server may not get to run within that time."""
    result = cli("compare-protocols", served, "--sizes", "40", "--duration", "300ms", "--json", "-")
    found = json.loads(result.out)
    assert (found["duration"], found["requests"]) == (0.3, None)
    assert all(cell["ok"] > 0 for cell in found["cells"])


def test_the_chart_is_drawn(url: str, tmp_path: Path) -> None:
    assert compare(url, "--chart", tmp_path / "out.svg").status in (0, 1)
    assert "One model, by protocol" in (tmp_path / "out.svg").read_text()


def test_an_interrupted_run_ends_the_comparison_with_the_results_so_far(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, count = conduct.measure, 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        found = measure(*arguments)
        if count == 2:
            manifest = msgspec.structs.replace(found[0].manifest, outcome=Outcome(interrupted=True))
            return msgspec.structs.replace(found[0], manifest=manifest), found[1]
        return found

    monkeypatch.setattr(conduct, "measure", interrupted)
    result = compare(url, "--sizes", "40,1kB")
    assert result.status == 1 and count == 2
    assert "interrupted: not everything was measured" in result.out
    assert "40 B" in result.out and "1 kB" not in result.out


# --- the order -------------------------------------------------------------------------------------------------------


def test_each_turn_begins_with_another_protocol() -> None:
    ways, sizes = list(PROTOCOLS), (1, 2, 3)
    order = compare_protocols.run_order(ways, sizes, 2)
    assert Counter(order) == {(way, size): 2 for way in ways for size in sizes}
    begun = [order[at] for at in range(0, len(order), 4)]
    assert begun == [(ways[(turn + index) % 4], size) for turn in range(2) for index, size in enumerate(sizes)]
    for at in range(0, len(order), 4):
        assert len({size for _, size in order[at : at + 4]}) == 1


def test_over_four_rounds_each_protocol_has_every_position() -> None:
    order = compare_protocols.run_order(list(PROTOCOLS), (1,), 4)
    for position in range(4):
        assert {way for way, _ in order[position::4]} == set(PROTOCOLS)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--sizes", "1kB,x"), ("--sizes", "'x'")),
        (("--sizes", "1kB,"), ("--sizes",)),
        (("--sizes", "10"), ("10 bytes", "FP32", "multiple of 4")),
        (("--sizes", "0"), ("0 bytes",)),
        (("--sizes", "1kB,1000"), ("twice",)),
        (("--duration", "1s"), ("--duration and --requests",)),
        (("--grpc", "http://127.0.0.1:1"), ("--grpc http://...", "grpc://HOST:PORT")),
        (("--grpc", "127.0.0.1:1"), ("grpc://127.0.0.1:1",)),
        (("--model", "identiti"), ("identiti",)),
        (("--chart", "out.gif"), ("out.gif", ".svg")),
        (("--chart", "no/out.svg"), ("no/out.svg",)),
        (("--json", "no/out.json"), ("no/out.json",)),
    ],
)
def test_bad_input_is_an_error_before_anything_is_sent(
    url: str, model: Identity, more: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert_one_line(compare(url, *more), *words)
    assert not model.seen


@pytest.mark.parametrize("duration", ["0", "soon"])
def test_a_bad_duration(url: str, duration: str) -> None:
    assert_one_line(cli("compare-protocols", url, "--duration", duration), "--duration")


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "BYTES"])
def test_a_datatype_that_json_cannot_carry_as_numbers(url: str, model: Identity, datatype: str) -> None:
    model.datatype = datatype
    assert_one_line(compare(url), datatype, "JSON", "FP32")


def test_a_model_with_a_fixed_size(url: str, model: Identity) -> None:
    model.shape = [-1, 16]
    assert_one_line(compare(url), "variable size", "[-1, 16]")


def test_the_url_must_be_the_http_port() -> None:
    assert_one_line(cli("compare-protocols", "grpc://127.0.0.1:1"), "URL grpc://", "http://HOST:PORT --grpc grpc://")


def test_swapped_ports(url: str) -> None:
    def settings(client: Client) -> None:
        client.sock.recv(65536)
        client.send(b"\0\0\0\4\0\0\0\0\0")

    with scripted(settings) as other:
        result = compare(other.replace("//", "//me:hush@"))
        assert_one_line(result, "speaks HTTP/2", f"http://HOST:PORT --grpc {other.replace('http', 'grpc')}\n")
    assert "hush" not in result.err

    def web(client: Client) -> None:
        client.sock.recv(65536)
        client.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with scripted(web) as other:
        result = compare(url, "--grpc", other.replace("http", "grpc"))
    assert_one_line(result, "does not speak HTTP/2", "gRPC port with --grpc")
    assert "write http" not in result.err


def test_a_decoupled_model_is_measured_by_run(url: str, model: Identity) -> None:
    model.decoupled = True
    assert_one_line(compare(url), "decoupled", "inferometer run grpc://HOST:PORT --model identity")


def test_a_bad_folder_is_an_error_that_names_the_option(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = compare(url, "--out", tmp_path / "file" / "runs")
    assert_one_line(result, "not a folder", "another folder: --output FOLDER")


@pytest.mark.slow
def test_without_a_url_the_reference_server_is_measured_over_all_protocols(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    result = cli("compare-protocols", "--sizes", "1kB", "--requests", "20", "--json", str(out))
    assert result.status in (0, 1), result
    cells = json.loads(out.read_text())["cells"]
    assert [cell["protocol"] for cell in cells] == list(PROTOCOLS)
    assert all(cell["ok"] == 20 and cell["failed"] == 0 for cell in cells)
    assert all(0 < cell["server"] < cell["mean"] for cell in cells)


def test_only_a_chart_needs_the_extra(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "altair" else find(name))
    assert_one_line(compare(url, "--chart", "out.svg"), "altair", "inferometer[report]")
    assert compare(url).status in (0, 1)
