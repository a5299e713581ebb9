"""From the text of a script to words, and from words to the values of options."""

import pytest

from inferometer.compat.command_line import VARIABLE, Option, parse, split
from inferometer.errors import UserError

TABLE = (
    Option("--rate -r", float, 1.0),
    Option("--rate-range"),
    Option("--names", takes="values"),
    Option("--shape", repeats=True),
    Option("--loud", takes="flag", no_effect="it is always loud"),
    Option("--gpu", refused="there is no GPU", instead="buy one"),
    Option("--mode", choices=("a", "b")),
)


def words(text: str) -> list[list[str]]:
    return [command.words for command in split(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b", [["a", "b"]]),
        ("a \\\n  b\\\r\n c", [["a", "b", "c"]]),
        ('a \'{"x": 1}\' "b \\"c\\"" d\\ e \'\'', [["a", '{"x": 1}', 'b "c"', "d e", ""]]),
        ("#!/bin/sh\n# it's\na b#c # d\ne", [["a", "b#c"], ["e"]]),
        ("a; b && c | d", [["a"], ["b"], ["c"], ["d"]]),
        ("a '$x' \\$y", [["a", "$x", "$y"]]),
        ('a $x "$y"', [["a", f"{VARIABLE}x", f"{VARIABLE}y"]]),
    ],
)
def test_script_is_split_as_a_shell_does(text: str, expected: list[list[str]]) -> None:
    assert words(text) == expected


def test_quote_that_is_not_closed_is_an_error() -> None:
    with pytest.raises(UserError, match="not closed"):
        split("a 'b")


def test_variables_of_the_script_are_expanded() -> None:
    (command,) = split('export A=1\nB="2 3"\nC=4 tool $A ${B} "$C"')
    assert command.words == ["tool", "1", "2 3", f"{VARIABLE}C"]
    assert command.variables == {"A": "1", "B": "2 3", "C": "4"}


def test_secrets_of_the_script_are_not_expanded() -> None:
    (command,) = split("API_KEY=sk-1; tool $API_KEY")
    assert command.words == ["tool", f"{VARIABLE}API_KEY"]


def test_values_are_read_by_the_table() -> None:
    given = parse("tool", TABLE, ["--rate=2", "--names", "a", "b", "--shape", "x", "--shape", "y", "-r3"])
    assert (given["--rate"], given["--names"], given["--shape"], given["--mode"]) == (3.0, ["a", "b"], ["x", "y"], None)


def test_defaults_are_those_of_the_tool() -> None:
    given = parse("tool", TABLE, [])
    assert given["--rate"] == 1.0
    assert "--rate" not in given


def test_long_option_may_be_shortened_and_have_underscores() -> None:
    assert parse("tool", TABLE, ["--rate_range", "1:2"])["--rate-range"] == "1:2"
    assert parse("tool", TABLE, ["--sha", "x"])["--shape"] == ["x"]


def test_option_without_effect_is_noted() -> None:
    assert parse("tool", TABLE, ["--loud"]).notes == ["--loud has no effect here: it is always loud."]


@pytest.mark.parametrize(
    ("line", "what", "remedy"),
    [
        ("--gpu", "tool: --gpu: there is no GPU", "buy one"),
        ("--rat 1", "there is no option --rat", "--rate or --rate-range"),
        ("--shpe x", "there is no option --shpe", "did you mean --shape?"),
        ("--rate fast", "--rate must be a number (got 'fast')", ""),
        ("--rate", "--rate needs a value", ""),
        ("--mode c", "--mode must be one of a, b (got 'c')", ""),
        ("stray", "'stray' is not an option", ""),
        (f"--shape {VARIABLE}X", "--shape $X: the value of the variable is not known here", ""),
    ],
)
def test_bad_option_is_named(line: str, what: str, remedy: str) -> None:
    with pytest.raises(UserError) as raised:
        parse("tool", TABLE, line.split())
    assert what in raised.value.line
    assert remedy in raised.value.next_step
