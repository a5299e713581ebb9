"""The search: a pure function of the trials so far, driven here by made-up servers."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from inferometer.capacity_search.search import Bracket, Goal, Request, Status, Trial, bracket, following

GOAL = Goal(start=2.0, budget=600.0, shortest=2.0, telling=5.0, overhead=1.0)


def trial(level: float, status: Status, **more: object) -> Trial:
    values: dict[str, object] = {"purpose": "bisect", "seconds": 10.0, "excess": 0.5 if status == "holds" else 3.0}
    return Trial(level=level, status=status, **(values | more))  # type: ignore[arg-type]


def probe(request: Request, capacity: float, noise: float = 0.0, rng: random.Random | None = None) -> Trial:
    """A server that holds everything below its capacity; scouts are too short to show that."""
    level = request.level * math.exp(noise * (rng or random).gauss(0, 1))
    status: Status = "holds" if level <= capacity else "fails"
    if status == "holds" and request.purpose == "ramp":
        status = "undecided"
    seconds = min(request.seconds, 8.0) + 1
    return Trial(
        level=request.level,
        purpose=request.purpose,
        status=status,
        seconds=seconds,
        excess=min((level / capacity) ** 4, 10.0) * 0.99,
        is_calm=level < capacity / 4,
        completed=capacity if level > 1.3 * capacity else None,
    )


def search(goal: Goal, capacity: float, noise: float = 0.0, seed: int = 0) -> tuple[Bracket, list[Trial]]:
    rng, trials = random.Random(seed), []
    while (request := following(goal, trials)) is not None:
        assert len(trials) < 200
        trials.append(probe(request, capacity, noise, rng))
    return bracket(trials), trials


@given(st.floats(0.05, 5000), st.floats(0.1, 100))
def test_an_exact_server_is_bracketed_and_confirmed(capacity: float, start: float) -> None:
    goal = Goal(start=start, budget=3000.0, shortest=2.0, telling=5.0, overhead=1.0)
    found, _ = search(goal, capacity)
    assert found.low is not None and found.high is not None and found.estimate is not None
    assert found.low <= capacity < found.high
    assert found.high <= found.low * 1.06  # levels are rounded to four digits
    assert found.low <= found.estimate <= found.high
    assert found.confirmed and not found.non_monotone


@given(st.integers(1, 300), st.floats(1, 64))
def test_whole_levels_end_at_neighbours(capacity: int, start: float) -> None:
    goal = Goal(start=start, budget=3000.0, telling=5.0, whole=True, precision=0.001)
    found, trials = search(goal, capacity + 0.5)
    assert (found.low, found.high) == (capacity, capacity + 1)
    assert all(one.level == round(one.level) for one in trials)


@given(st.floats(0.5, 500), st.floats(0, 0.5), st.floats(10, 400), st.integers(0, 1000))
def test_the_budget_bounds_everything(capacity: float, noise: float, budget: float, seed: int) -> None:
    goal = Goal(start=5.0, budget=budget, telling=5.0, overhead=1.0)
    found, trials = search(goal, capacity, noise, seed)
    assert sum(one.seconds for one in trials) <= budget + 1.0 or len(trials) == 1
    if found.low is not None and found.high is not None:
        assert found.low < found.high
    for one in trials:
        assert one.level > 0


@given(st.lists(st.tuples(st.floats(1, 100), st.sampled_from(["holds", "fails", "undecided"])), max_size=12))
def test_the_interval_is_what_was_shown(verdicts: list[tuple[float, Status]]) -> None:
    trials = [trial(level, status) for level, status in verdicts]
    found = bracket(trials)
    latest = dict(verdicts)
    if found.low is not None:
        assert latest[found.low] == "holds"
    if found.high is not None:
        assert latest[found.high] == "fails"
        assert found.low is None or found.low < found.high
    following(GOAL, trials)  # whatever the history is, there is a next step or none


def test_an_undecided_level_is_searched_on_both_sides() -> None:
    trials = [trial(4, "holds"), trial(9, "fails"), trial(6, "undecided")]
    levels = []
    for _ in range(2):
        request = following(GOAL, trials)
        assert request is not None
        levels.append(request.level)
        trials.append(trial(request.level, "undecided"))
    assert sorted(4 < level < 6 for level in levels) == [False, True]
    assert (bracket(trials).low, bracket(trials).high) == (4, 9)


def test_a_level_that_holds_above_one_that_failed_is_noticed_and_the_lower_repeated() -> None:
    trials = [trial(4, "holds"), trial(6, "fails"), trial(9, "holds"), trial(13, "fails")]
    assert bracket(trials).non_monotone
    assert (bracket(trials).low, bracket(trials).high) == (4, 6)  # the careful reading
    request = following(GOAL, trials)
    assert request is not None and (request.level, request.purpose) == (6, "repeat")
    resolved = [*trials, trial(6, "holds", purpose="repeat")]
    assert not bracket(resolved).non_monotone
    assert (bracket(resolved).low, bracket(resolved).high) == (9, 13)


def test_a_failure_that_nothing_else_supports_is_repeated() -> None:
    trials = [trial(10, "fails"), trial(8, "holds"), trial(9, "holds"), trial(9.6, "holds")]
    request = following(GOAL, trials)
    assert request is not None and (request.level, request.purpose) == (10, "repeat")
    again = following(GOAL, [*trials, trial(10, "holds", purpose="repeat")])
    assert again is not None and again.level > 10


def test_a_level_that_is_not_confirmed_gives_way_to_the_next_lower_one() -> None:
    trials = [trial(4, "holds"), trial(8, "holds"), trial(8.2, "fails"), trial(8.2, "fails", purpose="repeat")]
    request = following(GOAL, trials)
    assert request is not None and (request.level, request.purpose) == (8, "confirm")
    trials.append(trial(8, "fails", purpose="confirm"))
    assert (bracket(trials).low, bracket(trials).high) == (4, 8)


def counted(level: float, excess: float, status: Status, **more: object) -> Trial:
    return trial(level, status, excess=excess, allowed=0.1, independent=60.0, **more)


def test_counted_violations_lead_to_levels_on_both_sides_of_the_capacity() -> None:
    """Violations cross what is allowed at about 10: the next level is not there, where no trial would decide."""
    trials = [
        counted(8, 0.1, "holds"),
        counted(9.5, 0.5, "undecided"),
        counted(10.5, 2.0, "undecided"),
        counted(14, 9, "fails"),
    ]
    request = following(GOAL, trials)
    assert request is not None and 10.3 < request.level < 13
    trials.append(counted(request.level, 6.0, "fails"))
    request = following(GOAL, trials)
    assert request is not None and 8 < request.level < 9.9


def test_a_scout_with_too_many_violations_ends_the_ramp() -> None:
    trials = [counted(8, 0.0, "undecided", purpose="ramp"), counted(12, 2.0, "undecided", purpose="ramp")]
    request = following(GOAL, trials)
    assert request is not None and request.purpose == "bisect"
    assert following(GOAL, trials[:1]) == Request(12.0, 2.5, "ramp")


def test_an_undecided_confirmation_counts_together_with_the_trial_before() -> None:
    before = [counted(8, 0.1, "holds"), counted(12, 9, "fails")]
    good, bad = (counted(8, excess, "undecided", purpose="confirm") for excess in (0.4, 1.2))
    assert bracket([*before, good]).low == 8 and not bracket([*before, good]).confirmed
    assert bracket([*before, bad]).low is None


def test_without_time_the_interval_is_wide() -> None:
    goal = Goal(start=2.0, budget=30.0, telling=5.0, overhead=1.0)
    found, trials = search(goal, 100.0)
    assert sum(one.seconds for one in trials) <= 31
    assert found.high is None or found.low is None or found.high > 1.05 * found.low


def test_nothing_is_claimed_without_a_trial() -> None:
    assert bracket([]) == Bracket(None, None, None)
