"""Every check, passing and failing. Messages of checks that do not pass say what is wrong and what to do next."""

import math
from collections.abc import Callable
from functools import partial

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


Change = Callable[[np.ndarray], None]
CAPPED = msgspec.structs.replace(made.OPEN, concurrency=4)
NO_FILES = "the limit of 100 open files (ulimit -n) is reached: raise it, use more processes, or lower the load"
ALL = slice(None)


def users(concurrency: int, **changes: object) -> dict[str, object]:
    """A closed loop of so many users, of whom eight had a request in flight."""
    return {"plan": (msgspec.structs.replace(made.CLOSED, concurrency=concurrency, **changes),)}


def failed(which: slice, code: str, message: str = "", **about: object) -> Summary:
    return closed(lambda rows: made.fail(rows, which), failures=(Failure(code, message),), **about)


def unsent(which: slice | list[int], code: str, change: Change | None = None, **about: object) -> Summary:
    def both(rows: np.ndarray) -> None:
        if change:
            change(rows)
        made.never_sent(rows, which, 1)

    return opened(both, failures=(Failure(code, NO_FILES),), **about)


def setting(**columns: object) -> Change:
    """The change that gives columns these values: in all rows, or in the first n for (n, value)."""

    def change(rows: np.ndarray) -> None:
        for name, value in columns.items():
            count, wanted = value if isinstance(value, tuple) else (len(rows), value)
            rows[name][:count] = wanted

    return change


def slow_sender(rows: np.ndarray) -> None:
    rows["sent"] = rows["intended"] + (rows["intended"] * 0.1).astype(np.int64)


def held(rows: np.ndarray) -> None:
    slow_sender(rows)
    rows["held"] = rows["sent"] - rows["intended"]


def second_stage_fails(rows: np.ndarray) -> None:
    rows["stage"][500:] = 1
    made.fail(rows, slice(598, 600))


def drift(rows: np.ndarray) -> None:
    rows["done"] += rows["intended"] // 100


def begins_late(rows: np.ndarray) -> None:
    rows["intended"] = rows["sent"] - 120_000


def later_turns_are_cached(rows: np.ndarray) -> None:
    rows["turn"] = np.arange(600) % 2
    rows["cached"][1::2] = 60


def bursts(rows: np.ndarray) -> None:
    """Slow requests and fast ones alternate for a second at a time."""
    slow = rows["intended"] // SECOND % 2 == 0
    for name in ("first_token", "last_token", "done"):
        rows[name][slow] += SECOND


def nobody_counted(**server: object) -> Summary:
    return closed(setting(counted_by=0), config=config(server=server))


FAIL, WARN, PASS = "fail", "warn", "pass"
AUTO = {"config": config(measure={"warmup": "auto"})}
FIRST_LEFT_OUT = (np.arange(600) > 0).astype(np.int8)
TWO_STAGES = {"plan": (made.CLOSED, msgspec.structs.replace(made.CLOSED, name="evening"))}
DIED = Outcome(errors=("client process 1 died of signal 9", "shard 2 hung"))
ALONE = Outcome(True, ("the run did not end",))


@pytest.mark.parametrize(
    ("name", "status", "make", "words"),
    [
        # outcome
        ("completed", FAIL, lambda: failed(ALL, "http_500", "no"), "failures"),
        ("completed", FAIL, lambda: closed(phase=np.zeros(600, np.int8)), "measure.warmup"),
        ("interrupted", FAIL, lambda: closed(outcome=Outcome(interrupted=True)), ""),
        ("workers", FAIL, lambda: closed(outcome=DIED), "signal 9 (and 1 more)"),
        ("workers", FAIL, lambda: closed(outcome=ALONE), "the run did not end. The records were kept !others"),
        ("dropped", FAIL, lambda: unsent([0], DROPPED, phase=FIRST_LEFT_OUT), ""),
        ("retries", PASS, lambda: closed(setting(attempts=(6, 2))), ""),
        ("retries", WARN, lambda: closed(setting(attempts=(7, 2))), "keep-alive"),
        # failures
        ("failures", PASS, lambda: failed(slice(0, 6), "http_503"), ""),
        ("failures", FAIL, lambda: failed(slice(0, 7), "http_503", "the server is busy"), "http_503: the server is busy"),
        ("failures", PASS, lambda: failed(slice(590, 600), CANCELLED), ""),
        ("failures", PASS, lambda: failed(slice(598, 600), "http_503"), ""),
        ("failures", FAIL, lambda: closed(second_stage_fails, failures=(Failure("x", ""),), **TWO_STAGES), "2 of 100 requests of stage 2 (evening) failed"),
        ("failures", FAIL, lambda: failed(ALL, "http_404", "Not Found"), "server.api"),
        *[
            ("failures", FAIL, partial(failed, slice(0, 300), code), words)
            for words, codes in {
                "still up at that address": ("connect_refused", "connect_failed"), "server.timeouts.connect": ("connect_timeout",),
                "the server's log": ("closed", "reset", "cut_short"), "Find out why the server is slow": ("first_token_timeout",),
                "server.timeouts": ("total_timeout",), "server.tls": ("tls",), "server.api_key_env": ("grpc_UNAUTHENTICATED",),
                "ulimit -n": ("no_sockets",), "Fix the cause": ("http_500",), "Lower the load": ("http_503",), "!TLS": ("closed", "reset"),
            }.items()
            for code in codes
        ],
        *[
            ("failures", FAIL, partial(failed, ALL, code, config=config(server={"url": url})), sign + "if the server expects TLS")
            for code in ("closed", "reset")
            for url, sign in (("http://x", ""), (["http://x", "http://y"], ""), ("https://x", "!"))
        ],
        # load
        ("rate", FAIL, lambda: opened(slow_sender), "another machine"),
        ("rate", PASS, lambda: opened(slow_sender, config=config(limits={"rate": 0.9})), ""),
        ("rate", FAIL, lambda: opened(held, plan=(CAPPED,)), "max_concurrency"),
        ("rate", FAIL, lambda: opened(held), "client.connections !cap !max_concurrency"),
        ("rate", FAIL, lambda: unsent(ALL, CANCELLED), ""),
        ("rate", FAIL, lambda: unsent(slice(300, 600), "connect_refused", plan=(CAPPED,)), "see the failures !client.processes"),
        ("rate", FAIL, lambda: unsent(slice(300, 600), DROPPED, plan=(CAPPED,)), "max_concurrency !client.processes"),
        ("rate", FAIL, lambda: unsent(slice(0, 6), "no_sockets", slow_sender), "another machine !socket"),
        *[
            ("rate", FAIL, partial(unsent, slice(600 - count, 600), "no_sockets", held, plan=(plan,)), f"({count} of 600 requests were never sent). This machine ran out of sockets for {count} requests: {NO_FILES}.")
            for count in (60, 550, 600) for plan in (made.OPEN, CAPPED)
        ],
        ("rate", None, closed, ""),
        ("concurrency", None, opened, ""),
        ("concurrency", None, lambda: closed(**users(8, think=1.0)), ""),
        ("concurrency", None, lambda: closed(**users(600)), ""),  # no request was replaced
        ("concurrency", FAIL, lambda: failed(slice(0, 5), "reset", **users(11)), "see the failures"),
        ("concurrency", FAIL, lambda: closed(outcome=DIED, **users(16)), "client process 1 died of signal 9 !client.processes"),
        ("concurrency", FAIL, lambda: closed(begins_late, config=config(limits={"concurrency": 0.9}), **users(9)), ""),
        ("warmup", WARN, lambda: opened(drift, **AUTO), "that is drift, not warm-up"),
        ("warmup", PASS, lambda: opened(**AUTO), ""),
        ("warmup", None, lambda: opened(drift), ""),
        ("clocks", None, lambda: opened(clock=clocks(50.0)), ""),
        ("clocks", PASS, lambda: closed(clock=clocks(50.0, 50.0)), ""),
        # sample
        ("token_source", WARN, lambda: closed(setting(counted_by=(60, 0))), "not known for 10%"),
        ("token_source", PASS, lambda: closed(setting(counted_by=(60, 2))), "data.tokenizer counted the output tokens of 10%"),
        ("token_source", WARN, lambda: nobody_counted(api="generate"), "data.tokenizer !usage"),
        ("token_source", WARN, lambda: nobody_counted(api="chat", usage=True), "data.tokenizer !server.usage"),
        ("token_source", WARN, lambda: nobody_counted(api="chat", usage=False), "server.usage"),
        ("answers", WARN, lambda: closed(setting(counted_by=2, n_want=5)), "data.tokenizer"),
        ("answers", WARN, lambda: closed(setting(n_want=20)), "ignore_eos"),
        ("answers", WARN, lambda: closed(setting(n_want=5)), "max_tokens_field"),
        ("answers", None, lambda: closed(setting(n_want=0)), ""),
        ("prompts", WARN, lambda: closed(workload={"distinct": 5}), ""),
        ("prompts", None, lambda: closed(workload={}), ""),
        ("cached_tokens", PASS, lambda: closed(setting(cached=6)), ""),
        ("cached_tokens", WARN, lambda: closed(setting(cached=7)), ""),
        ("cached_tokens", WARN, lambda: closed(setting(cached=64)), ""),
        ("cached_tokens", PASS, lambda: closed(later_turns_are_cached), ""),
        ("cached_tokens", None, lambda: closed(setting(cached=60), config=config(data={"type": "jsonl", "path": "x"})), ""),
        ("cached_tokens", None, lambda: closed(setting(cached=60), config=config(data={"type": "prompts", "prompts": ["x"]})), ""),
        ("cached_tokens", None, lambda: closed(setting(cached=-1)), ""),
        ("sample_size", None, lambda: failed(ALL, "http_503"), ""),
        ("sample_size", WARN, lambda: opened(bursts), ""),  # requests that wait in the same queue are a smaller sample
    ],
)  # fmt: skip
def test_status_of_a_check_and_what_it_says(
    name: str, status: str | None, make: Callable[[], Summary], words: str
) -> None:
    """Words after "!" are not in the message. A status of None means that the check does not apply."""
    summary = make()
    if status is None:
        assert not applies(summary, name)
        return
    found = check(summary, name)
    assert found.status == status
    said, *unsaid = f" {words}".split(" !")
    assert said.strip() in found.message and not [word for word in unsaid if word in found.message]


def test_values_and_limits_of_checks() -> None:
    def figures(summary: Summary, name: str) -> tuple[object, ...]:
        found = check(summary, name)
        return found.value, found.limit, found.stages

    stages = closed(second_stage_fails, failures=(Failure("x", ""),), **TWO_STAGES)
    assert figures(stages, "failures") == (0.02, 0.01, (1,))
    assert figures(unsent([0], DROPPED, phase=FIRST_LEFT_OUT), "dropped")[0] == 1
    assert figures(closed(setting(attempts=(7, 2))), "retries")[0] == 7 / 600
    assert figures(closed(setting(counted_by=(60, 0))), "token_source")[0] == 0.1
    assert figures(closed(setting(cached=6)), "cached_tokens")[0] == 6 / 64
    assert figures(closed(workload={"distinct": 5}), "prompts")[:2] == (5, 600)
    assert figures(opened(slow_sender), "rate")[0] == pytest.approx(1 / 1.1, rel=0.01)
    assert (figures(opened(bursts), "sample_size")[0] or 0) < 100  # type: ignore[operator]
    assert failed(slice(590, 600), CANCELLED).counts.by_failure == {CANCELLED: 10}
    assert check(opened(held, plan=(CAPPED,)), "rate").affects == ("latency",)  # the throughput may be quoted
    assert check(opened(slow_sender), "rate").affects == ("latency", "throughput")


def test_rate_names_sockets_for_the_stage_that_was_too_slow() -> None:
    """Sockets ran out in both stages, but only the second one fell short because of it."""
    found = check(
        unsent(
            [10, *range(400, 600)], "no_sockets", lambda rows: rows["stage"][300:].fill(1), plan=(CAPPED, made.OPEN)
        ),
        "rate",
    )
    assert found.value == pytest.approx(1 / 3, rel=0.01) and "ran out of sockets for 200 requests" in found.message
    assert found.stages == (1,) and "of stage 2" in found.message


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


# --- outcome ---------------------------------------------------------------------------------------------------------


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


# --- load ------------------------------------------------------------------------------------------------------------


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


def test_concurrency_does_not_apply_if_only_a_few_requests_were_replaced() -> None:
    """The time from the start of the last user to the last send is then only as long as the gaps between requests."""
    rows, chunks = made.closed_rows(9)
    assert not applies(summarise(made.run(rows, chunks)), "concurrency")
    rows, chunks = made.closed_rows(16)
    assert check(summarise(made.run(rows, chunks)), "concurrency").status == "pass"


def test_in_flight_is_counted_after_the_ramp_and_before_the_drain() -> None:
    rows = made.blank(4)
    rows["sent"] = np.array([0, 1, 3, 4]) * SECOND  # two users, the second a second later
    rows["done"] = np.array([3, 4, 6, 9]) * SECOND
    plan = StagePlan(type="closed", open=False, concurrency=2, ramp_up=1.0)
    assert in_flight(Columns.of(rows), plan) == 2.0
    assert in_flight(Columns.of(rows[::-1]), plan) == 2.0
    assert in_flight(Columns.of(rows), msgspec.structs.replace(plan, ramp_up=9.0)) is None
    rows = made.blank(7)
    rows["sent"] = np.array([0, 0, 1, 1, 2, 3, 4]) * SECOND  # when the stage ends after 2 s, one has a sequence to end
    rows["done"] = np.array([1, 1, 2, 2, 3, 4, 5]) * SECOND
    plan = StagePlan(type="closed", open=False, concurrency=2, duration=2.0)
    assert in_flight(Columns.of(rows), plan) == 2.0


# --- sample ----------------------------------------------------------------------------------------------------------


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


def test_sample_size_does_not_apply_to_overloaded_stages() -> None:
    """A longer run does not help: the latency grows for as long as requests are sent."""

    def grow(rows: np.ndarray) -> None:
        for name in ("first_token", "last_token", "done"):
            rows[name] += rows["intended"]

    summary = opened(grow)
    assert check(summary, "overload").status == "fail"
    assert not applies(summary, "sample_size")
