"""Runs the command line in tests: `cli(...)` in this process, `start(...)` in a process of its own."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from inferometer.cli.main import entry

LENIENT = {
    "client.processes": 0,
    "client.probe": "false",
    "observe.prometheus": "[]",
    "limits": "{lag: 1h, cpu: 1, stalls: 1, effect_least: 1h, concurrency: 0, rate: 0}",
}
"""Settings that make a small run quick, and VALID however busy the machine is. A limit on the share of a percentile is not enough:
a client that reads two chunks together changes a time between tokens from nothing to something, which is an infinite share."""


class Result(NamedTuple):
    status: int
    out: str
    err: str


def cli(*arguments: str | Path) -> Result:
    """Run `inferometer ARGUMENTS` as the console script does. An exception other than a clean exit fails the test."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    command = ["inferometer", *(str(argument) for argument in arguments)]
    status = 0
    with mock.patch.object(sys, "argv", command), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            entry()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return Result(status, *(stream.buffer.getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]


def start(*arguments: str | Path, cwd: Path, **environment: str) -> "subprocess.Popen[str]":
    """Start the same in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "inferometer", *(str(argument) for argument in arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=os.environ | environment,
    )


def options(settings: Mapping[str, object]) -> list[str]:
    """The options that change these settings."""
    return [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]


def assert_one_line(result: Result, *words: str) -> None:
    """Check the output for bad input: a line with the problem, a line with the next step, status 2, empty standard output.

    The warning of a key on the command line may come before them.
    """
    lines = [line for line in result.err.splitlines() if not line.startswith("inferometer: warning: the key in ")]
    assert result.status == 2, result
    assert result.out == ""
    assert len(lines) == 2, result.err
    assert lines[0].startswith("inferometer: ")
    assert lines[1].startswith("  next: ")
    for word in words:
        assert word in result.err, (word, result.err)
