"""Which requests are made before t=0.

Each id has its own content, whichever shard sends it and when, so they are made once for all shards. Only requests in sequences, or in
shared memory, are made for one shard, which uses them in turn.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import cast

from inferometer import workload
from inferometer.config.data import Tensors
from inferometer.config.schema import Config
from inferometer.prepare.plans import max_in_flight, sequences_of, shard_plans
from inferometer.prepare.setup import Part
from inferometer.prepare.sizing import Pace, expected_in_flight, expected_rate, pace_of
from inferometer.probe.shared_memory import Portion
from inferometer.records import Probe
from inferometer.tensors import Tensor
from inferometer.types import ClosedStage, OpenStage, Plan, Request
from inferometer.units import NS
from inferometer.workload import tensors

_UNKNOWN = 4_096
"""Requests per shard to make for a closed stage that ends by time, if it is not known how fast the server responds."""
_MARGIN = 1.5
"""If that is known from the probe: this many times as many as would be sent at that speed ..."""
_MOST_ESTIMATED, _MOST_ESTIMATED_BYTES = 100_000, 1 << 30
"""... but no more than these per shard. A run that sends more uses its requests again, and its report says so."""


def ids_to_prepare(config: Config, plan: Plan, shards: int, probe: Probe) -> tuple[tuple[range, ...], int]:
    """Return the ids of the requests to make for all shards. `plan` is that of all of them.

    The second result is the number of different requests, after which they repeat; 0: they do not.
    """
    ids = tuple(_ids(config, plan, probe, shards)) or (range(1),)
    period = workload.distinct(config.data)
    if period is not None and period <= sum(map(len, ids)):
        return (range(period),), period
    return ids, 0


def prepared_count(config: Config, plan: Plan, shards: int, probe: Probe) -> int:
    """Return how many different requests are made before t=0."""
    made = sum(map(len, _ids(config, plan, probe, shards)))
    return min(workload.distinct(config.data) or made, made)


def _ids(config: Config, plan: Plan, probe: Probe, shards: int = 1) -> Iterator[range]:
    """Yield the ids of each stage of a plan that is divided among shards."""
    pace = None
    for stage in plan.stages:
        count = len(stage.instants) if isinstance(stage, OpenStage) else stage.granted or stage.requests
        if isinstance(stage, ClosedStage) and not count:
            pace = pace or pace_of(config)
            count = _estimated(stage, probe, pace, shards)
        if count:
            yield range(stage.first_id, stage.first_id + count * stage.id_step, stage.id_step)


def _estimated(stage: ClosedStage, probe: Probe, pace: Pace, shards: int = 1) -> int:
    """Return how many requests, or sessions, to make for a stage that ends by time, since it is not known how many will be sent."""
    rate = expected_rate(stage, probe.e2e_ns, pace)
    unknown = _UNKNOWN * shards
    wanted = math.ceil(rate * stage.duration / NS * _MARGIN) if rate else unknown
    most = shards * min(_MOST_ESTIMATED, int(_MOST_ESTIMATED_BYTES / ((probe.request_bytes or 1) + pace.stored)))
    return max(min(wanted, most), min(stage.concurrency, unknown), 1)


# --- for one shard ---------------------------------------------------------------------------------------------------


def portions(config: Config, plan: Plan, shards: int, e2e: int, of: Part | None = None) -> Iterator[Portion]:
    """Yield what each shard will send, for the shared memory that its tensors are put into. `plan` is that of the part `of` the run."""
    first, parts = (of.number, of.of) if of is not None else (0, 1)
    for shard, part in enumerate(shard_plans(config, plan, shards)):
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
    own = islice(chain.from_iterable(_ids(config, part, Probe())), _distinct(config, shards))
    return in_sequences or list(own) or [0]


def _distinct(config: Config, shards: int) -> int | None:
    """Return how many different requests a shard needs; None if every id has its own.

    The number of distinct random tensors is limited by memory. The shards share it: together they make all of them.
    """
    distinct = workload.distinct(config.data)
    if distinct is not None and isinstance(config.data, Tensors) and tensors.is_random(config.data):
        return -(-distinct // shards)
    return distinct
