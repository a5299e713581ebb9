"""HTTP requests, however the bytes come."""

import pytest
from raw_client import request

from inferometer.serve.http import parse
from inferometer.serve.http.parse import Problem, Request, RequestParser

PLAIN = request("/v1/completions?x=1", b'{"prompt":"hi"}', X_Request_Id="abc", Authorization="Bearer k", Other="no")
CHUNKED = (
    b"POST /v1/completions HTTP/1.1\r\nHost: sim\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'7\r\n{"promp\r\n8\r\nt":"hi"}\r\n0\r\n\r\n'
)


def feed(*pieces: bytes) -> list[Request | Problem]:
    parser = RequestParser()
    return [found for at, piece in enumerate(pieces) for found in parser.feed(piece, at)]


@pytest.mark.parametrize("data", [PLAIN, CHUNKED], ids=["sized", "chunked"])
def test_a_request_cut_at_any_byte_is_the_same_and_arrived_with_its_last(data: bytes):
    for at in range(1, len(data)):
        (found,) = feed(data[:at], data[at:])
        assert isinstance(found, Request)
        assert (found.method, found.path, found.body) == (b"POST", b"/v1/completions", b'{"prompt":"hi"}')
        assert found.arrived == 1
        assert found.keep_alive


def test_a_request_byte_by_byte():
    (found,) = feed(*(bytes([byte]) for byte in PLAIN))
    assert isinstance(found, Request)
    assert found.arrived == len(PLAIN) - 1
    assert found.headers == {b"x-request-id": b"abc", b"authorization": b"Bearer k", b"content-length": b"15"}


def test_pipelined_requests_come_in_their_order_at_any_cut():
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
        (b"GET / HTTP/1.1\r\n\r\n", True, False),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", False, False),
        (b"GET / HTTP/1.0\r\n\r\n", False, True),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True, True),
    ],
)
def test_keep_alive_is_as_the_version_and_the_header_say(data: bytes, keep_alive: bool, http10: bool):
    (found,) = feed(data)
    assert isinstance(found, Request)
    assert (found.keep_alive, found.http10) == (keep_alive, http10)


def test_an_upgrade_is_declined_by_going_on_in_http11():
    upgrade = request("/health", Connection="Upgrade, HTTP2-Settings", Upgrade="h2c", HTTP2_Settings="AAMA")
    found = feed(upgrade + PLAIN)
    assert [getattr(one, "path", None) for one in found] == [b"/health", b"/v1/completions"]


def test_expect_continue_is_asked_for_until_the_body_is_there():
    parser = RequestParser()
    head, body = request("/v1/completions", b"{}", Expect="100-continue").split(b"\r\n\r\n")
    assert parser.feed(head + b"\r\n\r\n", 0) == []
    assert parser.wants_continue
    assert len(parser.feed(body, 1)) == 1
    assert not parser.wants_continue


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01", b"NONSENSE / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n"]
)
def test_what_is_not_http_is_a_problem_and_nothing_more_is_read(data: bytes):
    parser = RequestParser()
    (problem,) = parser.feed(data, 0)
    assert isinstance(problem, Problem)
    assert problem.status == 400
    assert parser.feed(PLAIN, 1) == []


def test_requests_before_a_problem_are_still_served():
    first, second = feed(PLAIN + b"\x00\x00\x00\r\n\r\n")
    assert isinstance(first, Request)
    assert isinstance(second, Problem)


def test_a_head_too_long_is_431():
    pieces = [b"GET / HTTP/1.1\r\nX: "] + [b"a" * 10_000] * 8
    (problem,) = feed(*pieces)
    assert isinstance(problem, Problem)
    assert problem.status == 431


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_too_long_is_413_before_it_is_kept(monkeypatch: pytest.MonkeyPatch, chunked: bool):
    monkeypatch.setattr(parse, "MAX_BODY", 10)
    data = CHUNKED if chunked else PLAIN
    (problem,) = feed(data)
    assert isinstance(problem, Problem)
    assert problem.status == 413
