"""Server-sent events: the cases of the standard, and any stream split anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.wire.sse import EventStream, Message


def parse(*pieces: bytes) -> list[Message]:
    stream = EventStream()
    messages = [message for piece in pieces for message in stream.feed(piece)]
    return messages + stream.finish()


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
    assert [message[1] for message in parse(stream)] == data
    for cut_at in range(len(stream) + 1):
        assert [message[1] for message in parse(stream[:cut_at], stream[cut_at:])] == data
    assert [message[1] for message in parse(*(stream[n : n + 1] for n in range(len(stream))))] == data


def test_error_field_is_an_event_named_error() -> None:
    assert parse(b"event: error\ndata: {}\n\ndata: a\n\n") == [(b"error", b"{}"), (b"", b"a")]
    assert parse(b'error: {"code": 500}\n\n') == [(b"error", b'{"code": 500}')]


def test_byte_order_mark_inside_the_stream_is_content() -> None:
    assert parse(b"data: a\n\n\xef\xbb\xbfdata: b\n\n") == [(b"", b"a")]


LINE = st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b"").replace(b"\r", b""))


@given(st.lists(LINE, min_size=1, max_size=6), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.data())
def test_any_data_survives_any_split(lines: list[bytes], end: bytes, data: st.DataObject) -> None:
    stream = b"".join(b"data: " + line + end + end for line in lines)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert [message[1] for message in parse(*pieces)] == lines


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_garbage_never_raises(pieces: list[bytes]) -> None:
    parse(*pieces)
