"""Runs of datasets: what the server receives, and what the run says about broken rows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import STREAM, Client, http_response, measure, scripted

from inferometer.errors import UserError
from inferometer.report.console import render

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
TALK = [
    {"from": "human", "value": "Name a river."},
    {"from": "gpt", "value": "The Loire."},
    {"from": "human", "value": "Another."},
]


def write_lines(path: Path, *rows: Any) -> None:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))


SOURCES: dict[str, tuple[dict[str, Any], Callable[[Path], Any], list[Any]]] = {
    "sharegpt": (
        {"type": "sharegpt", "output": "reference"},
        lambda path: path.write_text(json.dumps([{"conversations": TALK}])),
        [{"role": "user", "content": "Name a river."}],
    ),
    "csv": (
        {"type": "csv", "template": "Q: {q}"},
        lambda path: path.write_text("q,a\nWhy?,So.\n"),
        [{"role": "user", "content": "Q: Why?"}],
    ),
    "parquet": (
        {"type": "parquet"},
        lambda path: pq.write_table(pa.table({"prompt": ["Why?"]}), path),
        [{"role": "user", "content": "Why?"}],
    ),
    "alpaca": (
        {"type": "jsonl"},
        lambda path: write_lines(path, {"instruction": "Add.", "input": "1, 2", "output": "3"}),
        [{"role": "user", "content": "Add.\n\n1, 2"}],
    ),
    "cnn": (
        {"type": "jsonl"},
        lambda path: write_lines(path, {"article": "Long.", "highlights": "Short."}),
        [{"role": "user", "content": "Summarize the following article.\n\nLong."}],
    ),
    "messages": ({"type": "jsonl"}, lambda path: write_lines(path, {"messages": MESSAGES, "tools": TOOLS}), MESSAGES),
    "openai-batch": (
        {"type": "openai-batch"},
        lambda path: write_lines(
            path, {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": MESSAGES, "top_p": 1}}
        ),
        MESSAGES,
    ),
    "python": (
        {"type": "python"},
        lambda path: path.write_text("def requests():\n    yield 'Why?'"),
        [{"role": "user", "content": "Why?"}],
    ),
}  # fmt: skip


def noting(bodies: list[Any]) -> Callable[[Client], None]:
    def serve(client: Client) -> None:
        while request := client.request():
            bodies.append(json.loads(request[2]))
            client.send(http_response(STREAM))

    return serve


@pytest.mark.parametrize("name", SOURCES)
def test_the_server_receives_the_rows(name: str, tmp_path: Path) -> None:
    data, write, expected = SOURCES[name]
    path = tmp_path / ("gen.py" if name == "python" else "a.csv" if name == "csv" else "rows")
    write(path)
    bodies: list[Any] = []
    with scripted(noting(bodies)) as url:
        _, summary = measure(tmp_path / "runs", url, data=data | {"path": str(path)})
    assert (summary.counts.ok, summary.counts.failed) == (6, 0)
    assert [body["messages"] for body in bodies] == [expected] * 6


def test_completions_get_prompts_from_conversations(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"conversations": TALK}]))
    bodies: list[Any] = []
    with scripted(noting(bodies)) as url:
        measure(
            tmp_path / "runs",
            url,
            server={"api": "completions"},
            data={"type": "sharegpt", "path": str(tmp_path / "a.json")},
        )
    assert {body["prompt"] for body in bodies} == {"Name a river."}


def test_a_recorded_conversation_is_replayed_with_live_or_recorded_responses(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"conversations": TALK}]))
    contents = {}
    for history in ("live", "recorded"):
        bodies: list[Any] = []
        data = {"type": "sharegpt", "path": str(tmp_path / "a.json"), "turns": "all", "history": history}
        load = {"type": "closed", "concurrency": 1, "requests": 1}
        with scripted(noting(bodies)) as url:
            run, _ = measure(tmp_path / "runs", url, data=data, load=load)
        assert run.records.rows["turn"].tolist() == [0, 1]
        contents[history] = [message["content"] for message in bodies[1]["messages"]]
    assert contents["recorded"] == ["Name a river.", "The Loire.", "Another."]
    assert contents["live"] == ["Name a river.", "one two", "Another."]


def test_skipped_rows_are_in_the_manifest_and_in_the_report(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", {"prompt": "a"}, "{", {"prompt": "b"}, {"prompt": 5})
    with scripted(noting([])) as url:
        run, summary = measure(tmp_path / "runs", url, data={"type": "jsonl", "path": str(tmp_path / "a.jsonl")})
    skipped = run.manifest.workload["skipped"]
    assert isinstance(skipped, dict)
    assert (skipped["rows"], skipped["of"]) == (2, 4)
    assert "2 of 4 rows were skipped; the first is line 2: not JSON" in " ".join(render(run, summary).split())


def test_a_file_without_a_usable_row_does_not_start_a_run(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", "{", "{")
    with pytest.raises(UserError, match="none of its 2 rows can be used; the first is line 1: not JSON"):
        measure(tmp_path / "runs", "http://127.0.0.1:9", data={"type": "jsonl", "path": str(tmp_path / "a.jsonl")})
    assert not (tmp_path / "runs").exists()


def test_a_batch_file_for_another_api_does_not_start_a_run(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", {"custom_id": "1", "url": "/v1/completions", "body": {"prompt": "a"}})
    with pytest.raises(UserError, match=r"the requests are for /v1/completions, but server\.api is chat"):
        measure(
            tmp_path / "runs", "http://127.0.0.1:9", data={"type": "openai-batch", "path": str(tmp_path / "a.jsonl")}
        )


def test_a_request_with_a_limit_of_its_own_gets_no_other(tmp_path: Path) -> None:
    body = {"messages": MESSAGES, "max_completion_tokens": 2}
    write_lines(tmp_path / "a.jsonl", {"custom_id": "1", "url": "/v1/chat/completions", "body": body})
    bodies: list[Any] = []
    with scripted(noting(bodies)) as url:
        run, _ = measure(tmp_path / "runs", url, data={"type": "openai-batch", "path": str(tmp_path / "a.jsonl")})
    assert not any("max_tokens" in body for body in bodies)
    assert set(run.records.rows["n_want"].tolist()) == {2}
