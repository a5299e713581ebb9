"""gRPC's framing, header blocks and the meaning of answers, at every split."""

import gzip
import struct
import zlib
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.errors import UserError
from inferometer.types import End, Event, Fail, ServerTiming, Tokens
from inferometer.wire import grpc
from inferometer.wire.grpc import GrpcResponse, MessageSplitter

HEAD = ((b":status", b"200"), (b"content-type", b"application/grpc"))
OK = ((b"grpc-status", b"0"),)


def pieces(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


# --- framing ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(0, 300), max_size=12), st.booleans())
def test_messages_come_out_as_they_went_in_however_they_are_split(
    messages: list[bytes], places: list[int], keep: bool
) -> None:
    data = b"".join(map(grpc.framed, messages))
    reader = MessageSplitter(keep)
    found = [one for piece in pieces(data, places) for one in reader.feed(piece)]
    assert [flag for flag, _ in found] == [0] * len(messages)
    if keep:
        assert [message for _, message in found] == messages
    else:
        assert len(found) == len(messages)
    assert not reader.is_mid_message


@pytest.mark.parametrize("keep", [False, True])
def test_a_message_is_mid_message_until_its_last_byte(keep: bool) -> None:
    data = grpc.framed(b"abc") + grpc.framed(b"") + grpc.framed(b"de")
    ends = {8, 13, 20}
    for stop in range(len(data) + 1):
        reader = MessageSplitter(keep)
        found = sum(len(reader.feed(data[at : at + 1])) for at in range(stop))
        assert found == sum(end <= stop for end in ends)
        assert reader.is_mid_message == (stop not in ends | {0})


@given(
    st.lists(st.tuples(st.binary(max_size=60), st.sampled_from(["none", "gzip", "deflate"])), max_size=5),
    st.lists(st.integers(0, 300), max_size=8),
)
def test_compressed_messages_are_kept_whole_even_where_nobody_looks(
    messages: list[tuple[bytes, str]], places: list[int]
) -> None:
    data = b"".join(grpc.framed(message, compression) for message, compression in messages)
    reader = MessageSplitter(keep=False)
    found = [one for piece in pieces(data, places) for one in reader.feed(piece)]
    assert [flag for flag, _ in found] == [compression != "none" for _, compression in messages]
    for (flag, packed), (message, compression) in zip(found, messages, strict=True):
        assert grpc.decompressed(flag, packed, compression.encode()) == (message if flag else b"")


def test_a_large_message_that_nobody_looks_at_is_not_kept() -> None:
    reader = MessageSplitter(keep=False)
    assert reader.feed(struct.pack(">BI", 0, 4_000_000_000)) == []
    for _ in range(40):
        assert not reader.feed(bytes(100_000))
    assert reader.is_mid_message
    assert not reader._pieces


@pytest.mark.parametrize(("name", "unpack"), [("gzip", gzip.decompress), ("deflate", zlib.decompress)])
def test_compressed_requests_are_what_others_unpack(name: str, unpack) -> None:  # type: ignore[no-untyped-def]
    framed = grpc.framed(b"again " * 100, name)
    assert framed[0] == 1
    assert struct.unpack(">I", framed[1:5])[0] == len(framed) - 5 < 100
    assert unpack(framed[5:]) == b"again " * 100


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"br", b""])
def test_what_cannot_be_unpacked_says_so(encoding: bytes) -> None:
    with pytest.raises(ValueError, match="compress"):
        grpc.decompressed(1, b"certainly neither", encoding)


# --- the header block ------------------------------------------------------------------------------------------------


def decoded(block: bytes) -> list[tuple[str, str]]:
    return [(name, value) for name, value in hpack.Decoder().decode(block)]


def test_the_header_block_of_a_call() -> None:
    block = grpc.header_block("/pkg.S/M", "host:1", True, {"X-Tenant": "blue"}, 2.5, "gzip")
    assert decoded(block) == [
        (":method", "POST"),
        (":scheme", "https"),
        (":path", "/pkg.S/M"),
        (":authority", "host:1"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("grpc-timeout", "2500000u"),
        ("grpc-encoding", "gzip"),
        ("grpc-accept-encoding", "identity,deflate,gzip"),
        ("x-tenant", "blue"),
    ]


def test_of_names_that_differ_in_case_alone_the_last_one_counts() -> None:
    block = grpc.header_block("/a/b", "h", False, {"User-Agent": "one", "authorization": "a", "user-agent": "two"})
    assert [pair for pair in decoded(block) if pair[0] in ("user-agent", "authorization")] == [
        ("user-agent", "two"),
        ("authorization", "a"),
    ]


@pytest.mark.parametrize(
    "name", ["Connection", "host", "TE", "Transfer-Encoding", "Content-Length", "content-type", "grpc-timeout"]
)
def test_headers_that_a_call_cannot_have_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=name.lower()):
        grpc.header_block("/a/b", "h", False, {name: "x"})


UNITS = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "S": Fraction(1)}


@given(st.floats(1e-10, 1e8 - 1))
def test_a_timeout_has_at_most_eight_digits_and_is_right_within_rounding(seconds: float) -> None:
    said = grpc.timeout(seconds).decode()
    digits, unit = said[:-1], UNITS[said[-1]]
    assert 1 <= len(digits) <= 8
    assert digits.isdigit()
    assert int(digits) >= 1
    off = abs(int(digits) * unit - Fraction(seconds))
    assert off <= unit / 2 * Fraction(1_000_001, 1_000_000) or said == "1n"
    finer = {"u": UNITS["n"], "m": UNITS["u"], "S": UNITS["m"]}.get(said[-1])
    assert finer is None or Fraction(seconds) / finer > 99_999_998


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (1e-12, b"1n"),
        (0.05, b"50000000n"),
        (0.099999999, b"99999999n"),
        (0.1, b"100000u"),
        (30, b"30000000u"),
        (600, b"600000m"),
        (99999.999, b"99999999m"),
        (1e6, b"1000000S"),
        (1e12, b"99999999S"),
    ],
)
def test_timeouts_in_the_finest_unit_that_fits(seconds: float, said: bytes) -> None:
    assert grpc.timeout(seconds) == said


# --- answers ---------------------------------------------------------------------------------------------------------


def answered(
    answer: GrpcResponse, body: Sequence[bytes], trailers: tuple[tuple[bytes, bytes], ...] | None = OK
) -> list[Event]:
    """What the whole of an answer means; trailers None: the body's last piece ends it."""
    events = list(answer.headers(HEAD, False))
    for count, piece in enumerate(body, 1):
        events += answer.data(piece, trailers is None and count == len(body))
    if trailers is not None:
        events += answer.headers(trailers, True)
    return events


@given(st.lists(st.binary(max_size=30), max_size=5), st.lists(st.integers(0, 200), max_size=8), st.booleans())
def test_a_streamed_answer_means_the_same_at_every_split(
    messages: list[bytes], places: list[int], looked_at: bool
) -> None:
    kept: list[bytes] | None = [] if looked_at else None
    body = pieces(b"".join(map(grpc.framed, messages)), places)
    events = answered(GrpcResponse(True, kept=kept), body)
    assert events == [Tokens(1)] * len(messages) + [End(True)]
    assert kept is None or kept == messages


@given(st.binary(max_size=30), st.lists(st.integers(0, 40), max_size=4))
def test_a_unary_answer_is_no_arrival(message: bytes, places: list[int]) -> None:
    assert answered(GrpcResponse(), pieces(grpc.framed(message), places)) == [End(True)]


@given(st.binary(min_size=1, max_size=30), st.data())
def test_an_answer_that_is_cut_anywhere_is_cut_short(message: bytes, data: st.DataObject) -> None:
    body = grpc.framed(message)
    stop = data.draw(st.integers(0, len(body) - 1))
    place = data.draw(st.integers(0, stop))
    (event,) = answered(GrpcResponse(), pieces(body[:stop], [place]))
    assert isinstance(event, Fail)
    assert event.code == "cut_short"


def test_without_trailers_it_is_cut_short() -> None:
    (event,) = answered(GrpcResponse(), [grpc.framed(b"abc")], None)
    assert event == Fail("cut_short", "the stream ended without trailers", True)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_answers_are_kept_unpacked(encoding: str) -> None:
    kept: list[bytes] = []
    answer = GrpcResponse(True, kept=kept)
    answer.headers((*HEAD, (b"grpc-encoding", encoding.encode())), False)
    body = grpc.framed(b"abc", encoding) + grpc.framed(b"def")
    assert answer.data(body, False) == [Tokens(1), Tokens(1)]
    assert kept == [b"abc", b"def"]


def test_a_message_that_says_an_error_ends_the_answer() -> None:
    answer = GrpcResponse(True, check=lambda message: message.decode() if message.startswith(b"E") else "")
    events = answered(answer, [grpc.framed(b"fine") + grpc.framed(b"Enough") + grpc.framed(b"fine")], OK)
    assert events[:2] == [Tokens(1), Fail("error_frame", "Enough", True)]


@pytest.mark.parametrize("number", range(1, 17))
def test_every_status_by_its_name(number: int) -> None:
    trailers = ((b"grpc-status", b"%d" % number), (b"grpc-message", "größer %25".encode().replace(b"\xc3", b"%C3")))
    (event,) = GrpcResponse().headers((*HEAD, *trailers), True)
    assert event == Fail(f"grpc_{grpc.STATUS[number]}", "größer %", True)
    assert grpc.status_number(grpc.STATUS[number]) == number


@pytest.mark.parametrize("status", [b"17", b"-1", b"", b"abc", b"99999999999999999999"])
def test_a_status_that_there_is_not_is_a_failure_all_the_same(status: bytes) -> None:
    (event,) = GrpcResponse().headers((*HEAD, (b"grpc-status", status)), True)
    assert isinstance(event, Fail)
    assert event.code == "grpc_" + status.decode()
    assert grpc.status_number(event.code[5:]) == 2


@given(st.binary(max_size=40))
def test_no_message_is_too_odd_to_be_told(message: bytes) -> None:
    (event,) = GrpcResponse().headers((*HEAD, (b"grpc-status", b"2"), (b"grpc-message", message)), True)
    assert isinstance(event, Fail)
    assert event.code == "grpc_UNKNOWN"


def test_server_timing_may_come_in_several_trailers() -> None:
    trailers = (*OK, (b"server-timing", b"queue;dur=1"), (b"server-timing", b"compute;dur=2"))
    assert answered(GrpcResponse(), [grpc.framed(b"")], trailers) == [ServerTiming(1_000_000, 2_000_000), End(True)]


@pytest.mark.parametrize(
    ("headers", "end", "code"),
    [
        (((b":status", b"503"), (b"content-type", b"text/plain")), False, "http_503"),
        (((b":status", b"404"),), True, "http_404"),
        (((b":status", b"200"), (b"content-type", b"text/html")), False, "not_grpc"),
        (((b":status", b"200"),), False, "not_grpc"),
        (HEAD, True, "malformed_grpc"),
    ],
)
def test_answers_that_are_no_grpc(headers: tuple[tuple[bytes, bytes], ...], end: bool, code: str) -> None:
    answer = GrpcResponse()
    (event,) = answer.headers(headers, end)
    assert isinstance(event, Fail)
    assert event.code == code
    assert answer.status == int(headers[0][1])


@pytest.mark.parametrize("kind", [b"application/grpc+proto", b"application/grpc;charset=utf-8"])
def test_kinds_of_grpc(kind: bytes) -> None:
    assert GrpcResponse().headers(((b":status", b"200"), (b"content-type", kind)), False) == ()


@given(
    st.sampled_from([HEAD, (*HEAD, (b"grpc-encoding", b"gzip")), ((b":status", b"503"),), HEAD[:1]]),
    st.lists(
        st.tuples(st.sampled_from([b"", b"answer", b"bad"]), st.sampled_from(["none", "gzip"])).map(
            lambda m: grpc.framed(*m)
        ),
        max_size=2,
    ).map(b"".join)
    | st.binary(max_size=8),
    st.sampled_from(
        [OK, ((b"grpc-status", b"5"), (b"grpc-message", b"no")), (), (*OK, (b"server-timing", b"queue;dur=1"))]
    ),
    st.booleans(),
    st.sampled_from([None, lambda message: "it says so" if message == b"bad" else ""]),
    st.booleans(),
)
def test_an_answer_that_comes_whole_means_what_it_means_in_parts(  # type: ignore[no-untyped-def]
    head: tuple[tuple[bytes, bytes], ...],
    body: bytes,
    trailers: tuple[tuple[bytes, bytes], ...],
    streamed: bool,
    check,
    keep: bool,
) -> None:
    parts, whole = (GrpcResponse(streamed, check, [] if keep else None) for _ in range(2))
    grpc._LastSuccess.head, grpc._LastSuccess.end = HEAD, OK  # what is right has been seen before
    said = [*parts.headers(head, False), *parts.data(body, False), *parts.headers(trailers, True)]
    assert list(whole.complete(head, body, trailers)) == said
    if said in ([Tokens(1), End(True)], [End(True)]) and len(body) >= 5:
        assert (whole.status, whole.count, whole.trailers, whole.kept) == (200, 1, trailers, parts.kept)
