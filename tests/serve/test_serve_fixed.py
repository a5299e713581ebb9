"""Fixed timing with a fake clock: due times follow the formula, and lateness does not accumulate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.serve.sim.faults import noise
from inferometer.serve.sim.settings import Fixed, Sim
from inferometer.serve.sim.timing import NEVER, FixedTiming, Job

MS = 1_000_000


class Logged(Job):
    """A job that records its tokens."""

    def __init__(self, n: int, n_out: int, arrived: int) -> None:
        super().__init__(n, 1, n_out, arrived)
        self.log: list[tuple[int, int]] = []

    def emit(self, count: int, due: int) -> None:
        self.log.append((count, due))


def timing(max_batch: int = 0, jitter: float = 0.0, **options: int) -> FixedTiming:
    return FixedTiming(Fixed(ttft=0.05, itl=0.01, max_batch=max_batch, jitter=jitter), Sim(**options))


def run(model: FixedTiming) -> None:
    """Advance at each due time until nothing is left."""
    while model.due != NEVER:
        model.advance(model.due)


def test_token_k_is_due_at_arrival_plus_ttft_plus_k_itl():
    model, job = timing(), Logged(1, 4, 7 * MS)
    model.add(job, 7 * MS)
    run(model)
    assert job.log == [(1, (57 + 10 * k) * MS) for k in range(4)]
    assert model.n_running == 0


def test_a_late_advance_does_not_move_later_tokens():
    model, job = timing(), Logged(1, 5, 0)
    model.add(job, 0)
    model.advance(73 * MS)
    assert model.due == 80 * MS
    run(model)
    assert [due // MS for _, due in job.log] == [50, 60, 70, 80, 90]


def test_nothing_is_emitted_before_it_is_due():
    model, job = timing(), Logged(1, 5, 0)
    model.add(job, 0)
    model.advance(50 * MS - 1)
    assert job.log == []


def test_streams_are_advanced_in_order_of_due_time():
    model, order = timing(), []
    for n, arrived in ((1, 3), (2, 1), (3, 2)):
        job = Logged(n, 2, arrived)
        job.emit = lambda count, due, n=n: order.append((due, n))  # type: ignore[method-assign]
        model.add(job, arrived)
    model.advance(1000 * MS)
    assert order == sorted(order)
    assert len(order) == 6


def test_a_chunk_is_due_with_its_first_token_and_the_last_has_the_rest():
    model, job = timing(tokens_per_chunk=4), Logged(1, 10, 0)
    model.add(job, 0)
    run(model)
    assert job.log == [(4, 50 * MS), (4, 90 * MS), (2, 130 * MS)]


def test_requests_beyond_max_batch_start_when_an_earlier_one_was_due_to_end():
    model = timing(max_batch=1)
    jobs = [Logged(n, 3, 0) for n in (1, 2, 3)]
    assert all(model.add(job, 0) for job in jobs)
    assert (model.n_running, len(model.waiting)) == (1, 2)
    model.advance(10_000 * MS)
    assert [job.log[0][1] // MS for job in jobs] == [50, 120, 190]
    assert [job.started // MS for job in jobs] == [0, 70, 140]


def test_a_full_queue_refuses():
    model = timing(max_batch=1, max_queue=1)
    assert [model.add(Logged(n, 3, 0), 0) for n in (1, 2, 3)] == [True, True, False]


def test_a_dropped_request_frees_its_slot():
    model = timing(max_batch=1)
    first, second, third = (Logged(n, 3, 0) for n in (1, 2, 3))
    for job in (first, second, third):
        model.add(job, 0)
    model.advance(50 * MS)
    model.drop(second, 51 * MS)
    model.drop(first, 52 * MS)
    run(model)
    assert len(first.log) == 1
    assert second.log == []
    assert third.log[0][1] == 102 * MS
    assert (model.n_running, len(model.waiting)) == (0, 0)


@given(st.integers(0, 2**32), st.integers(1, 10**6), st.floats(0, 1))
def test_jitter_is_reproducible_bounded_and_keeps_order(seed: int, n: int, jitter: float):
    logs = []
    for _ in range(2):
        model, job = timing(jitter=jitter, seed=seed), Logged(n, 20, 0)
        model.add(job, 0)
        run(model)
        logs.append([due for _, due in job.log])
    dues = logs[0]
    assert logs[1] == dues
    assert dues == sorted(dues)
    assert abs(dues[0] - 50 * MS) <= 50 * MS * jitter + 1
    assert all(abs(due - dues[0] - 10 * MS * k) <= 10 * MS * jitter + 1 for k, due in enumerate(dues))


def test_noise_is_uniform():
    drawn = [noise(1, n, k) for n in range(1, 101) for k in range(100)]
    assert all(-1 <= x < 1 for x in drawn)
    assert sum(drawn) / len(drawn) == pytest.approx(0, abs=0.02)
    assert sum(x < -0.5 for x in drawn) / len(drawn) == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("service", ["exponential", "lognormal"])
def test_random_service_times_keep_the_mean(service):
    """Of 20,000 requests one at a time, so that the rate at which they end is the capacity; cv = 1, so the mean has an error of 0.7 %."""
    model = FixedTiming(Fixed(ttft=0.05, itl=0.01, max_batch=1, service=service), Sim(seed=1))
    jobs = [Logged(n, 6, 0) for n in range(1, 20_001)]
    for job in jobs:
        model.add(job, 0)
    run(model)
    times = [job.log[-1][1] - job.started for job in jobs]
    assert sum(times) / len(times) == pytest.approx(100 * MS, rel=0.03)
    median = {"exponential": 69.3, "lognormal": 70.7}[service]
    assert sorted(times)[10_000] == pytest.approx(median * MS, rel=0.03)
    assert all(
        (job.log[1][1] - job.log[0][1]) * 5 == pytest.approx(job.log[0][1] - job.started, abs=5) for job in jobs[:99]
    )
