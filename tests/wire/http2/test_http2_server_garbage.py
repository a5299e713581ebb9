"""Any sequence of frames and any bytes give the server events or an Http2Error: never another exception or growing memory.

INFEROMETER_FUZZ_SECONDS sets how long the slow test runs: 60 by default, 3600 for an hour.
"""

import os
import random
import time

import pytest
from http2_peers import BLOCK, END, OK, REQUEST, cut, greeted, new_server, plain, request
from hypothesis import given
from hypothesis import strategies as st

from inferometer.wire.http2 import frames
from inferometer.wire.http2.events import Http2Error, RequestHeaders, ServerEvent
from inferometer.wire.http2.frames import frame
from inferometer.wire.http2.server import Http2Server

WINDOW = 65_535
STREAMS = st.sampled_from([0, 1, 1, 3, 3, 5, 7, 7, 9, 2, 2**31 - 1])
FLAGS = st.sampled_from([0, 0, 1, 4, 4, 5, 5, 8, 9, 0x0C, 0x24, 0x2C]) | st.integers(0, 255)
INDEXED = b"\x83\x86\x84\x40\x01a\x01b"  # the first request: adds an entry to the table
BLOCKS = st.sampled_from([BLOCK, END, OK, INDEXED, b"\x83\x86\x84\xbe", b"\x83\x86\x84\xbf", b"\x20\x83\x86\x84", b""])
NUMBER = st.sampled_from([0, 1, 100, 65_535, 2**31 - 1, 2**31, 2**32 - 1]).map(lambda number: number.to_bytes(4, "big"))
SETTING = st.tuples(st.integers(0, 8), st.sampled_from([0, 1, 100, 16_384, 65_535, 2**24 - 1, 2**31 - 1, 2**31]))
BODY = st.binary(max_size=50) | st.integers(0, 16_384).map(bytes)

VALID = st.one_of(
    st.builds(frame, st.just(frames.DATA), st.sampled_from([0, 0, 1]), st.sampled_from([1, 3, 5]), BODY),
    st.builds(frame, st.just(frames.PING), st.sampled_from([0, 1]), st.just(0), st.just(b"draining")),
    st.builds(frames.window_update, st.sampled_from([0, 1, 3, 5]), st.integers(1, 1000)),
    st.builds(frames.rst_stream, st.sampled_from([1, 3, 5]), st.integers(0, 20)),
    st.builds(frames.headers, st.sampled_from([1, 3, 5]), st.just(END), st.just(True)),
    st.builds(frame, st.just(0xB0), FLAGS, STREAMS, st.binary(max_size=20)),
    st.builds(frames.settings, st.dictionaries(st.just(4), st.integers(0, 10_000))),
    st.builds(frame, st.just(frames.PRIORITY), st.just(0), st.integers(1, 99), st.just(bytes(5))),
)
ANY = st.one_of(
    VALID,
    st.builds(frame, st.just(frames.HEADERS), FLAGS, STREAMS, BLOCKS | st.binary(max_size=20)),
    st.builds(request, STREAMS, BODY, st.booleans()),
    st.builds(frame, st.just(frames.CONTINUATION), FLAGS, STREAMS, BLOCKS),
    st.builds(frame, st.just(frames.DATA), FLAGS, STREAMS, BODY),
    st.builds(frame, st.just(frames.GOAWAY), st.just(0), st.just(0), st.tuples(NUMBER, NUMBER).map(b"".join)),
    st.builds(frame, st.sampled_from([2, 3, 8]), FLAGS, STREAMS, NUMBER),
    st.builds(frames.settings, st.lists(SETTING, max_size=3).map(dict)),
    st.builds(frame, st.integers(0, 11), FLAGS, STREAMS, st.binary(max_size=12)),
)


def opened() -> Http2Server:
    """A server with three open streams, one of them with a response that waits for its window."""
    server = greeted(max_streams=6, stream_window=WINDOW, connection_window=WINDOW, max_frame=16_384)
    server.feed(request(1, block=INDEXED) + request(3, end=False) + request(5, end=False))
    server.headers(5, OK)
    server.send(5, bytes(100_000))
    server.take_parts()
    return server


def check(server: Http2Server) -> None:
    """Check that it buffers at most a frame and that its totals are right."""
    outbox = server
    waiting = {stream.number for stream in outbox.streams.values() if stream.queue and stream.window > 0}
    assert set(outbox._ready) == waiting
    assert outbox.blocked == sum(len(part) for stream in outbox.streams.values() for part in stream.queue or ())
    assert all(server.unsent(number) == sum(map(len, stream.queue or ())) for number, stream in outbox.streams.items())
    assert outbox._ordered_size == sum(map(len, outbox._ordered))
    assert sum(map(len, server._kept)) < frames.HEAD + (1 << 20)
    assert server._reader._decoder.table_size <= 4096
    assert len(server.streams) <= 6
    unconsumed = sum(stream.received - stream.consumed for stream in server.streams.values())
    assert server._received == outbox.released + unconsumed
    assert 0 <= server._received <= WINDOW


def received(pieces: list[bytes]) -> tuple[list[ServerEvent], str]:
    """The events, and the message of the error."""
    server = opened()
    events: list[ServerEvent] = []
    try:
        for piece in pieces:
            events += server.feed(piece)
            check(server)
    except Http2Error as error:
        assert error.message.startswith("the client")
        assert error.code
        assert b"\x07\x00\0\0\0\0" in b"".join(server.take_parts())  # the GOAWAY
        assert server.open_streams == 0
        return plain([*events, *error.events]), error.message
    return plain(events), ""


@given(st.lists(VALID, max_size=12))
def test_allowed_frames_do_not_break_the_connection(sequence: list[bytes]) -> None:
    if sum(map(len, sequence)) < WINDOW:
        assert received(sequence)[1] == ""


@given(st.lists(ANY, max_size=12), st.sets(st.integers(0, 2000), max_size=6))
def test_any_frames_give_the_same_events_at_any_split(sequence: list[bytes], cuts: set[int]) -> None:
    data = b"".join(sequence)
    assert received(cut(data, {cut_at % (len(data) + 1) for cut_at in cuts})) == received([data])


def test_every_split_of_a_conversation_gives_the_same_events() -> None:
    data = (
        frames.PREFACE
        + frames.settings({4: 1000})
        + request(1, b"one")
        + frame(frames.HEADERS, 0, 3, BLOCK[:10])
        + frame(frames.CONTINUATION, 4, 3, BLOCK[10:])
        + frame(frames.DATA, frames.PADDED, 3, b"\x03two\0\0\0")
        + frame(frames.PING, 0, 0, bytes(8))
        + frames.window_update(3, 9)
        + frames.headers(3, END, True)
        + frames.rst_stream(1, 8)
    )
    expected = plain(new_server().feed(data))
    assert len(expected) == 6
    for split in range(len(data) + 1):
        server = new_server()
        assert plain(server.feed(data[:split]) + server.feed(data[split:])) == expected
    server = new_server()
    assert plain([event for byte in data for event in server.feed(bytes([byte]))]) == expected


@given(st.lists(ANY, min_size=1, max_size=8), st.data())
def test_corrupted_byte_is_an_http2_error_or_harmless(sequence: list[bytes], data: st.DataObject) -> None:
    stream = bytearray(b"".join(sequence))
    for _ in range(data.draw(st.integers(1, 3))):
        if stream:
            stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    received([bytes(stream)])


@given(st.lists(st.binary(max_size=80), max_size=8), st.booleans())
def test_any_bytes_are_events_or_an_error(pieces: list[bytes], with_preface: bool) -> None:
    received(pieces)
    fresh = new_server()
    try:
        for piece in [frames.PREFACE, *pieces] if with_preface else pieces:
            fresh.feed(piece)
    except Http2Error as error:
        assert error.message.startswith("the client ")


class Caller:
    """An application that responds at random, for the fuzz."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._held: dict[int, int] = {}

    def handle(self, server: Http2Server, events: list[ServerEvent]) -> None:
        chance = self._chance
        for event in events:
            if hasattr(event, "data"):
                self._held[event.stream] = self._held.get(event.stream, 0) + len(event.data)
        for number in list(self._held):
            if number not in server.streams:
                del self._held[number]
                continue
            step = chance.randrange(12)
            stream = server.streams[number]
            if step == 0 and not stream.has_headers:
                server.respond(number, OK, [bytes(chance.choice([0, 5, 100, 40_000]))], END)
            elif step == 1 and not stream.has_headers:
                server.headers(number, OK, end=chance.random() < 0.3)
            elif step == 2 and stream.has_headers and not stream.is_ended:
                server.send(number, bytes(chance.choice([1, 30_000])), b"x", end=chance.random() < 0.2)
            elif step == 3 and stream.has_headers and not stream.is_ended:
                server.headers(number, END, end=True)
            elif step == 4:
                server.reset(number)
            elif step < 9:
                server.consumed(number, self._held[number])
                self._held[number] = 0
        if chance.random() < 0.01:
            server.drain()
        if chance.random() < 0.8:
            server.take_parts(chance.choice([1, 1000, 1 << 20]))


def random_frame(chance: random.Random, number: int) -> bytes:
    """A frame that is usually valid for the stream `number` or one before it."""
    stream = max(1, number - 2 * chance.choice([1, 1, 1, 2, 3, 5]))
    body = bytes(chance.choice([0, 1, 100, 3000]))
    kinds = ["rare"] if chance.random() < 0.01 else [*["request"] * 4, *["data"] * 4, "end", "update", "reset", "noise"]
    match chance.choice(kinds):
        case "request":
            block = chance.choice([BLOCK, BLOCK, INDEXED, b"\x83\x86\x84\xbe", literal(chance)])
            data = request(number, body, end=chance.random() < 0.7, block=block)
        case "data":
            data = frame(frames.DATA, chance.choice([0, 0, 0, 1]), stream, body)
        case "end":
            data = frames.headers(stream, END, True)
        case "update":
            data = frames.window_update(chance.choice([0, stream]), chance.choice([1, 1000, 30_000]))
        case "reset":
            data = frames.rst_stream(stream, chance.randrange(14))
        case "noise":
            ping, change = frame(frames.PING, chance.randrange(2), 0, b"draining"), frames.settings({4: 30_000})
            data = chance.choice([ping, change, frame(frames.DATA, frames.PADDED, stream, b"\x02" + body + b"12")])
        case _:
            size, flags = chance.choice([0, 4, 5, 8, 30]), chance.randrange(256)
            data = frame(chance.randrange(12), flags, chance.choice([0, stream]), chance.randbytes(size))
    return data


def literal(chance: random.Random) -> bytes:
    """A request with a literal field of random bytes, with or without an entry in the table."""
    value = chance.randbytes(chance.randrange(20))
    return b"\x83\x86\x84" + chance.choice([b"\x40", b"\x00", b"\x10"]) + b"\x01a" + bytes([len(value)]) + value


def fuzz(seed: int) -> int:
    """Run one random conversation; return the number of frames before its end."""
    chance = random.Random(seed)
    server = greeted(max_streams=6, stream_window=WINDOW, connection_window=WINDOW, max_frame=16_384)
    server.feed(request(1, block=INDEXED))
    caller = Caller(chance)
    count, number = 0, 3
    try:
        for count in range(300):  # noqa: B007
            data = random_frame(chance, number)
            if data[3] == frames.HEADERS and int.from_bytes(data[5:9], "big") == number:
                number += 2
            if chance.random() < 0.003:
                changed = bytearray(data)
                changed[chance.randrange(len(changed))] = chance.randrange(256)
                data = bytes(changed)
            at = chance.randrange(len(data) + 1)
            caller.handle(server, server.feed(data[:at]))
            caller.handle(server, server.feed(data[at:]))
            check(server)
    except Http2Error as error:
        assert error.message.startswith("the client")
    return count


def test_random_conversations() -> None:
    counts = [fuzz(seed) for seed in range(60)]
    assert sum(counts) > 3000  # otherwise the conversations end too early to test much


@pytest.mark.slow
def test_random_conversations_for_a_minute() -> None:
    deadline = time.monotonic() + float(os.environ.get("INFEROMETER_FUZZ_SECONDS", "60"))
    while time.monotonic() < deadline:
        seed = random.getrandbits(48)
        try:
            fuzz(seed)
        except BaseException:
            print("seed:", seed)
            raise


def test_server_still_works_after_a_random_conversation() -> None:
    server = opened()
    server.feed(request(7, b"x"))
    assert server.feed(request(9)) == [RequestHeaders(9, REQUEST, True)]
