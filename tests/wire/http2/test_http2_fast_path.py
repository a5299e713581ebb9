"""Answers that come whole: taken apart by a remembered layout, they say what they say frame by frame."""

import pytest
from http2_peers import BLOCK, END, OK, exchange, greeted, pair, written
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.wire.http2 import Data, Event, Headers, Http2Client, Http2Error, frames
from inferometer.wire.http2.frames import frame

ENDS = frames.END_HEADERS | frames.END_STREAM
NEW_ENTRY = b"\x40\x01a\x01b"  # a field that enters the table
THAT_ENTRY = b"\xbe"  # and the newest of those


def answer(stream: int, body: bytes = b"answer", head: bytes = OK, end: bytes = END) -> bytes:
    return (
        frame(frames.HEADERS, frames.END_HEADERS, stream, head)
        + frame(frames.DATA, 0, stream, body)
        + frame(frames.HEADERS, ENDS, stream, end)
    )


def asked(count: int = 3, **options: int) -> Http2Client:
    client = greeted(**options)
    for _ in range(count):
        client.request(BLOCK, b"question")
    written(client)
    return client


def heard(client: Http2Client, data: bytes) -> tuple[list[Event], bool]:
    """What `data` says, and whether it went by a layout."""
    whole = client.complete_response(data)
    if whole is None:
        return client.feed(data), False
    number, body, layout = whole
    return [
        Headers(number, layout.headers, False),
        Data(number, body, False),
        Headers(number, layout.trailers, True),
    ], True


def test_the_second_answer_goes_by_the_layout_of_the_first() -> None:
    client, other = asked(), asked()
    assert heard(client, answer(1)) == (other.feed(answer(1)), False)
    assert heard(client, answer(3, b"second")) == (other.feed(answer(3, b"second")), True)
    assert client.open_streams == other.open_streams == 1
    assert heard(client, answer(5, b"of another length")) == (other.feed(answer(5, b"of another length")), False)


def test_a_layout_is_of_one_connection_and_its_fields_are_the_same_object_on_all() -> None:
    first, second = asked(), asked()
    for client in (first, second):
        assert not heard(client, answer(1))[1]
    (_, _, one), (_, _, other) = (
        first.complete_response(answer(3)) or ((),) * 3,
        second.complete_response(answer(3)) or ((),) * 3,
    )
    assert one.headers is other.headers
    assert one.trailers is other.trailers


@pytest.mark.parametrize(
    "unlike",
    [
        pytest.param(answer(3)[:-1] + b"x", id="other trailers"),
        pytest.param(answer(3).replace(OK, b"\x88" + OK[1:-1] + b"x"), id="other headers"),
        pytest.param(answer(9), id="a stream that is not there"),
        pytest.param(answer(3)[:-1], id="cut short"),
        pytest.param(answer(3) + b"\0", id="and more"),
        pytest.param(
            frame(frames.HEADERS, frames.END_HEADERS, 3, OK)
            + frame(frames.DATA, 0, 5, b"answer")
            + frame(frames.HEADERS, ENDS, 3, END),
            id="two streams",
        ),
        pytest.param(answer(3).replace(b"\0\0\6\0\0", b"\0\0\6\0\1"), id="data that ends the stream"),
        pytest.param(answer(3).replace(b"\0\0\6\0\0", b"\0\0\6\0\x08"), id="padded data"),
    ],
)
def test_what_is_not_like_it_is_left_to_feed(unlike: bytes) -> None:
    client = asked()
    client.feed(answer(1))
    assert client.complete_response(unlike) is None
    assert client.open_streams == 2


def test_within_a_frame_nothing_is_whole() -> None:
    client = asked()
    client.feed(answer(1))
    begun = frame(frames.HEADERS, frames.END_HEADERS, 3, OK) + frame(frames.DATA, 0, 3, answer(5))[:9]
    client.feed(begun)
    assert client.complete_response(answer(5)) is None  # it is the body of the other
    client.feed(answer(5))
    assert client.complete_response(answer(5)) is not None


def test_between_headers_and_their_continuation_nothing_is_whole() -> None:
    client = asked()
    client.feed(answer(1))
    client.feed(frame(frames.HEADERS, 0, 3, OK[:3]))
    assert client.complete_response(answer(5)) is None
    with pytest.raises(Http2Error, match="inside the headers of stream 3"):
        client.feed(answer(5))
    assert client.complete_response(answer(5)) is None  # nor is anything after an error


def test_an_answer_that_was_begun_or_asked_for_in_part_is_left_to_feed() -> None:
    client = greeted()
    client.request(BLOCK, b"question")
    client.request(BLOCK, b"question")
    client.request(BLOCK, b"half a question", end=False)
    client.feed(answer(1))
    client.feed(frame(frames.HEADERS, frames.END_HEADERS, 3, OK))
    assert client.complete_response(answer(3)) is None
    assert client.complete_response(answer(5)) is None


def test_blocks_that_change_the_table_are_not_learnt_and_end_what_was() -> None:
    client = asked(8)
    client.feed(answer(1))
    assert client.complete_response(answer(3)) is not None
    changing = answer(5, head=OK + NEW_ENTRY)
    client.feed(changing)
    assert client.complete_response(answer(7)) is None  # known again only when it is read again
    client.feed(answer(7, head=OK + THAT_ENTRY))
    assert client.complete_response(changing.replace(b"\0\0\0\5", b"\0\0\0\x09")) is None
    events, went_by = heard(client, answer(9, head=OK + THAT_ENTRY))
    assert went_by
    assert events[0].headers[-1] == (b"a", b"b")  # type: ignore[union-attr]


def test_windows_are_topped_up_all_the_same() -> None:
    client = asked(12, window=65_535)
    body = bytes(10_000)
    updates = []
    for stream in range(1, 24, 2):
        heard(client, answer(stream, body))
        updates += [payload for kind, *_, payload in written(client) if kind == frames.WINDOW_UPDATE]
    assert [int.from_bytes(payload, "big") for payload in updates] == [40_000] * 3


def test_a_server_whose_answers_are_never_alike_has_few_of_them_learnt() -> None:
    client = asked(300)
    for number in range(300):
        client.feed(answer(2 * number + 1, bytes(number)))
    assert len(client._layouts.by_size) <= 64


@settings(max_examples=200)
@given(st.data())
def test_any_answers_in_any_order_say_the_same_with_layouts_and_without(data: st.DataObject) -> None:
    """Streams, bodies, blocks that are known or change the table, and other frames among them."""
    with_layouts, without = asked(12, window=65_535), asked(12, window=65_535)
    streams = st.sampled_from(range(1, 24, 2))
    head = st.sampled_from([OK, OK, OK, OK + NEW_ENTRY, OK + b"\x00\x01c\x01d"])
    bodies = st.sampled_from([b"", b"answer", b"second", bytes(9000)])
    one = st.builds(answer, streams, bodies, head, st.sampled_from([END, END, END + NEW_ENTRY]))
    other = st.sampled_from(
        [frame(frames.PING, 0, 0, b"12345678"), frames.window_update(0, 5), frames.rst_stream(3, 8)]
    )
    for reading in data.draw(st.lists(one | other | st.tuples(one, one).map(b"".join), max_size=16)):
        found = [[], []]
        for place, (client, is_by_layouts) in enumerate(((with_layouts, True), (without, False))):
            try:
                found[place] = heard(client, reading)[0] if is_by_layouts else client.feed(reading)
            except Http2Error as error:
                found[place] = [*error.events, error.message]
        assert found[0] == found[1]
        assert with_layouts.open_streams == without.open_streams
        assert written(with_layouts) == written(without)


def test_h2s_answers_go_by_layouts_once_its_table_has_settled() -> None:
    client, peer = pair()
    went_by = []
    for number in range(6):
        stream = client.request(BLOCK, b"question")
        peer.receive_data(client.take())
        peer.send_headers(stream, [(b":status", b"200"), (b"content-type", b"application/grpc")])
        peer.send_data(stream, b"answer %d" % number)
        peer.send_headers(stream, [(b"grpc-status", b"0")], end_stream=True)
        events, layout = heard(client, peer.data_to_send())
        went_by.append(layout)
        assert [event for event in events if isinstance(event, Data)] == [Data(stream, b"answer %d" % number, False)]
        exchange(client, peer)
    assert went_by == [False, False, True, True, True, True]
