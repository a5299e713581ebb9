"""Complete runs against Triton: what is sent, counted and reported, compared with the server's own statistics and responses."""

import contextlib
import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import helpers
import numpy as np
import psutil
import pytest
from triton_server import Oracle, Triton, running
from triton_server import tensor as job_tensor
from waiting import still

from inferometer import conduct
from inferometer.analysis.breakdown import AVERAGES, Breakdown, breakdown
from inferometer.analysis.summary import Summary
from inferometer.errors import UserError
from inferometer.records import MISSING, Run
from inferometer.units import NS

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("patient")]
pytest_plugins = ["triton_server"]

Server = dict[str, Any]

HTTP: Server = {"api": "kserve"}
JSON: Server = {"api": "kserve-json"}
GRPC: Server = {"api": "kserve"}
STREAM: Server = {"api": "kserve", "stream": True}
PROTOCOLS = {
    "http": HTTP,
    "http json": JSON,
    "http gzip": HTTP | {"compression": "gzip"},
    "grpc": GRPC,
    "grpc gzip": GRPC | {"compression": "gzip"},
    "grpc stream": STREAM,
}
BOTH = ["http", "grpc"]


def url_of(triton: Triton, protocol: str) -> str:
    return triton.grpc if protocol.startswith("grpc") else triton.http


def closed(concurrency: int, requests: int) -> dict[str, Any]:
    return {"type": "closed", "concurrency": concurrency, "requests": requests}


def at_once(requests: int) -> dict[str, Any]:
    """A load for requests that fail: users of a closed loop would wait longer after each failure."""
    return {"type": "constant", "rate": 400, "requests": requests}


def measured(
    folder: Path, triton: Triton, protocol: str, model: str, load: dict[str, Any], **sections: Any
) -> tuple[Run, Summary]:
    """Run with tensors, unless `data` overrides them; `server` is added to what the protocol needs."""
    server = {"model": model} | PROTOCOLS[protocol] | sections.pop("server", {})
    data = {"type": "tensors"} | sections.pop("data", {})
    return helpers.measure(folder, url_of(triton, protocol), server=server, data=data, load=load, **sections)


def input_data(folder: Path, *entries: dict[str, Any]) -> dict[str, Any]:
    """Return a `data` section that sends these requests in turn."""
    path = folder / "data.json"
    path.write_text(json.dumps({"data": list(entries)}))
    return {"fill": f"@{path}"}


def slow_by(folder: Path, ms: int) -> dict[str, Any]:
    return input_data(folder, {"DELAY_MS": [ms]})


def kinds(run: Run) -> Counter[str]:
    """Count failures by code."""
    return Counter(run.records.failures[failure - 1].code for failure in run.records.rows["failure"] if failure)


def check_ok(run: Run, count: int) -> None:
    rows = run.records.rows
    assert not kinds(run), run.records.failures
    assert sorted(rows["id"].tolist()) == list(range(count))
    assert (rows["status"] == 200).all()
    for earlier, later in pairwise(("intended", "sent", "first_byte", "done")):
        assert (rows[earlier] <= rows[later]).all(), f"{earlier} after {later}"


def split(run: Run, stage: int | None = None) -> Breakdown:
    """Return the breakdown, whose parts have to add up."""
    found = breakdown(run, run.records.rows["failure"] == 0, stage)
    assert found is not None
    parts = found.client + found.overhead + found.queue + found.compute
    assert parts == pytest.approx(found.e2e + found.excess, rel=1e-9)
    assert found.source == AVERAGES
    assert min(found.client, found.overhead, found.queue, found.compute) >= 0
    assert found.compute_output is not None
    assert found.excess <= found.compute_output + 1e-4  # the response is sent before the output's time is over
    return found


def stats(oracle: Oracle, triton: Triton, model: str) -> dict[str, int]:
    """Return the server's counts according to tritonclient, for all completed requests."""
    return still(lambda: so_far(oracle, triton, model))


def so_far(oracle: Oracle, triton: Triton, model: str) -> dict[str, int]:
    """The same, while requests may still be counted."""
    (found,) = oracle(triton.http, mode="statistics", model=model)["result"]["model_stats"]
    spent = {f"{name} {unit}": int(one.get(unit, 0)) for name, one in found["inference_stats"].items() for unit in one}
    return spent | {"inferences": found["inference_count"], "executions": found["execution_count"]}


def quiet(oracle: Oracle, triton: Triton) -> None:
    """Wait until `slow`, which handles one request at a time, has finished all earlier requests."""
    delay = job_tensor("DELAY_MS", "INT32", [1], bytes(4))
    assert "outputs" in oracle(triton.http, model="slow", inputs=[delay])


def statistics_of(run: Run) -> dict[str, int]:
    """Return the same counts from the run's manifest."""
    total: Counter[str] = Counter()
    for stage in run.manifest.statistics:
        assert stage is not None
        total.update({"inferences": stage.inferences, "executions": stage.executions})
        for name in stage.__struct_fields__[2:]:
            spent = getattr(stage, name)
            total.update({f"{name} count": spent.count, f"{name} ns": spent.ns})
    return dict(total)


def since(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before.get(name, 0) for name in after}


# --- every protocol -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_request_succeeds_and_is_counted_by_the_server(
    tmp_path: Path, triton: Triton, oracle: Oracle, protocol: str
) -> None:
    before = stats(oracle, triton, "identity")
    data = {"fill": "random", "shape": {"INPUT0": [1, 100]}}
    run, summary = measured(tmp_path, triton, protocol, "identity", closed(4, 200), data=data)
    check_ok(run, 200)
    assert statistics_of(run) == since(before, stats(oracle, triton, "identity"))
    assert statistics_of(run)["success count"] == statistics_of(run)["inferences"] == 200
    found = split(run)
    assert (found.requests, found.counted) == (200, 200)
    assert found.batch == 200 / statistics_of(run)["executions"]
    assert summary.counts.ok == 200
    assert run.manifest.server["name"] == "triton"
    assert run.manifest.server["max_batch_size"] == 64
    if protocol == "http":
        assert (run.records.rows["bytes_out"] > 400).all() and (run.records.rows["bytes_in"] > 400).all()


@pytest.mark.parametrize("protocol", ["http json", "grpc"])
def test_batches_of_four(tmp_path: Path, triton: Triton, oracle: Oracle, protocol: str) -> None:
    before = stats(oracle, triton, "identity")
    run, _ = measured(tmp_path, triton, protocol, "identity", closed(2, 100), data={"batch": 4, "fill": "zeros"})
    check_ok(run, 100)
    counted = since(before, stats(oracle, triton, "identity"))
    assert counted["inferences"] == statistics_of(run)["inferences"] == 400
    assert counted["success count"] == 100
    assert run.manifest.server["batch"] == 4


@pytest.mark.parametrize("protocol", BOTH)
def test_open_loop(tmp_path: Path, triton: Triton, protocol: str) -> None:
    run, summary = measured(
        tmp_path, triton, protocol, "add_sub", {"type": "constant", "rate": 50, "duration": "500ms"}
    )
    check_ok(run, 25)
    intended = np.sort(run.records.rows["intended"])
    assert np.diff(intended).tolist() == [NS // 50] * 24
    assert split(run).client >= 0
    assert summary.counts.ok == 25


def test_two_client_processes(tmp_path: Path, triton: Triton) -> None:
    run, _ = measured(tmp_path, triton, "grpc", "identity", closed(8, 200), client={"processes": 2})
    check_ok(run, 200)
    assert set(run.records.rows["shard"].tolist()) == {0, 1}
    assert statistics_of(run)["success count"] == 200


def test_a_version_and_only_some_outputs(tmp_path: Path, triton: Triton) -> None:
    both, _ = measured(tmp_path, triton, "http", "add_sub", closed(1, 20), server={"version": "1"})
    one, _ = measured(
        tmp_path, triton, "http", "add_sub", closed(1, 20), server={"version": "1", "outputs": ["OUTPUT1"]}
    )
    check_ok(both, 20)
    check_ok(one, 20)
    assert one.records.rows["bytes_in"].max() <= both.records.rows["bytes_in"].min() - 64


# --- where tensors come from --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", BOTH)
def test_arrays_from_an_npz(tmp_path: Path, triton: Triton, protocol: str) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, INPUT0=np.ones((3, 16), np.int32), INPUT1=np.ones((3, 16), np.int32))
    run, _ = measured(tmp_path, triton, protocol, "add_sub", closed(2, 50), data={"fill": f"@{path}"})
    check_ok(run, 50)
    assert statistics_of(run)["inferences"] == 150
    assert run.manifest.server["batch"] == 3


def test_an_array_of_any_size_from_an_npy(tmp_path: Path, triton: Triton) -> None:
    path = tmp_path / "in.npy"
    np.save(path, np.ones(1000, np.float32))
    run, _ = measured(tmp_path, triton, "http", "no_batch", closed(2, 50), data={"fill": f"@{path}"})
    check_ok(run, 50)
    assert (run.records.rows["bytes_in"] > 4000).all()


@pytest.mark.parametrize("model", ["no_batch", "identity"])
def test_perf_analyzers_json_with_a_dynamic_size(tmp_path: Path, triton: Triton, model: str) -> None:
    data = input_data(
        tmp_path,
        {"INPUT0": {"content": [1, 2, 3], "shape": [3]}},
        {"INPUT0": {"content": {"b64": "AACAPwAAAEAAAEBA"}, "shape": [3]}},
        {"INPUT0": [1, 2, 3]},
        {"INPUT0": {"b64": "AACAPwAAAEAAAEBA"}},
        {"INPUT0": {"content": [1, 2, 3, 4], "shape": [4]}},
    )
    data["shape"] = {"INPUT0": [3] if model == "no_batch" else [1, 3]}
    run, _ = measured(tmp_path, triton, "grpc", model, closed(1, 20), data=data)
    check_ok(run, 20)
    assert statistics_of(run)["inferences"] == 20
    rows = run.records.rows
    longer = rows["id"] % 5 == 4
    assert (rows["bytes_in"][longer] > rows["bytes_in"][~longer].max()).all()


def test_optional_inputs_are_left_out_unless_the_data_has_them(tmp_path: Path, triton: Triton) -> None:
    """The model sends eight tokens by default."""
    run, _ = measured(tmp_path, triton, "grpc stream", "generator", closed(2, 10))
    check_ok(run, 10)
    assert set(run.records.rows["chunk_count"].tolist()) == {8}
    data = input_data(tmp_path, {"text_input": ["la"], "max_tokens": [3]})
    run, _ = measured(tmp_path, triton, "grpc stream", "generator", closed(2, 10), data=data)
    check_ok(run, 10)
    assert set(run.records.rows["chunk_count"].tolist()) == {3}


def test_perf_analyzers_json_in_batches(tmp_path: Path, triton: Triton) -> None:
    entries = [{"INPUT0": [n] * 16, "INPUT1": [1] * 16} for n in range(4)]
    data = input_data(tmp_path, *entries) | {"batch": 2}
    run, _ = measured(tmp_path, triton, "http", "add_sub", closed(2, 20), data=data)
    check_ok(run, 20)
    assert statistics_of(run)["inferences"] == 40
    assert run.manifest.workload["distinct"] == 2


# --- streams ------------------------------------------------------------------------------------------------------------

DECOUPLED = "the statistics of a decoupled model end before it responds"


def test_one_arrival_per_response_of_a_decoupled_model(tmp_path: Path, triton: Triton) -> None:
    sizes = [0, 1, 5, 17]
    data = input_data(tmp_path, *({"N": [size]} for size in sizes))
    run, summary = measured(tmp_path, triton, "grpc stream", "square", closed(1, 100), data=data)
    check_ok(run, 100)
    assert (summary.breakdown, summary.no_breakdown) == (None, DECOUPLED)
    rows = run.records.rows
    assert rows["chunk_count"].tolist() == [sizes[id % 4] for id in rows["id"].tolist()]
    assert run.chunk_total == 25 * sum(sizes)
    none = rows["chunk_count"] == 0
    assert (rows["first_token"][none] == MISSING).all()
    assert (rows["first_token"][~none] >= rows["sent"][~none]).all()
    assert (rows["last_token"][~none] <= rows["done"][~none]).all()


def test_generate_stream_counts_tokens_and_times_the_first(tmp_path: Path, triton: Triton) -> None:
    run, summary = helpers.measure(
        tmp_path,
        triton.http,
        server={"model": "generator", "api": "generate", "parameters": {"delay_ms": 1}},
        data={"type": "prompts", "prompts": ["la li lu"], "output": 7},
        load=closed(4, 100),
    )
    check_ok(run, 100)
    rows = run.records.rows
    assert set(rows["chunk_count"].tolist()) == {7}
    assert set(rows["n_out"].tolist()) == {7}
    assert list(summary.tokens_counted_by) == ["chunks"], "neither the server nor the model's tokenizer counts them"
    counted = summary.metrics["ttft"].count
    assert counted >= 96, "the first response of each user may be left out"
    assert ((rows["first_token"] - rows["sent"]) >= NS // 1000).all()
    assert summary.metrics["itl"].count == 6 * counted
    assert statistics_of(run)["success count"] > 0
    assert (summary.breakdown, summary.no_breakdown) == (None, DECOUPLED)


def test_unstreamed_generate(tmp_path: Path, triton: Triton) -> None:
    server = {"model": "generator", "api": "generate", "stream": False, "body": {"delay_ms": 0}}
    data = {"type": "prompts", "prompts": ["la li lu"], "output": 1}
    run, _ = helpers.measure(tmp_path, triton.http, server=server, data=data, load=closed(4, 100))
    check_ok(run, 100)
    assert set(run.records.rows["n_out"].tolist()) == {-1}


def test_unstreamed_generate_fails_if_the_model_sends_several_responses(tmp_path: Path, triton: Triton) -> None:
    server = {"model": "generator", "api": "generate", "stream": False}
    data = {"type": "prompts", "prompts": ["la"], "output": 2}
    run, _ = helpers.measure(tmp_path, triton.http, server=server, data=data, load=at_once(10))
    assert kinds(run) == {"error_body": 10}
    assert "exactly 1 response" in run.records.failures[0].message


@pytest.mark.parametrize("protocol", ["http", "grpc stream"])
def test_an_error_in_the_middle_of_a_stream(tmp_path: Path, triton: Triton, protocol: str) -> None:
    if protocol == "http":
        server = {"model": "generator", "api": "generate", "body": {"fail_after": 2, "delay_ms": 0}}
        data: dict[str, Any] = {"type": "prompts", "prompts": ["la"], "output": 4}
        run, _ = helpers.measure(tmp_path, triton.http, server=server, data=data, load=at_once(20))
    else:
        data = input_data(tmp_path, {"text_input": ["la"], "fail_after": [2], "delay_ms": [0]})
        run, _ = measured(tmp_path, triton, protocol, "generator", at_once(20), data=data)
    if kinds(run)["closed"]:
        pytest.skip("this Triton crashed on errors in several streams, which it does now and then")
    assert kinds(run) == {"error_frame": 20}
    assert {failure.message for failure in run.records.failures} == {"failed after 2 tokens"}
    assert set(run.records.rows["chunk_count"].tolist()) == {2}


# --- sequences ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def recorded(url: str) -> Iterator[tuple[str, list[bytearray]]]:
    """Relay to the server; yields the URL, and what the server sent over each connection."""
    there, received = urlsplit(url), list[bytearray]()

    def connected() -> socket.socket:
        return socket.create_connection((there.hostname or "", there.port or 0))

    def copy(source: socket.socket, sink: socket.socket, record: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                record += data
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def relay(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), connected() as server:
            record = bytearray()
            received.append(record)
            back = threading.Thread(target=copy, args=(server, client, record))
            back.start()
            copy(client, server, bytearray())
            back.join()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=relay, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", received
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def test_concurrent_sequences_are_each_sent_from_their_start(tmp_path: Path, triton: Triton, oracle: Oracle) -> None:
    """The model adds up what it receives from the start flag on: 1, 10, 100, 1000, 10000 in every sequence."""
    entries = [{"INPUT": [10**turn]} for turn in range(5)]
    data = {"type": "tensors", "sequence": 5} | input_data(tmp_path, *entries)
    with recorded(triton.http) as (url, received):
        server = {"model": "sequence", "api": "kserve-json"}
        run, _ = helpers.measure(tmp_path, url, server=server, data=data, load=closed(3, 90))
    check_ok(run, 90)
    sums: dict[int, Counter[int]] = {}
    for body in re.findall(rb'\{"model_name".*?\}\]\}', b"".join(received)):
        values = {output["name"]: output["data"][0] for output in json.loads(body)["outputs"]}
        sums.setdefault(values["SEQUENCE"], Counter())[values["SUM"]] += 1
    assert sum(each.total() for each in sums.values()) == 90
    assert len(sums) == 12  # four per user are encoded, and sent again from the start after the last
    for sequence, each in sums.items():
        begun, *others = (each[total] for total in (1, 11, 111, 1111, 11111))
        assert sorted(others, reverse=True) == others
        assert begun + sum(others) == each.total()
        if others[-1] < begun:  # the run ended before the sequence
            assert others[-1] == begun - 1
            last = job_tensor("INPUT", "INT32", [1, 1], bytes(4))
            oracle(triton.http, model="sequence", inputs=[last], sequence={"id": sequence, "end": True})


@pytest.mark.parametrize("protocol", ["http", "grpc", "grpc stream"])
def test_sequences_end(tmp_path: Path, triton: Triton, protocol: str) -> None:
    """The server holds four at a time, and keeps one without an end for 10 s: 20 without an end would fail."""
    timeouts = {"timeouts": {"total": "5s"}}
    run, _ = measured(tmp_path, triton, protocol, "sequence", closed(1, 100), data={"sequence": 5}, server=timeouts)
    check_ok(run, 100)
    assert statistics_of(run)["success count"] == 100


# --- what the time went into --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", BOTH)
def test_three_of_four_wait_in_the_queue_of_one_instance(
    tmp_path: Path, triton: Triton, oracle: Oracle, protocol: str
) -> None:
    quiet(oracle, triton)
    before = stats(oracle, triton, "slow")
    run, _ = measured(tmp_path, triton, protocol, "slow", closed(4, 48), data=slow_by(tmp_path, 30))
    check_ok(run, 48)
    counted = since(before, stats(oracle, triton, "slow"))
    assert statistics_of(run) == counted
    found = split(run)
    assert found.queue == pytest.approx(counted["queue ns"] / 48 / NS)
    assert found.compute_infer == pytest.approx(counted["compute_infer ns"] / 48 / NS)
    assert found.compute == pytest.approx(
        (counted["compute_input ns"] + counted["compute_infer ns"] + counted["compute_output ns"]) / 48 / NS
    )
    assert found.compute >= 0.03
    assert 2.4 < found.queue / found.compute < 3.2
    assert found.e2e == pytest.approx(4 * found.compute, rel=0.3)


def test_statistics_of_each_stage(tmp_path: Path, triton: Triton, oracle: Oracle) -> None:
    quiet(oracle, triton)
    before = stats(oracle, triton, "slow")
    load = {"type": "stages", "stages": [closed(1, 50), closed(4, 80)]}
    run, _ = measured(tmp_path, triton, "grpc", "slow", load, data=slow_by(tmp_path, 20))
    check_ok(run, 130)
    assert len(run.manifest.statistics) == 2
    assert statistics_of(run) == since(before, stats(oracle, triton, "slow"))
    alone, crowded = split(run, 0), split(run, 1)
    assert alone.requests + crowded.requests == 130
    assert alone.requests >= 50  # some requests of the second stage are counted before its start is noticed
    assert alone.queue < 1.3 * alone.compute
    assert crowded.queue > 2.2 * crowded.compute


def test_statistics_of_several_servers_are_added_up(tmp_path: Path, triton: Triton, oracle: Oracle) -> None:
    """The servers start with different counts, so that mixing them up is detected."""
    measured(tmp_path, triton, "http", "identity", closed(1, 30))
    with running(["identity"]) as other:
        before = [stats(oracle, each, "identity") for each in (triton, other)]
        server = {"model": "identity", "api": "kserve"}
        load = closed(2, 80)
        run, _ = helpers.measure(
            tmp_path, [triton.http, other.http], server=server, data={"type": "tensors"}, load=load
        )
        check_ok(run, 80)
        after = [stats(oracle, each, "identity") for each in (triton, other)]
    counted = [since(*pair) for pair in zip(before, after, strict=True)]
    assert [each["success count"] for each in counted] == [40, 40]
    assert statistics_of(run) == {
        name: counted[0].get(name, 0) + counted[1].get(name, 0) for name in statistics_of(run)
    }
    assert split(run).counted == 80


@pytest.mark.parametrize("protocol", BOTH)
def test_one_server_behind_two_urls_counts_once(tmp_path: Path, triton: Triton, protocol: str) -> None:
    url = getattr(triton, protocol)
    server = {"model": "identity", "api": "kserve"}
    urls = [url, url.replace("127.0.0.1", "localhost")]
    run, _ = helpers.measure(tmp_path, urls, server=server, data={"type": "tensors"}, load=closed(2, 80))
    check_ok(run, 80)
    assert set(run.records.rows["url"].tolist()) == {0, 1}
    assert statistics_of(run)["success count"] == 80 == split(run).counted


def test_a_stored_run_has_the_same_breakdown(tmp_path: Path, triton: Triton) -> None:
    run, _ = measured(tmp_path, triton, "grpc", "identity", closed(2, 50))
    again, _ = conduct.open_run(str(run.folder))
    assert split(again) == split(run)


# --- failures -----------------------------------------------------------------------------------------------------------

WORDS = {
    "fine": ("", ""),
    "INTERNAL": ("http_500", "grpc_INTERNAL"),
    "UNAVAILABLE": ("http_503", "grpc_UNAVAILABLE"),
    "NOT_FOUND": ("http_404", "grpc_NOT_FOUND"),
    "INVALID_ARG": ("http_400", "grpc_INVALID_ARGUMENT"),
}


@pytest.mark.parametrize("protocol", [*BOTH, "http json", "grpc stream"])
def test_failures_are_rows_with_the_servers_message(tmp_path: Path, triton: Triton, protocol: str) -> None:
    data = input_data(tmp_path, *({"INPUT0": [word]} for word in WORDS))
    run, summary = measured(tmp_path, triton, protocol, "failing", at_once(100), data=data)
    code = 1 if protocol == "grpc" else 0
    wanted = (
        {"error_frame": 80}
        if protocol == "grpc stream"
        else {WORDS[word][code]: 20 for word in WORDS if word != "fine"}
    )
    assert kinds(run) == wanted
    assert {failure.message for failure in run.records.failures} == {
        f"told to fail with {word}" for word in WORDS if word != "fine"
    }
    assert (summary.counts.ok, summary.counts.failed) == (20, 80)
    if not protocol.startswith("grpc"):
        assert set(run.records.rows["status"].tolist()) == {200, 400, 404, 500, 503}


def test_a_deadline_is_enforced_by_the_side_that_reaches_it_first(tmp_path: Path, triton: Triton) -> None:
    load = at_once(20)
    run, _ = measured(tmp_path, triton, "grpc", "slow", load, data=slow_by(tmp_path, 20), server={"deadline": "1ms"})
    assert kinds(run) == {"grpc_DEADLINE_EXCEEDED": 20}


def test_a_timeout_of_ours_ends_the_request(tmp_path: Path, triton: Triton) -> None:
    entries = input_data(tmp_path, {"DELAY_MS": [0]}, {"DELAY_MS": [400]})
    run, _ = measured(
        tmp_path, triton, "grpc", "slow", closed(1, 4), data=entries, server={"timeouts": {"total": "150ms"}}
    )
    failed = kinds(run)
    assert set(failed) == {"total_timeout"}
    assert failed["total_timeout"] >= 2
    assert len(run.records.rows) == 4


@pytest.mark.parametrize("protocol", BOTH)
def test_a_server_that_dies_causes_failures_and_no_hang(tmp_path: Path, oracle: Oracle, protocol: str) -> None:
    with running(["slow"]) as triton:

        def kill() -> None:
            # More than are required below: a counted response may not have left the server.
            while so_far(oracle, triton, "slow").get("success count", 0) < 30:
                pass
            server = psutil.Process(triton.pid)
            for process in (server, *server.children(recursive=True)):  # its models are separate processes
                process.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        load = {"type": "constant", "rate": 100, "requests": 200}
        run, summary = measured(tmp_path, triton, protocol, "slow", load, data=slow_by(tmp_path, 5))
        killer.join()
    assert len(run.records.rows) == 200
    assert summary.counts.ok >= 20
    failed = kinds(run)
    assert summary.counts.ok + sum(failed.values()) == 200
    assert set(failed) <= {"connect_refused", "connect_failed", "closed", "reset", "cut_short"}, failed
    assert failed["connect_refused"] > 0
    assert run.manifest.statistics == (None,)
    assert breakdown(run, run.records.rows["failure"] == 0) is None
    assert summary.no_breakdown is not None and "statistics could not be read" in summary.no_breakdown


# --- what is wrong before t=0 -------------------------------------------------------------------------------------------


def refused(folder: Path, triton: Triton, protocol: str, model: str, **sections: Any) -> str:
    """Return the one-line error; nothing is sent and no folder is left."""
    output = folder / "runs"
    output.mkdir()
    with pytest.raises(UserError) as caught:
        measured(output, triton, protocol, model, closed(1, 2), **sections)
    assert not list(output.iterdir())
    return f"{caught.value.line} | {caught.value.next_step}"


@pytest.mark.parametrize("protocol", BOTH)
def test_an_unknown_model_error_lists_the_known_models(tmp_path: Path, triton: Triton, protocol: str) -> None:
    message = refused(tmp_path, triton, protocol, "identty")
    assert "identty" in message
    assert "did you mean identity?" in message
    assert "no_batch" in message


@pytest.mark.parametrize("protocol", BOTH)
def test_an_unknown_version(tmp_path: Path, triton: Triton, protocol: str) -> None:
    message = refused(tmp_path, triton, protocol, "identity", server={"version": "9"})
    assert "version 9 is not found" in message
    assert "check server.version: the server has 1" in message


@pytest.mark.parametrize("protocol", BOTH)
def test_a_decoupled_model_without_a_stream(tmp_path: Path, triton: Triton, protocol: str) -> None:
    message = refused(tmp_path, triton, protocol, "square")
    assert "decoupled" in message
    assert "server.stream" in message


def test_a_wrong_shape_error_has_the_expected_and_the_given_shape(tmp_path: Path, triton: Triton) -> None:
    message = refused(tmp_path, triton, "http", "add_sub", data={"shape": {"INPUT0": [1, 17]}})
    assert "INPUT0" in message and "[-1, 16]" in message and "[1, 17]" in message


def test_a_wrong_input_name_error_has_the_expected_names(tmp_path: Path, triton: Triton) -> None:
    message = refused(tmp_path, triton, "http", "add_sub", data={"shape": {"INPUT2": [1, 16]}})
    assert "INPUT2" in message and "INPUT0, INPUT1" in message


@pytest.mark.parametrize("kind", ["npz", "json", "json with a shape"])
def test_a_wrong_shape_in_a_file(tmp_path: Path, triton: Triton, kind: str) -> None:
    if kind == "npz":
        np.savez(tmp_path / "in.npz", INPUT0=np.ones((1, 17), np.int32), INPUT1=np.ones((1, 16), np.int32))
        data = {"fill": f"@{tmp_path / 'in.npz'}"}
    elif kind == "json":
        data = input_data(tmp_path, {"INPUT0": [1] * 17, "INPUT1": [1] * 16})
    else:
        data = input_data(tmp_path, {"INPUT0": {"content": [1] * 17, "shape": [17]}, "INPUT1": [1] * 16})
    message = refused(tmp_path, triton, "grpc", "add_sub", data=data)
    assert "INPUT0" in message and "16" in message and "17" in message


def test_a_batch_in_a_file_that_is_too_large(tmp_path: Path, triton: Triton) -> None:
    np.savez(tmp_path / "in.npz", INPUT0=np.ones((9, 16), np.int32), INPUT1=np.ones((9, 16), np.int32))
    message = refused(tmp_path, triton, "grpc", "add_sub", data={"fill": f"@{tmp_path / 'in.npz'}"})
    assert "9" in message and "8" in message


@pytest.mark.parametrize("kind", ["npz", "json"])
def test_a_wrong_name_in_a_file(tmp_path: Path, triton: Triton, kind: str) -> None:
    np.savez(tmp_path / "in.npz", INPUT=np.ones((1, 16), np.int32), INPUT1=np.ones((1, 16), np.int32))
    data = input_data(tmp_path, {"INPUT": [1] * 16, "INPUT1": [1] * 16})
    data = {"fill": f"@{tmp_path / 'in.npz'}"} if kind == "npz" else data
    message = refused(tmp_path, triton, "grpc", "add_sub", data=data)
    assert "has no INPUT0" in message and "it has INPUT, INPUT1" in message


@pytest.mark.parametrize("kind", ["npz", "json"])
def test_a_wrong_datatype_in_a_file(tmp_path: Path, triton: Triton, kind: str) -> None:
    np.savez(tmp_path / "in.npz", INPUT0=np.full((1, 16), 0.5), INPUT1=np.ones((1, 16), np.int32))
    data = input_data(tmp_path, {"INPUT0": [0.5] * 16, "INPUT1": [1] * 16})
    data = {"fill": f"@{tmp_path / 'in.npz'}"} if kind == "npz" else data
    message = refused(tmp_path, triton, "grpc", "add_sub", data=data)
    assert "INPUT0" in message and "INT32" in message
    assert ("float64" if kind == "npz" else "0.5") in message


def test_a_batch_for_a_model_without_batching(tmp_path: Path, triton: Triton) -> None:
    message = refused(tmp_path, triton, "http", "no_batch", data={"batch": 2})
    assert "takes no batches" in message


def test_fp16_as_json_is_refused_before_anything_is_sent(tmp_path: Path, triton: Triton) -> None:
    message = refused(tmp_path, triton, "http json", "all_types", data={"shape": {"IN_FP16": [1]}})
    assert "FP16 cannot be sent as JSON" in message


@pytest.mark.parametrize("protocol", BOTH)
def test_the_other_protocols_port(tmp_path: Path, triton: Triton, protocol: str) -> None:
    wrong = triton._replace(http=triton.grpc.replace("grpc:", "http:"), grpc=triton.http.replace("http:", "grpc:"))
    message = refused(tmp_path, wrong, protocol, "identity")
    assert ("grpc://" if protocol == "http" else "http://") in message


# --- compressed responses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("protocol", ["http", "http json"])
def test_http_responses_are_compressed_if_a_header_requests_it(
    tmp_path: Path, triton: Triton, protocol: str, encoding: str
) -> None:
    data = {"fill": "zeros", "shape": {"INPUT0": [1, 10_000]}}
    server = {"headers": {"accept-encoding": encoding}}
    plain, _ = measured(tmp_path / "plain", triton, protocol, "identity", closed(2, 10), data=data)
    run, summary = measured(tmp_path / "packed", triton, protocol, "identity", closed(2, 10), data=data, server=server)
    assert (summary.counts.ok, summary.counts.failed) == (10, 0)
    assert summary.breakdown is not None
    assert int(plain.records.rows["bytes_in"].min()) > 20_000
    assert int(run.records.rows["bytes_in"].max()) < 2_000


@pytest.mark.parametrize("protocol", ["grpc", "grpc stream"])
def test_compressed_grpc_responses_are_decoded(tmp_path: Path, protocol: str) -> None:
    data = {"fill": "zeros", "shape": {"INPUT0": [1, 10_000]}}
    with running(["identity"], ["--grpc-infer-response-compression-level=high"]) as triton:
        run, summary = measured(tmp_path, triton, protocol, "identity", closed(2, 10), data=data)
    assert (summary.counts.ok, summary.counts.failed) == (10, 0)
    assert int(run.records.rows["bytes_in"].max()) < 2_000
