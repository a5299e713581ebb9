"""The rules of the recommendation, with made-up numbers."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.analysis.efficiency import Estimate
from inferometer.analysis.engine_choice import recommend
from inferometer.analysis.engine_figures import EngineLevel, Latency, LevelSlo
from inferometer.analysis.engine_levels import LevelRounds
from inferometer.analysis.recommendation import Recommendation, headline
from inferometer.analysis.rounds import Rounds

SLO = "ttft.p95 < 500ms"
QUOTABLE = {"latency": True, "throughput": True}


def level(
    at: float,
    tokens: float,
    slo: str = "met",
    error: float = 0.01,
    by: str = "concurrency",
    cost: float | None = None,
    joules: float | None = None,
    seconds: float = 1.0,
    **about: object,
) -> LevelRounds:
    """A level of a single round: `tokens` per second, a tenth as many requests."""
    made = EngineLevel(
        by=by, level=at, name=f"{by} {at:g}", repeats=1, valid=True, quotable=QUOTABLE,
        slos=(LevelSlo(SLO, slo, "20 % of 100 requests violate it"),) if slo else (),  # type: ignore[arg-type]
        cost_per_million=None if cost is None else Estimate(cost), energy_per_token=joules, ttft=Latency(count=100, p50=0.05),
    )  # fmt: skip
    figures = {
        "throughput.output_tokens": Rounds({0: tokens}, error, (0.98 * tokens, 1.02 * tokens)),
        "throughput.requests": Rounds({0: tokens / 10}, error),
        "e2e.p50": Rounds({0: seconds}, error),
    }
    return LevelRounds(msgspec.structs.replace(made, **about), figures)


def chosen(use: str, engines: dict[str, list[LevelRounds]], excluded: dict[str, str] | None = None) -> Recommendation:
    return next(each for each in recommend(engines, excluded or {}, (SLO,)) if each.use == use)


def test_interactive_use_compares_the_loads_that_are_held() -> None:
    vllm = [level(1, 100), level(8, 310, joules=None), level(64, 900, slo="missed")]
    found = chosen("interactive", {"transformers": [level(1, 100), level(8, 300, slo="missed")], "vllm": vllm})
    assert found.engine == "vllm" and found.is_clear and found.ratio == pytest.approx(3.1)
    low, high = found.ci
    assert low is not None and high is not None and 2.9 < low < 3.1 < high < 3.3
    assert found.text.startswith(
        "For interactive use at ttft.p95 < 500ms, vllm holds 3.1 x the load of transformers (3.0 to 3.2). "
        "vllm: 31 requests/s at concurrency 8;"
    )
    assert found.rule == "the most requests per second at a level that was shown to meet every objective"
    assert [(each.engine, each.level, each.value) for each in found.standings] == [
        ("vllm", 8, 31),
        ("transformers", 1, 10),
    ]


def test_the_highest_level_that_holds_is_said_to_be_the_highest_that_was_measured() -> None:
    assert "at concurrency 8 (the highest measured)" in chosen("interactive", {"a": [level(8, 100)]}).text


def test_an_undecided_level_is_not_held_and_the_reason_is_given() -> None:
    found = chosen("interactive", {"a": [level(1, 100)], "b": [level(1, 900, slo="undecided")]})
    assert found.engine == "a" and "undecided at concurrency 1" in found.left_out["b"]
    assert found.text.startswith("For interactive use at ttft.p95 < 500ms, only a can be recommended")


def test_no_engine_meets_the_objectives() -> None:
    found = chosen("interactive", {"a": [level(1, 100, slo="missed")]})
    assert found.engine == "" and not found.is_clear and found.ratio is None
    assert "no engine can be recommended: a: it meets the objectives at no level; at concurrency 1" in found.text


def test_offline_batches_take_the_highest_throughput_whatever_the_objectives() -> None:
    found = chosen("offline", {"a": [level(1, 100), level(64, 900, slo="missed")], "b": [level(1, 200)]})
    assert found.engine == "a" and found.standings[0].level == 64 and found.ratio == pytest.approx(4.5)


def test_levels_that_may_not_be_quoted_do_not_count() -> None:
    invalid = level(64, 900, quotable={"latency": False, "throughput": False}, failed_checks=("failures",))
    found = chosen("offline", {"a": [level(1, 100), invalid], "b": [level(1, 200)], "c": [invalid]})
    assert found.engine == "b" and found.left_out["c"] == "its rates may not be quoted: the check failures failed"


def test_invalid_latencies_leave_the_throughput() -> None:
    one = level(1, 100, quotable={"latency": False, "throughput": True}, failed_checks=("read_delay",))
    recommendations = {each.use: each for each in recommend({"a": [one], "b": [level(1, 50)]}, {}, (SLO,))}
    assert recommendations["offline"].engine == "a" and recommendations["interactive"].engine == "b"
    assert "read delay" in recommendations["interactive"].left_out["a"]


def test_no_clear_difference_names_both_and_the_ones_behind() -> None:
    engines = {"a": [level(1, 100, error=0.05)], "b": [level(1, 103, error=0.05)], "c": [level(1, 10)]}
    found = chosen("offline", engines)
    assert found.engine == "b" and not found.is_clear and found.equal == ("a",)
    low, high = found.ci
    assert low is not None and high is not None and low < 1 < high
    assert "there is no clear difference between b and a (ratio 1.03, 0.89 to 1.19)" in found.text
    assert "Clearly behind b: c" in found.text


def test_without_an_interval_nothing_is_clear() -> None:
    engines = {"a": [level(1, 100)], "b": [level(1, 900)]}
    engines["b"][0].figures["throughput.output_tokens"] = Rounds({0: 900.0})
    found = chosen("offline", engines)
    assert not found.is_clear and found.ci == (None, None) and "whose interval is not known" in found.text


def test_a_single_user_wants_the_lowest_median() -> None:
    engines = {"a": [level(1, 10, seconds=2.0), level(8, 10, seconds=0.1)], "b": [level(1, 10, seconds=0.5)]}
    found = chosen("single user", engines)
    assert found.engine == "b" and found.ratio == pytest.approx(4) and found.standings[0].value == pytest.approx(0.5)
    assert "b is 4.0 x as fast as a" in found.text and "first token after 50 ms" in found.text


def test_a_batch_of_one_is_a_single_user_and_a_rate_of_one_is_not() -> None:
    engines = {"a": [level(1, 10, by="batch")], "b": [level(1, 10, by="rate")]}
    assert chosen("single user", engines).left_out == {"b": "it was not measured with one request at a time"}
    assert all(each.use != "single user" for each in recommend({"b": engines["b"]}, {}, ()))


def test_cost_and_energy_only_if_they_are_known() -> None:
    plain = recommend({"a": [level(1, 10)]}, {}, ())
    assert [each.use for each in plain] == ["offline", "single user"]
    engines = {"a": [level(1, 10, cost=4.0, joules=1.0)], "b": [level(1, 10, cost=2.0, joules=3.0)]}
    assert chosen("cost", engines).engine == "b" and chosen("cost", engines).ratio == pytest.approx(2)
    assert "2 USD per million output tokens at concurrency 1" in chosen("cost", engines).text
    assert chosen("energy", engines).engine == "a" and chosen("energy", engines).ratio == pytest.approx(3)


def test_excluded_engines_are_left_out_with_the_reason() -> None:
    found = chosen("offline", {"a": [level(1, 10)]}, {"b": "it failed (died)"})
    assert found.left_out == {"b": "it failed (died)"} and found.text.startswith("For offline batches, only a can be")


def test_rounds_are_pairs() -> None:
    def rounds(values: list[float]) -> list[LevelRounds]:
        made = level(1, 1)
        made.figures["throughput.output_tokens"] = Rounds(dict(enumerate(values)))
        return [made]

    found = chosen("offline", {"a": rounds([100, 50, 200]), "b": rounds([110, 55.1, 219.5])})
    assert found.ratios[0].method == "paired" and found.engine == "b" and found.is_clear


def test_the_headline_names_engines_and_uses() -> None:
    def said(engines: dict[str, list[LevelRounds]]) -> tuple[str, str]:
        return headline(recommend(engines, {}, (SLO,)))

    fast, slow = [level(1, 100, seconds=0.1)], [level(1, 10, seconds=1.0)]
    assert said({"a": fast, "b": slow}) == ("a", "Use a for interactive use, offline batches and a single user.")
    both = said({"a": [level(1, 100, seconds=1.0)], "b": [level(1, 10, seconds=0.1)]})
    assert both == ("a and b", "Use a for interactive use and offline batches; b for a single user.")
    same = said({"a": fast, "b": [level(1, 100.1, seconds=1.0)]})
    assert same[0] == "It depends on the use" and "b or a for offline batches, without a clear difference" in same[1]
    missed = said({"a": [level(1, 10, slo="missed")]})
    assert missed[1] == "Use a for offline batches and a single user; no engine for interactive use."
    assert said({})[0] == "No engine can be recommended"


RATES = st.lists(st.floats(1, 1e5), min_size=1, max_size=4)


@given(st.lists(RATES, min_size=2, max_size=5), st.floats(1.0, 50.0), st.data())
def test_a_faster_engine_never_loses_by_it(rates: list[list[float]], factor: float, data: st.DataObject) -> None:
    def engines(times: dict[int, float]) -> dict[str, list[LevelRounds]]:
        return {
            f"e{number}": [
                level(2**at, rate * times.get(number, 1.0), seconds=1 / (rate * times.get(number, 1.0)))
                for at, rate in enumerate(own)
            ]
            for number, own in enumerate(rates)
        }

    number = data.draw(st.integers(0, len(rates) - 1))
    for use in ("interactive", "offline", "single user"):
        before, after = chosen(use, engines({})), chosen(use, engines({number: factor}))
        if before.engine == f"e{number}":
            assert after.engine == before.engine
            assert not before.is_clear or after.is_clear
        assert [each.value for each in after.standings] == sorted(
            (each.value for each in after.standings), reverse=use != "single user"
        )


@given(st.permutations(["a", "b", "c", "d"]))
def test_the_order_of_the_engines_does_not_matter(order: list[str]) -> None:
    engines = {"a": [level(1, 100)], "b": [level(1, 101)], "c": [level(1, 500)], "d": [level(1, 500)]}
    expected = recommend(engines, {}, (SLO,))
    assert recommend({name: engines[name] for name in order}, {}, (SLO,)) == expected
