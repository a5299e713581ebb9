"""Errors that a user can fix: how they are shown, by which names, and across processes."""

import pickle

import pytest

from inferometer.errors import ANY_KEY, UserError, named


def test_the_key_and_the_source_come_first_and_the_remedy_names_settings() -> None:
    error = UserError("must be more than 0", "see {load.duration}", key="load.rate", source="bench.yaml")
    assert error.line == "bench.yaml: load.rate: must be more than 0"
    assert error.next_step == "see load.duration"
    assert str(error) == "bench.yaml: load.rate: must be more than 0 (see load.duration)"


def test_a_command_shows_its_own_names() -> None:
    with pytest.raises(UserError) as caught, named({"server.api": "--api", "server.url": "URL"}):
        raise UserError(
            "unknown", "check {server.url} and {server.model}, or use {server.api=kserve}", key="server.api"
        )
    assert caught.value.line == "--api: unknown"
    assert caught.value.next_step == "check URL and server.model, or use --api kserve"


@pytest.mark.parametrize(
    ("names", "shown"), [({}, "server.api: kserve"), ({ANY_KEY: "--set"}, "--set server.api=kserve")]
)
def test_a_value_of_a_setting_without_a_name_is_shown_as_the_user_writes_it(names: dict[str, str], shown: str) -> None:
    with pytest.raises(UserError) as caught, named(names):
        raise UserError("unknown", "use {server.api=kserve}")
    assert caught.value.next_step == f"use {shown}"


def test_the_source_is_added_to_errors_about_a_setting_only() -> None:
    for key, line in (("server.url", "bench.yaml: server.url: bad"), ("", "bad")):
        with pytest.raises(UserError) as caught, named(source="bench.yaml"):
            raise UserError("bad", key=key)
        assert caught.value.line == line


def test_the_innermost_source_and_the_outermost_fallback_count() -> None:
    with (
        pytest.raises(UserError) as caught,
        named(source="outer", fallback="see --help"),
        named(source="inner", fallback="see the docs"),
    ):
        raise UserError("bad", key="seed")
    assert (caught.value.line, caught.value.next_step) == ("inner: seed: bad", "see --help")


def test_what_a_server_wrote_cannot_control_the_terminal() -> None:
    error = UserError("it said \x1b]0;title\x07\x9b2J\u202e and\r\xa0this\n\tand \u732b", "see \x1b[2J")
    assert error.line == "it said \ufffd]0;title\ufffd\ufffd2J\ufffd and  this\n\tand \u732b"
    assert error.next_step == "see \ufffd[2J"


def test_braces_that_are_not_keys_stay() -> None:
    assert UserError("x", 'write {"a": 1} or {b.c}').next_step == 'write {"a": 1} or {b.c}'


def test_an_error_survives_being_sent_to_another_process() -> None:
    error = UserError("bad", "fix {server.url}", key="server.url", source="bench.yaml")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
