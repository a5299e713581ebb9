"""Parsing of base URLs."""

import pytest

from inferometer.errors import UserError
from inferometer.wire.target import parse


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "prefix", "authority"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, False, "", "127.0.0.1:8000"),
        ("http://a/", "a", 80, False, "", "a"),
        ("https://a/v1", "a", 443, True, "", "a"),
        ("https://a:1/x/v1/", "a", 1, True, "/x", "a:1"),
        ("http://[::1]:80", "::1", 80, False, "", "[::1]:80"),
    ],
)
def test_parts(url: str, host: str, port: int, tls: bool, prefix: str, authority: str) -> None:
    target = parse(url)
    assert (target.host, target.port, target.tls, target.prefix, target.authority) == (
        host,
        port,
        tls,
        prefix,
        authority,
    )


def test_white_space_around_a_pasted_url_is_left_out() -> None:
    assert parse(" http://a:8000\n") == parse("http://a:8000")


def test_the_url_of_an_endpoint_is_answered_with_the_base_url() -> None:
    for path, api in (("completions", ", with {server.api=completions}"), ("chat/completions", ""), ("models", "")):
        with pytest.raises(UserError) as caught:
            parse(f"https://me:s3cret@a/x/v1/{path}/")
        assert caught.value.remedy == f"write https://a/x{api}"


def test_credentials_become_a_header_and_leave_the_url() -> None:
    target = parse("http://me:s3cret@a:1")
    assert target.credentials == "Basic bWU6czNjcmV0"
    assert "s3cret" not in target.url


@pytest.mark.parametrize(
    "url", ["a:8000", "ftp://a", "http://", "http://a:port", "http://a?x=1", "http://me:s3cret@a:bad"]
)
def test_a_bad_url_is_one_clear_line_without_secrets(url: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(url)
    assert "server.url" in caught.value.line
    assert caught.value.remedy
    assert "s3cret" not in str(caught.value)
