"""The causes of slow requests, on made-up runs in which the cause of every slow request is known."""

import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import server_series
import synthetic_run as made
from hypothesis import given
from hypothesis import strategies as st

from inferometer.analysis.summary import summarise
from inferometer.analysis.tail import CAUSES, SlowRequest, Tail, explain, tails
from inferometer.errors import UserError
from inferometer.records import Chunks, Failure, Run
from inferometer.report import console

MS = made.MS
SLOW = np.arange(20, 600, 58)
"""The requests that are slow: 10 of 600, so that all requests at or above the p99 are among them."""
LATE = 200 * MS
TIMES = ("sent", "first_byte", "first_token", "first_content", "last_token", "done")

Change = Callable[[np.ndarray, np.ndarray], object]
"""Makes the rows, and the arrivals of their 10 chunks, slow."""


def slow_run(change: Change, metrics: dict[str, object] | None = None, **about: object) -> Run:
    """An open loop of 600 requests, some of them slow; `metrics` are values of the server's metrics, which are else not known."""
    rows, chunks = made.open_rows()
    rows["first_byte"] = rows["sent"] + MS
    arrival = chunks.arrival.reshape(600, 10).copy()
    change(rows, arrival)
    run = made.run(rows, Chunks(arrival.reshape(-1), chunks.tokens), **({"plan": (made.OPEN,)} | about))
    if metrics is None:
        return run
    scrapes = range(-MS, int(rows["done"].max()) + made.SECOND, 20 * MS)
    series = server_series.vllm(rows, scrapes, **metrics)
    return msgspec.structs.replace(run, series=lambda: series)


def shift(rows: np.ndarray, arrival: np.ndarray, which: np.ndarray, by: np.ndarray | int, first: str = "sent") -> None:
    """Move everything from an event on to a later time."""
    for name in TIMES[TIMES.index(first) :]:
        rows[name][which] += by
    arrival[which] += np.reshape(by, (-1, 1))


def shares(run: Run, metric: str) -> dict[str, float]:
    (tail,) = tails(run)
    return {each.cause: each.share for each in tail.metrics[metric].causes}


def sent_late(rows: np.ndarray, arrival: np.ndarray) -> None:
    shift(rows, arrival, SLOW, LATE)


def held(rows: np.ndarray, arrival: np.ndarray) -> None:
    shift(rows, arrival, SLOW, LATE)
    rows["held"][SLOW] += LATE


def late_headers(rows: np.ndarray, arrival: np.ndarray) -> None:
    shift(rows, arrival, SLOW, LATE, "first_byte")


def late_token(rows: np.ndarray, arrival: np.ndarray) -> None:
    shift(rows, arrival, SLOW, LATE, "first_token")


def sent_twice(rows: np.ndarray, arrival: np.ndarray) -> None:
    late_token(rows, arrival)
    rows["attempts"][SLOW] = 2


def reported_queue(rows: np.ndarray, arrival: np.ndarray) -> None:
    late_token(rows, arrival)
    rows["queue"] = MS
    rows["queue"][SLOW] += LATE


def long_prompt(rows: np.ndarray, arrival: np.ndarray) -> None:
    """50 us per token; the prompts of others vary, too."""
    rows["n_in"] = np.random.default_rng(5).integers(20, 120, 600)
    rows["n_in"][SLOW] = 4000
    shift(rows, arrival, np.arange(600), rows["n_in"] * np.int64(50_000), "first_token")


def pause(rows: np.ndarray, arrival: np.ndarray, which: np.ndarray) -> None:
    """A gap of 210 ms after the fifth chunk."""
    arrival[np.ix_(which, range(5, 10))] += LATE
    rows["last_token"][which] += LATE
    rows["done"][which] += LATE


def single_pauses(rows: np.ndarray, arrival: np.ndarray) -> None:
    pause(rows, arrival, SLOW)


def frozen(rows: np.ndarray, arrival: np.ndarray) -> None:
    """The server sends nothing for 300 ms, from 3 s on."""
    begin, end = 3 * made.SECOND, 3 * made.SECOND + 300 * MS
    by = np.clip(end - rows["sent"], 0, 300 * MS)
    for name in TIMES[1:]:
        rows[name] += np.where(rows[name] > begin, by, 0)
    arrival += np.where(arrival > begin, by[:, None], 0)


def long_response(rows: np.ndarray, arrival: np.ndarray) -> None:
    """All others have 3 chunks."""
    others = np.setdiff1d(np.arange(600), SLOW)
    rows["chunk_count"][others] = rows["n_out"][others] = rows["streamed_tokens"][others] = 3
    rows["last_token"][others], rows["done"][others] = arrival[others, 2], arrival[others, 2] + 20_000


def slow_chunks(rows: np.ndarray, arrival: np.ndarray) -> None:
    """Each gap is twice as long: too short for a stall."""
    more = (arrival - arrival[:, :1])[SLOW]
    arrival[SLOW] += more
    rows["last_token"][SLOW] += more[:, -1]
    rows["done"][SLOW] += more[:, -1]


QUEUED = {"num_requests_waiting": 12.0}
PREEMPTED = {"num_preemptions_total": lambda at: 5 + max(at, 0) // (50 * MS)}


@pytest.mark.parametrize(
    ("change", "metrics", "metric", "cause"),
    [
        (sent_late, None, "ttft", "client"),
        (sent_late, None, "e2e", "client"),
        (held, None, "ttft", "connection"),
        (late_headers, None, "ttft", "connection"),
        (sent_twice, None, "e2e", "retry"),
        (late_token, None, "ttft", "queue_or_prefill"),
        (late_token, QUEUED, "ttft", "queue"),
        (late_token, {}, "ttft", "queue_or_prefill"),
        (reported_queue, None, "ttft", "queue"),
        (long_prompt, None, "ttft", "long_prompt"),
        (long_prompt, QUEUED, "e2e", "long_prompt"),
        (single_pauses, None, "e2e", "own_stall"),
        (single_pauses, {}, "e2e", "own_stall"),
        (single_pauses, PREEMPTED, "e2e", "preemption"),
        (frozen, None, "e2e", "server_stall"),
        (frozen, None, "ttft", "server_stall"),
        (frozen, PREEMPTED, "e2e", "server_stall"),
        (long_response, None, "e2e", "long_output"),
        (slow_chunks, None, "e2e", "slow_decode"),
    ],
)  # fmt: skip
def test_cause_of_the_tail_is_found(change: Change, metrics: dict[str, object] | None, metric: str, cause: str) -> None:
    found = shares(slow_run(change, metrics), metric)
    assert max(found, key=lambda each: found[each]) == cause
    assert found[cause] > 0.9
    assert math.isclose(sum(found.values()), 1)


def test_two_causes_share_the_tail_in_proportion() -> None:
    def both(rows: np.ndarray, arrival: np.ndarray) -> None:
        shift(rows, arrival, SLOW, LATE)
        rows["held"][SLOW] += LATE // 4
        shift(rows, arrival, SLOW, LATE, "first_token")

    found = shares(slow_run(both), "ttft")
    assert found["client"] == pytest.approx(0.375, abs=0.02)
    assert found["connection"] == pytest.approx(0.125, abs=0.02)
    assert found["queue_or_prefill"] == pytest.approx(0.5, abs=0.02)


def test_one_outlier_does_not_decide_about_the_tail() -> None:
    def outlier(rows: np.ndarray, arrival: np.ndarray) -> None:
        held(rows, arrival)
        shift(rows, arrival, SLOW[:1], 100 * LATE)

    assert shares(slow_run(outlier), "ttft")["connection"] > 0.8


def test_waits_of_a_closed_loop_before_the_send_do_not_count() -> None:
    rows, chunks = made.closed_rows()
    rows["held"] = 0
    run = made.run(rows, chunks)
    assert not {"client", "connection"} & set(shares(run, "e2e"))


@pytest.mark.parametrize(("stall", "cause"), [(100, "server_stall"), (300, "client")])
def test_shared_stall_is_the_clients_if_its_event_loop_stalled_for_about_as_long(stall: int, cause: str) -> None:
    assert shares(slow_run(frozen, sampled=made.samples(stall=stall * MS)), "e2e")[cause] > 0.9


def test_stall_of_one_replica_of_four_is_the_servers() -> None:
    def one_frozen(rows: np.ndarray, arrival: np.ndarray) -> None:
        rows["replica"] = np.arange(600) % 4
        others = rows["replica"] != 2
        before, arrived = rows[others].copy(), arrival[others].copy()
        frozen(rows, arrival)
        rows[others], arrival[others] = before, arrived

    found = shares(slow_run(one_frozen, replicas=("a", "b", "c", "d")), "e2e")
    assert found["server_stall"] > 0.9, found
    alone = shares(slow_run(one_frozen), "e2e")
    assert alone.get("server_stall", 0) < 0.1


def test_server_times_of_each_request_split_a_response_that_is_not_streamed() -> None:
    rows = made.blank(600)
    rows["intended"], rows["open_loop"] = np.arange(600) * 10 * MS, 1
    rows["sent"] = rows["intended"] + 50_000
    rows["queue"], rows["compute"] = 2 * MS, 5 * MS
    rows["queue"][SLOW] += 30 * MS
    rows["compute"][SLOW] += 10 * MS
    rows["done"] = rows["sent"] + rows["queue"] + rows["compute"] + MS
    found = shares(made.run(rows, plan=(made.OPEN,)), "e2e")
    assert found == pytest.approx({"queue": 0.75, "compute": 0.25}, abs=0.01)


def test_response_that_is_neither_streamed_nor_timed_by_the_server_stays_unexplained() -> None:
    rows = made.blank(600)
    rows["intended"] = rows["sent"] = np.arange(600) * 10 * MS
    rows["n_in"] = rows["n_out"] = -1
    rows["done"] = rows["sent"] + 8 * MS
    rows["done"][SLOW] += LATE
    (tail,) = tails(made.run(rows))
    assert list(tail.metrics) == ["e2e"]
    assert [each.cause for each in tail.metrics["e2e"].causes] == ["unexplained"]


def test_sentence_has_the_shares_and_the_evidence() -> None:
    (tail,) = tails(slow_run(late_token, QUEUED))
    sentence = tail.metrics["ttft"].sentence
    assert sentence.startswith("p99 TTFT is 20") and "ms above the median: " in sentence
    assert "% queueing at the server (12 waiting on average)" in sentence


def test_flat_distribution_has_no_tail() -> None:
    flat = made.open_rows()[0]
    flat["first_token"] = flat["first_content"] = flat["sent"] + 50 * MS
    flat["chunk_count"] = 0
    (tail,) = tails(made.run(flat, plan=(made.OPEN,)))
    assert tail.metrics["ttft"].causes == () and "no tail" in tail.metrics["ttft"].sentence


# --- single requests -------------------------------------------------------------------------------------------------


def timeline(change: Change, id: int, metrics: dict[str, object] | None = None) -> SlowRequest:
    return explain(slow_run(change, metrics), id)


def test_steps_of_a_request_add_up_to_its_time() -> None:
    for change in (sent_late, late_headers, frozen, single_pauses, long_prompt):
        found = timeline(change, int(SLOW[3]))
        assert sum(step.seconds for step in found.steps) == pytest.approx(found.e2e)


@given(st.integers(0, 599))
def test_steps_of_any_request_add_up_to_its_time(id: int) -> None:
    found = explain(_FROZEN, id)
    assert sum(step.seconds for step in found.steps) == pytest.approx(found.e2e)


_FROZEN = slow_run(frozen)


def test_stalls_of_a_request_are_listed_with_their_cause() -> None:
    (stall,) = timeline(single_pauses, int(SLOW[0]), PREEMPTED).stalls
    assert stall.cause == "preemption"
    assert stall.seconds == pytest.approx(0.21, abs=0.01)
    assert stall.shared == 0
    rows = _FROZEN.records.rows
    streaming = np.flatnonzero((rows["first_token"] < 2.99e9) & (rows["last_token"] > 3.31e9))
    (stall,) = explain(_FROZEN, int(streaming[0])).stalls
    assert stall.cause == "server_stall" and stall.shared > 0.9


def test_main_cause_is_the_part_that_is_longest_beyond_usual() -> None:
    found = timeline(long_prompt, int(SLOW[1]))
    assert found.main_cause == "long_prompt"
    assert found.input_tokens == 4000


def test_failed_request_has_a_timeline_too() -> None:
    def failing(rows: np.ndarray, arrival: np.ndarray) -> None:
        made.fail(rows, [5])

    run = slow_run(failing, failures=(Failure("http_503", "busy"),))
    found = explain(run, 5)
    assert found.failure == "http_503" and found.ttft is None


def test_unknown_id_names_the_ids_that_exist() -> None:
    with pytest.raises(UserError, match="no request with this id") as error:
        timeline(sent_late, 600)
    assert "from 0 to 599" in str(error.value.remedy)
    with pytest.raises(UserError, match="no request with this id") as error:
        explain(made.run(made.blank(0), sampled=()), 0)


def test_request_that_was_never_sent_has_no_timeline() -> None:
    rows, chunks = made.open_rows()
    made.never_sent(rows, [7], 1)
    run = made.run(rows, chunks, plan=(made.OPEN,), failures=(Failure("dropped", ""),))
    with pytest.raises(UserError, match=r"never sent \(dropped\)"):
        explain(run, 7)


# --- runs with little to say -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 19])
def test_few_requests_give_a_reason(count: int) -> None:
    rows, chunks = made.open_rows(max(count, 1))
    run = made.run(rows[:count], chunks, plan=(made.OPEN,)) if count else made.run(made.blank(0), sampled=())
    (tail,) = tails(run)
    assert tail == Tail(reason=f"{count} successful requests are too few: it takes at least 20")
    text = console.render(run, summarise(run), why=True)
    assert "too few" in text and "nan" not in text


def test_all_requests_failed() -> None:
    rows, chunks = made.open_rows()
    made.fail(rows, slice(None))
    run = made.run(rows, chunks, plan=(made.OPEN,), failures=(Failure("http_503", ""),))
    (tail,) = tails(run)
    assert tail.reason and not tail.metrics


def test_pieces_of_chunks_make_no_difference() -> None:
    whole, small = _FROZEN, slow_run(frozen, piece=97)
    assert tails(whole) == tails(small)


@pytest.mark.parametrize("change", [sent_late, held, single_pauses, frozen])
def test_no_number_is_nan(change: Change) -> None:
    (tail,) = tails(slow_run(change, QUEUED | PREEMPTED))
    text = str(msgspec.to_builtins(tail))
    assert "nan" not in text and "inf" not in text


# --- reports ---------------------------------------------------------------------------------------------------------


def test_report_has_one_note_if_a_cause_explains_most_of_a_long_tail() -> None:
    run = slow_run(held)
    text = " ".join(console.render(run, summarise(run)).split())
    assert "p99 TTFT is 20" in text and "waiting for a connection" in text
    calm = slow_run(lambda rows, arrival: None)
    assert "above the median" not in console.render(calm, summarise(calm))


def test_section_has_a_row_per_cause_and_the_slowest_requests() -> None:
    run = slow_run(frozen)
    for width in (70, 100):
        text = console.render(run, summarise(run), why=True, width=width)
        assert "why the tail is slow" in text and "server stall" in text and "slowest requests" in text
        assert max(map(len, text.splitlines())) <= width


def test_stages_have_their_own_tails() -> None:
    rows, chunks = made.open_rows()
    rows["stage"] = np.arange(600) // 300
    rows["intended"][SLOW[SLOW >= 300]] -= LATE
    plan = tuple(msgspec.structs.replace(made.OPEN, name=name) for name in ("calm", "busy"))
    run = made.run(rows, chunks, plan=plan)
    summary = summarise(run)
    assert summary.tail is None
    calm, busy = (stage.tail for stage in summary.stages)
    assert calm is not None and busy is not None
    assert busy.metrics["ttft"].causes[0].cause == "client" != calm.metrics["ttft"].causes[0].cause
    assert "why the tail is slow, busy" in console.render(run, summary, why=True)


def test_every_cause_has_words() -> None:
    assert all(cause.phrase and cause.label and cause.definition for cause in CAUSES.values())
