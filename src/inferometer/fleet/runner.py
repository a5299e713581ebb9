"""Runs one shard of a job: makes its own part of the run from (spec, seed, k of K), since shards share nothing."""

import asyncio
import math
from collections.abc import Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import msgspec

from inferometer import memory, open_files, schedule, workload
from inferometer.config import secret
from inferometer.config.data import Tensors
from inferometer.config.schema import Config
from inferometer.engine.shard import Shard, Task
from inferometer.errors import ANOTHER_FOLDER, UserError
from inferometer.fleet.job import (
    Job,
    ShardReport,
    first_requests,
    max_in_flight,
    requests_by_id,
    sequences_of,
    shard_plan,
)
from inferometer.fleet.sizing import connections_to_open
from inferometer.probe import reach
from inferometer.records import COUNTED_BY
from inferometer.tensors import Tensor
from inferometer.timing import loop as event_loop
from inferometer.types import Request, Session
from inferometer.wire import calls
from inferometer.wire.context import CallContext, Sequenced
from inferometer.workload import tensors, tokenizer
from inferometer.workload.session import converse


def run_shard(job: Job, shard: int, spool: Path) -> ShardReport:
    """Make this shard's part of the run, run it, and leave its records in `spool`, where its control file must be."""
    return event_loop.run(_run(job, shard, spool))


async def _run(job: Job, number: int, spool: Path) -> ShardReport:
    loop = asyncio.get_running_loop()
    config = job.config
    task = make_task(job, number, spool)
    try:
        shard = Shard(task, loop)
    except OSError as error:
        raise UserError(f"{spool}: {error.strerror or error}", f"make room there, or {ANOTHER_FOLDER}") from None
    try:
        try:
            await shard.run()
        finally:
            shard.close()
        if texts := shard.recorder.texts:
            counter = tokenizer.load(workload.tokenizer_of(config.data))
            counts = counter.count_batch([text for _, text in texts])
            shard.recorder.save_counts(counts, COUNTED_BY.index("tokenizer"))
    finally:
        shard.close_spool()
    return ShardReport(
        "kernel" if shard.has_kernel_stamps else "user",
        shard.deadlines.timer_kind,
        type(loop).__module__.partition(".")[0],
        shard.awake.kind,
        tuple(shard.state.given_up),
    )


@memory.enough_for("data")
def make_task(job: Job, shard: int, spool: Path) -> Task:
    config, reached = job.config, job.reached
    config = msgspec.structs.replace(config, data=workload.salted(config.data, job.tag))
    whole = schedule.plan(config.load, config.seed, job.probe.e2e_ns)
    plan = shard_plan(job, whole, shard)
    sequences = sequences_of(config, plan, shard, job.shards)
    sequenced = _sequenced(job, shard, sequences)
    shared = job.shared[shard] if job.shared else None
    period, by_id = 0, not sequences and shared is None
    if by_id:
        requests, period = requests_by_id(config, whole, plan, job.shards)
    else:
        requests = first_requests(config, plan, sequences, job.shards)
    if shared is not None:
        requests = _in_rounds(requests, len(shared.outputs))
    context = msgspec.structs.replace(
        reach.call_context(config.server, reached, job.tag),
        sequenced=sequenced,
        shared=shared,
        expected=_expected_outputs(config, requests),
    )
    connections = connections_to_open(config, plan, job.probe, job.shards)
    shares = reached.targets[0].grpc and config.server.stream != "persistent"  # gRPC: requests share connections
    own = 0 if shares else max(map(max_in_flight, plan.stages))
    open_files.raise_file_limit(max(connections, own))
    encoded = calls.encode(context, requests)
    if workload.tokenizer_of(config.data) is None:  # another vocabulary would give other counts
        encoded = msgspec.structs.replace(encoded, n_in=(-1,) * len(encoded.n_in), counts_tokens=False)
    if by_id:
        encoded = msgspec.structs.replace(encoded, ids=tuple(request.id for request in requests), period=period)
    if workload.has_sessions(config.data):
        encode = partial(_encode_turn, context)
        encoded = msgspec.structs.replace(encoded, session=partial(_session, requests), encode=encode)
    return Task(
        shard=shard,
        plan=plan,
        calls=encoded,
        targets=reached.targets,
        addresses=reached.addresses,
        context=reach.tls_context(config.server) if any(target.tls for target in reached.targets) else None,
        timeouts=config.server.timeouts,
        deadline=float(config.server.deadline) if reached.targets[0].grpc else 0.0,
        connections=connections,
        warm=tuple(reach.warming_request(target, config.server, reached.secrets) for target in reached.targets)
        if config.client.warm
        else (),
        grace=config.client.grace,
        kernel_stamps=config.client.stamps == "kernel",
        awake=config.client.awake,
        spool=spool,
        secrets=secret.words(config.server, reached.secrets | _credentials(reached)),
    )


def _expected_outputs(config: Config, requests: list[Request]) -> tuple[tuple[Tensor, ...], ...]:
    """The outputs that the responses must have, if they are checked."""
    if not isinstance(config.data, Tensors) or not config.data.validate:
        return ()
    return tensors.expected_outputs(config.data, [request.id for request in requests])


def _session(requests: list[Request], index: int) -> Session:
    return converse(requests[index])


def _encode_turn(context: CallContext, request: Request) -> bytes:
    """Encode one request while the run is in progress."""
    return calls.encode(context, [request]).tails[0]


def _in_rounds(requests: list[Request], slots: int) -> list[Request]:
    """Repeat the requests until they fill whole rounds of the slots, so that each slot is reused as rarely as possible."""
    return list(islice(cycle(requests), math.ceil(len(requests) / slots) * slots))


def _sequenced(job: Job, shard: int, sequences: list[Sequence[int]]) -> Sequenced:
    """Return the lengths of the sequences, and correlation ids that no other shard and, by the tag, no other run uses."""
    if not sequences:
        return Sequenced()
    return Sequenced(tuple(map(len, sequences)), ((int(job.tag, 16) & 0xFFFFF) << 40) + (shard << 24) + 1)


def _credentials(reached: reach.Reached) -> dict[str, str]:
    return {target.authority: target.credentials for target in reached.targets if target.credentials}
