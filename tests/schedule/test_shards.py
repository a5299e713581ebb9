"""Any plan splits into K shards whose union is exactly the whole plan."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_plan import OPEN, s

from inferometer import schedule
from inferometer.config.fields import RampUp
from inferometer.config.loads import Closed, Constant, Stages, StageSpec
from inferometer.types import ClosedStage, OpenStage, Plan, Stage

CLOSED = st.builds(
    Closed,
    concurrency=st.integers(6, 40),
    requests=st.sampled_from([0, 6, 7, 100]),
    duration=st.sampled_from([0.0, 2.0]).map(s),
    ramp_up=st.floats(0, 3).map(lambda seconds: RampUp(f"{seconds:.9f}")) | st.just(RampUp("auto")),
).filter(lambda spec: bool(spec.requests or spec.duration))


def with_cap(spec: StageSpec, cap: int) -> StageSpec:
    if not isinstance(spec, Closed):
        spec.max_concurrency = cap
    return spec


STAGES = st.lists(st.builds(with_cap, OPEN | CLOSED, st.sampled_from([0, 6, 11])), min_size=1, max_size=4).map(Stages)


def sent(stage: OpenStage) -> list[tuple[int, int]]:
    """The (id, instant) pairs of an open stage."""
    ids = stage.first_id + stage.id_step * np.arange(len(stage.instants))
    return list(zip(ids.tolist(), stage.instants.tolist(), strict=True))


def ids(stage: ClosedStage) -> list[int]:
    return [stage.first_id + j * stage.id_step for j in range(stage.requests)]


def starts(stage: ClosedStage) -> list[int]:
    """The instants at which the users of a closed stage start."""
    return [stage.ramp_offset + j * stage.ramp_up // stage.concurrency for j in range(stage.concurrency)]


def check_union(whole: Stage, shards: list[Stage]) -> None:
    if isinstance(whole, OpenStage):
        opens = [part for part in shards if isinstance(part, OpenStage)]
        assert sorted(pair for part in opens for pair in sent(part)) == sent(whole)
        assert sum(part.cap for part in opens) == whole.cap
        assert all((part.duration, part.drop) == (whole.duration, whole.drop) for part in opens)
        assert all(part.cap > 0 for part in opens) or not whole.cap
        sizes = [len(part.instants) for part in opens]
    else:
        closed = [part for part in shards if isinstance(part, ClosedStage)]
        assert sum(part.concurrency for part in closed) == whole.concurrency
        assert sorted(id for part in closed for id in ids(part)) == ids(whole)
        assert sorted(start for part in closed for start in starts(part)) == starts(whole)
        assert all((part.duration, part.think) == (whole.duration, whole.think) for part in closed)
        assert all(part.requests > 0 for part in closed) or not whole.requests
        assert len({(part.first_id - whole.first_id) % len(shards) for part in closed}) == len(shards)
        assert {part.id_step for part in closed} == {len(shards)}
        sizes = [part.concurrency for part in closed]
    assert len(shards) == len(sizes)
    assert max(sizes) - min(sizes) <= 1


@given(STAGES, st.integers(1, 6), st.integers(0, 2**40))
def test_the_union_of_all_shards_is_exactly_the_whole(load: Stages, n: int, seed: int) -> None:
    whole = schedule.plan(load, seed)
    assert schedule.max_shards(whole) >= 6
    shards = [schedule.shard(whole, k, n) for k in range(n)]
    for number, stage in enumerate(whole.stages):
        check_union(stage, [part.stages[number] for part in shards])


@given(STAGES, st.integers(1, 6))
def test_ids_are_unique_over_all_stages_and_shards(load: Stages, n: int) -> None:
    whole = schedule.plan(load, 0)
    seen: list[int] = []
    for k in range(n):
        for stage in schedule.shard(whole, k, n).stages:
            count = len(stage.instants) if isinstance(stage, OpenStage) else stage.requests or 1000
            seen += [stage.first_id + j * stage.id_step for j in range(count)]
    assert len(set(seen)) == len(seen)
    total = schedule.total_requests(whole)
    assert total is None or sorted(seen) == list(range(total))


@given(STAGES, st.sampled_from([(2, 3), (3, 2), (2, 2)]))
def test_a_shard_can_be_sharded_again(load: Stages, ways: tuple[int, int]) -> None:
    whole = schedule.plan(load, 0)
    outer, inner = ways
    shards = [schedule.shard(whole, k, outer) for k in range(outer)]
    if min(map(schedule.max_shards, shards)) >= inner:
        shards = [schedule.shard(part, k, inner) for part in shards for k in range(inner)]
        for number, stage in enumerate(whole.stages):
            if isinstance(stage, OpenStage):
                opens = [part.stages[number] for part in shards]
                assert sorted(pair for part in opens if isinstance(part, OpenStage) for pair in sent(part)) == sent(
                    stage
                )


@given(STAGES, st.integers(1, 3), st.data())
def test_the_shards_of_all_parts_are_exactly_the_plan(load: Stages, parts: int, data: st.DataObject) -> None:
    """Each part may have another number of shards. What a part deals out among its own shards is part of it, too."""
    whole = schedule.plan(load, 0)
    divided = [schedule.part(whole, k, parts) for k in range(parts)]
    counts = [data.draw(st.integers(1, min(3, schedule.max_shards(part)))) for part in divided]
    for number, stage in enumerate(whole.stages):
        shards = [
            schedule.shard(part, k, count).stages[number]
            for part, count in zip(divided, counts, strict=True)
            for k in range(count)
        ]
        if isinstance(stage, OpenStage):
            pairs = [pair for shard in shards if isinstance(shard, OpenStage) for pair in sent(shard)]
            assert sorted(pairs) == sent(stage)
            assert sum(shard.cap for shard in shards if isinstance(shard, OpenStage)) == stage.cap
            continue
        closed = [shard for shard in shards if isinstance(shard, ClosedStage)]
        assert sorted(start for shard in closed for start in starts(shard)) == starts(stage)
        owned = [shard.first_id + j * shard.id_step for shard in closed for j in range(shard.granted or shard.requests)]
        for part, count in zip(divided, counts, strict=True):
            own = part.stages[number]
            first = schedule.dealt_from(own, count)
            assert isinstance(own, ClosedStage) and own.granted == 0
            owned += ids(own)[first:] if first is not None else []
        assert sorted(owned) == ids(stage)


def test_one_part_of_one_is_the_whole() -> None:
    whole = schedule.plan(Closed(concurrency=3, requests=90), 0)
    assert schedule.part(whole, 0, 1) == whole


def test_a_single_shard_is_the_whole() -> None:
    whole = schedule.plan(Closed(concurrency=3, requests=9, ramp_up=RampUp("1s")), 0)
    assert schedule.shard(whole, 0, 1) == whole


def test_more_shards_than_requests_leave_some_shards_empty() -> None:
    whole = schedule.plan(Constant(rate=10, requests=2), 0)
    shards = [schedule.shard(whole, k, 5).stages[0] for k in range(5)]
    assert [len(part.instants) for part in shards if isinstance(part, OpenStage)] == [1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("load", "most"),
    [
        (Closed(concurrency=4, duration=s(1)), 4),
        (Closed(concurrency=4, requests=3), 3),
        (Constant(rate=1, requests=9, max_concurrency=5), 5),
        (Stages([Closed(concurrency=4, duration=s(1)), Constant(rate=1, requests=9, max_concurrency=2)]), 2),
    ],
)
def test_max_shards_is_the_limit(load: Closed | Constant | Stages, most: int) -> None:
    whole = schedule.plan(load, 0)
    assert schedule.max_shards(whole) == most
    schedule.shard(whole, most - 1, most)
    with pytest.raises(ValueError, match=f"at most {most}"):
        schedule.shard(whole, 0, most + 1)
    with pytest.raises(ValueError, match="shard 1 of 1"):
        schedule.shard(whole, 1, 1)


@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 6), st.integers(0, 20))
def test_requests_are_dealt_out_in_whole_sequences(sequence: int, users: int, shards: int, more: int) -> None:
    shards = min(shards, users)
    whole = Plan((ClosedStage(concurrency=users, requests=sequence * (users + more)),))
    stages = [schedule.shard(whole, k, shards, sequence).stages[0] for k in range(shards)]
    shares = [stage.requests for stage in stages if isinstance(stage, ClosedStage)]
    assert sum(shares) == sequence * (users + more)
    assert all(share % sequence == 0 and share >= sequence for share in shares)


@given(CLOSED, st.integers(2, 6))
def test_requests_that_are_not_dealt_out_belong_to_one_shard_each_and_every_user_has_one(spec: Closed, n: int) -> None:
    whole = schedule.plan(spec, 0)
    parts = [part for k in range(n) for part in schedule.shard(whole, k, n).stages if isinstance(part, ClosedStage)]
    first = schedule.dealt_from(whole.stages[0], n)
    if first is None:
        assert all(part.granted == 0 for part in parts)
        return
    owned = [part.first_id + j * part.id_step for part in parts for j in range(part.granted)]
    assert sorted(owned) == list(range(first))
    assert spec.concurrency <= first < spec.requests
    assert all(part.granted >= part.concurrency for part in parts)


@given(CLOSED, st.integers(1, 6))
def test_first_requests_of_all_users_are_the_first_ids_of_the_stage(spec: Closed, n: int) -> None:
    whole = schedule.plan(spec, 0)
    firsts = [
        part.first_id + user * part.id_step
        for k in range(n)
        for part in schedule.shard(whole, k, n).stages
        if isinstance(part, ClosedStage)
        for user in range(min(part.concurrency, part.requests or part.concurrency))
    ]
    assert sorted(firsts) == list(range(min(spec.concurrency, spec.requests or spec.concurrency)))


@pytest.mark.parametrize("sequence", [1, 5])
def test_sequences_are_not_dealt_out(sequence: int) -> None:
    whole = schedule.plan(Closed(concurrency=4, requests=100), 0)
    parts = [part for k in range(2) for part in schedule.shard(whole, k, 2, sequence).stages]
    assert [(part.requests, part.granted) for part in parts if isinstance(part, ClosedStage)] == [(50, 0), (50, 0)]
