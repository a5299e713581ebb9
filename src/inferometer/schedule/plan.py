"""From what the file says about the load to a plan, and from a plan to the part of one of several processes.

    plan(load, seed)    every instant of every stage
    shard(plan, k, K)   part k of K: the union of all parts is exactly the whole

Ids run on from stage to stage, from 0: a request's id says where in the plan it stands, in whichever process it runs. A
closed stage that ends by time alone has as many requests as the server allows; UNBOUNDED ids are set aside for it.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.config.schema import Bursts, Closed, Gamma, Load, Poisson, Ramp, Stages, StageSpec, Steps, stages_of
from inferometer.errors import UserError
from inferometer.schedule import process, profile
from inferometer.types import ClosedStage, OpenStage, Plan, Stage
from inferometer.units import NS

UNBOUNDED = 1 << 32
LONGEST = 1e9
"""Seconds: far more would not fit into 64 bits of nanoseconds."""


def plan(load: Load, seed: int) -> Plan:
    """Every instant, before the first. A stage's chance depends on the seed and its place alone."""
    stages: list[Stage] = []
    first_id = 0
    for number, spec in enumerate(stages_of(load)):
        stage = (
            _closed(spec, first_id)
            if isinstance(spec, Closed)
            else _open(spec, first_id, np.random.default_rng([seed, number]))
        )
        stages.append(stage)
        first_id += _ids(stage)
    if isinstance(load, Stages) and load.drain:
        stages[1:] = [msgspec.structs.replace(stage, barrier=True) for stage in stages[1:]]
    return Plan(tuple(stages))


def _closed(spec: Closed, first_id: int) -> ClosedStage:
    return ClosedStage(
        concurrency=spec.concurrency,
        requests=spec.requests,
        duration=_ns(spec.duration),
        ramp_up=_ns(spec.ramp_up) // spec.concurrency * spec.concurrency,  # whole nanoseconds from user to user
        think=_ns(spec.think),
        first_id=first_id,
    )


def _open(spec: StageSpec, first_id: int, rng: np.random.Generator) -> OpenStage:
    assert not isinstance(spec, Closed)
    shape = profile.of(spec)
    last = profile.requests(shape, spec.duration) if spec.duration else float("inf")
    process.check(min(last, spec.requests or last))
    _check_length(spec.duration)
    seconds = profile.instants(shape, _points(spec, last, spec.requests or process.LIMIT, rng))
    _check_length(float(seconds[-1]) if len(seconds) else 0)
    duration = _ns(spec.duration)
    instants = np.rint(seconds * NS).astype(np.int64)
    if duration:
        instants = instants[: np.searchsorted(instants, duration)]
    if spec.requests:
        # It lasts as long as so many requests take at the rate, or until after the last if that is later.
        span = _ns(float(profile.instants(shape, np.array([float(spec.requests)]))[0]))
        span = max(span, int(instants[-1]) + 1 if len(instants) else 0)
        duration = min(duration, span) if duration else span
    return OpenStage(
        instants=instants,
        duration=duration,
        cap=spec.max_concurrency,
        drop=spec.when_full == "drop",
        first_id=first_id,
    )


def _check_length(seconds: float) -> None:
    if seconds > LONGEST:
        raise UserError("a stage of the load lasts longer than thirty years", "raise its rate, or lower its duration")


def _points(spec: StageSpec, last: float, most: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """The stage's arrivals, as a process of rate 1."""
    if isinstance(spec, Gamma):
        return process.scattered(process.gamma(spec.burstiness), last, most, rng)
    if isinstance(spec, Poisson) or (isinstance(spec, Ramp | Steps | Bursts) and spec.arrivals == "poisson"):
        return process.scattered(process.poisson, last, most, rng)
    return process.evenly(last, most)


def shard(whole: Plan, k: int, of: int, unit: int = 1) -> Plan:
    """Part k (from 0) of so many: every instant, user, id and place under the cap belongs to exactly one part.

    A closed stage's requests are shared out in units of so many, which are whole sequences; the first part has the rest.
    """
    if not 0 <= k < of <= max_shards(whole):
        raise ValueError(f"part {k} of {of}: this plan has at most {max_shards(whole)}")
    return Plan(tuple(_shard(stage, k, of, unit) for stage in whole.stages))


def _shard(stage: Stage, k: int, of: int, unit: int) -> Stage:
    first_id, id_step = stage.first_id + k * stage.id_step, stage.id_step * of
    if isinstance(stage, OpenStage):
        return msgspec.structs.replace(
            stage, instants=stage.instants[k::of], cap=_share(stage.cap, k, of), first_id=first_id, id_step=id_step
        )
    # User u of the whole starts at u stagger; part k has the users k, k + of, k + 2 of ...
    concurrency, stagger = _share(stage.concurrency, k, of), stage.ramp_up // stage.concurrency
    return msgspec.structs.replace(
        stage,
        concurrency=concurrency,
        requests=_share(stage.requests // unit, k, of) * unit + (0 if k else stage.requests % unit),
        ramp_up=stagger * of * concurrency,
        ramp_offset=stage.ramp_offset + k * stagger,
        first_id=first_id,
        id_step=id_step,
    )


def _share(n: int, k: int, of: int) -> int:
    """How many of 0..n-1 are k, k + of, k + 2 of ...: as even as can be."""
    return max(0, -(-(n - k) // of))


def max_shards(whole: Plan) -> int:
    """Into how many parts it can be cut: each needs a user of every closed stage and a place under every cap.

    A closed stage with fewer requests than users needs a request for each part too, as 0 would mean no end.
    """
    limits = [UNBOUNDED]
    for stage in whole.stages:
        limits += [stage.cap] if isinstance(stage, OpenStage) else [stage.concurrency, stage.requests]
    return min(limit for limit in limits if limit)


def total_requests(whole: Plan) -> int | None:
    """How many requests it has (at the most, where a stage may also end by time); None where only time ends a stage."""
    if any(isinstance(stage, ClosedStage) and not stage.requests for stage in whole.stages):
        return None
    return sum(_ids(stage) for stage in whole.stages)


def planned_duration(whole: Plan) -> int | None:
    """Nanoseconds from the start until no more is sent; None where that depends on the server.

    A closed stage that may also end by its requests counts with its time.
    """
    durations = [stage.duration for stage in whole.stages]
    return sum(durations) if all(durations) else None


def rate_at(spec: StageSpec, t: int) -> float | None:
    """Requests a second that an open stage asks for, t nanoseconds after its start; None in closed loop."""
    return None if isinstance(spec, Closed) else profile.rate(profile.of(spec), t / NS)


def _ids(stage: Stage) -> int:
    """How many ids are the stage's own."""
    return len(stage.instants) if isinstance(stage, OpenStage) else stage.requests or UNBOUNDED


def _ns(seconds: float) -> int:
    return round(seconds * NS)
