"""Triton's generate extension: request bodies, and responses with and without streaming at every byte split."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from responses import events_up_to_the_end, fed, http

from inferometer.types import End, Event, Fail, Received, Request, Tokens
from inferometer.wire.context import CallContext
from inferometer.wire.http1 import ResponseDecoder
from inferometer.wire.kserve.generate import EXTRACTOR, generate_path, request_body
from inferometer.wire.target import parse
from inferometer.wire.text_body import body_decoder


def test_path_depends_on_streaming() -> None:
    assert generate_path("llm") == "/v2/models/llm/generate"
    assert generate_path("a b", "2", stream=True) == "/v2/models/a%20b/versions/2/generate_stream"


def test_extra_overrides_the_request_body() -> None:
    def body(prompt: str, n_out: int = 0, **more: Any) -> Any:
        context = CallContext(api="generate", model="m", targets=(parse("http://x"),), tag="t", **more)
        return json.loads(request_body(context, Request(0, prompt, 0, n_out)))

    assert body("hé", 5, stream=True) == {"text_input": "hé", "max_tokens": 5, "stream": True}
    assert body("a") == {"text_input": "a", "stream": False}
    extra = {"temperature": 0.5, "max_tokens": 9, "bad_words": ""}
    assert body("a", 5, parameters=extra) == body("a", 5, body=extra) == {"text_input": "a", "stream": False} | extra


def message(text: Any, **more: Any) -> dict[str, Any]:
    return {"model_name": "m", "model_version": "1", "text_output": text, **more}


def sse(*messages: Any) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in messages)


def run(wire: bytes, stream: bool, pieces: list[bytes] | None = None, eof: bool = False) -> tuple[list[Event], str]:
    """The events up to the first one that ends the response, as the engine reads them, and the text."""
    decoder = ResponseDecoder(body_decoder(EXTRACTOR, stream))
    return events_up_to_the_end(decoder, pieces or [wire], eof), decoder.text


TRITON = sse(message("Hello"), message(" wörld"), message(" again"), message(""))
OTHER = sse(message("a"), {"model_name": "m"}, message(None), message(["b", "c"], context_logits=0.0))
GOOD = {
    "stream, chunked": (http(TRITON, chunked=True), True, False, 3, "Hello wörld again"),
    "stream, until closed": (http(TRITON, length=False), True, True, 3, "Hello wörld again"),
    "stream with empty and odd messages": (http(OTHER, chunked=True), True, False, 2, "abc"),
    "stream whose last blank line is missing": (http(TRITON[:-1], chunked=True), True, False, 3, "Hello wörld again"),
    "whole": (http(json.dumps(message("Hello wörld")).encode()), False, False, 0, "Hello wörld"),
    "whole, a list": (http(json.dumps(message(["a", "b"])).encode(), chunked=True), False, False, 0, "ab"),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_response_gives_the_same_events_at_every_split(name: str) -> None:
    wire, stream, eof, count, text = GOOD[name]
    expected = ([Tokens(1)] * count + [End(keep_alive=not eof)], text)
    assert run(wire, stream, eof=eof) == expected
    for cut in range(1, len(wire)):
        assert run(wire, stream, [wire[:cut], wire[cut:]], eof) == expected, cut
    assert run(wire, stream, [wire[n : n + 1] for n in range(len(wire))], eof) == expected


ERROR = {"error": "in ensemble 'llm', out of blocks"}
BAD = {
    "status 400": (http(json.dumps(ERROR).encode(), 400), True, "http_400", "out of blocks"),
    "error in the stream": (http(sse(message("a"), ERROR), chunked=True), True, "error_frame", "out of blocks"),
    "error first in the stream": (http(sse(ERROR), chunked=True), True, "error_frame", "out of blocks"),
    "error event": (http(b'event: error\ndata: {"message": "gone"}\n\n'), True, "error_frame", "gone"),
    "error body for a stream": (http(json.dumps(ERROR).encode()), True, "error_body", "out of blocks"),
    "error body": (http(json.dumps(ERROR).encode()), False, "error_body", "out of blocks"),
    "stream without text": (http(sse(message("")), chunked=True), True, "empty", "messages: 1"),
    "whole, empty text": (http(json.dumps(message("")).encode()), False, "empty", "text_output is empty"),
    "no message": (http(b""), True, "truncated", "empty"),
    "only a comment": (http(b": hello\n\n"), True, "not_json", "hello"),
    "no body": (http(b""), False, "truncated", "empty"),
    "whole for a stream": (http(json.dumps(message("a")).encode()), True, "not_streamed", ""),
    "other JSON for a stream": (http(b'{"detail": "no such route"}'), True, "error_body", "no such route"),
    "web page for a stream": (http(b"<html>"), True, "not_json", "a web page"),
    "web page": (http(b"<html>"), False, "not_json", "a web page"),
    "message that is not JSON": (http(b"data: {oops\n\n"), True, "malformed_json", "oops"),
    "message of another type": (http(b"data: [1]\n\n"), True, "malformed_json", "[1]"),
    "body that is not JSON": (http(b'{"text_output": '), False, "malformed_json", ""),
    "no text_output": (http(b'{"model_name": "m"}'), False, "malformed_json", "no text_output"),
    "cut off in a message": (http(b'data: {"text_out'), True, "malformed_json", "text_out"),
}


@pytest.mark.parametrize("name", BAD)
def test_each_failure_has_its_code_and_the_server_message(name: str) -> None:
    wire, stream, code, words = BAD[name]
    for cut in range(len(wire)):
        last = run(wire, stream, [wire[:cut], wire[cut:]] if cut else [wire])[0][-1]
        assert isinstance(last, Fail)
        assert last.code == code, cut
        assert words in last.message


def test_tokens_before_an_error_are_counted() -> None:
    assert run(http(sse(message("a"), message("b"), ERROR), chunked=True), True)[0][:2] == [Tokens(1), Tokens(1)]


@pytest.mark.parametrize("stream", [True, False])
def test_body_decoder_is_reusable(stream: bool) -> None:
    decoder = ResponseDecoder(body_decoder(EXTRACTOR, stream))
    for text in ("one", "two"):
        decoder.reset()
        assert decoder.text == ""
        payload = sse(message(text)) if stream else json.dumps(message(text)).encode()
        assert isinstance(fed(decoder, [http(payload)]), End)
        assert decoder.text == text


@given(st.lists(st.binary(max_size=40), max_size=5), st.booleans())
def test_garbage_gives_a_failure_or_an_end_and_never_an_exception(pieces: list[bytes], stream: bool) -> None:
    body, into = body_decoder(EXTRACTOR, stream), Received()
    failure = body.feed(pieces, range(len(pieces)), into) or body.finish(into)
    assert failure is None or isinstance(failure, Fail)
