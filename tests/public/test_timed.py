"""`inferometer.timed`, with a clock that the test sets."""

import math
import statistics
import time

import pytest

import inferometer
from inferometer.analysis.durations import describe_durations


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Nanoseconds, in a list so that a test can change them."""
    now = [0]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    return now


def test_a_block_is_measured(clock: list[int]) -> None:
    with inferometer.timed("step") as timer:
        clock[0] += 1_500_000
    assert timer.seconds == 0.0015
    assert timer.name == "step"


def test_a_timer_collects_durations(clock: list[int]) -> None:
    timer = inferometer.timed("step")
    for milliseconds in (4, 1, 3, 2):
        with timer:
            clock[0] += milliseconds * 1_000_000
    assert timer.all == (0.004, 0.001, 0.003, 0.002)
    assert timer.seconds == 0.002
    found = timer.statistics
    assert (found.count, found.min, found.max, found.median, found.p99) == (4, 0.001, 0.004, 0.002, 0.004)
    assert found.mean == pytest.approx(0.0025)
    assert str(timer).startswith("step: mean 2.5 ms, sd 1.29")


def test_a_block_that_raises_is_not_counted(clock: list[int]) -> None:
    timer = inferometer.timed("step")
    with pytest.raises(KeyError), timer:
        raise KeyError
    assert timer.all == ()
    with pytest.raises(inferometer.Error, match="nothing was measured yet"):
        timer.seconds  # noqa: B018
    with timer:
        clock[0] += 1
    assert len(timer.all) == 1


def test_a_timer_cannot_be_used_inside_its_own_block() -> None:
    timer = inferometer.timed("step")
    with timer, pytest.raises(inferometer.Error, match="measured already"), timer:
        pass


def test_statistics_agree_with_the_standard_library() -> None:
    values = [math.sqrt(n % 17 + 1) for n in range(200)]
    found = describe_durations(values)
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert found.sd == pytest.approx(statistics.stdev(values))
    assert found.p95 == sorted(values)[189]
    assert math.isnan(describe_durations([1.0]).sd)
    assert math.isnan(describe_durations([]).mean)
    assert str(describe_durations([])) == "no calls"


@pytest.mark.torch
def test_cuda_needs_a_gpu() -> None:
    import torch  # noqa: PLC0415 - not installed everywhere

    if torch.cuda.is_available():
        with inferometer.timed(cuda=True) as timer:
            torch.ones(8, device="cuda").sum()
        assert timer.seconds > 0
    else:
        with pytest.raises(inferometer.Error, match="no GPU"):
            inferometer.timed(cuda=True)
