"""The job of each shard: prepares the requests of all of them, and hands down what follows from the configuration."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from itertools import chain, cycle, islice

import msgspec

from inferometer import memory, processors, workload
from inferometer.apis import APIS
from inferometer.config import secret
from inferometer.config.data import Tensors, class_headers
from inferometer.config.loads import stages_of
from inferometer.config.schema import Config
from inferometer.engine.job import Job, Limits, SessionRules
from inferometer.prepare.choice import first_ids, ids_to_prepare
from inferometer.prepare.plans import max_in_flight, sequences_of, shard_plans
from inferometer.prepare.requests import Progress, Source, no_progress, prepare
from inferometer.prepare.setup import Setup
from inferometer.prepare.sizing import connections_to_open
from inferometer.probe import reach, tokenize
from inferometer.store.folder import disk_errors
from inferometer.store.request_file import RequestFiles, RequestWriter
from inferometer.tensors import Tensor
from inferometer.types import Plan
from inferometer.units import NS
from inferometer.wire.context import CallContext, Sequenced
from inferometer.workload import tensors, tokenizer
from inferometer.workload.encodings import server as server_tokenizer


class _Prepared(msgspec.Struct, frozen=True):
    """Requests, for one shard or for all."""

    files: RequestFiles
    context: CallContext
    ids: tuple[range, ...] = ()
    period: int = 0


@contextlib.contextmanager
def prepared_jobs(setup: Setup, plan: Plan, progress: Progress = no_progress) -> Iterator[list[Job]]:
    """Prepare the requests and yield the job of each shard; the files are there until the end of the block. `plan` is that of all shards
    together. `progress` is called while requests are prepared."""
    with contextlib.ExitStack() as held:
        yield _jobs(setup, plan, progress, held)


@memory.enough_for("data")
def _jobs(setup: Setup, plan: Plan, progress: Progress, held: contextlib.ExitStack) -> list[Job]:
    config = msgspec.structs.replace(setup.config, data=workload.salted(setup.config.data, setup.tag))
    setup = msgspec.structs.replace(setup, config=config)
    provide_tokenizer(config, setup.reached)
    plans = shard_plans(config, plan, setup.shards)
    sequences = [sequences_of(config, part, setup.number(shard), setup.all_shards) for shard, part in enumerate(plans)]
    if setup.shared or any(sequences):
        prepared = [_for_one(setup, part, shard, sequences[shard], progress, held) for shard, part in enumerate(plans)]
    else:  # each request for its id
        ids, period = ids_to_prepare(config, plan, setup.shards, setup.probe)
        context = _context(setup, ids)
        prepared = [_Prepared(_files(setup, context, ids, progress, held), context, ids, period)] * setup.shards
    return [_job(setup, part, shard, prepared[shard]) for shard, part in enumerate(plans)]


def _for_one(
    setup: Setup,
    plan: Plan,
    shard: int,
    sequences: list[Sequence[int]],
    progress: Progress,
    held: contextlib.ExitStack,
) -> _Prepared:
    """Prepare the requests of a shard that uses them in turn: those of sequences, or in shared memory."""
    shared = setup.shared[shard] if setup.shared else None
    ids = first_ids(setup.config, plan, sequences, setup.all_shards)
    if shared is not None:
        ids = in_rounds(ids, len(shared.outputs))
    context = msgspec.structs.replace(
        _context(setup, [ids]), shared=shared, sequenced=_sequenced(setup, shard, sequences)
    )
    return _Prepared(_files(setup, context, [ids], progress, held, setup.shards), context)


def in_rounds(ids: list[int], slots: int) -> list[int]:
    """Repeat the ids until they fill whole rounds of the slots, so that each slot is reused as rarely as possible."""
    return list(islice(cycle(ids), math.ceil(len(ids) / slots) * slots))


def _context(setup: Setup, ids: Sequence[Sequence[int]]) -> CallContext:
    """What encoders need to know about the requests with these ids."""
    config = setup.config
    expected: tuple[tuple[Tensor, ...], ...] = ()
    if isinstance(config.data, Tensors) and config.data.validate:  # responses are checked
        expected = tensors.expected_outputs(config.data, list(chain(*ids)))
    context = msgspec.structs.replace(
        reach.call_context(config.server, setup.reached, setup.tag),
        class_headers=class_headers(config.data),
        traceparent=config.export.otlp is not None and config.export.otlp.traceparent,
        expected=expected,
    )
    if config.client.reuse == 1 and not setup.reached.targets[0].grpc:
        context = msgspec.structs.replace(context, headers=context.headers | {"Connection": "close"})
    return context


def _files(
    setup: Setup,
    context: CallContext,
    ids: Sequence[Sequence[int]],
    progress: Progress,
    held: contextlib.ExitStack,
    copies: int = 1,
) -> RequestFiles:
    """Encode requests into files that are closed when `held` is."""
    config, folder = setup.config, setup.spool
    with disk_errors(folder):
        writer = held.enter_context(contextlib.closing(RequestWriter(folder)))
    asks_server = workload.uses_tokenizer(config.data, tokenizer.SERVER)  # only this process has a connection for that
    prepare(
        Source(config.data, config.seed, context, config.sessions),
        ids,
        writer,
        folder,
        builders=1 if asks_server else int(processors.usable()),
        size=setup.probe.request_bytes or 0,
        copies=copies,
        progress=progress,
    )
    with disk_errors(folder):
        return writer.finish()


def _job(setup: Setup, plan: Plan, shard: int, prepared: _Prepared) -> Job:
    config, reached = setup.config, setup.reached
    server, client, first = config.server, config.client, reached.targets[0]
    connections = connections_to_open(config, plan, setup.probe, setup.all_shards)
    shares = first.grpc and server.stream != "persistent"  # gRPC: requests share connections
    counter = workload.tokenizer_of(config.data)
    credentials = {target.authority: target.credentials for target in reached.targets if target.credentials}
    return Job(
        shard=shard,
        plan=plan,
        spool=setup.spool,
        start_ns=setup.start_ns,
        requests=prepared.files,
        context=prepared.context,
        ids=prepared.ids,
        period=prepared.period,
        sessions=_session_rules(config),
        counts_tokens=counter not in (None, tokenizer.SERVER),  # the server is not to be disturbed while others run
        tokenizer=counter,
        counts_chunks=APIS[server.api].response == "text",
        keeps_bodies="text" in config.kept,
        targets=reached.targets,
        addresses=reached.addresses,
        tls=reach.tls_settings(server) if any(target.tls for target in reached.targets) else None,
        connections=connections,
        warm=tuple(reach.warming_request(target, server, reached.secrets) for target in reached.targets)
        if client.warm
        else (),
        reuse=client.reuse,
        timeouts=Limits(**{name: float(limit) for name, limit in msgspec.structs.asdict(server.timeouts).items()}),
        deadline=float(server.deadline) if first.grpc else 0.0,
        grace=float(client.grace),
        patience=tuple(
            max(int(client.grace * NS), stage.duration) if spec.duration else 0
            for spec, stage in zip(stages_of(config.load), plan.stages, strict=True)
        ),
        retries=client.retries,
        retry_statuses=tuple(client.retry_statuses),
        retry_backoff=float(client.retry_backoff),
        open_files=max(connections, 0 if shares else max(map(max_in_flight, plan.stages))),
        kernel_stamps=client.stamps == "kernel",
        awake=client.awake,
        secrets=secret.words(server, reached.secrets | credentials, config.data),
    )


def _session_rules(config: Config) -> SessionRules | None:
    if not workload.has_sessions(config.data):
        return None
    rules = config.sessions
    classes = workload.session_classes(config.data)
    return SessionRules(rules.header, rules.token_header, rules.context, rules.on_failure == "end", classes)


def provide_tokenizer(config: Config, reached: reach.Reached) -> None:
    """Make the server's own tokenizer available to workloads in this process, if the data uses it."""
    if workload.uses_tokenizer(config.data, tokenizer.SERVER):
        server_tokenizer.provide(tokenize.connect(config.server, reached))


def _sequenced(setup: Setup, shard: int, sequences: list[Sequence[int]]) -> Sequenced:
    """Return the lengths of the sequences, and correlation ids that no other shard and, by the tag, no other run uses."""
    if not sequences:
        return Sequenced()
    first_id = ((int(setup.tag, 16) & 0xFFFFF) << 40) + (setup.number(shard) << 24) + 1
    return Sequenced(tuple(map(len, sequences)), first_id)
