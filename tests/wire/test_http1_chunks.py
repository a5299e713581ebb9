"""Chunks that come whole go past the parser: the body, and what is wrong with it, are the same however the bytes were read."""

from itertools import pairwise

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.types import Event, Fail
from inferometer.wire.http1 import ResponseDecoder

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


class Kept:
    """A body that keeps what it is given."""

    text = ""

    def reset(self) -> None:
        self.data = b""

    def feed(self, piece: bytes, events: list[Event]) -> None:
        self.data += piece

    def finish(self, events: list[Event]) -> None:
        return None


def heard(reads: list[bytes]) -> tuple[bytes, list[object]]:
    """The body, and how it ended."""
    body = Kept()
    decoder = ResponseDecoder(body)
    ends: list[object] = []
    for read in reads:
        ends += [event.code if isinstance(event, Fail) else event for event in decoder.feed(read)]
        if ends:
            break
    return body.data, ends


def counted(reads: list[bytes]) -> int:
    """How many of the reads the parser saw."""
    seen = []
    decoder = ResponseDecoder(Kept())
    parser = decoder._parser

    class Spy:
        def feed_data(self, data: bytes) -> None:
            seen.append(data)
            parser.feed_data(data)

        def __getattr__(self, name: str) -> object:
            return getattr(parser, name)

    decoder._parser = Spy()  # type: ignore[assignment]
    for read in reads:
        decoder.feed(read)
    return len(seen)


def test_a_chunk_in_a_read_of_its_own_does_not_need_the_parser() -> None:
    chunks = [b"5\r\nhello\r\n", b"1\r\n!\r\n", b"A\r\n0123456789\r\n"]
    assert heard([HEAD, *chunks, LAST])[0] == b"hello!0123456789"
    assert counted([HEAD, *chunks, LAST]) == 3  # the head, the first chunk and the last
    assert counted([HEAD + chunks[0], *chunks[1:], LAST]) == 2


@pytest.mark.parametrize("rest", [b"5", b"5\r", b"5\r\n", b"5\r\nhell", b"5\r\nhello", b"5\r\nhello\r"])
def test_where_the_parser_is_within_a_chunk_the_next_read_is_its_business(rest: bytes) -> None:
    chunk = b"5\r\nhello\r\n"
    whole = b"2\r\nab\r\n"
    reads = [HEAD, chunk, chunk + rest, chunk[len(rest) :] + whole, whole, LAST]
    assert heard(reads) == heard([b"".join(reads)]) == (b"hello" * 3 + b"abab", heard([HEAD, LAST])[1])


def test_a_body_that_looks_like_chunks_is_a_body() -> None:
    inner = b"5\r\nhello\r\n"
    outer = b"%x\r\n%b\r\n" % (len(inner), inner)
    reads = [HEAD, inner, outer[:3], inner, b"\r\n", LAST]
    assert heard(reads)[0] == b"hello" + inner


@pytest.mark.parametrize("status", [b"500", b"206"])
def test_chunks_of_another_status_are_no_body(status: bytes) -> None:
    body, ends = heard([HEAD.replace(b"200", status), b"5\r\nhello\r\n", b"5\r\nagain\r\n", LAST])
    assert (body, ends) == (b"", [f"http_{status.decode()}"])


SIZES = st.sampled_from(
    [b"%x", b"%X", b"0%x", b"000%x", b"%x;name=value", b"%x ", b"+%x", b"0x%x", b" %x", b"-%x", b"%x_0"]
)
BODIES = st.sampled_from([b"a", b"hello", b"\r\n", b"\r\n5\r\n", b"0\r\n\r\n", b"x" * 26, b"y" * 300, b""])
CHUNKS = st.builds(
    lambda form, body, end, off: form % (len(body) + off) + b"\r\n" + body + end,
    st.just(b"%x") | SIZES,
    BODIES,
    st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"", b"\r\n\r\n", b"xx"]),
    st.sampled_from([0, 0, 0, 1, 2]),
)


@settings(max_examples=500)
@given(
    st.lists(CHUNKS, max_size=6),
    st.sampled_from([LAST, b"0\r\nTrailer: x\r\n\r\n", b""]),
    st.sets(st.integers(0, 400), max_size=4),
)
def test_the_body_is_the_same_however_it_is_read(chunks: list[bytes], last: bytes, places: set[int]) -> None:
    stream = HEAD + b"".join(chunks) + last
    byte_by_byte = heard([stream[n : n + 1] for n in range(len(stream))])  # never a whole chunk
    edges, at = {0, len(stream)}, len(HEAD)
    for chunk in (b"", *chunks):
        at += len(chunk)
        edges.add(at)
    for more in (set(), {place % (len(stream) + 1) for place in places}):
        cuts = sorted(edges | more)
        reads = [stream[a:b] for a, b in pairwise(cuts)]
        assert heard(reads) == byte_by_byte


def test_the_parser_calls_back_around_chunks() -> None:
    """What all this stands on."""
    said: list[str] = []

    class Protocol:
        def on_chunk_header(self) -> None:
            said.append("header")

        def on_body(self, body: bytes) -> None:
            said.append("body")

        def on_chunk_complete(self) -> None:
            said.append("complete")

        def on_message_complete(self) -> None:
            said.append("message")

    parser = httptools.HttpResponseParser(Protocol())
    parser.feed_data(HEAD + b"5\r\nhello\r\n")
    assert said == ["header", "body", "complete"]
    parser.feed_data(b"5\r\n")
    assert said[3:] == ["header"]
    parser.feed_data(b"hello\r\n0\r\n\r\n")
    assert said[4:6] == ["body", "complete"]
    assert said[-1] == "message"
