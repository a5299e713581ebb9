"""The connection, frame by frame: the effect of each frame, and the error for each invalid one."""

import pytest
from http2_peers import BLOCK, END, OK, connected, violations, written

from inferometer.wire.http2 import frames
from inferometer.wire.http2.client import Http2Client
from inferometer.wire.http2.events import Data, GoAway, Headers, Http2Error, Reset
from inferometer.wire.http2.frames import CANCEL, frame
from inferometer.wire.http2.hpack import encode

RESPONSE = ((b":status", b"200"), (b"content-type", b"application/grpc"))
TRAILERS = ((b"grpc-status", b"0"), (b"grpc-message", b""))


def headers(stream: int, block: bytes = OK, flags: int = frames.END_HEADERS) -> bytes:
    return frame(frames.HEADERS, flags, stream, block)


def trailers(stream: int, block: bytes = END) -> bytes:
    return headers(stream, block, frames.END_HEADERS | frames.END_STREAM)


def data(stream: int, body: bytes = b"", flags: int = 0) -> bytes:
    return frame(frames.DATA, flags, stream, body)


def client_with_requests(count: int = 1, body: bytes = b"question", **options: int) -> Http2Client:
    """A client that has `count` requests in flight."""
    client = connected(**options)
    for _ in range(count):
        client.request(BLOCK, body)
    while client.take():
        pass
    return client


def error(client: Http2Client, data: bytes) -> Http2Error:
    with pytest.raises(Http2Error) as caught:
        client.feed(data)
    assert client.is_closing
    kind, _, stream, payload = written(client)[-1]
    assert (kind, stream) == (frames.GOAWAY, 0)
    assert int.from_bytes(payload[4:8], "big") == caught.value.code
    assert payload[8:] == caught.value.message.encode()[:256]
    with pytest.raises(Http2Error):
        client.feed(b"")
    return caught.value


# --- start of a connection -------------------------------------------------------------------------------------------


def test_a_connection_begins_with_preface_settings_and_an_open_window() -> None:
    client = Http2Client()
    client.start()
    first = client.take()
    assert first.startswith(frames.PREFACE)
    client = Http2Client()
    client.put_urgent(first[len(frames.PREFACE) :])
    (_, _, _, settings), (kind, _, stream, window) = written(client)
    assert dict(frames.iter_settings(settings)) == {
        frames.ENABLE_PUSH: 0,
        frames.INITIAL_WINDOW_SIZE: 2**31 - 1,
        frames.MAX_FRAME_SIZE: 1 << 20,
        frames.MAX_HEADER_LIST_SIZE: 64 << 10,
    }
    assert (kind, stream) == (frames.WINDOW_UPDATE, 0)
    assert int.from_bytes(window, "big") + 65535 == 2**31 - 1


@pytest.mark.parametrize("options", [{"window": 65534}, {"window": 2**31}, {"max_frame": 16383}, {"max_frame": 2**24}])
def test_limits_outside_the_protocol_are_rejected(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be between"):
        Http2Client(**options)


def test_settings_are_applied_and_acknowledged() -> None:
    client = Http2Client()
    client.start()
    client.take()
    assert not client.settings_received
    assert client.max_streams > 1_000_000
    assert client.feed(frames.settings({frames.MAX_CONCURRENT_STREAMS: 7, 0x99: 1})) == []
    assert client.settings_received
    assert client.max_streams == 7
    assert written(client) == [(frames.SETTINGS, frames.ACK, 0, b"")]
    client.feed(frames.SETTINGS_ACK + frames.settings({frames.MAX_CONCURRENT_STREAMS: 3}))
    assert client.max_streams == 3


def test_frames_queued_under_old_settings_precede_the_acknowledgement() -> None:
    client = connected()
    client.request(BLOCK, b"x" * 100)
    client.feed(frames.settings({frames.INITIAL_WINDOW_SIZE: 0}))
    client.request(BLOCK, b"y")
    kinds = [(kind, stream) for kind, _, stream, _ in written(client)]
    assert kinds == [(frames.HEADERS, 1), (frames.DATA, 1), (frames.SETTINGS, 0), (frames.HEADERS, 3)]
    assert client.blocked == 1


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n",
            "does not speak HTTP/2: it responded with 'HTTP/1.1 400 Bad Request'",
        ),
        (b"HTTP/1.0 " + b"x" * 400, "it responded with 'HTTP/1.0 xxx"),
        (b"\x15\x03\x03\x00\x02\x02\x46\0\0", "with TLS"),
        (frame(frames.PING, 0, 0, bytes(8)), "began with PING"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "instead of SETTINGS: b'SSH-2.0-"),
        (frames.SETTINGS_ACK, "acknowledged our SETTINGS before"),
    ],
)
def test_other_protocols_are_recognized_by_their_first_bytes_at_every_split(first: bytes, expected: str) -> None:
    for cut_at in range(len(first)):
        client = Http2Client()
        client.start()
        with pytest.raises(Http2Error) as caught:
            client.feed(first[:cut_at])
            client.feed(first[cut_at:])
        assert expected in caught.value.message


def test_tls_alert_shorter_than_a_frame_is_recognized_at_eof() -> None:
    client = Http2Client()
    client.feed(b"\x15\x03\x03\x00\x02\x02\x46")
    with pytest.raises(Http2Error, match="with TLS"):
        client.eof()


def test_http1_status_line_without_line_break_is_recognized_at_eof() -> None:
    client = Http2Client()
    client.feed(b"HTTP/1.1 505")
    assert client.mid_frame
    with pytest.raises(Http2Error, match=r"it responded with 'HTTP/1\.1 505'"):
        client.eof()


def test_eof_is_an_error_only_inside_a_frame() -> None:
    for cut in (headers(1)[:4], headers(1)[:12], headers(1) + data(1, b"abc")[:10], headers(1, OK, 0)):
        client = client_with_requests()
        client.feed(cut)
        assert client.mid_frame
        with pytest.raises(Http2Error, match="middle of a frame"):
            client.eof()
    client = client_with_requests()
    client.feed(headers(1))
    assert not client.mid_frame
    client.eof()


# --- responses -------------------------------------------------------------------------------------------------------


def test_a_unary_exchange_is_headers_data_and_trailers() -> None:
    client = connected()
    assert client.request(BLOCK, b"question") == 1
    assert client.open_streams == 1
    assert written(client) == [
        (frames.HEADERS, frames.END_HEADERS, 1, BLOCK),
        (frames.DATA, frames.END_STREAM, 1, b"question"),
    ]
    assert client.feed(headers(1) + data(1, b"answer") + trailers(1)) == [
        Headers(1, RESPONSE, False),
        Data(1, b"answer", False),
        Headers(1, TRAILERS, True),
    ]
    assert client.open_streams == 0
    assert client.take() == b""
    assert client.request(BLOCK, b"") == 3
    assert written(client) == [(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 3, BLOCK)]


def test_response_may_end_with_data_or_headers() -> None:
    client = client_with_requests(2)
    assert client.feed(headers(1) + data(1, b"", frames.END_STREAM))[-1] == Data(1, b"", True)
    assert client.feed(trailers(3, OK)) == [Headers(3, RESPONSE, True)]
    assert client.open_streams == 0
    assert client.take() == b""


def test_empty_data_gives_no_event() -> None:
    client = client_with_requests()
    assert client.feed(headers(1) + data(1) * 3) == [Headers(1, RESPONSE, False)]


@pytest.mark.parametrize("status", [b"100", b"103"])
def test_informational_headers_are_skipped(status: bytes) -> None:
    client = client_with_requests()
    assert client.feed(headers(1, encode([(b":status", status)])) * 2) == []
    assert client.feed(headers(1)) == [Headers(1, RESPONSE, False)]


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (data(1, b"x"), "before its headers"),
        (headers(1, END), "without a :status"),
        (headers(1) + headers(1), "second :status"),
        (headers(1) + headers(1, END), "do not end"),
        (headers(1, encode([(b":status", b"101")])), "status 101"),
        (trailers(1, encode([(b":status", b"100")])), "status 100"),
        (headers(1, b"\x88\x00\x01A\x01b"), "malformed: the name b'A'"),
        (headers(1) + trailers(1, b"\x00\x05:path\x01/"), "malformed"),
    ],
)
def test_invalid_response_resets_only_its_stream(response: bytes, expected: str) -> None:
    client = client_with_requests(2)
    event = client.feed(response)[-1]
    assert isinstance(event, Reset)
    assert (event.stream, event.code, event.refused) == (1, frames.PROTOCOL_ERROR, False)
    assert expected in event.message
    assert written(client) == [(frames.RST_STREAM, 0, 1, b"\0\0\0\1")]
    assert client.feed(headers(1) + data(1, b"late") + headers(3)) == [Headers(3, RESPONSE, False)]


def test_headers_beyond_the_limit_reset_the_stream_and_still_update_the_table() -> None:
    client = client_with_requests(2, max_header_list=1000)
    (event,) = client.feed(headers(1, b"\x88" + b"\x40\x01a\x01b" + encode([(b"x", b"y" * 2000)])))
    assert isinstance(event, Reset)
    assert (event.code, event.message) == (frames.ENHANCE_YOUR_CALM, "the server's headers are larger than 1000 bytes")
    assert client.feed(headers(3, b"\x88\xbe")) == [Headers(3, ((b":status", b"200"), (b"a", b"b")), False)]


def test_response_that_ends_before_the_request_drops_the_rest_of_it() -> None:
    client = connected()
    client.request(BLOCK, b"x" * 200_000)
    client.request(BLOCK, b"", end=False)
    written(client)
    assert client.blocked == 200_000 - 65_535
    client.feed(trailers(1, OK) + headers(3) + data(3, b"no", frames.END_STREAM))
    assert client.blocked == client.open_streams == 0
    assert written(client) == [(frames.RST_STREAM, 0, number, b"\0\0\0\0") for number in (1, 3)]
    client.send(1, b"more", end=True)
    client.send(3, b"more", end=True)
    assert client.take() == b""


# --- streams ---------------------------------------------------------------------------------------------------------


def test_body_can_be_sent_in_several_messages() -> None:
    client = connected()
    stream = client.request(BLOCK, b"one", end=False)
    client.send(stream, b"two", end=False)
    client.send(stream, b"", end=False)
    client.send(stream, b"", end=True)
    assert [(flags, payload) for _, flags, _, payload in written(client)[1:]] == [(0, b"one"), (0, b"two"), (1, b"")]
    with pytest.raises(RuntimeError, match="already ended"):
        client.send(stream, b"x", end=True)
    for number in (0, 2, 3, -1):
        with pytest.raises(RuntimeError, match="never opened"):
            client.send(number, b"x", end=True)


def test_cancelled_stream_is_reset_and_its_late_frames_are_ignored() -> None:
    client = connected()
    client.request(BLOCK, b"x" * 100_000)
    client.reset(1)
    client.reset(1)
    client.reset(99)
    assert client.blocked == client.open_streams == 0
    assert [(kind, stream) for kind, _, stream, _ in written(client)] == [(frames.HEADERS, 1), (frames.RST_STREAM, 1)]
    client.request(BLOCK, b"y")
    indexed = b"\x88\x40\x01a\x01b"
    late = frames.rst_stream(1, 0) + frames.window_update(1, 5) + frames.window_update(1, 0)
    assert client.feed(headers(1, indexed) + data(1, b"z", frames.END_STREAM) + late) == []
    assert client.feed(headers(3, b"\x88\xbe")) == [Headers(3, ((b":status", b"200"), (b"a", b"b")), False)]


def test_stream_cancelled_in_the_middle_of_a_data_frame_gives_no_more_events() -> None:
    client = client_with_requests(2)
    complete = data(1, b"abcdef", frames.END_STREAM)
    assert client.feed(headers(1) + complete[:11])[-1] == Data(1, b"ab", False)
    client.reset(1, CANCEL)
    assert client.feed(complete[11:] + headers(3)) == [Headers(3, RESPONSE, False)]


@pytest.mark.parametrize(
    ("code", "refused"), [(frames.REFUSED_STREAM, True), (frames.INTERNAL_ERROR, False), (0x63, False)]
)
def test_reset_by_the_server_is_reported(code: int, refused: bool) -> None:
    client = client_with_requests()
    message = f"the server reset the stream: {frames.code_name(code)}"
    assert client.feed(frames.rst_stream(1, code)) == [Reset(1, code, message, refused)]
    assert client.open_streams == 0
    assert client.take() == b""


def test_goaway_refuses_streams_above_its_last_and_lets_the_others_finish() -> None:
    client = client_with_requests(3)
    graceful = frame(frames.GOAWAY, 0, 0, b"\x7f\xff\xff\xff\0\0\0\0")
    assert client.feed(graceful) == [GoAway(2**31 - 1, 0, b"")]
    assert client.is_closing
    with pytest.raises(RuntimeError, match="closing"):
        client.request(BLOCK, b"")
    final = frame(frames.GOAWAY, 0, 0, b"\0\0\0\x01\0\0\0\x02why")
    gone, *resets = client.feed(final)
    assert gone == GoAway(1, frames.INTERNAL_ERROR, b"why")
    assert [(event.stream, event.code, event.refused) for event in resets if isinstance(event, Reset)] == [
        (3, frames.REFUSED_STREAM, True),
        (5, frames.REFUSED_STREAM, True),
    ]
    assert "INTERNAL_ERROR" in str(resets[0])
    assert client.feed(headers(1) + trailers(1))[-1] == Headers(1, TRAILERS, True)
    assert client.open_streams == 0


def test_stream_ids_run_out() -> None:
    client = connected()
    client.next = 2**31 - 3
    assert client.request(BLOCK, b"") == 2**31 - 3
    assert not client.is_closing
    assert client.request(BLOCK, b"") == 2**31 - 1
    assert client.is_closing
    assert client.feed(headers(2**31 - 1)) == [Headers(2**31 - 1, RESPONSE, False)]


# --- frames of the connection ----------------------------------------------------------------------------------------


def test_pings_are_replied_to_first_and_ping_replies_are_ignored() -> None:
    client = connected()
    client.request(BLOCK, b"x")
    assert client.feed(frame(frames.PING, 0, 0, b"12345678") + frame(frames.PING, frames.ACK, 0, b"abcdefgh")) == []
    assert written(client)[0] == (frames.PING, frames.ACK, 0, b"12345678")
    assert client.take() == b""


def test_unknown_frames_flags_and_priorities_are_ignored() -> None:
    client = client_with_requests()
    odd = frame(0xB0, 0xFF, 77, b"x" * 30) + frame(frames.PRIORITY, 0, 1, bytes(5)) + frame(frames.PRIORITY, 0, 9, b"")
    reserved = bytearray(data(1, b"x", 0x42))
    reserved[5] |= 0x80
    assert client.feed(odd + headers(1, OK, 0xD4) + odd + bytes(reserved)) == [
        Headers(1, RESPONSE, False),
        Data(1, b"x", False),
    ]
    assert client.take() == b""


def test_padding_and_priority_are_removed() -> None:
    client = client_with_requests()
    padded = frames.END_HEADERS | frames.PADDED | frames.PRIORITIZED
    body = data(1, b"\x03abc\0\0\0", frames.PADDED) + data(1, b"\0", frames.PADDED)
    last = data(1, b"\x02\0\0", frames.PADDED | frames.END_STREAM)
    assert client.feed(headers(1, b"\x02" + bytes(5) + OK + b"\0\0", padded) + body + last) == [
        Headers(1, RESPONSE, False),
        Data(1, b"abc", False),
        Data(1, b"", True),
    ]


def test_block_is_assembled_from_its_continuations() -> None:
    client = client_with_requests()
    parts = headers(1, OK[:3], 0) + frame(frames.CONTINUATION, 0, 1) + frame(frames.CONTINUATION, 0, 1, OK[3:9])
    assert client.feed(parts) == []
    assert client.feed(frame(frames.CONTINUATION, frames.END_HEADERS, 1, OK[9:])) == [Headers(1, RESPONSE, False)]
    end = headers(1, b"", frames.END_STREAM) + frame(frames.CONTINUATION, frames.END_HEADERS, 1, END)
    assert client.feed(end) == [Headers(1, TRAILERS, True)]


def test_large_block_is_sent_with_continuations() -> None:
    client = connected()
    block = BLOCK + encode([(b"x-large", b"v" * 40_000)])
    client.request(block, b"body")
    sent = written(client)
    assert [(kind, flags) for kind, flags, _, _ in sent] == [
        (frames.HEADERS, 0),
        (frames.CONTINUATION, 0),
        (frames.CONTINUATION, frames.END_HEADERS),
        (frames.DATA, frames.END_STREAM),
    ]
    assert b"".join(payload for kind, _, _, payload in sent if kind != frames.DATA) == block


@pytest.mark.parametrize("sizes", [[0], [100, 4096], [100, 0, 50]])
def test_smaller_table_is_announced_once_in_the_next_block(sizes: list[int]) -> None:
    client = connected()
    for size in sizes:
        client.feed(frames.settings({frames.HEADER_TABLE_SIZE: size}))
    for _ in range(2):
        client.request(BLOCK, b"")
    assert [payload for kind, _, _, payload in written(client) if kind == frames.HEADERS] == [b"\x20" + BLOCK, BLOCK]


def test_larger_table_changes_nothing() -> None:
    client = connected({frames.HEADER_TABLE_SIZE: 65536})
    client.request(BLOCK, b"")
    assert written(client)[0][3] == BLOCK


@pytest.mark.parametrize(
    ("wrong", "code", "expected"),
    [
        *violations(open=1),
        (headers(3), frames.PROTOCOL_ERROR, "stream 3, which was never opened"),
        (headers(3, OK, 0), frames.PROTOCOL_ERROR, "stream 3, which was never opened"),
        (frames.settings({frames.ENABLE_PUSH: 1}), frames.PROTOCOL_ERROR, "ENABLE_PUSH to 1"),
        (headers(1) + data(1, b"", frames.PADDED), frames.FRAME_SIZE_ERROR, "empty DATA that is flagged"),
        (headers(1) + data(1, b"\x03ab", frames.PADDED), frames.PROTOCOL_ERROR, "DATA with more padding"),
        (frames.settings({}) * 10_001, frames.ENHANCE_YOUR_CALM, "without reading any"),
    ],
)
def test_connection_errors_have_a_code_and_a_message(wrong: bytes, code: int, expected: str) -> None:
    raised = error(client_with_requests(), wrong)
    assert raised.code == code
    assert expected in raised.message


def test_error_carries_the_events_before_it() -> None:
    raised = error(client_with_requests(), headers(1) + trailers(1) + headers(99))
    assert raised.events == [Headers(1, RESPONSE, False), Headers(1, TRAILERS, True)]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (frames.window_update(1, 0), frames.PROTOCOL_ERROR),
        (frames.window_update(1, 2**31 - 1), frames.FLOW_CONTROL_ERROR),
        (frame(frames.PRIORITY, 0, 1, bytes(4)), frames.FRAME_SIZE_ERROR),
    ],
)
def test_stream_errors_reset_the_stream(wrong: bytes, code: int) -> None:
    client = client_with_requests(2)
    (event,) = client.feed(wrong)
    assert isinstance(event, Reset)
    assert (event.stream, event.code, event.refused) == (1, code, False)
    assert written(client) == [(frames.RST_STREAM, 0, 1, code.to_bytes(4, "big"))]
    assert client.open_streams == 1
