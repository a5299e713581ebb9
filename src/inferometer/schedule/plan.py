"""Turns a load into a plan, and a plan into the shards of several processes.

    plan(load, seed)    every instant of every stage
    shard(plan, k, K)   shard k of K: the union of all shards is exactly the whole plan
    part(plan, k, K)    the same for parts that are not in contact; a part is a plan, which has shards of its own

Ids continue from stage to stage, starting at 0: a request's id is its position in the plan, whichever process sends it. How
many requests a closed stage sends is up to the server if only its duration ends it; UNBOUNDED ids are reserved for it.

A closed stage that a number of requests ends is not divided completely: each shard owns the same part of the first ids, and the
parent deals out the others as the shards need them (`dealt_from`), because a fast shard would otherwise finish long before a slow
one. Which shard sends such a request depends on the server. Its id, and so its prompt, does not.
"""

import math
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.config.loads import (
    Bursts,
    Closed,
    Constant,
    Gamma,
    Load,
    Poisson,
    Ramp,
    Replay,
    Stages,
    StageSpec,
    Steps,
    stages_of,
)
from inferometer.errors import UserError
from inferometer.random_numbers import Counters, uniforms
from inferometer.schedule import curve, process, profile
from inferometer.schedule.process import Floats, Gaps, Uniforms
from inferometer.schedule.profile import Profile
from inferometer.types import ClosedStage, OpenStage, Plan, Stage, UserTurns
from inferometer.units import NS, parse_seconds

UNBOUNDED = 1 << 32
LONGEST = 1e9
"""Maximum duration of a stage in seconds: much more would not fit into 64 bits of nanoseconds."""
_UNKNOWN_RAMP_UP = NS
"""Maximum ramp-up if the duration of a request is not known."""
_RAMP_UP_SHARE = 4
"""`ramp_up: auto` takes at most this fraction of a stage's duration: one in four."""
_OWN_SHARE = 4
_OWN_PER_USER = 128
"""The shards own at most a quarter of a stage's requests, and at most this many per user, before the parent deals out more: they
last until the parent knows the pace of each shard, even if responses take only a millisecond."""


def plan(
    load: Load,
    seed: int,
    e2e_estimate_ns: int = 0,
    *,
    arrivals: NDArray[np.int64] | None = None,
    turns: float = 0.0,
) -> Plan:
    """Compute every instant before the first one is due. A stage's instants depend on its spec, the seed and its index.

    `e2e_estimate_ns` is how long a request takes, for `ramp_up: auto`; 0: not known. `arrivals` are the instants of a trace, for
    a load that replays it. `turns` is the mean number of turns per session, for `unit: requests`; 0: there are no sessions.
    """
    stages: list[Stage] = []
    first_id = 0
    for index, spec in enumerate(stages_of(load)):
        stage: Stage
        if isinstance(spec, Closed):
            stage = _closed(spec, first_id, e2e_estimate_ns, turns)
        elif isinstance(spec, Replay):
            stage = _replay(spec, first_id, arrivals)
        else:
            stage = _open(spec, first_id, partial(_uniforms, seed, index), turns)
        stages.append(stage)
        first_id += _ids(stage)
    if isinstance(load, Stages):
        pause = _ns(load.pause)
        stages[1:] = [msgspec.structs.replace(stage, barrier=load.drain, pause=pause) for stage in stages[1:]]
    return Plan(tuple(stages))


def check(load: Load) -> None:
    """Raise UserError, with its key, for a rate that a formula gives and that is negative or not a number somewhere."""
    for number, spec in enumerate(stages_of(load)):
        if isinstance(spec, Constant | Poisson | Gamma) and isinstance(spec.rate, str):
            section = f"load.stages.{number}" if isinstance(load, Stages) else "load"
            curve.curve(spec.rate, float(spec.duration), f"{section}.rate")


def _closed(spec: Closed, first_id: int, e2e: int, turns: float) -> ClosedStage:
    ramp_up = _auto_ramp_up(spec, e2e) if spec.ramp_up == "auto" else _ns(parse_seconds(spec.ramp_up))
    return ClosedStage(
        concurrency=spec.concurrency,
        requests=spec.requests,
        duration=_ns(spec.duration),
        ramp_up=ramp_up // spec.concurrency * spec.concurrency,  # whole nanoseconds from user to user
        ramp_is_limit=spec.ramp_up == "auto" and not e2e,
        think=_ns(spec.think),
        first_id=first_id,
        by_request=turns > 0 and spec.unit == "requests",
    )


def _auto_ramp_up(spec: Closed, e2e: int) -> int:
    """About the time that a user takes for one request, so that users who started together do not stay in step."""
    ramp_up = e2e + _ns(spec.think) if e2e else _UNKNOWN_RAMP_UP
    return min(ramp_up, _ns(spec.duration) // _RAMP_UP_SHARE) if spec.duration else ramp_up


# --- open stages -----------------------------------------------------------------------------------------------------


def _per_arrival(spec: StageSpec, turns: float) -> float:
    """What an arrival adds to the number that the rate counts: 1 or, if that is requests and arrivals are sessions, their turns."""
    return turns if turns and spec.unit == "requests" else 1.0


def _open(spec: StageSpec, first_id: int, random: Uniforms, turns: float) -> OpenStage:
    assert not isinstance(spec, Closed | Replay)
    users = spec.users if turns else 0
    per_arrival = 1.0 if users else _per_arrival(spec, turns)
    rates = profile.of(spec)
    expected = profile.requests(rates, spec.duration) / per_arrival if spec.duration else math.inf
    wanted = math.ceil(spec.requests / per_arrival)
    process.check_count(min(expected, wanted or expected))
    span = _span(spec, rates, wanted * per_arrival)
    gaps = _gaps(spec)
    if gaps is not None and spec.count == "expected":
        points = _expected_count(gaps, wanted, expected, random)
        instants = np.minimum(
            _instants(rates, points * per_arrival), max(span - 1, 0)
        )  # the last may round up to the end
    else:
        most = wanted or process.LIMIT
        points = process.evenly(expected, most) if gaps is None else process.free(gaps, expected, most, random)
        instants = _instants(rates, points * per_arrival)
        if spec.duration:
            instants = instants[: np.searchsorted(instants, _ns(spec.duration))]
        if wanted and len(instants):  # a random process may need longer for its requests than its rate says
            span = max(span, int(instants[-1]) + 1)
    return OpenStage(
        instants=instants[:users] if users else instants,
        duration=span,
        cap=spec.max_concurrency,
        drop=spec.when_full == "drop",
        first_id=first_id,
        turns=UserTurns(users, instants, first_id) if users else None,
    )


def _replay(spec: Replay, first_id: int, arrivals: NDArray[np.int64] | None) -> OpenStage:
    """The trace's own instants, up to the end that the stage sets. The stage lasts until the request after its last would be due:
    after the last of the trace, a mean gap later."""
    if arrivals is None or not len(arrivals):
        raise UserError(
            "the trace has no times", "use another load, such as {load.rate} or {load.concurrency}", "load.type"
        )
    process.check_count(len(arrivals))
    last = int(arrivals[-1])
    ends = [*arrivals.tolist()[spec.requests : spec.requests + 1]] if spec.requests else []
    ends += [last + max(round(last / max(len(arrivals) - 1, 1)), 1)]
    if spec.duration:
        ends.append(_ns(spec.duration))
    instants = arrivals[: spec.requests or None]
    instants = instants[: np.searchsorted(instants, _ns(spec.duration))] if spec.duration else instants
    _check_length(min(ends) / NS)
    return OpenStage(
        instants=instants,
        duration=max(min(ends), int(instants[-1]) + 1),
        cap=spec.max_concurrency,
        drop=spec.when_full == "drop",
        first_id=first_id,
    )


def _span(spec: StageSpec, rates: Profile, requests: float) -> int:
    """Nanoseconds that the stage lasts: its duration, or the time that its requests take at its rate if that is shorter."""
    ends = [float(spec.duration)] if spec.duration else []
    if requests:
        ends.append(float(profile.instants(rates, np.array([float(requests)]))[0]))
    _check_length(min(ends))
    return _ns(min(ends))


def _gaps(spec: StageSpec) -> Gaps | None:
    """The distribution of the gaps between the stage's arrivals; None for evenly spaced arrivals."""
    if isinstance(spec, Gamma):
        return process.gamma(spec.burstiness)
    if isinstance(spec, Poisson) or (isinstance(spec, Ramp | Steps | Bursts) and spec.arrivals == "poisson"):
        return process.exponential
    return None


def _expected_count(gaps: Gaps, requests: int, expected: float, random: Uniforms) -> Floats:
    """As many points as the rate yields over the stage, rounded; or `requests`, over the time that they take at the rate."""
    if 0 < requests <= expected:
        return process.fixed_count(gaps, requests, requests, random)
    # Halves are rounded up. Products such as 1.005 * 100, just below a half by a floating-point error, count as one.
    return process.fixed_count(gaps, math.floor(round(expected, 6) + 0.5), expected, random)


def _instants(rates: Profile, points: Floats) -> NDArray[np.int64]:
    """The points of a process of rate 1, moved to where the profile has its rate: nanoseconds after the stage's start."""
    seconds = profile.instants(rates, points)
    if len(seconds):
        _check_length(float(seconds[-1]))
    return np.rint(seconds * NS).astype(np.int64)


def _check_length(seconds: float) -> None:
    if seconds > LONGEST:
        raise UserError("a stage of the load lasts longer than thirty years", "raise its rate, or lower its duration")


def _uniforms(seed: int, stage: int, counters: Counters, purpose: str) -> Floats:
    return uniforms(seed, counters, f"stage {stage} {purpose}")


# --- shards ----------------------------------------------------------------------------------------------------------


def shard(whole: Plan, k: int, shards: int, sequence: int = 0) -> Plan:
    """Shard k of `shards`, counted from 0. Every instant, user, id and unit of the cap belongs to exactly one shard, except for
    the ids of closed stages from `dealt_from` on, which the parent deals out.

    If requests come in sequences, nothing is dealt out: `sequence` is their length, and the requests of a closed stage are divided
    so that no sequence is split; shard 0 also gets the remainder.
    """
    if not 0 <= k < shards <= max_shards(whole):
        raise ValueError(f"shard {k} of {shards}: this plan has at most {max_shards(whole)}")
    return Plan(tuple(_shard(stage, k, shards, sequence) for stage in whole.stages))


def part(whole: Plan, k: int, parts: int, sequence: int = 0) -> Plan:
    """Part k of `parts`, counted from 0, for a client that is not in contact with those of the other parts.

    It is divided like a shard, but nothing can be dealt out between parts: each has a fixed share of every closed stage.
    """
    return shard(whole, k, parts, sequence or 1) if parts > 1 else whole


def dealt_from(stage: Stage, shards: int, sequence: int = 0) -> int | None:
    """The first request of the stage, counted from 0, that the parent deals out during the stage; None: there is none.

    The requests before it belong to the shards from the start: at least one per user, and at most a quarter of all, so that even a
    shard that is several times as slow as the others does not own more than it can send before the others have finished.
    """
    if shards == 1 or sequence or isinstance(stage, OpenStage) or not stage.requests or stage.by_request:
        return None
    own = max(stage.concurrency, min(stage.requests // _OWN_SHARE, _OWN_PER_USER * stage.concurrency))
    return own if own < stage.requests else None


def _shard(stage: Stage, k: int, shards: int, sequence: int) -> Stage:
    first_id, id_step = stage.first_id + k * stage.id_step, stage.id_step * shards
    if isinstance(stage, OpenStage):
        return msgspec.structs.replace(
            stage,
            instants=stage.instants[k::shards],
            cap=_share(stage.cap, k, shards),
            first_id=first_id,
            id_step=id_step,
        )
    # User u of the whole plan starts at u * stagger; shard k has the users k, k + shards, k + 2 * shards ...
    concurrency, stagger = _share(stage.concurrency, k, shards), stage.ramp_up // stage.concurrency
    unit = sequence or 1
    return msgspec.structs.replace(
        stage,
        concurrency=concurrency,
        requests=_share(stage.requests // unit, k, shards) * unit + (0 if k else stage.requests % unit),
        granted=_share(dealt_from(stage, shards, sequence) or 0, k, shards),
        dealt_step=stage.id_step,
        ramp_up=stagger * shards * concurrency,
        ramp_offset=stage.ramp_offset + k * stagger,
        first_id=first_id,
        id_step=id_step,
    )


def _share(n: int, k: int, shards: int) -> int:
    """How many of the numbers 0..n-1 are k, k + shards, k + 2 * shards ...: shares differ by at most one."""
    return max(0, -(-(n - k) // shards))


def max_shards(whole: Plan) -> int:
    """The largest number of shards: each needs a user in every closed stage and at least 1 of every cap.

    Each also needs a request of every closed stage that has a number of requests, because 0 would mean no limit.
    """
    limits = [UNBOUNDED]
    for stage in whole.stages:
        limits += [stage.cap] if isinstance(stage, OpenStage) else [stage.concurrency, stage.requests]
    return min(limit for limit in limits if limit)


# --- what a plan adds up to ------------------------------------------------------------------------------------------


def total_requests(whole: Plan, turns: float = 0.0) -> int | None:
    """The number of requests, at most, as a stage may also end by time; None if a stage ends by time alone.

    With sessions of a mean number of `turns`, it is the number to expect."""
    if any(isinstance(stage, ClosedStage) and not stage.requests for stage in whole.stages):
        return None
    return sum(round(_ids(stage) * requests_per_arrival(stage, turns)) for stage in whole.stages)


def requests_per_arrival(stage: Stage, turns: float) -> float:
    """How many requests belong to each instant of an open stage, or to each of a closed stage's `requests`."""
    if isinstance(stage, OpenStage) and stage.turns is not None:
        return len(stage.turns.instants) / max(len(stage.instants), 1)
    return turns if turns and (isinstance(stage, OpenStage) or not stage.by_request) else 1.0


def planned_duration(whole: Plan) -> int | None:
    """Nanoseconds from the start until the last stage ends, with the pauses between stages; None if that depends on the server.

    A closed stage with both a duration and a number of requests counts with its duration.
    """
    durations = [stage.duration for stage in whole.stages]
    return sum(durations) + sum(stage.pause for stage in whole.stages) if all(durations) else None


def rate_at(spec: StageSpec, t: int, whole: Plan | None = None, parts: int = 1) -> float | None:
    """The planned rate (requests per second) of an open stage, t nanoseconds after its start; None for a closed stage.

    A trace has no rate but its arrivals in `whole`: those within a second around t. `parts`: the rate is that of one of this many
    parts, and `whole` is that part.
    """
    if isinstance(spec, Closed):
        return None
    if isinstance(spec, Replay):
        instants = (
            next((stage.instants for stage in whole.stages if isinstance(stage, OpenStage)), None) if whole else None
        )
        if instants is None:
            return 0.0
        first, last = np.searchsorted(instants, (t - NS // 2, t + NS // 2))
        return float(last - first)
    return profile.rate(profile.of(spec), t / NS) / parts


def _ids(stage: Stage) -> int:
    """How many ids the stage takes."""
    return len(stage.instants) if isinstance(stage, OpenStage) else stage.requests or UNBOUNDED


def _ns(seconds: float) -> int:
    return round(seconds * NS)
