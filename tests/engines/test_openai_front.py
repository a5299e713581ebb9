"""The HTTP server in front of engines that are libraries, with an engine that counts."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferometer import conduct
from inferometer.config import from_mapping
from inferometer.engines.failures import explain

HERE = Path(__file__).parent
SCRIPTS = HERE.parents[1] / "src/inferometer/engines/servers/scripts"
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


def started(port: int) -> "subprocess.Popen[str]":
    command = [sys.executable, str(HERE / "counting_engine.py"), str(port)]
    environment = os.environ | {"PYTHONPATH": str(SCRIPTS)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with started(port) as server:
        assert server.stdout is not None and server.stdout.readline() == f"Listening on http://127.0.0.1:{port}\n"
        yield f"127.0.0.1:{port}"
        server.send_signal(signal.SIGTERM)
        assert server.wait(10) == 0


def post(url: str, path: str, **body: Any) -> tuple[int, str]:
    connection = http.client.HTTPConnection(url, timeout=10)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    content = response.read().decode()
    connection.close()
    return response.status, content


def events(content: str) -> list[str]:
    return [line.removeprefix("data: ") for line in content.split("\n\n") if line]


def test_a_completion(url: str) -> None:
    status, content = post(url, "/v1/completions", model="counting", prompt="w7 w8", max_tokens=3)
    found = json.loads(content)
    assert status == 200
    assert (found["choices"][0]["text"], found["choices"][0]["finish_reason"]) == (" w9 w10 w11", "length")
    assert found["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}


def test_a_streamed_chat_has_a_chunk_per_token_its_usage_and_an_end(url: str) -> None:
    messages = [{"role": "user", "content": "w1"}]
    _, content = post(url, "/v1/chat/completions", messages=messages, max_tokens=3, **STREAM)
    *chunks, usage, done = events(content)
    assert [json.loads(chunk)["choices"][0]["delta"]["content"] for chunk in chunks] == [" w2", " w3", " w4"]
    assert json.loads(usage)["usage"]["completion_tokens"] == 3
    assert done == "[DONE]"


def test_a_character_of_two_tokens_is_one_chunk(url: str) -> None:
    _, content = post(url, "/v1/completions", prompt="w198", max_tokens=4, **STREAM)
    *chunks, usage, _ = events(content)
    assert [json.loads(chunk)["choices"][0]["text"] for chunk in chunks] == [" w199", "é", " w202"]
    assert json.loads(usage)["usage"]["completion_tokens"] == 4


def test_it_ends_at_the_end_token_unless_that_is_ignored(url: str) -> None:
    _, ended = post(url, "/v1/completions", prompt="w297", max_tokens=6)
    _, whole = post(url, "/v1/completions", prompt="w297", max_tokens=6, ignore_eos=True)
    assert (json.loads(ended)["choices"][0]["finish_reason"], json.loads(ended)["usage"]["completion_tokens"]) == (
        "stop",
        3,
    )
    assert json.loads(whole)["usage"]["completion_tokens"] == 6


def test_prompts_may_be_token_ids(url: str) -> None:
    assert " w42" in post(url, "/v1/completions", prompt=[41], max_tokens=1)[1]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"model": "other"}, "there is no model 'other'"),
        ({"stop": ["x"]}, "stop is not supported"),
        ({"n": 2}, "n is not supported"),
        ({"max_tokens": 5000}, "do not fit into 1000"),
        ({"prompt": ""}, "0 prompt tokens"),
    ],
)
def test_what_it_cannot_do_is_refused(url: str, body: dict[str, Any], words: str) -> None:
    status, content = post(url, "/v1/completions", **({"prompt": "w1"} | body))
    assert (status, words in content) == (400, True), content


def test_an_error_of_the_engine_reaches_the_client_and_others_go_on(url: str) -> None:
    refused = post(url, "/v1/completions", prompt="w666")
    broken = post(url, "/v1/completions", prompt="w555", stream=True)
    assert (refused[0], "no room" in refused[1]) == (500, True)
    assert "the engine broke" in events(broken[1])[0]
    assert post(url, "/v1/completions", prompt="w1", max_tokens=1)[0] == 200


def test_a_client_that_leaves_stops_its_request(url: str) -> None:
    def cancelled() -> int:
        return int(
            json.loads(post(url, "/v1/completions", prompt="cancelled", max_tokens=1)[1])["choices"][0]["text"][2:]
        )

    before = cancelled()
    connection = http.client.HTTPConnection(url, timeout=10)
    body = {"prompt": "w250", "max_tokens": 990, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body))
    connection.getresponse().read(10)
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
    for _ in range(200):
        if cancelled() > before:
            return
    pytest.fail("the request went on")


def test_a_run_against_it(url: str, tmp_path: Path) -> None:
    tree = {
        "server": {"url": f"http://{url}", "api": "completions", "ignore_eos": True},
        "data": {"type": "prompts", "prompts": ["w1 w2", "w3"], "output": 20},
        "load": {"type": "closed", "concurrency": 8, "requests": 64},
        "client": {"processes": 0, "probe": False},
        "output": str(tmp_path),
    }
    run, summary = conduct.measure(from_mapping(tree))
    assert summary.counts.ok == 64, summary.failures
    assert set(run.records.rows["n_out"]) == {20} and set(run.records.rows["chunk_count"]) == {20}


def test_a_port_that_is_taken_is_recognised(url: str) -> None:
    with started(int(url.partition(":")[2])) as server:
        assert server.stdout is not None
        lines = server.stdout.read().splitlines()
        assert explain(server.wait(10), lines)[0] == "port taken"
