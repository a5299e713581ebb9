"""Runs against the simulator with Anthropic's Messages API."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers import Client, http_response, measure, scripted

from inferometer.records import MISSING
from inferometer.serve.background import running
from inferometer.serve.settings import simulator
from inferometer.serve.sim.settings import Batch, Fixed

MESSAGES = {"api": "messages", "model": "sim"}
SMALL = {"type": "closed", "concurrency": 2, "requests": 6, "ramp_up": 0}


@pytest.mark.parametrize("stream", [True, False])
def test_requests_succeed_with_the_tokens_that_were_requested(tmp_path: Path, sim: str, stream: bool) -> None:
    data = {"type": "synthetic", "input": 20, "output": 7}
    run, summary = measure(tmp_path, sim, server=MESSAGES | {"stream": stream}, load=SMALL, data=data)
    rows = run.records.rows
    assert summary.counts.ok == 6
    assert set(rows["n_out"].tolist()) == {7} and set(rows["n_in"].tolist()) == {20}
    assert (rows["first_token"] != MISSING).all() == stream


def test_conversations_find_their_history_in_the_cache(tmp_path: Path) -> None:
    data = {"type": "conversation", "turns": 3, "system": 32, "input": 16, "output": 8}
    with running(simulator(timing=Batch(prefix_cache=True, block=8))) as url:
        load = {"type": "closed", "concurrency": 1, "requests": 2, "ramp_up": 0}
        run, summary = measure(tmp_path, url, server=MESSAGES, load=load, data=data)
    rows = run.records.rows[run.records.rows["turn"] == 2]
    assert summary.counts.ok == 6
    assert rows["n_in"].tolist() == [32 + 3 * 16 + 2 * 8] * 2
    assert (rows["cached"] >= 64).all()


def test_every_turn_has_the_system_prompt_and_the_responses_before(tmp_path: Path) -> None:
    sent: list[tuple[dict[str, str], Any]] = []
    reply = {"type": "message", "content": [{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": "Yes."}]}

    def respond(client: Client) -> None:
        while request := client.request():
            if request[2]:
                sent.append((request[1], json.loads(request[2])))
            client.send(http_response(json.dumps(reply).encode()))

    data = {"type": "conversation", "turns": 2, "system": 4, "input": 3, "output": 5}
    with scripted(respond) as url:
        measure(tmp_path, url, server=MESSAGES | {"stream": False}, load=SMALL | {"requests": 1}, data=data)
    (headers, first), (_, second) = sent
    assert headers["anthropic-version"] == "2023-06-01"
    assert first["system"] == second["system"] != ""
    assert second["messages"][:2] == [*first["messages"], {"role": "assistant", "content": "Yes."}]
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
    assert second["max_tokens"] == 5


def test_the_model_is_found_and_the_key_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIM_KEY", "sesame-opens")
    settings = msgspec.structs.replace(simulator(timing=Fixed(ttft=0, itl=0)), token="sesame-opens")
    with running(settings) as url:
        server = {"api": "messages", "model": None, "api_key_env": "SIM_KEY"}
        run, summary = measure(tmp_path, url, server=server, load=SMALL)
    assert summary.counts.ok == len(run.records.rows) == 6
    assert all(b"sesame-opens" not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
