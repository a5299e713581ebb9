"""Complete conversations with a server built with the h2 library, and the same bytes split at every position."""

from collections.abc import Callable

import pytest
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, DataReceived, RequestReceived, StreamEnded, StreamReset
from h2.settings import SettingCodes
from http2_peers import BLOCK, RESPONSE, TRAILERS, cut, exchange, joined, pair, server
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.wire.http2.client import Http2Client
from inferometer.wire.http2.events import Data, Event, GoAway, Headers, Http2Error, Reset


def test_h2_receives_the_request_and_its_response_is_read() -> None:
    client, peer = pair()
    number = client.request(BLOCK, b"question")
    _, at_server = exchange(client, peer)
    (request,) = [event for event in at_server if isinstance(event, RequestReceived)]
    assert dict(request.headers)[b":path"] == b"/inference.GRPCInferenceService/ModelInfer"
    assert [event.data for event in at_server if isinstance(event, DataReceived)] == [b"question"]
    assert any(isinstance(event, StreamEnded) for event in at_server)
    peer.send_headers(number, RESPONSE)
    peer.send_data(number, b"answer")
    peer.send_headers(number, TRAILERS, end_stream=True)
    seen, _ = exchange(client, peer)
    assert seen == [Headers(1, tuple(RESPONSE), False), Data(1, b"answer", False), Headers(1, tuple(TRAILERS), True)]
    assert client.open_streams == peer.open_inbound_streams == 0


def test_a_thousand_exchanges_on_one_connection() -> None:
    client, peer = pair()
    for turn in range(250):
        numbers = [client.request(BLOCK, b"%d" % turn) for _ in range(4)]
        exchange(client, peer)
        for number in reversed(numbers):
            peer.send_headers(number, [*RESPONSE, (b"x-number", b"%d" % number)])
            peer.send_data(number, b"%d" % number)
            peer.send_headers(number, TRAILERS, end_stream=True)
        seen, _ = exchange(client, peer)
        assert [event.data for event in seen if isinstance(event, Data)] == [
            b"%d" % number for number in reversed(numbers)
        ]
        assert [dict(event.headers)[b"x-number"] for event in seen if isinstance(event, Headers) and not event.end] == [
            b"%d" % number for number in reversed(numbers)
        ]
    assert client.open_streams == 0


def test_messages_go_both_ways_on_one_stream() -> None:
    client, peer = pair()
    number = client.request(BLOCK, b"", end=False)
    exchange(client, peer)
    peer.send_headers(number, RESPONSE)
    for turn in range(5):
        client.send(number, b"ask %d" % turn, end=turn == 4)
        _, at_server = exchange(client, peer)
        assert [event.data for event in at_server if isinstance(event, DataReceived)] == [b"ask %d" % turn]
        peer.send_data(number, b"say %d" % turn)
        seen, _ = exchange(client, peer)
        assert seen[-1] == Data(number, b"say %d" % turn, False)
    peer.end_stream(number)
    assert exchange(client, peer)[0] == [Data(number, b"", True)]
    assert client.open_streams == 0


def test_h2_sees_resets_of_cancelled_streams_and_after_early_responses() -> None:
    client, peer = pair()
    first, second = client.request(BLOCK, b"x"), client.request(BLOCK, b"", end=False)
    client.reset(first)
    _, at_server = exchange(client, peer)
    assert [(e.stream_id, e.error_code) for e in at_server if isinstance(e, StreamReset)] == [
        (first, ErrorCodes.CANCEL)
    ]
    peer.send_headers(second, RESPONSE, end_stream=True)
    _, at_server = exchange(client, peer)
    assert [(e.stream_id, e.error_code) for e in at_server if isinstance(e, StreamReset)] == [
        (second, ErrorCodes.NO_ERROR)
    ]
    assert peer.open_inbound_streams == client.open_streams == 0


def test_h2_receives_the_reason_of_a_goaway() -> None:
    client, peer = pair()
    with pytest.raises(Http2Error):
        client.feed(b"\0\0\1\6\0\0\0\0\0x")
    (event,) = peer.receive_data(client.take())
    assert isinstance(event, ConnectionTerminated)
    assert event.error_code == ErrorCodes.FRAME_SIZE_ERROR
    assert event.additional_data == b"the server sent PING with a payload of 1 bytes"


def test_limits_set_by_h2_are_applied() -> None:
    client, peer = pair()
    peer.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 13, SettingCodes.HEADER_TABLE_SIZE: 0})
    exchange(client, peer)
    assert client.max_streams == 13
    client.request(BLOCK, b"")
    client.request(BLOCK, b"")
    _, at_server = exchange(client, peer)
    assert sum(isinstance(event, RequestReceived) for event in at_server) == 2


# --- every split -----------------------------------------------------------------------------------------------------


def unary(peer: H2Connection) -> None:
    peer.send_headers(1, RESPONSE)
    peer.send_data(1, b"answer", pad_length=3)
    peer.send_headers(1, TRAILERS, end_stream=True)


def interleaved(peer: H2Connection) -> None:
    peer.ping(b"12345678")
    for number in (3, 1, 5):
        peer.send_headers(number, RESPONSE)
    for turn in range(3):
        for number in (5, 1):
            peer.send_data(number, b"%d" % turn * (turn + number), pad_length=turn or None)
    peer.reset_stream(3, ErrorCodes.REFUSED_STREAM)
    peer.send_headers(1, TRAILERS, end_stream=True)
    peer.send_data(5, b"", end_stream=True, pad_length=2)


def with_informational_and_large_headers(peer: H2Connection) -> None:
    peer.send_headers(1, [(b":status", b"103"), (b"link", b"x")])
    peer.send_headers(1, [*RESPONSE, (b"x-large", b"v" * 300)])
    peer.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 100, SettingCodes.MAX_CONCURRENT_STREAMS: 5})
    peer.increment_flow_control_window(1000)
    peer.increment_flow_control_window(1000, 1)
    peer.send_data(1, b"x" * 50, end_stream=True)


def going_away(peer: H2Connection) -> None:
    peer.send_headers(1, RESPONSE, end_stream=True)
    peer.close_connection(ErrorCodes.ENHANCE_YOUR_CALM, b"too much", last_stream_id=3)


SCRIPTS: dict[Callable[[H2Connection], None], list[type]] = {
    unary: [Headers, Data, Headers],
    interleaved: [*[Headers] * 3, *[Data] * 6, Reset, Headers, Data],
    with_informational_and_large_headers: [Headers, Data],
    going_away: [Headers, GoAway, Reset],
}


def server_bytes(script: Callable[[H2Connection], None]) -> bytes:
    """The bytes that a server with three open requests sends for a script."""
    client, peer = client_with_requests(), server()
    peer.receive_data(client.take())
    script(peer)
    return peer.data_to_send()


def client_with_requests() -> Http2Client:
    client = Http2Client()
    client.start()
    for _ in range(3):
        client.request(BLOCK, b"question")
    return client


def received(pieces: list[bytes]) -> tuple[list[Event], bytes, int]:
    client = client_with_requests()
    client.take()
    events = [event for piece in pieces for event in client.feed(piece)]
    assert not client.mid_frame
    return joined(events), client.take(), client.open_streams


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_events_are_the_same_at_every_split(script: Callable[[H2Connection], None]) -> None:
    data = server_bytes(script)
    expected = received([data])
    assert [type(event) for event in expected[0]] == SCRIPTS[script]
    for cut_at in range(len(data) + 1):
        assert received(cut(data, [cut_at])) == expected
    assert received([data[n : n + 1] for n in range(len(data))]) == expected


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
@settings(max_examples=30)
@given(cuts=st.sets(st.integers(0, 400), max_size=12))
def test_events_are_the_same_for_any_number_of_splits(script: Callable[[H2Connection], None], cuts: set[int]) -> None:
    data = server_bytes(script)
    assert received(cut(data, {cut_at % (len(data) + 1) for cut_at in cuts})) == received([data])
