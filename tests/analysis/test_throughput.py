"""Offered and completed rates agree when the server keeps up, however long a response takes."""

import numpy as np
import pytest
import synthetic_run as made

from inferometer.analysis.summary import summarise
from inferometer.records import Failure, Run, StagePlan


def constant(rate: float, seconds: float, times: np.ndarray, failed: int = 0) -> Run:
    """Requests at a constant rate whose responses take `times` seconds."""
    count = round(rate * seconds)
    rows = made.blank(count)
    rows["open_loop"], rows["intended"] = 1, np.arange(count) / rate * made.SECOND
    rows["sent"] = rows["intended"] + 50_000
    rows["done"] = rows["sent"] + (times * made.SECOND).astype(np.int64)
    made.fail(rows, slice(0, failed))
    plan = StagePlan(type="constant", open=True, rate=rate, duration=seconds)
    return made.run(rows, failures=(Failure("http_503", ""),), plan=(plan,))


@pytest.mark.parametrize("rate", [10, 20, 50])
def test_five_seconds_per_response_do_not_lower_the_rate(rate: int) -> None:
    found = summarise(constant(rate, 30, np.full(30 * rate, 5.0))).throughput
    assert found.offered == pytest.approx(rate)
    assert found.requests == pytest.approx(rate, rel=0.01)


def test_times_that_vary_do_not_lower_the_rate_much() -> None:
    times = np.random.default_rng(0).exponential(2.0, 1200)
    found = summarise(constant(40, 30, times)).throughput
    assert found.requests == pytest.approx(40, rel=0.04)


def test_a_server_that_does_not_keep_up_completes_less_than_was_offered() -> None:
    count = 1200
    times = 0.1 + np.arange(count) / 30 - np.arange(count) / 40  # 30 per second
    found = summarise(constant(40, 30, times)).throughput
    assert found.offered == pytest.approx(40)
    assert found.requests == pytest.approx(30, rel=0.02)


def test_a_short_run_is_divided_by_all_of_its_time() -> None:
    found = summarise(constant(20, 5, np.full(100, 4.0))).throughput
    assert found.requests == pytest.approx(100 / 8.95, rel=0.01)


def test_if_all_early_requests_failed_the_rate_is_that_of_the_whole_window() -> None:
    found = summarise(constant(20, 30, np.full(600, 1.0), failed=60)).throughput
    assert found.requests == pytest.approx(540 / 30.95, rel=0.01)


def test_a_closed_loop_keeps_its_window() -> None:
    rows, chunks = made.closed_rows()
    found = summarise(made.run(rows, chunks))
    assert found.throughput.requests == 600 / found.window.span


def test_one_request_has_no_offered_rate() -> None:
    assert summarise(constant(1, 1, np.full(1, 0.5))).throughput.offered is None
