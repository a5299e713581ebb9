"""From the shards' spool to the run's folder, also for a run that never ended."""

import contextlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer import store
from inferometer.analysis import settings, window
from inferometer.analysis.summary import Summary, summarise
from inferometer.conduct.stored_shards import complete
from inferometer.config.cost import check_cost
from inferometer.config.schema import Measure
from inferometer.errors import UserError
from inferometer.records import Body, Manifest, Outcome, Records, Run, class_names
from inferometer.report import json as report_json
from inferometer.series import TimeSeries
from inferometer.store import body_spool, spool
from inferometer.store import draft as drafts
from inferometer.store.folder import CHUNKS, SERIES, files_of

SPOOL = "spool"
DRAFT = "draft.json"


Changes = Mapping[str, Mapping[str, object]]
"""Keys of sections of the config that count instead of those of a stored run: {"cost": {"gpus": 8}}."""


def open_run(folder: str, slos: Sequence[str] | None = None, changes: Changes | None = None) -> tuple[Run, Summary]:
    """Open a stored run. One that never ended is put together from what it had recorded, and stored.

    `slos` are objectives to judge it by instead of its own, and `changes` other settings of the report; they are not stored.
    """
    saved = recover(folder)
    if saved is None:
        run = changed(store.read(folder), changes)
        return run, summarise(run, slos)
    run, summary = saved
    if slos is None and not changes:
        return run, summary
    run = changed(run, changes)
    return run, summarise(run, slos)


def recover(folder: str | Path) -> tuple[Run, Summary] | None:
    """Put a run that never ended together from what it had recorded, and store it; None if there is no such run in the folder."""
    path = Path(folder).resolve()
    draft_file = path / SPOOL / DRAFT
    if (path / "manifest.json").exists() and (path / SPOOL).exists() and not drafts.is_locked(draft_file):
        with contextlib.suppress(UserError):  # the folder is damaged or read-only
            return _complete(path, store.read(path))
    if not draft_file.exists() or (path / "manifest.json").exists():
        return None
    draft = drafts.read(draft_file)
    unfinished = draft.manifest
    if not unfinished.started:
        errors = (*unfinished.outcome.errors, "the run did not end")
        unfinished = msgspec.structs.replace(unfinished, outcome=Outcome(True, errors))
    try:
        spool.await_end(path / SPOOL, draft.shards)
        run = from_spool(path, unfinished, draft.shards)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path / SPOOL}: cannot be read: {error}", "report it with the version that recorded it, or run again"
        ) from None
    return save(path, run)


def changed(run: Run, changes: Changes | None) -> Run:
    """The run with other settings of the report. Raises UserError when the run cannot have a figure that they ask for."""
    if not changes:
        return run
    config = dict(run.manifest.config)
    for name, keys in changes.items():
        own = config.get(name)
        config[name] = (own if isinstance(own, dict) else {}) | dict(keys)
    manifest = msgspec.structs.replace(run.manifest, config=config)
    is_streamed = settings.text(manifest, "server", "stream") is not False
    check_cost(settings.cost(manifest), settings.receives_text(manifest), is_streamed)
    return msgspec.structs.replace(run, manifest=manifest)


class UnsavedError(UserError):
    """The records could not be stored. `run` and `summary` are made from the shards' spool."""

    def __init__(self, cause: UserError, run: Run, summary: Summary) -> None:
        super().__init__(
            f"{cause.line}: the run is measured but not stored",
            f"make room, then `inferometer report {run.folder}` stores it from {SPOOL}/",
        )
        self.run = run
        self.summary = summary


class NotUploadedError(UnsavedError):
    """The run is stored in its folder, but not in the bucket that it belongs to."""

    def __init__(self, cause: UserError, run: Run, summary: Summary) -> None:
        UserError.__init__(self, cause.line, cause.next_step)
        self.run = run
        self.summary = summary


def save(folder: Path, run: Run) -> tuple[Run, Summary]:
    try:
        # Chunks and texts that the shards have stored are in the folder already.
        is_by_shard = not (folder / CHUNKS).exists() and bool(files_of(folder, CHUNKS))
        chunks, bodies = (None, None) if is_by_shard else (run.chunks(), _bodies(folder / SPOOL))
        store.write(folder, run.manifest, run.records, chunks, run.series(), bodies)
        return _complete(folder, store.written(folder, run.records))
    except UserError as error:
        raise UnsavedError(error, run, summarise(run)) from None


def _complete(folder: Path, stored: Run) -> tuple[Run, Summary]:
    """Write the summary of a run whose other files are complete, and delete its spool."""
    summary = summarise(stored)
    store.write_summary(folder, report_json.encode(summary))
    shutil.rmtree(folder / SPOOL, ignore_errors=True)
    store.point_latest(folder)
    return stored, summary


def mark_phases(records: Records, head: Manifest) -> NDArray[np.int8]:
    """The phase of each row, by the rules of the run's config."""
    rules = msgspec.convert(head.config["measure"], Measure, dec_hook=lambda kind, value: kind(value))
    return window.mark(records.rows, rules, head.plan)


def from_spool(folder: Path, head: Manifest, shards: int) -> Run:
    """Make the run of what the shards have recorded. Raises UserError when they have stored some of it in a bucket that cannot be read."""
    records, _ = spool.merge(folder / SPOOL, shards)
    phase = mark_phases(records, head)
    records = msgspec.structs.replace(records, phase=phase, classes=class_names(head))
    step = max((sample.clock_step for sample in records.samples), key=abs, default=0)
    head = msgspec.structs.replace(head, clock=head.clock | {"step_ns": step})
    total = int(records.rows["chunk_count"].sum())
    series = partial(_series, folder / SPOOL, records)
    if complete(folder, folder / SPOOL, shards, records.classes):
        from inferometer.store import reading  # noqa: PLC0415 - it imports pyarrow

        return Run(folder, head, records, total, partial(reading.chunks_of, folder), series)
    return Run(folder, head, records, total, partial(spool.pieces, folder / SPOOL, range(shards)), series)


def _series(folder: Path, records: Records) -> tuple[TimeSeries, ...]:
    """Return the client's health, which the shards recorded, and what observers recorded."""
    from inferometer.store import series as series_file  # noqa: PLC0415 - it imports pyarrow

    with contextlib.suppress(UserError):  # the run, or the writing, did not end
        return (*series_file.client_health(records.samples), *series_file.read(folder / SERIES))
    return series_file.client_health(records.samples)


def _bodies(folder: Path) -> Iterable[Body] | None:
    """Return the texts of requests and responses that the shards kept; None if the run does not keep them."""
    shards = range(len(list(folder.glob("*.control"))))
    return body_spool.read_bodies(folder, shards) if body_spool.has_bodies(folder, shards) else None


def discard_if_empty(folder: Path, shards: int) -> None:
    """Delete the folder of a run that recorded nothing. One that recorded something keeps its spool."""
    with contextlib.suppress(OSError, ValueError):
        if not any((folder / SPOOL / f"{shard}.rows").exists() for shard in range(shards)) or not len(
            spool.merge(folder / SPOOL, shards)[0].rows
        ):
            shutil.rmtree(folder)
