"""`inferometer calibrate`: its table, figures that are not known, and Ctrl-C."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from command import cli, start
from waiting import until

from inferometer import calibrate as calibration
from inferometer import conduct
from inferometer.analysis.summary import Summary
from inferometer.calibrate import Calibration
from inferometer.records import Run

FOUND = Calibration(
    schema=1,
    requests_per_second=31_944.1,
    cpu_per_request=28.1e-6,
    cpu_per_chunk=21.3e-6,
    chunks_per_second=46_930.1,
    added_latency_p50=89.6e-6,
    added_latency_p99=405e-6,
    itl_error_p50=133e-6,
    itl_error_p99=3.64e-3,
    lag_p50={"500": 5.47e-6, "5000": 29.8e-6},
    lag_p99={"500": 0.0, "5000": 1.1e-3},
    stamps="kernel",
    timer="timerfd",
)


def printed(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> list[str]:
    """What it prints for these figures."""
    monkeypatch.setattr(calibration, "calibrate", lambda seconds, note: msgspec.structs.replace(FOUND, **changes))
    result = cli("calibrate")
    assert (result.status, result.err) == (0, "")
    return result.out.splitlines()


def test_the_table_has_no_trailing_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(monkeypatch) == [
        "ceiling          31,944 requests/s          28.1 us of CPU per request",
        "streaming        46,930 chunks/s per core   21.3 us of CPU per chunk",
        "added latency    89.6 us p50                405 us p99",
        "error of a gap   133 us p50                 3.64 ms p99",
        "lag at 500/s     5.47 us p50                0 s p99",
        "lag at 5,000/s   29.8 us p50                1.1 ms p99",
        "clock            kernel timestamps          timerfd",
    ]


def test_unknown_figures_are_dashes_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, requests_per_second=None, cpu_per_chunk=None, lag_p99={"500": None, "5000": 1.1e-3})
    assert lines[0].startswith("ceiling          - requests/s ")
    assert lines[1].endswith("   - of CPU per chunk")
    assert lines[4] == "lag at 500/s     5.47 us p50                - p99"
    assert lines[-1] == "-: too few values; measure longer with --duration"


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
def test_percentiles_of_too_few_values_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    observed: list[dict[str, float]] = []
    measure = conduct.measure_to_end

    def noted(*arguments: Any) -> tuple[Run, Summary]:
        run, summary = measure(*arguments)
        observed.append(run.manifest.observer_cpu)
        return run, summary

    monkeypatch.setattr(conduct, "measure_to_end", noted)
    found = calibration.calibrate(0.1, steps.append)
    assert len(steps) == calibration.STEPS
    assert observed == [{}] * calibration.STEPS, "nothing disturbs the measurement"
    assert found.lag_p99["500"] is None  # of some 50
    assert found.lag_p50["500"] is not None
    known = msgspec.json.decode(msgspec.json.encode(found))
    assert known["lag_p99"]["500"] is None
    assert 0 not in known.values()


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stderr is not None
    return process.stderr.readline()


@contextlib.contextmanager
def calibrating(folder: Path, seconds: int) -> "Iterator[subprocess.Popen[str]]":
    """Run it in its own process, which ends with the test."""
    process = start("calibrate", "--seconds", str(seconds), cwd=folder, TMPDIR=str(folder))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def assert_interrupted(process: "subprocess.Popen[str]", children: list[psutil.Process], temporary: Path) -> None:
    """One line (after that of the terminal's ^C), no table, status 130, and nothing left behind."""
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "\ninferometer: interrupted\n")
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_ends_it_within_a_step(tmp_path: Path) -> None:
    with calibrating(tmp_path, 60) as process:
        assert line_of(process).startswith("1/5 ")
        until(lambda: any(path.stat().st_size for path in tmp_path.glob("*/*/spool/0.rows")), "responses")
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 2
        process.send_signal(signal.SIGINT)
        assert_interrupted(process, children, tmp_path)


@pytest.mark.slow
def test_ctrl_c_ends_it_between_two_steps(tmp_path: Path) -> None:
    with calibrating(tmp_path, 1) as process:
        assert line_of(process).startswith("1/5 ")
        assert line_of(process).startswith("2/5 ")
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert_interrupted(process, children, tmp_path)
