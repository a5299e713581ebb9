"""The command itself: help, version, what it imports, and how it ends."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from command import assert_one_line, cli

from inferometer import __version__, conduct
from inferometer.cli.main import COMMANDS, INTERNAL_ERROR

LIGHT = [name for name in COMMANDS if name != "serve"]
"""Commands whose help is instant, too."""
HEAVY = ("numpy", "pyarrow", "tokenizers", "rich", "uvloop", "msgspec", "yaml", "asyncio")


def test_the_version() -> None:
    assert cli("--version") == (0, f"inferometer, version {__version__}\n", "")


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_command_and_the_exit_statuses(flag: str) -> None:
    result = cli(flag)
    assert result.status == 0
    assert all(name in result.out for name in COMMANDS)
    assert "Exit status: 0" in result.out
    assert max(len(line) for line in result.out.splitlines()) <= 100


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = cli(name, "--help")
    assert result.status == 0
    assert result.out.startswith(f"Usage: inferometer {name}")
    assert "--help" in result.out
    assert [line for line in result.out.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], [], *([name, "--help"] for name in LIGHT)])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from inferometer.cli.main import entry; sys.argv = ['inferometer', *sys.argv[1:]]\n"
        "try: entry()\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("arguments", [["--nonsense"], ["run"], ["run", "x", "--rate", "fast"], ["report"]])
def test_a_wrong_command_line_has_no_traceback_and_exits_with_2(arguments: list[str]) -> None:
    result = cli(*arguments)
    assert result.status == 2
    assert "Error: " in result.err
    assert "Traceback" not in result.err
    assert result.out == ""


def test_an_unknown_command_names_the_nearest_or_all() -> None:
    assert_one_line(cli("rnu", "http://127.0.0.1:8000"), "no command 'rnu'", "inferometer run")
    assert_one_line(cli("xyzzy"), "no command 'xyzzy'", "calibrate")
    assert_one_line(cli("http://me:s3cret@a"), "no command before the URL", "inferometer run URL")


# --- internal errors -------------------------------------------------------------------------------------------------


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A command with a bug; returns the folder for temporary files."""

    def open_run(*_: object) -> None:
        raise ValueError("no such\nthing")

    monkeypatch.setattr(conduct, "open_run", open_run)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_bug_exits_with_3_and_names_the_file_with_the_traceback(broken: Path) -> None:
    result = cli("report", "x")
    (log,) = broken.glob("inferometer-*.log")
    assert result.status == INTERNAL_ERROR == 3
    first, second = result.err.splitlines()
    assert first == f"inferometer: internal error: ValueError: no such thing; the traceback is in {log}"
    assert second == "  next: this is a bug in inferometer: please report it with that file"
    assert "Traceback" in log.read_text() and "in open_run" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0, "only the user can read it"


def test_a_bug_when_the_log_cannot_be_written(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(broken / "none"))
    result = cli("report", "x")
    assert result.status == 3
    assert result.err.splitlines()[0] == "inferometer: internal error: ValueError: no such thing"


def test_debug_shows_the_traceback(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Traceback" not in cli("report", "x").err
    monkeypatch.setenv("INFEROMETER_DEBUG", "1")
    assert "Traceback" in cli("report", "x").err


def test_an_unexpected_operating_system_error_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_run(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(conduct, "open_run", open_run)
    assert cli("report", "x").status == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("calibrate", "--seconds", "0"), "--duration must be from 1s to 1m"),
        (("merge", "nowhere", "--output=x"), "there is no such folder"),
        (("run", "http://127.0.0.1:9", "--max-tokens", "1k"), "'1k' is not a valid integer"),
        (("merge", "nowhere", "--store=x"), "there is no such folder"),
        (("compare-protocols", "grpc://127.0.0.1:9", "--out", "x"), "not the URL of an HTTP port"),
    ],
)
def test_old_spellings_of_options_are_understood(arguments: tuple[str, ...], words: str) -> None:
    result = cli(*arguments)
    assert result.status == 2 and words in result.err and "No such option" not in result.err


def test_docs_prints_the_pages_that_messages_name() -> None:
    assert any(line.startswith("config  ") for line in cli("docs").out.splitlines())
    assert "## `server`" in cli("docs", "config").out
    assert_one_line(cli("docs", "confg"), "there is no page 'confg'", "did you mean config?")


# --- pipes and completion --------------------------------------------------------------------------------------------


def test_a_closed_pipe_is_not_an_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m inferometer serve --help | head -1", shell=True, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert done.stdout.startswith("Usage: ")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("r", {"plain,report", "plain,run", "plain,runs"}),
        ("run ben", {"file,ben"}),
        ("run bench.yaml --html ou", {"file,ou"}),
        ("report runs/LA", {"file,runs/LA"}),
        ("runs push runs/LA", {"file,runs/LA"}),
        ("run bench.yaml --keep te", {"plain,text"}),
    ],
)
def test_shell_completion_offers_commands_values_and_files(words: str, offered: set[str]) -> None:
    line = f"inferometer {words}"
    environment = {"_INFEROMETER_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = subprocess.run(
        [sys.executable, "-c", "from inferometer.cli.main import entry; entry()"],
        capture_output=True, text=True, check=False, env=os.environ | environment,
    )  # fmt: skip
    assert set(done.stdout.split()) == offered
