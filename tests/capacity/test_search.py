"""The search: a pure function of the trials so far, driven here by made-up servers."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.capacity_search.search import bracket, following
from inferometer.capacity_search.trials import Bracket, Goal, Request, Status, Trial, explored, probed

GOAL = Goal(budget=120.0, unloaded=1.0, needed=29.0, overhead=1.0)
TAKES = 1.0


def trial(level: float, status: Status, **more: object) -> Trial:
    values: dict[str, object] = {"purpose": "narrow", "seconds": 10.0, "excess": 0.5 if status == "holds" else 3.0}
    return Trial(level=level, status=status, allowed=0.1, independent=60.0, **(values | more))  # type: ignore[arg-type]


def loop(in_flight: float, rate: float, excess: float = 0.0, **more: object) -> Trial:
    """A closed loop."""
    status: Status = "holds" if excess <= 1 else "fails"
    takes = in_flight / rate
    values: dict[str, object] = {"seconds": 5.0, "rate": rate, "mean_e2e": takes, "residence": takes, "excess": excess}
    return trial(in_flight, **({"status": status, "purpose": "explore", "is_sure": False} | values | more))  # type: ignore[arg-type]


def served(goal: Goal, capacity: float, request: Request, rng: random.Random | None = None) -> Trial:
    """A server that takes a second per request, holds everything below its capacity, and serves at most 1.2 times as much. `rng`: with
    noise."""
    ceiling = 1.2 * capacity
    noise = math.exp(0.05 * rng.gauss(0, 1)) if rng else 1.0
    if request.purpose == "explore":
        rate = min(request.level / TAKES, ceiling)
        return loop(request.level, rate, 8.0 if request.level / rate > 1.5 * TAKES else 0.0, seconds=request.seconds)
    level = {"rate": request.level, "concurrency": request.level / TAKES, "users": request.level / (TAKES + goal.think)}
    over = level[goal.by] * noise / capacity
    excess = min(over**14, 10.0)
    return Trial(
        level=request.level, purpose=request.purpose, status="holds" if excess <= 1 else "fails", seconds=request.seconds,
        excess=excess, allowed=0.1, independent=60.0, rate=min(level[goal.by], ceiling), mean_e2e=TAKES, residence=TAKES,
        is_overloaded=level[goal.by] > ceiling,
    )  # fmt: skip


def is_near(end: float | None, level: float) -> bool:
    """Whether an end is where a trial put it, or a little farther out because all trials together dispute it."""
    return end is not None and level / 1.151 <= end <= level * 1.151


def search(goal: Goal, capacity: float, seed: int | None = None) -> tuple[Bracket, list[Trial]]:
    rng, trials = None if seed is None else random.Random(seed), []
    while (request := following(goal, trials)) is not None:
        assert len(trials) < 200
        trials.append(served(goal, capacity, request, rng))
    return bracket(goal, trials), trials


@given(st.floats(3, 1000))
def test_an_exact_server_is_bracketed_and_confirmed(capacity: float) -> None:
    found, _ = search(GOAL, capacity)
    assert found.low is not None and found.high is not None and found.estimate is not None
    assert found.low * 0.99 <= capacity <= found.high * 1.01
    assert found.low <= found.estimate <= found.high <= 1.4 * found.low
    assert (found.low_basis, found.high_basis) == ("shown", "shown") and not found.non_monotone


@given(
    st.floats(1.5, 1000), st.integers(0, 1000), st.floats(40, 400), st.sampled_from(["rate", "concurrency", "users"])
)
def test_the_budget_bounds_everything_and_both_ends_are_known(
    capacity: float, seed: int, budget: float, by: str
) -> None:
    goal = Goal(by=by, budget=budget, unloaded=1.0, needed=29.0, overhead=1.0, think=5.0)  # type: ignore[arg-type]
    found, trials = search(goal, capacity, seed)
    assert sum(one.seconds for one in trials) <= budget
    assert found.low is not None and found.high is not None and 0 < found.low < found.high
    assert all(
        one.level >= 1 and one.level == round(one.level) for one in trials if goal.whole or one.purpose == "explore"
    )


def test_whole_levels_end_at_neighbours() -> None:
    goal = Goal(by="concurrency", budget=600.0, unloaded=1.0, precision=0.001, overhead=1.0)
    found, _ = search(goal, 4.5)
    assert (found.low, found.high) == (4, 5)


def test_closed_loops_come_first_and_stop_at_the_first_that_breaks_an_objective() -> None:
    _, trials = search(GOAL, 100.0)
    loops = explored(trials)
    assert trials[: len(loops)] == loops and [one.level for one in loops[:3]] == [4, 16, 64]
    breaking = [one.level for one in loops if one.status == "fails"]
    assert breaking and max(one.level for one in loops) == breaking[0]
    assert sum(one.seconds for one in loops) < 0.5 * GOAL.budget


def test_the_open_loops_never_go_far_beyond_the_highest_throughput() -> None:
    """Whatever the objective is: one that is never decided must not drive the load up."""
    trials: list[Trial] = []
    while (request := following(GOAL, trials)) is not None:
        one = served(GOAL, 20.0, request)
        trials.append(trial(one.level, "undecided", excess=None, seconds=one.seconds) if one in probed([one]) else one)
    assert probed(trials) and max(one.level for one in probed(trials)) < 2 * 24


def test_levels_stay_above_one_that_has_just_been_seen_calm() -> None:
    curve = [loop(4, 4), loop(16, 16), loop(64, 20, 9.0)]
    calm = [*curve, trial(14, "holds", excess=0.0)]
    for verdict in ("undecided", "fails", "holds"):
        request = following(GOAL, [*calm, trial(18, verdict)])  # type: ignore[arg-type]
        assert request is not None and request.level >= 14
    assert bracket(GOAL, calm).low == 14


def test_a_failed_confirmation_keeps_the_lower_levels_that_held() -> None:
    curve = [loop(4, 4), loop(16, 16), loop(64, 20, 9.0)]
    trials = [*curve, trial(13, "holds"), trial(15, "holds", is_sure=False), trial(18, "fails"), trial(15, "fails")]
    found = bracket(GOAL, trials)
    assert is_near(found.low, 13) and is_near(found.high, 15) and found.low_basis == "shown"


def test_a_level_that_held_above_one_that_failed_is_repeated() -> None:
    curve = [loop(4, 4), loop(16, 16), loop(64, 20, 9.0)]
    trials = [*curve, trial(12, "fails", is_sure=False, excess=1.4), trial(14, "holds", excess=0.3), trial(18, "fails")]
    request = following(GOAL, trials)
    if bracket(GOAL, trials).non_monotone:
        assert request is not None and (request.level, request.purpose) == (12, "repeat")
    else:  # all trials together make it unlikely enough
        assert is_near(bracket(GOAL, trials).low, 14)


def test_without_open_loops_the_ends_are_estimated_from_the_curve() -> None:
    found = bracket(GOAL, [loop(4, 4), loop(16, 16), loop(64, 20, 9.0)])
    assert found.low is not None and found.high is not None and found.estimate is not None
    assert 8 < found.low < found.estimate < found.high < 30
    assert (found.low_basis, found.high_basis) == ("estimated", "estimated")


def test_one_request_at_a_time_that_is_too_slow_ends_the_search() -> None:
    trials: list[Trial] = []
    while (request := following(GOAL, trials)) is not None:
        trials.append(loop(request.level, 2.0, 5.0))
    assert trials[0].level == 4 and {one.level for one in trials[1:]} == {1}
    assert sum(one.seconds for one in trials) < 0.35 * GOAL.budget
    assert bracket(GOAL, trials) == Bracket(None, 2.0, None)


def test_a_server_that_was_still_warming_up_is_asked_again() -> None:
    cold = loop(4, 2, 3.0, is_warming=True)
    assert following(GOAL, [cold]) == Request(4, pytest.approx(4, abs=5), "explore")  # type: ignore[arg-type]
    again = following(GOAL, [cold, loop(4, 4)])
    assert again is not None and again.level == 16


@given(st.floats(0, 24), st.floats(2, 200))
def test_a_server_that_is_cold_at_first_is_found_as_fast_as_a_warm_one(cold_for: float, capacity: float) -> None:
    trials: list[Trial] = []
    while (request := following(GOAL, trials)) is not None:
        is_cold = sum(one.seconds for one in trials) < cold_for
        trials.append(loop(request.level, 0.1, 20.0) if is_cold else served(GOAL, capacity, request))
    found = bracket(GOAL, trials)
    assert found.low is not None and found.high is not None
    assert found.low <= capacity * 1.02 and found.high >= capacity * 0.98 and found.high < 1.8 * found.low


def test_a_closed_loop_that_was_too_short_to_tell_is_repeated_for_longer() -> None:
    short = loop(16, 8, status="undecided")
    first, again = following(GOAL, [loop(4, 4)]), following(GOAL, [loop(4, 4), short])
    assert first and again and again.level == 16 and again.seconds >= 1.5 * first.seconds


def test_a_level_that_fails_while_the_server_warms_up_shows_nothing() -> None:
    curve = [loop(4, 4), loop(16, 16), loop(64, 20, 9.0)]
    assert is_near(bracket(GOAL, [*curve, trial(12, "fails", is_warming=True), trial(14, "holds")]).low, 14)


def test_closed_loops_that_were_disturbed_do_not_bound_the_search() -> None:
    trials = [loop(4, 4), loop(16, 10), loop(64, 10, 9.0)]
    while (request := following(Goal(budget=800.0, unloaded=1.0, needed=29.0, overhead=1.0), trials)) is not None:
        trials.append(served(GOAL, 25.0, request))
    found = bracket(GOAL, trials)
    assert found.low is not None and found.high is not None and 14 < found.low <= 25 <= found.high


def test_the_first_open_loop_is_at_the_level_that_was_asked_for() -> None:
    goal = Goal(budget=120.0, unloaded=1.0, overhead=1.0, start=7.0)
    request = following(goal, [loop(4, 4), loop(16, 16), loop(64, 20, 9.0), loop(32, 20, 4.0), loop(23, 20, 2.0)])
    assert request is not None and (request.level, request.purpose) == (7.0, "narrow")


def test_nothing_is_claimed_without_a_trial() -> None:
    assert bracket(GOAL, []) == Bracket(None, None, None)


def test_a_collapse_far_below_what_closed_loops_served_is_tried_again() -> None:
    loops = [loop(4, 92), loop(12, 100, 3.0)]
    collapse = trial(78, "fails", rate=50, is_overloaded=True, excess=None)
    trials = [*loops, collapse, trial(68, "holds", rate=68, seconds=20)]
    request = following(GOAL, trials)
    assert request is not None and (request.level, request.purpose) == (78, "repeat")
    assert bracket(GOAL, trials).high == 78
    forgotten = bracket(GOAL, [*trials, trial(78, "holds", rate=78, purpose="repeat")])
    assert is_near(forgotten.low, 78) and not forgotten.non_monotone
    twice = [collapse, trial(72, "fails", rate=50, is_overloaded=True, excess=None), *trials[3:]]
    repeated = following(GOAL, [*loops, *twice])
    assert repeated is not None and repeated.purpose == "confirm"  # the server collapses: nothing disturbed it


def test_growth_above_what_an_overload_served_fails() -> None:
    trials = [loop(36, 48), loop(144, 146), loop(432, 117, 3.0), trial(54, "holds", rate=54)]
    over = trial(127, "fails", rate=68, is_overloaded=True, excess=None)
    for more in ({"rate": 70, "rate_error": 0.05}, {"is_growing": True}):
        growing = trial(83, "undecided", excess=0.0, **more)
        assert bracket(GOAL, [*trials, growing]).high_basis == "estimated"
        found = bracket(GOAL, [*trials, over, growing])
        assert is_near(found.low, 54) and (found.high, found.high_basis) == (83, "likely")


def test_a_short_trial_close_to_saturation_shows_less_than_a_long_one() -> None:
    """The queue of 19 requests per second at a server that serves 20 takes minutes to become as long as it gets."""
    curve = [loop(4, 4), loop(16, 16), loop(64, 20, 9.0)]
    short, long = (bracket(GOAL, [*curve, trial(19, "holds", excess=0.0, seconds=one)]) for one in (20.0, 2000.0))
    assert short.low is not None and long.low is not None and short.low < 0.95 * long.low and long.low <= 19
