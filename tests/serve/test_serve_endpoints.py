"""The OpenAI endpoints over a raw socket."""

import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from raw_client import RawClient, request

from inferometer.serve.background import running
from inferometer.serve.models.types import Refused
from inferometer.serve.openai.requests import IMAGE_TOKENS, MOST_BYTES, parse
from inferometer.serve.settings import Settings, simulator
from inferometer.serve.sim.settings import Fixed, Sim
from inferometer.workload.tokenizer import load

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = "The quick brown fox doesn't jump over 12 lazy dogs."


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    prompt = {"prompt": PROMPT} if path == COMPLETIONS else {"messages": [{"role": "user", "content": PROMPT}]}
    return prompt | fields


def content(event: dict[str, Any]) -> str:
    choice = event["choices"][0]
    return str(choice["text"] if "text" in choice else choice["delta"].get("content", ""))


def test_models_lists_the_model(client: RawClient):
    response = client.request("/v1/models")
    assert response.status == 200
    assert [model["id"] for model in response.json["data"]] == ["sim"]


def test_health_and_head(client: RawClient):
    assert client.request("/health").json == {"status": "ok"}
    response = client.request("/health", method="HEAD")
    assert (response.status, response.body) == (200, b"")
    assert client.request("/health").status == 200


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_stream_has_tokens_finish_reason_and_done(client: RawClient, path: str):
    response = client.request(path, body_for(path, stream=True, max_tokens=5))
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done = response.events
    assert done == "[DONE]"
    chunks = [json.loads(event) for event in events]
    if path == CHAT:
        role = chunks.pop(0)
        assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 5 + ["length"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all(content(chunk).startswith(" ") for chunk in chunks[:-1])
    text = "".join(content(chunk) for chunk in chunks)
    assert load(None).count(text) == 5
    assert "usage" not in chunks[-1]


def test_headers_are_sent_at_once():
    with running(simulator(timing=Fixed(ttft=1000, itl=0))) as url, RawClient(url) as client:
        client.send(request(CHAT, body_for(CHAT, stream=True, max_tokens=2)))
        assert client.sock.recv(65536).endswith(b"Transfer-Encoding: chunked\r\n\r\n")


def test_the_role_comes_with_the_first_token(client: RawClient):
    """Like vLLM: a client that counts the role as a token must not see it before there is one."""
    client.request(CHAT, body_for(CHAT, stream=True, max_tokens=2))
    role = next(read for read in client.reads if b'"role":"assistant"' in read)
    assert b'"delta":{"content":" ' in role


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_usage_comes_before_done_with_no_choices(client: RawClient, path: str):
    options = {"include_usage": True}
    *_, usage, _ = client.request(path, body_for(path, stream=True, max_tokens=4, stream_options=options)).events
    assert json.loads(usage)["choices"] == []
    n_in = load(None).count(PROMPT)
    assert json.loads(usage)["usage"] == {
        "prompt_tokens": n_in,
        "completion_tokens": 4,
        "total_tokens": n_in + 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_embeddings_are_unit_vectors_that_depend_on_the_text_alone(client: RawClient):
    response = client.request("/v1/embeddings", {"input": [PROMPT, "hello", PROMPT], "dimensions": 16}).json
    first, second, third = [row["embedding"] for row in response["data"]]
    assert first == third != second
    assert len(first) == 16
    assert sum(value * value for value in first) == pytest.approx(1)
    n_in = 2 * load(None).count(PROMPT) + load(None).count("hello")
    assert response["usage"] == {"prompt_tokens": n_in, "total_tokens": n_in}
    tokens = client.request("/v1/embeddings", {"input": [5, 6, 7], "stream": True})  # which has no effect
    assert len(tokens.json["data"][0]["embedding"]) == 384


@pytest.mark.parametrize(
    "fields",
    [{"input": ""}, {"input": []}, {"input": ["a", 5]}, {"input": "a", "dimensions": 0}, {"input": ["a"] * 20_000}],
)
def test_embeddings_of_nothing_or_of_no_size_or_too_many_are_refused(client: RawClient, fields: dict[str, Any]):
    assert client.request("/v1/embeddings", fields).status == 400


def test_continuous_usage_is_cumulative(client: RawClient):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = client.request(
        COMPLETIONS, body_for(COMPLETIONS, stream=True, max_tokens=3, stream_options=options)
    ).events
    assert [json.loads(event)["usage"]["completion_tokens"] for event in events[:3]] == [1, 2, 3]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_non_streamed_response(client: RawClient, path: str):
    response = client.request(path, body_for(path, max_tokens=7)).json
    choice = response["choices"][0]
    text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
    assert choice["finish_reason"] == "length"
    assert load(None).count(text) == response["usage"]["completion_tokens"] == 7


@pytest.mark.parametrize(("path", "tokens"), [(COMPLETIONS, 16), (CHAT, 128)])
def test_the_default_length(client: RawClient, path: str, tokens: int):
    assert client.request(path, body_for(path)).json["usage"]["completion_tokens"] == tokens


@pytest.mark.parametrize(
    ("prompt", "n_in"), [([5, 6, 7], 3), ([[5, 6]], 2), (["hello"], None), (" the the the", 3)], ids=repr
)
def test_prompts_as_text_or_token_ids(client: RawClient, prompt: Any, n_in: int | None):
    n_in = n_in or load(None).count(prompt[0])
    assert client.request(COMPLETIONS, {"prompt": prompt, "max_tokens": 1}).json["usage"]["prompt_tokens"] == n_in


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_long_prompt_is_counted_in_a_thread_and_one_that_is_too_long_is_not_counted(client: RawClient, path: str):
    def respond(text: str) -> Any:
        prompt = {"prompt": text} if path == COMPLETIONS else {"messages": [{"role": "user", "content": text}]}
        return client.request(path, prompt | {"max_tokens": 1})

    long = "word  other " * 10_000
    assert respond(long).json["usage"]["prompt_tokens"] == load(None).count(long)
    for longer in ("word  other " * 50_000, "word  other " * 1_000_000):
        response = respond(longer)
        assert (response.status, response.json["error"]["code"]) == (400, "context_length_exceeded")
    assert client.request("/health").status == 200


def test_a_body_that_no_prompt_needs_is_not_parsed():
    with pytest.raises(Refused) as refused:
        parse(COMPLETIONS.encode(), bytes(MOST_BYTES + 1))
    assert refused.value.status == 413


@pytest.mark.parametrize(
    ("path", "given", "choices"),
    [
        (COMPLETIONS, {"prompt": ["hello", [5, 6]]}, 2),
        (COMPLETIONS, {"prompt": ["hello"] * 2, "n": 2}, 4),
        (CHAT, {"n": 2}, 2),
    ],
)
def test_choices_for_each_prompt(client: RawClient, path: str, given: dict[str, Any], choices: int):
    body = body_for(path, max_tokens=3) | given
    whole = client.request(path, body).json
    assert [choice["index"] for choice in whole["choices"]] == list(range(choices))
    assert whole["usage"]["completion_tokens"] == 3 * choices
    *events, done = client.request(path, body | {"stream": True, "stream_options": {"include_usage": True}}).events
    assert done == "[DONE]"
    *chunks, usage = [json.loads(event) for event in events]
    assert usage["usage"] == whole["usage"]
    for index in range(choices):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["length"]
        texts = [choice.get("text") or choice.get("delta", {}).get("content") for choice in own]
        assert len([text for text in texts if text]) == 3


def test_images_count_as_tokens(client: RawClient):
    count = load(None).count("hello")
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    block = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    for path, image, name in ((CHAT, url, "prompt_tokens"), ("/v1/messages", block, "input_tokens")):
        messages = [{"role": "user", "content": [{"type": "text", "text": "hello"}, image]}]
        usage = client.request(path, {"messages": messages, "max_tokens": 1}).json["usage"]
        assert usage[name] == count + IMAGE_TOKENS


def test_message_texts_add_up(client: RawClient):
    parts = [{"type": "text", "text": "hello"}, {"type": "text", "text": " world"}]
    messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": parts}, {"role": "assistant"}]
    count = load(None).count
    expected = count(PROMPT) + count("hello\n world")
    assert client.request(CHAT, {"messages": messages, "max_completion_tokens": 1}).json["usage"] == {
        "prompt_tokens": expected,
        "completion_tokens": 1,
        "total_tokens": expected + 1,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (COMPLETIONS, b"{nonsense", 400, "invalid_argument"),
        (COMPLETIONS, b'"\xff"', 400, "invalid_argument"),
        (COMPLETIONS, b"", 400, "invalid_argument"),
        (COMPLETIONS, {}, 400, "invalid_argument"),
        (COMPLETIONS, b'{"prompt":"a","x":' + b"[" * 100_000, 400, "invalid_argument"),
        (COMPLETIONS, b'{"prompt":"\\ud800"}', 400, "invalid_argument"),
        (COMPLETIONS, {"prompt": 3}, 400, "invalid_argument"),
        (COMPLETIONS, {"prompt": ""}, 400, "invalid_argument"),
        (COMPLETIONS, {"prompt": []}, 400, "invalid_argument"),
        (COMPLETIONS, {"prompt": [-1]}, 400, "invalid_argument"),
        (COMPLETIONS, {"prompt": ["a", ""]}, 400, "invalid_argument"),
        (COMPLETIONS, {"prompt": ["a", "b"], "n": 65}, 400, "invalid_argument"),
        ("/tokenize", {"prompt": ["a", "b"]}, 400, "invalid_argument"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": "x"}, 400, "invalid_argument"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, 400, "invalid_argument"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 10**9}, 400, "context_length_exceeded"),
        (COMPLETIONS, {"prompt": "a", "n": 129}, 400, "invalid_argument"),
        (COMPLETIONS, {"prompt": "a", "model": "other"}, 404, "model_not_found"),
        (CHAT, {"messages": []}, 400, "invalid_argument"),
        (CHAT, {"messages": "a"}, 400, "invalid_argument"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "invalid_argument"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image", "source": 1}] * 129}]},
            400,
            "invalid_argument",
        ),
        ("/tokenize", {}, 400, "invalid_argument"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model_not_found"),
        ("/tokenize", None, 405, "method_not_allowed"),
        ("/v1/nowhere", {}, 404, "not_found"),
        (COMPLETIONS, None, 405, "method_not_allowed"),
    ],
)
def test_errors_have_openais_shape_and_keep_the_connection(
    client: RawClient, path: str, body: Any, status: int, code: str
):
    response = client.request(path, body)
    assert response.status == status
    assert set(response.json["error"]) == {"message", "type", "code"}
    assert response.json["error"]["code"] == code
    assert client.request("/health").status == 200


def test_the_tokenizer_is_offered_as_vllm_offers_its_own(client: RawClient):
    response = client.request("/tokenize", {"model": "sim", "prompt": "The old captain.", "add_special_tokens": False})
    tokens = load().encode("The old captain.")
    assert response.json == {"count": len(tokens), "max_model_len": 131_072, "tokens": tokens}


def test_fields_without_effect_on_timing_are_accepted(client: RawClient):
    body = body_for(COMPLETIONS, max_tokens=1, temperature=0.5, stop=["x"], seed=3, ignore_eos=True, n=1, model="sim")
    assert client.request(COMPLETIONS, body).status == 200


def test_connection_close_is_honored(client: RawClient):
    response = client.request(COMPLETIONS, body_for(COMPLETIONS, stream=True, max_tokens=2), Connection="close")
    assert response.complete
    assert response.headers["connection"] == "close"
    assert client.at_end()


def test_pipelined_requests_keep_their_order(client: RawClient):
    client.send(
        b"".join(request(COMPLETIONS, body_for(COMPLETIONS, max_tokens=n, stream=n % 2 > 0)) for n in range(1, 9))
    )
    client.send(request("/health"))
    for n in range(1, 9):
        response = client.response()
        assert (
            response.body.count(b'"finish_reason":null') == n
            if n % 2
            else response.json["usage"]["completion_tokens"] == n
        )
    assert client.response().json == {"status": "ok"}


@pytest.mark.parametrize("fault", ["", "split=3"])
def test_a_stream_over_http10_has_no_chunks_and_ends_with_the_connection(client: RawClient, fault: str):
    """nginx uses HTTP/1.0 by default."""
    body = body_for(CHAT, stream=True, max_tokens=4)
    client.send(request(CHAT, body, **({"x_sim_fault": fault} if fault else {})).replace(b"HTTP/1.1", b"HTTP/1.0"))
    response = client.response(until_end=True)
    assert (response.status, response.headers["connection"]) == (200, "close")
    assert "transfer-encoding" not in response.headers
    *events, done = response.events
    assert done == "[DONE]"
    assert len([event for event in events if content(json.loads(event))]) == 4


@pytest.fixture(scope="module")
def special() -> Iterator[str]:
    """The URL of a server with a token, adapters, and two tokens per chunk."""
    sim = Sim(timing=Fixed(ttft=0, itl=0), tokens_per_chunk=2, lora=("movie", "news"))
    with running(Settings(sim=sim, http=0, token="secret")) as url:
        yield url


def test_a_slow_reader_gets_every_byte(special: str):
    with RawClient(special) as client:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        body = body_for(COMPLETIONS, stream=True, max_tokens=60_001, model="sim")
        client.send(request(COMPLETIONS, body, Authorization="Bearer secret"))
        client.send(request("/health"))
        time.sleep(0.3)
        *events, done = client.response().events
        assert done == "[DONE]"
        assert sum(content(json.loads(event)).count(" ") for event in events) == 60_001
        assert content(json.loads(events[0])).count(" ") == 2
        assert client.response().status == 200


def test_the_token_protects_v1_only(special: str):
    with RawClient(special) as client:
        assert client.request("/v1/models").json["error"]["code"] == "invalid_api_key"
        assert client.request("/v1/models", Authorization="Bearer wrong").status == 401
        assert client.request("/v1/models", Authorization="Bearer secret").status == 200
        assert client.request("/health").status == 200


def test_anthropics_clients_send_the_token_in_a_header_of_their_own(special: str):
    body = {"model": "sim", "max_tokens": 3, "messages": [{"role": "user", "content": "Hi"}]}
    with RawClient(special) as client:
        assert client.request("/v1/messages", body, x_api_key="secret").status == 200
        refused = client.request("/v1/messages", body, x_api_key="wrong")
        assert (refused.status, refused.json["error"]["type"]) == (401, "authentication_error")


def test_adapters_are_listed_and_served_like_the_model(special: str):
    key = {"Authorization": "Bearer secret"}
    with RawClient(special) as client:
        listed = client.request("/v1/models", **key).json["data"]
        assert [(model["id"], model.get("parent")) for model in listed] == [
            ("sim", None),
            ("movie", "sim"),
            ("news", "sim"),
        ]
        for name, status in (("sim", 200), ("movie", 200), ("news", 200), ("sport", 404)):
            assert client.request(COMPLETIONS, body_for(COMPLETIONS, model=name, max_tokens=1), **key).status == status


@pytest.mark.skipif(not os.path.exists("/proc/net/if_inet6"), reason="no IPv6 here")  # noqa: PTH110
def test_ipv6():
    with running(Settings(sim=Sim(), http=0, host="::1")) as url, RawClient(url) as client:
        assert url.startswith("http://[::1]:")
        assert client.request("/health").status == 200
