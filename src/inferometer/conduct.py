"""The only place where the folders meet: from a config to a run's folder and its report.

    reach the server -> plan -> shards (live view meanwhile) -> spool -> folder -> read it back -> summary -> report

The report of a live run is made from the folder that was just written, by the function that `inferometer report` calls.
"""

import contextlib
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Protocol

import msgspec

from inferometer import __version__, manifest, schedule, store, workload
from inferometer.analysis import window
from inferometer.analysis.summary import Summary, summarise
from inferometer.config.schema import Config, Measure
from inferometer.engine import before, spool
from inferometer.errors import UserError
from inferometer.fleet.crew import Crew, Snapshot
from inferometer.fleet.job import Job, how_many, prepared
from inferometer.records import Manifest, Outcome, Run
from inferometer.report import json as report_json
from inferometer.store import draft as drafts
from inferometer.store.draft import Draft
from inferometer.store.folder import disk_errors
from inferometer.timing.clock import wall_offset
from inferometer.types import Plan

SPOOL = "spool"
_DRAFT = "draft.json"


class Show(Protocol):
    """Who is told how a run goes (report/live.py)."""

    def planned(self, config: Config, plan: Plan, reached: before.Reached, shards: int, folder: Path) -> None: ...

    def progress(self, snapshot: Snapshot) -> None: ...

    def over(self) -> None: ...


def measure(config: Config, show: Show | None = None) -> tuple[Run, Summary]:
    """Run it, and say nothing unless there is a `show`. Raises UnsavedError where the records cannot be stored."""
    reached = before.reach(config.server)
    plan = schedule.plan(config.load, config.seed)
    shards = how_many(config, plan)
    folder = store.new_folder(config.output)
    job = Job(config, reached, shards, folder / SPOOL, secrets.token_hex(4))
    with contextlib.ExitStack() as held:
        return _measure(job, plan, folder, show, held)


def _measure(job: Job, plan: Plan, folder: Path, show: Show | None, held: contextlib.ExitStack) -> tuple[Run, Summary]:
    config, reached, shards = job.config, job.reached, job.shards
    try:
        draft = _draft(config, reached, plan, shards)
        with disk_errors(folder):
            job.spool.mkdir()
            draft_file = held.enter_context(drafts.begin(job.spool / _DRAFT, draft))
        if show:
            show.planned(config, plan, reached, shards, folder)
        crew = Crew(job, in_process=config.client.processes == 0)
        with _ctrl_c(crew.stop):
            for snapshot in crew.watch(0.25 if show else 1.0):
                if show:
                    show.progress(snapshot)
    except BaseException:
        _forget_if_empty(folder, shards)
        raise
    finally:
        if show:
            show.over()
    if not crew.t0:
        _forget_if_empty(folder, shards)
        raise UserError("; ".join(crew.errors) or "ended before it started", "nothing was sent")
    finished = _finished(draft.manifest, crew, config)
    drafts.end(draft_file, Draft(finished, shards))
    return _save(folder, _from_spool(folder, finished, shards))


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
        errors = (*unfinished.outcome.errors, "the run did not end: this is what it had recorded")
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
            f"{cause.what}: the run is measured but not stored",
            f"make room, then `inferometer report {run.folder}` stores it from {SPOOL}/",
        )
        self.run = run
        self.summary = summary


def _save(folder: Path, run: Run) -> tuple[Run, Summary]:
    try:
        store.write(folder, run.manifest, run.records, run.chunks())
        stored = store.read(folder)
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
    records = msgspec.structs.replace(records, phase=window.mark(records.rows, rules))
    step = max((sample.clock_step for sample in records.samples), key=abs, default=0)
    head = msgspec.structs.replace(head, clock=head.clock | {"step_ns": step})
    total = int(records.rows["chunk_count"].sum())
    return Run(folder, head, records, total, lambda: spool.pieces(folder / SPOOL, shards))


def _draft(config: Config, reached: before.Reached, plan: Plan, shards: int) -> Draft:
    made = prepared(plan, shards)
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
        ),
        shards,
    )


def _finished(head: Manifest, crew: Crew, config: Config) -> Manifest:
    wall = crew.t0 + wall_offset()
    facts = crew.facts[0] if crew.facts else None
    errors = tuple(crew.errors) + (("the disk filled up: recording stopped there",) if crew.disk_full else ())
    return msgspec.structs.replace(
        head,
        started=datetime.fromtimestamp(wall / 1e9, UTC).isoformat(timespec="milliseconds"),
        t0_wall_ns=wall,
        clock=head.clock | ({"stamps": facts.stamps, "timer": facts.timer, "loop": facts.loop} if facts else {}),
        outcome=Outcome(crew.interrupted, errors),
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

    def heard(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count > 2:
            raise KeyboardInterrupt
        stop()

    earlier = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
