"""The server's connection: requests as events, responses as frames, validation, limits, floods and the graceful end."""

import pytest
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    PingAckReceived,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes
from http2_peers import (
    BLOCK,
    END,
    OK,
    REQUEST,
    RESPONSE,
    TRAILERS,
    greeted,
    h2_client,
    new_server,
    replies,
    request,
    taken,
    violations,
)

from inferometer.wire.http2 import frames
from inferometer.wire.http2.events import (
    Headers,
    HeadersTooLarge,
    Http2Error,
    RequestData,
    RequestHeaders,
    Reset,
)
from inferometer.wire.http2.frames import frame
from inferometer.wire.http2.hpack import encode
from inferometer.wire.http2.server import Http2Server


class Clock:
    """A clock that tests move."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def exchange(client: H2Connection, server: Http2Server) -> tuple[list[object], list[object]]:
    """Transfer bytes both ways until there are no more; return the events of the server and of the client."""
    at_server: list[object] = []
    at_client: list[object] = []
    while True:
        up, down = client.data_to_send(), taken(server)
        at_server += server.feed(up) if up else []
        at_client += client.receive_data(down) if down else []
        if not up and not down:
            return at_server, at_client


def error(server: Http2Server, data: bytes) -> Http2Error:
    with pytest.raises(Http2Error) as caught:
        server.feed(data)
    return caught.value


# --- requests and responses ------------------------------------------------------------------------------------------


def test_unary_call_of_an_h2_client() -> None:
    client, server = h2_client(), new_server(max_streams=7)
    _, at_client = exchange(client, server)
    (changed,) = [event for event in at_client if isinstance(event, RemoteSettingsChanged)]
    assert changed.changed_settings[SettingCodes.MAX_CONCURRENT_STREAMS].new_value == 7
    client.send_headers(1, REQUEST)
    client.send_data(1, b"hello", end_stream=True)
    at_server, _ = exchange(client, server)
    assert at_server == [RequestHeaders(1, REQUEST, True, b"hello")]
    server.respond(1, OK, [b"wor", b"ld"], END)
    assert 1 not in server.streams
    _, at_client = exchange(client, server)
    headers, data, trailers, ended = at_client
    assert isinstance(headers, ResponseReceived) and headers.headers == RESPONSE
    assert isinstance(data, DataReceived) and data.data == b"world"
    assert isinstance(trailers, TrailersReceived) and trailers.headers == TRAILERS
    assert isinstance(ended, StreamEnded)


def test_complete_request_in_one_read_is_one_event_even_with_window_updates_between() -> None:
    server = greeted()
    update = frames.window_update(1, 5)
    read = frames.headers(1, BLOCK, False) + update + frame(frames.DATA, 1, 1, b"body") + frames.window_update(0, 9)
    assert server.feed(read + request(3)) == [
        RequestHeaders(1, REQUEST, True, b"body"),
        RequestHeaders(3, REQUEST, True, b""),
    ]


def test_equal_header_blocks_give_the_same_headers_object() -> None:
    first, second = greeted().feed(request(1) + request(3))
    assert isinstance(first, RequestHeaders) and isinstance(second, RequestHeaders)
    assert first.headers is second.headers


def test_request_in_pieces() -> None:
    server = greeted()
    assert server.feed(request(1, b"one", end=False)) == [
        RequestHeaders(1, REQUEST, False),
        RequestData(1, b"one", False),
    ]
    assert server.feed(frame(frames.DATA, 0, 1, b"two")) == [RequestData(1, b"two", False)]
    assert server.feed(frame(frames.DATA, 0, 1)) == []
    assert server.feed(frame(frames.DATA, 1, 1)) == [RequestData(1, b"", True)]


def test_large_pieces_are_views_of_the_bytes_received() -> None:
    data = request(1, bytes(10_000))
    (event,) = greeted().feed(data)
    assert isinstance(event, RequestHeaders) and isinstance(event.data, memoryview)
    assert event.data.obj is data


def test_trailers_of_a_request_end_it() -> None:
    server = greeted()
    server.feed(request(1, b"one", end=False))
    assert server.feed(frames.headers(1, encode([(b"checksum", b"7")]), True)) == [
        Headers(1, ((b"checksum", b"7"),), True)
    ]


def test_streamed_response() -> None:
    server = greeted()
    server.feed(request(1))
    server.headers(1, OK)
    server.send(1, b"a", b"b")
    server.send(1, b"c")
    assert 1 in server.streams
    server.headers(1, END, end=True)
    assert replies(server) == [
        (frames.HEADERS, 4, 1, OK),
        (frames.DATA, 0, 1, b"ab"),
        (frames.DATA, 0, 1, b"c"),
        (frames.HEADERS, 5, 1, END),
    ]
    assert 1 not in server.streams


def test_response_without_trailers_or_without_body() -> None:
    server = greeted()
    server.feed(request(1) + request(3) + request(5))
    server.headers(1, OK)
    server.send(1, b"all", end=True)
    server.headers(3, OK, end=True)
    server.headers(5, OK)
    server.send(5, end=True)
    sent = [(kind, flags, stream) for kind, flags, stream, _ in replies(server)]
    assert sent == [(1, 4, 1), (0, 1, 1), (1, 5, 3), (1, 4, 5), (0, 1, 5)]
    assert server.open_streams == 0


def test_response_before_the_end_of_the_request_resets_the_stream_without_an_error() -> None:
    server = greeted()
    server.feed(request(1, b"one", end=False) + request(3, b"one", end=False))
    server.respond(1, OK, [b"done"], END)
    server.headers(3, END, end=True)
    assert [(kind, stream, payload) for kind, _, stream, payload in replies(server) if kind == frames.RST_STREAM] == [
        (frames.RST_STREAM, 1, bytes(4)),
        (frames.RST_STREAM, 3, bytes(4)),
    ]
    assert server.feed(frame(frames.DATA, 0, 1, b"late") + frame(frames.DATA, 1, 3, b"late")) == []
    assert server.feed(frames.headers(1, END, True)) == []


def test_long_header_blocks_are_continued() -> None:
    client, server = h2_client(), new_server()
    exchange(client, server)
    client.send_headers(1, REQUEST, end_stream=True)
    exchange(client, server)
    long = encode([(b":status", b"200"), (b"long", b"x" * 40_000)])
    server.respond(1, long, [b"body"], encode([(b"long", b"y" * 20_000)]))
    kinds = [kind for kind, *_ in replies(server)]
    assert kinds == [frames.HEADERS, *[frames.CONTINUATION] * 2, frames.DATA, frames.HEADERS, frames.CONTINUATION]


def test_methods_for_closed_streams_do_nothing() -> None:
    server = greeted()
    server.feed(request(1, b"one", end=False))
    server.reset(1)
    assert replies(server) == [(frames.RST_STREAM, 0, 1, frames.CANCEL.to_bytes(4, "big"))]
    server.headers(1, OK)
    server.send(1, b"more")
    server.respond(1, OK, [b"x"], END)
    server.consumed(1, 3)
    server.reset(1)
    assert server.unsent(1) == 0
    assert replies(server) == []


def test_misuse_by_the_caller_is_an_error() -> None:
    server = greeted()
    with pytest.raises(RuntimeError, match="never opened"):
        server.send(1, b"x")
    server.feed(request(1))
    server.headers(1, OK)
    with pytest.raises(RuntimeError, match="must end"):
        server.headers(1, OK)
    server.send(1, bytes(100_000))
    server.headers(1, END, end=True)
    with pytest.raises(RuntimeError, match="already ended"):
        server.headers(1, END, end=True)
    with pytest.raises(ValueError, match="stream_window must be between"):
        new_server(stream_window=1000)
    with pytest.raises(ValueError, match="max_frame must be between"):
        new_server(max_frame=1000)


def test_client_resets_a_stream() -> None:
    server = greeted()
    server.feed(request(1, b"one", end=False))
    assert server.feed(frames.rst_stream(1, frames.CANCEL)) == [
        Reset(1, frames.CANCEL, "the client reset the stream: CANCEL", False)
    ]
    assert 1 not in server.streams
    assert server.feed(frames.rst_stream(1, frames.CANCEL)) == []


def test_pings_are_acknowledged_and_unknown_frames_and_priorities_ignored() -> None:
    server = greeted()
    noise = frame(0xB0, 0, 7, b"x") + frame(frames.PRIORITY, 0, 9, bytes(5)) + frames.goaway(0, b"bye")
    assert server.feed(noise + frame(frames.PING, 0, 0, b"12345678") + frame(frames.PING, 1, 0, b"12345678")) == []
    assert replies(server) == [(frames.PING, frames.ACK, 0, b"12345678")]


def test_smaller_header_table_is_announced_once_in_the_next_block() -> None:
    server = greeted({frames.HEADER_TABLE_SIZE: 0})
    server.feed(request(1) + request(3))
    server.respond(1, OK, [b""], END)
    server.respond(3, OK, [b""], END)
    assert [payload[:1] for kind, _, _, payload in replies(server) if kind == frames.HEADERS] == [
        b"\x20",
        END[:1],
        OK[:1],
        END[:1],
    ]


# --- validation ------------------------------------------------------------------------------------------------------


def changed(*fields: tuple[bytes, bytes | None]) -> list[tuple[bytes, bytes]]:
    """The fields of a request with others instead; None leaves a field out."""
    result = [(name, value) for name, value in REQUEST if name not in dict(fields)]
    new = [(name, value) for name, value in fields if value is not None]
    pseudo = [field for field in new if field[0][:1] == b":"]
    return pseudo + result + [field for field in new if field[0][:1] != b":"]


@pytest.mark.parametrize(
    "fields",
    [
        [(name, value) for name, value in REQUEST if name != b":authority"],
        changed((b":method", b"OPTIONS"), (b":path", b"*")),
        changed((b":method", b"CONNECT"), (b":path", None), (b":scheme", None)),
        changed((b"te", b"Trailers")),
        changed((b"x", b" outer spaces ")),
        changed((b"x", b"\xff\x80 bytes")),
    ],
)
def test_valid_requests(fields: list[tuple[bytes, bytes]]) -> None:
    assert greeted().feed(request(1, block=raw(fields))) == [RequestHeaders(1, tuple(fields), True)]


@pytest.mark.parametrize(
    "fields",
    [
        [],
        changed((b":method", None)),
        changed((b":method", b"")),
        changed((b":scheme", None)),
        changed((b":path", None)),
        changed((b":path", b"")),
        changed((b":path", b"no-slash")),
        changed((b":path", b"*")),
        changed((b":path", b"/a\r\nb")),
        changed((b":status", b"200")),
        changed((b":protocol", b"websocket")),
        changed((b":method", b"CONNECT")),
        changed((b"te", b"gzip")),
        changed((b"Upper", b"x")),
        changed((b"connection", b"close")),
        changed((b"transfer-encoding", b"chunked")),
        changed((b"x", b"a\nb")),
        changed((b"x", b"a\0b")),
        changed((b"", b"x")),
        [*REQUEST, (b":path", b"/twice")],
        [REQUEST[0], *REQUEST],
    ],
)
def test_malformed_requests_are_reset_and_not_reported(fields: list[tuple[bytes, bytes]]) -> None:
    server = greeted()
    assert server.feed(request(1, b"body", block=raw(fields))) == []
    assert replies(server) == [(frames.RST_STREAM, 0, 1, frames.PROTOCOL_ERROR.to_bytes(4, "big"))]
    assert server.feed(request(3)) == [RequestHeaders(3, REQUEST, True)]


def raw(fields: list[tuple[bytes, bytes]]) -> bytes:
    """Encode fields without checks, as literals."""
    return b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields)


@pytest.mark.parametrize(
    ("wrong", "code", "expected"),
    [
        (frame(frames.DATA, 0, 1, b"x"), frames.STREAM_CLOSED, "more of a request that it had ended"),
        (frames.headers(1, END, True), frames.STREAM_CLOSED, "headers after the end"),
        (frame(frames.WINDOW_UPDATE, 0, 1, bytes(4)), frames.PROTOCOL_ERROR, "WINDOW_UPDATE of 0"),
        (frames.window_update(1, 2**31 - 1), frames.FLOW_CONTROL_ERROR, "beyond 2^31-1"),
        (frame(frames.PRIORITY, 0, 1, b"x"), frames.FRAME_SIZE_ERROR, "PRIORITY with a payload of 1 bytes"),
        (frame(frames.DATA, 0, 3, bytes(65_536)), frames.FLOW_CONTROL_ERROR, "more than the stream's window allows"),
        (frames.headers(3, END, False), frames.PROTOCOL_ERROR, "trailers that do not end the stream"),
        (frames.headers(3, BLOCK, True), frames.PROTOCOL_ERROR, "a second request on one stream"),
        (frames.headers(3, raw([(b"Upper", b"x")]), True), frames.PROTOCOL_ERROR, "the name b'Upper' is not valid"),
        (frames.headers(3, raw([(b"x", b"y" * 100)] * 200), True), frames.ENHANCE_YOUR_CALM, "larger than 16384 bytes"),
    ],
)
def test_violations_on_a_stream_reset_the_stream(wrong: bytes, code: int, expected: str) -> None:
    server = greeted(stream_window=65_535)
    server.feed(request(1) + request(3, end=False))
    (event,) = server.feed(wrong)
    assert isinstance(event, Reset)
    assert event.code == code
    assert expected in event.message
    assert (frames.RST_STREAM, 0, event.stream, code.to_bytes(4, "big")) in replies(server)
    assert server.feed(request(5)) == [RequestHeaders(5, REQUEST, True)]


@pytest.mark.parametrize(
    ("wrong", "code", "expected"),
    [
        *violations(open=7),
        (frames.headers(2, BLOCK * 500, True), frames.PROTOCOL_ERROR, "HEADERS on stream 2"),
        (request(3), frames.PROTOCOL_ERROR, "opened stream 3 a second time or out of order"),
        (frame(frames.DATA, frames.PADDED, 5, b"\x05abc"), frames.PROTOCOL_ERROR, "DATA with more padding"),
        (frame(frames.DATA, 0, 5, bytes(200_000)), frames.FLOW_CONTROL_ERROR, "the connection's window allows"),
    ],
)
def test_connection_errors_have_a_code_and_a_message(wrong: bytes, code: int, expected: str) -> None:
    server = greeted(connection_window=100_000)
    server.feed(request(3))
    server.respond(3, OK, [b""], END)
    server.feed(request(5, end=False))
    raised = error(server, wrong)
    assert raised.code == code
    assert raised.message.startswith("the client")
    assert expected in raised.message
    *_, goaway = replies(server)
    assert goaway == (frames.GOAWAY, 0, 0, (5).to_bytes(4, "big") + code.to_bytes(4, "big") + raised.message.encode())
    server.respond(5, OK, [b"late"], END)
    assert replies(server) == []
    assert error(server, b"more") is raised


def test_events_before_a_connection_error_are_not_lost() -> None:
    assert error(greeted(), request(1) + request(2)).events == [RequestHeaders(1, REQUEST, True)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "does not speak HTTP/2: it began with 'GET / HTTP/1.1'"),
        (b"\x16\x03\x01\x02\x00\x01", "speaks TLS"),
        (b"x" * 400, "does not speak HTTP/2: it began with 'xxx"),
        (b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", "it began with 'PRI * HTTP/2.0'"),
        (frames.PREFACE + frame(frames.PING, 0, 0, bytes(8)), "began with PING instead of SETTINGS"),
        (frames.PREFACE + frames.SETTINGS_ACK, "acknowledged our SETTINGS before it sent its own"),
    ],
)
def test_other_protocols_are_recognized(data: bytes, expected: str) -> None:
    assert expected in error(new_server(), data).message
    server = new_server()
    with pytest.raises(Http2Error, match="the client "):
        for byte in data:
            server.feed(bytes([byte]))


# --- limits ----------------------------------------------------------------------------------------------------------


def test_streams_beyond_the_limit_are_refused() -> None:
    server = greeted(max_streams=2)
    events = server.feed(request(1) + request(3) + request(5))
    assert [event.stream for event in events] == [1, 3]
    assert replies(server) == [(frames.RST_STREAM, 0, 5, frames.REFUSED_STREAM.to_bytes(4, "big"))]
    server.respond(1, OK, [b""], END)
    assert len(server.feed(request(7))) == 1


def test_too_large_header_list_can_be_responded_to() -> None:
    server = greeted(max_header_list=1000)
    large = raw([*REQUEST, *[(b"x", b"y" * 100)] * 6])
    assert server.feed(request(1, block=large)) == [
        HeadersTooLarge(1, "the client's headers are larger than 1000 bytes")
    ]
    server.headers(1, encode([(b":status", b"431")]), end=True)
    assert [kind for kind, *_ in replies(server)] == [frames.HEADERS]
    assert server.feed(request(3)) == [RequestHeaders(3, REQUEST, True)]


def test_ten_thousand_streams() -> None:
    client, server = h2_client(), new_server(max_streams=10_000)
    exchange(client, server)
    server.feed(b"".join(request(number, b"x") for number in range(1, 20_001, 2)))
    assert server.open_streams == 10_000
    server.feed(frames.settings({frames.INITIAL_WINDOW_SIZE: 1000}))
    for number in range(1, 20_001, 2):
        server.respond(number, OK, [b"y"], END)
    assert server.open_streams == 0
    sent = replies(server)
    assert sum(1 for kind, flags, *_ in sent if kind == frames.HEADERS and flags & frames.END_STREAM) == 10_000


def test_client_that_does_not_read_its_responses_is_refused() -> None:
    server = greeted()
    block, number, refused = encode([(b"x", b"y" * 16_000)]), 1, 0
    for _ in range(3000):
        for event in server.feed(request(number)):
            server.headers(event.stream, block, end=True)
        number += 2
    assert server.backlog < 34 << 20
    refused = sum(1 for kind, *_ in replies(server) if kind == frames.RST_STREAM)
    assert refused > 500
    assert server.feed(request(number)) == [RequestHeaders(number, REQUEST, True)]


# --- floods ----------------------------------------------------------------------------------------------------------

FLOODS = {
    "PING": frame(frames.PING, frames.ACK, 0, bytes(8)),
    "SETTINGS": frames.settings({}),
    "PRIORITY": frame(frames.PRIORITY, 0, 1, bytes(5)),
    "WINDOW_UPDATE": frames.window_update(1, 1),
    "empty DATA": frame(frames.DATA, 0, 1),
    "padding only": frame(frames.DATA, frames.PADDED, 1, b"\x02ab"),
    "unknown": frame(0xB0, 0, 1, b"x"),
    "resets of closed streams": frames.rst_stream(3, 8),
    "trailers of closed streams": frames.headers(3, END, True),
}


@pytest.mark.parametrize("name", FLOODS)
def test_floods_of_frames_break_the_connection(name: str) -> None:
    server = greeted(clock=Clock())
    server.feed(request(1, end=False) + request(3))
    server.respond(3, OK, [b""], END)
    with pytest.raises(Http2Error) as caught:
        for _ in range(200):
            server.feed(FLOODS[name] * 100)
            taken(server)
    assert caught.value.code == frames.ENHANCE_YOUR_CALM
    assert "faster than the server accepts them" in caught.value.message


def test_pings_that_are_spread_over_time_are_no_flood() -> None:
    clock = Clock()
    server = greeted(clock=clock)
    for _ in range(300):
        clock.now += 0.1
        server.feed(FLOODS["PING"] * 100)


def test_window_updates_for_responses_are_no_flood() -> None:
    server = greeted(clock=Clock())
    for number in range(1, 20_001, 2):
        server.feed(request(number) + frames.window_update(number, 5) + frames.window_update(0, 5))
        server.respond(number, OK, [b"12345"], END)
    taken(server)
    server.feed(request(20_001, end=False))
    server.headers(20_001, OK)
    for _ in range(20_000):
        server.send(20_001, b"token")
        taken(server)
        server.feed(frames.window_update(20_001, 5) + frames.window_update(0, 5))


@pytest.mark.parametrize("cancel", [frames.rst_stream, lambda number, _: frames.window_update(number, 0)])
def test_rapid_resets_break_the_connection(cancel) -> None:  # type: ignore[no-untyped-def]
    server = greeted(clock=Clock())
    with pytest.raises(Http2Error) as caught:
        for number in range(1, 100_001, 2):
            server.feed(request(number) + cancel(number, frames.CANCEL))
            taken(server)
    assert caught.value.code == frames.ENHANCE_YOUR_CALM
    assert "requests that it cancels" in caught.value.message
    assert server.open_streams == 0


def test_cancellations_among_completed_requests_are_no_flood() -> None:
    server = greeted(clock=Clock())
    for number in range(1, 200_001, 2):
        server.feed(request(number))
        if number % 6 == 1:
            server.feed(frames.rst_stream(number, frames.CANCEL))
        else:
            server.respond(number, OK, [b""], END)
        taken(server)


# --- the graceful end ------------------------------------------------------------------------------------------------


def test_drain_accepts_streams_until_the_client_knows() -> None:
    server = greeted()
    server.feed(request(1))
    server.drain()
    server.drain()
    first, ping = replies(server)
    assert first == (frames.GOAWAY, 0, 0, (2**31 - 1).to_bytes(4, "big") + bytes(4))
    assert server.feed(request(3, b"x")) != []
    server.respond(1, OK, [b""], END)
    assert not server.is_drained
    server.feed(frame(frames.PING, frames.ACK, 0, ping[3]))
    assert (frames.GOAWAY, 0, 0, (3).to_bytes(4, "big") + bytes(4)) in replies(server)
    assert server.feed(request(5, b"ignored") + request(7)) == []
    assert replies(server) == []
    server.respond(3, OK, [b""], END)
    assert server.is_drained
    assert [stream for _, _, stream, _ in replies(server)] == [3, 3, 3]


def test_fail_sends_goaway_with_the_reason() -> None:
    server = greeted()
    server.feed(request(1))
    server.fail(frames.INTERNAL_ERROR, "out of memory")
    server.fail(frames.INTERNAL_ERROR, "again")
    assert replies(server) == [
        (frames.GOAWAY, 0, 0, (1).to_bytes(4, "big") + (2).to_bytes(4, "big") + b"out of memory")
    ]
    assert 1 not in server.streams


def test_h2_client_cancels_and_pings() -> None:
    client, server = h2_client(), new_server()
    exchange(client, server)
    client.send_headers(1, REQUEST)
    client.ping(b"12345678")
    _, at_client = exchange(client, server)
    assert any(isinstance(event, PingAckReceived) for event in at_client)
    client.reset_stream(1, frames.CANCEL)
    assert exchange(client, server)[0] == [Reset(1, frames.CANCEL, "the client reset the stream: CANCEL", False)]
    client.send_headers(3, REQUEST)
    exchange(client, server)
    server.reset(3, frames.INTERNAL_ERROR)
    _, at_client = exchange(client, server)
    assert [event.error_code for event in at_client if isinstance(event, StreamReset)] == [frames.INTERNAL_ERROR]
