"""`keep: text`: what was sent and what was generated is stored beside the measurements, and nothing else."""

import json
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from command import assert_one_line, cli, start
from helpers import Client, http_response, measure, polite, scripted
from waiting import until

from inferometer.config import from_mapping
from inferometer.errors import UserError
from inferometer.records import Run
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.prompts import response_words, text
from inferometer.serve.sim.settings import Fixed

REQUESTS, OUTPUT = 12, 5


def texts(run: Run | Path) -> list[dict[str, Any]]:
    folder = run.folder if isinstance(run, Run) else run
    rows: list[dict[str, Any]] = pq.read_table(folder / "bodies.parquet").to_pylist()
    return sorted(rows, key=lambda row: row["id"])


def generated(count: int = REQUESTS, output: int = OUTPUT) -> list[str]:
    """The texts of the simulator's first responses: the nth starts at its own word."""
    words = response_words()
    return sorted(text(words, 7 * n, output).decode() for n in range(1, count + 1))


@pytest.mark.parametrize(
    ("api", "stream", "processes"),
    [
        ("chat", False, 0),
        ("completions", True, 0),
        ("chat", True, 2),
        pytest.param("chat", True, 0, marks=pytest.mark.slow),
        pytest.param("completions", False, 0, marks=pytest.mark.slow),
    ],
)
def test_texts_are_those_that_were_sent_and_generated(tmp_path: Path, api: str, stream: bool, processes: int) -> None:
    with running(simulator(timing=Fixed(ttft=0.001, itl=0.0005))) as url:
        run, _ = measure(
            tmp_path,
            url,
            server={"api": api, "stream": stream, "model": None},
            client={"processes": processes},
            data={"type": "prompts", "prompts": [f"prompt {n}" for n in range(REQUESTS)], "output": OUTPUT},
            load={"type": "closed", "concurrency": 3, "requests": REQUESTS, "ramp_up": 0},
            keep="text",
        )
    rows = texts(run)
    assert [row["id"] for row in rows] == list(range(REQUESTS))
    assert sorted(row["response"] for row in rows) == generated()
    assert {row["finish_reason"] for row in rows} == {"length"}
    sent = [json.loads(row["request"]) for row in rows]
    prompts = [body["messages"][0]["content"] if api == "chat" else body["prompt"] for body in sent]
    assert prompts == [f"prompt {n}" for n in range(REQUESTS)]
    assert {body.get("stream", False) for body in sent} == {stream}
    assert {(row["stage"], row["class"], row["session"], row["turn"]) for row in rows} == {(0, None, None, None)}


def test_turns_and_classes_are_named(tmp_path: Path) -> None:
    talk = {"type": "conversation", "turns": 2, "input": 8, "output": 3, "think": "0s"}
    classes = [{"name": "talks", "data": talk}]
    with running(simulator(timing=Fixed(ttft=0.001, itl=0.0005))) as url:
        run, _ = measure(
            tmp_path,
            url,
            server={"model": None},
            data={"type": "mix", "classes": classes},
            load={"type": "closed", "concurrency": 1, "requests": 2},
            keep="text",
        )
    rows = texts(run)
    assert {row["class"] for row in rows} == {"talks"}
    assert sorted((row["session"], row["turn"]) for row in rows) == sorted(
        (session, turn) for session in {row["session"] for row in rows} for turn in (0, 1)
    )
    later = [row for row in rows if row["turn"] == 1]
    before = {row["session"]: row["response"] for row in rows if row["turn"] == 0}
    for row in later:  # the history that was sent contains the response that was kept
        assert before[row["session"]] in [message["content"] for message in json.loads(row["request"])["messages"]]


def test_a_failed_response_keeps_the_text_that_arrived(tmp_path: Path) -> None:
    def script(client: Client) -> None:
        while client.request():
            client.send(http_response(b'data: {"choices":[{"delta":{"content":"half"}}]}\n\n'))

    with scripted(script) as url:
        run, _ = measure(tmp_path, url, keep="text")
    assert {(row["response"], row["finish_reason"]) for row in texts(run)} == {("half", None)}


def test_headers_and_secrets_are_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "sk-very-secret")
    echo = b'data: {"choices":[{"delta":{"content":"you sent sk-very-secret"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'

    def script(client: Client) -> None:
        while client.request():
            client.send(http_response(echo))

    with scripted(script) as url:
        server = {"api_key_env": "THE_KEY", "headers": {"x-tenant": "tenant-42"}, "body": {"api_key": 'quoted"word'}}
        run, _ = measure(tmp_path, url, server=server, keep="text")
    for row in texts(run):
        assert json.loads(row["request"])["api_key"] == "(removed)"
        assert row["response"] == "you sent (removed)"
    stored = str(texts(run))
    assert "sk-very-secret" not in stored
    assert "tenant-42" not in stored


def test_without_keep_there_is_no_file(tmp_path: Path) -> None:
    with scripted(polite) as url:
        run, _ = measure(tmp_path, url)
    assert not (run.folder / "bodies.parquet").exists()


@pytest.mark.parametrize("end", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
def test_an_interrupted_run_keeps_its_texts(tmp_path: Path, sim: str, end: signal.Signals) -> None:
    process = start(
        *(
            "run",
            sim,
            "--concurrency",
            "4",
            "--duration",
            "300s",
            "--prompt",
            "hello",
            "--output",
            "4",
            "--keep",
            "text",
        ),
        *("--set", f"output={tmp_path}", "--set", "client.probe=false", "-q"),
        cwd=tmp_path,
    )
    until(lambda: any(path.stat().st_size > 10_000 for path in tmp_path.glob("*/spool/0.bodies")), "stored texts", 90)
    process.send_signal(end)
    process.communicate(timeout=60)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir() and not path.is_symlink())
    cli("report", folder)
    rows = texts(folder)
    assert len(rows) >= 10
    assert {row["response"].count(" ") for row in rows if row["finish_reason"]} == {4}


def test_why_shows_the_text_of_a_request(tmp_path: Path) -> None:
    with scripted(polite) as url:
        run, _ = measure(tmp_path, url, data={"type": "prompts", "prompts": ["x" * 300], "output": 2}, keep="text")
    shown = cli("report", run.folder, "--why", "3").out
    assert f"request: {'x' * 100}" in shown
    assert "x" * 201 not in shown
    assert "response: one two (finish reason: stop)" in shown


def test_reports_that_are_passed_on_have_no_texts(tmp_path: Path) -> None:
    with scripted(polite) as url:
        run, _ = measure(tmp_path, url, keep="text")
    html, markdown = tmp_path / "report.html", tmp_path / "report.md"
    cli("report", run.folder, "--html", html, "--markdown", markdown)
    for path in (html, markdown, run.folder / "summary.json"):
        assert "one two" not in path.read_text()


def test_tensors_are_not_kept() -> None:
    with pytest.raises(UserError, match="keep: kserve requests are tensors, not text"):
        from_mapping({"server": {"url": "http://127.0.0.1:1", "api": "kserve"}, "keep": "text"})
    assert_one_line(cli("run", "http://127.0.0.1:1", "--set", "server.api=kserve", "--keep", "text"), "--keep")
