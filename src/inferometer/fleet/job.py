"""What every shard is given, and what follows from it for each: its part of the plan, its requests, its connections."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import msgspec

from inferometer import schedule, workload
from inferometer.config.data import Tensors
from inferometer.config.schema import Config
from inferometer.fleet.sizing import expected_in_flight
from inferometer.probe import reach
from inferometer.probe.shared_memory import Portion
from inferometer.records import Probe
from inferometer.tensors import Tensor
from inferometer.types import ClosedStage, OpenStage, Plan, Request
from inferometer.wire.context import SharedRefs
from inferometer.workload import tensors

MAX_DISTINCT = 20_000
"""Maximum number of requests made before t=0. A longer run reuses them, and its report says so."""
_DISTINCT_UNKNOWN = 4_096
"""The number made for a closed loop that ends by time, since it is not known how many will be sent."""

_SEQUENCES_PER_USER = 4


class Job(msgspec.Struct, frozen=True):
    config: Config
    reached: reach.Reached
    shards: int
    spool: Path
    tag: str
    """The run's own word: the prefix of every request's X-Request-Id, and the salt of synthetic prompts (data.salt: run)."""
    shared: tuple[SharedRefs, ...] = ()
    """KServe: where the tensors of each shard's requests are in shared memory, which the parent has set up."""
    barriers: tuple[int, ...] = ()
    """Stages that start only when all shards have finished the stages before."""
    probe: Probe = Probe()
    """What the requests before the run showed."""


class ShardReport(msgspec.Struct, frozen=True):
    """A shard's report about itself, for the manifest."""

    stamps: str
    timer: str
    loop: str
    awake: str
    given_up: tuple[int, ...] = ()
    """Stages that the shard gave up."""


def shard_plan(job: Job, plan: Plan, shard: int) -> Plan:
    """Return one shard's part of the plan."""
    return schedule.shard(plan, shard, job.shards, division_unit(job.config))


def portions(config: Config, plan: Plan, shards: int, e2e: int) -> Iterator[Portion]:
    """Yield what each shard will send, for the shared memory that its tensors are put into."""
    for shard in range(shards):
        part = schedule.shard(plan, shard, shards, division_unit(config))
        sequences = sequences_of(config, part, shard, shards)
        requests = first_requests(config, part, sequences, shards)
        payloads = cast("list[tuple[Tensor, ...]]", [request.payload for request in requests])
        in_flight = max(max_in_flight(stage) or expected_in_flight(stage, e2e) for stage in part.stages)
        yield Portion(payloads, in_flight, tuple(map(len, sequences)))


def first_requests(config: Config, part: Plan, sequences: list[Sequence[int]], shards: int) -> list[Request]:
    """Return the requests to make before t=0 if they are used in turn: those of sequences, or in shared memory."""
    in_sequences = [id for sequence in sequences for id in sequence]
    return workload.build(config.data, config.seed, in_sequences or _ids(part)[: _distinct(config, shards)])


def requests_by_id(config: Config, plan: Plan, part: Plan, shards: int) -> tuple[list[Request], int]:
    """Return the requests to make before t=0 if each has an id, and so the same content whichever shard sends it and when.

    The second result is the number of different requests, after which they repeat; 0: they do not.
    """
    period = _distinct(config, shards)
    if period is not None and period <= MAX_DISTINCT:
        return workload.build(config.data, config.seed, range(period)), period
    return workload.build(config.data, config.seed, _ids(part, dealt_ids(plan, shards))), 0


def dealt_ids(plan: Plan, shards: int) -> list[int]:
    """Return the ids that the parent deals out during the run (fleet/dealing.py)."""
    starts = ((stage, schedule.dealt_from(stage, shards)) for stage in plan.stages)
    return [
        id
        for stage, first in starts
        if first is not None and isinstance(stage, ClosedStage)
        for id in range(stage.first_id + first, stage.first_id + stage.requests)
    ]


def _distinct(config: Config, shards: int) -> int | None:
    """Return how many different requests a shard needs; None if every id has its own.

    The number of distinct random tensors is limited by memory. The shards share it: together they make all of them.
    """
    distinct = workload.distinct(config.data)
    if distinct is not None and isinstance(config.data, Tensors) and tensors.is_random(config.data):
        return -(-distinct // shards)
    return distinct


def division_unit(config: Config) -> int:
    """Return how many requests stay together when they are divided among the shards in advance; 0: the parent deals them out.

    Sequences stay together, and tensors in shared memory were put there for one shard.
    """
    return longest_sequence(config) or int(config.server.shared_memory)


def longest_sequence(config: Config) -> int:
    """Return the number of requests in the longest sequence; 0: there are no sequences."""
    if not isinstance(config.data, Tensors) or not config.data.sequence:
        return 0
    return max(map(len, tensors.sequences(config.data, 1)))


def sequences_of(config: Config, plan: Plan, shard: int, shards: int) -> list[Sequence[int]]:
    """Return the ids of each sequence's requests. There are more sequences than users, so that none is reused before it has ended."""
    if not isinstance(config.data, Tensors) or not config.data.sequence:
        return []
    users = max(stage.concurrency for stage in plan.stages if isinstance(stage, ClosedStage))
    return tensors.sequences(config.data, _SEQUENCES_PER_USER * users, shard, shards)


def _ids(part: Plan, dealt: Sequence[int] = ()) -> list[int]:
    """Return the ids of the requests to make before t=0: the first ones of each stage, at most MAX_DISTINCT in total.

    `dealt`: ids that any shard may be given during the run, in addition to its own.
    """
    ids: list[int] = []
    for stage in part.stages:
        known = len(stage.instants) if isinstance(stage, OpenStage) else (dealt and stage.granted) or stage.requests
        count = min(known or _DISTINCT_UNKNOWN, MAX_DISTINCT - len(ids))
        ids += range(stage.first_id, stage.first_id + count * stage.id_step, stage.id_step)
    ids += dealt[: MAX_DISTINCT - len(ids)]
    return ids or [0]


def prepared_count(plan: Plan, shards: int) -> int:
    """Return how many different requests all shards together make before t=0."""
    dealt = dealt_ids(plan, shards)
    return len(set[int]().union(*(_ids(schedule.shard(plan, shard, shards), dealt) for shard in range(shards))))


def max_in_flight(stage: OpenStage | ClosedStage) -> int:
    return stage.concurrency if isinstance(stage, ClosedStage) else stage.cap
