"""Dealing out the requests of a closed stage: every id once, and all shards finish together, whatever their pace."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from inferometer import schedule
from inferometer.config.fields import Seconds
from inferometer.config.loads import Closed, Constant, Stages
from inferometer.fleet.control import ShardHandle
from inferometer.fleet.dealing import Dealing
from inferometer.store.spool import STAGE_STEP, Control
from inferometer.types import ClosedStage, Plan
from inferometer.units import NS

LOOK_EVERY = NS // 100


class FakeShard:
    """A shard whose users each send a request every `e2e` nanoseconds, on a clock that the test sets."""

    def __init__(self, control: Control, plan: Plan, e2e: int, stage: int = 0) -> None:
        part = plan.stages[stage]
        assert isinstance(part, ClosedStage)
        self.control, self.e2e, self.stage, self.dealt_step = control, e2e, stage, part.dealt_step
        self.ids = [part.first_id + n * part.id_step for n in range(part.granted)]
        self.sent = min(part.concurrency, part.granted)
        self.ready_at = [e2e] * part.concurrency
        self.last_sent_at = self.waited = 0
        self.is_complete = False
        self._pending: dict[str, int] = {}

    def tell(self, **numbers: int) -> None:
        assert not self._pending, "a grant was lost"
        self._pending = numbers

    def advance(self, at: int) -> None:
        """Send what was due before `at`, then take what was dealt out and report."""
        for user, ready in enumerate(self.ready_at):
            while ready <= at and self.sent < len(self.ids):
                self.sent += 1
                self.last_sent_at = max(self.last_sent_at, ready)
                ready += self.e2e  # noqa: PLW2901 - the user's next request
            if ready <= at and not self.is_complete:
                self.waited += 1
                ready = at  # noqa: PLW2901 - it waited for the parent
            self.ready_at[user] = ready
        if grant := self._pending:
            assert not self.is_complete
            self.ids += range(grant["grant_from"], grant["grant_to"], self.dealt_step)
            self.is_complete = bool(grant["grant_is_last"])
            self.control["grants_taken"] = grant["grants"]
            self._pending = {}
        self.control["issued"] = (self.stage + 1) * STAGE_STEP + self.sent


def run(folder: Path, load: Closed, e2e: Sequence[int], part: tuple[int, int] = (0, 1)) -> list[FakeShard]:
    """Send everything of a part of the load; the shards take this many nanoseconds per request."""
    plan, count = schedule.part(schedule.plan(load, 0), *part), len(e2e)
    controls = [Control(folder / f"{shard}.control", create=True) for shard in range(count)]
    shards = [FakeShard(controls[k], schedule.shard(plan, k, count), e2e[k]) for k in range(count)]
    dealing = Dealing(plan, count, controls, 0)
    handles = cast("dict[int, ShardHandle]", dict(enumerate(shards)))
    at = 0
    while not all(shard.is_complete and shard.sent == len(shard.ids) for shard in shards):
        at += LOOK_EVERY
        assert at < 10_000 * NS, "it never ends"
        for shard in shards:
            shard.advance(at)
        dealing.deal(handles, at)
    assert not dealing.is_pending
    assert [shard.ids[part.granted :] for shard, part in zip(shards, _parts(plan, count), strict=True)] == [
        [id for ids in dealing.granted(k).get(0, []) for id in ids] for k in range(count)
    ]
    return shards


def _parts(plan: Plan, count: int) -> list[Any]:
    return [schedule.shard(plan, k, count).stages[0] for k in range(count)]


@hypothesis_settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([5, 20, 100, 300]), min_size=2, max_size=4),
    st.integers(4, 40),
    st.integers(0, 2000),
)
def test_every_id_is_sent_once_and_nothing_is_left(e2e_ms: list[int], concurrency: int, more: int) -> None:
    load = Closed(concurrency=concurrency, requests=2 * concurrency + more)
    with TemporaryDirectory() as folder:
        shards = run(Path(folder), load, [each * NS // 1000 for each in e2e_ms])
    assert sorted(id for shard in shards for id in shard.ids) == list(range(load.requests))


@pytest.mark.parametrize("parts", [2, 3])
def test_the_shards_of_a_part_deal_out_its_own_ids(tmp_path: Path, parts: int) -> None:
    load = Closed(concurrency=8, requests=401)
    ids = []
    for part in range(parts):
        (tmp_path / str(part)).mkdir()
        shards = run(tmp_path / str(part), load, [NS // 50, NS // 10], (part, parts))
        own = sorted(id for shard in shards for id in shard.ids)
        assert own == list(range(part, load.requests, parts))
        assert shards[0].sent > 2 * shards[1].sent  # the faster one got more
        ids += own
    assert sorted(ids) == list(range(load.requests))


@pytest.mark.parametrize(
    ("e2e_ms", "concurrency", "requests"),
    [
        ((100, 300), 8, 800),
        ((50, 300), 8, 800),
        ((20, 25), 8, 4000),
        ((300, 100, 200), 12, 600),
        ((2000, 1000), 16, 400),
        ((2, 4), 8, 20_000),
    ],
)
def test_shards_of_different_pace_finish_within_about_one_response(
    tmp_path: Path, e2e_ms: tuple[int, ...], concurrency: int, requests: int
) -> None:
    shards = run(tmp_path, Closed(concurrency=concurrency, requests=requests), [each * NS // 1000 for each in e2e_ms])
    ends = [shard.last_sent_at for shard in shards]
    assert max(ends) - min(ends) <= max(*(shard.e2e for shard in shards), NS // 10)
    assert not any(shard.waited for shard in shards), "a user had nothing to send"
    paces = sorted(shards, key=lambda shard: shard.e2e)
    assert paces[0].sent > paces[-1].sent


def test_equally_fast_shards_send_equally_many(tmp_path: Path) -> None:
    shards = run(tmp_path, Closed(concurrency=8, requests=1000), [NS // 20] * 4)
    assert max(shard.sent for shard in shards) - min(shard.sent for shard in shards) <= 4


def test_a_shard_that_moved_on_to_the_next_stage_gets_requests_of_that_stage_only(tmp_path: Path) -> None:
    stages = Stages([Closed(concurrency=2, requests=100), Closed(concurrency=2, requests=60)])
    plan = schedule.plan(stages, 0)
    controls = [Control(tmp_path / f"{shard}.control", create=True) for shard in range(2)]
    dealing = Dealing(plan, 2, controls, 0)
    ahead, behind = (FakeShard(controls[k], schedule.shard(plan, k, 2), NS, stage) for k, stage in ((0, 1), (1, 0)))
    handles = cast("dict[int, ShardHandle]", {0: ahead, 1: behind})
    ahead.sent, behind.sent = len(ahead.ids), len(behind.ids)
    for look in range(1, 9):
        ahead.advance(look)
        behind.advance(look)
        dealing.deal(handles, look)
    assert ahead.ids[8:] and set(ahead.ids[8:]) <= set(range(115, 160))
    assert behind.ids[12:] and set(behind.ids[12:]) <= set(range(25, 100))


@pytest.mark.parametrize(
    ("load", "sequence"),
    [
        (Closed(concurrency=4, duration=Seconds(9)), 0),
        (Closed(concurrency=4, requests=4), 0),
        (Closed(concurrency=4, requests=400), 5),
        (Constant(rate=5, requests=100), 0),
    ],
    ids=["by duration", "one request per user", "sequences", "open loop"],
)
def test_other_stages_are_divided_completely(tmp_path: Path, load: Closed | Constant, sequence: int) -> None:
    controls = [Control(tmp_path / f"{shard}.control", create=True) for shard in range(2)]
    dealing = Dealing(schedule.plan(load, 0), 2, controls, sequence)
    assert not dealing.is_pending
    assert dealing.granted(0) == {}
