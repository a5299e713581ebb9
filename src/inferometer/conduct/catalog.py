"""What runs a folder or a bucket holds: one entry for each run, and one for each folder of several runs.

Only manifests and summaries are read, so that a thousand runs take a second or two.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from inferometer.analysis import settings
from inferometer.conduct.experiment import kind_in
from inferometer.conduct.remote import cache_folder, fetch_new, is_safe
from inferometer.conduct.saving import DRAFT, SPOOL
from inferometer.config.storage import is_remote
from inferometer.errors import UserError
from inferometer.records import Manifest
from inferometer.report.capacity import headline
from inferometer.report.capacity_export import read as read_capacity
from inferometer.report.formatting import describe_load, describe_target
from inferometer.report.runs_table import Entry, Latency, State
from inferometer.store import draft as drafts
from inferometer.store.folder import LISTS, MANIFEST, RUNS, SUMMARY
from inferometer.store.objects import connect
from inferometer.store.upload import read_upload

_READ = {MANIFEST, SUMMARY, RUNS, *LISTS}
_NAME = re.compile(r"(\d{8}-\d{6})-[0-9a-f]{4,}(?:-part\d+-[0-9a-f]{4})?")
_THREADS = 8


class _Counts(msgspec.Struct):
    ok: int = 0
    failed: int = 0


class _Throughput(msgspec.Struct):
    requests: float | None = None
    output_tokens: float | None = None


class _Summary(msgspec.Struct):
    """The part of summary.json that is shown."""

    verdict: str = ""
    counts: _Counts = msgspec.field(default_factory=_Counts)
    throughput: _Throughput = msgspec.field(default_factory=_Throughput)
    metrics: dict[str, Latency] = {}


_summary = msgspec.json.Decoder(_Summary)
_manifest = msgspec.json.Decoder(Manifest)


def catalog(where: str) -> list[Entry]:
    """The runs in a folder or at a URL, the newest last. Raises UserError when there is no such folder or bucket."""
    entries = _in_bucket(where) if is_remote(where) else _in_folder(Path(where))
    return sorted(entries, key=lambda entry: (entry.started or _time_of(entry.name), entry.name))


def _in_folder(base: Path) -> list[Entry]:
    if not base.is_dir():
        raise UserError(f"{base}: there is no such folder", "measure something with `inferometer run`, or give another")
    if _is_entry(base):
        folders = [base.resolve()]
    else:
        folders = [path for path in base.iterdir() if path.is_dir() and not path.is_symlink() and _is_entry(path)]
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(_stored, folders))


def _is_entry(folder: Path) -> bool:
    """Whether the folder is a run or has runs in it; one without anything may be a run that was killed at its start."""
    if any((folder / name).exists() for name in (*_READ, SPOOL)):
        return True
    return bool(_NAME.fullmatch(folder.name))


def _stored(folder: Path) -> Entry:
    entry = _entry(folder, str(folder))
    upload = read_upload(folder)
    if entry.state == "complete" and upload is not None and not upload.complete:
        return msgspec.structs.replace(entry, state="not uploaded")
    return entry


def _in_bucket(url: str) -> list[Entry]:
    with connect(url) as objects:
        sizes = {name: size for name, size in objects.sizes().items() if is_safe(name)}
        if MANIFEST in sizes:
            raise UserError(f"{url}: this is a run", f"give the URL above it, or use `inferometer report {url}`")
        fetch_new(objects, sizes, lambda name: name.rpartition("/")[2] in _READ)
        base, root = cache_folder(objects), objects.url
    folders = _entries_in(sizes)
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(lambda name: _entry(base / name, f"{root}/{name}", folders[name]), folders))


def _entries_in(names: Iterable[str]) -> dict[str, set[str]]:
    """The folders in a bucket that are entries, at any depth, each with the names within it. Other objects do not count."""
    marked = {name.rpartition("/")[0] for name in names if name.rpartition("/")[2] in _READ}
    entries: dict[str, set[str]] = {}
    for name in names:
        parts = name.split("/")[:-1]
        for depth, part in enumerate(parts, 1):
            folder = "/".join(parts[:depth])
            if folder in marked or _NAME.fullmatch(part):
                entries.setdefault(folder, set()).add(name.removeprefix(f"{folder}/"))
                break
    return entries


def _entry(folder: Path, shown: str, objects: set[str] | None = None) -> Entry:
    """The entry for a folder; `objects` are the names within it in the bucket that it is the cache of."""

    def has(*parts: str) -> bool:
        return folder.joinpath(*parts).exists() if objects is None else "/".join(parts) in objects

    try:
        kind = kind_in(folder)
    except UserError:
        kind = "repeats"
    inner = _inner(folder, objects) if kind or not (has(MANIFEST) or has(SPOOL, DRAFT)) else []
    if not (kind or inner):
        return _run(folder, shown, has(MANIFEST))
    runs = [_run(folder / name, f"{shown}/{name}", has(name, MANIFEST)) for name in inner]
    return _group(folder.name, shown, kind or "repeats", runs, _answer(folder) if kind == "capacity" else "")


def _answer(folder: Path) -> str:
    """What a search for the capacity found, such as `holds 12.5 requests/s (12 to 13)`; "" if its file cannot be read."""
    try:
        return headline(read_capacity(folder).found)
    except UserError:
        return ""


def _inner(folder: Path, objects: set[str] | None) -> list[str]:
    """The names of the runs in a folder of several."""
    if objects is not None:
        return sorted({name.partition("/")[0] for name in objects if name.count("/") == 1})
    return sorted(
        path.name
        for path in folder.iterdir()
        if not path.is_symlink() and ((path / MANIFEST).exists() or (path / SPOOL).exists())
    )


def _group(name: str, shown: str, kind: str, runs: Sequence[Entry], load: str) -> Entry:
    states = [run.state for run in runs]
    worst: State = next((state for state in ("running", "damaged", "incomplete") if state in states), "complete")
    verdicts = Counter(run.verdict for run in runs if run.verdict)
    first = runs[0] if runs else None
    return Entry(
        name=name,
        folder=shown,
        kind=kind,
        state=worst if runs else "incomplete",
        started=min((run.started for run in runs if run.started), default=""),
        model=first.model if first else "",
        server=first.server if first else "",
        load=load,
        verdict=", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items(), reverse=True)),
        runs=len(runs),
        requests=sum(run.requests or 0 for run in runs),
        failed=sum(run.failed or 0 for run in runs),
    )


def _run(folder: Path, shown: str, is_complete: bool) -> Entry:
    if not is_complete:
        return _unfinished(folder, shown)
    try:
        manifest = _manifest.decode((folder / MANIFEST).read_bytes())
    except (OSError, msgspec.MsgspecError):
        return Entry(name=folder.name, folder=shown, state="damaged")
    try:
        summary = _summary.decode((folder / SUMMARY).read_bytes())
    except (OSError, msgspec.MsgspecError):  # killed between the manifest and the summary: `report` makes it again
        summary = _Summary()
    return Entry(
        name=folder.name,
        folder=shown,
        state="complete",
        verdict=summary.verdict,
        requests=summary.counts.ok,
        failed=summary.counts.failed,
        rate=summary.throughput.requests,
        output_tokens=summary.throughput.output_tokens,
        ttft=summary.metrics.get("ttft", Latency()),
        e2e=summary.metrics.get("e2e", Latency()),
        **_facts(folder.name, manifest),
    )


def _unfinished(folder: Path, shown: str) -> Entry:
    """A run without a manifest: in progress, killed, or not completely uploaded."""
    draft_file = folder / SPOOL / DRAFT
    entry = Entry(name=folder.name, folder=shown, state="incomplete")
    if not draft_file.exists():
        return entry
    try:
        facts = _facts(folder.name, drafts.read(draft_file).manifest)
    except UserError:  # locked by the process that measures, or damaged
        is_empty = not draft_file.stat().st_size  # killed at that moment
        state: State = "running" if drafts.is_locked(draft_file) else "incomplete" if is_empty else "damaged"
        return msgspec.structs.replace(entry, state=state)
    return msgspec.structs.replace(entry, **facts)


def _facts(name: str, manifest: Manifest) -> dict[str, Any]:
    stages = manifest.plan
    load = describe_load(stages[0]) if len(stages) == 1 else f"{len(stages)} stages" if stages else ""
    model = settings.text(manifest, "server", "model")
    return {
        "started": manifest.started or _time_of(name),
        "model": str(model or ""),
        "server": describe_target(manifest),
        "load": load,
    }


def _time_of(name: str) -> str:
    """The time in the name of a folder, in the form of `started`; "" if it has none. Names have local time."""
    match = _NAME.fullmatch(name)
    if match is None:
        return ""
    return datetime.strptime(match[1], "%Y%m%d-%H%M%S").astimezone(UTC).isoformat()


# --- filters ---------------------------------------------------------------------------------------------------------


def chosen(
    entries: Iterable[Entry], model: str | None, since: datetime | None, verdict: str | None, state: str | None
) -> list[Entry]:
    """The entries that have a part of this name in their model, started at or after `since`, and have this verdict and state."""
    return [
        entry
        for entry in entries
        if (model is None or model.lower() in entry.model.lower())
        and (since is None or _when(entry) >= since)
        and (verdict is None or verdict in re.findall(r"\w+", entry.verdict))
        and (state is None or entry.state == state)
    ]


def _when(entry: Entry) -> datetime:
    text = entry.started or _time_of(entry.name)
    return datetime.fromisoformat(text) if text else datetime.min.astimezone()
