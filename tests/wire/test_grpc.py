"""gRPC's framing, header blocks and responses, at every split."""

import gzip
import struct
import zlib
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.errors import UserError
from inferometer.types import End, Event, Fail, ServerTiming, Tokens
from inferometer.wire import grpc, grpc_framing
from inferometer.wire.grpc import GrpcResponse
from inferometer.wire.grpc_framing import MessageSplitter

HEAD = ((b":status", b"200"), (b"content-type", b"application/grpc"))
OK = ((b"grpc-status", b"0"),)


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut_at, len(data)) for cut_at in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


# --- framing ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(0, 300), max_size=12), st.booleans())
def test_messages_survive_any_split(messages: list[bytes], cuts: list[int], keep: bool) -> None:
    data = b"".join(map(grpc_framing.framed, messages))
    reader = MessageSplitter(keep)
    messages_out = [one for piece in pieces(data, cuts) for one in reader.feed(piece)]
    assert [flag for flag, _ in messages_out] == [0] * len(messages)
    if keep:
        assert [message for _, message in messages_out] == messages
    else:
        assert len(messages_out) == len(messages)
    assert not reader.is_mid_message


@pytest.mark.parametrize("keep", [False, True])
def test_splitter_is_mid_message_until_the_last_byte(keep: bool) -> None:
    data = grpc_framing.framed(b"abc") + grpc_framing.framed(b"") + grpc_framing.framed(b"de")
    ends = {8, 13, 20}
    for stop in range(len(data) + 1):
        reader = MessageSplitter(keep)
        messages_out = sum(len(reader.feed(data[at : at + 1])) for at in range(stop))
        assert messages_out == sum(end <= stop for end in ends)
        assert reader.is_mid_message == (stop not in ends | {0})


@given(
    st.lists(st.tuples(st.binary(max_size=60), st.sampled_from(["none", "gzip", "deflate"])), max_size=5),
    st.lists(st.integers(0, 300), max_size=8),
)
def test_compressed_messages_are_kept_even_if_others_are_discarded(
    messages: list[tuple[bytes, str]], cuts: list[int]
) -> None:
    data = b"".join(grpc_framing.framed(message, compression) for message, compression in messages)
    reader = MessageSplitter(keep=False)
    messages_out = [one for piece in pieces(data, cuts) for one in reader.feed(piece)]
    assert [flag for flag, _ in messages_out] == [compression != "none" for _, compression in messages]
    for (flag, packed), (message, compression) in zip(messages_out, messages, strict=True):
        assert grpc_framing.plain(flag, packed, compression.encode()) == (message if flag else b"")


def test_large_message_is_discarded_if_it_is_not_inspected() -> None:
    reader = MessageSplitter(keep=False)
    assert reader.feed(struct.pack(">BI", 0, 4_000_000_000)) == []
    for _ in range(40):
        assert not reader.feed(bytes(100_000))
    assert reader.is_mid_message
    assert not reader._pieces


@pytest.mark.parametrize(("name", "unpack"), [("gzip", gzip.decompress), ("deflate", zlib.decompress)])
def test_compressed_requests_can_be_decompressed_by_the_standard_library(name: str, unpack) -> None:  # type: ignore[no-untyped-def]
    framed = grpc_framing.framed(b"again " * 100, name)
    assert framed[0] == 1
    assert struct.unpack(">I", framed[1:5])[0] == len(framed) - 5 < 100
    assert unpack(framed[5:]) == b"again " * 100


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate", b"br", b""])
def test_message_that_cannot_be_decompressed_raises_value_error(encoding: bytes) -> None:
    with pytest.raises(ValueError, match="compress"):
        grpc_framing.plain(1, b"certainly neither", encoding)


@pytest.mark.parametrize("step", [1, 3, 1000, 70_000, 1 << 20])
def test_messages_are_assembled_with_a_limit_however_they_are_split(step: int) -> None:
    sent = [b"", b"a", bytes(300), b"b" * 70_000, b"", b"c" * 100_000, b"d"]
    data = b"".join(map(grpc_framing.framed, sent))
    reader, received = MessageSplitter(limit=1 << 20), []
    for at in range(0, len(data), step):
        received += [bytes(message) for _, message in reader.feed(memoryview(data)[at : at + step])]
    assert received == sent
    assert not reader.is_mid_message


def test_a_large_message_that_is_only_announced_takes_no_memory() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    reader = MessageSplitter(limit=1 << 30)
    assert not reader.feed(struct.pack(">BL", 0, 500_000_000) + bytes(100))
    assert reader.is_mid_message
    assert resident() - before < 50_000_000


def test_a_message_over_the_limit_is_refused_when_it_is_announced() -> None:
    with pytest.raises(ValueError, match="has 101 bytes; the server accepts at most 100"):
        MessageSplitter(limit=100).feed(struct.pack(">BL", 0, 101))


# --- the header block ------------------------------------------------------------------------------------------------


def decoded(block: bytes) -> list[tuple[str, str]]:
    return [(name, value) for name, value in hpack.Decoder().decode(block)]


def test_header_block_of_a_call() -> None:
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


def test_last_of_two_headers_that_differ_only_in_case_wins() -> None:
    block = grpc.header_block("/a/b", "h", False, {"User-Agent": "one", "authorization": "a", "user-agent": "two"})
    assert [pair for pair in decoded(block) if pair[0] in ("user-agent", "authorization")] == [
        ("user-agent", "two"),
        ("authorization", "a"),
    ]


@pytest.mark.parametrize(
    "name", ["Connection", "host", "TE", "Transfer-Encoding", "Content-Length", "content-type", "grpc-timeout"]
)
def test_headers_that_grpc_sets_itself_are_rejected(name: str) -> None:
    with pytest.raises(UserError, match=name.lower()):
        grpc.header_block("/a/b", "h", False, {name: "x"})


UNITS = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "S": Fraction(1)}


@given(st.floats(1e-10, 1e8 - 1))
def test_timeout_has_at_most_eight_digits_and_is_accurate(seconds: float) -> None:
    expected = grpc_framing.timeout(seconds).decode()
    digits, unit = expected[:-1], UNITS[expected[-1]]
    assert 1 <= len(digits) <= 8
    assert digits.isdigit()
    assert int(digits) >= 1
    off = abs(int(digits) * unit - Fraction(seconds))
    assert off <= unit / 2 * Fraction(1_000_001, 1_000_000) or expected == "1n"
    finer = {"u": UNITS["n"], "m": UNITS["u"], "S": UNITS["m"]}.get(expected[-1])
    assert finer is None or Fraction(seconds) / finer > 99_999_998


@pytest.mark.parametrize(
    ("seconds", "expected"),
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
def test_timeout_uses_the_finest_unit_that_fits(seconds: float, expected: bytes) -> None:
    assert grpc_framing.timeout(seconds) == expected


# --- responses -------------------------------------------------------------------------------------------------------


def events_of(
    response: GrpcResponse, body: Sequence[bytes], trailers: tuple[tuple[bytes, bytes], ...] | None = OK
) -> list[Event]:
    """The events of a complete response; trailers None: the last piece of the body ends it."""
    events = list(response.headers(HEAD, False))
    for count, piece in enumerate(body, 1):
        events += response.data(piece, trailers is None and count == len(body))
    if trailers is not None:
        events += response.headers(trailers, True)
    return events


@given(st.lists(st.binary(max_size=30), max_size=5), st.lists(st.integers(0, 200), max_size=8), st.booleans())
def test_streamed_response_gives_the_same_events_at_every_split(
    messages: list[bytes], cuts: list[int], keep: bool
) -> None:
    kept: list[bytes] | None = [] if keep else None
    body = pieces(b"".join(map(grpc_framing.framed, messages)), cuts)
    events = events_of(GrpcResponse(True, kept=kept), body)
    assert events == [Tokens(1)] * len(messages) + [End(True)]
    assert kept is None or kept == messages


@given(st.binary(max_size=30), st.lists(st.integers(0, 40), max_size=4))
def test_unary_response_does_not_count_as_an_arrival(message: bytes, cuts: list[int]) -> None:
    assert events_of(GrpcResponse(), pieces(grpc_framing.framed(message), cuts)) == [End(True)]


@given(st.binary(min_size=1, max_size=30), st.data())
def test_response_that_ends_anywhere_early_is_cut_short(message: bytes, data: st.DataObject) -> None:
    body = grpc_framing.framed(message)
    stop = data.draw(st.integers(0, len(body) - 1))
    cut_at = data.draw(st.integers(0, stop))
    (event,) = events_of(GrpcResponse(), pieces(body[:stop], [cut_at]))
    assert isinstance(event, Fail)
    assert event.code == "cut_short"


def test_response_without_trailers_is_cut_short() -> None:
    (event,) = events_of(GrpcResponse(), [grpc_framing.framed(b"abc")], None)
    assert event == Fail("cut_short", "the stream ended without trailers", True)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_responses_are_kept_decompressed(encoding: str) -> None:
    kept: list[bytes] = []
    response = GrpcResponse(True, kept=kept)
    response.headers((*HEAD, (b"grpc-encoding", encoding.encode())), False)
    body = grpc_framing.framed(b"abc", encoding) + grpc_framing.framed(b"def")
    assert response.data(body, False) == [Tokens(1), Tokens(1)]
    assert kept == [b"abc", b"def"]


def test_message_with_an_error_ends_the_response() -> None:
    response = GrpcResponse(True, check=lambda message: message.decode() if message.startswith(b"E") else "")
    events = events_of(
        response, [grpc_framing.framed(b"fine") + grpc_framing.framed(b"Enough") + grpc_framing.framed(b"fine")], OK
    )
    assert events[:2] == [Tokens(1), Fail("error_frame", "Enough", True)]


@pytest.mark.parametrize("number", range(1, 17))
def test_every_status_is_reported_by_name(number: int) -> None:
    trailers = ((b"grpc-status", b"%d" % number), (b"grpc-message", "größer %25".encode().replace(b"\xc3", b"%C3")))
    (event,) = GrpcResponse().headers((*HEAD, *trailers), True)
    assert event == Fail(f"grpc_{grpc_framing.STATUS[number]}", "größer %", True)
    assert grpc_framing.status_number(grpc_framing.STATUS[number]) == number


@pytest.mark.parametrize("status", [b"17", b"-1", b"", b"abc", b"99999999999999999999"])
def test_undefined_status_is_a_failure(status: bytes) -> None:
    (event,) = GrpcResponse().headers((*HEAD, (b"grpc-status", status)), True)
    assert isinstance(event, Fail)
    assert event.code == "grpc_" + status.decode()
    assert grpc_framing.status_number(event.code[5:]) == 2


@given(st.binary(max_size=40))
def test_any_grpc_message_is_accepted(message: bytes) -> None:
    (event,) = GrpcResponse().headers((*HEAD, (b"grpc-status", b"2"), (b"grpc-message", message)), True)
    assert isinstance(event, Fail)
    assert event.code == "grpc_UNKNOWN"


def test_server_timing_may_be_in_several_trailers() -> None:
    trailers = (*OK, (b"server-timing", b"queue;dur=1"), (b"server-timing", b"compute;dur=2"))
    assert events_of(GrpcResponse(), [grpc_framing.framed(b"")], trailers) == [
        ServerTiming(1_000_000, 2_000_000),
        End(True),
    ]


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
def test_responses_that_are_not_grpc(headers: tuple[tuple[bytes, bytes], ...], end: bool, code: str) -> None:
    response = GrpcResponse()
    (event,) = response.headers(headers, end)
    assert isinstance(event, Fail)
    assert event.code == code
    assert response.status == int(headers[0][1])


@pytest.mark.parametrize("kind", [b"application/grpc+proto", b"application/grpc;charset=utf-8"])
def test_content_types_of_grpc(kind: bytes) -> None:
    assert GrpcResponse().headers(((b":status", b"200"), (b"content-type", kind)), False) == ()


@given(
    st.sampled_from([HEAD, (*HEAD, (b"grpc-encoding", b"gzip")), ((b":status", b"503"),), HEAD[:1]]),
    st.lists(
        st.tuples(st.sampled_from([b"", b"response", b"bad"]), st.sampled_from(["none", "gzip"])).map(
            lambda m: grpc_framing.framed(*m)
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
def test_complete_response_gives_the_same_events_as_its_parts(  # type: ignore[no-untyped-def]
    head: tuple[tuple[bytes, bytes], ...],
    body: bytes,
    trailers: tuple[tuple[bytes, bytes], ...],
    streamed: bool,
    check,
    keep: bool,
) -> None:
    parts, complete = (GrpcResponse(streamed, check, [] if keep else None) for _ in range(2))
    grpc._LastSuccess.head, grpc._LastSuccess.end = HEAD, OK  # as after a successful response
    expected = [*parts.headers(head, False), *parts.data(body, False), *parts.headers(trailers, True)]
    assert list(complete.complete(head, body, trailers)) == expected
    if expected in ([Tokens(1), End(True)], [End(True)]) and len(body) >= 5:
        assert (complete.status, complete.count, complete.trailers, complete.kept) == (200, 1, trailers, parts.kept)
