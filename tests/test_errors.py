"""Errors that a user can fix: how they are shown, by which names, and across processes."""

import pickle

import pytest

from inferometer.errors import UserError, named


def test_the_key_and_the_source_come_first_and_the_remedy_names_settings() -> None:
    error = UserError("must be more than 0", "see {load.duration}", key="load.rate", source="bench.yaml")
    assert error.line == "bench.yaml: load.rate: must be more than 0"
    assert error.next_step == "see load.duration"
    assert str(error) == "bench.yaml: load.rate: must be more than 0 (see load.duration)"


def test_a_command_shows_its_own_names() -> None:
    with pytest.raises(UserError) as caught, named({"server.api": "--api", "server.url": "URL"}):
        raise UserError("unknown", "check {server.url} and {server.model}", key="server.api")
    assert caught.value.line == "--api: unknown"
    assert caught.value.next_step == "check URL and server.model"


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


def test_braces_that_are_not_keys_stay() -> None:
    assert UserError("x", 'write {"a": 1} or {b.c}').next_step == 'write {"a": 1} or {b.c}'


def test_an_error_survives_being_sent_to_another_process() -> None:
    error = UserError("bad", "fix {server.url}", key="server.url", source="bench.yaml")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
