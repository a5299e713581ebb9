"""OpenAI's chat and completions: request bodies, and every kind of response and failure at every byte split."""

import gzip
import json
import zlib
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from responses import STREAM, UNSTREAMED, USAGE, chunk, events_up_to_the_end, fed, http, sse

from inferometer.types import Decoder, End, Event, Fail, Received, Request, Tokens, Usage
from inferometer.wire import calls, openai
from inferometer.wire.context import CallContext
from inferometer.wire.http1 import ID, ResponseDecoder
from inferometer.wire.target import parse
from inferometer.wire.text_body import body_decoder


def decoder(stream: bool = True) -> Decoder:
    return ResponseDecoder(body_decoder(openai.EXTRACTOR, stream))


def decode(response: bytes, stream: bool = True, eof: bool = False, pieces: list[bytes] | None = None) -> list[Event]:
    """Events up to the first that ends the response, as the engine reads them."""
    return events_up_to_the_end(decoder(stream), pieces or [response], eof)


def tokens(events: list[Event]) -> int:
    return sum(event.n for event in events if isinstance(event, Tokens))


def joined(events: list[Event]) -> list[Event]:
    """Chunks put together, for comparing what different splits gave."""
    return [Tokens(tokens(events)), *(event for event in events if not isinstance(event, Tokens))]


def test_a_long_line_in_many_pieces_is_joined_once() -> None:
    """Joined with every piece, the bytes copied would be 5 TB."""
    count = 400_000
    start, end = STREAM[: STREAM.index(b'a"}')], STREAM[STREAM.index(b'a"}') :]
    body, received = body_decoder(openai.EXTRACTOR, True), Received()
    for at, piece in enumerate([start, *[b"x" * 64] * count, end]):
        assert body.feed([piece], [at], received) is None
    assert len(received.texts[0]) == 64 * count + 1 and received.arrivals[0] == count + 1


GOOD = {
    "stream, chunked": (http(STREAM, chunked=True), True, False),
    "stream, length": (http(STREAM), True, False),
    "stream, until closed": (http(STREAM, length=False), True, True),
    "stream, CRLF": (http(STREAM.replace(b"\n", b"\r\n"), chunked=True), True, False),
    "whole": (http(UNSTREAMED), False, False),
    "whole, chunked": (http(UNSTREAMED, chunked=True), False, False),
    "whole, until closed": (http(UNSTREAMED, length=False), False, True),
    "stream, gzip": (http(gzip.compress(STREAM), chunked=True, headers="content-encoding: gzip\r\n"), True, False),
    "whole, deflate": (http(zlib.compress(UNSTREAMED), headers="Content-Encoding: deflate\r\n"), False, False),
    "after 100 Continue": (b"HTTP/1.1 100 Continue\r\n\r\n" + http(STREAM, chunked=True), True, False),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_response_decodes_the_same_at_every_split(name: str) -> None:
    response, stream, eof = GOOD[name]
    usage = Usage(7, 3, 4, 1, is_stopped=stream)
    expected = [Tokens(3 if stream else 0), usage, End(keep_alive=not eof)]
    assert joined(decode(response, stream, eof)) == expected
    for cut in range(1, len(response)):
        assert joined(decode(response, stream, eof, [response[:cut], response[cut:]])) == expected, cut
    assert joined(decode(response, stream, eof, [response[n : n + 1] for n in range(len(response))])) == expected


@settings(max_examples=200)
@given(st.sets(st.integers(1, len(STREAM)), max_size=12), st.sets(st.integers(0, 12), max_size=6), st.booleans())
def test_every_token_has_the_stamp_of_the_read_that_completes_its_event(
    cuts: set[int], batches: set[int], is_chunked: bool
) -> None:
    """However the body is cut into reads, and however many reads are decoded at once."""
    bounds = sorted({0, *cuts, len(STREAM)})
    reads = [STREAM[a:b] for a, b in pairwise(bounds)]
    ends = [STREAM.index(b"\n\n", STREAM.index(b'"content": "%c"' % letter)) + 2 for letter in b"abc"]
    expected = [next(n for n, bound in enumerate(bounds) if bound >= end) for end in ends]
    pieces = [b"%x\r\n%b\r\n" % (len(read), read) if is_chunked else read for read in reads]
    it = decoder()
    assert it.feed([http(b"", length=False, headers="Transfer-Encoding: chunked\r\n" * is_chunked)], [0]) is None
    starts = sorted({0, *batches, len(pieces)} & set(range(len(pieces) + 1)))
    for first, end in pairwise(starts):
        assert it.feed(pieces[first:end], range(first + 1, end + 1)) is None
    ending = it.feed([b"0\r\n\r\n"], [99]) if is_chunked else it.eof()
    assert ending == End(keep_alive=is_chunked)
    assert it.received.arrivals == expected
    assert it.received.text == "abc"


def failed(response: bytes, stream: bool = True, eof: bool = False) -> Fail:
    last = decode(response, stream, eof)[-1]
    assert isinstance(last, Fail)
    for cut in range(1, len(response)):
        split = decode(response, stream, eof, [response[:cut], response[cut:]])[-1]
        assert isinstance(split, Fail)
        assert split.code == last.code, cut
    return last


ERROR = {"error": {"message": "out of memory", "type": "server_error", "code": 500}}


class Bad(NamedTuple):
    response: bytes
    code: str
    message: str = ""
    stream: bool = True
    eof: bool = False


BAD = {
    "status 503": Bad(http(json.dumps(ERROR).encode(), 503), "http_503", "out of memory"),
    "status 422 of FastAPI": Bad(http(b'{"detail":[{"msg":"extra field"}]}', 422), "http_422", "extra field"),
    "status 500 without a body": Bad(http(b"", 500), "http_500"),
    "status 307": Bad(http(b"", 307, headers="location: /x\r\n"), "http_307", "Location: /x", stream=False),
    "status 429": Bad(http(b"busy", 429, headers="Retry-After: 3\r\n"), "http_429", "busy (Retry-After: 3)"),
    "status 400, gzip": Bad(
        http(gzip.compress(b'{"detail": "no"}'), 400, headers="Content-Encoding: gzip\r\n"), "http_400", "no"
    ),
    "brotli": Bad(http(b"\x0b\x02\x80a", headers="Content-Encoding: br\r\n"), "compressed", "Content-Encoding: br"),
    "not gzip": Bad(http(b"\x1f\x8bnot", headers="Content-Encoding: gzip\r\n"), "compressed", "is not"),
    "gzip, cut short": Bad(http(gzip.compress(STREAM)[:-9], headers="Content-Encoding: gzip\r\n"), "cut_short", "gzip"),
    "web page of a proxy": Bad(
        http(b"<!doctype html><head><title>502 Bad\nGateway</title><body><p>x", 502),
        "http_502",
        "a web page: 502 Bad Gateway",
    ),
    "error frame": Bad(http(sse(chunk("a"), ERROR), chunked=True), "error_frame", "out of memory"),
    "error event": Bad(http(b'event: error\ndata: {"message": "gone"}\n\n', chunked=True), "error_frame", "gone"),
    "error field of old llama.cpp": Bad(
        http(b'error: {"error": {"message": "gone"}}\n\n', chunked=True), "error_frame", "gone"
    ),
    "error body although a stream was requested": Bad(http(json.dumps(ERROR).encode()), "error_body", "out of memory"),
    "error body": Bad(http(json.dumps(ERROR).encode()), "error_body", "out of memory", stream=False),
    "error as text": Bad(http(b'{"error": "no slot"}'), "error_body", "no slot", stream=False),
    "web page": Bad(http(b"<html><body>Welcome</body></html>"), "not_json", "a web page: Welcome"),
    "web page, not streamed": Bad(http(b"<!doctype html>x"), "not_json", "a web page: x", stream=False),
    "unstreamed although a stream was requested": Bad(http(UNSTREAMED), "not_streamed"),
    "no end of the stream": Bad(http(sse(chunk("a"), done=False), chunked=True), "truncated"),
    "no body": Bad(http(b""), "truncated", "empty"),
    "closed before the end of the body": Bad(http(STREAM, chunked=True)[:-9], "cut_short", eof=True),
    "closed in the head": Bad(b"HTTP/1.1 200 OK\r\nContent-Le", "cut_short", eof=True),
    "closed after 100 Continue": Bad(b"HTTP/1.1 100 Continue\r\n\r\n", "cut_short", eof=True),
    "status 000": Bad(b"HTTP/1.0 000\r\n\r\n", "cut_short", eof=True),
    "whole, cut short": Bad(http(UNSTREAMED)[:-5], "cut_short", stream=False, eof=True),
    "frame that is not JSON": Bad(http(sse(chunk("a"), "{oops"), chunked=True), "malformed_json", "oops"),
    "frame of the wrong type": Bad(http(sse('{"choices": 5}'), chunked=True), "malformed_json", "choices"),
    "body that is not JSON": Bad(http(b'{"choices": [}'), "malformed_json", stream=False),
    "only [DONE]": Bad(http(sse()), "empty", "finish_reason missing, no usage"),
    "only a finish reason": Bad(http(sse(chunk(finish="stop"))), "empty", "finish_reason stop, no usage"),
    "a role and usage": Bad(
        http(sse(chunk("", "length"), {"choices": [], "usage": {"completion_tokens": 0}}), chunked=True),
        "empty",
        "finish_reason length, completion_tokens 0",
    ),
    "empty message": Bad(
        http(json.dumps({"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}).encode()),
        "empty",
        "finish_reason stop, no usage",
        stream=False,
    ),
    "empty text": Bad(http(b'{"choices": [{"text": ""}]}'), "empty", "finish_reason missing", stream=False),
    "body without choices": Bad(http(b"{}"), "malformed_json", "no choices", stream=False),
    "not HTTP": Bad(b"SSH-2.0-OpenSSH_9.2\r\n", "malformed_http", "SSH"),
    "TLS": Bad(b"\x15\x03\x03\x00\x02\x02\x46", "malformed_http", "speaks TLS"),
    "HTTP/2": Bad(b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\xff\xff", "malformed_http", "speaks HTTP/2 (gRPC?)"),
    "a bad chunk length": Bad(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "malformed_http"),
    "other protocol": Bad(
        b"HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", "malformed_http", "protocols"
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_each_failure_has_its_code_and_keeps_the_servers_message(name: str) -> None:
    bad = BAD[name]
    fail = failed(bad.response, bad.stream, bad.eof)
    assert fail.code == bad.code
    assert bad.message in fail.message


def test_no_bytes_at_all_is_closed_not_cut_short() -> None:
    assert decode(b"", eof=True, pieces=[b""]) == [Fail("closed", "")]


def test_a_long_message_is_bounded() -> None:
    assert len(failed(http(b"x" * 5_000, 500)).message) <= 300


@pytest.mark.parametrize(
    ("delta", "count"),
    [
        ({"role": "assistant", "content": ""}, 0),
        ({"role": "assistant"}, 0),
        ({"content": None}, 0),
        ({"content": "a"}, 1),
        ({"reasoning_content": "hm"}, 1),
        ({"reasoning": "hm"}, 1),
        ({"refusal": "no"}, 1),
        ({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}, 1),
        ({"tool_calls": []}, 0),
        ({"function_call": {"name": "f"}}, 1),
        ({"content": [{"type": "text", "text": "a"}]}, 1),
        ({"content": " "}, 1),
    ],
)
def test_what_counts_as_a_token(delta: dict[str, object], count: int) -> None:
    response = http(sse({"choices": [{"delta": delta, "finish_reason": None}]}, chunk(finish="stop")), chunked=True)
    assert tokens(decode(response)) == count


def test_a_finish_reason_is_enough_without_done_and_done_without_a_finish_reason() -> None:
    assert decode(http(sse(chunk("a"), chunk(finish="length"), done=False)))[-1] == End(True)
    assert decode(http(sse(chunk("a"))))[-1] == End(True)


def test_continuous_usage_tells_how_many_tokens_a_chunk_has() -> None:
    frames = [chunk(f"t{n}", usage={"prompt_tokens": 5, "completion_tokens": n}) for n in (1, 4, 6)]
    events = decode(http(sse(*frames, chunk(finish="stop", usage={"prompt_tokens": 5, "completion_tokens": 6}))))
    assert [event.n for event in events if isinstance(event, Tokens)] == [1, 3, 2]
    assert events[-2] == Usage(5, 6, is_per_chunk=True, is_stopped=True)


def test_usage_in_the_last_chunk_alone_does_not_count_its_tokens() -> None:
    events = decode(http(sse(chunk("a"), chunk("b", "length", usage={"prompt_tokens": 5, "completion_tokens": 6}))))
    assert [event.n for event in events if isinstance(event, Tokens)] == [1, 1]
    assert events[-2] == Usage(5, 6, is_per_chunk=False, is_stopped=False)


def reasoning(**delta: object) -> dict[str, object]:
    return {"choices": [{"delta": delta}]}


@pytest.mark.parametrize(
    "chunk_of_reasoning",
    [
        reasoning(reasoning_content="hm"),
        reasoning(reasoning="hm", content=""),
        reasoning(reasoning="hm", content=None),
        reasoning(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]),
    ],
)
def test_reasoning_chunks_before_the_first_content_are_marked(chunk_of_reasoning: dict[str, object]) -> None:
    def first_content(*frames: object) -> int:
        """The number of the frame that brings the first content; 0: none."""
        it = decoder()
        assert it.feed([http(b"", length=False)], [0]) is None
        for at, frame in enumerate(frames, 1):
            assert it.feed([sse(frame, done=False)], [at]) is None
        assert it.received.arrivals == list(range(1, len(frames) + 1))
        return it.received.first_content

    call = reasoning(tool_calls=[{"index": 0, "function": {"arguments": "{"}}])
    assert first_content(chunk_of_reasoning, chunk_of_reasoning, chunk("a"), chunk("b")) == 3
    assert first_content(chunk_of_reasoning, call) == 2
    assert first_content(chunk_of_reasoning) == 0
    assert first_content({"choices": [{"text": "a"}]}) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_tokens_that_the_server_counts_and_does_not_show_are_not_an_empty_response(stream: bool) -> None:
    usage = {"completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 5}}
    choice = {"message": {"content": None}, "finish_reason": "length"}
    streamed = sse(chunk(finish="length"), {"choices": [], "usage": usage})
    body = streamed if stream else json.dumps({"choices": [choice], "usage": usage}).encode()
    assert decode(http(body), stream)[-1] == End(True)


def test_usage_may_be_missing_null_or_partial() -> None:
    assert not [e for e in decode(http(sse(chunk("a", usage=None)))) if isinstance(e, Usage)]
    assert Usage(-1, 3) in decode(
        http(sse(chunk("a"), {"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens_details": None}}))
    )


def test_one_decoder_serves_all_responses_of_a_connection() -> None:
    it = decoder()
    for text in ("one", "two"):
        it.reset()
        assert it.status == 0
        assert isinstance(fed(it, [http(sse(chunk(text), {"choices": [], "usage": USAGE}), chunked=True)]), End)
        assert it.text == text
        assert it.status == 200


def test_connection_close_is_respected() -> None:
    assert decode(http(STREAM, headers="Connection: close\r\n"))[-1] == End(keep_alive=False)
    assert decode(http(b"", 503, headers="Connection: close\r\n"))[-1] == Fail("http_503", "", keep_alive=False)


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=60), max_size=6), st.booleans(), st.booleans())
def test_garbage_gives_a_failure_and_never_an_exception(pieces: list[bytes], stream: bool, prefixed: bool) -> None:
    head = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"] if prefixed else []
    events = decode(b"", stream, eof=True, pieces=[*head, *pieces] or [b""])
    assert isinstance(events[-1], End | Fail)


THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}


@pytest.mark.parametrize(
    ("deltas", "content"),
    [
        ([{"reasoning_content": "hm"}, {"content": "a"}, {"content": "b"}], "ab"),
        ([{"reasoning_content": "hm", "content": "a"}, {"content": "b"}], "ab"),
        ([{"content": "a"}, {"reasoning": "hm"}, {"content": "b"}], "ab"),
        ([{"content": [THOUGHT, {"type": "text", "text": "a"}]}, {"content": [{"type": "image"}]}], "a"),
        ([{"content": "a"}, {"tool_calls": [{"index": 0}]}, {"tool_calls": [{"index": 0}]}], "a"),
        ([{"function_call": {"name": "f"}}], ""),
        ([{"refusal": "no"}], "no"),
    ],
)
def test_the_next_turn_contains_neither_reasoning_nor_placeholders(deltas: list[dict[str, Any]], content: str) -> None:
    streamed = ResponseDecoder(body_decoder(openai.EXTRACTOR, True))
    fed(streamed, [http(sse(*({"choices": [{"delta": delta}]} for delta in deltas)))])
    assert streamed.received.content == content
    whole = ResponseDecoder(body_decoder(openai.EXTRACTOR, False))
    fed(whole, [http(json.dumps({"choices": [{"message": delta} for delta in deltas]}).encode())])
    assert whole.received.content == content
    assert whole.text == streamed.text


# --- requests --------------------------------------------------------------------------------------------------------


def body(settings: dict[str, Any], payload: object = "hi", n_out: int = 5) -> dict[str, Any]:
    context = CallContext(
        **{"api": "chat", "model": "m", "targets": (parse("http://x"),), "tag": "t", "stream": True} | settings
    )
    (tail,) = calls.encode(context, [Request(0, payload, 1, n_out)]).tails  # type: ignore[arg-type]
    return json.loads(tail.partition(b"\r\n\r\n")[2])  # type: ignore[no-any-return]


def test_request_bodies_have_what_is_configured_and_nothing_else() -> None:
    assert body({}) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert body({"api": "completions", "stream": False}) == {"model": "m", "prompt": "hi", "max_tokens": 5}
    assert body({"usage": False, "ignore_eos": True, "max_tokens_field": "max_completion_tokens"}, n_out=3) == {
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 3, "stream": True, "ignore_eos": True,
    }  # fmt: skip
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert body({"stream": False}, messages, 0) == {"model": "m", "messages": messages}
    assert body({"stream": False, "body": {"temperature": 0, "max_tokens": 9}})["max_tokens"] == 9


def test_calls_are_complete_http_requests() -> None:
    context = CallContext(
        api="chat",
        model="m",
        targets=(parse("http://u:p@x:8000/base/v1"),),
        tag="tag",
        headers={"X-A": "1", "Authorization": "Bearer k"},
    )
    encoded = calls.encode(context, [Request(0, "hé", 2, 5)])
    data = encoded.heads[0] + ID % 7 + encoded.tails[0]
    head, _, payload = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /base/v1/chat/completions HTTP/1.1"
    assert {
        "Host: x:8000",
        "X-A: 1",
        "Authorization: Bearer k",
        f"Content-Length: {len(payload)}",
    } <= set(lines)
    (request_id,) = (line.removeprefix("X-Request-Id: ") for line in lines if line.startswith("X-Request-Id"))
    assert str(UUID(request_id, version=4)) == request_id  # some servers refuse anything else
    assert request_id.endswith("-000000000007")
    assert json.loads(payload)["messages"][0]["content"] == "hé"
