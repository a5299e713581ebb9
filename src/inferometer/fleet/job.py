"""What every shard is given, and what follows from it for each: its part of the plan, its requests, its connections."""

import math
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import cast

import msgspec

from inferometer import schedule, workload
from inferometer.config.data import Tensors
from inferometer.config.loads import Replay
from inferometer.config.schema import Config
from inferometer.errors import UserError
from inferometer.fleet.sizing import Pace, expected_in_flight, expected_rate, pace_of
from inferometer.probe import reach
from inferometer.probe.shared_memory import Portion
from inferometer.records import Probe
from inferometer.tensors import Tensor
from inferometer.types import ClosedStage, OpenStage, Plan, Request
from inferometer.units import NS
from inferometer.wire.context import SharedRefs
from inferometer.workload import tensors

_UNKNOWN = 4_096
"""Requests that a shard makes for a closed stage that ends by time, if it is not known how fast the server responds."""
_MARGIN = 1.5
"""If that is known from the probe, it makes this many times as many as it would send at that speed ..."""
_MOST_ESTIMATED, _MOST_ESTIMATED_BYTES = 100_000, 1 << 30
"""... but no more than these. A run that sends more uses its requests again, and its report says so."""

_SEQUENCES_PER_USER = 4


class Part(msgspec.Struct, frozen=True):
    """One of several parts of a run, each of which is measured by a client that is not in contact with the others."""

    number: int
    """Counted from 0."""
    of: int


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
    turns: float = 0.0
    """Mean number of turns per session; 0: there are no sessions."""
    stages: tuple[str, ...] = ()
    """Name of each stage, as in reports."""
    part: Part | None = None
    """The part of the run that this job is; None: it is all of it."""
    start_ns: int = 0
    """Wall clock at t=0, nanoseconds since 1970; 0: t=0 is as soon as all shards are ready."""
    stored_at: str = ""
    """URL of the run's folder in a bucket, to which shards on other machines write (shard_store.py); none if the output is local."""

    @property
    def all_shards(self) -> int:
        """The number of shards of all parts, if they have as many as this one."""
        return self.shards * (self.part.of if self.part else 1)

    def number(self, shard: int) -> int:
        """Return the number of one of this job's shards among all of them."""
        return shard if self.part is None else self.part.number + shard * self.part.of


class ShardReport(msgspec.Struct, frozen=True):
    """A shard's report about itself, for the manifest."""

    stamps: str
    timer: str
    loop: str
    awake: str
    given_up: tuple[int, ...] = ()
    """Stages that the shard gave up."""
    notes: tuple[str, ...] = ()
    """What the user should know about the run, although nothing failed."""


def whole_plan(config: Config, e2e_ns: int = 0, turns: float = 0.0) -> Plan:
    """Return the plan of the run, of all shards together. `e2e_ns` is how long a request takes, by the probe; 0: not known.
    `turns` is the mean number of turns per session; 0: there are no sessions."""
    arrivals = workload.arrivals(config.data) if isinstance(config.load, Replay) else None
    return schedule.plan(config.load, config.seed, e2e_ns, arrivals=arrivals, turns=turns)


def part_plan(config: Config, whole: Plan, part: Part | None) -> Plan:
    """Return one part of the plan of the run. Raises UserError when the plan cannot be divided into as many."""
    if part is None:
        return whole
    if part.of > (most := schedule.max_shards(whole)):
        raise UserError(
            f"the load cannot be divided into {part.of:,} parts: each needs a user, a request and a share of the cap in every stage",
            f"use at most {most:,} parts, or a larger load",
            "load",
        )
    return schedule.part(whole, part.number, part.of, division_unit(config))


def check_load(config: Config) -> None:
    """Raise UserError if the load cannot be planned, before the server is contacted."""
    schedule.check(config.load)
    if isinstance(config.load, Replay):
        whole_plan(config)


def shard_plan(job: Job, plan: Plan, shard: int) -> Plan:
    """Return one shard's part of the plan."""
    return schedule.shard(plan, shard, job.shards, division_unit(job.config))


def portions(config: Config, plan: Plan, shards: int, e2e: int, of: Part | None = None) -> Iterator[Portion]:
    """Yield what each shard will send, for the shared memory that its tensors are put into. `plan` is that of the part `of` the run."""
    first, parts = (of.number, of.of) if of is not None else (0, 1)
    for shard in range(shards):
        part = schedule.shard(plan, shard, shards, division_unit(config))
        sequences = sequences_of(config, part, first + shard * parts, shards * parts)
        requests = first_requests(config, part, sequences, shards * parts)
        payloads = cast("list[tuple[Tensor, ...]]", [request.payload for request in requests])
        in_flight = max(max_in_flight(stage) or expected_in_flight(stage, e2e) for stage in part.stages)
        yield Portion(payloads, in_flight, tuple(map(len, sequences)))


def first_requests(config: Config, part: Plan, sequences: list[Sequence[int]], shards: int) -> list[Request]:
    """Return the requests to make before t=0 if they are used in turn: those of sequences, or in shared memory."""
    return workload.build(config.data, config.seed, first_ids(config, part, sequences, shards))


def first_ids(config: Config, part: Plan, sequences: list[Sequence[int]], shards: int) -> list[int]:
    """Return the ids of these requests."""
    in_sequences = [id for sequence in sequences for id in sequence]
    own = islice(chain.from_iterable(_own_ids(config, part, Probe())), _distinct(config, shards))
    return in_sequences or list(own) or [0]


def ids_to_prepare(config: Config, plan: Plan, part: Plan, shards: int, probe: Probe) -> tuple[tuple[range, ...], int]:
    """Return the ids of the requests to make before t=0 if each id has its own content, whichever shard sends it and when.

    The second result is the number of different requests, after which they repeat; 0: they do not.
    """
    ids = (*_own_ids(config, part, probe), *dealt_ids(plan, shards)) or (range(1),)
    period = workload.distinct(config.data)
    if period is not None and period <= sum(map(len, ids)):
        return (range(period),), period
    return ids, 0


def dealt_ids(plan: Plan, shards: int) -> tuple[range, ...]:
    """Return the ids that the parent deals out during the run (fleet/dealing.py), to any of the shards."""
    starts = ((stage, schedule.dealt_from(stage, shards)) for stage in plan.stages)
    return tuple(
        range(stage.first_id, stage.first_id + stage.requests * stage.id_step, stage.id_step)[first:]
        for stage, first in starts
        if first is not None and isinstance(stage, ClosedStage)
    )


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


def _own_ids(config: Config, part: Plan, probe: Probe) -> Iterator[range]:
    """Yield the ids of each stage that are the shard's own from the start."""
    pace = None
    for stage in part.stages:
        count = len(stage.instants) if isinstance(stage, OpenStage) else stage.granted or stage.requests
        if isinstance(stage, ClosedStage) and not count:
            pace = pace or pace_of(config)
            count = _estimated(stage, probe, pace)
        if count:
            yield range(stage.first_id, stage.first_id + count * stage.id_step, stage.id_step)


def _estimated(stage: ClosedStage, probe: Probe, pace: Pace) -> int:
    """Return how many requests, or sessions, to make for a stage that ends by time, since it is not known how many will be sent."""
    rate = expected_rate(stage, probe.e2e_ns, pace)
    wanted = math.ceil(rate * stage.duration / NS * _MARGIN) if rate else _UNKNOWN
    most = min(_MOST_ESTIMATED, int(_MOST_ESTIMATED_BYTES / ((probe.request_bytes or 1) + pace.stored)))
    return max(min(wanted, most), min(stage.concurrency, _UNKNOWN), 1)


def prepared_count(config: Config, plan: Plan, shards: int, probe: Probe) -> int:
    """Return how many different requests all shards together make before t=0."""
    unit = division_unit(config)
    parts = (schedule.shard(plan, shard, shards, unit) for shard in range(shards))
    own = sum(len(ids) for part in parts for ids in _own_ids(config, part, probe))
    made = own + (0 if unit else sum(map(len, dealt_ids(plan, shards))))
    return min(workload.distinct(config.data) or made, made)


def max_in_flight(stage: OpenStage | ClosedStage) -> int:
    return stage.concurrency if isinstance(stage, ClosedStage) else stage.cap
