"""What every shard is given, and what follows from it for each: its part of the plan, its requests, its connections."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import msgspec

from inferometer import schedule, workload
from inferometer.config.schema import Config, Tensors
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
_SPARE_FROM = 1 << 39
_MIN_SPARE = 64


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
    return schedule.shard(plan, shard, job.shards, longest_sequence(job.config))


def portions(config: Config, plan: Plan, shards: int, e2e: int) -> Iterator[Portion]:
    """Yield what each shard will send, for the shared memory that its tensors are put into."""
    for shard in range(shards):
        part = schedule.shard(plan, shard, shards, longest_sequence(config))
        sequences = sequences_of(config, part, shard, shards)
        requests = first_requests(config, part, sequences, shards)
        payloads = cast("list[tuple[Tensor, ...]]", [request.payload for request in requests])
        in_flight = max(max_in_flight(stage) or expected_in_flight(stage, e2e) for stage in part.stages)
        yield Portion(payloads, in_flight, tuple(map(len, sequences)))


def first_requests(config: Config, plan: Plan, sequences: list[Sequence[int]], shards: int) -> list[Request]:
    """Return the requests to make before t=0, for this shard's plan.

    The number of distinct random tensors is limited by memory. The shards share it: together they make all of them.
    """
    in_sequences = [id for sequence in sequences for id in sequence]
    distinct = workload.distinct(config.data)
    if distinct is not None and isinstance(config.data, Tensors) and config.data.fill == "random":
        distinct = -(-distinct // shards)
    return workload.build(config.data, config.seed, in_sequences or _ids(plan)[:distinct])


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


def _ids(plan: Plan) -> list[int]:
    """Return the ids of the requests to make before t=0: the first ones of each stage, at most MAX_DISTINCT in total."""
    ids: list[int] = []
    for stage in plan.stages:
        known = len(stage.instants) if isinstance(stage, OpenStage) else stage.requests
        count = min(known or _DISTINCT_UNKNOWN, MAX_DISTINCT - len(ids))
        ids += range(stage.first_id, stage.first_id + count * stage.id_step, stage.id_step)
    ids += _spare_ids(plan)[: MAX_DISTINCT - len(ids)]
    return ids or [0]


def _spare_ids(plan: Plan) -> range:
    """Return ids for the requests that a shard sends beyond its share, if the parent deals out requests (fleet/dealing.py).

    A request is made from the next id in this list, whatever its own id is. No stage has these ids, so no prompt is sent twice,
    unless a shard sends more than a quarter beyond its share: it then uses the first ones again.
    """
    first = plan.stages[0]
    shares = [stage.requests for stage in plan.stages if isinstance(stage, ClosedStage) and stage.granted]
    spare = sum(max(share // 4, min(share * (first.id_step - 1), _MIN_SPARE)) for share in shares)
    return range(_SPARE_FROM + first.first_id, _SPARE_FROM + first.first_id + spare * first.id_step, first.id_step)


def prepared_count(plan: Plan, shards: int) -> int:
    """Return how many requests all shards together make before t=0."""
    return sum(len(_ids(schedule.shard(plan, shard, shards))) for shard in range(shards))


def max_in_flight(stage: OpenStage | ClosedStage) -> int:
    return stage.concurrency if isinstance(stage, ClosedStage) else stage.cap
