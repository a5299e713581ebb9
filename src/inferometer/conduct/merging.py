"""Makes one run of the parts that several clients have measured (parts.py): `inferometer merge`.

Merging is concatenation. Rows are in memory, as for a report; chunks and texts are copied piece by piece. Nothing is corrected: times of
a part count from the earliest t=0 of all parts, by the wall clock of its own machine, and these clocks were not compared.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from inferometer import store
from inferometer.analysis.summary import Summary, summarise
from inferometer.conduct.comparing import runs_of
from inferometer.conduct.merged_manifest import StoredPart, check_alike, is_on_several_machines, merged_manifest
from inferometer.conduct.remote import local_names
from inferometer.conduct.saving import SPOOL, mark_phases, recover
from inferometer.conduct.uploading import mark, upload_to
from inferometer.config.storage import Storage, is_remote
from inferometer.errors import UserError
from inferometer.records import Records, Run
from inferometer.report import json as report_json
from inferometer.series import TimeSeries
from inferometer.store import joining, reading
from inferometer.store.folder import MANIFEST
from inferometer.store.series import client_health

_CLIENT = "client"
_MACHINE = ("host", "process", "nvml")
"""Sources of series that are about the client's machine. The others are about the server."""


def merge(names: Sequence[str], output: str) -> tuple[Run, Summary]:
    """Merge the parts of a run, and store it in a new folder under `output`, which may belong to a bucket (uploading.py).

    A name is the folder or the URL of a part, a folder that contains parts, or a glob. Parts that are missing make the run INVALID.
    Raises UserError when the runs are not parts of one run, or one part is there twice.
    """
    parts = _parts(names)
    check_alike(parts)
    upload = upload_to(output, Storage()) if is_remote(output) else None
    folder = store.new_folder(upload.storage.local if upload else output)
    try:
        mark(folder, upload)
        run = _written(folder, parts)
        summary = summarise(run)
        store.write_summary(folder, report_json.encode(summary))
    except BaseException:  # a damaged part, a full disk, Ctrl-C: the parts are still there, and can be merged again
        shutil.rmtree(folder, ignore_errors=True)
        raise
    store.point_latest(folder)
    return run, summary


def _parts(names: Sequence[str]) -> list[StoredPart]:
    """Find the parts that names stand for, in the order of their numbers. Other runs in a folder of several are left out."""
    folders: dict[Path, bool] = {}
    for name in local_names(names):
        found = [folder.resolve() for folder in _runs_of(name)]
        if twice := [folder for folder in found if folder in folders]:
            raise UserError(f"{twice[0]}: this run is named twice", "name each part once")
        folders |= {folder: len(found) == 1 for folder in found}
    parts = []
    for folder, is_named in folders.items():
        recover(folder)
        manifest = reading.read_manifest(folder)
        if manifest.part is not None:
            parts.append(StoredPart(folder, manifest, manifest.part, reading.row_count(folder)))
        elif is_named:
            what = "was merged already" if manifest.merged is not None else "was measured without --shard"
            raise UserError(f"{folder}: this is not a part of a run: it {what}", "give the folders of parts")
    if not parts:
        raise UserError(
            f"{', '.join(names)}: there is no part of a run",
            "measure parts with `inferometer run FILE --shard K/N --start-at TIME`",
        )
    return sorted(parts, key=lambda each: each.part.number)


def _runs_of(name: str) -> list[Path]:
    """The runs that a name stands for, also those in a folder that were killed and are not put together yet."""
    folder = Path(name)
    if not folder.is_dir() or (folder / MANIFEST).exists() or (folder / SPOOL).exists():
        return runs_of(name)
    inside = [each for each in folder.iterdir() if (each / MANIFEST).exists() or (each / SPOOL).exists()]
    return sorted(each for each in inside if not each.is_symlink()) or [folder]


def _written(folder: Path, parts: Sequence[StoredPart]) -> Run:
    """Write the merged run to its folder."""
    start, shards, placed = min(each.t0_wall_ns for each in parts), 0, list[joining.Placed]()
    for each in parts:
        placed.append(joining.Placed(each.folder, each.t0_wall_ns - start, shards))
        shards += each.processes
    manifest = merged_manifest(parts)
    records = joining.joined_records(placed)
    records = msgspec.structs.replace(records, phase=mark_phases(records, manifest))
    bodies = joining.joined_bodies([each.folder for each in parts], records.classes)
    series = _series(placed, records, is_on_several_machines(parts))
    store.write(folder, manifest, records, joining.joined_chunks(placed), series, bodies)
    return store.written(folder, records)


def _series(placed: Sequence[joining.Placed], records: Records, is_spread: bool) -> list[TimeSeries]:
    """The health of all client processes, and what was observed: of the server, by the one part that did (observers.py); of the
    client's machine, by the first part, unless there were several machines."""
    kept = list(client_health(records.samples))
    seen = {_CLIENT, *(_MACHINE if is_spread else ())}
    for each in placed:
        own = [series for series in joining.shifted_series(each) if series.source not in seen]
        kept += own
        seen |= {series.source for series in own}
    return kept
