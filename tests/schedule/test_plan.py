"""Plans are pure functions of (load, seed), with exact counts and the promised distributions."""

import hashlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from inferometer import schedule
from inferometer.config.fields import RampUp, Seconds
from inferometer.config.loads import Bursts, Closed, Constant, Gamma, Load, Poisson, Ramp, Stages, StageSpec, Steps
from inferometer.errors import UserError
from inferometer.types import ClosedStage, OpenStage
from inferometer.units import NS


def s(seconds: float) -> Seconds:
    return Seconds(seconds)


def only(load: Load, seed: int = 1) -> OpenStage:
    """The plan's single stage."""
    (stage,) = schedule.plan(load, seed).stages
    assert isinstance(stage, OpenStage)
    return stage


def gaps(stage: OpenStage) -> np.ndarray:
    return np.diff(stage.instants, prepend=0) / NS


OPEN = st.one_of(
    st.builds(Constant, rate=st.floats(0.1, 5000), duration=st.floats(0.01, 2).map(s)),
    st.builds(Poisson, rate=st.floats(0.1, 5000), duration=st.floats(0.01, 2).map(s)),
    st.builds(Gamma, rate=st.floats(0.1, 5000), duration=st.floats(0.01, 2).map(s), burstiness=st.floats(0.1, 20)),
    st.builds(Ramp, start=st.floats(0, 900), end=st.floats(0.1, 900), duration=st.floats(0.01, 2).map(s), arrivals=st.sampled_from(["constant", "poisson"])),
    st.builds(Steps, rates=st.lists(st.floats(0.1, 900), min_size=1, max_size=5), duration=st.floats(0.01, 2).map(s), arrivals=st.sampled_from(["constant", "poisson"])),
    st.builds(Bursts, rate=st.floats(0.1, 900), idle_rate=st.floats(0, 90), on=st.floats(0.01, 1).map(s), off=st.floats(0, 1).map(s), duration=st.floats(0.01, 2).map(s), arrivals=st.sampled_from(["constant", "poisson"])),
)  # fmt: skip


COUNTS = st.sampled_from(["expected", "random"])


# --- exact properties ------------------------------------------------------------------------------------------------


@given(OPEN, COUNTS, st.integers(0, 300), st.integers(0, 2**65))
def test_instants_ascend_within_the_stage_and_do_not_exceed_the_requests(
    spec: StageSpec, count: str, most: int, seed: int
) -> None:
    spec.requests = most
    spec.count = count  # type: ignore[union-attr, assignment]
    stage = only(spec, seed)
    assert stage.instants.dtype == np.int64
    assert np.all(np.diff(stage.instants) >= 0)
    assert stage.duration > 0
    assert stage.duration <= round(spec.duration * NS)
    assert np.all((stage.instants >= 0) & (stage.instants < stage.duration))
    assert not most or len(stage.instants) <= most


@given(OPEN, COUNTS, st.integers(0, 2**65))
def test_the_same_seed_gives_the_same_plan(spec: StageSpec, count: str, seed: int) -> None:
    spec.count = count  # type: ignore[union-attr, assignment]
    assert np.array_equal(only(spec, seed).instants, only(spec, seed).instants)


@pytest.mark.parametrize(
    ("spec", "digest"),
    [
        (Poisson(rate=5000, duration=s(2)), "aadf34d5a2996239"),
        (Poisson(rate=5000, duration=s(2), count="random"), "4b3f82fffd41e2d0"),
        (Gamma(rate=5000, duration=s(2), burstiness=0.3), "b63bf6f88bf382a6"),
        (Gamma(rate=5000, duration=s(2), burstiness=7.5), "79df48205061b514"),
        (Ramp(start=0, end=9000, duration=s(2)), "af9ef8734d22e25b"),
    ],
)
def test_plans_are_the_same_on_every_processor_and_with_every_numpy(spec: StageSpec, digest: str) -> None:
    assert hashlib.sha256(only(spec).instants.astype("<i8").tobytes()).hexdigest()[:16] == digest


@given(OPEN, st.integers(1, 200), st.integers(0, 99))
def test_with_a_random_count_fewer_requests_are_the_first_of_more(spec: StageSpec, most: int, seed: int) -> None:
    spec.count = "random"  # type: ignore[union-attr]
    whole = only(spec, seed).instants
    spec.requests = most
    assert np.array_equal(only(spec, seed).instants, whole[:most])


@given(st.one_of(st.integers(1, 10**6), st.floats(0.01, 1e6)), st.integers(1, 5000))
@example(0.015198666563616457, 426)  # 7.8 hours, where a float's own precision is 4 ps
def test_constant_arrivals_are_evenly_spaced(rate: float, n: int) -> None:
    instants = only(Constant(rate=rate, requests=n)).instants
    assert len(instants) == n
    exact = [Fraction(k) * NS / Fraction(rate) for k in range(n)]
    bounds = [Fraction(501, 1000) + e / 2**50 for e in exact]  # rounding to whole ns, and that of floats
    assert all(abs(i - e) <= bound for i, e, bound in zip(instants.tolist(), exact, bounds, strict=True))


def test_constant_arrivals_do_not_drift_over_a_day() -> None:
    instants = only(Constant(rate=30, duration=s(86_400))).instants
    assert len(instants) == 30 * 86_400
    assert np.array_equal(instants[::30], np.arange(86_400) * NS)


@pytest.mark.parametrize(
    ("rate", "duration", "n"), [(10, 1, 10), (3, 1, 3), (0.1, 30, 3), (0.7, 10, 7), (2.5, 1, 3), (1000, 0.3, 300)]
)
def test_a_constant_load_sends_its_rate_times_its_duration(rate: float, duration: float, n: int) -> None:
    stage = only(Constant(rate=rate, duration=s(duration)))
    assert len(stage.instants) == n
    assert stage.instants[0] == 0
    assert stage.duration == round(duration * NS)


def test_a_number_of_requests_lasts_as_long_as_it_takes_at_the_rate() -> None:
    assert only(Constant(rate=4, requests=10)).duration == 2_500_000_000
    assert only(Constant(rate=4, requests=10, duration=s(60))).duration == 2_500_000_000
    assert only(Constant(rate=4, requests=10, duration=s(1))).duration == NS
    assert only(Ramp(start=0, end=100, duration=s(10), requests=125)).duration == pytest.approx(5 * NS, rel=0.5)


def test_a_free_process_lasts_until_its_last_request() -> None:
    for seed in range(20):
        stage = only(Poisson(rate=100, requests=50, count="random"), seed)
        assert len(stage.instants) == 50
        assert stage.duration == max(NS // 2, int(stage.instants[-1]) + 1)


def test_another_seed_or_stage_index_gives_other_instants() -> None:
    one, other = only(Poisson(rate=50, requests=20), 1), only(Poisson(rate=50, requests=20), 2)
    assert not np.array_equal(one.instants, other.instants)
    first, second = schedule.plan(Stages([Poisson(rate=50, requests=20)] * 2), 1).stages
    assert isinstance(first, OpenStage) and isinstance(second, OpenStage)
    assert np.array_equal(first.instants, one.instants)
    assert not np.array_equal(first.instants, second.instants)


def test_a_stage_has_its_cap_and_what_to_do_there() -> None:
    stage = only(Poisson(rate=5, requests=1, max_concurrency=7, when_full="drop"))
    assert (stage.cap, stage.drop) == (7, True)
    assert (only(Poisson(rate=5, requests=1)).cap, only(Poisson(rate=5, requests=1)).drop) == (0, False)


def test_a_closed_stage_is_taken_from_the_load() -> None:
    load = Closed(concurrency=8, requests=100, duration=s(5), ramp_up=RampUp("1s"), think=s(0.25))
    assert schedule.plan(load, 0).stages == (
        ClosedStage(concurrency=8, requests=100, duration=5 * NS, ramp_up=NS, think=NS // 4),
    )


def closed(load: Load, e2e: int = 0) -> ClosedStage:
    (stage,) = schedule.plan(load, 0, e2e).stages
    assert isinstance(stage, ClosedStage)
    return stage


@given(st.integers(1, 500), st.integers(1, 60 * NS), st.sampled_from([0.0, 4.0, 1000.0]), st.sampled_from([0.0, 0.5]))
def test_users_start_over_the_duration_of_one_request(
    concurrency: int, e2e: int, duration: float, think: float
) -> None:
    stage = closed(Closed(concurrency=concurrency, requests=9, duration=s(duration), think=s(think)), e2e)
    wanted = e2e + round(think * NS)
    limit = round(duration * NS) // 4 if duration else wanted
    assert min(wanted, limit) - concurrency < stage.ramp_up <= min(wanted, limit)
    assert not stage.ramp_is_limit


def test_without_an_estimate_the_first_response_may_shorten_the_ramp_up() -> None:
    stage = closed(Closed(concurrency=4, requests=9))
    assert (stage.ramp_up, stage.ramp_is_limit) == (NS, True)
    assert closed(Closed(concurrency=4, duration=s(1))).ramp_up == NS // 4


@pytest.mark.parametrize("text", ["0", "2s"])
def test_an_explicit_ramp_up_does_not_depend_on_the_estimate(text: str) -> None:
    for e2e in (0, NS):
        stage = closed(Closed(concurrency=4, duration=s(4), ramp_up=RampUp(text)), e2e)
        assert (stage.ramp_up, stage.ramp_is_limit) == (2 * NS if text == "2s" else 0, False)


def test_ids_continue_from_stage_to_stage() -> None:
    load = Stages(
        [
            Constant(rate=10, requests=5),
            Closed(requests=7),
            Closed(duration=s(1)),
            Poisson(rate=9, requests=2),
            Closed(requests=1),
        ]
    )
    firsts = [stage.first_id for stage in schedule.plan(load, 0).stages]
    assert firsts == [0, 5, 12, 12 + 2**32, 14 + 2**32]


def test_a_load_with_too_many_requests_is_an_error() -> None:
    with pytest.raises(UserError, match=r"a stage of the load has 1e\+12 requests, but a plan holds at most 2e\+08"):
        only(Poisson(rate=1e9, duration=s(1000)))
    with pytest.raises(UserError, match="requests, but a plan holds"):
        only(Constant(rate=1, requests=10**12))


def test_a_load_that_lasts_too_long_is_an_error() -> None:
    with pytest.raises(UserError, match="longer than thirty years"):
        only(Constant(rate=1e-12, requests=10))
    with pytest.raises(UserError, match="longer than thirty years"):
        only(Constant(rate=1e-3, duration=s(1e10)))


# --- distributions (with fixed seeds, so that these tests cannot flake) ----------------------------------------------


def test_poisson_gaps_are_exponential() -> None:
    stage = only(Poisson(rate=500, requests=20_000))
    assert stats.kstest(gaps(stage), stats.expon(scale=1 / 500).cdf).pvalue > 0.001


def test_counts_of_a_poisson_process_in_short_windows_are_poisson() -> None:
    stage = only(Poisson(rate=500, duration=s(100)))
    counts = np.bincount(stage.instants // (NS // 10), minlength=1000)
    assert np.var(counts) / np.mean(counts) == pytest.approx(1, abs=3 * np.sqrt(2 / 1000))


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_are_gamma_distributed(burstiness: float) -> None:
    stage = only(Gamma(rate=200, requests=20_000, burstiness=burstiness))
    gamma, shortest = stats.gamma(burstiness, scale=1 / (200 * burstiness)), 1e-6
    # Bursty arrivals can be closer than a nanosecond, the plan's resolution. So the shortest gaps are only counted, and
    # the others are compared with the distribution above them.
    long = gaps(stage)[gaps(stage) > shortest]
    assert len(long) / 20_000 == pytest.approx(gamma.sf(shortest), abs=0.01)
    assert stats.kstest(long, lambda x: 1 - gamma.sf(x) / gamma.sf(shortest)).pvalue > 0.001
    assert np.mean(gaps(stage)) == pytest.approx(1 / 200, rel=0.05)


def test_gamma_gaps_with_a_large_shape_are_nearly_constant() -> None:
    assert np.std(gaps(only(Gamma(rate=10, requests=5000, burstiness=10_000)))) < 0.1 * 0.02


@pytest.mark.parametrize(("start", "end"), [(0.0, 400.0), (400.0, 20.0), (100.0, 100.0)])
def test_a_ramp_sends_the_integral_of_its_rate(start: float, end: float) -> None:
    evenly = only(Ramp(start=start, end=end, duration=s(10), arrivals="constant"))
    t = evenly.instants / NS
    assert start * t + (end - start) / 10 * t * t / 2 == pytest.approx(np.arange(len(t)), abs=1e-5)
    assert len(t) == np.ceil((start + end) / 2 * 10)
    # Given their number, the arrivals of a Poisson process are independent draws from the normalised integral.
    t = only(Ramp(start=start, end=end, duration=s(100))).instants / NS
    mass = (start + end) / 2 * 100
    assert stats.kstest(t, lambda t: (start * t + (end - start) / 100 * t * t / 2) / mass).pvalue > 0.001
    assert len(t) == mass


def test_steps_have_their_rates() -> None:
    evenly = only(Steps(rates=[10, 100, 20], duration=s(30), arrivals="constant"))
    assert np.bincount(evenly.instants // (10 * NS)).tolist() == [100, 1000, 200]
    counts = np.bincount(only(Steps(rates=[10, 100, 20], duration=s(300))).instants // (100 * NS))
    assert counts == pytest.approx([1000, 10_000, 2000], abs=3 * np.sqrt(10_000))


@pytest.mark.parametrize("arrivals", ["constant", "poisson"])
def test_bursts_are_silent_while_off(arrivals: str) -> None:
    stage = only(Bursts(rate=100, on=s(0.7), off=s(1.3), duration=s(200), arrivals=arrivals))  # type: ignore[arg-type]
    phase = stage.instants % (2 * NS)
    assert np.all(phase <= 0.7 * NS)
    assert len(phase) == 7000
    assert stats.kstest(phase / NS, stats.uniform(0, 0.7).cdf).pvalue > 0.001


def test_bursts_have_an_idle_rate() -> None:
    phase = only(Bursts(rate=100, idle_rate=10, on=s(1), off=s(3), duration=s(400), arrivals="constant")).instants % (
        4 * NS
    )
    assert np.bincount(phase // NS).tolist() == [10_000, 1000, 1000, 1000]


def test_bursts_without_a_pause_are_a_constant_rate() -> None:
    bursts = only(Bursts(rate=8, on=s(1), off=s(0), duration=s(10), arrivals="constant"))
    assert np.array_equal(bursts.instants, only(Constant(rate=8, duration=s(10))).instants)


# --- a fixed number of requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "n"),
    [
        (Poisson(rate=40, duration=s(15)), 600),
        (Poisson(rate=2.4, duration=s(1)), 2),
        (Poisson(rate=2.5, duration=s(1)), 3),
        (Poisson(rate=3.5, duration=s(1)), 4),
        (Poisson(rate=1.005, duration=s(100)), 101),  # 100.49999999999999 as floats
        (Poisson(rate=0.4, duration=s(1)), 0),
        (Gamma(rate=40, duration=s(15), burstiness=0.5), 600),
        (Ramp(start=0, end=80, duration=s(15)), 600),
        (Steps(rates=[10, 30], duration=s(10)), 200),
        (Bursts(rate=100, idle_rate=10, on=s(1), off=s(3), duration=s(5.5)), 235),
        (Poisson(rate=40, requests=200), 200),
        (Poisson(rate=40, requests=200, duration=s(60)), 200),
        (Poisson(rate=40, requests=200, duration=s(1)), 40),
    ],
)
def test_random_arrivals_have_the_expected_count(spec: StageSpec, n: int) -> None:
    assert {len(only(spec, seed).instants) for seed in range(50)} == {n}


@given(OPEN, st.integers(0, 2**65))
def test_random_and_even_arrivals_have_the_same_count_to_one(spec: StageSpec, seed: int) -> None:
    random = only(spec, seed)
    if isinstance(spec, Ramp | Steps | Bursts):
        spec.arrivals = "constant"
    elif isinstance(spec, Poisson | Gamma):
        spec = Constant(rate=spec.rate, duration=spec.duration)
    # Even arrivals round up, because the first is at 0; random ones round to the nearest.
    assert len(only(spec).instants) - len(random.instants) in (0, 1)


@pytest.mark.parametrize("spec", [Poisson(rate=40, duration=s(5)), Gamma(rate=40, duration=s(5), burstiness=0.2)])
def test_requests_and_duration_at_the_same_rate_are_the_same_load(spec: Poisson | Gamma) -> None:
    timed = only(spec)
    spec.requests = 200
    assert (only(spec).duration, only(spec).instants.tolist()) == (timed.duration, timed.instants.tolist())
    spec.duration = s(0)
    assert (only(spec).duration, only(spec).instants.tolist()) == (5 * NS, timed.instants.tolist())


def test_given_their_number_poisson_arrivals_are_uniform_over_the_stage() -> None:
    pooled = np.concatenate([only(Poisson(rate=40, duration=s(5)), seed).instants for seed in range(100)]) / (5 * NS)
    assert len(pooled) == 20_000
    assert stats.kstest(pooled, stats.uniform.cdf).pvalue > 0.001
    first = [only(Poisson(rate=2, duration=s(5)), seed).instants[0] / (5 * NS) for seed in range(2000)]
    assert stats.kstest(first, stats.beta(1, 10).cdf).pvalue > 0.001  # the least of ten uniform numbers


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_keep_their_coefficient_of_variation(burstiness: float) -> None:
    stage = only(Gamma(rate=200, duration=s(100), burstiness=burstiness))
    assert len(stage.instants) == 20_000
    assert np.std(gaps(stage)) / np.mean(gaps(stage)) == pytest.approx(burstiness**-0.5, rel=0.05)


@pytest.mark.parametrize("burstiness", [5e-324, 1e-6, 1e15, 1e300])
def test_an_absurd_burstiness_still_has_the_expected_count(burstiness: float) -> None:
    stage = only(Gamma(rate=50, duration=s(2), burstiness=burstiness))
    assert len(stage.instants) == 100
    assert 0 <= stage.instants.min() <= stage.instants.max() < 2 * NS


@pytest.mark.parametrize("count", ["expected", "random"])
def test_only_a_random_count_varies_and_then_like_a_poisson_number(count: str) -> None:
    counts = [len(only(Poisson(rate=40, duration=s(5), count=count), seed).instants) for seed in range(1000)]  # type: ignore[arg-type]
    if count == "expected":
        assert set(counts) == {200}
    else:
        assert np.mean(counts) == pytest.approx(200, abs=4 * np.sqrt(200 / 1000))
        assert np.var(counts) / 200 == pytest.approx(1, abs=4 * np.sqrt(2 / 1000))


# --- pauses ----------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.one_of(OPEN, st.builds(Closed, requests=st.integers(8, 20))), min_size=1, max_size=5),
    st.booleans(),
    st.floats(0, 100).map(s),
    st.integers(1, 4),
)
def test_a_pause_precedes_every_stage_but_the_first_in_every_shard(
    specs: list[StageSpec], drain: bool, pause: Seconds, shards: int
) -> None:
    paused = schedule.plan(Stages(specs, drain=drain, pause=pause), 1)
    plain = schedule.plan(Stages(specs, drain=drain), 1)
    expected = [0] + [round(pause * NS)] * (len(specs) - 1)
    for k in range(shards):
        part = schedule.shard(paused, k, shards)
        assert [stage.pause for stage in part.stages] == expected
        assert [stage.barrier for stage in part.stages] == [False] + [drain] * (len(specs) - 1)
    for stage, other in zip(paused.stages, plain.stages, strict=True):  # the load of each stage is as without a pause
        assert (stage.first_id, stage.duration) == (other.first_id, other.duration)
        if isinstance(stage, OpenStage) and isinstance(other, OpenStage):
            assert np.array_equal(stage.instants, other.instants)
    duration = schedule.planned_duration(plain)
    assert schedule.planned_duration(paused) == (None if duration is None else duration + sum(expected))


# --- what a plan adds up to ------------------------------------------------------------------------------------------


def test_total_requests_and_planned_duration() -> None:
    opens = schedule.plan(Stages([Constant(rate=10, requests=5), Constant(rate=10, duration=s(2))]), 0)
    assert schedule.total_requests(opens) == 25
    assert schedule.planned_duration(opens) == 2_500_000_000
    counted = schedule.plan(Stages([Constant(rate=10, requests=5), Closed(requests=9)]), 0)
    assert schedule.total_requests(counted) == 14
    assert schedule.planned_duration(counted) is None
    timed = schedule.plan(Closed(duration=s(3)), 0)
    assert schedule.total_requests(timed) is None
    assert schedule.planned_duration(timed) == 3 * NS


@pytest.mark.parametrize(
    ("spec", "rates"),
    [
        (Poisson(rate=7, requests=1), [7, 7, 7, 7]),
        (Ramp(start=0, end=40, duration=s(4)), [0, 10, 20, 30]),
        (Ramp(start=40, end=20, duration=s(2)), [40, 30, 20, 20]),
        (Steps(rates=[1, 5], duration=s(4)), [1, 1, 5, 5]),
        (Bursts(rate=9, idle_rate=2, on=s(1), off=s(1), duration=s(9)), [9, 2, 9, 2]),
        (Closed(requests=1), [None] * 4),
    ],
)
def test_the_planned_rate_at_an_instant(spec: StageSpec, rates: list[float | None]) -> None:
    assert [schedule.rate_at(spec, t * NS) for t in range(4)] == rates
