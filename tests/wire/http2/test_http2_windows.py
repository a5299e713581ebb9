"""Flow control in both directions: our windows, the server's windows, fairness, and large bodies."""

from collections.abc import Callable

import pytest
from h2.events import DataReceived, SettingsAcknowledged, StreamEnded, WindowUpdated
from http2_peers import BLOCK, OK, RESPONSE, TRAILERS, connected, exchange, pair, written
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.wire.http2 import frames
from inferometer.wire.http2.client import Http2Client
from inferometer.wire.http2.events import Data, Http2Error, Reset
from inferometer.wire.http2.frames import frame

PATTERN = bytes(range(251))


def body(size: int, shift: int = 0) -> bytes:
    return ((PATTERN[shift:] + PATTERN[:shift]) * (size // 251 + 1))[:size]


def sizes_by_stream(client: Http2Client, limit: int = 1 << 20) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for kind, _, stream, payload in written(client, limit):
        if kind == frames.DATA:
            sizes[stream] = sizes.get(stream, 0) + len(payload)
    return sizes


# --- sending ---------------------------------------------------------------------------------------------------------


def test_body_waits_for_the_windows_of_stream_and_connection() -> None:
    client = connected({frames.INITIAL_WINDOW_SIZE: 10})
    client.request(BLOCK, body(100_000))
    assert sizes_by_stream(client) == {1: 10}
    assert client.feed(frames.window_update(1, 80_000)) == []
    assert sizes_by_stream(client) == {1: 65_525}
    client.feed(frames.window_update(0, 14_475))
    assert sizes_by_stream(client) == {1: 14_475}
    assert client.blocked == 100_000 - 80_010
    client.feed(frames.window_update(0, 10) + frames.window_update(1, 10**6))
    assert sizes_by_stream(client) == {1: 10}
    client.feed(frames.window_update(0, 10**6))
    *_, (kind, flags, _, _) = written(client)
    assert (kind, flags) == (frames.DATA, frames.END_STREAM)
    assert client.blocked == 0


def test_small_requests_use_the_connection_window() -> None:
    client = connected()
    for _ in range(7):
        client.request(BLOCK, body(10_000))
    assert sum(sizes_by_stream(client).values()) == 65_535
    assert client.blocked == 70_000 - 65_535


def test_small_messages_use_the_stream_window() -> None:
    client = connected({frames.INITIAL_WINDOW_SIZE: 10})
    stream = client.request(BLOCK, b"1234", end=False)
    for _ in range(3):
        client.send(stream, b"1234", end=False)
    assert sizes_by_stream(client) == {stream: 10}
    assert client.blocked == 6


def test_lower_initial_window_makes_windows_negative_until_updates_compensate() -> None:
    client = connected()
    client.request(BLOCK, body(60_000))
    client.request(BLOCK, body(30_000))
    client.feed(frames.window_update(0, 10**6))
    assert client.take(70_000)
    sizes_by_stream(client)
    client.request(BLOCK, body(200_000))
    assert sizes_by_stream(client) == {5: 65_535}
    client.feed(frames.settings({frames.INITIAL_WINDOW_SIZE: 1000}))
    client.feed(frames.window_update(5, 64_535))
    assert sizes_by_stream(client) == {}
    client.feed(frames.window_update(5, 7))
    assert sizes_by_stream(client) == {5: 7}
    client.feed(frames.settings({frames.INITIAL_WINDOW_SIZE: 1100}))
    assert sizes_by_stream(client) == {5: 100}
    client.feed(frames.window_update(5, 50) + frames.settings({frames.INITIAL_WINDOW_SIZE: 1000}))
    assert sizes_by_stream(client) == {}


def test_end_of_a_body_needs_no_window() -> None:
    client = connected({frames.INITIAL_WINDOW_SIZE: 3})
    stream = client.request(BLOCK, b"abc", end=False)
    client.feed(frames.settings({frames.INITIAL_WINDOW_SIZE: 0}))
    client.send(stream, b"", end=True)
    assert written(client)[-1] == (frames.DATA, frames.END_STREAM, 1, b"")


def test_end_of_a_body_waits_for_the_body() -> None:
    client = connected({frames.INITIAL_WINDOW_SIZE: 3})
    stream = client.request(BLOCK, b"abcd", end=False)
    client.send(stream, b"ef", end=False)
    client.send(stream, b"", end=True)
    assert [(flags, payload) for _, flags, _, payload in written(client)[1:]] == [(0, b"abc")]
    client.feed(frames.window_update(stream, 10))
    assert [(flags, payload) for _, flags, _, payload in written(client)] == [(0, b"d"), (1, b"ef")]


def test_initial_window_that_overflows_a_stream_window_is_an_error() -> None:
    client = connected()
    client.request(BLOCK, b"x")
    client.feed(frames.window_update(1, 2**31 - 1 - 65_535))
    with pytest.raises(Http2Error, match="INITIAL_WINDOW_SIZE 65537 enlarges"):
        client.feed(frames.settings({frames.INITIAL_WINDOW_SIZE: 65_537}))


def test_frames_are_as_large_as_the_server_allows() -> None:
    for largest in (16_384, 20_000):
        client = connected({frames.INITIAL_WINDOW_SIZE: 10**6, frames.MAX_FRAME_SIZE: largest})
        client.feed(frames.window_update(0, 10**6))
        client.request(BLOCK, body(100_000))
        sent = [len(payload) for kind, _, _, payload in written(client) if kind == frames.DATA]
        assert max(sent) == largest
        assert sum(sent) == 100_000


def test_large_and_small_bodies_take_turns() -> None:
    client = connected({frames.INITIAL_WINDOW_SIZE: 2**30, frames.MAX_FRAME_SIZE: 2**24 - 1})
    client.feed(frames.window_update(0, 2**30))
    for size in (10**6, 10**6, 5, 200_000):
        client.request(BLOCK, bytes(size))
    sent = [(stream, len(payload)) for kind, _, stream, payload in written(client) if kind == frames.DATA]
    turn = 64 << 10
    assert sent[:7] == [(1, turn), (3, turn), (5, 5), (7, turn), (1, turn), (3, turn), (7, turn)]
    assert client.blocked == 0


def test_single_body_uses_the_largest_frames() -> None:
    client = connected({frames.INITIAL_WINDOW_SIZE: 2**30, frames.MAX_FRAME_SIZE: 2**24 - 1})
    client.feed(frames.window_update(0, 2**30))
    client.request(BLOCK, bytes(500_000))
    assert [len(payload) for kind, _, _, payload in written(client) if kind == frames.DATA] == [500_000]


def test_small_request_does_not_overtake_a_body_waiting_for_the_connection_window() -> None:
    client = connected({frames.INITIAL_WINDOW_SIZE: 2**30})
    client.request(BLOCK, bytes(100_000))
    sizes_by_stream(client)
    client.request(BLOCK, b"small")
    client.feed(frames.window_update(0, 3))
    assert sizes_by_stream(client) == {1: 3}
    client.feed(frames.window_update(0, 10**6))
    assert sizes_by_stream(client) == {1: 100_000 - 65_538, 3: 5}


@pytest.mark.parametrize("limit", [1, 100, 20_000, 1 << 20])
def test_take_respects_its_limit(limit: int) -> None:
    client = connected({frames.INITIAL_WINDOW_SIZE: 2**30})
    client.feed(frames.window_update(0, 2**30))
    for size in (10, 3000, 40_000, 5):
        client.request(BLOCK, bytes(size))
    pieces = list(iter(lambda: client.take(limit), b""))
    assert max(map(len, pieces)) <= limit + len(BLOCK) + 18 + 3000
    assert sum(map(len, pieces)) >= 43_015
    assert client.blocked == 0


# --- receiving -------------------------------------------------------------------------------------------------------


def updates(client: Http2Client) -> list[tuple[int, int]]:
    return [(stream, int.from_bytes(payload, "big")) for kind, _, stream, payload in written(client) if kind == 8]


def test_windows_are_topped_up_when_half_is_used() -> None:
    client = connected(window=100_000)
    client.request(BLOCK, b"")
    client.request(BLOCK, b"")
    written(client)
    for stream in (1, 3):
        client.feed(frame(frames.HEADERS, 4, stream, OK) + frame(frames.DATA, 0, stream, bytes(30_000)))
    assert updates(client) == [(0, 60_000)]
    client.feed(frame(frames.DATA, frames.PADDED, 1, b"\xff" + bytes(20_255)))
    assert updates(client) == [(1, 50_256)]


def test_data_of_closed_streams_counts_for_the_connection_window() -> None:
    client = connected(window=100_000)
    client.request(BLOCK, b"")
    client.reset(1)
    written(client)
    assert client.feed(frame(frames.DATA, 0, 1, bytes(60_000))) == []
    assert updates(client) == [(0, 60_000)]


def test_server_that_overruns_the_connection_window_breaks_the_connection() -> None:
    client = connected(window=70_000)
    client.request(BLOCK, b"")
    with pytest.raises(Http2Error, match="connection's window"):
        client.feed(frame(frames.HEADERS, 4, 1, OK) + frame(frames.DATA, 0, 1, bytes(70_001)))


def test_server_that_overruns_a_stream_window_loses_the_stream() -> None:
    client = connected(window=70_000)
    client.request(BLOCK, b"")
    client.request(BLOCK, b"")
    parts = frame(frames.HEADERS, 4, 1, OK) + frame(frames.DATA, 0, 1, bytes(30_000))
    other = frame(frames.DATA, 0, 3, bytes(6_000))
    client.feed(frame(frames.HEADERS, 4, 3, OK) + parts + other)
    *_, event = client.feed(frame(frames.DATA, 0, 1, bytes(65_000)))
    assert isinstance(event, Reset)
    assert event.code == frames.FLOW_CONTROL_ERROR


# --- against h2 ------------------------------------------------------------------------------------------------------


class Conversation:
    """A conversation between a client and h2, with what each has sent and received. The methods are the possible steps.

    Three valid sequences that h2 rejects are left out: settings changed again before the first change was acknowledged, an
    acknowledgement and the frames that it allows in one `receive_data`, and an empty DATA while a window is negative.
    """

    def __init__(self) -> None:
        self.client, self.peer = pair()
        self.sent: dict[int, bytes] = {}
        self.got: dict[int, bytes] = {}
        self.unfinished: list[int] = []
        self.dropped: set[int] = set()
        self.ended: set[int] = set()
        self.is_settling = False

    def request(self, size: int, end: bool) -> None:
        number = self.client.request(BLOCK, body(size), end)
        self.sent[number] = body(size)
        if not end:
            self.unfinished.append(number)

    def send(self, size: int, end: bool) -> None:
        if self.unfinished:
            number = self.unfinished[-1]
            self.client.send(number, body(size, 7), end=end)
            self.sent[number] += body(size, 7)
            if end:
                self.unfinished.pop()

    def reset(self, which: int) -> None:
        if self.sent:
            number = sorted(self.sent)[which % len(self.sent)]
            self.client.reset(number)
            self.dropped.add(number)
            self.unfinished = [other for other in self.unfinished if other != number]

    def widen(self, increment: int) -> None:
        self.peer.increment_flow_control_window(increment)

    def widen_stream(self, increment: int, which: int) -> None:
        over = self.ended | self.dropped
        there = [number for number in sorted(self.sent) if number in self.peer.streams and number not in over]
        if there:
            self.peer.increment_flow_control_window(increment, there[which % len(there)])

    def set(self, name: int, value: int) -> None:
        if not self.is_settling:
            self.peer.update_settings({name: value})
            self.is_settling = True

    def up(self, limit: int) -> bool:
        data = self.client.take(limit)
        for one in by_frame(data):
            for event in self.peer.receive_data(one):
                if isinstance(event, DataReceived):
                    self.got[event.stream_id] = self.got.get(event.stream_id, b"") + event.data
                elif isinstance(event, StreamEnded):
                    self.ended.add(event.stream_id)
                elif isinstance(event, SettingsAcknowledged):
                    self.is_settling = False
        return bool(data)

    def down(self) -> None:
        assert self.client.feed(self.peer.data_to_send()) == []

    def finish(self) -> None:
        """End all bodies, open all windows, and carry what is left."""
        for _ in range(2):
            self.down()
            while self.is_settling:
                assert self.up(1 << 20)
            self.set(frames.INITIAL_WINDOW_SIZE, 2**31 - 1 - 10**7)
        self.widen(2**30)
        self.down()
        for number in self.unfinished:
            self.client.send(number, b"", end=True)
        while self.up(1 << 20):
            pass


def by_frame(data: bytes) -> list[bytes]:
    sizes, at = [], 0
    while at < len(data):
        length = frames.unpack_head(data, at)[0] >> 8
        sizes.append(data[at : at + 9 + length])
        at += 9 + length
    return sizes


ACTIONS = st.one_of(
    st.tuples(st.just(Conversation.request), st.integers(0, 60_000), st.booleans()),
    st.tuples(st.just(Conversation.send), st.integers(1, 40_000), st.booleans()),
    st.tuples(st.just(Conversation.reset), st.integers(0, 5)),
    st.tuples(st.just(Conversation.widen), st.integers(1, 50_000)),
    st.tuples(st.just(Conversation.widen_stream), st.integers(1, 50_000), st.integers(0, 5)),
    st.tuples(st.just(Conversation.set), st.just(4), st.sampled_from([0, 1, 100, 16_384, 65_535, 200_000])),
    st.tuples(st.just(Conversation.set), st.just(5), st.sampled_from([16_384, 17_000, 100_000])),
    st.tuples(st.just(Conversation.set), st.just(1), st.sampled_from([0, 100, 4096])),
    st.tuples(st.just(Conversation.up), st.sampled_from([1, 50, 1000, 30_000, 1 << 20])),
    st.tuples(st.just(Conversation.down)),
)


@settings(max_examples=200)
@given(st.lists(ACTIONS, max_size=40))
def test_h2_receives_everything_and_no_window_is_overrun(
    actions: list[tuple[Callable[..., object], *tuple[int, ...]]],
) -> None:
    talk = Conversation()
    for what, *how in actions:
        what(talk, *how)
    talk.finish()
    assert talk.client.blocked == 0
    for number, complete in talk.sent.items():
        if number in talk.dropped:
            assert complete.startswith(talk.got.get(number, b""))
        else:
            assert talk.got.get(number, b"") == complete
            assert number in talk.ended


def test_upload_of_a_hundred_megabytes() -> None:
    client = Http2Client()
    client.start()
    client.feed(frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 20, frames.MAX_FRAME_SIZE: 1 << 18}))
    client.feed(frames.window_update(0, 1 << 20))
    complete = bytes(100_000_000)
    number = client.request(BLOCK, complete)
    got, ended = 0, False
    at = len(frames.PREFACE)
    while not ended:
        data = client.take(1 << 18)
        assert 0 < len(data) < (1 << 18) + 1000
        while at < len(data):
            word, flags, stream = frames.unpack_head(data, at)
            at += 9 + (word >> 8)
            if word & 0xFF == frames.DATA:
                assert stream == number
                got += word >> 8
                ended = bool(flags & frames.END_STREAM)
                client.feed(frames.window_update(0, word >> 8) + frames.window_update(number, word >> 8))
        at = 0
    assert got == 100_000_000
    assert client.blocked == 0
    assert client.take() == b""


def test_bodies_of_megabytes_to_and_from_h2() -> None:
    client, peer = pair(window=200_000)
    complete = body(3_000_000)
    number = client.request(BLOCK, complete)
    got = b""
    while len(got) < len(complete):
        for event in peer.receive_data(client.take(100_000)):
            if isinstance(event, DataReceived):
                got += event.data
                peer.acknowledge_received_data(event.flow_controlled_length, number)
        client.feed(peer.data_to_send())
    assert got == complete
    peer.send_headers(number, RESPONSE)
    at, down, grown = 0, b"", 0
    while at < len(complete):
        room = min(peer.local_flow_control_window(number), peer.max_outbound_frame_size, len(complete) - at)
        room = room if room == len(complete) - at else room - 4
        if room > 0:
            peer.send_data(number, complete[at : at + room], pad_length=at % 3 or None)
            at += room
        sent = peer.data_to_send()
        for event in [one for cut in range(0, len(sent), 60_000) for one in client.feed(sent[cut : cut + 60_000])]:
            down += event.data if isinstance(event, Data) else b""
        grown += sum(isinstance(event, WindowUpdated) for event in peer.receive_data(client.take()))
    peer.send_headers(number, TRAILERS, end_stream=True)
    exchange(client, peer)
    assert down == complete
    assert grown > 20
    assert client.open_streams == 0


def test_download_of_a_hundred_megabytes_is_not_buffered() -> None:
    client = connected(window=10_000_000)
    client.request(BLOCK, b"")
    client.take()
    client.feed(frame(frames.HEADERS, 4, 1, OK))
    large = frame(frames.DATA, 0, 1, bytes(1_000_000))
    pieces = [large[at : at + 65_536] for at in range(0, len(large), 65_536)]
    got, updated = 0, 0
    for _ in range(100):
        for piece in pieces:
            for event in client.feed(piece):
                assert isinstance(event, Data)
                got += len(event.data)
            assert not client._kept
        updated += sum(increment for stream, increment in updates(client) if stream == 1)
    assert got == 100_000_000
    assert updated > 90_000_000


def test_frame_in_small_pieces_is_joined_once() -> None:
    client = connected()
    complete = frame(0xB0, 0, 0, bytes(1_000_000)) + frame(frames.PING, 0, 0, b"12345678")
    for at in range(0, len(complete), 100):
        client.feed(complete[at : at + 100])
    assert written(client) == [(frames.PING, frames.ACK, 0, b"12345678")]
