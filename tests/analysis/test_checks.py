"""Every check, passing and failing. Messages of checks that do not pass say what is wrong and what to do next."""

import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import synthetic_run as made
from server_series import scrapes_of, vllm, with_series

from inferometer.analysis.checks import CHECKS, Check
from inferometer.analysis.checks.load import in_flight
from inferometer.analysis.summary import Summary, summarise
from inferometer.records import (
    CANCELLED,
    COUNTED_BY,
    DROPPED,
    Columns,
    Failure,
    Merged,
    MergedPart,
    Outcome,
    StagePlan,
    Trip,
)

MS, SECOND = made.MS, made.SECOND


def closed(change: Callable[[np.ndarray], None] = lambda rows: None, **about: object) -> Summary:
    rows, chunks = made.closed_rows()
    change(rows)
    return summarise(made.run(rows, chunks, **about))


def opened(change: Callable[[np.ndarray], None] = lambda rows: None, **about: object) -> Summary:
    rows, chunks = made.open_rows()
    change(rows)
    return summarise(made.run(rows, chunks, **({"plan": (made.OPEN,)} | about)))


def check(summary: Summary, name: str) -> Check:
    found = next((check for check in summary.checks if check.name == name), None)
    assert found is not None, f"{name} did not apply"
    assert (summary.verdict == "INVALID") == any(check.status == "fail" for check in summary.checks)
    if found.status != "pass":
        assert len(found.message.split(". ")) >= 2, "it must say what is wrong and what to do next"
    msgspec.json.encode(summary)  # as summary.json does
    return found


def applies(summary: Summary, name: str) -> bool:
    return name in {check.name for check in summary.checks}


def config(**sections: object) -> dict[str, object]:
    return made.manifest().config | sections


MERGED = Merged(
    2, tuple(MergedPart(number=n, run="", t0_wall_ns=n, requests=1, processes=1, host={}, clock={}) for n in (0, 1))
)


def test_good_runs_pass_every_check_that_applies() -> None:
    stable = msgspec.structs.replace(made.CLOSED, stable=0.2, window=1.0)
    rows, chunks = made.closed_rows()
    scraped = with_series(made.run(rows, chunks), vllm(rows, scrapes_of(rows)))
    limited = config(measure={"warmup": "auto"}, abort={"on": "failure_rate > 20%"})
    found = (
        closed(plan=(stable,)),
        opened(config=limited, merged=MERGED, clock=clocks(0.4, 0.3)),
        summarise(scraped),
    )
    for summary in found:
        others = [check for check in summary.checks if check.name != "sample_size"]  # 600 requests are few
        assert summary.verdict == "VALID" and {check.status for check in others} == {"pass"}
    assert {check.name for summary in found for check in summary.checks} == set(CHECKS)


def clocks(*bounds: float) -> dict[str, object]:
    """The manifest's `clock` of a fleet whose nodes have these bounds, in ms."""
    return {"stamps": "kernel", "nodes": [{"node": "n", "bound_ns": round(bound * MS)} for bound in bounds]}


@pytest.mark.parametrize(
    ("bounds", "rate", "status"),
    [
        ((9.9, 0.0), 100, "pass"),  # less than the 10 ms between two requests
        ((6.0, 0.1, 4.1), 100, "fail"),
        ((6.0, 0.1, 4.1), 90, "pass"),
        ((2.0, 2.9), 100_000, "pass"),  # less than limits.clock_offset
        ((2.0, 3.1), 100_000, "fail"),
    ],
)
def test_clocks_that_are_too_far_apart_for_the_rate(bounds: tuple[float, ...], rate: float, status: str) -> None:
    plan = (msgspec.structs.replace(made.OPEN, rate=float(rate)),)
    found = check(opened(plan=plan, clock=clocks(*bounds)), "clocks")
    assert found.status == status
    assert found.value == pytest.approx(sum(sorted(bounds)[-2:]) / 1000)


def test_clocks_do_not_matter_to_one_node_or_a_closed_loop() -> None:
    assert not applies(opened(clock=clocks(50.0)), "clocks")
    assert check(closed(clock=clocks(50.0, 50.0)), "clocks").status == "pass"


# --- outcome ---------------------------------------------------------------------------------------------------------


def test_completed_fails_if_no_request_succeeded() -> None:
    found = check(closed(lambda rows: made.fail(rows, slice(None)), failures=(Failure("http_500", "no"),)), "completed")
    assert found.status == "fail" and "failures" in found.message


def test_completed_fails_if_the_window_is_empty() -> None:
    found = check(closed(phase=np.zeros(600, np.int8)), "completed")
    assert found.status == "fail" and "measure.warmup" in found.message


def test_limit_that_ended_the_run() -> None:
    reason = "failure_rate 34 % > 20 % over the last 10 s (41 of 120 requests)"
    trip = Trip("failure_rate > 20%", "run", 0, 14.2, 0.34, reason)
    summary = closed(outcome=Outcome(trips=(trip,)))
    assert check(summary, "abort").message.startswith(f"The run was ended after 14.2 s by {trip.limit}: {reason}.")
    assert check(summary, "abort").status == "fail" and check(summary, "interrupted").status == "pass"
    assert summary.ended_by == (trip,) and not any(summary.quotable.values())


def test_limit_that_ended_stages() -> None:
    rows, chunks = made.closed_rows()
    rows["stage"][300:] = 1
    plans = tuple(msgspec.structs.replace(made.CLOSED, name=name, requests=300) for name in ("low", "high"))
    for ended, words in (("stage", "Stage 2 (high) was ended after"), ("run", "The run was ended in stage 2 (high)")):
        trip = Trip("e2e > 1s", ended, 1, 3.0, 1.5, "e2e 1.5 s > 1 s in one request")
        summary = summarise(made.run(rows, chunks, plan=plans, outcome=Outcome(trips=(trip,))))
        assert check(summary, "abort").message.startswith(words)
        assert [stage.quotable["latency"] for stage in summary.stages] == [True, False]


def test_interrupted_and_workers() -> None:
    assert check(closed(outcome=Outcome(interrupted=True)), "interrupted").status == "fail"
    found = check(closed(outcome=Outcome(errors=("shard 1 died of signal 9", "shard 2 hung"))), "workers")
    assert found.status == "fail" and "signal 9" in found.message and "1 more" in found.message
    alone = check(closed(outcome=Outcome(True, ("the run did not end",))), "workers").message
    assert alone.startswith("the run did not end. The records were kept") and "others" not in alone


@pytest.mark.parametrize(("failed", "status"), [(6, "pass"), (7, "fail")])
def test_failures_pass_up_to_the_limit(failed: int, status: str) -> None:
    busy = (Failure("http_503", "the server is busy"), Failure("reset", ""))
    found = check(closed(lambda rows: made.fail(rows, slice(0, failed)), failures=busy), "failures")
    assert (found.status, found.limit, found.value) == (status, 0.01, failed / 600)
    assert status == "pass" or "http_503: the server is busy" in found.message


def test_failures_with_404_suggest_checking_the_api() -> None:
    found = closed(lambda rows: made.fail(rows, slice(None)), failures=(Failure("http_404", "Not Found"),))
    assert "server.api" in check(found, "failures").message


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("connect_refused", "Check whether the server is still up at that address"),
        ("connect_failed", "still up at that address"),
        ("connect_timeout", "server.timeouts.connect"),
        ("closed", "the server's log"),
        ("reset", "the server's log"),
        ("cut_short", "the server's log"),
        ("first_token_timeout", "Find out why the server is slow"),
        ("total_timeout", "server.timeouts"),
        ("tls", "server.tls"),
        ("grpc_UNAUTHENTICATED", "server.api_key_env"),
        ("no_sockets", "ulimit -n"),
        ("http_500", "Fix the cause"),
        ("http_503", "Lower the load"),
    ],
)
def test_failures_suggest_what_to_check(code: str, words: str) -> None:
    found = closed(lambda rows: made.fail(rows, slice(0, 300)), failures=(Failure(code, ""),))
    assert words in check(found, "failures").message


@pytest.mark.parametrize(("url", "hint"), [("http://x", True), (["http://x", "http://y"], True), ("https://x", False)])
@pytest.mark.parametrize("code", ["closed", "reset"])
def test_failures_of_all_plain_text_requests_suggest_tls(code: str, url: object, hint: bool) -> None:
    def message(failed: slice) -> str:
        about = {"failures": (Failure(code, ""),), "config": config(server={"url": url})}
        return check(closed(lambda rows: made.fail(rows, failed), **about), "failures").message

    assert ("if the server expects TLS" in message(slice(None))) == hint
    assert "TLS" not in message(slice(0, 300))


def test_failures_are_judged_in_each_stage() -> None:
    """2 % of the requests of the second stage fail, which are 0.3 % of all."""

    def change(rows: np.ndarray) -> None:
        rows["stage"][500:] = 1
        made.fail(rows, slice(598, 600))

    plans = (made.CLOSED, msgspec.structs.replace(made.CLOSED, name="evening"))
    found = check(closed(change, plan=plans, failures=(Failure("http_503", ""),)), "failures")
    assert (found.status, found.value, found.stages) == ("fail", 0.02, (1,))
    assert "2 of 100 requests of stage 2 (evening) failed" in found.message
    assert (
        check(
            closed(lambda rows: made.fail(rows, slice(598, 600)), failures=(Failure("http_503", ""),)), "failures"
        ).status
        == "pass"
    )


def test_requests_that_were_sent_twice_warn() -> None:
    def again(count: int) -> Check:
        return check(closed(lambda rows: rows["attempts"][:count].fill(2)), "retries")

    assert again(6).status == "pass"
    assert (again(7).status, again(7).value) == ("warn", 7 / 600) and "keep-alive" in again(7).message


def test_cancelled_requests_are_not_failures_of_the_server() -> None:
    found = closed(lambda rows: made.fail(rows, slice(590, 600)), failures=(Failure(CANCELLED, ""),))
    assert check(found, "failures").status == "pass" and found.counts.by_failure == {CANCELLED: 10}


def test_one_drop_in_any_phase_fails() -> None:
    phase = np.ones(600, np.int8)
    phase[0] = 0
    drop = {"failures": (Failure(DROPPED, ""),), "phase": phase}
    found = check(opened(lambda rows: made.never_sent(rows, [0], 1), **drop), "dropped")
    assert (found.status, found.value) == ("fail", 1)


# --- load ------------------------------------------------------------------------------------------------------------


def slow_sender(rows: np.ndarray) -> None:
    rows["sent"] = rows["intended"] + (rows["intended"] * 0.1).astype(np.int64)


def test_rate_fails_if_the_client_sent_too_slowly() -> None:
    found = check(opened(slow_sender), "rate")
    assert (
        found.status == "fail"
        and found.value == pytest.approx(1 / 1.1, rel=0.01)
        and "another machine" in found.message
    )


def held(rows: np.ndarray) -> None:
    slow_sender(rows)
    rows["held"] = rows["sent"] - rows["intended"]


CAPPED = msgspec.structs.replace(made.OPEN, concurrency=4)


def test_rate_names_the_cap_if_requests_waited_for_it() -> None:
    assert "max_concurrency" in check(opened(held, plan=(CAPPED,)), "rate").message


def test_rate_names_connections_if_requests_waited_without_a_cap() -> None:
    message = check(opened(held), "rate").message
    assert "client.connections" in message and "cap" not in message and "max_concurrency" not in message


NO_FILES = "the limit of 100 open files (ulimit -n) is reached: raise it, use more processes, or lower the load"


def without_sockets(count: int) -> Callable[[np.ndarray], None]:
    """The last `count` requests get no socket; each of the others had to wait only for a connection to open."""

    def change(rows: np.ndarray) -> None:
        rows["held"] = rows["sent"] - rows["intended"]
        made.never_sent(rows, slice(600 - count, 600), 1)
        rows["held"][600 - count :] = 0

    return change


@pytest.mark.parametrize("plan", [made.OPEN, CAPPED])
@pytest.mark.parametrize("count", [60, 550, 600])
def test_rate_names_sockets_if_the_machine_ran_out_of_them(count: int, plan: StagePlan) -> None:
    found = check(opened(without_sockets(count), plan=(plan,), failures=(Failure("no_sockets", NO_FILES),)), "rate")
    assert found.status == "fail" and found.value == pytest.approx(1 - count / 600, rel=0.01)
    assert found.message.endswith(
        f" ({count} of 600 requests were never sent). This machine ran out of sockets for {count} requests: {NO_FILES}."
    )


def test_rate_names_sockets_for_the_stage_that_was_too_slow() -> None:
    """Sockets ran out in both stages, but only the second one fell short because of it."""

    def two_stages(rows: np.ndarray) -> None:
        rows["stage"][300:] = 1
        made.never_sent(rows, [10, *range(400, 600)], 1)

    found = check(opened(two_stages, plan=(CAPPED, made.OPEN), failures=(Failure("no_sockets", NO_FILES),)), "rate")
    assert found.value == pytest.approx(1 / 3, rel=0.01) and "ran out of sockets for 200 requests" in found.message
    assert found.stages == (1,) and "of stage 2" in found.message


def test_rate_names_the_client_if_it_was_slow_and_few_sockets_were_missing() -> None:
    def change(rows: np.ndarray) -> None:
        slow_sender(rows)
        made.never_sent(rows, slice(0, 6), 1)

    found = check(opened(change, failures=(Failure("no_sockets", NO_FILES),)), "rate")
    assert found.status == "fail" and "another machine" in found.message and "socket" not in found.message


@pytest.mark.parametrize(("code", "words"), [("connect_refused", "see the failures"), (DROPPED, "max_concurrency")])
def test_rate_names_the_failures_that_prevented_sending(code: str, words: str) -> None:
    found = check(
        opened(lambda rows: made.never_sent(rows, slice(300, 600), 1), plan=(CAPPED,), failures=(Failure(code, ""),)),
        "rate",
    )
    assert found.status == "fail" and words in found.message and "client.processes" not in found.message


def test_rate_does_not_apply_to_closed_loops_nor_concurrency_to_open_ones() -> None:
    assert not applies(closed(), "rate") and not applies(opened(), "concurrency")


def test_rate_fails_if_no_request_was_sent() -> None:
    everything = {"failures": (Failure(CANCELLED, ""),)}
    assert check(opened(lambda rows: made.never_sent(rows, slice(None), 1), **everything), "rate").status == "fail"


def test_rate_limit_is_configurable() -> None:
    assert check(opened(slow_sender, config=config(limits={"rate": 0.9})), "rate").status == "pass"


def test_a_rate_that_the_cap_lowered_leaves_the_throughput_quotable() -> None:
    found = opened(held, plan=(CAPPED,))
    assert check(found, "rate").affects == ("latency",)
    assert check(opened(slow_sender), "rate").affects == ("latency", "throughput")


@pytest.mark.parametrize(
    ("late", "planned", "status"),
    [(90_000, 11, "warn"), (120_000, 11, "fail"), (120_000, 9, "warn"), (120_000, 8, "pass")],
)
def test_concurrency_fails_below_the_limit_unless_responses_are_just_short(
    late: int, planned: int, status: str
) -> None:
    rows, chunks = made.closed_rows()
    rows["intended"] = rows["sent"] - late
    plan = msgspec.structs.replace(made.CLOSED, concurrency=planned)
    found = check(summarise(made.run(rows, chunks, plan=(plan,))), "concurrency")
    assert found.status == status and found.value == pytest.approx(8 / planned, rel=0.01) and found.limit == 0.8
    assert found.message.lower().startswith(f"mean in flight 8 of {planned}")
    assert status == "pass" or found.affects == ("throughput",)


def test_concurrency_limit_is_configurable() -> None:
    rows, chunks = made.closed_rows()
    rows["intended"] = rows["sent"] - 120_000
    plan = msgspec.structs.replace(made.CLOSED, concurrency=9)
    limits = {"plan": (plan,), "config": config(limits={"concurrency": 0.9})}
    assert check(summarise(made.run(rows, chunks, **limits)), "concurrency").status == "fail"


@pytest.mark.parametrize(("between", "status"), [(200_000, "warn"), (20_000, "pass")])
def test_concurrency_of_one_says_what_the_rest_is(between: int, status: str) -> None:
    rows = made.blank(100)
    rows["sent"] = np.arange(100) * made.MS
    rows["done"] = rows["sent"] + made.MS - between
    rows["intended"] = rows["sent"] - between
    plan = msgspec.structs.replace(made.CLOSED, concurrency=1)
    found = check(summarise(made.run(rows, plan=(plan,))), "concurrency")
    assert found.status == status
    if status == "warn":
        assert "Mean in flight 0.8 of 1. The rest is the client's own 200 us between requests" in found.message
        assert "processes" not in found.message and "lower" not in found.message


def test_concurrency_after_failures_points_to_them() -> None:
    rows, chunks = made.closed_rows()
    made.fail(rows, slice(0, 5))
    plan = msgspec.structs.replace(made.CLOSED, concurrency=11)
    found = check(summarise(made.run(rows, chunks, plan=(plan,), failures=(Failure("reset", ""),))), "concurrency")
    assert found.status == "fail" and "see the failures" in found.message


def test_littles_law_holds() -> None:
    assert check(opened(), "littles_law").value == pytest.approx(0, abs=0.02)
    assert check(closed(), "littles_law").value == pytest.approx(0, abs=0.02)
    assert not applies(opened(lambda rows: rows["done"].__iadd__(SECOND)), "littles_law"), (
        "a second is long for a stage of 6 s"
    )


def test_littles_law_warns_if_the_window_is_slower_than_the_rest() -> None:
    """Requests of the window take twice as long as those that are left out, but were in flight together with them."""

    def slow(rows: np.ndarray) -> None:
        rows["done"][::2] += 120 * MS

    phase = np.where(np.arange(600) % 2 == 0, 1, 0).astype(np.int8)
    phase[-1] = 1
    found = check(opened(slow, phase=phase), "littles_law")
    assert found.status == "warn" and "Little's law" in found.message


def test_warmup_warns_if_auto_reaches_its_bound() -> None:
    auto = config(measure={"warmup": "auto"})

    def drift(rows: np.ndarray) -> None:
        rows["done"] += rows["intended"] // 100

    found = check(opened(drift, config=auto), "warmup")
    assert found.status == "warn" and "that is drift, not warm-up" in found.message
    assert check(opened(config=auto), "warmup").status == "pass" and not applies(opened(drift), "warmup")


def test_concurrency_does_not_apply_with_think_time_or_if_no_request_was_replaced() -> None:
    assert not applies(closed(plan=(msgspec.structs.replace(made.CLOSED, think=1.0),)), "concurrency")
    assert not applies(closed(plan=(msgspec.structs.replace(made.CLOSED, concurrency=600),)), "concurrency")


def test_concurrency_does_not_apply_if_only_a_few_requests_were_replaced() -> None:
    """The time from the start of the last user to the last send is then only as long as the gaps between requests."""
    rows, chunks = made.closed_rows(9)
    assert not applies(summarise(made.run(rows, chunks)), "concurrency")
    rows, chunks = made.closed_rows(16)
    assert check(summarise(made.run(rows, chunks)), "concurrency").status == "pass"


def test_concurrency_after_the_loss_of_a_process_names_it() -> None:
    plan = msgspec.structs.replace(made.CLOSED, concurrency=16)
    lost = Outcome(errors=("client process 1 died of signal 9",))
    found = check(closed(plan=(plan,), outcome=lost), "concurrency")
    assert "client process 1 died of signal 9" in found.message and "client.processes" not in found.message


def test_in_flight_is_counted_after_the_ramp_and_before_the_drain() -> None:
    rows = made.blank(4)
    rows["sent"] = np.array([0, 1, 3, 4]) * SECOND  # two users, the second a second later
    rows["done"] = np.array([3, 4, 6, 9]) * SECOND
    plan = StagePlan(type="closed", open=False, concurrency=2, ramp_up=1.0)
    assert in_flight(Columns.of(rows), plan) == 2.0
    assert in_flight(Columns.of(rows[::-1]), plan) == 2.0
    assert in_flight(Columns.of(rows), msgspec.structs.replace(plan, ramp_up=9.0)) is None


def test_in_flight_is_counted_until_the_end_of_the_stage_even_if_sequences_continue() -> None:
    rows = made.blank(7)
    rows["sent"] = np.array([0, 0, 1, 1, 2, 3, 4]) * SECOND  # two users; when 2 s are over, one has a sequence to end
    rows["done"] = np.array([1, 1, 2, 2, 3, 4, 5]) * SECOND
    plan = StagePlan(type="closed", open=False, concurrency=2, duration=2.0)
    assert in_flight(Columns.of(rows), plan) == 2.0


# --- sample ----------------------------------------------------------------------------------------------------------


def test_tokens_that_nobody_counted_warn() -> None:
    found = check(closed(lambda rows: rows["counted_by"][:60].fill(0)), "token_source")
    assert (found.status, found.value) == ("warn", 0.1) and "not known for 10%" in found.message


def test_tokens_that_are_a_number_of_chunks_warn_and_are_in_no_figure_per_token() -> None:
    def by_chunks(rows: np.ndarray) -> None:
        rows["counted_by"], rows["first_tokens"], rows["streamed_tokens"] = COUNTED_BY.index("chunks"), -1, -1
        rows["n_want"] = 99

    summary = closed(by_chunks)
    found = check(summary, "token_source")
    assert (found.status, found.value) == ("warn", 1.0) and "number of chunks stands in" in found.message
    assert summary.metrics["output_tokens"].count
    assert not any(summary.metrics[name].count for name in ("tpot", "tps_user", "ntpot", "tokens_per_chunk"))
    assert not applies(summary, "answers")


def test_tokens_counted_by_the_tokenizer_of_the_model_pass() -> None:
    found = check(closed(lambda rows: rows["counted_by"][:60].fill(2)), "token_source")
    assert found.status == "pass" and "data.tokenizer counted the output tokens of 10%" in found.message


def test_token_source_suggests_what_can_count() -> None:
    def message(**server: object) -> str:
        found = closed(lambda rows: rows["counted_by"].fill(0), config=config(server=server))
        return check(found, "token_source").message

    assert "data.tokenizer" in message(api="generate") and "usage" not in message(api="generate")
    assert "data.tokenizer" in message(api="chat", usage=True) and "server.usage" not in message(api="chat", usage=True)
    assert "server.usage" in message(api="chat", usage=False)


def test_wrong_length_counted_by_the_client_suggests_the_tokenizer() -> None:
    def counted_here(rows: np.ndarray) -> None:
        rows["counted_by"], rows["n_want"] = 2, 5

    assert "data.tokenizer" in check(closed(counted_here), "answers").message


def test_short_and_long_responses_warn() -> None:
    def want(tokens: int) -> Callable[[np.ndarray], None]:
        return lambda rows: rows["n_want"].fill(tokens)

    found = check(closed(want(20)), "answers")
    assert found.status == "warn" and "ignore_eos" in found.message
    assert not applies(closed(want(0)), "answers")
    found = check(closed(want(5)), "answers")
    assert found.status == "warn" and "max_tokens_field" in found.message


def test_repeated_prompts_warn() -> None:
    found = check(closed(workload={"distinct": 5}), "prompts")
    assert (found.status, found.value, found.limit) == ("warn", 5, 600)
    assert not applies(closed(workload={}), "prompts")


@pytest.mark.parametrize(("cached", "status"), [(0, "pass"), (6, "pass"), (7, "warn"), (64, "warn")])
def test_cached_tokens_of_fresh_prompts_warn(cached: int, status: str) -> None:
    found = check(closed(lambda rows: rows["cached"].fill(cached)), "cached_tokens")
    assert (found.status, found.value) == (status, cached / 64)


def test_cached_tokens_are_expected_for_later_turns_and_for_prompts_that_may_share_a_prefix() -> None:
    def later_turns(rows: np.ndarray) -> None:
        rows["turn"] = np.arange(600) % 2
        rows["cached"][1::2] = 60

    def everything(rows: np.ndarray) -> None:
        rows["cached"] = 60

    assert check(closed(later_turns), "cached_tokens").status == "pass"
    for data in ({"type": "jsonl", "path": "x"}, {"type": "prompts", "prompts": ["x"]}):
        assert not applies(closed(everything, config=config(data=data)), "cached_tokens")
    assert not applies(closed(lambda rows: rows["cached"].fill(-1)), "cached_tokens"), "the server does not report it"


def test_a_sample_too_small_for_p99_warns() -> None:
    rows, chunks = made.closed_rows(count=458)
    summary = summarise(made.run(rows, chunks))
    found = check(summary, "sample_size")
    assert (found.status, found.value, found.limit) == ("warn", summary.metrics["ttft"].effective, 459)
    more = summary.metrics["ttft"].unsupported["p99"].more_seconds
    assert more is not None and more > 0
    effective = math.floor(found.value or 0)
    expected = f"p99 of ttft is not supported: effective n of {effective} of 459. Run about {math.ceil(more)} s longer."
    assert found.message == expected


def test_sample_size_is_judged_for_each_stage() -> None:
    rows, chunks = made.open_rows(count=3000)
    rows["stage"] = rows["id"] >= 2700
    found = check(summarise(made.run(rows, chunks, plan=(made.OPEN, made.OPEN))), "sample_size")
    assert (found.status, found.stages) == ("warn", (1,)) and "stage 2" in found.message


def test_sample_size_does_not_apply_if_every_request_failed() -> None:
    assert not applies(
        closed(lambda rows: made.fail(rows, slice(None)), failures=(Failure("http_503", ""),)), "sample_size"
    )


def test_sample_size_does_not_apply_to_overloaded_stages() -> None:
    """A longer run does not help: the latency grows for as long as requests are sent."""

    def grow(rows: np.ndarray) -> None:
        for name in ("first_token", "last_token", "done"):
            rows[name] += rows["intended"]

    summary = opened(grow)
    assert check(summary, "overload").status == "fail"
    assert not applies(summary, "sample_size")


def test_requests_that_wait_in_the_same_queue_are_a_smaller_sample() -> None:
    """600 requests, but slow ones and fast ones alternate for a second at a time."""

    def bursts(rows: np.ndarray) -> None:
        slow = rows["intended"] // made.SECOND % 2 == 0
        for name in ("first_token", "last_token", "done"):
            rows[name][slow] += made.SECOND

    found = check(opened(bursts), "sample_size")
    assert found.status == "warn" and (found.value or 0) < 100
