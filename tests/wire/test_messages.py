"""Anthropic's Messages API: request bodies, and every kind of response and failure at every byte split."""

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from responses import events_up_to_the_end, fed, http

from inferometer.types import End, Event, Fail, Request, RequestOptions, Tokens, Usage
from inferometer.wire import calls, messages
from inferometer.wire.context import CallContext
from inferometer.wire.history import history
from inferometer.wire.http1 import ResponseDecoder
from inferometer.wire.target import parse
from inferometer.wire.text_body import body_decoder


def decoder(stream: bool = True) -> ResponseDecoder:
    return ResponseDecoder(body_decoder(messages.EXTRACTOR, stream))


def decode(response: bytes, stream: bool = True, eof: bool = False, pieces: list[bytes] | None = None) -> list[Event]:
    """Events up to the first that ends the response, as the engine reads them."""
    return events_up_to_the_end(decoder(stream), pieces or [response], eof)


def sse(*events: dict[str, Any]) -> bytes:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()


def start(**usage: int) -> dict[str, Any]:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "stop_reason": None}
    return {"type": "message_start", "message": message | {"usage": usage}}


def block(index: int, kind: str = "text", **more: Any) -> dict[str, Any]:
    fields = {"text": ""} if kind == "text" else {}
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind} | fields | more}


def delta(kind: str, value: str, index: int = 0) -> dict[str, Any]:
    key = {"text": "text", "thinking": "thinking", "input_json": "partial_json", "signature": "signature"}[kind]
    return {"type": "content_block_delta", "index": index, "delta": {"type": f"{kind}_delta", key: value}}


def end(reason: str = "end_turn", **usage: int) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}


def closed(index: int = 0) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


PING, STOP = {"type": "ping"}, {"type": "message_stop"}
STREAM = sse(
    start(input_tokens=3, cache_read_input_tokens=4, output_tokens=1),
    block(0),
    PING,
    delta("text", "Hello"),
    delta("text", " wörld"),
    delta("text", "!"),
    closed(),
    end(output_tokens=3),
    STOP,
)
WHOLE = json.dumps(
    {
        "type": "message",
        "content": [{"type": "text", "text": "Hello wörld!"}],
        "stop_reason": "max_tokens",
        "usage": {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 3},
    }
).encode()

GOOD = {
    "stream, chunked": (http(STREAM, chunked=True), True, False),
    "stream, length": (http(STREAM), True, False),
    "stream, until closed": (http(STREAM, length=False), True, True),
    "stream, CRLF": (http(STREAM.replace(b"\n", b"\r\n"), chunked=True), True, False),
    "stream, then [DONE]": (http(STREAM + b"data: [DONE]\n\n", chunked=True), True, False),
    "whole": (http(WHOLE), False, False),
    "whole, chunked": (http(WHOLE, chunked=True), False, False),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_response_decodes_the_same_at_every_split(name: str) -> None:
    response, stream, eof = GOOD[name]
    expected = [*[Tokens(1)] * (3 if stream else 0), Usage(7, 3, 4, is_stopped=stream), End(keep_alive=not eof)]
    assert decode(response, stream, eof) == expected
    for cut in range(1, len(response)):
        assert decode(response, stream, eof, [response[:cut], response[cut:]]) == expected, cut
    assert decode(response, stream, eof, [response[n : n + 1] for n in range(len(response))]) == expected


_DELTAS = st.lists(st.tuples(st.sampled_from(["text", "thinking", "input_json"]), st.text(max_size=4)), max_size=8)


@settings(max_examples=60, deadline=None)
@given(_DELTAS, st.lists(st.integers(0, 2000), max_size=12))
def test_every_stream_decodes_the_same_at_any_splits(deltas: list[tuple[str, str]], cuts: list[int]) -> None:
    events = [start(input_tokens=5), block(0), *(delta(kind, value) for kind, value in deltas), closed()]
    response = http(sse(*events, end(output_tokens=len(deltas)), STOP), chunked=True)
    bounds = [0, *sorted(cut % len(response) for cut in cuts), len(response)]
    it = decoder()
    ending, received = fed(it, [response[a:b] for a, b in pairwise(bounds)]), it.received
    own = [(kind, value) for kind, value in deltas if value]
    first = next((n for n, (kind, _) in enumerate(own) if kind != "thinking"), None)
    assert received.counts == [1] * len(own)
    assert received.first_content == (0 if first is None else received.arrivals[first])
    assert received.content == "".join(value for kind, value in own if kind == "text")
    whole = decoder()
    assert fed(whole, [response]) == ending
    assert (whole.received.usage, whole.received.text) == (received.usage, received.text)
    if own:
        assert ending == End(keep_alive=True)


def test_reasoning_and_tool_calls_count_as_tokens() -> None:
    stream = sse(
        start(input_tokens=5, cache_creation_input_tokens=20),
        block(0, "thinking", thinking=""),
        delta("thinking", "Hm"),
        delta("signature", "c2ln"),
        closed(),
        block(1),
        delta("text", "Look: ", 1),
        closed(1),
        block(2, "tool_use", id="t", name="weather", input={}),
        delta("input_json", "", 2),
        delta("input_json", '{"city"', 2),
        closed(2),
        end("tool_use", output_tokens=9),
        STOP,
    )
    it = decoder()
    assert events_up_to_the_end(it, [http(stream)], False) == [
        *[Tokens(1)] * 4,
        Usage(25, 9, is_stopped=True),
        End(keep_alive=True),
    ]
    assert it.text == "HmLook: ++"
    assert (it.received.content, it.finish_reason) == ("Look: ", "tool_use")


ERROR = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
BAD = {
    "status 529": (http(json.dumps(ERROR).encode(), 529), True, "http_529", "Overloaded"),
    "error event": (http(sse(start(), block(0), delta("text", "a"), ERROR)), True, "error_frame", "Overloaded"),
    "error instead of a stream": (http(json.dumps(ERROR).encode()), True, "error_body", "Overloaded"),
    "error instead of a message": (http(json.dumps(ERROR).encode()), False, "error_body", "Overloaded"),
    "no end": (http(sse(start(), block(0), delta("text", "a"), closed())), True, "truncated", ""),
    "no token": (http(sse(start(), end(output_tokens=0), STOP)), True, "empty", "output_tokens 0"),
    "no token, whole": (http(b'{"type":"message","content":[]}'), False, "empty", "no usage"),
    "not streamed": (http(WHOLE), True, "not_streamed", ""),
    "a web page": (http(b"<html>hi</html>"), True, "not_json", "a web page: hi"),
    "no content": (http(b'{"choices":[]}'), False, "malformed_json", "no content"),
    "broken JSON": (http(b'event: ping\ndata: {"type":\n\n'), True, "malformed_json", "type"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_failure_is_the_same_at_every_split(name: str) -> None:
    response, stream, code, message = BAD[name]
    for cut in range(1, len(response) + 1):
        last = decode(response, stream, pieces=[response[:cut], response[cut:]])[-1]
        assert isinstance(last, Fail)
        assert last.code == code, cut
        assert message in last.message


# --- requests ----------------------------------------------------------------------------------------------------------


def context(**more: Any) -> CallContext:
    return CallContext(api="messages", model="m", targets=(parse("http://h:1"),), tag="t", **more)


def body_of(request: Request, **more: Any) -> Any:
    return json.loads(messages.request_body(context(**more), request))


def test_the_system_prompt_is_a_field_of_its_own() -> None:
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert body_of(Request(0, prompt, 0, 5), stream=True) == {
        "model": "m",
        "max_tokens": 5,
        "stream": True,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "Hi"}],
    }


def test_a_request_always_limits_the_response() -> None:
    assert body_of(Request(0, "Hi", 0, 0)) == {
        "model": "m",
        "max_tokens": 1024,
        "messages": [{"role": "user", "content": "Hi"}],
    }
    assert body_of(Request(0, "Hi", 0, 5), body={"max_tokens": 9, "temperature": 0})["max_tokens"] == 9
    own = RequestOptions(body={"max_completion_tokens": 7})
    body = body_of(Request(0, "Hi", 0, 7, options=own))
    assert body["max_tokens"] == 7 and "max_completion_tokens" not in body


def test_a_later_turn_has_the_same_form_as_the_first() -> None:
    kept = history("system_field")
    kept.begin([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    kept.respond("Hello", True)
    kept.add([{"role": "user", "content": "How are you?"}])
    payload = kept.json()
    assert isinstance(payload, msgspec.Raw)
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "How are you?"},
    ]
    whole = [{"role": "system", "content": "Be brief."}, *turns]
    assert body_of(Request(0, payload, 0, 5)) == body_of(Request(0, whole, 0, 5))  # type: ignore[arg-type]
    kept.begin("Hi")
    assert body_of(Request(0, kept.json(), 0, 5)) == body_of(Request(0, "Hi", 0, 5))  # type: ignore[arg-type]


def test_requests_go_to_the_messages_endpoint() -> None:
    encoded = calls.encode(context(stream=True), [Request(0, "Hi", 0, 5)])
    assert encoded.heads[0].startswith(b"POST /v1/messages HTTP/1.1\r\n")
    assert encoded.decoder is not None
