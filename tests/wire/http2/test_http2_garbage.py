"""Any sequence of frames and any bytes give events or an Http2Error, and never another exception, a hang or growing memory."""

from http2_peers import BLOCK, END, OK, connected, cut, joined
from hypothesis import given
from hypothesis import strategies as st

from inferometer.wire.http2 import frames
from inferometer.wire.http2.client import Http2Client
from inferometer.wire.http2.events import Event, Http2Error
from inferometer.wire.http2.frames import frame

STREAMS = st.sampled_from([0, 1, 1, 3, 3, 5, 2, 7, 2**31 - 1])
FLAGS = st.sampled_from([0, 0, 1, 4, 4, 5, 5, 8, 9, 0x0C, 0x24, 0x2C]) | st.integers(0, 255)
VALID_BLOCKS = st.sampled_from([OK, END, b"\x88", b"\x88\x40\x01a\x01b", b"\x88\xbe", b"\x08\x03100", b""])
BLOCKS = VALID_BLOCKS | st.just(b"\x20\x88")
NUMBER = st.sampled_from([0, 1, 100, 65_535, 2**31 - 1, 2**31, 2**32 - 1]).map(lambda number: number.to_bytes(4, "big"))
SETTING = st.tuples(st.integers(0, 8), st.sampled_from([0, 1, 100, 16_384, 65_535, 2**24 - 1, 2**31 - 1, 2**31]))

VALID = st.one_of(
    st.builds(frame, st.just(frames.HEADERS), st.sampled_from([4, 5]), st.sampled_from([1, 3, 5]), VALID_BLOCKS),
    st.builds(
        frame, st.just(frames.DATA), st.sampled_from([0, 0, 1]), st.sampled_from([1, 3, 5]), st.binary(max_size=50)
    ),
    st.builds(frame, st.just(frames.PING), st.sampled_from([0, 1]), st.just(0), st.just(b"12345678")),
    st.builds(frames.window_update, st.sampled_from([0, 1, 3, 5]), st.integers(1, 1000)),
    st.builds(frames.rst_stream, st.sampled_from([1, 3, 5]), st.integers(0, 20)),
    st.builds(frame, st.just(0xB0), FLAGS, STREAMS, st.binary(max_size=20)),
    st.builds(frames.settings, st.dictionaries(st.just(4), st.integers(0, 10_000))),
)
ANY = st.one_of(
    VALID,
    st.builds(frame, st.just(frames.HEADERS), FLAGS, STREAMS, BLOCKS | st.binary(max_size=20)),
    st.builds(frame, st.just(frames.CONTINUATION), FLAGS, STREAMS, BLOCKS),
    st.builds(frame, st.just(frames.DATA), FLAGS, STREAMS, st.binary(max_size=20)),
    st.builds(frame, st.just(frames.GOAWAY), st.just(0), st.just(0), st.tuples(NUMBER, NUMBER).map(b"".join)),
    st.builds(frame, st.sampled_from([2, 3, 8]), FLAGS, STREAMS, NUMBER),
    st.builds(frames.settings, st.lists(SETTING, max_size=3).map(dict)),
    st.builds(frame, st.integers(0, 11), FLAGS, STREAMS, st.binary(max_size=12)),
)


def client() -> Http2Client:
    made = connected()
    for size in (0, 10, 100_000):
        made.request(BLOCK, bytes(size))
    made.take()
    return made


def received(pieces: list[bytes]) -> tuple[list[Event], str]:
    """The events, and the message of the error."""
    reader = client()
    events: list[Event] = []
    try:
        for piece in pieces:
            events += reader.feed(piece)
            check(reader)
    except Http2Error as error:
        assert error.message
        assert error.code
        assert reader.is_closing
        assert b"\x07\x00\0\0\0\0" in reader.take()  # the GOAWAY
        return joined([*events, *error.events]), error.message
    return joined(events), ""


def check(reader: Http2Client) -> None:
    """Check that it buffers at most a frame and that its totals are right."""
    outbox = reader
    waiting = {stream.number for stream in outbox.streams.values() if stream.queue and stream.window > 0}
    assert set(outbox._ready) == waiting
    assert reader.blocked == sum(len(part) for stream in outbox.streams.values() for part in stream.queue or ())
    assert outbox._ordered_size == sum(map(len, outbox._ordered))
    assert sum(map(len, reader._kept)) < frames.HEAD + (1 << 20)
    assert reader._reader._decoder.table_size <= 4096


@given(st.lists(VALID, max_size=12))
def test_allowed_frames_do_not_break_the_connection(sequence: list[bytes]) -> None:
    opened = frame(frames.HEADERS, 4, 1, b"\x88\x40\x01a\x01b")  # so that references to the entry are valid
    assert received([opened, *sequence])[1] == ""


@given(st.lists(ANY, max_size=12), st.sets(st.integers(0, 600), max_size=6))
def test_any_frames_give_the_same_events_at_any_split(sequence: list[bytes], cuts: set[int]) -> None:
    data = b"".join(sequence)
    assert received(cut(data, {cut_at % (len(data) + 1) for cut_at in cuts})) == received([data])


@given(st.lists(VALID, min_size=1, max_size=8), st.data())
def test_corrupted_byte_is_an_http2_error_or_harmless(sequence: list[bytes], data: st.DataObject) -> None:
    stream = bytearray(b"".join(sequence))
    for _ in range(data.draw(st.integers(1, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    received([bytes(stream)])


@given(st.lists(st.binary(max_size=80), max_size=8))
def test_any_bytes_are_events_or_an_error(pieces: list[bytes]) -> None:
    received(pieces)
    fresh = Http2Client()
    fresh.start()
    try:
        for piece in pieces:
            fresh.feed(piece)
    except Http2Error as error:
        assert error.message.startswith("the server ")
