"""Parsing HTTP requests, split in any way."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.wire import http1_requests
from inferometer.wire.http1_requests import Problem, Request, RequestParser


def request(path: str, body: bytes | None = None, **headers: str) -> bytes:
    """Return the bytes of a request: a POST if it has a body."""
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "Host: sim"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")


PLAIN = request("/v1/completions?x=1", b'{"prompt":"hi"}', X_Request_Id="abc", Authorization="Bearer k", Other="no")
CHUNKED = (
    b"POST /v1/completions HTTP/1.1\r\nHost: sim\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'7\r\n{"promp\r\n8\r\nt":"hi"}\r\n0\r\n\r\n'
)


def new_parser(max_head: int = 65_536, max_body: int = 1 << 30) -> RequestParser:
    return RequestParser(max_head, max_body)


def feed(*pieces: bytes, **limits: int) -> list[Request | Problem]:
    """Return what a connection gets that handles each request at once; nothing is read after a problem."""
    parser, found = new_parser(**limits), []
    for at, piece in enumerate(pieces):
        try:
            one = take(parser, piece, at)
            while one is not None:
                found.append(one)
                one = take(parser, b"", at)
        except Problem as problem:
            return [*found, problem]
    return found


def take(parser: RequestParser, data: bytes, arrived: int) -> Request | None:
    """Write into the parser's buffer where there is one, as a socket does."""
    if parser.room is None:
        return parser.feed(data, arrived)
    count = min(len(parser.room), len(data))
    parser.room[:count] = data[:count]
    parser.keep(data[count:], arrived)
    return parser.filled(count, arrived) if count else None


@pytest.mark.parametrize("data", [PLAIN, CHUNKED], ids=["sized", "chunked"])
def test_a_request_split_at_any_byte_is_parsed_and_arrives_with_its_last_byte(data: bytes):
    for at in range(1, len(data)):
        (found,) = feed(data[:at], data[at:])
        assert isinstance(found, Request)
        assert (found.method, found.path, bytes(found.body)) == (b"POST", b"/v1/completions", b'{"prompt":"hi"}')
        assert found.arrived == 1
        assert found.keep_alive


def test_a_request_byte_by_byte():
    (found,) = feed(*(bytes([byte]) for byte in PLAIN))
    assert isinstance(found, Request)
    assert found.arrived == len(PLAIN) - 1
    assert found.headers == {b"authorization": b"Bearer k", b"content-length": b"15"}
    assert found.id == b"abc"


def test_pipelined_requests_keep_their_order_at_any_split():
    data = PLAIN + request("/health") + CHUNKED
    for at in range(1, len(data)):
        assert [getattr(found, "path", None) for found in feed(data[:at], data[at:])] == [
            b"/v1/completions",
            b"/health",
            b"/v1/completions",
        ]


@pytest.mark.parametrize(
    ("data", "keep_alive", "http10"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", True, False),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", False, False),
        (b"GET / HTTP/1.0\r\n\r\n", False, True),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", False, True),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: x, Close\r\n\r\n", False, False),
    ],
)
def test_keep_alive_follows_version_and_header(data: bytes, keep_alive: bool, http10: bool):
    (found,) = feed(data)
    assert isinstance(found, Request)
    assert (found.keep_alive, found.http10) == (keep_alive, http10)


def test_an_upgrade_is_declined():
    upgrade = request("/health", Connection="Upgrade, HTTP2-Settings", Upgrade="h2c", HTTP2_Settings="AAMA")
    found = feed(upgrade + PLAIN)
    assert [getattr(one, "path", None) for one in found] == [b"/health", b"/v1/completions"]


def test_continue_is_wanted_until_the_body_arrives():
    parser = new_parser()
    head, body = request("/v1/completions", b"{}", Expect="100-continue").split(b"\r\n\r\n")
    assert parser.feed(head + b"\r\n\r\n", 0) is None
    assert parser.wants_continue
    assert take(parser, body, 1) is not None
    assert not parser.wants_continue


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"nonsense / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\n",
    ],
)
def test_invalid_http_is_a_problem(data: bytes):
    (problem,) = feed(data)
    assert isinstance(problem, Problem)
    assert problem.status == 400


def test_requests_before_a_problem_are_still_served():
    first, second = feed(PLAIN + b"\x00\x00\x00\r\n\r\n")
    assert isinstance(first, Request)
    assert isinstance(second, Problem)


def test_headers_too_long_are_431():
    pieces = [b"GET / HTTP/1.1\r\nX: "] + [b"a" * 10_000] * 8
    (problem,) = feed(*pieces)
    assert isinstance(problem, Problem)
    assert problem.status == 431


def test_headers_over_the_limit_are_431_even_if_complete():
    data = request("/health", X="a" * 1000)
    (problem,) = feed(data, max_head=1000)
    assert isinstance(problem, Problem)
    assert problem.status == 431
    assert isinstance(feed(data, max_head=2000)[0], Request)


def test_a_trailer_that_never_ends_is_431():
    start = CHUNKED.removesuffix(b"\r\n") + b"X: "
    (problem,) = feed(start, *[b"a" * 10_000] * 8)
    assert isinstance(problem, Problem)
    assert problem.status == 431


def test_trailers_are_not_headers():
    (found,) = feed(CHUNKED.removesuffix(b"\r\n") + b"Authorization: Bearer k\r\n\r\n")
    assert isinstance(found, Request)
    assert found.headers == {}


@pytest.mark.parametrize("data", [PLAIN, CHUNKED], ids=["sized", "chunked"])
@pytest.mark.parametrize("limit", [14, 15])
def test_a_body_over_the_limit_is_413_at_any_split(data: bytes, limit: int):
    for at in range(1, len(data)):
        (found,) = feed(data[:at], data[at:], max_body=limit)
        assert found.status == 413 if isinstance(found, Problem) else limit == 15


def test_a_body_is_in_one_buffer_of_its_length():
    size = 3_000_000
    head = request("/v1/completions", b"").replace(b"Content-Length: 0", b"Content-Length: %d" % size)
    parser = new_parser()
    assert parser.feed(head + b"a" * 100, 0) is None
    room = parser.room
    assert room is not None
    assert len(room) == size - 100
    room[:] = b"b" * len(room)
    found = parser.filled(len(room), 1)
    assert found is not None
    assert isinstance(found.body, memoryview)
    assert found.body.obj is room.obj
    assert (found.body[:100], found.body[100:101], len(found.body)) == (b"a" * 100, b"b", size)


def test_a_body_that_arrives_with_its_headers_is_not_copied():
    (found,) = feed(PLAIN)
    assert isinstance(found, Request)
    assert isinstance(found.body, bytes)


def test_an_announced_body_takes_no_memory():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before, parser = resident(), new_parser()
    assert parser.feed(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 500000000\r\n\r\n", 0) is None
    assert parser.room is not None and len(parser.room) == 500_000_000
    assert resident() - before < 50_000_000


@pytest.mark.parametrize(
    "lines",
    [
        "Content-Length: 3\r\nContent-Length: 3",
        "Content-Length: 3\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Content-Length: +3",
        "Content-Length: 3, 3",
        "Content-Length: -1",
        "Content-Length : 3",
        "Content-Length:\r\n 3",
        "X: a\nContent-Length: 3",
        "Transfer-Encoding: gzip",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, gzip",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding:",
    ],
)
def test_a_body_whose_size_is_not_clear_is_refused(lines: str):
    (problem,) = feed(f"POST /a HTTP/1.1\r\nHost: x\r\n{lines}\r\n\r\nabc".encode())
    assert isinstance(problem, Problem)
    assert problem.status == 400


@pytest.mark.parametrize(
    "chunks",
    [b"x\r\n", b"-1\r\n", b"\r\n", b"1\r\nab\r\n", b"3 3\r\nabc", b"3 \r\nabc", b"\v3\r\nabc", b"3;a\nb\r\nabc"],
)
def test_invalid_chunks_are_refused(chunks: bytes):
    (problem,) = feed(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
    assert isinstance(problem, Problem)
    assert problem.status == 400


@pytest.mark.parametrize("coding", ["chunked", "Chunked", " chunked "])
def test_chunked_is_accepted_in_any_spelling(coding: str):
    (found,) = feed(f"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:{coding}\r\n\r\n3\r\nabc\r\n0\r\n\r\n".encode())
    assert isinstance(found, Request)
    assert bytes(found.body) == b"abc"


REFUSED_UPGRADES = {
    "an unknown Transfer-Encoding": (400, "Transfer-Encoding: gzip\r\n\r\n"),
    "an unknown Transfer-Encoding in chunks": (400, "Transfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
    "a head over the limit": (431, f"X: {'a' * 200}\r\n\r\n"),
    "a body over the limit": (413, f"Content-Length: 200\r\n\r\n{'a' * 200}"),
    "chunks over the limit": (413, f"Transfer-Encoding: chunked\r\n\r\nc8\r\n{'a' * 200}\r\n0\r\n\r\n"),
}


@pytest.mark.parametrize("case", REFUSED_UPGRADES)
@pytest.mark.parametrize(
    "before", [b"", b"GET /first HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n"]
)
def test_a_problem_is_reported_once_at_any_split(before: bytes, case: str):
    status, rest = REFUSED_UPGRADES[case]
    data = before + f"POST /second HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n{rest}".encode()
    for at in range(len(data)):
        *first, problem = feed(data[:at], data[at:] + PLAIN, max_head=200, max_body=150)
        assert [getattr(one, "path", None) for one in first] == ([b"/first"] if before else [])
        assert isinstance(problem, Problem)
        assert problem.status == status


BODIES = {
    "sized": b"Content-Length: 15\r\n\r\n" + b'{"prompt":"hi"}',
    "chunked": CHUNKED[CHUNKED.index(b"Transfer-Encoding") :],
    "chunked, with nothing in it": b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("body", BODIES)
def test_a_body_after_an_upgrade_belongs_to_the_request(body: str):
    one = b"POST /v2 HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nX-Request-Id: abc\r\n" + BODIES[body]
    data = one + one + PLAIN
    for at in range(len(data)):
        *upgraded, last = feed(data[:at], data[at:])
        assert len(upgraded) == 2
        for found in upgraded:
            assert isinstance(found, Request)
            assert (found.path, found.id) == (b"/v2", b"abc")
            assert bytes(found.body) == (b"" if "nothing" in body else b'{"prompt":"hi"}')
        assert isinstance(last, Request)
        assert (last.path, bytes(last.body)) == (b"/v1/completions", b'{"prompt":"hi"}')


# --- headers that were parsed before ---------------------------------------------------------------------------------

HEADS = (
    b"POST /a HTTP/1.1\r\nHost: x\r\nX-Request-Id: %b\r\nContent-Type: x\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /a?q HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nX-Request-Id: %b\r\n\r\nabc",
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nx-request-id: %b\r\n\r\nabc",
    b"POST /a HTTP/1.1\r\nHost: x\r\nX-Request-Id: %b\r\nX-Request-Id: a\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /a HTTP/1.1\r\nHost: x\r\nX-Request-Id: %b\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /a HTTP/1.0\r\nX-Request-Id: %b\r\nContent-Length: 3\r\n\r\nabc",
    b"POST /%b HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\r\nContent-Length: 3\r\n\r\nabc",
)
IDS = st.sampled_from([b"a", b"b-1", b"a" * 200, b"a b", b"a\tb", b"\xe9", b"a\rb", b"a\nb", b"a\0b", b"", b'"'])


def shape(found: list[Request | Problem]) -> list[tuple[object, ...]]:
    return [
        (one.status, one.message)
        if isinstance(one, Problem)
        else (one.method, one.path, one.headers.items(), bytes(one.body), one.keep_alive, one.http10, one.id)
        for one in found
    ]


@given(st.lists(st.tuples(st.sampled_from(HEADS), IDS), max_size=8))
@settings(max_examples=200, deadline=None)
def test_headers_that_were_parsed_before_give_the_same_result(pieces: list[tuple[bytes, bytes]]):
    for head, name in pieces:
        data = head % name
        found = shape(feed(data))
        http1_requests._known.clear()
        assert found == shape(feed(data))
