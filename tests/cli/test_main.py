"""The command itself: help, version, how fast it is there, and how it ends."""

import subprocess
import sys

import pytest
from command import assert_one_line, cli

from inferometer import __version__
from inferometer.cli.main import VERBS

HEAVY = ("numpy", "pyarrow", "tokenizers", "rich", "uvloop", "msgspec", "yaml", "asyncio")


def test_the_version() -> None:
    assert cli("--version") == (0, f"inferometer, version {__version__}\n", "")


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_verb_and_the_exit_statuses(flag: str) -> None:
    said = cli(flag)
    assert said.status == 0
    assert all(verb in said.out for verb in VERBS)
    assert "Exit status: 0" in said.out
    assert max(len(line) for line in said.out.splitlines()) <= 100


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_its_help(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = cli(verb, "--help")
    assert said.status == 0
    assert said.out.startswith(f"Usage: inferometer {verb}")
    assert "--help" in said.out
    assert [line for line in said.out.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from inferometer.cli.main import entry; sys.argv = ['inferometer', *sys.argv[1:]]\n"
        "try: entry()\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("arguments", [["--nonsense"], ["run"], ["run", "x", "--rate", "fast"], ["report"]])
def test_a_wrong_command_line_is_said_without_a_traceback_and_exits_with_2(arguments: list[str]) -> None:
    said = cli(*arguments)
    assert said.status == 2
    assert "Error: " in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


def test_an_unknown_command_names_the_nearest_or_all() -> None:
    assert_one_line(cli("rnu", "http://127.0.0.1:8000"), "no command 'rnu'", "inferometer run")
    assert_one_line(cli("xyzzy"), "no command 'xyzzy'", "calibrate")


def test_a_reader_that_goes_away_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m inferometer serve --help | head -1", shell=True, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert done.stdout.startswith("Usage: ")
    assert done.stderr == ""


def test_shell_completion_offers_the_verbs() -> None:
    environment = {"_INFEROMETER_COMPLETE": "bash_complete", "COMP_WORDS": "inferometer r", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "from inferometer.cli.main import entry; entry()"],
        capture_output=True, text=True, check=False, env={"PATH": "/usr/bin"} | environment,
    )  # fmt: skip
    assert {line.rpartition(",")[2] for line in done.stdout.splitlines()} == {"run", "report"}
