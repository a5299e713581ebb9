"""Traffic classes and replicas, from the config to the report, against simulators and recording servers."""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow.parquet as pq
import pytest
from grpc_peers import grpcio
from grpc_peers import run as grpc_run
from helpers import Client, http_response, measure, scripted
from kserve_peers import over_grpc, over_http

from inferometer import workload
from inferometer.analysis.slo_result import is_passed
from inferometer.analysis.summary import summarise
from inferometer.config import from_mapping
from inferometer.errors import UserError
from inferometer.fleet.lost import add_lost_rows
from inferometer.records import Run
from inferometer.report import json as report_json
from inferometer.report.console import render
from inferometer.report.csv import write
from inferometer.store import read
from inferometer.store.spool import Control, rows_of
from inferometer.types import OpenStage, Plan

TEXT = {"type": "prompts", "prompts": ["hello"], "output": 2}


def mix(*classes: dict[str, Any]) -> dict[str, Any]:
    return {"type": "mix", "classes": [{"data": TEXT} | each for each in classes]}


CHAT = {"name": "chat", "weight": 3, "headers": {"X-Tier": "gold-secret"}, "slo": "ttft.p90 < 10s"}
BATCH = {
    "name": "batch",
    "model": "lora-7",
    "body": {"priority": 9},
    "data": {"type": "synthetic", "input": 20, "output": 2},
}
LOAD = {"type": "closed", "concurrency": 4, "requests": 256, "ramp_up": 0}


@pytest.fixture(scope="module")
def seen() -> list[tuple[dict[str, str], Any]]:
    return []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, seen: list[tuple[dict[str, str], Any]]) -> Run:
    """A run of two classes, against a server that records what it receives."""

    def script(client: Client) -> None:
        while (request := client.request()) is not None:
            if request[2]:  # not the list of models
                seen.append((request[1], json.loads(request[2])))
            client.send(http_response())

    with scripted(script) as url:
        server = {"headers": {"X-Tier": "none"}}
        done, _ = measure(tmp_path_factory.mktemp("run"), url, data=mix(CHAT, BATCH), load=LOAD, server=server)
    return done


def test_each_class_has_its_share_headers_model_and_body(run: Run, seen: list[tuple[dict[str, str], Any]]) -> None:
    sent = Counter((headers["x-tier"], body["model"], body.get("priority")) for headers, body in seen)
    assert sent == {("gold-secret", "m", None): 192, ("none", "lora-7", 9): 64}


def test_rows_have_the_name_of_their_class(run: Run) -> None:
    table = pq.read_table(run.folder / "requests.parquet", columns=["id", "class", "session", "turn", "replica"])
    assert Counter(table["class"].to_pylist()) == {"chat": 192, "batch": 64}
    assert set(table["session"].to_pylist()) == set(table["turn"].to_pylist()) == {None}
    assert len(set(table["replica"].to_pylist())) == 1


def test_the_summary_and_the_report_have_rows_per_class(run: Run, tmp_path: Path) -> None:
    summary = summarise(run)
    assert [(group.name, group.counts.ok) for group in summary.classes] == [("chat", 192), ("batch", 64)]
    assert summary.replicas == ()
    rates = [group.throughput.requests or 0 for group in summary.classes]
    assert sum(rates) == pytest.approx(summary.throughput.requests)
    assert sum(group.metrics["e2e"].count for group in summary.classes) == summary.metrics["e2e"].count
    assert {group.metrics["itl"].count for group in summary.classes} == {
        group.metrics["e2e"].count for group in summary.classes
    }  # two chunks per response
    assert summary.classes[1].metrics["input_tokens"].count
    text = render(run, summary)
    assert "classes, ms" in text and "replicas" not in text
    with (tmp_path / "requests.csv").open("wb") as file:
        write(run, file)
    with (tmp_path / "requests.csv").open() as rows:
        assert Counter(row["class"] for row in csv.DictReader(rows)) == {"chat": 192, "batch": 64}


def test_the_stored_run_gives_the_same_summary(run: Run) -> None:
    assert report_json.encode(summarise(read(run.folder))) == (run.folder / "summary.json").read_bytes()


def test_the_values_of_headers_are_not_stored(run: Run) -> None:
    assert not any(b"gold-secret" in path.read_bytes() for path in run.folder.iterdir() if path.is_file())


def test_the_objective_of_a_class_is_judged_by_its_own_requests(run: Run) -> None:
    summary = summarise(run)
    (result,) = summary.slos
    assert (result.slo, result.class_) == ("chat: ttft.p90 < 10s", "chat")
    assert result.status in ("met", "undecided")  # the times of a machine that stalls say less
    assert summary.classes[0].slos == (result,) and summary.classes[1].slos == ()
    assert f"of {summary.classes[0].metrics['e2e'].count} requests" in result.reason
    assert "chat: ttft.p90 < 10s" in render(run, summary)
    assert summarise(run, []).slos == ()


def test_a_missed_objective_of_a_class_fails_the_run(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        while client.request():
            client.send(http_response())

    with scripted(script) as url:
        data = mix(CHAT | {"slo": ["ttft.p90 < 1ns"]}, BATCH)
        _, summary = measure(tmp_path, url, data=data, load=LOAD, slo=["failure_rate < 50%"])
    assert [result.status for result in summary.slos] == ["met", "missed"]
    assert not is_passed(summary.slos)


def test_an_error_in_an_objective_names_the_class(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        measure(tmp_path, "http://127.0.0.1:1", data=mix(CHAT, BATCH | {"slo": "ttft.p98 < 1s"}))
    assert "data.classes.1.slo" in caught.value.line


def test_rows_per_class_in_every_stage(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        while client.request():
            client.send(http_response())

    stages = [LOAD | {"requests": 64, "concurrency": users} for users in (1, 4)]
    with scripted(script) as url:
        run, summary = measure(tmp_path, url, data=mix(CHAT, BATCH), load={"type": "stages", "stages": stages})
    assert [[group.counts.ok for group in stage.classes] for stage in summary.stages] == [[48, 16], [48, 16]]
    assert [group.counts.ok for group in summary.classes] == [96, 32]
    assert [group.metrics for group in summary.classes] == [{}, {}]
    (result,) = summary.slos
    assert result.slo == "chat: ttft.p90 < 10s" and result.stages
    assert "chat, 1 closed 1" in render(run, summary)


def test_replicas_have_rows_that_add_up(tmp_path: Path) -> None:
    def slow(client: Client) -> None:
        while client.request():
            client.send(http_response())

    with scripted(slow) as first, scripted(slow) as second:
        run, summary = measure(tmp_path, [first, second], load=LOAD)
    addresses = sorted(url.removeprefix("http://") for url in (first, second))
    assert [group.name for group in summary.replicas] == addresses
    assert sum(group.counts.ok for group in summary.replicas) == summary.counts.ok == 256
    rates = [group.throughput.requests or 0 for group in summary.replicas]
    assert sum(rates) == pytest.approx(summary.throughput.requests)
    text = render(run, summary)
    assert all(address in text for address in addresses) and "replicas, ms" in text


def test_urls_at_one_address_are_replicas_of_their_own(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        while client.request():
            client.send(http_response())

    with scripted(script) as url:
        _, summary = measure(tmp_path, [f"{url}/a", f"{url}/b"], load=LOAD)
    address = url.removeprefix("http://")
    assert [group.name for group in summary.replicas] == [f"{url}/a at {address}", f"{url}/b at {address}"]


def test_later_turns_keep_the_class_of_their_session(tmp_path: Path) -> None:
    seen = []

    def script(client: Client) -> None:
        while (request := client.request()) is not None:
            if request[2]:  # not the list of models
                seen.append((len(json.loads(request[2])["messages"]), request[1].get("x-tier")))
            client.send(http_response())

    path = tmp_path / "turns.jsonl"
    path.write_text('{"turns": ["a", "b", "c"]}\n')
    talk = {"name": "talk", "data": {"type": "jsonl", "path": str(path)}, "headers": {"X-Tier": "talker"}}
    with scripted(script) as url:
        load = LOAD | {"requests": 64}
        run, summary = measure(tmp_path, url, data=mix(talk, BATCH), load=load, server={"api": "chat"})
    rows = run.records.rows
    by_turn = Counter(zip(rows["class"].tolist(), rows["turn"].tolist(), strict=True))
    assert {key: count for key, count in by_turn.items() if key[0] == 0} == {(0, turn): 32 for turn in range(3)}
    assert summary.classes[1].counts.ok == 32
    assert {tier for messages, tier in seen if messages > 1} == {"talker"}


def test_requests_of_a_lost_process_keep_their_class(tmp_path: Path) -> None:
    """The plan says which requests a process that died had to send, and their ids say which class they belong to."""
    spec = from_mapping({"server": {"url": "http://x"}, "data": mix(CHAT, BATCH)}).data
    control = Control(tmp_path / "0.control", create=True)
    control["t0"] = control["heartbeat"] = 1
    plan = Plan((OpenStage(np.arange(64, dtype=np.int64), 64),))
    add_lost_rows(tmp_path, 0, plan, class_of=lambda ids: workload.classes_of(spec, 0, ids))
    rows = rows_of(tmp_path, 0, control["rows"])
    assert Counter(rows["class"].tolist()) == {0: 48, 1: 16}


def test_classes_have_their_own_metadata_over_grpc(tmp_path: Path) -> None:
    seen: Counter[tuple[str, str]] = Counter()

    def echo(message: bytes, context: grpc.ServicerContext) -> bytes:
        metadata = dict(context.invocation_metadata())
        seen[str(metadata["x-tier"]), message.decode()[2:]] += 1
        return message

    def said(text: str) -> dict[str, Any]:
        return {"type": "messages", "messages": [{"text": text}]}

    data = mix(
        {"name": "gold", "weight": 3, "data": said("gold"), "headers": {"X-Tier": "gold"}},
        {"name": "rest", "data": said("rest")},
    )
    with grpcio(Unary=echo) as url:
        server = {"headers": {"x-tier": "none"}}
        _, summary = grpc_run(tmp_path, url, data=data, load=LOAD | {"requests": 64}, server=server)
    assert [group.counts.ok for group in summary.classes] == [48, 16]
    assert seen == {("gold", "gold"): 48, ("none", "rest"): 16}


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_classes_of_tensors_for_one_model(tmp_path: Path, scheme: str) -> None:
    data = mix(
        {"name": "small", "data": {"type": "tensors", "fill": "zeros"}},
        {"name": "large", "data": {"type": "tensors", "batch": 4}, "body": {"priority": 1}},
    )
    with scripted(over_http()) if scheme == "http" else over_grpc() as url:
        server = {"api": "kserve", "model": "pair"}
        run, summary = measure(tmp_path, url, data=data, load=LOAD | {"requests": 64}, server=server)
    assert [group.counts.ok for group in summary.classes] == [32, 32]
    rows = run.records.rows
    sizes = [set(rows["bytes_out"][rows["class"] == index].tolist()) for index in (0, 1)]
    assert max(sizes[0]) + 4 * 4 * 2 * 3 <= min(sizes[1])
