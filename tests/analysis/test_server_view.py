"""The server's view of a run: its windows, the comparison with the client's figures, notes and warnings."""

import msgspec
import numpy as np
import pytest
import server_series
import synthetic_run as made
from server_series import NETWORK, TARGET, scrapes_of, vllm, with_series

from inferometer.analysis.checks import Check
from inferometer.analysis.server_view import ServerView
from inferometer.analysis.summary import Summary, summarise
from inferometer.analysis.window import STEADY, WARMUP
from inferometer.records import Failure, StagePlan
from inferometer.series import TimeSeries
from inferometer.server_metrics.figures import SOURCE, UP

SECOND = made.SECOND
FRESH = made.manifest().config


def closed(rows: np.ndarray | None = None, about: dict[str, object] | None = None, **server: object) -> Summary:
    """The summary of 600 requests of 8 users, beside what a server reports."""
    own, chunks = made.closed_rows()
    rows = own if rows is None else rows
    series = vllm(own, scrapes_of(own), **server)  # type: ignore[arg-type]
    return summarise(with_series(made.run(rows, chunks, **(about or {})), series))


def whole(summary: Summary) -> ServerView:
    assert summary.server is not None
    return summary.server


def check(summary: Summary, name: str) -> Check:
    return next(check for check in summary.checks if check.name == name)


def test_without_metrics_there_is_no_view() -> None:
    rows, chunks = made.closed_rows()
    summary = summarise(made.run(rows, chunks))
    assert summary.server is None
    assert {"other_clients", "restarts"}.isdisjoint(check.name for check in summary.checks)
    assert not any(name.startswith("server.") for name in summary.definitions)


def test_an_endpoint_that_could_not_be_read_has_a_view_without_figures() -> None:
    rows, chunks = made.closed_rows()
    view = whole(summarise(made.run(rows, chunks, observer_errors={TARGET: "HTTP status 404"})))
    assert not view.figures.gauges and not view.comparison and not view.notes


# --- windows ---------------------------------------------------------------------------------------------------------


def test_gauges_count_over_the_measured_window() -> None:
    rows, chunks = made.closed_rows()
    phase = np.where(rows["intended"] < 4 * SECOND, WARMUP, STEADY).astype(np.int8)
    series = vllm(rows, scrapes_of(rows), num_requests_running=lambda at: 100 if at < 4 * SECOND else 8)
    view = whole(summarise(with_series(made.run(rows, chunks, phase=phase), series)))
    assert (view.figures.gauges["running"].mean, view.figures.gauges["running"].max) == (8, 8)
    assert view.comparison["requests"].server == 600, "counters include the warm-up"


def test_requests_and_tokens_are_counted_alike_without_those_of_the_probe() -> None:
    view = whole(closed())
    for name, count in {"requests": 600, "input_tokens": 38_400, "output_tokens": 6_000}.items():
        assert (view.comparison[name].client, view.comparison[name].server) == (count, count)
    assert not view.notes


def two_stages(late: int = 0, names: tuple[str, str] = ("slow", "fast"), **server: object) -> Summary:
    """Two stages of 400 and 200 requests; the second one is noticed 0.2 s after it began, and a scrape happens before."""
    rows, chunks = made.open_rows()
    rows["stage"] = rows["id"] >= 400
    begin = int(rows["intended"][400])
    rows["done"][399] += late
    scrapes = [*scrapes_of(rows), begin + SECOND // 20]
    series = vllm(rows, scrapes, [begin + SECOND // 5], **server)  # type: ignore[arg-type]
    plan = [
        msgspec.structs.replace(made.OPEN, name=name, rate=rate)
        for name, rate in zip(names, (100.0, 99.0), strict=True)
    ]
    return summarise(with_series(made.run(rows, chunks, plan=tuple(plan)), series))


def test_a_stage_is_compared_with_the_requests_that_ended_in_it() -> None:
    summary = two_stages(late=SECOND)
    first, second = (stage.server for stage in summary.stages)
    assert first is not None and second is not None
    for view in (first, second, whole(summary)):
        assert view.comparison["requests"].client == view.comparison["requests"].server
        assert view.comparison["ttft.mean"].difference == pytest.approx(NETWORK / SECOND)
    assert first.comparison["requests"].client > 400, "the second stage is noticed late"
    assert first.comparison["requests"].client + second.comparison["requests"].client == 600


def test_the_gauges_of_a_stage_end_where_the_next_one_begins() -> None:
    rows, _ = made.open_rows()
    begin = int(rows["intended"][400])
    late = 2 * SECOND  # its last response arrives while the next stage is in progress
    summary = two_stages(late, num_requests_waiting=lambda at: 0 if at < begin else 9)
    waiting = [stage.server.figures.gauges["waiting"].max for stage in summary.stages if stage.server]
    assert waiting == [0, 9]


def test_requests_that_a_stage_leaves_behind_are_not_in_the_gauges_of_the_next() -> None:
    rows, _ = made.open_rows()
    begin = int(rows["intended"][400])
    summary = two_stages(SECOND // 2, num_requests_waiting=lambda at: 9 if begin <= at < begin + SECOND // 2 else 0)
    assert summary.stages[1].server is not None
    assert summary.stages[1].server.figures.gauges["waiting"].max == 0


def test_a_target_that_dies_midway_has_gauges_but_no_totals() -> None:
    rows, chunks = made.closed_rows()
    scrapes = scrapes_of(rows)
    died = len(scrapes) // 2
    up = TimeSeries(SOURCE, UP, {"target": TARGET}, np.array(scrapes), (np.arange(len(scrapes)) < died).astype(float))
    series = (up, *(each for each in vllm(rows, scrapes[:died]) if each.name != UP))
    view = whole(summarise(with_series(made.run(rows, chunks), series)))
    assert view.figures.gauges["running"].max > 0
    assert not view.comparison and not view.figures.counters
    assert "could not be scraped when the window ended" in view.figures.missing["requests"]


def test_times_of_other_requests_are_not_compared() -> None:
    rows, chunks = made.closed_rows()
    few = rows[::2].copy()
    series = vllm(few, scrapes_of(rows))
    view = whole(summarise(with_series(made.run(rows, chunks), series)))
    assert set(view.comparison) == {"requests", "input_tokens", "output_tokens"}


def test_the_border_of_stages_is_the_scrape_at_the_mark() -> None:
    summary = two_stages()
    for stage in summary.stages:
        assert stage.server is not None
        assert stage.server.figures.histograms["e2e"].count == stage.server.comparison["requests"].server
        p50 = stage.server.figures.histograms["ttft"].quantiles["p50"]
        assert p50 == pytest.approx(0.05, abs=0.01), "within the bucket from 40 to 60 ms"


def test_a_run_that_is_shorter_than_its_preparation_has_percentiles() -> None:
    rows, chunks = made.closed_rows(24)
    series = vllm(rows, [-20 * SECOND, -SECOND, int(rows["done"].max()) + 1])
    view = whole(summarise(with_series(made.run(rows, chunks), series)))
    assert view.figures.histograms["e2e"].quantiles["p50"] is not None and "e2e" not in view.figures.missing


def test_without_scrapes_in_a_stage_its_figures_are_missing() -> None:
    rows, chunks = made.open_rows()
    rows["stage"] = rows["id"] >= 590
    plan = (made.OPEN, made.OPEN)
    series = vllm(rows, [-SECOND, int(rows["done"].max()) + SECOND])
    summary = summarise(with_series(made.run(rows, chunks, plan=plan), series))
    assert whole(summary).comparison["requests"].server == 600
    second = summary.stages[1].server
    assert second is not None and "running" not in second.figures.gauges


# --- comparison ------------------------------------------------------------------------------------------------------


def test_latencies_are_compared_from_the_send() -> None:
    rows, chunks = made.open_rows()
    rows["intended"] -= 30 * made.MS  # the server does not know that they were sent late
    summary = summarise(with_series(made.run(rows, chunks, plan=(made.OPEN,)), vllm(rows, scrapes_of(rows))))
    found = whole(summary).comparison
    for name in ("ttft", "e2e"):
        assert found[f"{name}.mean"].difference == pytest.approx(NETWORK / SECOND)
        assert found[f"{name}.mean"].client == pytest.approx(summary.metrics[f"{name}_service"].mean)
        assert {f"{name}.p50", f"{name}.p99"} <= set(found)


def test_tokens_that_are_not_known_of_every_request_are_not_compared() -> None:
    rows, _ = made.closed_rows()
    rows["n_out"][7], rows["counted_by"][7] = -1, 0
    rows["n_in"], rows["in_counted_by"] = -1, 0
    found = whole(closed(rows)).comparison
    assert "requests" in found and {"input_tokens", "output_tokens"}.isdisjoint(found)


def test_chunks_are_not_tokens() -> None:
    rows, _ = made.closed_rows()
    rows["counted_by"] = 3
    assert "output_tokens" not in whole(closed(rows)).comparison


def test_a_response_that_is_not_streamed_has_no_ttft_to_compare() -> None:
    rows, _ = made.closed_rows()
    rows["first_token"] = made.MISSING
    found = whole(closed(rows)).comparison
    assert "ttft.mean" not in found and "e2e.mean" in found


def test_derived_figures() -> None:
    found = whole(
        closed(
            prefix_cache_hits_total=lambda at: 192 + (9_600 if at > 0 else 0),
            spec_decode_num_draft_tokens_total=lambda at: 100 if at < 0 else 500,
            spec_decode_num_accepted_tokens_total=lambda at: 50 if at < 0 else 350,
        )
    ).derived
    assert found == {"prefix_cache_hit_rate": 0.25, "spec_acceptance": 0.75}


def test_sums_of_seconds_become_means_per_request() -> None:
    rows, chunks = made.closed_rows()

    def counter(name: str, total: float) -> TimeSeries:
        at = np.array([-SECOND // 10, int(rows["done"].max()) + 1], np.int64)
        return TimeSeries(
            SOURCE, name, {"model": "my-model", "version": "1", "target": TARGET}, at, np.array([7, 7 + total])
        )

    totals = {"queue_duration_us": 1.2e6, "request_success": 600, "count": 2400, "exec_count": 300} | {
        "request_duration_us": 60e6
    }
    series = [counter(f"nv_inference_{name}", total) for name, total in totals.items()]
    up = TimeSeries(SOURCE, UP, {"target": TARGET}, series[0].at, np.ones(2))
    view = whole(summarise(with_series(made.run(rows, chunks), (up, *series))))
    assert (view.derived["queue_time"], view.derived["batch"]) == (pytest.approx(0.002), 8)
    assert view.comparison["e2e.mean"].server == pytest.approx(0.1) and "e2e.p50" not in view.comparison


def test_definitions_are_those_of_the_figures() -> None:
    definitions = closed().definitions
    assert definitions["server.running"] == "requests that the server is processing"
    assert "server.derived.prefix_cache_hit_rate" in definitions and "server.gpu_power" not in definitions


# --- notes -----------------------------------------------------------------------------------------------------------


def test_queue() -> None:
    (note,) = whole(closed(num_requests_waiting=lambda at: 16 if (at // SECOND) % 2 else 8)).notes
    assert note == "the server queued: 12 requests waiting on average (at most 16); its capacity was reached"
    assert not whole(closed(num_requests_waiting=lambda at: 1 if at > 9 * SECOND else 0)).notes
    (one,) = whole(closed(num_requests_waiting=lambda at: 1)).notes
    assert one.startswith("the server queued: 1 request waiting on average (at most 1); ")


def test_queue_of_stages() -> None:
    summary = two_stages(num_requests_waiting=lambda at: 20 if at > 4.5 * SECOND else 0)
    (note,) = whole(summary).notes
    assert note.startswith("the server queued in 1 of 2 stages, most in fast: ")
    first, second = (stage.server for stage in summary.stages)
    assert first is not None and not first.notes
    assert second is not None and second.notes[0].startswith("the server queued: ")


def test_stages_with_the_same_name_are_counted_each() -> None:
    summary = two_stages(names=("same", "same"), num_requests_waiting=lambda at: 20 if at > 4.5 * SECOND else 5)
    (note,) = whole(summary).notes
    assert note.startswith("the server queued in 2 of 2 stages, most in same: ")


def test_preemptions_and_a_full_cache() -> None:
    (full,) = whole(closed(kv_cache_usage_perc=lambda at: 0.98)).notes
    assert full.startswith("the server's KV cache was up to 98% full")
    preemptions = {"num_preemptions_total": lambda at: 5 if at < 0 else 19}
    (preempted,) = whole(closed(kv_cache_usage_perc=lambda at: 0.98, **preemptions)).notes
    assert preempted.startswith("the server preempted requests 14 times: its KV cache was full")


HITS = {"prefix_cache_hits_total": lambda at: 192 + (19_200 if at > 0 else 0)}


def test_cache_hits_that_were_not_meant() -> None:
    (note,) = whole(closed(**HITS)).notes
    assert note.startswith(
        "the server took 50% of the prompt tokens from its prefix cache, although every prompt is new"
    )


@pytest.mark.parametrize(
    "about", [{"config": FRESH | {"data": {"type": "file"}}}, {"workload": {"distinct": 5}}], ids=["file", "repeated"]
)
def test_cache_hits_that_are_expected(about: dict[str, object]) -> None:
    assert not whole(closed(about=about, **HITS)).notes


def test_fewer_requests_than_the_client_completed() -> None:
    (note,) = whole(closed(request_success_total=lambda at: 3 if at < 0 else 303)).notes
    assert note.startswith("the server completed 300 requests, this client 600: ")


@pytest.mark.parametrize(("tokens", "words"), [(6_600, "10.0% more"), (5_400, "10.0% fewer"), (6_050, "")])
def test_tokens_that_differ(tokens: int, words: str) -> None:
    notes = whole(closed(generation_tokens_total=lambda at: 30 + (tokens if at > 0 else 0))).notes
    assert [note.endswith(words) for note in notes] == ([True] if words else [])
    assert not words or notes[0].startswith(f"the server counted {tokens:,} output tokens, this client 6,000: ")


def test_tokens_of_failed_requests_explain_a_difference() -> None:
    rows, _ = made.closed_rows()
    made.fail(rows, slice(0, 100))
    notes = whole(closed(rows, {"failures": (Failure("reset", ""),)})).notes
    assert not any("tokens" in note for note in notes)


def test_a_latency_that_is_longer_at_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_series, "NETWORK", -5 * made.MS)
    first, second = whole(closed()).notes
    assert first.startswith("the server's mean ttft (55 ms) is longer than this client's (50 ms)")
    assert second.startswith("the server's mean e2e (145 ms)")


# --- warnings --------------------------------------------------------------------------------------------------------


def test_other_clients() -> None:
    assert check(closed(), "other_clients").status == "pass"
    found = check(closed(request_success_total=lambda at: 3 if at < 0 else 737), "other_clients")
    assert found.status == "warn" and found.value == pytest.approx(134 / 600)
    assert "The server completed 734 requests during the run, and this client sent 600: other clients" in found.message


def test_failed_requests_and_second_attempts_are_this_clients() -> None:
    rows, _ = made.closed_rows()
    made.fail(rows, slice(0, 100))
    rows["attempts"][100:200] = 2
    summary = closed(rows, {"failures": (Failure("reset", ""),)}, request_success_total=lambda at: 3 + 700 * (at > 0))
    assert check(summary, "other_clients").status == "pass"


def test_a_server_that_does_not_count_requests() -> None:
    summary = closed(request_success_total=None)
    assert "other_clients" not in {check.name for check in summary.checks}
    assert "requests" not in whole(summary).comparison


def test_restarts() -> None:
    assert check(closed(), "restarts").status == "pass"
    found = check(closed(prompt_tokens_total=lambda at: at / 1e6 if at < 5 * SECOND else at / 1e9), "restarts")
    assert (found.status, found.value) == ("warn", 1)
    assert "The server was restarted during the run: its counters (input_tokens) fell once." in found.message


def test_replicas_are_added_up() -> None:
    rows, chunks = made.closed_rows()
    even = rows["id"] % 2 == 0
    other = TARGET.replace("8000", "8001")
    series = vllm(rows[even], scrapes_of(rows)) + vllm(rows[~even], scrapes_of(rows), target=other)
    view = whole(summarise(with_series(made.run(rows, chunks), series)))
    assert (view.comparison["requests"].server, view.comparison["requests"].client) == (600, 600)
    assert set(view.figures.gauges["running"].by_target) == {TARGET, other}
    assert view.figures.gauges["running"].mean == pytest.approx(8, abs=1)


def test_names_of_stages_without_a_name() -> None:
    rows, chunks = made.open_rows()
    rows["stage"] = rows["id"] >= 300
    plan = (StagePlan(type="poisson", open=True, rate=100.0), StagePlan(type="closed", open=False, concurrency=64))
    series = vllm(rows, scrapes_of(rows), num_requests_waiting=9)
    notes = whole(summarise(with_series(made.run(rows, chunks, plan=plan), series))).notes
    assert notes[0].startswith("the server queued in 2 of 2 stages, most in poisson: 9 requests")
