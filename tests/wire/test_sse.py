"""Server-sent events: the cases of the standard, and where each event ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.wire import sse

Parsed = list[tuple[bytes, bytes, int]]
"""The name of each event, its data, and the number of bytes after which it was complete."""


def parse(*pieces: bytes) -> Parsed:
    """Parse a stream whose pieces arrive one after the other, then what its end cuts off."""
    parsed, data, done = Parsed(), b"", 0
    for piece in (*pieces, b"\n\n"):
        data += piece
        complete = sse.complete(data)
        names, messages, ends = sse.messages(data[:complete], not done)
        parsed += [(name, message, done + end) for name, message, end in zip(names, messages, ends, strict=False)]
        data, done = data[complete:], done + complete
    return parsed


@pytest.mark.parametrize(
    ("stream", "data"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\r\n\r\n", [b"a"]),
        (b"data: a\r\r", [b"a"]),
        (b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\n\n\n\ndata: b\n\ndata: c\n\n", [b"a", b"b", b"c"]),
        (b"data: a\n\ndata: b\nid: 1\n\n", [b"a", b"b"]),
        (b"data\n\n", [b""]),
        (b": comment\n\ndata: a\n\n", [b"a"]),
        (b":\n:\ndata: a\n:\n\n", [b"a"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"id: 1\nretry: 5\nother: x\ndata: a\n\n", [b"a"]),
        (b"event: x\n\ndata: a\n\n", [b"a"]),
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a", [b"a"]),
        (b"data: a\n", [b"a"]),
        (b"data: a\n\ndata: [DONE]", [b"a", b"[DONE]"]),
        (b"", []),
        (b"\n\n\r\r\n", []),
    ],
)
def test_stream_gives_the_same_events_at_every_split(stream: bytes, data: list[bytes]) -> None:
    parsed = parse(stream)
    assert [message for _, message, _ in parsed] == data
    for cut_at in range(len(stream) + 1):
        assert parse(stream[:cut_at], stream[cut_at:]) == parsed
    assert parse(*(stream[n : n + 1] for n in range(len(stream)))) == parsed


def test_error_field_is_an_event_named_error() -> None:
    assert parse(b"event: error\ndata: {}\n\ndata: a\n\n") == [(b"error", b"{}", 23), (b"", b"a", 32)]
    assert parse(b'error: {"code": 500}\n\n') == [(b"error", b'{"code": 500}', 22)]


def test_byte_order_mark_inside_the_stream_is_content() -> None:
    assert parse(b"data: a\n\n\xef\xbb\xbfdata: b\n\n") == [(b"", b"a", 9)]


@pytest.mark.parametrize(
    ("stream", "ends"),
    [
        (b"data: a\n\ndata: b\n\n", [9, 18]),
        (b"\xef\xbb\xbfdata: a\n\n", [12]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [10, 21]),
        (b"data: a\r\rdata: b\r\r", [9, 18]),
        (b": ping\n\ndata: a\n\n", [17]),
    ],
)
def test_an_event_ends_with_the_byte_that_makes_its_last_line_blank(stream: bytes, ends: list[int]) -> None:
    assert [end for _, _, end in parse(stream)] == ends
    for end in ends:
        assert len(sse.messages(stream[:end], True)[1]) == ends.index(end) + 1
        assert sse.complete(stream[: end - 1]) < end - 1


LINE = st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b"").replace(b"\r", b""))


@given(st.lists(LINE, min_size=1, max_size=6), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.data())
def test_any_data_survives_any_split(lines: list[bytes], end: bytes, data: st.DataObject) -> None:
    stream = b"".join(b"data: " + line + end + end for line in lines)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    parsed = parse(*pieces)
    assert [message for _, message, _ in parsed] == lines
    assert parsed == parse(stream)


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_garbage_never_raises(pieces: list[bytes]) -> None:
    parse(*pieces)
