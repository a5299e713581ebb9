"""Objectives as text: what is accepted, what an error says, and which requests meet the form for a single request."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import MS, SECOND, blank

from inferometer.analysis.metrics import METRICS, RATES
from inferometer.analysis.percentiles import PERCENTILES
from inferometer.analysis.slo_expression import Condition, Slo, Threshold, met, parse, parse_all
from inferometer.analysis.slo_presets import PRESETS
from inferometer.errors import UserError
from inferometer.records import Columns

NUMBERS = st.floats(1e-6, 1e9, allow_nan=False)
SPACE = st.sampled_from(["", " ", "   ", "\t"])
SIGNS = {"<": st.sampled_from(["<", "<="]), ">": st.sampled_from([">", ">="])}


@st.composite
def limits(draw: st.DrawFn, metric: str) -> tuple[str, Threshold]:
    if METRICS[metric].unit == "s":
        return draw(SIGNS["<"]), Threshold(draw(NUMBERS), draw(st.sampled_from(["s", "ms", "us", "ns"])))
    return draw(SIGNS["<"] | SIGNS[">"]), Threshold(draw(NUMBERS))


@st.composite
def conditions(draw: st.DrawFn) -> Condition:
    metric = draw(st.sampled_from([name for name, row in METRICS.items() if row.values is not None]))
    return Condition(metric, *draw(limits(metric)))


@st.composite
def slos(draw: st.DrawFn) -> Slo:
    kind = draw(st.sampled_from(["metric", "throughput", "failure_rate", "goodput"]))
    if kind == "metric":
        metric = draw(st.sampled_from([*METRICS]))
        return Slo(kind, *draw(limits(metric)), metric, draw(st.sampled_from(["mean", *PERCENTILES])))
    if kind == "throughput":
        rate = draw(st.sampled_from([name for name in RATES if name not in ("little", "decode", "span")]))
        threshold = Threshold(draw(NUMBERS), "" if rate == "in_flight" else draw(st.sampled_from(["", "/s"])))
        return Slo(kind, draw(SIGNS[">"]), threshold, rate)
    share = Threshold(draw(st.floats(0.001, 99.99)), "%")
    if kind == "failure_rate":
        return Slo(kind, draw(SIGNS["<"]), share)
    threshold = draw(st.just(share) | st.builds(Threshold, NUMBERS, st.just("/s")))
    return Slo(
        kind, draw(SIGNS[">"]), threshold, conditions=tuple(draw(st.lists(conditions(), min_size=1, max_size=3)))
    )


@given(slos())
def test_text_of_an_objective_parses_to_the_same_objective(slo: Slo) -> None:
    assert parse(str(slo)) == slo


@given(slos(), SPACE)
def test_space_around_signs_does_not_matter(slo: Slo, space: str) -> None:
    text = str(slo)
    for sign in ("<=", ">=", "<", ">", "&", "(", ")"):
        text = text.replace(sign, f"{space}{sign}{space}")
    text = text.replace("< =", "<=").replace("> =", ">=")
    for split in ("<", ">"):  # replacing `<` also took `<=` apart
        text = text.replace(f"{split}{space}=", f"{split}=")
    assert parse(f"{space}{text}{space}") == slo


@given(st.text(max_size=40) | st.text("tfp9.<>=&()% 0m/s", max_size=30))
def test_any_other_text_is_a_user_error(text: str) -> None:
    try:
        assert parse(str(parse(text))) == parse(text)
    except UserError as error:
        assert error.key == "slo"
        assert "column" in error.what
        assert error.remedy


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ttft.p99 < 500ms", 0.5),
        ("ttft.mean < 300ms", 0.3),
        ("tpot.p95 <= 50ms", 0.05),
        ("itl.p99.9 < 2s", 2.0),
        ("e2e.p50<.25s", 0.25),
        ("lag.p99 < 250us", 0.00025),
        ("failure_rate < 0.1%", 0.001),
        ("failure_rate < 0.001", 0.001),
        ("goodput(ttft<500ms & tpot<50ms) > 95%", 0.95),
        ("goodput(e2e < 2 s) >= 20/s", 20.0),
        ("throughput.output_tokens > 2000", 2000.0),
        ("throughput.offered >= 1e3", 1000.0),
        ("output_tokens.p50 >= 100", 100.0),
    ],
)
def test_thresholds_are_in_base_units(text: str, value: float) -> None:
    assert parse(text).threshold.value == value


def test_p999_can_be_written_in_two_ways() -> None:
    assert parse("ttft.p99.9 < 1s") == parse("ttft.p999 < 1s")
    assert str(parse("ttft.p999 < 1s")) == "ttft.p99.9 < 1s"


@pytest.mark.parametrize(
    ("text", "what", "remedy"),
    [
        ("ttfft.p99 < 5ms", "there is no metric 'ttfft' (column 1 of 'ttfft.p99 < 5ms')", "did you mean ttft?"),
        ("TTFT.p99 < 5ms", "there is no metric 'TTFT'", "did you mean ttft?"),
        ("ttft.p98 < 5ms", "there is no statistic 'p98' (column 6 of", "did you mean p99?"),
        ("ttft < 5ms", "expected '.', got '<' (column 6 of", "name a statistic: ttft.p99 or ttft.mean"),
        ("ttft.p99 > 500ms", "this needs an upper limit, got '>' (column 10 of", "did you mean <?"),
        ("throughput.requests <= 20", "this needs a lower limit, got '<=' (column 21 of", "did you mean >=?"),
        ("ttft.p99 = 5ms", "there is no sign '='", "use <, <=, > or >="),
        ("ttft.p99", "expected <, <=, > or >=, got nothing (column 9 of", "ttft.p99 < 500ms"),
        ("ttft.p99 < 500", "the number needs a unit (column 15 of", "use ms, s, us, ns: 500ms"),
        ("throughput.requests > 5ms", "'ms' is not a unit here (column 24 of", "use /s: 20"),
        ("output_tokens.p50 > 5ms", "'ms' is not a unit here", "write the number alone"),
        ("ttft.p99 < -5ms", "expected a number, got '-5ms' (column 12 of", "500ms"),
        ("ttft.p99 < 0ms", "the limit must be more than 0, got 0ms", "no run can show"),
        ("ttft.p99 < 1e400s", "the limit 1e400s is too large (column 12 of", "500ms"),
        ("goodput(ttft<5ms) > 0.95", "the number needs a unit (column 25 of", "did you mean 95% or 0.95/s?"),
        ("goodput(ttft<5ms) > 95", "the number needs a unit", "did you mean 95% or 95/s?"),
        ("goodput(ttft<5ms) > 200", "the number needs a unit", "did you mean 200/s?"),
        ("throughput.decode > 5", "throughput.decode has no confidence interval", "use one of requests, output_tokens"),
        ("throughput.little > 0.9", "throughput.little has no confidence interval", "offered, in_flight"),
        ("throughput.span > 5", "throughput.span has no confidence interval (column 12 of", "use one of"),
        ("throughput.in_flight > 5/s", "'/s' is not a unit here", "write the number alone"),
        ("failure_rate < 5", "the limit must be less than 100%, got 5", "did you mean 5%?"),
        ("goodput(ttft<5ms) > 100%", "the limit must be less than 100%, got 100%", "no run can show"),
        ("goodput > 95%", "expected '(', got '>' (column 9 of", "goodput(ttft<500ms & tpot<50ms) > 95%"),
        ("goodput(ttft<5ms, tpot<5ms) > 9%", "expected ')', got ',' (column 17 of", "join conditions with &"),
        ("goodput(itl<5ms) > 95%", "itl has many values per request (column 9 of", "use tpot"),
        ("goodput(ttft.p99<5ms) > 95%", "a single request has no percentile (column 13 of", "write the limit alone"),
        ("throughput.tokens > 5", "there is no rate 'tokens' (column 12 of", "did you mean"),
        ("ttft.p99 < 5ms and more", "expected the end, got 'and' (column 16 of", "give one objective"),
        ("", "expected a metric, got nothing (column 1 of '')", "known: ttft"),
    ],
)
def test_error_says_what_where_and_what_next(text: str, what: str, remedy: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text, "--slo")
    assert caught.value.line.startswith(f"--slo: {what}")
    assert remedy in caught.value.next_step


def test_duplicates_are_dropped() -> None:
    assert len(parse_all(["ttft.p99 < 1s", "ttft.p99<1s", "ttft.p99 < 2s"])) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ttft.p99 < 500ms", ("ttft<500ms",)),
        ("goodput(ttft<500ms & tpot<50ms) > 95%", ("ttft<500ms", "tpot<50ms")),
        ("failure_rate < 1%", ()),
        ("ttft.mean < 500ms", None),
        ("itl.p99 < 50ms", None),
        ("throughput.requests > 5", None),
    ],
)
def test_form_for_a_single_request(text: str, expected: tuple[str, ...] | None) -> None:
    form = parse(text).per_request()
    assert (None if form is None else tuple(map(str, form))) == expected


def test_requests_meet_conditions_if_they_succeed_and_every_value_is_within_its_limit() -> None:
    rows = blank(5)
    rows["open_loop"], rows["done"] = 1, SECOND
    rows["first_token"], rows["last_token"] = 100 * MS, 500 * MS
    rows["n_out"] = rows["chunk_count"] = 11  # 40 ms per token
    rows["first_token"][1] = 600 * MS
    rows["last_token"][2] = SECOND  # 90 ms per token
    rows["n_out"][3] = rows["chunk_count"][3] = 1  # no time per token: nothing to violate
    rows["failure"][4] = 1
    both = parse("goodput(ttft<500ms & tpot<50ms) > 95%").per_request()
    assert both is not None
    np.testing.assert_array_equal(met(both, Columns.of(rows)), [True, False, False, True, False])
    np.testing.assert_array_equal(met(both[:1], Columns.of(rows)), [True, False, True, True, False])


def test_a_preset_stands_for_its_objectives() -> None:
    assert [str(one) for one in parse_all(["chat"])] == ["ttft.p99 < 2s", "tpot.p99 < 100ms"]
    assert [str(one) for one in parse_all([" inference ", "e2e.p90<100ms"], percentile="p90")] == ["e2e.p90 < 100ms"]


@pytest.mark.parametrize("name", [*PRESETS])
def test_presets_parse_at_every_percentile(name: str) -> None:
    for percentile in ("p50", "p90", "p99"):
        assert all(one.statistic == percentile for one in parse_all([name], percentile=percentile))


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UserError, match="there is no preset 'summarise'") as caught:
        parse_all(["summarise"], "--slo")
    assert caught.value.remedy == "did you mean summarize?"
    with pytest.raises(UserError, match=r"expected '\.'"):
        parse_all(["ttft"])
