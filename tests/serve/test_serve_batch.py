"""The batch engine with a fake clock: closed forms, and properties for random requests."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.serve.sim.batch import BatchTiming, block_keys
from inferometer.serve.sim.settings import Batch, Sim
from inferometer.serve.sim.timing import NEVER, Job

MS = 1_000_000


class Logged(Job):
    def __init__(self, n: int, n_in: int, n_out: int, arrived: int = 0, keys: tuple[int, ...] = ()) -> None:
        super().__init__(n, n_in, n_out, arrived, keys)
        self.log: list[tuple[int, int]] = []

    def emit(self, count: int, due: int) -> None:
        self.log.append((count, due))

    @property
    def times(self) -> list[float]:
        return [due / MS for _, due in self.log]


def engine(tokens_per_chunk: int = 1, max_queue: int | None = None, **spec: object) -> BatchTiming:
    """Return an engine with 1 ms per prompt token and 10 ms per decode step by default."""
    values = {"prefill_rate": 1000.0, "decode_step": 0.01, "max_batch": 8, "block": 4, "kv_tokens": 4096} | spec
    settings = Sim(tokens_per_chunk=tokens_per_chunk, max_queue=max_queue)
    return BatchTiming(Batch(**values), settings)  # type: ignore[arg-type]


def run(model: BatchTiming) -> None:
    while model.due != NEVER:
        model.advance(model.due)
        assert model.kv.held + len(model.kv.idle) <= model.kv.capacity


def test_one_sequence_takes_its_prefill_and_then_a_step_per_token():
    model, job = engine(prefill_overhead=0.005, decode_per_seq=0.001), Logged(1, 20, 3, arrived=2 * MS)
    model.add(job, 2 * MS)
    run(model)
    assert job.times == [2 + 5 + 20, 2 + 25 + 11, 2 + 25 + 22]


def test_a_step_costs_more_per_sequence():
    model = engine(decode_per_seq=0.001)
    jobs = [Logged(n, 10, 4) for n in range(1, 5)]
    model.add(jobs[0], 0)
    for job in jobs[1:]:
        model.add(job, 0)
    run(model)
    # step 1: the first one's prefill, 10 ms. step 2: it decodes (11 ms) and the others prefill (30 ms).
    assert jobs[0].times == [10, 51, 65, 79]
    assert all(job.times == [51, 65, 79, 92] for job in jobs[1:])


def test_requests_beyond_max_batch_wait_in_order():
    model = engine(max_batch=2, prefill_rate=1e9)
    jobs = [Logged(n, 1, 2) for n in range(1, 7)]
    for job in jobs:
        model.add(job, 0)
    assert (model.n_running, len(model.waiting)) == (1, 5)
    run(model)
    starts = [job.started for job in jobs]
    assert starts == sorted(starts)
    # the first has the engine alone for its prefill, which takes no time; from then on each step ends one and prefills one
    assert [round(job.times[-1]) for job in jobs] == [10, 20, 30, 40, 50, 60]


def test_whole_prefills_stall_decoding():
    model = engine(chunked_prefill=False)
    first, second = Logged(1, 10, 5), Logged(2, 100, 2)
    model.add(first, 0)
    model.advance(15 * MS)
    model.add(second, 15 * MS)
    run(model)
    assert first.times == [10, 20, 130, 140, 150]
    assert second.times == [130, 140]


def test_chunked_prefill_spreads_the_same_work_over_steps():
    model = engine(token_budget=11)
    first, second = Logged(1, 10, 12), Logged(2, 95, 2)
    model.add(first, 0)
    model.add(second, 0)
    run(model)
    # each step: one token decoded (of the budget too), ten prefilled: 10 ms + 10 ms, and the last has five left
    assert first.times[:3] == [11 - 1, 30, 50]
    assert second.times[0] == 10 + 9 * 20 + 10 + 5
    gaps = [b - a for a, b in zip(first.times, first.times[1:], strict=False)]
    assert max(gaps) == 20


def test_an_idle_engine_starts_at_once_and_later_requests_wait_for_the_step():
    model = engine()
    first, second = Logged(1, 10, 2), Logged(2, 10, 1)
    model.add(first, 100 * MS)
    model.add(second, 101 * MS)
    run(model)
    assert second.started == 110 * MS
    assert second.times == [110 + 10 + 10]
    third = Logged(3, 10, 1)
    model.add(third, 500 * MS)
    assert third.started == 500 * MS


def test_several_tokens_per_step():
    model, job = engine(tokens_per_chunk=3), Logged(1, 10, 8)
    model.add(job, 0)
    run(model)
    assert job.log == [(3, 10 * MS), (3, 20 * MS), (2, 30 * MS)]


def test_preemption_recomputes_the_latest_sequence_and_loses_no_token():
    model = engine(kv_tokens=40, prefill_rate=1e6)
    first, second = Logged(1, 16, 20), Logged(2, 16, 20)
    model.add(first, 0)
    model.add(second, 0)
    run(model)
    assert model.preemptions >= 1
    assert len(first.log) == len(second.log) == 20
    assert first.times[-1] < second.times[-1]
    assert max(b - a for a, b in zip(first.times, first.times[1:], strict=False)) < 11  # the older one never waits
    assert model.kv.held == 0


def test_a_full_queue_refuses_only_beyond_free_slots():
    model = engine(max_batch=2, max_queue=1)
    assert [model.add(Logged(n, 1, 5), 0) for n in range(1, 5)] == [True, True, True, False]


def test_a_dropped_sequence_leaves_at_once_in_any_state():
    model = engine(max_batch=2)
    jobs = [Logged(n, 10, 5) for n in (1, 2, 3)]
    for job in jobs:
        model.add(job, 0)
    model.advance(10 * MS)
    model.drop(jobs[0], 11 * MS)
    model.drop(jobs[2], 11 * MS)
    run(model)
    assert [len(job.log) for job in jobs] == [1, 5, 0]
    assert (model.n_running, len(model.waiting), model.kv.held) == (0, 0, 0)


def test_the_prefix_cache_saves_the_prefill_of_shared_blocks():
    ids = list(range(100))
    model = engine(prefix_cache=True)
    first = Logged(1, 100, 1, keys=block_keys(ids, 4))
    model.add(first, 0)
    run(model)
    second = Logged(2, 103, 1, keys=block_keys([*ids[:50], *range(900, 953)], 4))
    model.add(second, 1000 * MS)
    run(model)
    assert (first.cached, second.cached) == (0, 48)
    assert second.times == [1000 + 55]
    third = Logged(3, 100, 1, keys=block_keys(ids, 4))
    model.add(third, 2000 * MS)
    run(model)
    assert third.cached == 96  # its last token must be computed
    assert (model.kv.queried, model.kv.hit) == (303, 144)


def test_jitter_is_bounded_and_reproducible():
    def times() -> list[float]:
        model, job = engine(jitter=0.2), Logged(1, 10, 50)
        model.add(job, 0)
        run(model)
        return job.times

    gaps = [b - a for a, b in zip(times(), times()[1:], strict=False)]
    assert times() == times()
    assert all(8 <= gap <= 12 for gap in gaps)
    assert max(gaps) - min(gaps) > 1


job_specs = st.tuples(st.integers(1, 40), st.integers(1, 30), st.integers(0, 300), st.integers(0, 3))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(job_specs, min_size=1, max_size=12),
    st.integers(70, 200),
    st.integers(1, 6),
    st.booleans(),
    st.booleans(),
    st.integers(1, 64),
    st.integers(1, 4),
    st.sets(st.integers(1, 12), max_size=3),
)
def test_random_requests_get_their_tokens_in_order_within_the_room(
    specs: list[tuple[int, int, int, int]],
    kv_tokens: int,
    max_batch: int,
    chunked: bool,
    prefix: bool,
    budget: int,
    per_step: int,
    dropped: set[int],
):
    model = engine(
        per_step,
        kv_tokens=kv_tokens + 4,
        max_batch=max_batch,
        chunked_prefill=chunked,
        prefix_cache=prefix,
        token_budget=budget,
    )
    jobs = []
    for n, (n_in, n_out, arrived, family) in enumerate(sorted(specs, key=lambda spec: spec[2]), 1):
        job = Logged(n, n_in, n_out, arrived * MS, block_keys([family * 1000 + i for i in range(n_in)], 4))
        model.advance(arrived * MS)
        assert model.add(job, arrived * MS)
        jobs.append(job)
        if n in dropped:
            model.drop(job, arrived * MS)
    run(model)
    served = [job for job in jobs if not job.gone]
    for job in served:
        assert sum(count for count, _ in job.log) == job.n_out
        assert job.times == sorted(job.times)
        assert job.log[0][1] > job.arrived
    assert [job.started for job in served] == sorted(job.started for job in served)
    assert (model.n_running, len(model.waiting), model.kv.held) == (0, 0, 0)


@pytest.mark.parametrize("prefix", [False, True])
def test_a_sequence_that_fills_the_room_is_served(prefix: bool):
    model, job = engine(kv_tokens=40, prefix_cache=prefix), Logged(1, 20, 20)
    assert model.kv.capacity * model.kv.block == 40
    model.add(job, 0)
    run(model)
    assert len(job.log) == 20
