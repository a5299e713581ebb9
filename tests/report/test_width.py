"""The width of reports: 100 columns in a pipe; in a terminal its width, up to 100."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest
import synthetic_run as made

from inferometer import store
from inferometer.analysis.summary import summarise
from inferometer.infer import show
from inferometer.infer.result import ClassScore, InputTensor, Response, Result, ServerSide, TextOutput
from inferometer.probe.roundtrip import Instants
from inferometer.report import console
from inferometer.report.width import NARROWEST, WIDTH
from inferometer.tensors import from_numpy
from inferometer.types import Usage

MS = 1_000_000
INSTANTS = Instants(
    connect_from=1000 * MS, connected=1001 * MS, written=1003 * MS, first_byte=1013 * MS, done=2020 * MS,
    bytes_out=2048, bytes_in=100, by_kernel=False,
)  # fmt: skip


def in_terminal(columns: int, *arguments: str | Path) -> str:
    """What `python ARGUMENTS` prints to a terminal with this many columns, without colours."""
    parent, child = pty.openpty()
    try:
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = os.environ | {"TERM": "xterm", "NO_COLOR": "1", "PYTHONUTF8": "1"}
        command = [sys.executable, *map(str, arguments)]
        process = subprocess.Popen(command, stdout=child, env=environment)
        os.close(child)
        printed = b""
        while True:
            try:
                piece = os.read(parent, 65536)
            except OSError:  # how a terminal says that its other end is closed
                break
            if not piece:
                break
            printed += piece
        process.wait(timeout=30)
    finally:
        os.close(parent)
    return printed.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("columns", "found"), [(0, WIDTH), (20, NARROWEST), (80, 80), (99, 99), (100, WIDTH), (200, WIDTH)]
)
def test_a_terminal_sets_the_width(columns: int, found: int) -> None:
    assert in_terminal(columns, "-c", "from inferometer.report.width import columns; print(columns())") == f"{found}\n"


def test_without_a_terminal_it_is_100() -> None:
    command = [sys.executable, "-c", "from inferometer.report.width import columns; print(columns())"]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"COLUMNS": "80"}, text=True, check=True)
    assert done.stdout == f"{WIDTH}\n"


@pytest.mark.slow
def test_the_report_fits_the_terminal_and_is_100_wide_in_a_pipe(tmp_path: Path) -> None:
    rows, chunks = made.open_rows()
    run = made.run(rows, chunks, plan=(made.OPEN,))
    store.write(tmp_path, run.manifest, run.records, run.chunks())
    stored = store.read(tmp_path)
    report = ("-m", "inferometer", "report", tmp_path)
    assert in_terminal(80, *report) == console.render(stored, summarise(stored), width=80)
    piped = subprocess.run([sys.executable, *map(str, report)], capture_output=True, check=False).stdout.decode()
    assert piped == in_terminal(120, *report) == console.render(stored, summarise(stored))


# --- a single request ------------------------------------------------------------------------------------------------


def result(**parts: object) -> Result:
    kind = "text" if "output" in parts else "tensors"
    url = "grpc://a-server.example:8001"
    return Result(kind, url, "KServe v2 over gRPC, streamed", "a-model-of-mine", "2", INSTANTS, **parts)  # type: ignore[arg-type]


def tensors() -> Result:
    scores = from_numpy("SCORES", np.zeros((1, 9), np.float32))
    numbers = from_numpy("NUMBERS", np.linspace(0, 1, 64, dtype=np.float32))
    classes = {"SCORES": ((ClassScore(0.5, 1, "a very long label " * 9), ClassScore(0.25, 2)),)}
    inputs = (InputTensor(numbers, "made up, " * 20),)
    spent = ServerSide(2 * MS, 5 * MS, "its statistics", 3)
    return result(inputs=inputs, responses=(Response(15 * MS, (scores, numbers), classes),), server=spent)


def text() -> Result:
    output = TextOutput(
        "one two", ((400 * MS, 1), (600 * MS, 1), (1000 * MS, 2)), Usage(70_000, 40_000, 30_000, 20_000)
    )
    return result(output=output)


@pytest.mark.parametrize("width", [76, 80, 99, 100])
@pytest.mark.parametrize("made_up", [tensors, text])
def test_what_infer_says_fits(made_up: object, width: int) -> None:
    shown = show.render(made_up(), width=width)  # type: ignore[operator]
    assert max(map(len, shown.splitlines())) <= width
    assert all(line == line.rstrip() for line in shown.splitlines())
    assert "a-model-of-mine, version 2 · KServe v2 over gRPC, streamed" in " ".join(shown.split())


def test_what_infer_says_of_latencies_is_broken_between_them() -> None:
    lines = show.render(text(), width=76).splitlines()
    index = next(index for index, line in enumerate(lines) if line.startswith(" latency"))
    assert lines[index] == " latency  ttft 400.0 ms · itl 300.0 ms mean, 400.0 ms max · e2e 1,019 ms ·"
    assert lines[index + 1] == "          39,254.2 tokens/s"
    assert lines[index - 2] == " tokens   70,000 in, 40,000 out, 30,000 cached, 20,000 reasoning"
    assert lines[index - 1] == "          the server's count"


def test_infer_uses_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "columns", lambda: 80)
    assert show.render(tensors()) == show.render(tensors(), width=80) != show.render(tensors(), width=100)
