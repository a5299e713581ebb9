"""Deals out the requests of closed stages that a number of requests ends, so that all shards finish them together.

If each shard had a fixed part of them, a fast shard would finish early, and the concurrency would fall while the others work on. So
a shard owns only the first of its requests (schedule.dealt_from); the parent hands out the rest in blocks of ids, a little more than
each shard sends until the parent looks again. A request that was handed out is not taken back: every id is sent once, by one shard.

At the end, each shard has enough requests left for every user to send one more, or for _AHEAD_S at its pace: the shards
finish within about the time of one response, or within _AHEAD_S if responses are shorter than that.
"""

from collections.abc import Mapping, Sequence

from inferometer import schedule
from inferometer.fleet.control import ShardHandle
from inferometer.store.spool import STAGE_STEP, Control
from inferometer.types import ClosedStage, Plan
from inferometer.units import NS

_AHEAD_S = 0.25
"""Seconds for which a shard has requests at its pace. It must be longer than the parent may take to notice that the shard needs more,
on Ray with the time between two polls (ray_shard.py)."""
_MIN_ELAPSED_S = 0.1
"""The pace is averaged over at least this time, because responses that arrive together say little about it."""
_REFILL_AT = 0.5
"""Requests are dealt out when a shard has less than this share of what it needs; then all shards get as much as they need."""
_BLOCKS = 16
"""What a shard needs is dealt out in about this many blocks, always to the shard that has the fewest for its pace."""


class Dealing:
    """Everything that is dealt out in a run."""

    def __init__(self, plan: Plan, shards: int, controls: Sequence[Control], sequence: int) -> None:
        self._controls = controls
        self._grants = [0] * shards  # how often each shard was given requests
        self._stages: dict[int, _DealtStage] = {}
        for number, stage in enumerate(plan.stages):
            first = schedule.dealt_from(stage, shards, sequence)
            if first is not None and isinstance(stage, ClosedStage):
                parts = [schedule.shard(plan, shard, shards).stages[number] for shard in range(shards)]
                owned = [part for part in parts if isinstance(part, ClosedStage)]
                ids = range(stage.first_id, stage.first_id + stage.requests * stage.id_step, stage.id_step)
                self._stages[number] = _DealtStage(ids[first:], owned)

    @property
    def is_pending(self) -> bool:
        """Whether there is anything left to deal out, or a shard that does not know that there is not."""
        return any(stage.is_pending for stage in self._stages.values())

    def granted(self, shard: int) -> dict[int, list[range]]:
        """Return the ids that were dealt out to a shard, by stage."""
        return {number: stage.granted[shard] for number, stage in self._stages.items()}

    def deal(self, running: Mapping[int, ShardHandle], at: int) -> None:
        """Give the running shards what they need. Call it every few milliseconds."""
        if not self._stages:
            return
        sent: dict[int, dict[int, int]] = {}
        for shard in running:
            stage, count = divmod(self._controls[shard]["issued"], STAGE_STEP)
            if stage - 1 in self._stages:
                sent.setdefault(stage - 1, {})[shard] = count
        for number, counts in sent.items():
            dealt = self._stages[number]
            ready = [shard for shard in counts if self._controls[shard]["grants_taken"] == self._grants[shard]]
            for shard, ids in dealt.deal(counts, ready, at).items():
                self._grants[shard] += 1
                running[shard].tell(
                    grant_stage=number,
                    grant_from=ids.start,
                    grant_to=ids.stop,
                    grant_is_last=int(not dealt.left),
                    grants=self._grants[shard],  # last: the shard looks at the others when this has changed
                )


class _DealtStage:
    """One stage: the ids that are left, and what each shard was given."""

    def __init__(self, ids: range, owned: Sequence[ClosedStage]) -> None:
        self._ids = ids
        self._users = [part.concurrency for part in owned]
        self._total = [part.granted for part in owned]  # the requests that each shard has, sent or not
        self._first_seen: dict[
            int, tuple[int, int]
        ] = {}  # when the parent first saw the shard in this stage; requests sent by then
        self._complete: set[int] = set()  # shards that know that nothing is left
        self.granted: list[list[range]] = [[] for _ in owned]

    @property
    def left(self) -> int:
        return len(self._ids)

    @property
    def is_pending(self) -> bool:
        return len(self._complete) < len(self._users)

    def deal(self, sent: Mapping[int, int], ready: Sequence[int], at: int) -> dict[int, range]:
        """Return what to give to the shards that are `ready` for it. `sent` says how many requests each shard has sent.

        When nothing is left, every shard gets a last grant, which may be empty.
        """
        given = {}
        for shard, amount in self._amounts(sent, ready, at).items():
            given[shard], self._ids = self._ids[:amount], self._ids[amount:]
            self._total[shard] += amount
            if amount:
                self.granted[shard].append(given[shard])
        if self.left:
            return {shard: ids for shard, ids in given.items() if ids}
        given = {shard: ids for shard, ids in given.items() if shard not in self._complete}
        self._complete.update(given)
        return given

    def _amounts(self, sent: Mapping[int, int], ready: Sequence[int], at: int) -> dict[int, int]:
        """Return how many requests each of the shards gets: the one that has the fewest for its pace is always next."""
        needs = {shard: self._need(shard, sent[shard], at) for shard in ready}
        amounts = dict.fromkeys(ready, 0)
        left = self.left

        def supply(shard: int) -> float:
            return (self._total[shard] + amounts[shard] - sent[shard]) / needs[shard]

        if not ready or min(map(supply, ready)) > _REFILL_AT:
            return amounts
        while left:
            shard = min(ready, key=supply)
            if supply(shard) >= 1:
                break
            block = min(left, max(1, int(needs[shard]) // _BLOCKS))
            amounts[shard] += block
            left -= block
        return amounts

    def _need(self, shard: int, sent: int, at: int) -> float:
        """Return how many requests the shard needs: one for every user, and those that it sends in the time ahead."""
        first_at, first_sent = self._first_seen.setdefault(shard, (at, sent))
        pace = (sent - first_sent) / max((at - first_at) / NS, _MIN_ELAPSED_S)
        return self._users[shard] + pace * _AHEAD_S
