"""Anthropic's Messages API of the simulator, over a raw socket."""

import json
from typing import Any

import pytest
from raw_client import RawClient

from inferometer.workload.tokenizer import load

PATH = "/v1/messages"
N_IN = load(None).count("Be brief") + load(None).count("The quick fox")
HI = {"model": "sim", "max_tokens": 3, "messages": [{"role": "user", "content": "The quick fox"}]}


def test_a_stream_is_a_message_with_one_block(client: RawClient) -> None:
    response = client.request(PATH, HI | {"stream": True, "system": "Be brief"})
    events = [json.loads(line[6:]) for line in response.body.split(b"\n") if line[:6] == b"data: "]
    names = [line.removeprefix(b"event: ").decode() for line in response.body.split(b"\n") if line[:6] == b"event:"]
    assert [event["type"] for event in events] == names
    assert names == [
        *("message_start", "content_block_start", "ping"),
        *["content_block_delta"] * 3,
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    start, end = events[0]["message"], events[-2]
    assert (start["role"], start["content"], start["stop_reason"]) == ("assistant", [], None)
    assert start["usage"]["input_tokens"] == N_IN
    assert end["delta"]["stop_reason"] == "max_tokens"
    assert (end["usage"]["input_tokens"], end["usage"]["output_tokens"]) == (N_IN, 3)
    assert len("".join(event["delta"]["text"] for event in events[3:6]).split()) == 3


def test_a_whole_message(client: RawClient) -> None:
    message = client.request(
        PATH, HI | {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}
    ).json
    assert message["type"] == "message" and message["stop_reason"] == "max_tokens"
    assert [block["type"] for block in message["content"]] == ["text"]
    assert len(message["content"][0]["text"].split()) == message["usage"]["output_tokens"] == 3


@pytest.mark.parametrize(
    ("change", "status", "kind", "message"),
    [
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"model": "other"}, 404, "not_found_error", "other"),
        ({"messages": []}, 400, "invalid_request_error", "empty"),
    ],
)
def test_errors_have_the_format_of_the_api(
    client: RawClient, change: dict[str, Any], status: int, kind: str, message: str
) -> None:
    response = client.request(PATH, HI | change)
    assert response.status == status
    assert response.json["type"] == "error" and response.json["error"]["type"] == kind
    assert message in response.json["error"]["message"]
