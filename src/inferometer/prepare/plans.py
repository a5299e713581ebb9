"""The plan of a run, of its parts, and of its shards."""

from collections.abc import Sequence

from inferometer import schedule, workload
from inferometer.config.data import Tensors
from inferometer.config.loads import Replay
from inferometer.config.schema import Config
from inferometer.errors import UserError
from inferometer.prepare.setup import Part
from inferometer.types import ClosedStage, OpenStage, Plan
from inferometer.workload import tensors

_SEQUENCES_PER_USER = 4


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


def shard_plans(config: Config, plan: Plan, shards: int) -> list[Plan]:
    """Return each shard's part of the plan. Together they are all of it."""
    return [schedule.shard(plan, shard, shards, division_unit(config)) for shard in range(shards)]


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


def max_in_flight(stage: OpenStage | ClosedStage) -> int:
    return stage.concurrency if isinstance(stage, ClosedStage) else stage.cap
