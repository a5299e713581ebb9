"""Traffic classes in the config: each is checked as if it were alone, and the error names the class."""

from typing import Any

import pytest

from inferometer.config import Config, from_mapping
from inferometer.config.secret import words
from inferometer.errors import UserError
from inferometer.manifest import redacted

TEXT = {"type": "prompts", "prompts": ["a"]}
ZEROS = {"type": "tensors", "fill": "zeros"}


def config(*classes: dict[str, Any], url: str = "http://x", **server: object) -> Config:
    each = [{"name": f"c{number}", "data": TEXT} | class_ for number, class_ in enumerate(classes)]
    return from_mapping({"server": {"url": url} | server, "data": {"type": "mix", "classes": each}})


WRONG: dict[str, tuple[tuple[dict[str, Any], ...], dict[str, Any], str, str]] = {
    "no classes": ((), {}, "data.classes", ""),
    "the same name twice": (({"name": "a"}, {"name": "a"}), {}, "data.classes.1.name", "another class"),
    "a weight of 0": (({"weight": 0},), {}, "data.classes.0.weight", ""),
    "a header with a line break": (({}, {"headers": {"a": "b\nc"}}), {}, "data.classes.1.headers", "valid header"),
    "tensors for chat": (({}, {"data": ZEROS}), {}, "data.classes.1.data.type", "does not go with chat"),
    "a mix in a mix": (({"data": {"type": "mix", "classes": []}},), {}, "data.classes.0.data", ""),
    "a model for generate": (({"model": "m"},), {"api": "generate"}, "data.classes.0.model", "one model"),
    "a model for KServe": (({"model": "m", "data": ZEROS},), {"api": "kserve"}, "data.classes.0.model", "one model"),
    "sequences": (({"data": ZEROS | {"sequence": 2}},), {"api": "kserve"}, "data.classes.0.data.sequence", "sequences"),
    "shared memory": (({"data": ZEROS},), {"api": "kserve", "shared_memory": True}, "server.shared_memory", "mix"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_error_names_the_class(name: str) -> None:
    classes, server, key, what = WRONG[name]
    with pytest.raises(UserError) as caught:
        config(*classes, **server)
    assert key in caught.value.line and what in caught.value.line
    assert caught.value.next_step


def test_a_model_per_class_is_part_of_the_message_over_grpc() -> None:
    config({"model": "m", "data": ZEROS}, url="grpc://x")


def test_the_secrets_of_a_class_are_neither_stored_nor_shown() -> None:
    made = config({"headers": {"X-Api-Key": "s3cret", "X-Tier": "free"}, "body": {"token": "t0ken", "priority": 1}})
    stored = str(redacted(made, "m"))
    assert "s3cret" not in stored and "t0ken" not in stored and "free" not in stored and "X-Tier" in stored
    assert "priority" in stored
    assert set(words(made.server, {}, made.data)) == {"s3cret", "t0ken"}
