"""The only place where the folders meet: from a config to a run's folder and its report.

    reach the server -> plan -> shards (live view meanwhile) -> spool -> folder -> read it back -> summary -> report

The report of a live run is made from the folder that was just written, by the function that `inferometer report` calls.
"""

import contextlib
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Protocol

import msgspec

from inferometer import __version__, manifest, schedule, store, workload
from inferometer.analysis import window
from inferometer.analysis.summary import Summary, summarise
from inferometer.apis import APIS
from inferometer.config.check import check_streams
from inferometer.config.schema import Config, Measure, Tensors
from inferometer.config.secret import hidden, hide, words
from inferometer.errors import UserError
from inferometer.fleet.control import StartShard
from inferometer.fleet.job import Job, longest_sequence, portions, prepared_count, process_count, shard_plan
from inferometer.fleet.local import LocalProcess, LocalThread
from inferometer.fleet.lost import add_lost_rows
from inferometer.fleet.supervisor import Supervisor, check_files
from inferometer.observe.observer import Observer, Observers
from inferometer.observe.settling import Settling
from inferometer.observe.statistics import StatisticsWatch
from inferometer.probe import reach, shared_memory
from inferometer.probe.connect import Peer
from inferometer.probe.shared_memory import Served
from inferometer.records import Manifest, Outcome, Records, Run, Snapshot, StagePlan
from inferometer.report import json as report_json
from inferometer.report.live import Outline
from inferometer.series import SeriesRow, TimeSeries, group
from inferometer.store import draft as drafts
from inferometer.store import series as series_file
from inferometer.store import spool
from inferometer.store.draft import Draft
from inferometer.store.folder import SERIES, disk_errors
from inferometer.timing.clock import wall_offset
from inferometer.types import Plan
from inferometer.wire.context import SharedRefs
from inferometer.workload import tensors

SPOOL = "spool"
_DRAFT = "draft.json"
_STATISTICS_TIMEOUT = 2.0
"""Seconds to connect for a server's statistics, and to wait for each piece of them."""

_TOGETHER = 0.1
"""Seconds in which signals count as one: `timeout` sends its signal to the command and to the command's group."""


class Show(Protocol):
    """Who is told how a run goes (report/live.py)."""

    def planned(self, outline: Outline) -> None: ...

    def progress(self, snapshot: Snapshot) -> None: ...

    def over(self) -> None: ...


def measure(config: Config, show: Show | None = None, start: StartShard | None = None) -> tuple[Run, Summary]:
    """Run it, and say nothing unless there is a `show`. Raises UnsavedError where the records cannot be stored.

    `start` is the transport that starts the shards; by default they are processes or threads on this machine.
    """
    reached = reach.reach(config.server)
    config = _completed(config, reached)
    plan = schedule.plan(config.load, config.seed)
    shards = process_count(config, plan)
    start = start or _transport(config, shards)
    with contextlib.ExitStack() as held:
        with hidden(words(config.server, reached.secrets)):
            shared = held.enter_context(_shared(config, reached, plan, shards))
        folder = store.new_folder(config.output)
        barriers = tuple(number for number, stage in enumerate(plan.stages) if stage.barrier)
        job = Job(config, reached, shards, folder / SPOOL, secrets.token_hex(4), shared, barriers)
        return _measure(job, plan, folder, show, start, held)


def _transport(config: Config, shards: int) -> StartShard:
    if config.client.processes == 0:
        return LocalThread
    check_files(shards)
    return LocalProcess


def _measure(
    job: Job, plan: Plan, folder: Path, show: Show | None, start: StartShard, held: contextlib.ExitStack
) -> tuple[Run, Summary]:
    config, reached, shards = job.config, job.reached, job.shards
    try:
        draft = _draft(config, reached, plan, shards)
        with disk_errors(folder):
            job.spool.mkdir()
            draft_file = held.enter_context(drafts.begin(job.spool / _DRAFT, draft))
        if show:
            show.planned(_outline(job, plan))
        observers = {name: made for name, make in OBSERVERS.items() if (made := make(config, reached))}
        watching = held.enter_context(Observers(observers))
        watching.start()
        crew = Supervisor(job, start)
        settling = _settling(job, draft.manifest.plan)
        with _ctrl_c(crew.stop):
            for snapshot in crew.watch(0.05 if settling else 0.25 if show or observers else 1.0):
                if settling and (stable := settling.look()) is not None:
                    crew.end_stage(stable)
                watching.mark(snapshot.stage)
                if show:
                    show.progress(snapshot)
            observed = watching.end()
    except BaseException:
        _forget_if_empty(folder, shards)
        raise
    finally:
        if show:
            show.over()
    if not crew.t0:
        _forget_if_empty(folder, shards)
        raise UserError("; ".join(crew.errors) or "ended before it started", "nothing was sent")
    for lost in crew.lost:
        add_lost_rows(job.spool, lost, shard_plan(job, plan, lost))
    finished = _finished(draft.manifest, crew)
    finished = _with_observations(finished, observers, watching.errors, words(config.server, reached.secrets))
    _spool_series(job.spool, observed, crew.t0)
    drafts.end(draft_file, Draft(finished, shards))
    return _save(folder, _from_spool(folder, finished, shards))


def _outline(job: Job, plan: Plan) -> Outline:
    return Outline(
        urls=tuple(target.url for target in job.reached.targets),
        model=job.reached.model,
        load=job.config.load,
        total=schedule.total_requests(plan),
        duration=schedule.planned_duration(plan),
        stage_durations=tuple(stage.duration for stage in plan.stages),
        rate_at=schedule.rate_at,
        processes=job.shards,
        spool=job.spool,
    )


def _completed(config: Config, reached: reach.Reached) -> Config:
    """The config with what the server said about its model."""
    if not isinstance(config.data, Tensors):
        return config
    assert reached.facts is not None
    config = _sequenced(config, reached)
    assert isinstance(config.data, Tensors)
    in_grpc_message = reached.targets[0].grpc and not config.server.shared_memory
    facts = reached.facts
    as_json = APIS[config.server.api].has_json_tensors
    data = tensors.complete(config.data, facts.metadata.inputs, facts.max_batch, in_grpc_message, as_json)
    completed = msgspec.structs.replace(config, data=data)
    check_streams(completed, longest_sequence(completed))
    return completed


def _sequenced(config: Config, reached: reach.Reached) -> Config:
    """Where the model keeps sequences and data.sequence does not say how long they are, the file's streams do."""
    assert isinstance(config.data, Tensors) and reached.facts is not None
    known = reached.facts.config
    if known is None or not known.sequence_batching or config.data.sequence:
        return config
    if not tensors.has_streams(config.data):
        raise UserError(
            f"{reached.targets[0].url}: the model {reached.model} keeps sequences: it needs a correlation id",
            "set it to the number of requests per sequence",
            key="data.sequence",
        )
    data = msgspec.structs.replace(config.data, sequence="streams")
    return msgspec.structs.replace(config, data=data)


def _settling(job: Job, plans: tuple[StagePlan, ...]) -> Settling | None:
    """Who ends stages that are stable."""
    return Settling(job.spool, job.shards, plans) if any(plan.stable for plan in plans) else None


def _kserve_statistics(config: Config, reached: reach.Reached) -> Observer | None:
    """Reads the statistics of a KServe server."""
    if reached.facts is None:
        return None
    peers, headers = _asked(config, reached)
    limits = {"connect_timeout": _STATISTICS_TIMEOUT, "timeout": _STATISTICS_TIMEOUT}
    peers = [msgspec.structs.replace(peer, **limits) for peer in peers]
    return StatisticsWatch(peers, headers, reached.model, config.server.version or "")


OBSERVERS: dict[str, Callable[[Config, reach.Reached], Observer | None]] = {"kserve": _kserve_statistics}
"""What makes an observer for a run, or None when there is nothing to observe. A new observer is one row."""


def _with_observations(
    head: Manifest, observers: dict[str, Observer], errors: dict[str, str], secrets: tuple[str, ...]
) -> Manifest:
    """Add the statistics of each stage to the manifest, and why observers failed."""
    head = msgspec.structs.replace(head, observer_errors={name: hide(why, secrets) for name, why in errors.items()})
    watch = observers.get("kserve")
    if not isinstance(watch, StatisticsWatch):
        return head
    statistics, reasons = watch.by_stage(None if head.outcome.interrupted else len(head.plan))
    hidden_reasons = tuple(hide(why, secrets) for why in reasons)
    return msgspec.structs.replace(head, statistics=statistics, no_statistics=hidden_reasons)


def _spool_series(folder: Path, rows: tuple[SeriesRow, ...], t0: int) -> None:
    """Keep what observers recorded with the records, for the case that the run cannot be stored now."""
    with contextlib.suppress(OSError):  # the disk is full: the records matter more
        series_file.write(folder / SERIES, group(row._replace(at=row.at - t0) for row in rows))


def _series(folder: Path, records: Records) -> tuple[TimeSeries, ...]:
    """The client's health, which the shards recorded, and what observers recorded."""
    with contextlib.suppress(UserError):  # the run, or the writing, did not end
        return (*series_file.client_health(records.samples), *series_file.read(folder / SERIES))
    return series_file.client_health(records.samples)


def _shared(
    config: Config, reached: reach.Reached, plan: Plan, shards: int
) -> contextlib.AbstractContextManager[tuple[SharedRefs, ...]]:
    """Shared memory with what each shard will send, where the config wants it."""
    if not config.server.shared_memory:
        return contextlib.nullcontext(())
    assert reached.facts is not None
    served = Served(*_asked(config, reached), config.server, reached.model, reached.facts)
    return shared_memory.shared(served, portions(config, plan, shards))


def _asked(config: Config, reached: reach.Reached) -> tuple[list[Peer], dict[str, str]]:
    """Where a KServe server is asked about itself, and the headers of that."""
    context = reach.tls_context(config.server) if reached.targets[0].tls else None
    places = [reach.peer_of(target, config.server, context) for target in reached.targets]
    return places, reach.request_headers(reached.targets[0], config.server, reached.secrets)


def open_run(folder: str) -> tuple[Run, Summary]:
    """A stored run; one that never ended is put together from what it had recorded, and stored."""
    place = Path(folder).resolve()
    draft_file = place / SPOOL / _DRAFT
    if not draft_file.exists() or (place / "manifest.json").exists():
        run = store.read(folder)
        return run, summarise(run)
    draft = drafts.read(draft_file)
    unfinished = draft.manifest
    if not unfinished.started:
        errors = (*unfinished.outcome.errors, "the run did not end")
        unfinished = msgspec.structs.replace(unfinished, outcome=Outcome(True, errors))
    try:
        spool.await_end(place / SPOOL, draft.shards)
        run = _from_spool(place, unfinished, draft.shards)
    except (OSError, ValueError) as error:
        raise UserError(f"{place / SPOOL}: cannot be read: {error}", "nothing was recorded there: run again") from None
    return _save(place, run)


class UnsavedError(UserError):
    """The records could not be written to the folder; `run` and `summary` are made from what the shards left."""

    def __init__(self, cause: UserError, run: Run, summary: Summary) -> None:
        super().__init__(
            f"{cause.line}: the run is measured but not stored",
            f"make room, then `inferometer report {run.folder}` stores it from {SPOOL}/",
        )
        self.run = run
        self.summary = summary


def _save(folder: Path, run: Run) -> tuple[Run, Summary]:
    try:
        store.write(folder, run.manifest, run.records, run.chunks(), run.series())
        stored = store.written(folder, run.records)
        summary = summarise(stored)
        store.write_summary(folder, report_json.encode(summary))
    except UserError as error:
        raise UnsavedError(error, run, summarise(run)) from None
    shutil.rmtree(folder / SPOOL, ignore_errors=True)
    store.point_latest(folder)
    return stored, summary


def _from_spool(folder: Path, head: Manifest, shards: int) -> Run:
    records, _ = spool.merge(folder / SPOOL, shards)
    rules = msgspec.convert(head.config["measure"], Measure, dec_hook=lambda kind, value: kind(value))
    records = msgspec.structs.replace(records, phase=window.mark(records.rows, rules, head.plan))
    step = max((sample.clock_step for sample in records.samples), key=abs, default=0)
    head = msgspec.structs.replace(head, clock=head.clock | {"step_ns": step})
    total = int(records.rows["chunk_count"].sum())
    chunks, series = partial(spool.pieces, folder / SPOOL, shards), partial(_series, folder / SPOOL, records)
    return Run(folder, head, records, total, chunks, series)


def _draft(config: Config, reached: reach.Reached, plan: Plan, shards: int) -> Draft:
    made = prepared_count(plan, shards)
    return Draft(
        Manifest(
            inferometer=__version__,
            started="",
            t0_wall_ns=0,
            config=manifest.redacted(config, reached.model),
            plan=manifest.stage_plans(config, plan),
            workload={
                "digest": workload.digest(config.data, config.seed),
                "distinct": min(workload.distinct(config.data) or made, made),
            },
            clock={"source": manifest.clock_source(), "stamps": "unknown"},
            seeds={"seed": config.seed},
            versions=manifest.versions(),
            host=manifest.host() | {"processes": shards},
            server=manifest.server(config, reached.facts),
        ),
        shards,
    )


def _finished(head: Manifest, crew: Supervisor) -> Manifest:
    wall = crew.t0 + wall_offset()
    facts = crew.reports[0] if crew.reports else None
    errors = tuple(crew.errors) + (("the disk filled up: recording stopped there",) if crew.disk_full else ())
    given_up = {stage for one in crew.reports for stage in one.given_up}
    return msgspec.structs.replace(
        head,
        started=datetime.fromtimestamp(wall / 1e9, UTC).isoformat(timespec="milliseconds"),
        t0_wall_ns=wall,
        clock=head.clock | ({"stamps": facts.stamps, "timer": facts.timer, "loop": facts.loop} if facts else {}),
        outcome=Outcome(crew.interrupted, errors, tuple(sorted(given_up))),
    )


def _forget_if_empty(folder: Path, shards: int) -> None:
    """A run that recorded nothing leaves no folder behind; one that did keeps its spool."""
    with contextlib.suppress(OSError, ValueError):
        if not any((folder / SPOOL / f"{shard}.rows").exists() for shard in range(shards)) or not len(
            spool.merge(folder / SPOOL, shards)[0].rows
        ):
            shutil.rmtree(folder)


@contextlib.contextmanager
def _ctrl_c(stop: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C ends the run with a grace, the second at once, the third as usual. (SIGTERM counts as the first.)"""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    count = 0
    last = -_TOGETHER

    def heard(number: int, frame: FrameType | None) -> None:
        nonlocal count, last
        if time.monotonic() - last < _TOGETHER:
            return
        count, last = count + 1, time.monotonic()
        if count > 2:
            raise KeyboardInterrupt
        stop()

    earlier = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
