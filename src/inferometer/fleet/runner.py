"""Runs one shard of a job: makes its own part of the run from (spec, seed, k of K), since shards share nothing."""

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from itertools import chain, cycle, islice

import msgspec

from inferometer import memory, open_files, processors, workload
from inferometer.apis import APIS
from inferometer.config import secret
from inferometer.config.data import Tensors, class_headers
from inferometer.config.schema import Config
from inferometer.engine.shard import Shard, Task
from inferometer.errors import ANOTHER_FOLDER, UserError
from inferometer.fleet.job import (
    Job,
    ShardReport,
    first_ids,
    ids_to_prepare,
    max_in_flight,
    part_plan,
    sequences_of,
    shard_plan,
    whole_plan,
)
from inferometer.fleet.preparing import Progress, Source, Stopped, no_progress, prepare
from inferometer.fleet.sizing import connections_to_open
from inferometer.probe import reach, tokenize
from inferometer.records import COUNTED_BY
from inferometer.store.spool import Control
from inferometer.tensors import Tensor
from inferometer.timing import loop as event_loop
from inferometer.types import Calls, Plan
from inferometer.units import NS
from inferometer.wire.context import Sequenced
from inferometer.workload import tensors, tokenizer
from inferometer.workload.encodings import server as server_tokenizer

_OPEN_BEFORE_S, _PER_CONNECTION_S = 2.0, 0.001
"""Connections are opened this long before a start that is set: some servers close connections that were idle for five seconds."""


def run_shard(job: Job, shard: int) -> ShardReport:
    """Make this shard's part of the run, run it, and leave its records in `job.spool`, where its control file must be."""
    return event_loop.run(_run(job, shard))


async def _run(job: Job, number: int) -> ShardReport:
    loop = asyncio.get_running_loop()
    config = job.config
    control = Control(job.spool / f"{number}.control", create=False)

    def progress(done: int, total: int) -> None:
        control["prepared"], control["to_prepare"] = done, total
        if control["stop"]:
            raise Stopped

    try:
        task = make_task(job, number, progress)
    except Stopped:
        return ShardReport("", "", "", "")
    if not await _await_opening(job, control, task.connections):
        return ShardReport("", "", "", "")
    try:
        shard = Shard(task, loop)
    except OSError as error:
        raise UserError(f"{job.spool}: {error.strerror or error}", f"make room there, or {ANOTHER_FOLDER}") from None
    try:
        try:
            await shard.run()
        finally:
            shard.close()
        if texts := shard.recorder.texts:
            counter = tokenizer.load(workload.tokenizer_of(config.data))
            counts = counter.count_batch([text for _, text in texts])
            shard.recorder.save_counts(counts, COUNTED_BY.index("tokenizer"))
        if APIS[config.server.api].response == "text":
            shard.recorder.count_chunks()
    finally:
        shard.close_spool()
    return ShardReport(
        "kernel" if shard.has_kernel_stamps else "user",
        shard.deadlines.timer_kind,
        type(loop).__module__.partition(".")[0],
        shard.awake.kind,
        tuple(shard.state.given_up),
        shard.notes,
    )


async def _await_opening(job: Job, control: Control, connections: int) -> bool:
    """Wait until it is time to open connections, if the start is set: servers close those that are idle. Returns whether to go on."""
    lead = _OPEN_BEFORE_S + connections * _PER_CONNECTION_S
    while not control["stop"]:
        left = (job.start_ns - time.time_ns()) / NS - lead
        if left <= 0:
            return True
        await asyncio.sleep(min(left, 0.1))
    return False


@memory.enough_for("data")
def make_task(job: Job, shard: int, progress: Progress = no_progress) -> Task:
    """Make the shard's part of the run. `progress` is called while requests are prepared."""
    config, reached = job.config, job.reached
    config = msgspec.structs.replace(config, data=workload.salted(config.data, job.tag))
    provide_tokenizer(config, reached)
    whole = part_plan(config, whole_plan(config, job.probe.e2e_ns, job.turns), job.part)
    plan = shard_plan(job, whole, shard)
    connections = connections_to_open(config, plan, job.probe, job.all_shards)
    shares = reached.targets[0].grpc and config.server.stream != "persistent"  # gRPC: requests share connections
    own = 0 if shares else max(map(max_in_flight, plan.stages))
    open_files.raise_file_limit(max(connections, own))
    return Task(
        shard=shard,
        plan=plan,
        calls=_calls(job, config, whole, plan, shard, progress),
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
        reuse=config.client.reuse,
        retries=config.client.retries,
        retry_backoff=float(config.client.retry_backoff),
        kernel_stamps=config.client.stamps == "kernel",
        awake=config.client.awake,
        spool=job.spool,
        keeps_bodies="text" in config.kept,
        secrets=secret.words(config.server, reached.secrets | _credentials(reached), config.data),
    )


def provide_tokenizer(config: Config, reached: reach.Reached) -> None:
    """Make the server's own tokenizer available to workloads in this process, if the data uses it."""
    if workload.uses_tokenizer(config.data, tokenizer.SERVER):
        server_tokenizer.provide(tokenize.connect(config.server, reached))


def _expected_outputs(config: Config, ids: Iterable[int]) -> tuple[tuple[Tensor, ...], ...]:
    """The outputs that the responses must have, if they are checked."""
    if not isinstance(config.data, Tensors) or not config.data.validate:
        return ()
    return tensors.expected_outputs(config.data, list(ids))


def _calls(job: Job, config: Config, whole: Plan, plan: Plan, shard: int, progress: Progress) -> Calls:
    """Prepare the shard's requests: each for its id, unless sequences or shared memory need them in turn."""
    sequences = sequences_of(config, plan, job.number(shard), job.all_shards)
    shared = job.shared[shard] if job.shared else None
    context = msgspec.structs.replace(
        reach.call_context(config.server, job.reached, job.tag),
        sequenced=_sequenced(job, shard, sequences),
        shared=shared,
        class_headers=class_headers(config.data),
        traceparent=config.export.otlp is not None and config.export.otlp.traceparent,
    )
    if config.client.reuse == 1 and not job.reached.targets[0].grpc:
        context = msgspec.structs.replace(context, headers=context.headers | {"Connection": "close"})
    ranges: tuple[range, ...] = ()
    period = 0
    if sequences or shared is not None:
        first = first_ids(config, plan, sequences, job.all_shards)
        ids: Sequence[Sequence[int]] = [first if shared is None else _in_rounds(first, len(shared.outputs))]
    else:
        ranges, period = ids_to_prepare(config, whole, plan, job.shards, job.probe)
        ids = ranges
    context = msgspec.structs.replace(context, expected=_expected_outputs(config, chain(*ids)))
    asks_server = workload.uses_tokenizer(config.data, tokenizer.SERVER)  # only this process has a connection for that
    prepared = prepare(
        Source(config.data, config.seed, context, config.sessions),
        ids,
        job.spool,
        shards=job.shards,
        builders=1 if asks_server else _builders(job),
        size=job.probe.request_bytes or 0,
        progress=progress,
    )
    return msgspec.structs.replace(prepared, ids=ranges, period=period)


def _builders(job: Job) -> int:
    """Return how many processes may build this shard's requests: the cores that it has to itself."""
    if job.config.fleet.type != "local":
        return int(job.config.fleet.cpus)
    return int(processors.usable()) // job.shards if job.config.client.processes else 1


def _in_rounds(ids: list[int], slots: int) -> list[int]:
    """Repeat the ids until they fill whole rounds of the slots, so that each slot is reused as rarely as possible."""
    return list(islice(cycle(ids), math.ceil(len(ids) / slots) * slots))


def _sequenced(job: Job, shard: int, sequences: list[Sequence[int]]) -> Sequenced:
    """Return the lengths of the sequences, and correlation ids that no other shard and, by the tag, no other run uses."""
    if not sequences:
        return Sequenced()
    return Sequenced(tuple(map(len, sequences)), ((int(job.tag, 16) & 0xFFFFF) << 40) + (job.number(shard) << 24) + 1)


def _credentials(reached: reach.Reached) -> dict[str, str]:
    return {target.authority: target.credentials for target in reached.targets if target.credentials}
