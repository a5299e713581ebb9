"""Responses that arrive complete become one event, which says the same as their frames one by one."""

import pytest
from http2_peers import BLOCK, END, OK, connected, exchange, pair, written
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.wire.http2 import frames
from inferometer.wire.http2.client import Http2Client
from inferometer.wire.http2.events import Data, Event, Headers, Http2Error, Response
from inferometer.wire.http2.frames import frame, unpack_head

ENDS = frames.END_HEADERS | frames.END_STREAM
NEW_ENTRY = b"\x40\x01a\x01b"  # a field that is added to the table
THAT_ENTRY = b"\xbe"  # a reference to the newest entry
UPDATE = frames.window_update(0, 5)


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


def separate(events: list[Event]) -> list[Event]:
    """The events of the frames that complete responses consist of."""
    parts: list[Event] = []
    for event in events:
        if isinstance(event, Response):
            body = [Data(event.stream, event.data, False)] if event.data else []
            parts += [Headers(event.stream, event.headers, False), *body, Headers(event.stream, event.trailers, True)]
        else:
            parts.append(event)
    return parts


def frame_by_frame(client: Http2Client, data: bytes) -> list[Event]:
    events: list[Event] = []
    at = 0
    while at < len(data):
        end = at + frames.HEAD + (unpack_head(data, at)[0] >> 8)
        try:
            events += client.feed(data[at:end])
        except Http2Error as error:
            error.events = events + error.events
            raise
        at = end
    return events


def test_responses_after_the_first_are_single_events_whatever_their_size_and_what_follows_them() -> None:
    client, other = client_with_requests(4), client_with_requests(4)
    first = client.feed(response(1) + UPDATE)
    assert first == frame_by_frame(other, response(1) + UPDATE)
    data = response(5, b"of another length") + UPDATE + response(3, b"")
    events = client.feed(data)
    assert [(event.__class__, event.stream) for event in events] == [(Response, 5), (Response, 3)]  # type: ignore[union-attr]
    assert separate(events) == frame_by_frame(other, data)
    assert client.open_streams == other.open_streams == 1


def test_header_objects_are_shared_by_connections() -> None:
    one, other = client_with_requests(), client_with_requests()
    (first,), (second,) = [client.feed(response(1)) and client.feed(response(3)) for client in (one, other)]
    assert isinstance(first, Response) and isinstance(second, Response)
    assert first.headers is second.headers
    assert first.trailers is second.trailers


@pytest.mark.parametrize(
    "unlike",
    [
        pytest.param(response(3)[:-1] + b"x", id="other trailers"),
        pytest.param(response(3).replace(OK, b"\x88" + OK[1:-1] + b"x"), id="other headers"),
        pytest.param(response(9), id="a stream that is not there"),
        pytest.param(response(3)[:-1], id="cut short"),
        pytest.param(
            frame(frames.HEADERS, frames.END_HEADERS, 3, OK)
            + frame(frames.DATA, 0, 5, b"answer")
            + frame(frames.HEADERS, ENDS, 3, END),
            id="two streams",
        ),
        pytest.param(response(3).replace(b"\0\0\6\0\0", b"\0\0\6\0\1"), id="data that ends the stream"),
        pytest.param(response(3).replace(b"\0\0\6\0\0", b"\0\0\6\0\x08"), id="padded data"),
        pytest.param(frame(frames.DATA, 0, 3, response(5)), id="the body of another response"),
        pytest.param(frame(frames.HEADERS, 0, 3, OK[:3]) + response(5), id="within headers"),
    ],
)
def test_frames_that_are_not_such_a_response_are_read_one_by_one(unlike: bytes) -> None:
    events = list[list[Event] | str]()
    for read in (Http2Client.feed, frame_by_frame):
        client = client_with_requests()
        client.feed(response(1))
        try:
            events.append(read(client, unlike))
        except Http2Error as error:
            events.append(error.message)
    assert events[0] == events[1]


def test_response_to_an_incomplete_request_or_already_begun_is_read_frame_by_frame() -> None:
    client = connected()
    client.request(BLOCK, b"question")
    client.request(BLOCK, b"question")
    client.request(BLOCK, b"half a question", end=False)
    client.feed(response(1))
    client.feed(frame(frames.HEADERS, frames.END_HEADERS, 3, OK))
    assert not any(isinstance(event, Response) for event in client.feed(response(5)))
    assert any(kind == frames.RST_STREAM for kind, *_ in written(client))  # the server takes no more of the request


def test_blocks_that_change_the_table_are_not_remembered_and_neither_are_those_before() -> None:
    client, other = client_with_requests(8), client_with_requests(8)
    readings = [
        response(1),
        response(3),
        response(5, head=OK + NEW_ENTRY),
        response(7, head=OK + THAT_ENTRY),
        response(9, head=OK + NEW_ENTRY),
        response(11, head=OK + THAT_ENTRY),
        response(13, head=OK + THAT_ENTRY),
    ]
    found = [client.feed(each) for each in readings]
    assert [separate(events) for events in found] == [frame_by_frame(other, each) for each in readings]
    assert [len(events) for events in found] == [3, 1, 3, 3, 3, 3, 1]


def test_windows_are_topped_up() -> None:
    client = client_with_requests(12, window=65_535)
    updates = []
    for stream in range(1, 24, 2):
        client.feed(response(stream, bytes(10_000)))
        updates += [payload for kind, *_, payload in written(client) if kind == frames.WINDOW_UPDATE]
    assert [int.from_bytes(payload, "big") for payload in updates] == [40_000] * 3


@settings(max_examples=200)
@given(st.data())
def test_any_reading_says_the_same_as_its_frames_one_by_one(data: st.DataObject) -> None:
    """Draws streams, bodies, header blocks that are known or change the table, and other frames in between."""
    joined, single = client_with_requests(12, window=65_535), client_with_requests(12, window=65_535)
    streams = st.sampled_from(range(1, 24, 2))
    head = st.sampled_from([OK, OK, OK, OK + NEW_ENTRY, OK + b"\x00\x01c\x01d"])
    bodies = st.sampled_from([b"", b"answer", b"second", bytes(9000)])
    one = st.builds(response, streams, bodies, head, st.sampled_from([END, END, END + NEW_ENTRY]))
    other = st.sampled_from([frame(frames.PING, 0, 0, b"12345678"), UPDATE, frames.rst_stream(3, 8)])
    for reading in data.draw(st.lists(st.lists(one | other, max_size=4).map(b"".join), max_size=12)):
        results = list[list[Event | str]]()
        for client, read in ((joined, Http2Client.feed), (single, frame_by_frame)):
            try:
                results.append(separate(read(client, reading)))
            except Http2Error as error:
                results.append([*separate(error.events), error.message])
        assert results[0] == results[1]
        assert joined.open_streams == single.open_streams
        assert written(joined) == written(single)


def test_responses_of_h2_are_single_events_once_its_table_is_stable() -> None:
    client, peer = pair()
    found = []
    for number in range(6):
        stream = client.request(BLOCK, b"question")
        peer.receive_data(client.take())
        peer.send_headers(stream, [(b":status", b"200"), (b"content-type", b"application/grpc")])
        peer.send_data(stream, b"answer %d" % number)
        peer.send_headers(stream, [(b"grpc-status", b"0")], end_stream=True)
        events = client.feed(peer.data_to_send())
        found.append(len(events))
        assert [each for each in separate(events) if isinstance(each, Data)] == [
            Data(stream, b"answer %d" % number, False)
        ]
        exchange(client, peer)
    assert found == [3, 3, 1, 1, 1, 1]
