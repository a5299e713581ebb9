"""The frontier of rates per user and per GPU, and the cheapest load for a rate per user."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from inferometer.analysis.counts import Counts
from inferometer.analysis.efficiency import Efficiency, Estimate
from inferometer.analysis.pareto import ParetoPoint, at, frontier, pareto_of
from inferometer.analysis.percentiles import Distribution
from inferometer.analysis.sweep import Point
from inferometer.analysis.throughput import Throughput


def point(x: float, y: float, error: float = 0.01, curve: str = "", price: float | None = None) -> ParetoPoint:
    return ParetoPoint(
        label=f"{x:g}",
        curve=curve,
        user=Estimate(x, (x * (1 - error), x * (1 + error))),
        hardware=Estimate(y, (y * (1 - error), y * (1 + error))),
        price_per_hour=price,
    )


def values(points: Sequence[ParetoPoint]) -> list[tuple[float, float]]:
    return [(each.user.value, each.hardware.value) for each in points]


numbers = st.integers(1, 30).map(float)
clouds = st.lists(st.tuples(numbers, numbers, st.sampled_from(["", "b"])), min_size=1, max_size=12)


def dominates(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one != other and one[0] >= other[0] and one[1] >= other[1]


@given(clouds)
def test_frontier_has_all_points_that_no_other_dominates_and_only_these(cloud: list[tuple[float, float, str]]) -> None:
    found = frontier([point(x, y, curve=curve) for x, y, curve in cloud])
    assert sorted(values(found)) == sorted((x, y) for x, y, _ in cloud)
    for each, own in zip(found, values(found), strict=True):
        assert each.is_frontier != any(dominates(other, own) for other in values(found))


@given(clouds, st.floats(0, 0.3))
def test_what_is_clear_stays_so_wherever_the_points_are_within_their_intervals(
    cloud: list[tuple[float, float, str]], error: float
) -> None:
    found = frontier([point(x, y, error) for x, y, _ in cloud])
    rng = np.random.default_rng(0)
    for _ in range(5):
        moved = [
            (rng.uniform(*each.user.ci), rng.uniform(*each.hardware.ci))  # type: ignore[arg-type]
            for each in found
        ]
        for each, own in zip(found, moved, strict=True):
            if each.is_clear:
                assert each.is_frontier != any(dominates(other, own) for other in moved)


def test_close_points_are_on_the_frontier_only_within_their_intervals() -> None:
    first, second = frontier([point(50, 100, 0.02), point(49.5, 101, 0.02)])
    assert (first.is_frontier, first.is_clear, second.is_frontier, second.is_clear) == (True, False, True, False)
    worse = frontier([point(50, 100, 0.02), point(49.5, 99.5, 0.02)])[1]
    assert (worse.is_frontier, worse.is_clear) == (False, False)
    far = frontier([point(50, 100, 0.02), point(10, 10, 0.02)])[1]
    assert (far.is_frontier, far.is_clear) == (False, True)


def test_a_point_without_an_interval_is_never_clear() -> None:
    bare = ParetoPoint(label="a", user=Estimate(50), hardware=Estimate(10))
    found = frontier([bare, point(40, 20)])
    assert [(each.is_frontier, each.is_clear) for each in found] == [(True, False), (True, False)]


def test_answer_is_interpolated_between_the_neighbouring_points() -> None:
    points = [point(80, 100, price=3.6), point(60, 300, price=3.6), point(40, 500, price=3.6)]
    (answer,) = at(points, 55).answers
    assert answer.hardware is not None and answer.hardware.value == pytest.approx(350)
    assert answer.between == ("60", "40") and not answer.is_lower_bound
    low, high = answer.hardware.ci
    assert low is not None and high is not None and low < 350 < high
    assert answer.cost is not None and answer.cost.value == pytest.approx(1000 / 350)
    assert answer.cost.ci == (pytest.approx(1000 / high), pytest.approx(1000 / low))


def test_answer_at_a_measured_point_is_that_point() -> None:
    (answer,) = at([point(80, 100), point(60, 300), point(40, 500)], 60).answers
    assert answer.hardware is not None and answer.hardware.value == 300 and answer.between == ("60",)


def test_nothing_is_extrapolated_to_faster_users() -> None:
    (answer,) = at([point(43, 100), point(30, 300)], 50).answers
    assert answer.hardware is None and answer.cost is None
    assert answer.reason == "no measured level reaches 50 tokens/s/user; the fastest (43) has 43"


def test_if_users_are_faster_at_every_level_the_best_level_is_a_lower_bound() -> None:
    (answer,) = at([point(80, 100), point(60, 300)], 50).answers
    assert answer.hardware is not None and answer.hardware.value == 300
    assert answer.is_lower_bound and answer.between == ("60",)


def test_a_measured_point_with_faster_users_is_better_than_a_curve_that_falls_behind_it() -> None:
    (answer,) = at([point(60, 1000), point(40, 800)], 50).answers
    assert answer.hardware is not None and answer.hardware.value == 1000 and answer.between == ("60",)


def test_points_of_different_settings_are_not_joined_and_the_cheapest_comes_first() -> None:
    points = [
        point(80, 100, curve="a", price=1.0),
        point(40, 500, curve="a", price=1.0),
        point(70, 900, curve="b", price=9.0),
        point(50, 900, curve="b", price=9.0),
        point(20, 10, curve="c", price=1.0),
    ]
    answers = at(points, 60).answers
    assert [answer.curve for answer in answers] == ["a", "b", "c"]
    assert [answer.hardware and answer.hardware.value for answer in answers] == [pytest.approx(300), 900, None]


def test_without_an_interval_of_a_neighbour_the_answer_has_none() -> None:
    bare = ParetoPoint(label="bare", user=Estimate(80), hardware=Estimate(100))
    (answer,) = at([bare, point(40, 500)], 60).answers
    assert answer.hardware is not None and answer.hardware.value == 300 and answer.hardware.ci == (None, None)


def test_lower_end_is_open_if_the_rate_may_not_be_reached() -> None:
    (answer,) = at([point(50.1, 100, 0.05), point(30, 300, 0.05)], 50).answers
    assert answer.hardware is not None and answer.hardware.ci[0] is None and answer.hardware.ci[1] is not None


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8), st.floats(0.5, 35))
@hypothesis_settings(max_examples=50)
def test_answer_lies_on_the_curve(cloud: list[tuple[float, float]], wanted: float) -> None:
    points = [point(x, y) for x, y in cloud]
    (answer,) = at(points, wanted).answers
    assert at(points[::-1], wanted).answers[0].hardware == answer.hardware
    reaching = [y for x, y in cloud if x >= wanted]
    assert (answer.hardware is None) == (not reaching)
    if answer.hardware is not None:
        assert max(reaching) <= answer.hardware.value <= max(y for _, y in cloud) * (1 + 1e-12)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
def test_interval_covers_the_truth_as_often_as_it_says(correlation: float) -> None:
    """Whether the errors of a point's two figures are related or not."""
    users, error, rounds = np.array([4, 8, 16, 32]), 0.02, 150
    x = 100 / (1 + users / 16)
    y = 0.9 * users * x
    truth = float(np.interp(60, x[::-1], y[::-1]))
    rng, covered = np.random.default_rng(7), 0
    for _ in range(rounds):
        a, b = rng.normal(size=(2, len(x)))
        b = correlation * a + np.sqrt(1 - correlation**2) * b
        points = []
        for each, other, of_x, of_y in zip(x, y, a, b, strict=True):
            seen = (each * (1 + error * of_x), other * (1 + error * of_y))
            ends = [(s - 1.96 * error * t, s + 1.96 * error * t) for s, t in zip(seen, (each, other), strict=True)]
            points.append(ParetoPoint(label="", user=Estimate(seen[0], ends[0]), hardware=Estimate(seen[1], ends[1])))
        hardware = at(points, 60).answers[0].hardware
        assert hardware is not None and None not in hardware.ci
        covered += hardware.ci[0] <= truth <= hardware.ci[1]  # type: ignore[operator]
    assert covered / rounds >= 0.92  # 0.95 less two standard errors


# --- from the levels of a sweep --------------------------------------------------------------------------------------


def level(users: int, tps: float, tokens: float, gpus: int | None = 2, **changes: object) -> Point:
    made = Point(
        run="r",
        stage=0,
        name=f"concurrency {users}",
        settings={"data.input": 1024},
        by="concurrency",
        level=users,
        is_quotable=True,
        is_overloaded=False,
        counts=Counts(9, 0, 0, {}),
        throughput=Throughput(output_tokens=tokens, ci={"output_tokens": (0.9 * tokens, 1.1 * tokens)}),
        metrics={"tps_user": Distribution(unit="tokens/s", count=9, p50=tps, ci={"p50": (0.9 * tps, 1.1 * tps)})},
        efficiency=None if gpus is None else Efficiency(gpus=gpus, price_per_hour=7.2, currency="EUR"),
    )
    return msgspec.structs.replace(made, **changes)


def test_levels_of_a_sweep_become_points_per_gpu() -> None:
    found = pareto_of([level(1, 90, 80), level(8, 50, 400)], [50])
    assert found is not None and (found.unit, found.currency) == ("gpu", "EUR")
    first = found.points[0]
    assert (first.label, first.curve, first.level) == ("concurrency 1", "data.input 1024", 1)
    assert first.hardware == Estimate(40, (36, 44)) and first.price_per_hour == 3.6
    assert first.cost is not None and first.cost.value == pytest.approx(2000 / 80)
    best = found.cheapest_at[0].answers[0]
    assert best.cost is not None and best.cost.value == pytest.approx(1000 / 200)


def test_points_of_different_workloads_do_not_compete() -> None:
    short, long = {"data.input": 64, "server.model": "a"}, {"data.input": 4096, "server.model": "a"}
    found = pareto_of([level(1, 90, 800, settings=short), level(1, 50, 80, settings=long)], [40])
    assert found is not None and [each.is_frontier for each in found.points] == [True, True]
    assert [(each.workload, len(each.answers)) for each in found.cheapest_at] == [
        ("data.input 64", 1),
        ("data.input 4096", 1),
    ]
    servers = [{"server.url": "http://a"}, {"server.url": "http://b"}]
    found = pareto_of([level(1, 90 - n, 800 - n, settings=each) for n, each in enumerate(servers)], [40])
    assert found is not None and [each.is_frontier for each in found.points] == [True, False]
    assert [answer.curve for answer in found.cheapest_at[0].answers] == ["server.url http://a", "server.url http://b"]


def test_without_gpus_the_rates_are_those_of_all_servers() -> None:
    found = pareto_of([level(1, 90, 80, None), level(8, 50, 400)])
    assert found is not None and found.unit == "server"
    assert [each.hardware.value for each in found.points] == [80, 400]
    assert [each.price_per_hour for each in found.points] == [None, 7.2]


def test_levels_that_may_not_be_quoted_are_left_out_with_a_reason() -> None:
    levels = [
        level(1, 90, 80),
        level(2, 80, 90, is_overloaded=True),
        level(3, 70, 90, is_quotable=False),
        level(4, 70, 90, metrics={}),
        level(5, 70, 90, throughput=Throughput(reason="too short")),
    ]
    found = pareto_of(levels)
    assert found is not None and [each.label for each in found.points] == ["concurrency 1"]
    assert list(found.left_out) == [f"data.input 1024: concurrency {users}" for users in (2, 3, 4, 5)]
    assert pareto_of(levels[1:]) is None
