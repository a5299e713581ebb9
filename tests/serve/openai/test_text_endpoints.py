"""The OpenAI endpoints of real text models, with a double in their place, beside the simulator in one server."""

import asyncio
import base64
import json
import random
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import text_double
from helpers import measure
from hypothesis import given
from hypothesis import strategies as st
from raw_client import RawClient, Response, request
from waiting import until

from inferometer.serve import app, backends
from inferometer.serve.backends.text.model import StopTexts
from inferometer.serve.settings import Settings
from inferometer.serve.sim.settings import Fixed, Sim
from inferometer.timing.loop import new_loop

COMPLETIONS, CHAT, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/messages"
USER = [{"role": "user", "content": "a b c d"}]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with two doubles and the simulator, in a thread of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(backends.LOADERS, "echo", "text_double:load")
        patch.setitem(backends.LOADERS, "vectors", "text_double:load_vectors")
        for name in ("echo", "other"):
            patch.setitem(backends.BUILTIN, name, text_double.CONFIG)
        patch.setitem(backends.BUILTIN, "vectors", text_double.VECTORS)
        settings = Settings(
            models=("echo", "other", "vectors", "identity"), sim=Sim(timing=Fixed(ttft=0, itl=0)), http=0, control=True
        )
        loop, listening = new_loop(), threading.Event()
        found: list[app.Listening] = []
        stop = asyncio.Event()
        patch.setattr(app, "_SIGNALS", ())  # only the main thread may handle them

        def ready(where: app.Listening) -> None:
            found.append(where)
            listening.set()

        thread = threading.Thread(target=lambda: loop.run_until_complete(app.serve(settings, ready, stop)))
        thread.start()
        assert listening.wait(30)
        yield found[0].http
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.fixture
def client(url: str) -> Iterator[RawClient]:
    with RawClient(url) as client:
        yield client


@pytest.fixture
def echo(url: str) -> text_double.Echo:
    return text_double.MADE["echo"]


def completion(client: RawClient, prompt: Any, **fields: Any) -> Response:
    return client.request(COMPLETIONS, {"model": "echo", "prompt": prompt} | fields)


def streamed(response: Response) -> tuple[str, list[Any]]:
    """Return the text and all events of a stream before [DONE]."""
    *events, done = response.events
    assert done == "[DONE]"
    chunks = [json.loads(event) for event in events]
    parts = [choice for chunk in chunks for choice in chunk.get("choices", [])]
    return "".join(part["text"] if "text" in part else part["delta"].get("content", "") for part in parts), chunks


def test_all_text_models_are_listed(client: RawClient) -> None:
    listed = client.request("/v1/models").json["data"]
    assert [(model["id"], model["max_model_len"]) for model in listed] == [
        ("sim", 131_072),
        ("echo", 100),
        ("other", 100),
        ("vectors", 100),
    ]


@pytest.mark.parametrize(
    ("model", "status"), [("echo", 200), ("other", 200), ("sim", 200), ("identity", 404), ("nothing", 404), (None, 400)]
)
def test_the_request_decides_which_model_responds(client: RawClient, model: str | None, status: int) -> None:
    response = client.request(COMPLETIONS, {"prompt": "a b", "max_tokens": 2} | ({"model": model} if model else {}))
    assert response.status == status
    if status == 200:
        assert response.json["model"] == model
    else:
        assert "echo" in response.json["error"]["message"]


def test_a_whole_completion(client: RawClient) -> None:
    response = completion(client, "a b c <eos> d", max_tokens=10)
    (choice,) = response.json["choices"]
    assert (choice["text"], choice["finish_reason"]) == (" a b c", "stop")
    assert response.json["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    times = dict(part.split(";dur=") for part in response.headers["server-timing"].split(", "))
    assert list(times) == ["queue", "compute", "total"]
    assert float(times["queue"]) + float(times["compute"]) == pytest.approx(float(times["total"]), abs=1e-4)


def test_a_stream_with_usage_in_every_chunk_and_at_the_end(client: RawClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    text, chunks = streamed(completion(client, "a b <empty> c", max_tokens=4, stream=True, stream_options=options))
    assert text == " a b c"
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks if "usage" in chunk] == [1, 2, 4, 4]


def test_chat_uses_the_template_and_defaults_to_all_that_fits(client: RawClient, echo: text_double.Echo) -> None:
    parts = [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]
    body = {"model": "echo", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": parts}]}
    text, chunks = streamed(client.request(CHAT, body | {"stream": True}))
    assert text == " [system] s [user] x y"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert echo.seen[-1].limit == 100 - 5
    refused = client.request(CHAT, {"model": "echo", "messages": [{"role": "assistant", "content": "x"}]})
    assert (refused.status, refused.json["error"]["message"]) == (400, "the last message must be the user's")


def test_messages_of_anthropics_api(client: RawClient) -> None:
    body = {"model": "echo", "max_tokens": 3, "messages": USER, "system": "s", "stop_sequences": ["user"]}
    message = client.request(MESSAGES, body).json
    assert message["content"] == [{"type": "text", "text": " [system] s ["}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "user")
    response = client.request(MESSAGES, {"model": "echo", "max_tokens": 2, "messages": USER, "stream": True})
    events = [json.loads(line[6:]) for line in response.body.split(b"\n") if line[:6] == b"data: "]
    assert [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"] == [" [user]", " a"]
    assert events[-2]["delta"]["stop_reason"] == "max_tokens"


def test_sampling_parameters_reach_the_model(client: RawClient, echo: text_double.Echo) -> None:
    fields = {"temperature": 2, "top_p": 0.5, "top_k": 7, "seed": 3, "stop": "zz", "ignore_eos": True, "min_tokens": 2}
    response = completion(client, "a <eos>", max_completion_tokens=4, **fields)
    assert response.json["choices"][0]["text"] == " a a a a"
    seen = echo.seen[-1]
    assert (seen.temperature, seen.top_p, seen.top_k, seen.stops.stops) == (2, 0.5, 7, ("zz",))
    assert seen.random is not None
    assert seen.random.random() == random.Random(3).random()
    assert (seen.ignore_eos, seen.min_tokens, seen.limit) == (True, 2, 4)
    completion(client, [[0, 1]], top_k=-1, stop=["x", ""], temperature=None)
    seen = echo.seen[-1]
    assert (seen.prompt, seen.temperature, seen.top_k, seen.stops.stops, seen.limit) == ([0, 1], 1.0, 0, ("x",), 16)
    completion(client, "a", temperature=0)
    assert echo.seen[-1].random is None


@pytest.mark.parametrize("stream", [False, True])
def test_stop_texts_that_are_split_over_pieces(client: RawClient, stream: bool) -> None:
    response = completion(client, "one two three four", max_tokens=9, stop=["two thr", "four"], stream=stream)
    if stream:
        text, chunks = streamed(response)
        assert (text, chunks[-1]["choices"][0]["finish_reason"]) == (" one ", "stop")
    else:
        assert response.json["choices"][0]["text"] == " one "


@pytest.mark.parametrize("stream", [False, True])
def test_text_is_escaped(client: RawClient, stream: bool) -> None:
    prompt = 'é漢😀 "q" \\n \u2028 \x7f ' + "x" * 5000
    response = completion(client, prompt, max_tokens=6, stream=stream)
    text = streamed(response)[0] if stream else response.json["choices"][0]["text"]
    assert text == "".join(f" {word}" for word in prompt.split())


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"logprobs": 0}, 400, "logprobs is not supported"),
        ({"echo": True}, 400, "echo is not supported"),
        ({"presence_penalty": 0.5}, 400, "presence_penalty is not supported"),
        ({"presence_penalty": 0, "logprobs": None, "best_of": 1, "suffix": None}, 200, ""),
        ({"n": 2}, 400, "n > 1 or a list of prompts is not supported"),
        ({"prompt": ["a", "b"]}, 400, "n > 1 or a list of prompts is not supported"),
        ({"temperature": -1}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"top_k": -2}, 400, "top_k"),
        ({"max_tokens": 100}, 400, "2 prompt tokens plus max_tokens 100 exceed the model's maximum of 100 tokens"),
        ({"prompt": "<unencodable>"}, 500, "ValueError: cannot encode this"),
        ({"prompt": "x " * 200, "stream": True}, 400, "exceed the model's maximum"),
        ({"prompt": "word " * 50_000}, 400, "50000 prompt tokens"),
    ],
)
def test_what_a_model_cannot_do_is_refused(client: RawClient, fields: dict[str, Any], status: int, words: str) -> None:
    response = client.request(COMPLETIONS, {"model": "echo", "prompt": "a b"} | fields)
    assert response.status == status
    if status != 200:
        assert words in response.json["error"]["message"]
    assert client.request("/health").status == 200


def test_a_full_queue_is_an_error_before_the_stream(client: RawClient, echo: text_double.Echo) -> None:
    echo.slots = 0
    response = completion(client, "a", stream=True)
    echo.slots = 100
    assert (response.status, response.json["error"]["type"]) == (429, "rate_limit_error")


def test_an_error_in_the_middle(client: RawClient) -> None:
    text, chunks = streamed(completion(client, "a b <fail> c", stream=True))
    assert (text, chunks[-1]["error"]["message"]) == (" a b", "the model failed")
    response = completion(client, "a b <fail> c")
    assert (response.status, response.json["error"]["type"]) == (500, "api_error")
    body = {"model": "echo", "max_tokens": 9, "messages": [{"role": "user", "content": "<fail>"}], "stream": True}
    assert b'event: error\ndata: {"type":"error"' in client.request(MESSAGES, body).body


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_disconnects_cancels_its_generation(url: str, echo: text_double.Echo, stream: bool) -> None:
    before = len(echo.cancelled)
    with RawClient(url) as client:
        body = {"model": "echo", "prompt": "a b", "max_tokens": 90, "ignore_eos": True, "stream": stream}
        echo.step_s = 0.05
        client.send(request(COMPLETIONS, body))
        until(lambda: bool(echo.running))
    until(lambda: len(echo.cancelled) == before + 1)
    echo.step_s = 0.001
    assert not echo.running


def test_a_model_that_is_not_available_is_told_from_one_that_does_not_exist(client: RawClient) -> None:
    unloaded = client.request("/v2/repository/models/other/unload", {})
    refused = [client.request(COMPLETIONS, {"model": name, "prompt": "a"}) for name in ("other", "nothing", "identity")]
    assert client.request("/v2/repository/models/other/load", {}).status == unloaded.status == 200
    assert [one.status for one in refused] == [404, 404, 404]
    messages = [one.json["error"]["message"] for one in refused]
    assert messages[0] == "Request for unknown model: 'other' has no available versions"
    served = "'sim', 'echo', 'vectors' are served"
    assert messages[1:] == [f"the model {name!r} does not exist; {served}" for name in ("nothing", "identity")]


def test_generations_count_in_the_statistics_and_delay_unloading(url: str, client: RawClient) -> None:
    other = text_double.MADE["other"]
    before = statistics(client)
    assert client.request(COMPLETIONS, {"model": "other", "prompt": "a b", "max_tokens": 2}).status == 200
    assert client.request(COMPLETIONS, {"model": "other", "prompt": "a <fail>", "max_tokens": 9}).status == 500
    assert statistics(client) == (before[0] + 1, before[1] + 1)
    with RawClient(url) as waiting, RawClient(url) as unloading:
        other.step_s = 0.02
        waiting.send(request(COMPLETIONS, {"model": "other", "prompt": "a b", "max_tokens": 20, "ignore_eos": True}))
        until(lambda: bool(other.running))
        assert unloading.request("/v2/repository/models/other/unload", {}).status == 200
        assert not other.running
        assert len(waiting.response().json["choices"][0]["text"].split()) == 20
    assert client.request("/v2/repository/models/other/load", {}).status == 200


def statistics(client: RawClient) -> tuple[int, int]:
    found = client.request("/v2/models/other/stats", method="GET").json["model_stats"][0]["inference_stats"]
    return found["success"]["count"], found["fail"]["count"]


def test_embeddings(client: RawClient) -> None:
    body = {"model": "vectors", "input": ["a b c", "d"]}
    response = client.request("/v1/embeddings", body)
    assert [row["embedding"] for row in response.json["data"]] == [[3.0, 0.5], [1.0, 0.5]]
    assert response.json["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert "total;dur=" in response.headers["server-timing"]
    packed = client.request("/v1/embeddings", {"model": "vectors", "input": [[0, 1]], "encoding_format": "base64"}).json
    assert struct.unpack("<2f", base64.b64decode(packed["data"][0]["embedding"])) == (2.0, 0.5)
    assert client.request("/v1/embeddings", body | {"dimensions": 3}).status == 400
    assert client.request("/v1/embeddings", body | {"input": "x " * 101}).status == 400
    assert client.request("/v1/embeddings", body | {"input": "<fail>"}).status == 500


def test_models_refuse_what_they_are_not_for(client: RawClient) -> None:
    assert completion(client, "a", model="vectors").status == 400
    assert client.request("/v1/embeddings", {"model": "echo", "input": "a"}).status == 400


def test_the_tokenizer_of_a_model(client: RawClient, echo: text_double.Echo) -> None:
    response = client.request("/tokenize", {"model": "echo", "prompt": "a b"})
    assert response.json == {"count": 2, "max_model_len": 100, "tokens": [echo.number("a"), echo.number("b")]}
    assert client.request("/tokenize", {"model": "vectors", "prompt": [0, 5]}).json["tokens"] == [0, 5]


@pytest.mark.parametrize("api", ["completions", "chat", "messages"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_run_against_a_text_model(tmp_path: Path, url: str, api: str, stream: bool) -> None:
    server = {"api": api, "model": "echo", "stream": stream}
    data = {"type": "prompts", "prompts": ["one two three four five"], "output": 4}
    run, summary = measure(tmp_path, url, server=server, data=data)
    assert summary.counts.ok == 6
    assert set(run.records.rows["n_out"].tolist()) == {4}


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.integers(1, 4))
def test_a_text_is_cut_before_its_first_stop_text_however_it_is_split(text: str, stops: list[str], size: int) -> None:
    cut = StopTexts(tuple(stops))
    made = ""
    for at in range(0, len(text), size):
        made += cut.feed(text[at : at + size])
        if cut.stopped:
            break
    made += cut.feed("", is_last=True)
    first = min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))
    assert (cut.stopped is not None) == any(stop in text for stop in stops)
    assert made == text[:first] or (cut.stopped and text.startswith(made) and len(made) >= first)
