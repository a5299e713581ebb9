"""The figures of a window: gauges, counters and histograms of one or several targets, and why one is missing."""

from collections.abc import Mapping

import pytest
from server_metrics.pages import VLLM_AFTER, VLLM_BEFORE, A, B, Sample, parse, scraped, window

from inferometer.server_metrics.figures import CounterFigure, GaugeFigure

RUNNING, KV, TOKENS = "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:generation_tokens_total"
TTFT = "vllm:time_to_first_token_seconds"


def _sample(name: str, value: float, **labels: str) -> Sample:
    return name, labels, value


def _page(**values: float) -> list[Sample]:
    names = {"running": RUNNING, "kv": KV, "tokens": TOKENS, "started": "process_start_time_seconds"}
    return [_sample(names[name], value) for name, value in values.items()]


def _histogram(counts: Mapping[str, float], total: float = 0.0, **labels: str) -> list[Sample]:
    """A histogram from its cumulative counts by upper edge."""
    buckets = [_sample(f"{TTFT}_bucket", count, le=edge, **labels) for edge, count in counts.items()]
    return [*buckets, _sample(f"{TTFT}_sum", total, **labels), _sample(f"{TTFT}_count", counts["+Inf"], **labels)]


def test_two_pages_give_levels_deltas_and_quantiles() -> None:
    found = window(scraped({0: parse(VLLM_BEFORE), 10: parse(VLLM_AFTER)}), 0, 10, "m")
    assert found.gauges["running"] == GaugeFigure(5, 5)
    assert found.gauges["waiting"] == GaugeFigure(3, 6)
    assert found.gauges["kv_cache_use"] == GaugeFigure(pytest.approx(0.5), 0.9)  # type: ignore[arg-type]
    deltas = {name: counter.delta for name, counter in found.counters.items()}
    assert deltas == {"requests": 10, "aborted": 1, "input_tokens": 1000}
    ttft = found.histograms["ttft"]
    assert (ttft.count, ttft.mean) == (10, pytest.approx(0.25))
    assert ttft.quantiles == {"p50": pytest.approx(0.24), "p90": pytest.approx(0.4), "p99": None}
    assert found.servers == {A: "vllm"} and found.missing == {}


def test_gauges_count_at_each_scrape_and_hold_while_they_do_not_change() -> None:
    pages = {0: _page(running=8), 1: _page(running=2), 2: _page(running=2), 3: _page(running=2), 4: _page(running=6), 5: _page(running=90)}  # fmt: skip
    assert window(scraped(pages), 1, 4.5).gauges == {"running": GaugeFigure(3, 6)}


def test_failed_scrapes_do_not_count_for_gauges() -> None:
    pages = {1: _page(running=2), 2: None, 3: None, 4: _page(running=4)}
    assert window(scraped(pages), 0, 5).gauges["running"].mean == 3


def test_gauge_without_a_successful_scrape_in_the_window_is_missing() -> None:
    pages = scraped({0: _page(running=2), 1: None, 2: _page(running=2)})
    found = window(pages, 0.5, 1.5)
    assert found.gauges == {}
    assert found.missing == {"running": f"{A}: no scrape succeeded in this window"}


def test_gauge_that_appears_later_is_missing_before() -> None:
    found = window(scraped({0: _page(tokens=1), 1: _page(tokens=2), 2: _page(running=1)}), 0, 1)
    assert found.missing == {"running": f"{A}: was not on the page in this window"}


def test_counters_count_from_the_last_scrape_before_the_window_to_the_last_one_in_it() -> None:
    pages = scraped({0: _page(tokens=10), 1: _page(tokens=30), 2: _page(tokens=70), 3: _page(tokens=150)})
    assert window(pages, 0, 3).counters["output_tokens"].delta == 140
    assert window(pages, 1.5, 2.5).counters["output_tokens"].delta == 40


def test_counter_that_is_not_on_the_first_page_starts_at_zero() -> None:
    pages = scraped({0: _page(running=0), 1: _page(running=1, tokens=7), 2: _page(running=1, tokens=9)})
    assert window(pages, 0, 2).counters == {"output_tokens": CounterFigure(9)}


@pytest.mark.parametrize(
    ("pages", "reason"),
    [
        ({1: _page(tokens=3), 2: _page(tokens=9)}, "was not scraped before the window began"),
        ({0: None, 1: _page(tokens=3), 2: _page(tokens=9)}, "could not be scraped when the window began"),
        ({0: _page(tokens=3), 1: _page(tokens=9), 2: None}, "could not be scraped when the window ended"),
        ({-1: _page(tokens=3), 3: _page(tokens=9)}, "was not scraped between the window's begin and its end"),
    ],
)
def test_counter_without_a_value_at_either_edge_is_missing(
    pages: dict[float, list[Sample] | None], reason: str
) -> None:
    found = window(scraped(pages), 0, 2)
    assert found.counters == {}
    assert found.missing == {"output_tokens": f"{A} {reason}"}


def test_failed_scrapes_within_the_window_do_not_matter_for_counters() -> None:
    pages = scraped({0: _page(tokens=3), 1: None, 2: _page(tokens=9)})
    assert window(pages, 0, 2).counters == {"output_tokens": CounterFigure(6)}


def test_counter_that_falls_was_reset_and_counts_before_and_after() -> None:
    pages = scraped({0: _page(tokens=100), 1: _page(tokens=150), 2: None, 3: _page(tokens=20), 4: _page(tokens=60)})
    assert window(pages, 0, 4).counters == {"output_tokens": CounterFigure(110, resets=1)}


def test_gauge_that_left_the_page_does_not_count_any_more() -> None:
    a, b = (_sample(RUNNING, 8, engine=engine) for engine in "ab")
    pages = scraped({0: [a], 1: [a], 2: [b], 3: [b], 4: [a, b]})
    assert window(pages, 0, 3).gauges["running"] == GaugeFigure(8, 8)
    assert window(pages, 3, 4).gauges["running"] == GaugeFigure(12, 16)


def test_counter_that_left_the_page_keeps_what_it_counted_and_goes_on_when_it_comes_back() -> None:
    pages = scraped({0: _page(tokens=100), 1: _page(tokens=150), 2: _page(running=1), 3: _page(tokens=170)})
    assert [window(pages, 0, end).counters["output_tokens"] for end in (2, 3)] == [CounterFigure(50), CounterFigure(70)]
    assert window(pages, 2, 3).counters == {"output_tokens": CounterFigure(20)}


def test_counter_that_comes_back_lower_was_reset() -> None:
    pages = scraped({0: _page(tokens=100), 1: _page(running=1), 2: _page(tokens=5)})
    assert window(pages, 0, 2).counters == {"output_tokens": CounterFigure(5, resets=1)}


def test_start_of_the_process_that_is_missing_for_a_while_is_no_restart() -> None:
    page = _page(tokens=100, started=1000.25)
    pages = {0: page, 1: _page(tokens=110), 2: _page(tokens=130, started=1000.25)}
    assert window(scraped(pages), 0, 2).counters == {"output_tokens": CounterFigure(30)}
    both = (*scraped(pages, A), *scraped(pages, B))
    assert window(both, 0, 2).counters == {"output_tokens": CounterFigure(30)}, "one server under two addresses"


def test_restarted_process_is_noticed_even_if_its_counter_has_not_fallen() -> None:
    pages = scraped({0: _page(tokens=100, started=1000.25), 1: _page(tokens=120, started=2000.5)})
    assert window(pages, 0, 1).counters == {"output_tokens": CounterFigure(120, resets=1)}


def test_restart_counts_once_however_many_series_it_resets() -> None:
    def page(stop: float, length: float) -> list[Sample]:
        counts = {"stop": stop, "length": length}
        return [_sample("vllm:request_success_total", value, finished_reason=reason) for reason, value in counts.items()]  # fmt: skip

    pages = scraped({0: page(5, 5), 1: page(1, 5), 2: page(2, 1)})
    assert window(pages, 0, 2).counters["requests"] == CounterFigure(3, resets=1)


def test_stage_takes_the_buckets_from_its_mark_to_the_next_one() -> None:
    def counted(low: float, high: float) -> list[Sample]:
        return _histogram({"0.01": 0, "0.1": low, "1": low + high, "+Inf": low + high}, total=0.05 * low + 0.5 * high)

    def without_buckets(samples: list[Sample]) -> list[Sample]:
        return [sample for sample in samples if "le" not in sample[1]]

    pages = scraped({-0.5: counted(0, 0), 5: without_buckets(counted(50, 0)), 10.02: counted(100, 0), 15: without_buckets(counted(100, 50)), 20.1: counted(100, 100)})  # fmt: skip
    first, second, whole = window(pages, 0, 10.02), window(pages, 10.02, 20.1), window(pages, 0, 20.1)
    assert (first.histograms["ttft"].count, first.histograms["ttft"].quantiles["p50"]) == (100, pytest.approx(0.055))
    assert (second.histograms["ttft"].count, second.histograms["ttft"].quantiles["p50"]) == (100, pytest.approx(0.55))
    assert whole.histograms["ttft"].quantiles["p50"] == pytest.approx(0.1)
    within = window(pages, 5, 10.02)
    assert (within.histograms["ttft"].count, within.histograms["ttft"].quantiles) == (50, {})
    assert "buckets are stored only when a stage begins or ends" in within.missing["ttft"]
    assert "buckets were stored too long before or after" in window(pages, 5, 20.1).missing["ttft"]


def test_quantiles_in_the_first_bucket_are_only_known_to_be_below_its_edge() -> None:
    pages = scraped({0: [], 1: _histogram({"0.3": 95, "0.5": 100, "+Inf": 100}, total=0.2)})
    ttft = window(pages, 0, 1).histograms["ttft"]
    assert (ttft.quantiles["p50"], ttft.quantiles["p90"]) == (None, None)
    assert ttft.below == {"p50": 0.3, "p90": 0.3}
    assert ttft.quantiles["p99"] == pytest.approx(0.46)


@pytest.mark.parametrize("says_its_start", [True, False])
def test_several_servers_behind_one_address_have_no_figures_but_a_reason(says_its_start: bool) -> None:
    def page(server: int, count: float) -> list[Sample]:
        start = [_sample("process_start_time_seconds", 1000.5 + server)] if says_its_start else []
        return [_sample(TOKENS, count), _sample(RUNNING, 1), *start]

    pages = {at: page(at % 2, 100 * (1 + at % 2) + at) for at in range(8)}
    found = window(scraped(pages), 0, 7)
    assert not found.counters and not found.gauges
    assert all("several servers in turn" in why for why in found.missing.values())
    restarted = {at: page(at >= 4, 100 + at if at < 4 else at) for at in range(8)}
    assert window(scraped(restarted), 0, 7).counters["output_tokens"].resets == 1


def test_histogram_without_observations_has_no_mean_and_no_quantiles() -> None:
    page = _histogram({"0.1": 3, "+Inf": 3}, total=0.1)
    ttft = window(scraped({0: page, 1: page}), 0, 1).histograms["ttft"]
    assert (ttft.count, ttft.mean, set(ttft.quantiles.values())) == (0, None, {None})


def test_reset_histogram_counts_what_came_after_the_restart() -> None:
    pages = scraped({0: _histogram({"1": 90, "2": 100, "+Inf": 100}), 1: _histogram({"1": 0, "2": 4, "+Inf": 4}, 6.0)})
    ttft = window(pages, 0, 1).histograms["ttft"]
    assert (ttft.count, ttft.resets, ttft.quantiles["p50"]) == (4, 1, pytest.approx(1.5))


def test_histogram_of_a_label_set_that_left_the_page_keeps_its_observations() -> None:
    first = [
        *_histogram({"1": 10, "2": 10, "+Inf": 10}, engine="a"),
        *_histogram({"1": 10, "2": 10, "+Inf": 10}, engine="b"),
    ]
    last = _histogram({"1": 10, "2": 30, "+Inf": 30}, 30.0, engine="b")
    ttft = window(scraped({0: first, 1: last}), 0, 1).histograms["ttft"]
    assert (ttft.count, ttft.resets, ttft.quantiles["p50"]) == (20, 0, pytest.approx(1.5))


def test_replicas_are_added_up_or_averaged() -> None:
    a = scraped({0: _page(running=2, kv=0.2, tokens=10), 1: _page(running=6, kv=0.4, tokens=30)}, A)
    b = scraped({0.5: _page(running=5, kv=0.8, tokens=5), 1: _page(running=1, kv=0.6, tokens=6)}, B)
    found = window((*a, *b), 0.5, 1)
    assert found.gauges["running"] == GaugeFigure(9, 7, {A: 6, B: 3})
    assert found.gauges["kv_cache_use"] == GaugeFigure(pytest.approx(0.55), 0.8, {A: 0.4, B: pytest.approx(0.7)})  # type: ignore[arg-type, dict-item]  # fmt: skip
    assert found.counters["output_tokens"] == CounterFigure(21)
    assert found.servers == {A: "vllm", B: "vllm"}


def test_sum_without_one_of_the_replicas_is_missing_but_levels_are_those_of_the_others() -> None:
    a = scraped({0: _page(running=2, tokens=10), 1: _page(running=2, tokens=30)}, A)
    b = scraped({0: _page(running=2, tokens=10), 0.5: None, 1: None}, B)
    found = window((*a, *b), 0.2, 1)
    assert found.gauges["running"] == GaugeFigure(2, 2, {A: 2})
    assert found.counters == {}
    assert found.missing == {
        "running": f"{B}: no scrape succeeded in this window",
        "output_tokens": f"{B} could not be scraped when the window ended",
    }


def test_one_server_under_two_addresses_counts_once() -> None:
    pages = {0: _page(running=2, tokens=10, started=1000.25), 1: _page(running=4, tokens=30, started=1000.25)}
    found = window((*scraped(pages, A), *scraped(pages, B)), 0, 1)
    assert found.gauges["running"] == GaugeFigure(3, 4)
    assert found.counters["output_tokens"] == CounterFigure(20)


def test_replicas_that_were_started_at_different_times_are_two() -> None:
    a = scraped({0: _page(tokens=10, started=1000.25), 1: _page(tokens=30, started=1000.25)}, A)
    b = scraped({0: _page(tokens=10, started=1000.75), 1: _page(tokens=30, started=1000.75)}, B)
    assert window((*a, *b), 0, 1).counters["output_tokens"] == CounterFigure(40)


def test_requests_of_a_proxy_are_not_added_to_those_of_the_servers_behind_it() -> None:
    engine = scraped({0: _page(tokens=10), 1: _page(tokens=30)}, A)
    front_end = scraped({time: [("dynamo_frontend_output_tokens_total", {}, 20.0 * time), ("dynamo_frontend_queued_requests", {}, 4.0)] for time in (0, 1)}, B)  # fmt: skip
    found = window((*engine, *front_end), 0, 1)
    assert found.counters["output_tokens"] == CounterFigure(20)
    assert found.gauges["waiting"] == GaugeFigure(4, 4)
    assert window(front_end, 0, 1).counters["output_tokens"] == CounterFigure(20)


def test_histograms_with_different_buckets_are_merged_at_common_edges() -> None:
    empty = {0: [_sample(RUNNING, 0)]}
    a = scraped(empty | {1: _histogram({"0.1": 0, "0.2": 10, "1": 10, "+Inf": 10}, 1.5)}, A)
    b = scraped(empty | {1: _histogram({"0.1": 0, "0.2": 0, "0.5": 5, "1": 10, "+Inf": 10}, 6.0)}, B)
    c = scraped(empty | {1: _histogram({"3": 5, "+Inf": 5})}, "http://c/metrics")
    ttft = window((*a, *b), 0, 1).histograms["ttft"]
    assert (ttft.count, ttft.quantiles["p50"], ttft.quantiles["p90"]) == (20, pytest.approx(0.2), pytest.approx(0.84))
    found = window((*a, *c), 0, 1)
    assert found.histograms["ttft"].quantiles == {}
    assert found.missing == {"ttft": "quantiles: the targets' histograms have no edges in common"}


def test_other_sources_and_unknown_metrics_are_left_out() -> None:
    found = window(scraped({0: [("go_goroutines", {}, 9.0)], 1: [("go_goroutines", {}, 12.0)]}), 0, 1)
    assert (found.gauges, found.counters, found.missing, found.servers) == ({}, {}, {}, {})
