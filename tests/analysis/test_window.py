"""Which requests each rule leaves out."""

import numpy as np
import pytest
import synthetic_run as made

from inferometer.analysis.window import COOLDOWN, START, STEADY, WARMUP, is_drifting, mark, mser
from inferometer.config.fields import Window
from inferometer.config.schema import Measure
from inferometer.records import MISSING, Columns, StagePlan


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


def two_stages() -> np.ndarray:
    """500 requests in each stage, one every ms."""
    rows = every(1, 1000)
    rows["stage"] = rows["intended"] >= 500 * made.MS
    return rows


def phases(rows: np.ndarray, warmup: str = "0", cooldown: str = "0") -> list[tuple[int, int, int]]:
    """The numbers of warm-up, steady and cool-down requests in each stage."""
    phase = mark(Columns.of(rows), Measure(Window(warmup), Window(cooldown)))
    return [
        tuple(np.bincount(phase[rows["stage"] == stage], minlength=3).tolist()) for stage in np.unique(rows["stage"])
    ]


@pytest.mark.parametrize(("warmup", "cooldown"), [("20", "10"), ("20ms", "10ms")])
def test_each_stage_has_its_own_warmup_and_cooldown(warmup: str, cooldown: str) -> None:
    assert phases(two_stages(), warmup, cooldown) == [(20, 470, 10)] * 2


def test_auto_looks_at_each_stage() -> None:
    rows = two_stages()
    rows["done"] += np.random.default_rng(1).normal(0, made.MS, 1000).astype(np.int64)
    slow = (rows["intended"] % (500 * made.MS)) < 50 * made.MS
    rows["done"] += np.where(slow, 200, 0) * made.MS
    assert phases(rows, "auto") == [(50, 450, 0)] * 2


def test_auto_cooldown_applies_to_each_stage() -> None:
    assert phases(two_stages(), "0", "auto") == [(0, 490, 10)] * 2


def test_auto_that_reaches_its_bound_is_drift() -> None:
    rows = every(1, 1000)
    rows["done"] += np.random.default_rng(1).normal(0, made.MS, 1000).astype(np.int64)
    assert not is_drifting(Columns.of(rows))
    rows["done"] += rows["intended"] // 2
    assert is_drifting(Columns.of(rows))


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


# --- the first responses of a closed loop ----------------------------------------------------------------------------


def users(count: int, users: int, ramp: float = 0.0) -> tuple[np.ndarray, StagePlan]:
    """Users who send a request per second, and start within `ramp` seconds; rows in random order."""
    rows = made.blank(count)
    turn, user = np.divmod(np.arange(count), users)
    rows["intended"] = rows["sent"] = ((turn + user * ramp / users) * made.SECOND).astype(np.int64)
    rows["done"] = rows["sent"] + made.SECOND
    plan = StagePlan(type="closed", open=False, concurrency=users, ramp_up=ramp)
    return rows[np.random.default_rng(0).permutation(count)], plan


@pytest.mark.parametrize(
    ("count", "concurrency", "left_out"), [(80, 8, 8), (50, 10, 10), (49, 8, 0), (79, 16, 0), (8, 8, 0), (50, 1, 1)]
)
def test_the_first_response_of_each_user_is_left_out_unless_little_would_be_left(
    count: int, concurrency: int, left_out: int
) -> None:
    rows, plan = users(count, concurrency)
    phase = mark(Columns.of(rows), Measure(), (plan,))
    assert np.sort(rows["id"][phase == START]).tolist() == list(range(left_out))
    assert (phase[rows["id"] >= left_out] == STEADY).all()


def test_what_was_sent_during_the_ramp_is_left_out() -> None:
    rows, plan = users(100, 10, ramp=2.5)  # the first users are at their third request when the last one starts
    phase = mark(Columns.of(rows), Measure(), (plan,))
    assert ((rows["sent"] < 2.5 * made.SECOND) == (phase == START)).all()


def test_a_ramp_longer_than_the_stage_leaves_out_nothing() -> None:
    rows, plan = users(100, 10, ramp=2.5)
    longer = StagePlan(type="closed", open=False, concurrency=10, ramp_up=60.0)
    assert (mark(Columns.of(rows), Measure(), (longer,)) == STEADY).all()
    assert plan.ramp_up < 60


def test_first_responses_are_left_out_of_each_stage() -> None:
    (first, plan), (second, _) = users(80, 8), users(80, 8)
    second["id"] += 1 << 32
    second["stage"] = 1
    for name in ("intended", "sent", "done"):
        second[name] += 100 * made.SECOND
    rows = np.concatenate([first, second])
    phase = mark(Columns.of(rows), Measure(), (plan, plan))
    assert [int((phase[rows["stage"] == stage] == START).sum()) for stage in (0, 1)] == [8, 8]


def test_open_loops_keep_their_first_requests() -> None:
    plan = StagePlan(type="constant", open=True, rate=1000, concurrency=8)
    assert (mark(Columns.of(every(1, 100)), Measure(), (plan,)) == STEADY).all()
