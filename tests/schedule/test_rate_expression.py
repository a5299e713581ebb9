"""Rates by a formula: parsed safely, and integrated and inverted exactly."""

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from inferometer import schedule
from inferometer.config import from_mapping, rate_expression
from inferometer.config.fields import Seconds
from inferometer.config.loads import Constant, Gamma, Load, Poisson, Stages
from inferometer.errors import UserError
from inferometer.report.live import describe
from inferometer.schedule import curve, expression
from inferometer.types import OpenStage
from inferometer.units import NS


def only(load: Load, seed: int = 1) -> OpenStage:
    (stage,) = schedule.plan(load, seed).stages
    assert isinstance(stage, OpenStage)
    return stage


def config(**load: Any) -> Any:
    return from_mapping({"server": {"url": "http://x"}, "load": {"type": "poisson", "duration": "60s"} | load})


def evaluated(text: str, t: float) -> float:
    return float(expression.evaluate(rate_expression.parse(text), np.array([t]))[0])


# --- formulas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "t", "value"),
    [
        ("10 + 5*sin(2*pi*t/60)", 15, 15),
        ("2**3 - -1 + 7 % 4 / 2", 0, 10.5),
        ("(t + 1)**-2", 1, 0.25),
        ("t**0.5", 9, 3),
        ("t**0.5", 0, 0),
        ("20 if t % 60 < 30 else 5", 61, 20),
        ("20 if 10 <= t < 30 and not t == 20 else 5", 20, 5),
        ("(t > 1) * 4 + (t > 3 or t < 0)", 2, 4),
        ("min(t, 3, 2) + max(1, abs(-t)) + floor(1.9)", 5, 8),
        ("exp(log(t)) + sqrt(t) + cos(0) * e", 4, 6 + math.e),
    ],
)
def test_a_formula_has_the_value_that_it_has_in_python(text: str, t: float, value: float) -> None:
    assert evaluated(text, t) == pytest.approx(value, rel=1e-13)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "is not a formula"),
        ("10 +", "is not a formula"),
        ("x + 1", "there is no 'x': it may use t, pi, e and sin"),
        ("__import__('os').system('x')", "is not allowed"),
        ("t.real", "'t.real' is not allowed"),
        ("[t]", "is not allowed"),
        ("t if 'a' else 2", "'a' is not a number"),
        ("True + t", "True is not a number"),
        ("1j * t", "1j is not a number"),
        ("1e999", "inf is not a number"),
        ("t // 2", "is not allowed"),
        ("sin()", "sin takes 1 argument, not 0"),
        ("min(t)", "min takes 2 arguments, not 1"),
        ("round(t)", "is not allowed: functions are sin"),
        ("(" * 400 + "t" + ")" * 400, "nested|not a formula"),
        ("t+" * 600 + "t", "more than 1000 characters"),
    ],
)
def test_anything_else_is_an_error(text: str, error: str) -> None:
    with pytest.raises(UserError, match=error) as raised:
        config(rate=text)
    assert raised.value.key == "load.rate"
    assert "10 + 5*sin" in raised.value.next_step


def test_a_formula_needs_a_duration_and_is_never_stable() -> None:
    with pytest.raises(UserError, match=r"load.duration: missing"):
        config(rate="t", duration=0, requests=5)
    with pytest.raises(UserError, match=r"load.stable: a load that changes cannot be stable"):
        config(rate="1 + t", stable=0.1)


def test_ranges_and_numbers_stay_what_they_were() -> None:
    assert [stage.rate for stage in config(rate="100:300:100").load.stages] == [100, 200, 300]
    assert config(rate=5).load.rate == 5
    with pytest.raises(UserError, match=r"load.rate: must be more than 0, got -5"):
        config(rate=-5)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("10 - t", r"negative \(-.*\) at t = 10 s"),
        ("5 + 6*sin(2*pi*t/60)", r"negative \(-.*\) at t = 39.4 s"),
        ("log(30 - t) + 99", "not a number at t = 30 s"),
        ("1 / (t - t)", "not a number at t = "),
    ],
)
def test_a_rate_must_be_a_number_and_not_negative_at_any_time(text: str, error: str) -> None:
    load = Stages([Poisson(rate=1, requests=1), Poisson(rate=text, duration=Seconds(60))])
    with pytest.raises(UserError, match=error) as raised:
        schedule.check(load)
    assert raised.value.key == "load.stages.1.rate"


def test_a_rate_may_touch_zero_in_spite_of_rounding() -> None:
    schedule.check(Poisson(rate="10 + 10*sin(t) + 0.1*3 - 0.3", duration=Seconds(100)))


@given(st.floats(-1e5, 1e5))
def test_sine_and_cosine_are_accurate(x: float) -> None:
    assert float(expression.sin(x)) == pytest.approx(math.sin(x), abs=3e-16)
    assert float(expression.cos(x)) == pytest.approx(math.cos(x), abs=3e-16)


# --- the integral and its inverse ------------------------------------------------------------------------------------

CLOSED_FORMS: dict[str, tuple[float, Callable[[float], float]]] = {
    "10 + 5*sin(2*pi*t/60)": (3600, lambda t: 10 * t + 150 / math.pi * (1 - math.cos(2 * math.pi * t / 60))),
    "3*t": (100, lambda t: 1.5 * t * t),
    "7": (33.3, lambda t: 7 * t),
    "20 if t % 60 < 30 else 5": (300, lambda t: 750 * (t // 60) + 20 * min(t % 60, 30) + 5 * max(t % 60 - 30, 0)),
    "abs(t - 50)": (100, lambda t: 1250 + math.copysign((t - 50) ** 2 / 2, t - 50)),
    "50*exp(-t/10) + t**1.5": (60, lambda t: 500 * (1 - math.exp(-t / 10)) + t**2.5 / 2.5),
    "floor(t) + 1": (100, lambda t: math.floor(t) * (math.floor(t) + 1) / 2 + (math.floor(t) + 1) * (t % 1)),
}


@pytest.mark.parametrize("text", CLOSED_FORMS)
def test_instants_invert_the_closed_form_of_the_integral_to_a_nanosecond(text: str) -> None:
    duration, due = CLOSED_FORMS[text]
    made = curve.curve(text, duration)
    assert curve.requests(made, duration) == pytest.approx(due(duration), rel=1e-12)
    points = np.linspace(0, due(duration) * (1 - 1e-9), 501)
    for t, point in zip(curve.instants(made, points).tolist(), points.tolist(), strict=True):
        assert (
            due(max(t - 1e-9, 0)) <= point <= due(min(t + 1e-9, duration)) or t < 1e-3
        )  # all start at once from rate 0


TERMS = st.tuples(st.floats(0, 20), st.floats(0, 5), st.floats(0.5, 50), st.floats(0, 6), st.floats(0.05, 3))


@given(TERMS, st.floats(0.5, 200), st.integers(0, 9))
def test_the_inverse_of_the_integral_is_its_inverse(terms: Any, duration: float, seed: int) -> None:
    base, height, period, phase, kink = terms
    text = f"{base!r} + {height!r}*(1 + sin(2*pi*t/{period!r} + {phase!r})) + max(0, {kink!r} - t % {period!r}) + 0.1"
    made = curve.curve(text, duration)
    total = curve.requests(made, duration)
    points = np.sort(np.random.default_rng(seed).uniform(0, total, 50))
    times = curve.instants(made, points)
    assert np.all(np.diff(times) >= 0)
    assert np.all((times >= 0) & (times <= duration))
    for t, point in zip(times.tolist(), points.tolist(), strict=True):
        assert abs(curve.requests(made, t) - point) <= 1e-9 * curve.rate(made, t) + 1e-12 * total

    def due(t: float) -> float:
        waves = t + period / (2 * math.pi) * (math.cos(phase) - math.cos(2 * math.pi * t / period + phase))
        falls = [min(each, kink) for each in (period, t % period)]
        whole, rest = (kink * fall - fall * fall / 2 for fall in falls)
        return float((base + 0.1) * t + height * waves + t // period * whole + rest)

    for t in (duration / 3, duration):
        assert curve.requests(made, t) == pytest.approx(due(t), rel=1e-9)


@pytest.mark.parametrize("kind", [Constant, Poisson, Gamma])
def test_the_expected_number_of_requests_is_the_rounded_integral(kind: Any) -> None:
    for duration in (60.0, 47.7):
        stage = only(kind(rate="10 + 5*sin(2*pi*t/60)", duration=Seconds(duration)))
        due = CLOSED_FORMS["10 + 5*sin(2*pi*t/60)"][1](duration)
        assert len(stage.instants) == (math.ceil(due) if kind is Constant else round(due))
        assert stage.duration == round(duration * NS)
        assert np.all((stage.instants >= 0) & (stage.instants < stage.duration))
        assert np.all(np.diff(stage.instants) >= 0)


def test_requests_may_end_it_earlier() -> None:
    stage = only(Constant(rate="t", duration=Seconds(100), requests=51))
    assert len(stage.instants) == 51
    assert stage.instants[-1] == 10 * NS  # 10^2 / 2 = 50
    assert stage.duration == round(math.sqrt(102) * NS)
    assert len(only(Poisson(rate="t", duration=Seconds(10), requests=999)).instants) == 50


def test_a_constant_formula_is_a_constant_rate() -> None:
    by_formula, by_number = (only(Constant(rate=rate, duration=Seconds(5))) for rate in ("2*50", 100))
    assert np.max(np.abs(by_formula.instants - by_number.instants)) <= 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", ["expected", "random"])
def test_poisson_arrivals_follow_the_intensity(seed: int, count: Any) -> None:
    duration = 600.0
    stage = only(Poisson(rate="10 + 9*sin(2*pi*t/200)", duration=Seconds(duration), count=count), seed)
    due = [10 * t + 900 / math.pi * (1 - math.cos(2 * math.pi * t / 200)) for t in stage.instants / NS]
    total = 10 * duration
    assert stats.kstest(np.array(due) / total, "uniform").pvalue > 0.01
    assert stats.kstest(np.diff(due), "expon").pvalue > 0.01
    assert abs(len(due) - total) < 5 * math.sqrt(total)


@pytest.mark.parametrize(
    ("rate", "digest"),
    [
        ("10 + 5*sin(2*pi*t/60)", "f55da62dbed43029"),
        ("max(0, 40*cos(t/9))**1.5 + exp(-t/7) + log(1 + t)", "d713922aa7769ecc"),
    ],
)
def test_plans_are_the_same_on_every_processor_and_with_every_numpy(rate: str, digest: str) -> None:
    instants = only(Poisson(rate=rate, duration=Seconds(120))).instants
    assert hashlib.sha256(instants.astype("<i8").tobytes()).hexdigest()[:16] == digest


def test_the_planned_rate_and_the_description_are_the_formulas() -> None:
    load = Poisson(rate="10 + 5*sin(2*pi*t/60)", duration=Seconds(60))
    assert schedule.rate_at(load, 15 * NS) == pytest.approx(15)
    assert schedule.rate_at(load, 45 * NS) == pytest.approx(5)
    assert describe(load) == "poisson 10 + 5*sin(2*pi*t/60)/s"
