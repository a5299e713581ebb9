"""Judging objectives: against simulated runs whose truth is known, for every kind of objective, and for several stages."""

import math
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import synthetic_run as made
from synthetic_run import MS, SECOND

from inferometer.analysis import blocks, slo, slo_result
from inferometer.analysis.checks.evidence import StageEvidence
from inferometer.analysis.distributions import NO_GAPS, distributions
from inferometer.analysis.metrics import ttft
from inferometer.analysis.overload import Overload
from inferometer.analysis.percentiles import Distribution, distribution
from inferometer.analysis.slo import Goodput
from inferometer.analysis.slo_expression import parse_all
from inferometer.analysis.slo_result import SloResult
from inferometer.analysis.summary import Summary, summarise
from inferometer.analysis.throughput import Throughput
from inferometer.records import CANCELLED, DROPPED, LOST, Failure, Run

P99 = math.log(100)
"""The p99 of an exponential distribution with mean 1."""


# --- simulated servers -----------------------------------------------------------------------------------------------


def independent(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Instants of 100 requests per second, and exponential times with mean 1."""
    return np.sort(rng.uniform(0, count / 100, count)), rng.exponential(1, count)


def queue(rng: np.random.Generator, count: int, load: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """An M/M/1 queue in its steady state: the times in the system are exponential too, here with mean 1."""
    arrivals = np.cumsum(rng.exponential(1 / load, count))
    service = rng.exponential(1, count)
    steps = np.concatenate([[0], np.cumsum(service[:-1] - np.diff(arrivals))])
    first = rng.exponential(1 / (1 - load)) if rng.random() < load else 0.0
    waiting = steps + np.maximum(first, -np.minimum.accumulate(steps))
    return arrivals / 50, (waiting + service) * (1 - load)


def busy_queue(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    return queue(rng, count, 0.8)


Server = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


def run_of(at: np.ndarray, ttft: np.ndarray, failed: np.ndarray | None = None, code: str = "http_503") -> Run:
    """An open loop whose requests were intended at `at` and had these times to first token, in seconds."""
    rows = made.blank(len(at))
    rows["intended"] = rows["sent"] = np.round(at * SECOND)
    rows["first_token"] = rows["last_token"] = rows["done"] = rows["intended"] + np.round(ttft * SECOND).astype(
        np.int64
    )
    rows["open_loop"], rows["n_out"], rows["n_in"] = 1, 1, 1
    if failed is not None:
        rows["failure"][failed], rows["first_token"][failed] = 1, made.MISSING
    return made.run(rows, failures=(Failure(code, ""),), plan=(msgspec.structs.replace(made.OPEN, type="ramp"),))


def evidence(run: Run, **changes: object) -> StageEvidence:
    everything = np.ones(len(run.records.rows), np.bool_)
    metrics = changes.pop("metrics", None) or distributions(run, everything, NO_GAPS, as_inf=True)
    given = StageEvidence(0, "", everything, metrics, np.zeros(0), Throughput(), Overload("steady"))  # type: ignore[arg-type]
    return msgspec.structs.replace(given, **changes)


def ttft_alone(run: Run) -> dict[str, Distribution]:
    """The statistics of the only metric that a simulation needs: to compute all of them takes ten times as long."""
    at = run.records.rows["intended"]
    placed = blocks.Placed(blocks.index(at, int(at[0]), int(at[-1])), np.zeros(0, np.intp), 1.0)
    return {"ttft": distribution(ttft(run.records.rows), "s", placed=placed)}


def judge(run: Run, *slos: str, **changes: object) -> tuple[SloResult, ...]:
    return slo.judge(run, evidence(run, **changes), parse_all(slos))


def statuses(server: Server, count: int, limit: float, runs: int = 120) -> Counter[str]:
    """How often `ttft.p99 < limit` was met, missed or undecided."""
    rng = np.random.default_rng(7)
    made = (run_of(*server(rng, count)) for _ in range(runs))
    return Counter(judge(run, f"ttft.p99 < {limit}s", metrics=ttft_alone(run))[0].status for run in made)


@pytest.mark.parametrize("server", [independent, queue, busy_queue])
@pytest.mark.parametrize("count", [300, 1000])
def test_a_limit_that_just_does_not_hold_is_met_in_at_most_5_percent_of_runs(server: Server, count: int) -> None:
    found = statuses(server, count, P99)
    assert found["met"] <= 0.05 * found.total()
    assert found["missed"] <= 0.05 * found.total()


@pytest.mark.parametrize("server", [independent, queue, busy_queue])
def test_a_clear_case_is_decided_by_1000_requests(server: Server) -> None:
    assert statuses(server, 1000, 3 * P99, 40)["met"] >= 36
    assert statuses(server, 1000, P99 / 3, 40)["missed"] >= 36


def test_the_projected_time_is_about_right() -> None:
    """Run longer by what a short run says, it is usually decided; with twice as much, nearly always."""
    rng = np.random.default_rng(3)
    decided = []
    for _ in range(20):
        at, times = independent(rng, 20_000)
        limit = f"ttft.p99 < {1.4 * P99}s"
        (short,) = judge(run_of(at[:500], times[:500]), limit)
        if short.status == "undecided" and short.more_seconds is not None:
            enough = at <= at[499] + 2 * short.more_seconds
            decided.append(judge(run_of(at[enough], times[enough]), limit)[0].status == "met")
    assert len(decided) >= 5
    assert sum(decided) >= 0.7 * len(decided)


def test_a_limit_far_above_the_slowest_is_met_with_margin() -> None:
    (result,) = judge(run_of(np.arange(1000) / 100, np.full(1000, 0.05)), "ttft.p99.9 < 800ms")
    assert (result.status, result.by, result.violations, result.allowed) == ("met", "margin", 0.0, 0.001)
    assert result.reason == "met with margin: the limit is 16 times the slowest of 1,000 requests"


@pytest.mark.parametrize(("count", "times"), [(30, 11), (100, 6), (200, 5.1)])
def test_fewer_requests_need_a_wider_margin(count: int, times: float) -> None:
    """Equal values have no design effect, and too few of them show nothing by being counted."""
    run = run_of(np.arange(count) / 10, np.full(count, 0.1))
    near, far = judge(run, f"ttft.p99 < {100 * times / 1.2}ms", f"ttft.p99 < {100 * times}ms")
    assert (far.status, far.by, far.more_seconds) == ("met", "margin", None)
    assert (near.status, near.by, near.within) == ("undecided", "", True)
    assert near.reason.startswith(f"too close to the limit for {count} requests: 100 ms is within it; 0% of {count}")
    assert near.more_seconds is not None
    enough = count + math.ceil(near.more_seconds * 10) + 1
    (longer,) = judge(run_of(np.arange(enough) / 10, np.full(enough, 0.1)), near.slo)
    assert longer.status == "met"


def test_many_requests_without_a_violation_are_met_by_counting_them() -> None:
    (result,) = judge(run_of(np.arange(400) / 10, np.full(400, 0.1)), "ttft.p99 < 101ms")
    assert (result.status, result.by) == ("met", "count")
    assert result.reason == "0% of 400 requests violate it, 1% may, and they count as 300 independent ones"


def test_a_few_violations_are_met_with_margin_if_the_other_requests_are_far_from_the_limit() -> None:
    times = np.full(1000, 0.01)
    times[500:520] = 2.0
    (result,) = judge(run_of(np.arange(1000) / 100, times), "ttft.p90 < 1s")
    assert (result.status, result.by) == ("met", "margin")
    assert result.reason == (
        "met with margin: 2% of 1,000 requests violate it, 10% may, and the others are far from the limit"
    )


def test_a_limit_far_below_the_fastest_is_missed_with_margin() -> None:
    results = judge(run_of(np.arange(3) / 10, np.full(3, 0.1)), "ttft.p50 < 1ms", "ttft.p50 < 90ms")
    assert [(result.status, result.by, result.within) for result in results] == [
        ("missed", "margin", False),
        ("undecided", "", False),
    ]
    assert results[0].reason == "missed with margin: the fastest of 3 requests took 100 times the limit"
    assert ": 100 ms is beyond it; " in results[1].reason


def test_failures_are_as_close_as_can_be() -> None:
    """A failed request is infinitely slow: more of them than allowed are never met with margin, however fast the others are."""
    for share, statuses in ((0.002, {"met"}), (0.02, {"missed", "undecided"})):
        run = run_with_failures("http_503", share)
        (result,) = judge(run, "ttft.p99 < 1000s")
        assert result.status in statuses
    few = judge(run_with_failures("http_503", 0.05, 40), "ttft.p99 < 1000s", "failure_rate < 1%")
    assert [(result.status, result.within) for result in few] == [("undecided", False)] * 2
    none = run_of(np.arange(50) / 10, np.full(50, 0.1))
    (rate,) = judge(none, "failure_rate < 1%")
    assert (rate.status, rate.within) == ("undecided", True)


# --- what counts as a violation --------------------------------------------------------------------------------------


def run_with_failures(code: str, share: float = 0.05, count: int = 2000) -> Run:
    failed = np.arange(count) % round(1 / share) == 0
    return run_of(np.arange(count) / 100, np.full(count, 0.1), failed, code)


@pytest.mark.parametrize("code", ["http_503", DROPPED])
def test_failed_requests_violate_a_latency_objective(code: str) -> None:
    """A server that refuses its slowest requests does not meet its p99 by doing so."""
    latency, failures = judge(run_with_failures(code), "ttft.p99 < 500ms", "failure_rate < 1%")
    assert (latency.status, latency.violations) == ("missed", 0.05)
    assert "(100 of them failed)" in latency.reason
    assert (failures.status, failures.value) == ("missed", 0.05)


@pytest.mark.parametrize("code", [CANCELLED, LOST])
def test_requests_that_the_client_ended_do_not_count(code: str) -> None:
    latency, failures = judge(run_with_failures(code), "ttft.p99 < 500ms", "failure_rate < 1%")
    assert (latency.status, latency.violations) == ("met", 0.0)
    assert (failures.status, failures.value) == ("met", 0.0)
    assert "of 1,900 requests" in failures.reason


def test_limit_itself_violates_less_than_and_not_at_most() -> None:
    run = run_of(np.arange(1000) / 100, np.full(1000, 0.5))
    assert [result.status for result in judge(run, "ttft.p99 < 500ms", "ttft.p99 <= 500ms")] == ["missed", "met"]


def test_a_metric_that_no_response_has_is_undecided() -> None:
    results = judge(run_with_failures("http_503"), "queue.p99 < 5ms", "goodput(ttft<1s & tpot<5ms) > 90%")
    assert [result.status for result in results] == ["undecided", "undecided"]
    assert results[0].reason == "queue could not be measured: no response has a value"


def test_tokens_can_have_a_lower_limit() -> None:
    run = run_of(np.arange(1000) / 100, np.full(1000, 0.1))
    run.records.rows["n_out"][np.arange(1000) % 5 < 3] = 200
    results = judge(run, "output_tokens.p50 >= 100", "output_tokens.p90 < 100", "output_tokens.p90 >= 201")
    assert [result.status for result in results] == ["met", "missed", "missed"]


# --- other kinds of objectives ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "status", "more"),
    [
        ("< 400ms", "met", None),
        ("< 200ms", "missed", None),
        ("< 320ms", "undecided", 250.0),
    ],
)
def test_a_mean_is_judged_by_its_interval(limit: str, status: str, more: float | None) -> None:
    run = run_of(np.arange(1001) / 10, np.full(1001, 0.1))
    figures = Distribution(unit="s", count=1000, mean=0.3, ci={"mean": (0.27, 0.337)})
    (result,) = judge(run, f"ttft.mean {limit}", metrics={"ttft": figures})
    assert result.status == status
    assert result.more_seconds == (None if more is None else pytest.approx(more, rel=0.05))


def test_gaps_are_judged_by_the_interval_of_their_percentile() -> None:
    run = run_of(np.arange(1001) / 10, np.full(1001, 0.1))
    figures = {"itl": Distribution(unit="s", count=1000, p99=0.03, ci={"p99": (0.025, 0.04)})}
    results = judge(run, "itl.p99 < 50ms", "itl.p99 < 20ms", "itl.p99 < 35ms", metrics=figures)
    assert [result.status for result in results] == ["met", "missed", "undecided"]
    assert results[0].reason == "95 % confidence interval 25 ms .. 40 ms"


def test_a_percentile_without_an_upper_bound_is_not_met() -> None:
    run = run_of(np.arange(1001) / 10, np.full(1001, 0.1))
    figures = {"itl": Distribution(unit="s", count=1000, p99=0.03, ci={"p99": (0.025, None)})}
    results = judge(run, "itl.p99 < 50ms", "itl.p99 < 20ms", metrics=figures)
    assert [result.status for result in results] == ["undecided", "missed"]


def test_rates() -> None:
    known = {"requests": 20.0, "input_tokens": 2000.0, "output_tokens": None, "offered": 21.0}
    rates = SimpleNamespace(**known, ci={"requests": (19.0, 21.0)}, reason="")
    run = run_of(np.arange(1001) / 10, np.full(1001, 0.1))
    texts = {
        "throughput.requests > 18": "met",
        "throughput.requests > 19.5": "undecided",
        "throughput.requests > 22/s": "missed",
        "throughput.input_tokens > 1800": "met",
        "throughput.input_tokens > 1950": "undecided",
        "throughput.offered >= 21": "met",
        "throughput.output_tokens > 5": "undecided",
    }
    results = judge(run, *texts, throughput=rates)
    assert [result.status for result in results] == list(texts.values())


def test_the_number_in_flight_is_judged_if_it_has_an_interval() -> None:
    run = run_of(np.arange(1001) / 10, np.full(1001, 0.1))
    (result,) = judge(
        run, "throughput.in_flight > 5", throughput=Throughput(in_flight=8.0, ci={"in_flight": (7.0, 9.0)})
    )
    assert (result.status, result.reason) == ("met", "95 % confidence interval 7 .. 9")
    (result,) = judge(run, "throughput.in_flight > 5", throughput=Throughput(in_flight=8.0))
    assert (result.status, result.within) == ("undecided", True)
    assert result.reason == (
        "too close to the limit: 8 is within it; this run has no confidence interval for throughput.in_flight"
    )


def test_an_objective_without_an_interval_says_that_there_are_too_few_values() -> None:
    run = run_of(np.arange(1001) / 10, np.full(1001, 0.1))
    rates, figures = Throughput(requests=8.0, ci={"requests": (None, None)}), Distribution(unit="s", count=1, mean=0.3)
    results = judge(run, "throughput.requests > 5", "ttft.mean < 500ms", throughput=rates, metrics={"ttft": figures})
    assert [result.status for result in results] == ["undecided", "undecided"]
    assert results[0].reason == "too close to the limit: 8/s is within it; too few responses for a confidence interval"
    assert results[1].reason == "too close to the limit: 300 ms is within it; too few values for a confidence interval"


def test_values_without_an_interval_are_judged_by_their_margin() -> None:
    run = run_of(np.arange(1001) / 10, np.full(1001, 0.1))
    gaps = Distribution(unit="s", count=3000, min=0.02, p99=0.03, max=0.05, ci={"p99": (0.025, None)})
    mean = Distribution(unit="s", count=1, min=0.3, mean=0.3, max=0.3)
    texts = ("itl.p99 < 240ms", "itl.p99 < 200ms", "ttft.mean < 1s", "ttft.mean < 100ms", "throughput.requests > 3")
    rates = Throughput(requests=8.0, ci={"requests": (None, None)})
    results = judge(run, *texts, metrics={"itl": gaps, "ttft": mean}, throughput=rates)
    assert [result.status for result in results] == ["met", "undecided", "met", "missed", "met"]
    assert [result.by for result in results] == ["margin", "", "margin", "margin", "margin"]
    assert results[0].reason == "met with margin: all that was measured is far from the limit"


def test_overloaded_stages_miss_latency_objectives_but_have_a_throughput() -> None:
    run = run_of(np.arange(1001) / 10, np.full(1001, 0.1))
    given = {"overload": Overload("overloaded", growth=10.0), "throughput": Throughput(offered=100.0)}
    texts = ("ttft.p99 < 1s", "ttft.mean < 1s", "goodput(ttft<1s) > 90%", "throughput.offered > 9", "failure_rate < 1%")
    results = judge(run, *texts, **given)
    assert [result.status for result in results] == ["missed", "missed", "missed", "met", "met"]
    assert results[0].reason == "overloaded: no steady value, the queue grew by 10 requests/s"


def test_stages_that_are_too_short_are_decided_only_if_the_limit_is_far() -> None:
    run = run_of(np.arange(1001) / 10, np.full(1001, 0.1))
    short = Overload("too_short", "a response takes 5 s")
    texts = ("ttft.p99 < 110ms", "ttft.p99 < 1s", "ttft.p99 < 50ms", "ttft.mean < 110ms", "ttft.mean < 1s")
    results = judge(run, *texts, overload=short)
    assert [result.status for result in results] == ["undecided", "met", "missed", "undecided", "met"]
    assert [result.by for result in results] == ["", "margin", "count", "", "margin"]
    assert results[0].reason == "the stage is too short to tell: a response takes 5 s: 100 ms is within the limit"


# --- goodput ---------------------------------------------------------------------------------------------------------


def goodput_of(run: Run, *slos: str) -> Goodput | None:
    return slo.goodput(run, evidence(run), parse_all(slos))


def test_goodput_is_the_rate_of_requests_that_meet_every_limit() -> None:
    """Of 2,000 requests at 100/s, 5 % fail and another 10 % are slow."""
    run = run_with_failures("http_503")
    slow = np.arange(2000) % 10 == 1
    run.records.rows["first_token"][slow] += 900 * MS
    found = goodput_of(run, "ttft.p99 < 500ms", "e2e.p99 < 2s", "throughput.requests > 5", "ttft.mean < 1s")
    assert found is not None
    assert found.attainment == 0.85
    assert found.rate == pytest.approx(85)
    assert found.slos == ("ttft<500ms", "e2e<2s")
    (low, high), (slowest, fastest) = found.ci["attainment"], found.ci["rate"]
    assert low is not None and high is not None and slowest is not None and fastest is not None
    assert low < 0.85 < high
    assert slowest < 85 < fastest


def test_goodput_does_not_depend_on_how_long_the_last_responses_take() -> None:
    """It counts by intended instants: a drain of 5 s after 20 s of requests does not lower the rate."""
    run = run_of(np.arange(2000) / 100, np.full(2000, 5.0))
    found = goodput_of(run, "ttft.p99 < 6s")
    assert found is not None
    assert found.rate == pytest.approx(100)


@pytest.mark.parametrize(
    "slos", [(), ("throughput.requests > 5",), ("ttft.mean < 1s", "itl.p99 < 1s"), ("queue.p99 < 1s",)]
)
def test_there_is_no_goodput_without_limits_for_single_requests(slos: tuple[str, ...]) -> None:
    assert goodput_of(run_of(np.arange(100) / 100, np.full(100, 0.1)), *slos) is None


def test_goodput_is_judged_as_a_share_or_as_a_rate() -> None:
    run = run_with_failures("http_503")  # 95 % of 100/s
    texts = ("goodput(ttft<1s) > 90%", "goodput(ttft<1s) > 98%", "goodput(ttft<1s) > 90/s", "goodput(ttft<1s) >= 98/s")
    results = judge(run, *texts, "goodput(ttft<1s) > 120/s")
    assert [result.status for result in results] == ["met", "missed", "met", "missed", "missed"]
    assert results[0].value == pytest.approx(0.95)
    assert results[2].value == pytest.approx(95, rel=0.01)
    assert results[4].reason == "only 100 requests/s were intended"


# --- a whole run -----------------------------------------------------------------------------------------------------


def summary_of(own: object = None, stages: int = 1, slos: list[str] | None = None) -> Summary:
    rows, chunks = made.open_rows(1200)
    rows["stage"] = np.arange(1200) * stages // 1200
    rows["first_token"][rows["stage"] == 1] -= 60 * MS  # the second stage: before the limit, in any case
    plan = msgspec.structs.replace(made.OPEN, type="ramp")
    config = made.manifest().config | ({} if own is None else {"slo": own})
    return summarise(made.run(rows, chunks, plan=(plan,) * stages, config=config), slos)


def test_a_run_is_judged_by_its_own_objectives_or_by_others() -> None:
    assert [result.slo for result in summary_of(["ttft.p99<1s"]).slos] == ["ttft.p99 < 1s"]
    assert [result.slo for result in summary_of("ttft.p99<1s").slos] == ["ttft.p99 < 1s"]
    other = summary_of(["ttft.p99<1s"], slos=["tpot.p95 < 20ms"])
    assert [result.slo for result in other.slos] == ["tpot.p95 < 20ms"]
    assert other.goodput is not None
    assert other.goodput.slos == ("tpot<20ms",)


def test_a_run_without_objectives_has_neither_results_nor_goodput() -> None:
    summary = summary_of()
    assert summary.slos == ()
    assert summary.goodput is None


@pytest.mark.parametrize("dropped", [False, True])
def test_every_objective_is_judged_if_all_requests_failed(dropped: bool) -> None:
    """What says that requests are to succeed is missed; what only successful requests have could not be measured."""
    texts = {
        "ttft.p99 < 1s": "missed",
        "failure_rate < 1%": "missed",
        "goodput(tps_user>10) > 95%": "missed",
        "tps_user.p50 > 10": "undecided",
        "output_tokens.p50 > 10": "undecided",
        "ttft.mean < 1s": "undecided",
    }
    rows, _ = made.closed_rows(100)
    (made.never_sent if dropped else made.fail)(rows, slice(None), 1)
    rows["chunk_count"] = 0
    code = DROPPED if dropped else "http_404"
    summary = summarise(made.run(rows, failures=(Failure(code, ""),)), [*texts])
    assert {result.slo.replace(" & ", "&"): result.status for result in summary.slos} == texts
    assert summary.slos[3].reason == "tps_user could not be measured: every request failed"


def test_of_several_stages_the_worst_counts() -> None:
    summary = summary_of(["ttft.p99 < 30ms", "ttft.p50 < 200ms"], stages=2)
    assert [[result.status for result in stage.slos] for stage in summary.stages] == [["missed", "met"], ["met", "met"]]
    assert [(result.status, result.stages) for result in summary.slos] == [("missed", (0,)), ("met", (0, 1))]
    assert summary.goodput is None
    assert all(stage.goodput is not None for stage in summary.stages)


@pytest.mark.parametrize(
    ("status", "by", "within", "passed", "strict"),
    [
        ("met", "count", True, True, True),
        ("met", "interval", True, True, True),
        ("met", "margin", True, True, False),
        ("undecided", "", True, True, False),
        ("undecided", "", False, False, False),
        ("undecided", "", None, False, False),
        ("missed", "count", True, False, False),
    ],
)
def test_what_is_undecided_counts_as_it_was_measured_unless_the_rule_is_strict(
    status: slo_result.Status, by: slo_result.By, within: bool | None, passed: bool, strict: bool
) -> None:
    result = SloResult(slo="", status=status, by=by, within=within, reason="", limit=1.0)
    met = SloResult(slo="", status="met", by="count", reason="", limit=1.0)
    for results in ([result], [met, result]):
        assert (slo_result.is_passed(results), slo_result.is_passed(results, strict=True)) == (passed, strict)
    assert slo_result.is_passed([]) and slo_result.is_passed([], strict=True)


def test_of_several_stages_the_worst_undecided_one_counts() -> None:
    within, beyond = (
        SloResult(slo="", status="undecided", within=each, reason=str(each), limit=1.0) for each in (True, False)
    )
    (result,) = slo_result.together([(0, (within,)), (1, (beyond,))])
    assert (result.reason, result.stages) == ("False", (0, 1))
    assert not slo_result.is_passed([result])
