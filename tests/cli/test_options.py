"""The table of options: what holds for every row, and how options are read and put over a config."""

from typing import Any

import click
import pytest
from command import assert_one_line, cli

from inferometer import options
from inferometer.cli.main import main
from inferometer.cli.options import flag
from inferometer.config.grid import grid_from_mapping
from inferometer.errors import UserError
from inferometer.options import TABLE, Option

ROWS = [row for rows in TABLE.values() for row in rows]
COMMANDS = sorted({name for row in ROWS for name in row.commands.split()})
NOWHERE = "http://127.0.0.1:9"


# --- every row -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_its_rows(command: str) -> None:
    made = main.get_command(click.Context(main), command)
    assert made is not None
    found = {name: each for each in made.params for name in each.opts}
    for row in options.rows_of(command).values():
        for name in row.flags:
            assert isinstance(one := found[name], click.Option)
            assert (one.help or "").startswith(row.help_for(command)) and one.hidden == (not row.help)
    assert len(found) == len([name for each in made.params for name in each.opts]), "a name is there twice"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_an_option_by_one_row(command: str) -> None:
    names = [row.name for row in ROWS if command in row.commands.split()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("row", [row for row in ROWS if row.becomes], ids=lambda row: row.name)
def test_a_former_spelling_stands_for_another_option_of_its_commands(row: Option) -> None:
    for command in row.commands.split():
        assert row.becomes in options.rows_of(command)


VALUES = {
    "api_key_env": "HOME",
    "image": "x.png",
    "crop": "8:8",
    "slo": "ttft.p99 < 1s",
    "abort_on": "e2e > 60s",
    "observe": "http://127.0.0.1:1/metrics",
    "otlp": "http://127.0.0.1:1",
    "percentiles": "50,75",
    "header": "X-Team: ours",
    "fleet": "ray://10.0.0.5:6379",
    "price_per_hour": "2.5/gpu",
    "duration": "5s",
}
"""Values for the options that do not take any text or number."""


@pytest.mark.parametrize("name", [name for name, row in options.rows_of("run").items() if row.key])
def test_a_row_sets_a_key_that_the_config_has(name: str) -> None:
    """The keys of the rows are those of the schema, and their values are what it takes."""
    row = options.rows_of("run")[name]
    text = VALUES.get(name, row.type[-1] if isinstance(row.type, tuple) else "7")
    value = options.read(
        row, text if row.type is str else row.type(text) if not isinstance(row.type, tuple) else text, name
    )
    tree: dict[str, Any] = {"server": {"url": NOWHERE}}
    needed = {"image": "x.png"} if name in ("scaling", "crop") else {}
    keys = options.put(tree, "run", {name: value} | needed, flag)
    assert row.key in keys
    grid_from_mapping(tree)


# --- values, and options that exclude each other ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "name", "value", "words"),
    [
        ("run", "rate", "many", "'many' is neither a number nor a range"),
        ("run", "concurrency", "1.5", "'1.5' is neither a whole number nor a range"),
        ("run", "header", "X-Team ours", "--header: not of the form NAME:VALUE"),
        ("run", "price_per_hour", "0", "--price-per-hour 0: must be more than 0 (write --price-per-hour 12.5"),
        ("run", "price_per_hour", "-3", "must be more than 0"),
        ("run", "price_per_hour", "inf", "must be more than 0"),
        ("run", "price_per_hour", "cheap", "'cheap' is not a number"),
        ("run", "price_per_hour", "3/day", "per server or per GPU, not per day"),
        ("run", "gpus", 0, "--gpus 0: must be at least 1"),
        ("run", "cheapest_at", 0.0, "--cheapest-at 0: must be more than 0"),
        ("run", "percentiles", "50,x", "--percentiles 50,x"),
        *(("run", "fleet", text, "ray://HOST:PORT") for text in ("dask", "ray://", "local://x", "http://10.0.0.5")),
        ("capacity", "budget", "soon", "--budget: expected a duration"),
        ("capacity", "budget", "1s", "--budget must be at least 10 s (got 1s)"),
        ("capacity", "precision", "0", "--precision must be more than 0"),
        ("capacity", "precision", "narrow", "--precision: expected a share such as 5%"),
        ("capacity", "start", -3.0, "--start must be more than 0 (got -3)"),
        ("capacity", "at_least", 0.0, "--at-least must be more than 0 (got 0)"),
        ("ab", "start_timeout", "soon", "--start-timeout: "),
    ],
)  # fmt: skip
def test_a_value_that_is_not_right_is_refused(command: str, name: str, value: Any, words: str) -> None:
    with pytest.raises((UserError, ValueError)) as caught:
        options.read(options.rows_of(command)[name], value, flag(name))
    assert words in str(caught.value)


GRPC = {"server": {"url": "grpc://127.0.0.1:1"}}


@pytest.mark.parametrize(
    ("tree", "given", "words"),
    [
        ({}, {"rate": 5.0, "concurrency": 2}, "--rate (open loop) and --concurrency (closed loop) exclude each other"),
        ({}, {"input_tokens": 5, "prompt": ["x"]}, "--input-tokens and --prompt: a given prompt already has its length"),
        ({}, {"image": "x.png", "prompt": ["x"]}, "--prompt and --image exclude each other"),
        ({}, {"scaling": "unit"}, "--scaling needs --image"),
        (GRPC, {"output_tokens": 5}, "--input-tokens and --output-tokens are tokens of prompts"),
        ({"load": {"stages": []}}, {"duration": "5s"}, "--duration and --requests: the file has several stages"),
    ],
)  # fmt: skip
def test_options_that_exclude_each_other(tree: dict[str, Any], given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        options.put(tree, "run", given, flag)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("tree", "given", "expected"),
    [
        ({}, {"rate": 5.0}, {"load": {"type": "poisson", "rate": 5.0, "duration": "30s"}}),
        ({"load": {"requests": 9, "drain": True}}, {"concurrency": 2}, {"load": {"type": "closed", "concurrency": 2, "requests": 9}}),
        ({"load": {"stable": "5%"}}, {"rate": 5.0}, {"load": {"type": "poisson", "rate": 5.0, "stable": "5%"}}),
        ({"load": {"requests": 9}}, {"duration": "5s"}, {"load": {"duration": "5s"}}),
        ({"data": {"type": "jsonl"}}, {"prompt": ["x"]}, {"data": {"type": "prompts", "prompts": ["x"]}}),
        ({"server": {"headers": {"A": "1"}}}, {"header": {"B": "2"}}, {"server": {"headers": {"A": "1", "B": "2"}}}),
        ({"fleet": {"labels": 5}}, {"fleet": {"type": "local"}}, {"fleet": {"type": "local"}}),
        ({"fleet": {"labels": 5}}, {"fleet": {"type": "ray"}}, {"fleet": {"type": "ray", "labels": 5}}),
        ({"fleet": {"labels": 5}}, {"rate": None, "slo": []}, {"fleet": {"labels": 5}}),
    ],
)  # fmt: skip
def test_options_are_put_over_a_config(tree: dict[str, Any], given: dict[str, Any], expected: dict[str, Any]) -> None:
    options.put(tree, "run", given, flag)
    assert tree == expected


# --- --output and --output-tokens ------------------------------------------------------------------------------------


def settled(monkeypatch: pytest.MonkeyPatch, command: str, *arguments: str) -> dict[str, Any]:
    """What a command is given."""
    found: dict[str, Any] = {}

    def put(tree: object, command: str, given: dict[str, Any], *_: Any) -> list[str]:
        found.update(given)
        raise UserError("enough")

    monkeypatch.setattr(options, "put", put)
    assert "enough" in cli(command, *arguments).err
    return found


@pytest.mark.parametrize(
    "where",
    [("run", NOWHERE), ("ab", NOWHERE, NOWHERE), ("capacity", NOWHERE), ("engines",)],
    ids=lambda where: where[0],
)
@pytest.mark.parametrize(
    ("given", "tokens", "place"),
    [
        (("--output-tokens", "16"), 16, None),
        (("--output", "16"), 16, None),
        (("--output=16", "--output", "parts"), 16, "parts"),
        (("--output-tokens", "16", "--output", "s3://bucket/x"), 16, "s3://bucket/x"),
        (("--output", "a", "--output", "./16"), None, "./16"),
    ],
    ids=["tokens", "bare", "both by output", "tokens and place", "place"],
)
def test_output_is_a_place_and_a_bare_number_means_tokens(
    where: tuple[str, ...],
    given: tuple[str, ...],
    tokens: int | None,
    place: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = settled(monkeypatch, *where, *given)
    assert (found["output_tokens"], found["output"]) == (tokens, place)


def test_former_spellings_mean_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settled(monkeypatch, "run", NOWHERE, "--max-tokens", "5", "--store", "100", "--input", "7")
    assert (found["output_tokens"], found["output"], found["input_tokens"]) == (5, "100", 7)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--output", "1k"), ("--output 1k is not a whole number of tokens", "a folder is --output ./1k")),
        (("--output", "16", "--output-tokens", "8"), ("--output 16 and --output-tokens are both a number of tokens",)),
    ],
)
def test_an_output_that_is_not_clear_is_one_line(given: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert_one_line(cli("run", NOWHERE, *given), *words)
