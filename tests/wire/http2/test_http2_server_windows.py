"""Flow control of the server: bounded request bodies, responses under the client's windows, and large messages without copies."""

from http2_peers import BLOCK, END, OK, REQUEST, greeted, h2_client, new_server, replies, request, taken
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.wire.http2 import frames
from inferometer.wire.http2.events import RequestData, RequestHeaders
from inferometer.wire.http2.frames import frame
from inferometer.wire.http2.server import Http2Server

MANY = 2**31 - 1 - 65_535


def sizes(server: Http2Server, limit: int = 1 << 20) -> dict[int, int]:
    """Bytes of DATA by stream that the server sends now."""
    result: dict[int, int] = {}
    for kind, _, stream, payload in replies(server, limit):
        if kind == frames.DATA:
            result[stream] = result.get(stream, 0) + len(payload)
    return result


def updates(server: Http2Server) -> dict[int, int]:
    """The window updates by stream that the server sends now."""
    result: dict[int, int] = {}
    for kind, _, stream, payload in replies(server):
        if kind == frames.WINDOW_UPDATE:
            result[stream] = result.get(stream, 0) + int.from_bytes(payload, "big")
    return result


# --- request bodies --------------------------------------------------------------------------------------------------


def test_windows_open_again_when_bodies_are_consumed() -> None:
    server = greeted(stream_window=100_000, connection_window=300_000)
    server.feed(request(1, bytes(60_000), end=False))
    assert updates(server) == {}
    server.consumed(1, 40_000)
    assert updates(server) == {}
    server.consumed(1, 20_000)
    assert updates(server) == {1: 60_000}
    server.feed(frame(frames.DATA, 0, 1, bytes(90_000)))
    server.consumed(1, 90_000)
    assert server.has_more
    assert updates(server) == {0: 150_000, 1: 90_000}


def test_window_of_a_complete_request_is_not_opened() -> None:
    server = greeted(stream_window=100_000, connection_window=100_000)
    server.feed(request(1, bytes(90_000)))
    server.consumed(1, 90_000)
    assert updates(server) == {0: 90_000}


def test_bodies_that_were_not_consumed_are_released_when_their_stream_closes() -> None:
    server = greeted(stream_window=65_535, connection_window=100_000)
    number = 1
    for end in (
        lambda number: server.respond(number, OK, [b""], END),
        lambda number: server.headers(number, OK, end=True),
        server.reset,
        lambda number: server.feed(frames.rst_stream(number, 8)),
        lambda number: server.feed(frame(frames.WINDOW_UPDATE, 0, number, bytes(4))),
    ):
        server.feed(request(number, bytes(60_000)))
        server.consumed(number, 9_000)
        end(number)
        assert updates(server) == {0: 60_000}
        number += 2


def test_padding_and_frames_of_closed_streams_do_not_use_up_windows() -> None:
    server = greeted(stream_window=65_535, connection_window=65_535)
    server.feed(request(1, end=False))
    padded = frame(frames.DATA, frames.PADDED, 1, b"\xff" + b"body" + bytes(255))
    for _ in range(2000):
        (event,) = server.feed(padded[:50]) + server.feed(padded[50:])
        assert event == RequestData(1, b"body", False)
        server.consumed(1, 4)
        taken(server)
    server.reset(1)
    for _ in range(20):
        assert server.feed(frame(frames.DATA, 0, 1, bytes(10_000))) == []
        taken(server)


def test_response_in_the_middle_of_a_data_frame() -> None:
    server = greeted(stream_window=65_535, connection_window=65_535)
    data = request(1, bytes(60_000), end=False)
    server.feed(data[:20_000])
    server.respond(1, OK, [b"enough"], END)
    assert updates(server) == {0: 60_000}
    assert server.feed(data[20_000:] + request(3)) != []


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40_000), st.integers(0, 60)), max_size=40),
    st.integers(65_535, 120_000),
)
@settings(max_examples=30, deadline=None)
def test_h2_client_can_always_send_what_was_consumed(steps: list[tuple[int, int, int]], connection_window: int) -> None:
    """The client's view of our windows is never larger than ours, and everything arrives in the end."""
    client, server = h2_client(), new_server(stream_window=65_535, connection_window=connection_window)
    client.receive_data(taken(server))
    for number in (1, 3, 5, 7):
        client.send_headers(number, REQUEST)
    held = dict.fromkeys((1, 3, 5, 7), 0)
    sent = received = 0

    def pump() -> None:
        nonlocal received
        for event in server.feed(client.data_to_send()):
            if isinstance(event, RequestHeaders | RequestData):
                received += len(event.data)
                held[event.stream] += len(event.data)

    for index, size, padding in steps:
        number = 2 * index + 1
        window = client.local_flow_control_window(number) - padding - 1
        count = min(size, window, 16_000)
        if count > 0:
            client.send_data(number, bytes(count), pad_length=padding or None)
            sent += count
            pump()
        if size % 3:
            server.consumed(number, held[number])
            held[number] = 0
            client.receive_data(taken(server))
    pump()
    assert received == sent
    assert sum(held.values()) <= connection_window
    for number, count in held.items():
        server.consumed(number, count)
    client.receive_data(taken(server))
    for number in held:
        assert client.local_flow_control_window(number) >= min(65_535, connection_window) // 2


# --- responses -------------------------------------------------------------------------------------------------------


def test_response_waits_for_the_windows_and_ends_with_its_trailers() -> None:
    server = greeted({frames.INITIAL_WINDOW_SIZE: 10})
    server.feed(request(1))
    server.respond(1, OK, [b"x" * 100], END)
    assert sizes(server) == {1: 10}
    assert server.unsent(1) == 90
    assert 1 in server.streams
    server.feed(frames.window_update(1, 89))
    assert sizes(server) == {1: 89}
    server.feed(frames.window_update(1, 1))
    assert [(kind, flags, payload) for kind, flags, _, payload in replies(server)] == [
        (frames.DATA, 0, b"x"),
        (frames.HEADERS, 5, END),
    ]
    assert 1 not in server.streams


def test_waiting_response_of_an_incomplete_request_resets_the_stream_after_its_end() -> None:
    server = greeted({frames.INITIAL_WINDOW_SIZE: 0})
    server.feed(request(1, b"", end=False))
    server.headers(1, OK)
    server.send(1, b"late", end=True)
    assert sizes(server) == {}
    server.feed(frames.window_update(1, 4))
    assert [(kind, flags) for kind, flags, *_ in replies(server)] == [(frames.DATA, 1), (frames.RST_STREAM, 0)]


def test_reset_of_a_waiting_response_frees_it() -> None:
    server = greeted()
    for number in range(1, 2001, 2):
        server.feed(request(number))
        server.respond(number, OK, [bytes(100_000)], END)
        server.feed(frames.rst_stream(number, frames.CANCEL))
        taken(server)
        server.feed(frames.window_update(0, 65_535))
    assert server.blocked == 0
    assert server.open_streams == 0


def test_responses_take_turns() -> None:
    server = greeted({frames.INITIAL_WINDOW_SIZE: MANY, frames.MAX_FRAME_SIZE: 1 << 20})
    server.feed(frames.window_update(0, MANY) + request(1) + request(3))
    server.respond(1, OK, [bytes(1_000_000)], END)
    server.respond(3, OK, [bytes(1_000_000)], END)
    first = sizes_of(server, 400_000)
    assert abs(first[1] - first[3]) <= 64 << 10


def sizes_of(server: Http2Server, limit: int) -> dict[int, int]:
    result: dict[int, int] = {}
    head = None
    for part in server.take_parts(limit):
        if head is not None:
            result[head] = result.get(head, 0) + len(part)
            head = None
        elif len(part) == frames.HEAD:
            head = frames.unpack_head(bytes(part))[2]
    return result


def test_large_parts_are_sent_without_a_copy() -> None:
    server = greeted({frames.INITIAL_WINDOW_SIZE: MANY, frames.MAX_FRAME_SIZE: 1 << 20})
    server.feed(frames.window_update(0, MANY) + request(1))
    message = bytes(10_000_000)
    server.respond(1, OK, [b"12345", message], END)
    body = b""
    while parts := server.take_parts(1 << 20):
        assert all(part.obj is message for part in parts if isinstance(part, memoryview) and len(part) > 5)
        assert sum(len(part) for part in parts if isinstance(part, bytes)) < 200
        body += b"".join(parts)
    assert body.count(b"12345") == 1
    assert 1 not in server.streams


def test_number_of_parts_is_bounded() -> None:
    server = greeted({frames.INITIAL_WINDOW_SIZE: 0})
    server.feed(request(1))
    server.headers(1, OK)
    for _ in range(5000):
        server.send(1, b"token")
    taken(server)
    server.feed(frames.window_update(1, MANY))
    assert len(server.take_parts()) == 1


@given(
    st.lists(st.tuples(st.integers(0, 100_000), st.sampled_from(["respond", "parts", "end"])), min_size=1, max_size=6),
    st.integers(500, 70_000),
    st.integers(500, 70_000),
    st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_h2_client_receives_every_response(
    responses: list[tuple[int, str]], window: int, limit: int, complete: bool
) -> None:
    client, server = h2_client(), new_server()
    client.update_settings({frames.INITIAL_WINDOW_SIZE: window})
    for index in range(len(responses)):
        client.send_headers(2 * index + 1, REQUEST, complete)
    server.feed(client.data_to_send())
    client.receive_data(taken(server))
    for index, (size, how) in enumerate(responses):
        number, body = 2 * index + 1, bytes([index]) * size
        if how == "respond":
            server.respond(number, OK, [body], END)
        else:
            server.headers(number, OK)
            server.send(number, body[:7], body[7:], end=how == "end")
            if how == "parts":
                server.headers(number, END, end=True)
    received = {2 * index + 1: b"" for index in range(len(responses))}
    ended = set()
    while parts := server.take_parts(limit):
        for event in client.receive_data(b"".join(parts)):
            name = type(event).__name__
            if name == "DataReceived":
                received[event.stream_id] += event.data
                client.acknowledge_received_data(len(event.data), event.stream_id)
            elif name == "StreamEnded":
                ended.add(event.stream_id)
        server.feed(client.data_to_send())
    assert received == {2 * index + 1: bytes([index]) * size for index, (size, _) in enumerate(responses)}
    assert ended == set(received)
    assert server.open_streams == 0
    assert server.blocked == 0


def test_message_of_a_hundred_megabytes_passes_through_a_small_window() -> None:
    server = greeted(stream_window=1 << 20, connection_window=1 << 20, max_frame=1 << 20)
    server.feed(frames.headers(1, BLOCK, False))
    piece = frame(frames.DATA, 0, 1, bytes(500_000))
    total = 0
    for _ in range(200):
        for event in server.feed(piece):
            assert isinstance(event, RequestData)
            total += len(event.data)
            server.consumed(1, len(event.data))
        taken(server)
    assert total == 100_000_000
