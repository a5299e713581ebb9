"""Comparing sides: verdicts, sentences, conditions, figures that cannot be compared, and runs that should not be."""

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
import queues
import synthetic_run as made

from bench import comparison as bench
from inferometer.analysis import log_ratio
from inferometer.analysis.comparable import doubts, unusable
from inferometer.analysis.comparison import Comparison, Side, compare
from inferometer.analysis.comparison_text import sentence
from inferometer.analysis.fail_if import parse
from inferometer.analysis.repeats import summarise_repeats
from inferometer.analysis.summary import Measured, summarise
from inferometer.records import Failure


def measured(scale: float = 1.0, seed: int = 0, failed: int = 0, count: int = 600, **about: object) -> Measured:
    """A closed loop whose responses take `scale` times as long, of which the first `failed` failed."""
    rows, chunks = made.closed_rows(count, seed=seed)
    for name in ("first_byte", "first_token", "first_content", "last_token", "done"):
        rows[name] = rows["sent"] + ((rows[name] - rows["sent"]) * scale).astype(np.int64)
    failures: tuple[Failure, ...] = ()
    if failed:
        made.fail(rows, slice(0, failed))
        failures = (Failure("http_503", "busy"),)
        about["config"] = made.manifest().config | {"measure": {"warmup": "0", "cooldown": "0"}}
    starts = np.repeat(rows["sent"], rows["chunk_count"])
    chunks = msgspec.structs.replace(chunks, arrival=starts + ((chunks.arrival - starts) * scale).astype(np.int64))
    run = made.run(rows, chunks, failures=failures, seeds={"seed": seed}, **about)
    return run, summarise(run)


def side(*scales: float, label: str = "a", first_seed: int = 0) -> Side:
    return Side(label, tuple(measured(scale, first_seed + seed) for seed, scale in enumerate(scales)))


def sides(a: tuple[float, ...], b: tuple[float, ...], *conditions: str, shared_seeds: bool = True) -> Comparison:
    other = side(*b, label="b", first_seed=0 if shared_seeds else 100)
    return compare(side(*a), other, [parse(each) for each in conditions])


def test_pairs_are_found_by_their_seeds_and_show_a_small_difference() -> None:
    found = sides((1.0, 1.1, 0.9, 1.05), (1.03, 1.13, 0.93, 1.08))
    ttft = found.metrics["ttft.p50"]
    assert ttft.method == "paired" and ttft.verdict == "worse" and ttft.better == "lower"
    assert ttft.ci[0] is not None and 1 < ttft.ci[0] < ttft.ratio < ttft.ci[1] < 1.05  # type: ignore[operator]
    assert ttft.sentence.startswith("TTFT p50 is 3") and "% higher (" in ttft.sentence
    assert ttft.sign_flip == 0.125 and "sign-flip" not in ttft.sentence, "four pairs cannot have a smaller p"
    assert "4 pairs" in found.notes[0] and "fewer than the 8" in found.notes[0]


def test_the_sentence_says_when_the_exact_test_disagrees() -> None:
    """The t interval of seven pairs excludes 1, but two of them have the opposite sign."""
    found = log_ratio.paired([1.0] * 7, [1.02, 1.02, 1.02, 1.02, 1.02, 0.999, 0.998])
    assert found.p() < 0.05 < (found.sign_flip or 0)
    assert "the exact sign-flip test alone does not show it (p = 0.0" in sentence("e2e.p50", "worse", found)


def test_latencies_of_an_overloaded_side_are_not_compared_but_worse() -> None:
    """90 requests/s for a server that completes 70 or 200 per second: how slow the former is depends on the length of the run."""
    slow, fast = (
        Side(label, ((run := queues.run(queues.queue_rows(90, capacity, 60), queues.stage(90, 60)), summarise(run)),))
        for label, capacity in (("slow", 70), ("fast", 200))
    )
    found = compare(fast, slow, [parse("e2e.p50 worse by 5%")])
    e2e = found.metrics["e2e.p50"]
    assert e2e.verdict == "worse" and e2e.ratio is None and e2e.b is None and e2e.a is not None
    assert e2e.sentence == "E2E p50 has no steady value on side B, which is overloaded: the queue grows"
    assert [each.status for each in found.conditions] == ["fails"]
    assert found.metrics["throughput.requests"].verdict == "worse"
    assert compare(slow, fast).metrics["e2e.p50"].verdict == "better"
    both = compare(slow, slow)
    assert "e2e.p50" not in both.metrics and both.notes[-1].startswith("overloaded on side A and B: latencies have no")


@pytest.mark.parametrize(
    ("ratio", "error", "words"),
    [
        (0.88, 0.01, "TTFT p99 is 12 % lower (10 to 14 %)"),
        (1.25, 0.0002, "TTFT p99 is 25.0 % higher (24.9 to 25.1 %)"),
        (3.0, 0.05, "TTFT p99 is 3 times as high (2.7 to 3.33)"),
    ],
)
def test_sentences_have_the_digits_that_the_interval_supports(ratio: float, error: float, words: str) -> None:
    assert sentence("ttft.p99", "worse", log_ratio.single(1.0, ratio, (error, 0.0))) == words


def test_repeats_without_common_seeds_are_compared_by_welch() -> None:
    found = sides((1.0, 1.1, 0.9, 1.05), (1.03, 1.13, 0.93, 1.08), shared_seeds=False)
    ttft = found.metrics["ttft.p50"]
    assert ttft.method == "unpaired" and ttft.verdict == "no clear difference"
    assert "more runs per side would show 5 %" in ttft.sentence


def test_one_run_each_says_what_it_does_not_cover() -> None:
    found = sides((1.0,), (0.8,))
    assert "does not cover run-to-run variation" in found.notes[0]
    ttft = found.metrics["ttft.p50"]
    assert ttft.verdict == "better" and ttft.method == "single"
    assert ttft.sentence.startswith("TTFT p50 is 20 % lower (")
    assert found.metrics["itl.p50"].verdict == "better"
    assert b"NaN" not in msgspec.json.encode(found)


def test_a_percentile_of_too_few_requests_is_not_compared() -> None:
    found = compare(Side("a", (measured(count=60),)), Side("b", (measured(1.5, count=60),)))
    p99 = found.metrics["ttft.p99"]
    assert p99.verdict == "no clear difference" and p99.ci == (None, None) and "too few requests" in p99.sentence


def test_a_side_whose_requests_fail_is_worse_however_fast_the_others_are() -> None:
    found = compare(Side("a", (measured(),)), Side("b", (measured(0.5, failed=30),)), [parse("ttft.p99 worse by 5%")])
    assert found.metrics["ttft.p99"].verdict == "worse" and "infinite on side B" in found.metrics["ttft.p99"].sentence
    assert found.conditions[0].status == "fails" and not found.is_passed()


@pytest.mark.parametrize(
    ("b", "status"), [((1.2, 1.21, 1.19), "fails"), ((1.0, 1.01, 0.99), "passes"), ((1.1, 1.3, 0.9), "undecided")]
)
def test_conditions_fail_pass_or_stay_undecided(b: tuple[float, ...], status: str) -> None:
    found = sides((1.0, 1.0, 1.0), b, "e2e.p50 worse by 5%", "ttft.p50 worse by 5%")
    assert [each.status for each in found.conditions] == [status, status]
    assert found.is_passed(strict=True) == (status == "passes")
    assert [each.within for each in found.conditions] == [status == "passes"] * 2
    assert found.is_passed() == (status == "passes")


def test_an_undecided_condition_counts_as_it_was_measured_unless_the_rule_is_strict() -> None:
    found = sides((1.0, 1.0, 1.0), (0.9, 1.2, 1.0), "e2e.p50 worse by 5%")
    assert [(each.status, each.within) for each in found.conditions] == [("undecided", True)]
    assert found.conditions[0].reason.startswith("close to the margin, and within it as measured: ")
    assert found.is_passed() and not found.is_passed(strict=True)


@pytest.mark.parametrize(
    ("failed", "condition", "status"),
    [
        (0, "failure_rate worse by 5%", "passes"),
        (0, "failure_rate worse by 0.1%", "undecided"),
        (200, "failure_rate worse by 5%", "fails"),
        (200, "failure_rate worse", "fails"),
    ],
)
def test_failure_rates_are_judged_by_their_difference(failed: int, condition: str, status: str) -> None:
    rows, chunks = made.closed_rows()
    made.fail(rows, list(range(0, 3 * failed, 3)))
    run = made.run(rows, chunks, failures=(Failure("http_503", "busy"),))
    found = compare(Side("a", (measured(),)), Side("b", ((run, summarise(run)),)), [parse(condition)])
    assert found.conditions[0].status == status, found.conditions
    metric = found.metrics["failure_rate"]
    assert metric.ratio is None and metric.difference == pytest.approx(failed / 600)
    assert metric.verdict == ("worse" if failed else "no clear difference")
    assert "percentage point" in metric.sentence and bool(metric.projection) == (not failed)


def test_one_outage_does_not_show_a_higher_failure_rate() -> None:
    found = compare(Side("a", (measured(),)), Side("b", (measured(failed=200),)), [parse("failure_rate worse")])
    assert found.conditions[0].status == "undecided" and not found.is_passed()


def test_the_failure_rate_is_only_listed_if_requests_failed_or_it_is_named() -> None:
    assert "failure_rate" not in sides((1.0,), (1.0,)).metrics


def test_values_of_the_runs_are_in_the_order_of_the_pairs() -> None:
    metric = sides((1.0, 2.0, 3.0), (1.5, 2.5, 3.5)).metrics["e2e.p50"]
    assert [round(value / metric.values[0][0], 1) for value in metric.values[0]] == [1.0, 2.0, 3.0]  # type: ignore[operator]
    assert len(metric.values[1]) == 3


def test_holm_counts_only_the_metrics_that_are_named() -> None:
    found = sides((1.0, 1.0, 1.0), (1.1, 1.2, 1.15), "e2e.p50 worse by 5%", "ttft.p50 worse by 5%")
    named = {name for name, metric in found.metrics.items() if metric.p_holm is not None}
    assert named == {"e2e.p50", "ttft.p50"}
    assert all(found.metrics[name].p_holm >= found.metrics[name].p for name in named)  # type: ignore[operator]
    config = made.manifest().config | {"slo": ["ttft.p90 < 1s", "failure_rate < 1%"]}
    both = [Side(label, (measured(config=config),)) for label in "ab"]
    own = compare(*both).metrics
    assert [name for name, metric in own.items() if metric.p_holm is not None] == ["ttft.p90", "failure_rate"]


def test_a_metric_that_one_side_lacks_is_named_with_its_side() -> None:
    rows, _ = made.closed_rows()
    rows["first_token"] = rows["last_token"] = rows["first_content"] = made.MISSING
    rows["chunk_count"] = 0
    run = made.run(rows)
    found = compare(Side("a", (measured(),)), Side("b", ((run, summarise(run)),)), [parse("ttft.p99 worse")])
    assert "was not measured on side B" in found.metrics["ttft.p99"].sentence
    assert found.conditions[0].status == "undecided"


def test_a_gap_of_zero_has_no_ratio() -> None:
    rows, chunks = made.closed_rows()
    run = made.run(rows, msgspec.structs.replace(chunks, arrival=np.repeat(rows["first_token"], rows["chunk_count"])))
    found = compare(Side("a", (measured(),)), Side("b", ((run, summarise(run)),)))
    assert found.metrics["itl.p50"].ratio is None and "it is 0 on side B" in found.metrics["itl.p50"].sentence
    assert "itl.p50" not in summarise_repeats([(run, summarise(run))] * 2).metrics


def with_config(**sections: object) -> Measured:
    return measured(config=made.manifest().config | sections)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (with_config(load={"type": "poisson", "rate": 20.0}), "the load differs"),
        (with_config(slo=["ttft.p99 < 1s"]), "the objectives differ: slo nothing against ttft.p99 < 1s"),
        (with_config(server={"model": "other", "api": "completions", "stream": True}), "server.model my-model against other"),
        (measured(workload={"digest": "sha256:1"}), "a file or a tokenizer has changed"),
        (measured(outcome=made.INTERRUPTED), "was interrupted"),
        (measured(failed=300), "is INVALID (failures"),
    ],
)  # fmt: skip
def test_differences_are_named(other: Measured, words: str) -> None:
    reasons = doubts([Side("a", (measured(),)), Side("b", (other,))])
    assert any(words in reason for reason in reasons), reasons


def test_another_seed_of_generated_prompts_is_the_same_workload() -> None:
    other = measured(seed=7, workload={"digest": "sha256:1"})
    assert doubts([Side("a", (measured(),)), Side("b", (other,))]) == []
    from_file = made.manifest().config | {"data": {"type": "jsonl", "path": "x.jsonl"}}
    both = [measured(config=from_file), measured(seed=7, workload={"digest": "sha256:1"}, config=from_file)]
    assert "prompts from files" in doubts([Side(label, (one,)) for label, one in zip("ab", both, strict=True)])[0]


def test_an_empty_run_cannot_be_compared() -> None:
    run = made.run(made.blank(0))
    assert "no request in the window succeeded" in unusable(Side("a", ((run, summarise(run)),)))[0]


def test_variation_between_runs_is_beside_that_within_a_run() -> None:
    found = summarise_repeats(side(1.0, 1.2, 0.8).runs)
    ttft = found.metrics["ttft.p50"]
    assert ttft.between == pytest.approx(0.2, rel=0.05) and ttft.within is not None and ttft.within < 0.02
    assert ttft.ci[0] is not None and ttft.ci[0] < ttft.mean < ttft.ci[1]  # type: ignore[operator]
    assert len(ttft.values) == len(found.runs) == 3
    only = summarise_repeats(side(1.0).runs).metrics["ttft.p50"]
    assert only.between is None and only.ci == (None, None)


@pytest.fixture(autouse=True)
def fresh_template() -> None:
    bench._TEMPLATE.clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "comparisons"), [(bench.repeats(8, 500, True), 60), pytest.param(bench.repeats(4, 500, False), 60, marks=pytest.mark.slow), (bench.single(2_000), 60)]
)  # fmt: skip
def test_false_alarms_stay_near_5_percent(make: bench.Make, comparisons: int) -> None:
    """A quick version of bench/comparison, with wide margins: 5 % of 60 are 3, and 9 or more are seen in 1 of 200."""
    for figure, (share, _) in bench.shares(make, comparisons, 1.0).items():
        assert share <= 9 / 60, figure


def test_a_difference_of_10_percent_is_found_at_the_projected_size() -> None:
    size = bench.projected(bench.repeats(8, 500, True), 8, "e2e.p50", 1.1)
    assert size is not None and 3 <= size <= 40
    share, _ = bench.shares(bench.repeats(size, 500, True), 30, 1.1)["e2e.p50"]
    assert share >= 0.6


def test_the_bootstrap_is_as_wide_as_runs_vary() -> None:
    """The standard error of one run against the variation between 40 runs of a queue at load 0.7."""
    from inferometer.analysis.run_figures import percentile_errors  # noqa: PLC0415

    rng = np.random.default_rng(3)
    runs = [bench.measured(*bench.simulate.queue(rng, 0.7, 5_000)) for _ in range(40)]
    values = [math.log(summary.metrics["e2e"].value("p50") or 0) for _, summary in runs]
    errors = [percentile_errors(run, None, {"e2e": ("p50",)})["e2e.p50"] or 0 for run, _ in runs]
    assert 0.7 < np.mean(errors) / np.std(values, ddof=1) < 1.4


def test_folder_of_a_run_is_named_in_the_result() -> None:
    assert sides((1.0,), (1.0,)).a.runs == (str(Path("/runs/made")),)
