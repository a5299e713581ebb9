"""Runs one shard of a run: maps its requests, which were prepared before, and leaves its records in the spool."""

import asyncio
import pickle
import time

import msgspec

from inferometer import memory, open_files
from inferometer.apis import APIS
from inferometer.engine.job import Job, SessionRules
from inferometer.engine.poller import run_loop
from inferometer.engine.shard import Shard
from inferometer.fleet.control import ShardReport
from inferometer.records import COUNTED_BY
from inferometer.store import known_turns
from inferometer.store.folder import disk_errors
from inferometer.store.request_file import KNOWN, MappedBytes
from inferometer.store.spool import Control
from inferometer.types import Calls, Session
from inferometer.units import NS
from inferometer.wire import calls
from inferometer.wire.context import CallContext
from inferometer.wire.history import history

_OPEN_BEFORE_S, _PER_CONNECTION_S = 2.0, 0.001
"""Connections are opened this long before a start that is set: some servers close connections that were idle for five seconds."""


def run_shard(job: Job) -> ShardReport:
    """Run this shard, and leave its records in `job.spool`, where its control file must be."""
    with asyncio.Runner(loop_factory=run_loop) as runner:
        return runner.run(_run(job))


async def _run(job: Job) -> ShardReport:
    loop = asyncio.get_running_loop()
    control = Control(job.spool / f"{job.shard}.control", create=False)
    if not await _await_opening(job, control):
        return ShardReport("", "", "", "")
    open_files.raise_file_limit(job.open_files)
    with disk_errors(job.spool), memory.enough_for("the run"):
        shard = Shard(job, requests_of(job), loop)
    try:
        try:
            await shard.run()
        finally:
            shard.close()
        if texts := shard.recorder.texts:
            from inferometer.workload import tokenizer  # noqa: PLC0415 - few servers do not report their tokens

            counts = tokenizer.load(job.tokenizer).count_batch([text for _, text in texts])
            shard.recorder.save_counts(counts, COUNTED_BY.index("tokenizer"))
        if job.counts_chunks:
            shard.recorder.count_chunks()
    finally:
        shard.close_spool()
    return ShardReport(
        "kernel" if shard.clock.kernel_stamps else "user",
        shard.deadlines.timer_kind,
        type(loop).__module__.partition(".")[0],
        shard.awake.kind,
        tuple(shard.state.given_up),
        shard.notes,
    )


async def _await_opening(job: Job, control: Control) -> bool:
    """Wait until it is time to open connections, if the start is set: servers close those that are idle. Returns whether to go on."""
    lead = _OPEN_BEFORE_S + job.connections * _PER_CONNECTION_S
    while not control["stop"]:
        left = (job.start_ns - time.time_ns()) / NS - lead
        if left <= 0:
            return True
        await asyncio.sleep(min(left, 0.1))
    return False


def requests_of(job: Job) -> Calls:
    """Return the requests of the run, from the files that were prepared."""
    requests, codec = job.requests.mapped(), calls.encode(job.context, ())
    found = msgspec.structs.replace(
        codec,
        tails=requests.tails,
        n_in=requests.n_in,
        n_out=requests.n_out,
        classes=requests.classes,
        counts_tokens=codec.counts_tokens and job.counts_tokens,
        ids=job.ids,
        period=job.period,
    )
    if job.sessions is None:
        return found
    return _with_sessions(found, requests.sessions, job.requests.has_live_sessions, job.sessions, job.context)


def _with_sessions(
    encoded: Calls, entries: MappedBytes, are_live: bool, rules: SessionRules, context: CallContext
) -> Calls:
    """The same requests, as the first turns of sessions, whose later turns are in the `entries`. `are_live`: some of them depend on the
    responses."""
    live = known_turns.run
    if are_live:  # only such a shard imports the workload
        from inferometer.workload.session import converse  # noqa: PLC0415

        form = APIS[context.api].history_form

        def live(entry: memoryview) -> Session:
            return converse(pickle.loads(entry), history(form), rules.context)

    def start(index: int) -> Session:
        entries.prefault(index)
        entry = entries.view[entries.offsets[index] : entries.offsets[index + 1]]
        if not entry:
            return known_turns.single()
        return (known_turns.run if entry[:1] == KNOWN else live)(entry[1:])

    return msgspec.structs.replace(
        encoded,
        session=start,
        session_classes=rules.classes,
        encode=calls.turn_encoder(context),
        session_header=f"\r\n{rules.header}: {context.tag}-".encode() if rules.header else b"",
        token_header=rules.token_header,
        is_failure_final=rules.is_failure_final,
    )
