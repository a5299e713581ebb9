"""When a stage is stable: the rule, the rows it marks, the check and the throughput."""

from typing import Any

import msgspec
import numpy as np
import pytest
import synthetic_run as made
from hypothesis import given
from hypothesis import strategies as st

from inferometer.analysis import stability
from inferometer.analysis.checks import Check
from inferometer.analysis.stability import StabilityRule, assess
from inferometer.analysis.summary import Summary, summarise
from inferometer.analysis.window import COOLDOWN, STEADY, WARMUP, mark
from inferometer.config.fields import Window
from inferometer.config.schema import Measure
from inferometer.records import MISSING, Columns, Run, StagePlan

WINDOW = made.SECOND
RULE = StabilityRule(WINDOW, 0.1)
PLAN = StagePlan(type="closed", open=False, concurrency=1, duration=60.0, stable=0.1, window=1.0)


def responses(*windows: tuple[int, float], start: int = 0) -> np.ndarray:
    """Rows of a stage with the given numbers of responses per window and service times in ms, the first at `start`."""
    done, service = [], []
    for number, (count, ms) in enumerate(windows):
        done += [start + number * WINDOW + phase_code * WINDOW // count for phase_code in range(count)]
        service += [round(ms * made.MS)] * count
    rows = made.blank(len(done))
    rows["done"] = done
    rows["sent"] = rows["intended"] = rows["done"] - service
    rows["n_in"] = rows["n_out"] = -1
    return rows


def found(rows: np.ndarray, until: int, rule: StabilityRule = RULE) -> stability.Stability:
    return assess(rows["done"], rows["sent"], rule, until)


# --- the rule --------------------------------------------------------------------------------------------------------


def test_stable_with_the_first_three_consecutive_windows_that_agree() -> None:
    rows = responses((10, 50), (100, 5), (100, 9), (105, 9), (110, 9.8), (100, 9), start=7 * WINDOW)
    assert found(rows, 13 * WINDOW) == stability.Stability(6, pytest.approx(0.1), (9 * WINDOW, 12 * WINDOW))


@pytest.mark.parametrize("windows", [[(100, 5), (100, 5), (89, 5)], [(100, 5), (100, 5), (100, 5.6)]])
def test_not_stable_if_throughput_or_latency_differs_more(windows: list[tuple[int, float]]) -> None:
    one = found(responses(*windows), 3 * WINDOW)
    assert one.settled is None
    assert one.spread == pytest.approx(0.12, abs=0.01)


def test_an_incomplete_window_does_not_count() -> None:
    rows = responses((100, 5), (100, 5), (100, 5))
    assert found(rows, 3 * WINDOW - 1) == stability.Stability(2)
    assert found(rows, 3 * WINDOW).settled == (0, 3 * WINDOW)


def test_a_window_without_a_response_is_never_stable() -> None:
    rows = responses((5, 5), (5, 5), (5, 5), (5, 5))
    rows = rows[rows["done"] // WINDOW != 2]
    assert found(rows, 4 * WINDOW, StabilityRule(WINDOW, 1e9)) == stability.Stability(4)


def test_no_response_yet() -> None:
    assert found(made.blank(0), 100 * WINDOW) == stability.Stability()


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), min_size=1, max_size=12),
    st.floats(0, 3),
    st.integers(0, 13 * WINDOW),
)
def test_the_rule_matches_a_plain_implementation(windows: list[tuple[int, int]], share: float, until: int) -> None:
    rows = _any(windows)
    if not len(rows):
        return
    begin = int(rows["done"].min())
    expected = None
    for first in range(max((until - begin) // WINDOW - 2, 0)):
        parts = []
        for number in range(first, first + 3):
            low = begin + number * WINDOW
            parts.append(rows[(rows["done"] >= low) & (rows["done"] < low + WINDOW)])
        if not all(len(part) for part in parts):
            continue
        rates = [len(part) for part in parts]
        means = [float((part["done"] - part["sent"]).mean()) for part in parts]
        if max(rates) / min(rates) <= 1 + share and max(means) / min(means) <= 1 + share:
            expected = (begin + first * WINDOW, begin + (first + 3) * WINDOW)
            break
    assert found(rows, until, StabilityRule(WINDOW, share)).settled == expected


def _any(windows: list[tuple[int, int]]) -> np.ndarray:
    """Like `responses`, but a window may be empty."""
    parts = [responses((count, ms), start=number * WINDOW) for number, (count, ms) in enumerate(windows) if count]
    return np.concatenate(parts) if parts else made.blank(0)


# --- the records of a whole run --------------------------------------------------------------------------------------


def marks(rows: np.ndarray, *plans: StagePlan, measure: Measure | None = None) -> list[int]:
    phase = mark(Columns.of(rows), measure or Measure(), plans)
    return [int((phase == phase_code).sum()) for phase_code in (WARMUP, STEADY, COOLDOWN)]


SETTLES = ((20, 50), (100, 5), (100, 5), (100, 5), (3, 5))


def test_only_the_stable_windows_count() -> None:
    rows = responses(*SETTLES)
    assert marks(rows, PLAN) == [20, 300, 3]
    phase = mark(Columns.of(rows), Measure(), (PLAN,))
    assert (rows["done"][phase == WARMUP] < WINDOW).all()
    assert (rows["done"][phase == COOLDOWN] >= 4 * WINDOW).all()


def test_failed_requests_count_by_their_end_and_unsent_ones_by_their_intended_instant() -> None:
    rows = responses(*SETTLES)
    rows["failure"][[0, 150]] = 1
    made.never_sent(rows, [1, 151], 1)
    rows["done"][[1, 151]] = MISSING
    rows["intended"][1], rows["intended"][151] = 0, 2 * WINDOW
    phase = mark(Columns.of(rows), Measure(), (PLAN,))
    assert phase[[0, 1, 150, 151]].tolist() == [WARMUP, WARMUP, STEADY, STEADY]


def test_a_stage_that_was_never_stable_is_not_cut() -> None:
    rows = responses((10, 5), (20, 5), (40, 5), (80, 5))
    assert marks(rows, PLAN) == [0, 150, 0]
    assert marks(responses(*SETTLES), msgspec.structs.replace(PLAN, stable=0.0)) == [0, 322, 0], (
        "only the first response is left out"
    )


def test_warmup_and_cooldown_rules_apply_in_addition() -> None:
    assert marks(responses(*SETTLES), PLAN, measure=Measure(Window("25"), Window("0"))) == [25, 295, 3]


def test_windows_after_the_end_of_the_stage_do_not_count() -> None:
    """A stage of 2.5 s whose last responses took long: the load fell after its end."""
    rows = responses((100, 5), (100, 5), (100, 5), (1, 5))
    plan = msgspec.structs.replace(PLAN, duration=2.5)
    assert stability.of_stage(Columns.of(rows), 0, plan) == stability.Stability(2)


# --- what the report says --------------------------------------------------------------------------------------------


def report(rows: np.ndarray, *plans: StagePlan) -> Summary:
    return summarise(run_of(rows, *plans))


def run_of(rows: np.ndarray, *plans: StagePlan) -> Run:
    return made.run(rows, plan=plans, phase=mark(Columns.of(rows), Measure(), plans))


def check(summary: Summary) -> Check:
    return next(one for one in summary.checks if one.name == "stability")


def test_the_throughput_is_that_of_the_stable_windows() -> None:
    summary = report(responses(*SETTLES), PLAN)
    assert (summary.window.start, summary.window.end) == (1.0, 4.0)
    assert summary.throughput.requests == pytest.approx(100, rel=0.01)
    assert summary.metrics["e2e"].count == 300
    assert summary.metrics["e2e"].max == pytest.approx(0.005)
    assert check(summary).status == "pass"


def test_responses_that_take_longer_than_the_windows_still_count() -> None:
    """Each request takes 20 s: those that complete within the windows were sent long before."""
    rows = responses((10, 20_000), (10, 20_000), (10, 20_000), (10, 20_000), start=20 * WINDOW)
    rows["intended"] = rows["sent"]
    summary = report(rows, PLAN)
    assert (summary.window.start, summary.window.end) == (20.0, 23.0)
    assert summary.throughput.requests == pytest.approx(10, rel=0.05)


def test_each_stage_has_its_own_windows() -> None:
    first, second = responses(*SETTLES), responses(*SETTLES, start=6 * WINDOW)
    second["stage"] = 1
    second["id"] += len(first)
    summary = report(np.concatenate([first, second]), PLAN, PLAN)
    assert [(stage.window.start, stage.window.end) for stage in summary.stages] == [(1.0, 4.0), (7.0, 10.0)]
    assert [stage.counts.ok for stage in summary.stages] == [300, 300]
    assert (summary.window.start, summary.window.end) == (1.0, 10.0)


def test_the_whole_run_consists_of_the_stages_windows() -> None:
    first, second = responses(*SETTLES), responses(*((3 * n, ms) for n, ms in SETTLES), start=6 * WINDOW)
    second["stage"] = 1
    second["id"] += len(first)
    summary = report(np.concatenate([first, second]), PLAN, PLAN)
    assert summary.window.span == 6.0
    assert summary.throughput.requests == pytest.approx(200, rel=0.01)
    assert summary.counts.ok == pytest.approx(summary.throughput.requests * summary.window.span, rel=0.01)


def test_a_stable_stage_does_not_end_the_window_of_the_whole_run() -> None:
    first, second = responses(*SETTLES), responses((100, 5), (100, 5), start=6 * WINDOW)
    second["stage"] = 1
    summary = report(np.concatenate([first, second]), PLAN, made.CLOSED)
    assert summary.window.start == 1.0
    assert summary.window.end == pytest.approx(8.0, abs=0.02)


@pytest.mark.parametrize(
    ("windows", "share", "words"),
    [
        (
            ((10, 5), (20, 5), (40, 5), (80, 5)),
            0.1,
            ("windows of 1 s (out of 4)", "within 10%", "differ by 300%", "load.window"),
        ),
        (((10, 5), (10, 5)), 0.1, ("only 1 complete windows", "load.duration")),
    ],
)
def test_a_run_that_was_never_stable_is_invalid(windows: Any, share: float, words: tuple[str, ...]) -> None:
    rows = responses(*windows)
    rows = np.concatenate([rows, rows[-1:]])
    rows["done"][-1] = len(windows) * WINDOW - (len(windows) == 2)
    summary = report(rows, msgspec.structs.replace(PLAN, stable=share))
    assert summary.verdict == "INVALID"
    assert check(summary).status == "fail"
    for word in words:
        assert word in check(summary).message, check(summary).message


def test_windows_too_short_for_the_rate_are_reported() -> None:
    rows = responses((1, 5), (1, 5), (1, 5), (1, 5), (1, 5), (1, 5), (1, 5))
    rows = rows[::2]
    failed = check(report(rows, PLAN))
    assert failed.status == "fail"
    assert "had a response each" in failed.message


def test_the_stage_that_failed_is_named() -> None:
    second = responses((10, 5), (20, 5), (40, 5), (80, 5), start=6 * WINDOW)
    second["stage"] = 1
    plans = [msgspec.structs.replace(PLAN, name=f"concurrency {n}") for n in (1, 2)]
    assert "stage 2 (concurrency 2)" in check(report(np.concatenate([responses(*SETTLES), second]), *plans)).message
