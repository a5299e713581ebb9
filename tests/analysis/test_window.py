"""Which requests each rule leaves out."""

import numpy as np
import pytest
import synthetic_run as made

from inferometer.analysis.window import COOLDOWN, STEADY, WARMUP, mark, mser
from inferometer.config.schema import Measure, Window
from inferometer.records import MISSING, Columns


def counts(rows: np.ndarray, warmup: str = "0", cooldown: str = "0") -> tuple[int, int, int]:
    phase = mark(Columns.of(rows), Measure(Window(warmup), Window(cooldown)))
    assert phase.dtype == np.int8
    return tuple(int((phase == phase_code).sum()) for phase_code in (WARMUP, STEADY, COOLDOWN))


def every(ms: int, count: int) -> np.ndarray:
    """One request every `ms`, in random row order, each with a latency of 10 ms."""
    rows = made.blank(count)
    rows["intended"] = np.random.default_rng(0).permutation(count) * ms * made.MS
    rows["sent"] = rows["intended"]
    rows["done"] = rows["sent"] + 10 * made.MS
    return rows


def test_nothing_is_left_out_by_default() -> None:
    assert counts(every(1, 100)) == (0, 100, 0)


def test_no_rows() -> None:
    assert counts(every(1, 0), "auto", "auto") == (0, 0, 0)


def test_counts_select_in_the_order_of_intended_instants() -> None:
    rows = every(1, 100)
    phase = mark(Columns.of(rows), Measure(Window("5"), Window("7")))
    assert counts(rows, "5", "7") == (5, 88, 7)
    assert (rows["intended"][phase == WARMUP] < 5 * made.MS).all()
    assert (rows["intended"][phase == COOLDOWN] >= 93 * made.MS).all()


def test_durations_select_by_intended_instant() -> None:
    assert counts(every(10, 100), "100ms", "50ms") == (10, 85, 5)


def test_a_rule_larger_than_the_run_leaves_nothing() -> None:
    assert counts(every(1, 10), "99") == (10, 0, 0)
    assert counts(every(1, 10), "0", "99") == (0, 0, 10)


def test_a_request_selected_by_both_rules_is_warmup() -> None:
    assert counts(every(1, 10), "8", "8") == (8, 0, 2)


def test_auto_warmup_leaves_out_a_slow_start() -> None:
    rows = every(1, 1000)
    slow = rows["intended"] < 100 * made.MS
    noise = np.random.default_rng(1).normal(0, made.MS, 1000).astype(np.int64)
    rows["done"] += noise + np.where(slow, 200 * made.MS, 0)
    assert counts(rows, "auto")[0] == 100


def test_auto_warmup_removes_little_of_a_steady_run() -> None:
    rows = every(1, 1000)
    rows["done"] += np.random.default_rng(1).normal(0, made.MS, 1000).astype(np.int64)
    assert counts(rows, "auto")[0] <= 100


def test_auto_warmup_removes_at_most_half() -> None:
    rows = every(1, 1000)
    rows["done"] += 10**12 - rows["intended"] * 5
    assert counts(rows, "auto")[0] <= 500


def test_auto_warmup_looks_at_the_first_stage_only() -> None:
    rows = every(1, 1000)
    rows["stage"] = rows["intended"] >= 500 * made.MS
    rows["done"] += np.where(rows["stage"] == 0, 500, 0) * made.MS
    assert counts(rows, "auto")[0] == 0


def test_auto_warmup_with_requests_that_were_never_sent() -> None:
    rows = every(1, 1000)
    slow = rows["intended"] < 100 * made.MS
    rows["done"] += np.where(slow, 200 * made.MS, 0)
    unsent = rows["intended"] == 3 * made.MS
    rows["sent"][unsent], rows["failure"][unsent] = MISSING, 1
    assert counts(rows, "auto")[0] == pytest.approx(100, abs=5)


def test_auto_cooldown_begins_one_service_time_before_the_last_instant() -> None:
    assert counts(every(1, 1000), "0", "auto") == (0, 990, 10)


def test_auto_cooldown_removes_at_most_half_of_the_last_stage() -> None:
    rows = every(1, 100)
    rows["done"] += made.SECOND
    assert counts(rows, "0", "auto") == (0, 50, 50)
    assert counts(rows[:1], "0", "auto") == (0, 1, 0)


def test_auto_removes_nothing_without_a_successful_request() -> None:
    rows = every(1, 100)
    rows["failure"] = 1
    assert counts(rows, "auto", "auto") == (0, 100, 0)


def test_mser_minimises_the_standard_error() -> None:
    series = np.concatenate([np.linspace(9, 1, 20), np.random.default_rng(2).normal(1, 0.1, 80)])
    errors = [((series[d:] - series[d:].mean()) ** 2).sum() / (len(series) - d) ** 2 for d in range(51)]
    assert mser(series) == int(np.argmin(errors))
