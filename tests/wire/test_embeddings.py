"""OpenAI's embeddings: request bodies, and every kind of response at every byte split."""

import base64
import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from responses import events_up_to_the_end, http

from inferometer.errors import UserError
from inferometer.types import End, Event, Fail, Request, Usage
from inferometer.wire import calls
from inferometer.wire import embeddings as embeddings_wire
from inferometer.wire.context import CallContext
from inferometer.wire.embeddings import EXTRACTOR
from inferometer.wire.http1 import ResponseDecoder
from inferometer.wire.target import parse
from inferometer.wire.text_body import WholeBody

VECTOR = [0.5, -0.25, 0.0]
ROW = {"object": "embedding", "index": 0, "embedding": VECTOR}
GOOD = json.dumps({"data": [ROW], "usage": {"prompt_tokens": 7, "total_tokens": 7}}).encode()
ERROR = b'{"error": {"message": "out of memory"}}'


def decode(pieces: list[bytes], eof: bool = False) -> list[Event]:
    """Events up to the first that ends the response, as the engine takes them."""
    return events_up_to_the_end(ResponseDecoder(WholeBody(EXTRACTOR)), pieces, eof)


def splits(data: bytes) -> list[list[bytes]]:
    return [
        [data],
        *([data[:at], data[at:]] for at in range(1, len(data))),
        [data[n : n + 1] for n in range(len(data))],
    ]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_response_reports_its_input_tokens_at_every_split(chunked: bool) -> None:
    for pieces in splits(http(GOOD, chunked=chunked)):
        assert decode(pieces) == [Usage(7, -1), End(True)]


BAD = {
    "status 503": (http(ERROR, 503), "http_503", "out of memory"),
    "error body": (http(ERROR), "error_body", "out of memory"),
    "web page": (http(b"<html>Welcome</html>"), "not_json", "Welcome"),
    "no data": (http(b'{"object": "list"}'), "malformed_json", "no embeddings"),
    "data without a vector": (http(b'{"data": [{"index": 0}]}'), "malformed_json", "embedding"),
    "not JSON": (http(b'{"data": [}'), "malformed_json", ""),
    "no body": (http(b""), "truncated", "empty"),
    "cut short": (http(GOOD)[:-5], "cut_short", ""),
}


@pytest.mark.parametrize("name", BAD)
def test_each_failure_has_its_code_at_every_split(name: str) -> None:
    data, code, message = BAD[name]
    for pieces in splits(data):
        last = decode(pieces, eof=True)[-1]
        assert isinstance(last, Fail)
        assert last.code == code
        assert message in last.message


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=60), max_size=5))
def test_garbage_gives_a_failure_and_never_an_exception(pieces: list[bytes]) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert isinstance(decode([head, *pieces], eof=True)[-1], End | Fail)


def test_usage_may_be_missing() -> None:
    assert decode([http(json.dumps({"data": [ROW]}).encode())]) == [End(True)]


def vectors(*embeddings: object) -> tuple[tuple[float, ...], ...]:
    return embeddings_wire.vectors(json.dumps({"data": [{"embedding": one} for one in embeddings]}).encode())


def test_vectors_are_numbers_or_packed_floats() -> None:
    packed = base64.b64encode(struct.pack("<3f", *VECTOR)).decode()
    assert vectors(VECTOR, packed) == (tuple(VECTOR), tuple(VECTOR))


@pytest.mark.parametrize("embedding", ["not base64!", "AAA=", {"a": 1}, ["x"]])
def test_a_vector_of_anything_else_is_an_error(embedding: object) -> None:
    with pytest.raises(UserError, match="neither a list of numbers nor base64"):
        vectors(embedding)


def encoded(payload: object, **more: Any) -> tuple[str, dict[str, Any]]:
    context = CallContext(api="embeddings", model="m", targets=(parse("http://x/v1"),), tag="t", **more)
    made = calls.encode(context, [Request(0, payload, 3, 128)])  # type: ignore[arg-type]
    assert (made.n_in, made.n_out, made.counts_tokens) == ((3,), (0,), False)
    head, _, body = (made.heads[0] + b"0" + made.tails[0]).partition(b"\r\n\r\n")
    return head.decode().partition("\r\n")[0], json.loads(body)


def test_the_text_is_the_input_and_the_body_has_the_last_word() -> None:
    assert encoded("héllo") == ("POST /v1/embeddings HTTP/1.1", {"model": "m", "input": "héllo"})
    options = {"encoding_format": "base64", "dimensions": 8}
    assert encoded("a", body=options)[1] == {"model": "m", "input": "a"} | options
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    assert encoded(messages)[1]["input"] == "a\nb"
