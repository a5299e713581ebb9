"""The fast path for complete responses gives the same events as reading them frame by frame."""

import pytest
from http2_peers import BLOCK, END, OK, connected, exchange, pair, written
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.wire.http2 import Data, Event, Headers, Http2Client, Http2Error, frames
from inferometer.wire.http2.frames import frame

ENDS = frames.END_HEADERS | frames.END_STREAM
NEW_ENTRY = b"\x40\x01a\x01b"  # a field that is added to the table
THAT_ENTRY = b"\xbe"  # a reference to the newest entry


def response(stream: int, body: bytes = b"answer", head: bytes = OK, end: bytes = END) -> bytes:
    return (
        frame(frames.HEADERS, frames.END_HEADERS, stream, head)
        + frame(frames.DATA, 0, stream, body)
        + frame(frames.HEADERS, ENDS, stream, end)
    )


def client_with_requests(count: int = 3, **options: int) -> Http2Client:
    client = connected(**options)
    for _ in range(count):
        client.request(BLOCK, b"question")
    written(client)
    return client


def received(client: Http2Client, data: bytes) -> tuple[list[Event], bool]:
    """The events of `data`, and whether a layout was used."""
    complete = client.complete_response(data)
    if complete is None:
        return client.feed(data), False
    number, body, layout = complete
    return [
        Headers(number, layout.headers, False),
        Data(number, body, False),
        Headers(number, layout.trailers, True),
    ], True


def test_second_response_uses_the_layout_of_the_first() -> None:
    client, other = client_with_requests(), client_with_requests()
    assert received(client, response(1)) == (other.feed(response(1)), False)
    assert received(client, response(3, b"second")) == (other.feed(response(3, b"second")), True)
    assert client.open_streams == other.open_streams == 1
    assert received(client, response(5, b"of another length")) == (other.feed(response(5, b"of another length")), False)


def test_layouts_are_per_connection_but_share_their_header_objects() -> None:
    first, second = client_with_requests(), client_with_requests()
    for client in (first, second):
        assert not received(client, response(1))[1]
    (_, _, one), (_, _, other) = (
        first.complete_response(response(3)) or ((),) * 3,
        second.complete_response(response(3)) or ((),) * 3,
    )
    assert one.headers is other.headers
    assert one.trailers is other.trailers


@pytest.mark.parametrize(
    "unlike",
    [
        pytest.param(response(3)[:-1] + b"x", id="other trailers"),
        pytest.param(response(3).replace(OK, b"\x88" + OK[1:-1] + b"x"), id="other headers"),
        pytest.param(response(9), id="a stream that is not there"),
        pytest.param(response(3)[:-1], id="cut short"),
        pytest.param(response(3) + b"\0", id="and more"),
        pytest.param(
            frame(frames.HEADERS, frames.END_HEADERS, 3, OK)
            + frame(frames.DATA, 0, 5, b"answer")
            + frame(frames.HEADERS, ENDS, 3, END),
            id="two streams",
        ),
        pytest.param(response(3).replace(b"\0\0\6\0\0", b"\0\0\6\0\1"), id="data that ends the stream"),
        pytest.param(response(3).replace(b"\0\0\6\0\0", b"\0\0\6\0\x08"), id="padded data"),
    ],
)
def test_data_with_another_layout_is_left_to_feed(unlike: bytes) -> None:
    client = client_with_requests()
    client.feed(response(1))
    assert client.complete_response(unlike) is None
    assert client.open_streams == 2


def test_fast_path_is_not_used_inside_a_frame() -> None:
    client = client_with_requests()
    client.feed(response(1))
    begun = frame(frames.HEADERS, frames.END_HEADERS, 3, OK) + frame(frames.DATA, 0, 3, response(5))[:9]
    client.feed(begun)
    assert client.complete_response(response(5)) is None  # it is the body of another response
    client.feed(response(5))
    assert client.complete_response(response(5)) is not None


def test_fast_path_is_not_used_between_headers_and_continuation() -> None:
    client = client_with_requests()
    client.feed(response(1))
    client.feed(frame(frames.HEADERS, 0, 3, OK[:3]))
    assert client.complete_response(response(5)) is None
    with pytest.raises(Http2Error, match="inside the headers of stream 3"):
        client.feed(response(5))
    assert client.complete_response(response(5)) is None  # the same after an error


def test_response_to_an_incomplete_request_or_already_begun_is_left_to_feed() -> None:
    client = connected()
    client.request(BLOCK, b"question")
    client.request(BLOCK, b"question")
    client.request(BLOCK, b"half a question", end=False)
    client.feed(response(1))
    client.feed(frame(frames.HEADERS, frames.END_HEADERS, 3, OK))
    assert client.complete_response(response(3)) is None
    assert client.complete_response(response(5)) is None


def test_blocks_that_change_the_table_are_not_learned_and_invalidate_layouts() -> None:
    client = client_with_requests(8)
    client.feed(response(1))
    assert client.complete_response(response(3)) is not None
    changing = response(5, head=OK + NEW_ENTRY)
    client.feed(changing)
    assert client.complete_response(response(7)) is None  # the layout is forgotten until it is learned again
    client.feed(response(7, head=OK + THAT_ENTRY))
    assert client.complete_response(changing.replace(b"\0\0\0\5", b"\0\0\0\x09")) is None
    events, used_layout = received(client, response(9, head=OK + THAT_ENTRY))
    assert used_layout
    assert events[0].headers[-1] == (b"a", b"b")  # type: ignore[union-attr]


def test_fast_path_tops_up_windows() -> None:
    client = client_with_requests(12, window=65_535)
    body = bytes(10_000)
    updates = []
    for stream in range(1, 24, 2):
        received(client, response(stream, body))
        updates += [payload for kind, *_, payload in written(client) if kind == frames.WINDOW_UPDATE]
    assert [int.from_bytes(payload, "big") for payload in updates] == [40_000] * 3


def test_number_of_learned_layouts_is_limited() -> None:
    client = client_with_requests(300)
    for number in range(300):
        client.feed(response(2 * number + 1, bytes(number)))
    assert len(client._layouts.by_size) <= 64


@settings(max_examples=200)
@given(st.data())
def test_any_responses_give_the_same_events_with_and_without_layouts(data: st.DataObject) -> None:
    """Draws streams, bodies, header blocks that are known or change the table, and other frames in between."""
    with_layouts, without = client_with_requests(12, window=65_535), client_with_requests(12, window=65_535)
    streams = st.sampled_from(range(1, 24, 2))
    head = st.sampled_from([OK, OK, OK, OK + NEW_ENTRY, OK + b"\x00\x01c\x01d"])
    bodies = st.sampled_from([b"", b"answer", b"second", bytes(9000)])
    one = st.builds(response, streams, bodies, head, st.sampled_from([END, END, END + NEW_ENTRY]))
    other = st.sampled_from(
        [frame(frames.PING, 0, 0, b"12345678"), frames.window_update(0, 5), frames.rst_stream(3, 8)]
    )
    for reading in data.draw(st.lists(one | other | st.tuples(one, one).map(b"".join), max_size=16)):
        results = [[], []]
        for index, (client, is_by_layouts) in enumerate(((with_layouts, True), (without, False))):
            try:
                results[index] = received(client, reading)[0] if is_by_layouts else client.feed(reading)
            except Http2Error as error:
                results[index] = [*error.events, error.message]
        assert results[0] == results[1]
        assert with_layouts.open_streams == without.open_streams
        assert written(with_layouts) == written(without)


def test_responses_of_h2_use_layouts_once_its_table_is_stable() -> None:
    client, peer = pair()
    used_layout = []
    for number in range(6):
        stream = client.request(BLOCK, b"question")
        peer.receive_data(client.take())
        peer.send_headers(stream, [(b":status", b"200"), (b"content-type", b"application/grpc")])
        peer.send_data(stream, b"answer %d" % number)
        peer.send_headers(stream, [(b"grpc-status", b"0")], end_stream=True)
        events, layout = received(client, peer.data_to_send())
        used_layout.append(layout)
        assert [event for event in events if isinstance(event, Data)] == [Data(stream, b"answer %d" % number, False)]
        exchange(client, peer)
    assert used_layout == [False, False, True, True, True, True]
