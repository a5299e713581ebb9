"""Rates without the edges of a stage: offered and completed rates agree when the server keeps up, however long a response takes."""

import msgspec
import numpy as np
import pytest
import queues
import synthetic_run as made

from inferometer.analysis.overload import overload
from inferometer.analysis.summary import summarise
from inferometer.analysis.throughput import Throughput, stage_rates
from inferometer.records import Chunks, Failure, Run, StagePlan

SECOND = made.SECOND


def constant(rate: float, seconds: float, times: np.ndarray | float, failed: int = 0) -> Run:
    """Requests at a constant rate whose responses take `times` seconds."""
    arrived = np.arange(round(rate * seconds)) / rate
    rows = queues.open_rows(arrived, arrived + times)
    made.fail(rows, slice(0, failed))
    return queues.run(rows, queues.stage(rate, seconds, "constant"), failures=(Failure("http_503", ""),))


def rates(run: Run) -> Throughput:
    """The rates of a run with one stage."""
    (plan,) = run.manifest.plan
    ((_, found),) = stage_rates(run, {}, [overload(run.records.rows, plan)])
    return found


# --- open loop -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [10, 20, 50])
def test_five_seconds_per_response_do_not_lower_the_rate(rate: int) -> None:
    """The fourth row of the table: 20/s for 30 s with responses of 5 s was reported as 17/s."""
    found = rates(constant(rate, 30, 5.0))
    assert found.offered == pytest.approx(rate) and found.requests == pytest.approx(rate, rel=0.001)
    assert found.in_flight == pytest.approx(5 * rate, rel=0.01) and found.little == pytest.approx(1, abs=0.01)
    assert found.span == pytest.approx(30 - 5, abs=0.2)


def sweep(takes: float) -> Run:
    """10 to 50 requests/s for 10 s each."""
    parts = []
    for stage, rate in enumerate((10, 20, 30, 40, 50)):
        arrived = 10 * stage + np.arange(10 * rate) / rate
        part = queues.open_rows(arrived, arrived + takes)
        part["stage"] = stage
        parts.append(part)
    rows = np.concatenate(parts)
    rows["id"] = np.arange(len(rows))
    return made.run(rows, plan=tuple(queues.stage(rate, 10, "constant") for rate in (10, 20, 30, 40, 50)))


def test_a_sweep_with_responses_that_take_half_of_a_stage() -> None:
    """The fifth row of the table: it was reported as 6.6, 13.2, 20.2, 26.4 and 32.4/s."""
    found = [stage.throughput for stage in summarise(sweep(5.0)).stages]
    assert [each.requests for each in found] == pytest.approx([10, 20, 30, 40, 50], rel=0.001)
    assert [each.offered for each in found] == pytest.approx([10, 20, 30, 40, 50], rel=0.001)


def test_a_sweep_with_responses_that_take_more_than_half_of_a_stage_has_no_rates_but_reasons() -> None:
    found = summarise(sweep(5.1))
    for stage in found.stages:
        assert stage.throughput.requests is None and stage.throughput.output_tokens is None
        assert "less than half remains" in stage.throughput.reason and "at least 20.4 s" in stage.throughput.reason
        assert stage.overload.status == "too_short" and not stage.quotable["latency"]
    assert found.throughput.requests is None and found.throughput.reason.startswith("stage 1: the first responses took")
    assert found.throughput.offered == pytest.approx(30, rel=0.01)


@pytest.mark.parametrize("service", queues.SERVICE)
@pytest.mark.parametrize("kind", ["constant", "poisson"])
def test_the_mean_of_20_seeds_is_within_two_percent(service: str, kind: str) -> None:
    """Stages of about 20 times the p90 of the end-to-end time, at 80 % of the capacity."""
    seconds = {"constant": 12, "exponential": 15, "lognormal": 20}[service]
    found = [
        rates(queues.run(queues.queue_rows(40, 50, seconds, seed, 16, kind, service), queues.stage(40, seconds, kind)))
        for seed in range(20)
    ]
    assert np.mean([each.requests for each in found]) == pytest.approx(40, rel=0.02)
    assert np.mean([each.offered for each in found]) == pytest.approx(40, rel=0.005)


@pytest.mark.parametrize("service", queues.SERVICE)
def test_an_overloaded_stage_has_the_throughput_at_saturation(service: str) -> None:
    found = [
        rates(queues.run(queues.queue_rows(60, 40, 30, seed, 8, service=service), queues.stage(60, 30)))
        for seed in range(20)
    ]
    assert np.mean([each.requests for each in found]) == pytest.approx(40, rel=0.02)
    assert np.mean([each.offered for each in found]) == pytest.approx(60, rel=0.005)


def test_requests_that_wait_at_the_cap_count_until_the_last_send() -> None:
    rows = queues.queue_rows(60, 40, 30, slots=8, kind="constant", service="constant")
    rows["sent"] = rows["done"] - round(8 / 40 * SECOND)
    found = rates(queues.run(rows, queues.stage(60, 30, "constant", concurrency=8)))
    assert found.requests == pytest.approx(40, rel=0.02) and found.in_flight == pytest.approx(8, rel=0.01)
    assert found.span == pytest.approx(45, rel=0.05)


def test_failures_at_the_start_do_not_shorten_the_time() -> None:
    found = rates(constant(20, 30, 1.0, failed=60))
    assert found.requests == pytest.approx(18, rel=0.01)


def test_warm_up_that_was_wanted_is_not_missing() -> None:
    run = constant(20, 30, 1.0)
    phase = np.where(np.arange(600) < 400, 0, 1).astype(np.int8)
    run = msgspec.structs.replace(run, records=msgspec.structs.replace(run.records, phase=phase))
    found = rates(run)
    assert found.requests == pytest.approx(20, rel=0.01) and found.span == pytest.approx(10, abs=0.1)


def test_intervals_surround_the_rates() -> None:
    covered = 0
    for seed in range(40):
        found = rates(queues.run(queues.queue_rows(40, 50, 60, seed), queues.stage(40, 60)))
        low, high = found.ci["requests"]
        assert low is not None and high is not None and found.requests is not None and low < found.requests < high
        covered += low <= 40 <= high
    assert covered >= 35


def test_the_last_turns_of_sessions_do_not_lower_the_rate() -> None:
    """After the last session has arrived, the load falls: 40/s were reported as 35/s."""
    found = [rates(queues.run(queues.session_rows(5, 60, 100, seed=seed), queues.stage(5, 60))) for seed in range(10)]
    assert np.mean([each.requests for each in found]) == pytest.approx(40, rel=0.02)
    assert np.mean([each.offered for each in found]) == pytest.approx(40, rel=0.02)
    assert all(each.span is not None and each.span < 52 for each in found)


def test_sessions_that_take_more_than_half_of_the_stage_have_no_rates() -> None:
    found = rates(queues.run(queues.session_rows(5, 15, 100), queues.stage(5, 15)))
    assert found.requests is None and found.reason.startswith("the first sessions took 1")


def test_every_rate_has_an_interval() -> None:
    rows, chunks = streams(20, 30, 100, 0.05)
    run = made.run(rows, chunks, plan=(queues.stage(20, 30, "constant"),), server={"batch": 4})
    found = rates(run)
    assert set(found.ci) == {"requests", "output_tokens", "input_tokens", "total_tokens", "inferences", "in_flight"}
    for name, (low, high) in found.ci.items():
        assert (
            low is not None
            and high is not None
            and low <= getattr(found, name) * 1.001
            and high >= getattr(found, name) * 0.999
        )
    assert found.ci["inferences"] == pytest.approx([4 * end for end in found.ci["requests"]])


def test_the_interval_of_the_number_in_flight_comes_from_its_means_in_blocks_of_time() -> None:
    """An M/M/1 queue at a load of 0.5 has one request in the system on average."""
    covered = 0
    for seed in range(40):
        found = rates(queues.run(queues.queue_rows(40, 80, 120, seed), queues.stage(40, 120)))
        low, high = found.ci["in_flight"]
        assert low is not None and high is not None and found.in_flight is not None
        assert (low + high) / 2 == pytest.approx(found.in_flight, rel=1e-4)
        covered += low <= 1 <= high
    assert covered >= 35


def test_a_constant_number_in_flight_has_a_narrow_interval() -> None:
    plan = StagePlan(type="closed", open=False, concurrency=8, duration=20)
    found = rates(queues.run(queues.closed_rows(8, 20, 0.1), plan))
    assert found.ci["in_flight"] == (pytest.approx(8, rel=1e-3), pytest.approx(8, rel=1e-3))


def test_one_request_has_no_rates() -> None:
    found = rates(constant(1, 1, 0.5))
    assert found.offered is None and found.requests is None and found.reason == "fewer than two requests were sent"


def test_no_request_in_the_window() -> None:
    found = rates(queues.run(made.blank(0), queues.stage(1, 1)))
    assert found.requests is None and found.reason == "no request in the window ended"


# --- closed loop -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("service", queues.SERVICE)
@pytest.mark.parametrize("ramp", [0.0, 0.5])
def test_a_closed_loop_completes_its_users_divided_by_the_time_of_a_response(service: str, ramp: float) -> None:
    plan = StagePlan(type="closed", open=False, concurrency=32, duration=30, ramp_up=ramp)
    found = [rates(queues.run(queues.closed_rows(32, 30, 0.5, seed, ramp, service), plan)) for seed in range(20)]
    assert np.mean([each.requests for each in found]) == pytest.approx(64, rel=0.02)
    assert np.mean([each.in_flight for each in found]) == pytest.approx(32, rel=0.01)
    assert np.mean([each.little for each in found]) == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize("requests", [16, 17, 20, 41])
def test_users_in_lockstep_do_not_lower_the_rate_whatever_the_number_of_requests(requests: int) -> None:
    """All users complete at the same moments, so the last send may come just after most of a round has ended."""
    rows = made.blank(requests)
    rows["sent"] = np.arange(requests) // 8 * SECOND + np.arange(requests) % 8 * made.MS
    rows["intended"], rows["done"] = rows["sent"], rows["sent"] + SECOND - made.MS // 2
    plan = StagePlan(type="closed", open=False, concurrency=8, requests=requests)
    assert rates(queues.run(rows, plan)).requests == pytest.approx(8, rel=0.01)


@pytest.mark.parametrize("service", queues.SERVICE)
@pytest.mark.parametrize("seconds", [6, 20, pytest.param(60, marks=pytest.mark.slow)])
def test_intervals_of_a_closed_loop_cover_its_rate(service: str, seconds: float) -> None:
    """32 users and responses of 0.5 s: the truth is 64 responses/s."""
    plan = StagePlan(type="closed", open=False, concurrency=32, duration=seconds)
    found = [
        rates(queues.run(queues.closed_rows(32, seconds, 0.5, seed, service=service), plan)).ci["requests"]
        for seed in range(40)
    ]
    assert sum(low <= 64.1 and high >= 63.9 for low, high in found) >= 34  # type: ignore[operator]


@pytest.mark.parametrize("rounds", [8, 12, 40])
def test_the_interval_of_users_in_lockstep_is_narrow(rounds: int) -> None:
    """Counted at their end, 20 blocks of time have no response or those of all users: the interval was 64 +- 64."""
    plan = StagePlan(type="closed", open=False, concurrency=64, requests=64 * rounds)
    rows = made.blank(64 * rounds)
    lasts = np.random.default_rng(rounds).normal(1, 0.02, rounds)
    starts = np.concatenate([[0], np.cumsum(lasts)[:-1]])
    rows["sent"] = rows["intended"] = np.repeat(np.rint(starts * SECOND), 64) + np.arange(64 * rounds) % 64
    rows["done"] = np.repeat(np.rint(np.cumsum(lasts) * SECOND), 64)
    low, high = rates(queues.run(rows, plan)).ci["requests"]
    assert low is not None and high is not None and 60 < low < 64.5 and 63.5 < high < 68


def test_a_closed_loop_without_a_second_response_per_user_has_no_rates() -> None:
    rows, chunks = made.closed_rows(12)
    found = rates(made.run(rows, chunks))
    assert found.requests is None and "use at least 32 requests" in found.reason


def test_a_closed_loop_with_a_duration_that_is_too_short_names_a_longer_one() -> None:
    plan = StagePlan(type="closed", open=False, concurrency=8, duration=1.5)
    found = rates(queues.run(queues.closed_rows(8, 1.5, 2, service="constant"), plan))
    assert found.requests is None and "use a load.duration of at least 8 s" in found.reason


def test_the_ramp_and_the_first_responses_are_not_counted() -> None:
    plan = StagePlan(type="closed", open=False, concurrency=8, duration=20, ramp_up=10)
    found = rates(queues.run(queues.closed_rows(8, 20, 0.5, ramp=10, service="constant"), plan))
    assert found.requests == pytest.approx(16, rel=0.01) and found.span == pytest.approx(9.25)


# --- tokens ----------------------------------------------------------------------------------------------------------


def streams(rate: float, seconds: float, tokens: int, gap: float, per_chunk: int = 1) -> tuple[np.ndarray, Chunks]:
    """A constant rate of responses with a token every `gap` seconds, `per_chunk` at a time."""
    arrived = np.arange(round(rate * seconds)) / rate
    rows = queues.open_rows(arrived, arrived + tokens * gap)
    count = tokens // per_chunk
    arrival = rows["sent"][:, None] + (np.arange(1, count + 1) * per_chunk * gap * SECOND).astype(np.int64)
    rows["first_token"], rows["last_token"] = arrival[:, 0], arrival[:, -1]
    rows["n_in"], rows["n_out"] = 100, tokens
    rows["chunk_start"], rows["chunk_count"] = np.arange(len(rows)) * count, count
    return rows, Chunks(arrival.reshape(-1), np.ones(arrival.size, np.uint16))


@pytest.mark.parametrize("piece", [1 << 20, 37])
@pytest.mark.parametrize("per_chunk", [1, 5])
def test_output_tokens_count_when_they_arrive(per_chunk: int, piece: int) -> None:
    """Chunks whose tokens are not known count as one each: they are scaled to the tokens of the response."""
    rows, chunks = streams(20, 30, 100, 0.05, per_chunk)
    found = rates(made.run(rows, chunks, piece=piece, plan=(queues.stage(20, 30, "constant"),)))
    assert found.output_tokens == pytest.approx(2000, rel=0.005) and found.input_tokens == pytest.approx(
        2000, rel=0.005
    )
    assert found.total_tokens == pytest.approx(4000, rel=0.005)
    low, high = found.ci["output_tokens"]
    assert low is not None and high is not None and low <= 2000 <= high


def test_tokens_of_responses_that_have_not_ended_count() -> None:
    """An overloaded server streams to more and more users at once: each token counts, though few responses are complete."""
    count, tokens = 300, 100
    rows = queues.open_rows(np.arange(count) / 10, np.arange(count) / 10)
    arrival = rows["sent"][:, None] + np.arange(1, tokens + 1) * (SECOND // 10)
    arrival[:150] = rows["sent"][:150, None] + np.arange(1, tokens + 1) * (SECOND // 50)  # the first half is faster
    rows["first_token"], rows["last_token"], rows["done"] = arrival[:, 0], arrival[:, -1], arrival[:, -1]
    rows["n_in"], rows["n_out"] = 1, tokens
    rows["chunk_start"], rows["chunk_count"] = np.arange(count) * tokens, tokens
    found = rates(
        made.run(
            rows,
            Chunks(arrival.reshape(-1), np.ones(arrival.size, np.uint16)),
            plan=(queues.stage(10, 30, "constant"),),
        )
    )
    start, end = SECOND // 50 * 100 + 100_000, int(rows["sent"].max())
    truth = int(((arrival > start) & (arrival <= end)).sum()) / ((end - start) / SECOND)
    assert found.output_tokens == pytest.approx(truth)
    assert found.requests is not None and found.output_tokens > 1.05 * found.requests * tokens


def test_token_rates_are_unknown_if_a_count_is() -> None:
    rows, chunks = streams(20, 30, 100, 0.05)
    rows["n_out"][300] = -1
    found = rates(made.run(rows, chunks, plan=(queues.stage(20, 30, "constant"),)))
    assert found.output_tokens is None and found.total_tokens is None and "output_tokens" not in found.ci
    assert found.input_tokens is not None and found.requests == pytest.approx(20, rel=0.001)


def test_responses_that_are_not_streamed_have_their_tokens_at_their_end() -> None:
    run = constant(20, 30, 5.0)
    rows = np.asarray(run.records.rows)
    rows["n_in"], rows["n_out"] = 10, 50
    found = rates(queues.run(rows, queues.stage(20, 30, "constant")))
    assert found.output_tokens == pytest.approx(1000, rel=0.001)


def test_decode_is_the_rate_of_tokens_after_the_first_chunk() -> None:
    rows, chunks = streams(20, 30, 100, 0.05)
    rows["first_tokens"], rows["streamed_tokens"] = 1, 100
    assert rates(made.run(rows, chunks, plan=(queues.stage(20, 30, "constant"),))).decode == pytest.approx(20)
